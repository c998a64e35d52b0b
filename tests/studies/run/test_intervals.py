"""Intervals of predictions from datasheets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.library.prediction_error import spread_factors
from perfmodel.scenario import load_scenario
from perfmodel.simulate import uncontended
from perfmodel.simulate.sharing import duty_cycle
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.resolve.machine import bound_machines
from perfmodel.studies.run.run import DATASHEET_INTERVAL
from perfmodel.topology.templates.build import build_topology

MIB = 1 << 20


def test_bounds_are_the_spread_of_recorded_sweeps() -> None:
    topology = build_topology("dgx-h100")
    machine = make_machine(topology, load_library("nccl"))
    low, high = spread_factors(topology, "all_reduce", 25 * MIB)
    likely, quick, slow = (
        UncontendedTimer(each).best("all_reduce", 25 * MIB, range(8))[1]
        for each in (machine, *bound_machines(machine))
    )
    assert low < 1 < high
    assert quick / likely == pytest.approx(low, rel=1e-6)
    assert slow / likely == pytest.approx(high, rel=1e-6)


@pytest.mark.parametrize("library", ["plain", "gloo", "mpi"])
def test_nothing_is_known_of_other_libraries(library: str) -> None:
    machine = make_machine(build_topology("dgx-h100"), load_library(library))
    assert bound_machines(machine) == ()


def test_hardware_that_nobody_ran_gets_the_widest_interval() -> None:
    known = build_topology("dgx-h100")
    new = build_topology("aws-g5-48xlarge")
    for nbytes in (MIB, 512 * MIB):
        near, far = (spread_factors(at, "all_reduce", nbytes) for at in (known, new))
        assert far[1] / far[0] > near[1] / near[0]


def test_a_step_has_an_interval_without_a_profile() -> None:
    answer = run_scenario(load_scenario("resnet50-dgx-a100", ("cluster.nodes=2", "scale.gpus=[1]")))
    alone, several = answer.points
    assert alone.interval_s is None, "one GPU sends nothing"
    assert several.interval_s is not None
    low, high = several.interval_s
    assert low < several.step_time_s < high
    assert high - several.step_time_s < 3 * several.comm_s, "only collectives take longer"
    assert DATASHEET_INTERVAL in answer.assumptions


def count_calls(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, key: Callable[..., object]
) -> list[object]:
    """Let a function of a module record what it was called with."""
    called: list[object] = []
    function = getattr(module, name)

    def recorded(*args: Any, **options: Any) -> object:
        called.append(key(*args, **options))
        return function(*args, **options)

    monkeypatch.setattr(module, name, recorded)
    return called


DEGRADED = "events=[{degrade: {link: n1/nic0 -- fabric/leaf0, to: 10 Gbit/s}}]"


@pytest.mark.parametrize(("events", "machines"), [((), 1), ((DEGRADED,), 2)])
def test_an_interval_lays_no_collective_again(
    monkeypatch: pytest.MonkeyPatch, events: tuple[str, ...], machines: int
) -> None:
    """Bound machines differ in corrections only: schedules, routes and rates are the likely one's.

    One lowering for each operation and size, and the shares of links once for each pipeline; of the
    machine with an event and without.
    """
    lowered = count_calls(
        monkeypatch, uncontended, "lower_without_corrections",
        lambda machine, op, nbytes, group, **_: (op, nbytes, group),
    )  # fmt: skip
    shared = count_calls(monkeypatch, duty_cycle, "duty_cycle_rates", lambda _, stage, *__: stage)
    filled = count_calls(
        monkeypatch, duty_cycle, "fill_and_drain_rates", lambda _, stage, *__: stage
    )
    answer = run_scenario(
        load_scenario("resnet50-dgx-a100", ("cluster.nodes=2", "scale=null", *events))
    )
    assert answer.points[0].interval_s is not None
    assert 3 < len(lowered) <= machines * len(set(lowered))
    assert 0 < len(shared) == len(filled) <= len(lowered)


def test_a_shared_timer_times_as_one_of_its_own() -> None:
    topology = build_topology("dgx-a100", hosts=4, fabric="rail-optimised")
    machine = make_machine(topology, load_library("nccl"))
    likely, group = UncontendedTimer(machine), range(32)
    for nbytes in (1000, MIB, 25 * MIB, 400 * MIB):
        likely.best("all_reduce", nbytes, group)
        for bound in bound_machines(machine):
            assert bound.differs_in_corrections_only(machine)
            shared, alone = likely.on(bound), UncontendedTimer(replace(bound))
            assert (
                shared.best("all_reduce", nbytes, group)[1]
                == (alone.best("all_reduce", nbytes, group)[1])
            )


def test_machines_with_other_links_share_nothing() -> None:
    machine = make_machine(build_topology("dgx-h100"), load_library("nccl"))
    (quick, _), other = bound_machines(machine), build_topology("dgx-a100")
    assert not machine.differs_in_corrections_only(replace(machine))
    assert not quick.with_corrections(other, quick.measured).differs_in_corrections_only(machine)
    timer = UncontendedTimer(machine)
    times = [
        each.best("all_reduce", 25 * MIB, range(8))[1]
        for each in (
            timer.on(replace(machine, topology=other)),
            UncontendedTimer(replace(machine, topology=other)),
        )
    ]
    assert times[0] == times[1] != timer.best("all_reduce", 25 * MIB, range(8))[1]
