"""Intervals of predictions from datasheets."""

from __future__ import annotations

import pytest

from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.library.prediction_error import spread_factors
from perfmodel.scenario import load_scenario
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
    new = build_topology("gb200-nvl72")
    for nbytes in (MIB, 512 * MIB):
        near, far = (spread_factors(at, "all_reduce", nbytes) for at in (known, new))
        assert far[1] / far[0] > near[1] / near[0]


def test_a_step_has_an_interval_without_a_profile() -> None:
    answer = run_scenario(load_scenario("resnet50-dgx-a100", ("scale.gpus=[1, 16]",)))
    alone, several = answer.points
    assert alone.interval_s is None, "one GPU sends nothing"
    assert several.interval_s is not None
    low, high = several.interval_s
    assert low < several.step_time_s < high
    assert high - several.step_time_s < 3 * several.comm_s, "only collectives take longer"
    assert DATASHEET_INTERVAL in answer.assumptions
