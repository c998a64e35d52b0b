"""Machines that differ in numbers only share which groups are alike, and answer as alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import simpy

from perfmodel.arrays import RankGroup
from perfmodel.library.machine import Machine, make_machine
from perfmodel.library.model import load_library
from perfmodel.library.nccl import dispatch
from perfmodel.scenario.sections.variants import WhatIf
from perfmodel.simulate import alike_groups
from perfmodel.simulate.flow.alike_collectives import JoinedCollectives
from perfmodel.simulate.flow.network import FlowNetwork
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.resolve.what_if import apply_what_if
from perfmodel.topology.faults import degrade_links
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.spec import FabricSpec

FABRIC = FabricSpec(kind="rail-optimised", hosts_per_leaf=4, radix=16)
HOSTS, SIZE = 12, 8
RAILS = tuple(
    tuple(range(first * SIZE + gpu, (first + 6) * SIZE, SIZE))
    for first in (0, 6)
    for gpu in range(SIZE)
)
NODES = tuple(range(SIZE * node, SIZE * node + SIZE) for node in range(HOSTS))
PAIRS = tuple((rank, rank + 6 * SIZE) for rank in range(6 * SIZE))
CALLS: list[tuple[str, int, tuple[RankGroup, ...]]] = [
    ("all_gather", 1 << 24, RAILS),
    ("reduce_scatter", 3 << 20, RAILS),
    ("all_reduce", 1 << 22, RAILS),
    ("all_gather", 1 << 24, NODES),
    ("send", 1 << 20, PAIRS),
    ("broadcast", 1 << 22, RAILS),
]
WHAT_IFS: dict[str, dict[str, object]] = {
    "no latency": {"network_latency": 0.0, "node_latency": 0.0, "launch": 0.0},
    "network": {"network_bandwidth": "infinite"},
    "links of nodes": {"nvlink_bandwidth": "infinite", "pcie_bandwidth": "infinite"},
    "slower": {"network_bandwidth": 0.5, "node_latency": 3.0},
}


def usual_machine() -> Machine:
    topology = build_topology("dgx-a100", hosts=HOSTS, fabric=FABRIC)
    return make_machine(topology, load_library("nccl"))


def times_s(timer: UncontendedTimer) -> list[float]:
    """Return the time of each call, all its groups together."""
    ends_s = []
    for op, nbytes, groups in CALLS:
        for times in (1, 3):
            network = FlowNetwork(simpy.Environment(), timer)
            network.env.run(until=network.collective(op, nbytes, groups, groups[0][0], times))
            ends_s.append(float(network.env.now))
    return ends_s


def count(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[str]:
    called, function = list[str](), getattr(module, name)

    def counted(*args: Any, **options: Any) -> Any:
        called.append(name)
        return function(*args, **options)

    monkeypatch.setattr(module, name, counted)
    return called


@pytest.mark.parametrize("fields", WHAT_IFS.values(), ids=WHAT_IFS)
def test_groups_are_looked_at_once_for_all_numbers(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, object]
) -> None:
    machine = usual_machine()
    first = times_s(UncontendedTimer(machine))
    quicker = apply_what_if(WhatIf.model_validate(fields), machine)
    looked = count(monkeypatch, alike_groups, "edges_on_hosts")
    shared = times_s(UncontendedTimer(quicker))
    assert not looked
    alone = times_s(UncontendedTimer(replace(quicker, shared={})))
    assert looked
    assert shared == pytest.approx(alone, rel=1e-12)
    assert shared != pytest.approx(first, rel=1e-3)


@pytest.mark.parametrize("fields", WHAT_IFS.values(), ids=WHAT_IFS)
def test_collectives_of_a_machine_with_other_numbers_have_its_numbers(
    fields: dict[str, object],
) -> None:
    machine = usual_machine()
    quicker = apply_what_if(WhatIf.model_validate(fields), machine)
    timers = [UncontendedTimer(each) for each in (machine, quicker, replace(quicker, shared={}))]
    for op, nbytes, groups in CALLS:
        _, shared, alone = (timer.lower(op, nbytes, groups, groups[0][0]) for timer in timers)
        for mine, other in zip(shared, alone, strict=True):
            assert mine.launch_s == other.launch_s
            for stage, expected in zip(mine.stages, other.stages, strict=True):
                np.testing.assert_array_equal(stage.latency_s, expected.latency_s)
                for name in ("src", "dst", "pointers", "arcs", "latency_s", "cap_Bps", "hop"):
                    own = getattr(stage.edges, name)
                    np.testing.assert_array_equal(own, getattr(expected.edges, name), name)


def test_groups_that_a_slow_link_tells_apart_are_looked_at_again() -> None:
    """A cable of one rail is slower on the second machine, where its groups are unlike others."""
    machine = usual_machine()
    usual = times_s(UncontendedTimer(machine))
    cable = UncontendedTimer(machine).best("all_gather", 1 << 24, RAILS[3])[0].stages[0].edges.arcs
    slower = degrade_links(machine.topology, {int(cable.max()): 1e9})
    shared = times_s(UncontendedTimer(replace(machine, topology=slower)))
    alone = times_s(UncontendedTimer(replace(machine, topology=slower, shared={})))
    assert shared == pytest.approx(alone, rel=1e-12)
    assert max(np.divide(shared, usual)) > 2


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "broadcast", "all_to_all"])
@pytest.mark.parametrize("groups", [RAILS, NODES])
@pytest.mark.parametrize("times", [1, 3])
def test_legs_of_joined_collectives_are_those_that_they_have_themselves(
    op: str, groups: tuple[RankGroup, ...], times: int
) -> None:
    timer = UncontendedTimer(usual_machine())
    joined = JoinedCollectives()
    found = joined.of(timer, op, 5 << 20, groups, groups[0][0], number=0, times=times)
    assert len(found) < len(groups)
    for lowered in found:
        again = UncontendedTimer(timer.machine)
        legs, expected = timer.timed_legs(lowered), again.timed_legs(lowered)
        assert timer.time_s(lowered) == pytest.approx(again.time_s(lowered), rel=1e-12)
        for mine, other in zip(legs, expected, strict=True):
            assert mine.edges is other.edges
            assert mine.ends.wire_s == pytest.approx(other.ends.wire_s, rel=1e-12)
            assert mine.ends.last_s == pytest.approx(other.ends.last_s, rel=1e-12)
            np.testing.assert_allclose(mine.rates_Bps, other.rates_Bps, rtol=1e-9)
            np.testing.assert_allclose(mine.stage.latency_s, other.stage.latency_s, rtol=1e-12)
            assert (mine.begin_s is None) == (other.begin_s is None)
            if mine.begin_s is not None and other.begin_s is not None:
                np.testing.assert_allclose(mine.begin_s, other.begin_s, rtol=1e-12)


def test_alike_groups_ask_once_what_nccl_runs_and_messages_keep_their_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = count(monkeypatch, dispatch, "predictions")
    timer = UncontendedTimer(usual_machine())
    for rail in RAILS[:SIZE]:
        timer.best("all_gather", 1 << 24, rail)
    hosts = {timer.machine.topology.ranks[rail[0]] for rail in RAILS[:SIZE]}
    assert 0 < len(asked) < len(hosts)
    (short,), (long,) = (timer.lower("send", nbytes, ((0, 8),)) for nbytes in (1 << 10, 1 << 26))
    assert short.stages[0].edges is long.stages[0].edges
