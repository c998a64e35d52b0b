"""Routes of trees that machines share whose links differ in their numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.machine import MOST_RECENT, Machine, make_machine
from perfmodel.library.model import load_library
from perfmodel.scenario.sections.variants import WhatIf
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.resolve.what_if import apply_what_if
from perfmodel.topology.faults import remove_links
from perfmodel.topology.templates.build import build_topology


def cluster() -> Machine:
    topology = build_topology("dgx-a100", hosts=40, fabric="leaf-spine")
    return make_machine(topology, load_library("nccl"))


@pytest.mark.parametrize(
    "wish", [{"network_latency": 0.0}, {"network_bandwidth": 2.0}, {"nvlink_bandwidth": 4.0}]
)
def test_times_are_those_of_a_machine_on_its_own(wish: dict[str, float]) -> None:
    """And the routes are kept once, with the latencies of each machine."""
    machine = cluster()
    others = apply_what_if(WhatIf.model_validate(wish), machine)
    alone = apply_what_if(WhatIf.model_validate(wish), replace(machine, shared={}))
    ways = []
    for each in (machine, others, alone):
        timer = UncontendedTimer(each)
        way = lower_collective(each, "all_reduce", 1 << 24, range(320), algorithm="tree")[-1]
        ways.append((way, timer.time_s(way)))
    (first, _), (shared, shared_s), (own, own_s) = ways
    assert shared_s == pytest.approx(own_s, rel=1e-12)
    assert shared.stages[0].edges.arcs is first.stages[0].edges.arcs
    assert own.stages[0].edges.arcs is not first.stages[0].edges.arcs
    np.testing.assert_array_equal(shared.stages[0].latency_s, own.stages[0].latency_s)
    assert shared.stages[0].phases[0] is first.stages[0].phases[0]  # bytes of a million edges
    assert own.stages[0].phases[0] is not first.stages[0].phases[0]
    np.testing.assert_array_equal(shared.stages[0].phases[0].nbytes, own.stages[0].phases[0].nbytes)


def test_other_sizes_and_protocols_have_phases_of_their_own() -> None:
    machine = cluster()
    sizes = [1 << 10, 1 << 24, 1 << 26]
    ways = [
        lower_collective(machine, "all_reduce", size, range(320), algorithm="tree")
        for size in sizes
    ]
    for lowered, size in zip(ways, sizes, strict=True):
        alone = lower_collective(cluster(), "all_reduce", size, range(320), algorithm="tree")
        for way, own in zip(lowered, alone, strict=True):
            np.testing.assert_array_equal(
                way.stages[0].phases[0].nbytes, own.stages[0].phases[0].nbytes
            )


def test_machines_share_what_was_made_last() -> None:
    machine, made = cluster(), [object() for _ in range(MOST_RECENT + 1)]
    other = replace(machine, channels=4)
    for each in made:
        assert machine.recent("things", (each,), 0, lambda each=each: [each]) == [each]
    again = [other.recent("things", (each,), 0, list) for each in made[1:]]
    assert again == [[each] for each in made[1:]]
    assert other.recent("things", (made[0],), 0, list) == []


def test_a_machine_that_has_lost_a_link_finds_its_own_way() -> None:
    machine = cluster()
    way = lower_collective(machine, "all_reduce", 1 << 24, range(320), algorithm="tree")[-1]
    lost = int(way.stages[0].edges.arcs.max())
    broken = replace(machine, topology=remove_links(machine.topology, arcs=[lost]))
    again = lower_collective(broken, "all_reduce", 1 << 24, range(320), algorithm="tree")[-1]
    assert lost not in again.stages[0].edges.arcs


@pytest.mark.slow
def test_chains_may_leave_the_tray_of_their_nic() -> None:
    """The GPUs of a rack are joined by NVLink alone: those of other trays reach no NIC of this."""
    topology = build_topology("gb200-nvl72", hosts=2, fabric="rail-optimised")
    machine = make_machine(topology, load_library("nccl"))
    group = tuple(rank for rank in range(144) if rank % 72 < 71)
    way = lower_collective(machine, "all_reduce", 1 << 20, group, algorithm="tree")[-1]
    edges = way.stages[0].edges
    assert set(edges.src.tolist()) == set(edges.dst.tolist()) == set(group)
