"""Collectives on a machine that changes under them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from perfmodel.errors import TopologyError
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.lowering.rerouting import reroute
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.sharing.max_min import max_min_rates
from perfmodel.topology.faults import degrade_links, find_arcs, remove_links
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.spec import FabricSpec

CLUSTER = build_topology(
    "dgx-a100", hosts=4, fabric=FabricSpec(kind="rail-optimised", hosts_per_leaf=2, radix=16)
)
MACHINE = Machine(CLUSTER, load_library("nccl"))
WAY = lower_collective(MACHINE, "all_reduce", 1 << 24, range(32), algorithm="ring")[-1]


def paths(way: LoweredCollective) -> list[list[int]]:
    edges = way.stages[0].edges
    return [part.tolist() for part in np.split(edges.arcs, edges.pointers[1:-1])]


def rates(machine: Machine, way: LoweredCollective) -> np.ndarray:
    edges = way.stages[0].edges
    return max_min_rates(machine.topology.arcs.bandwidth_Bps, edges.pointers, edges.arcs)


def test_what_does_not_touch_a_collective_leaves_it_alone() -> None:
    slower = replace(MACHINE, topology=degrade_links(CLUSTER, {0: 1.0}))
    cpu_link = find_arcs(CLUSTER, "n0/cpu0 -- n0/cpu1")
    assert reroute(WAY, MACHINE) is WAY
    assert reroute(WAY, slower) is WAY  # rates are the network's business
    assert reroute(WAY, replace(MACHINE, topology=remove_links(CLUSTER, arcs=cpu_link))) is WAY


def test_a_lost_nic_moves_its_two_edges_to_its_neighbour() -> None:
    """The ring into the host and the ring out of it; the neighbour then serves both."""
    after = replace(MACHINE, topology=remove_links(CLUSTER, nodes=["n1/nic3"]))
    there = reroute(WAY, after)
    assert there.schedule is WAY.schedule
    old, new = paths(WAY), paths(there)
    changed = [edge for edge in range(len(old)) if old[edge] != new[edge]]
    assert len(changed) == 2
    names = CLUSTER.arcs.names
    for edge in changed:
        ends = [names[arc] for arc in new[edge]]
        assert all(a[1] == b[0] for a, b in pairwise(ends))
        assert (ends[0][0], ends[-1][1]) == (
            CLUSTER.ranks[WAY.stages[0].edges.src[edge]],
            CLUSTER.ranks[WAY.stages[0].edges.dst[edge]],
        )
        assert "n1/nic2" in {end for pair in ends for end in pair}
    before, now = rates(MACHINE, WAY), rates(after, there)
    slowed = now < before * (1 - 1e-9)
    users = {edge for edge, lowered in enumerate(new) for arc in lowered if "n1/nic2" in names[arc]}
    assert set(np.flatnonzero(slowed).tolist()) == users
    assert now[slowed] == pytest.approx(before[slowed] / 2)


def test_rings_laid_after_a_loss_are_those_that_were_moved() -> None:
    """A collective that starts later goes the same ways as one that was under way."""
    for change in (
        remove_links(CLUSTER, nodes=["n0/nic0"]),
        remove_links(CLUSTER, nodes=["fabric/spine0"]),
        remove_links(CLUSTER, arcs=find_arcs(CLUSTER, "n2/nic1 -- n2/pcie0")),
        remove_links(degrade_links(CLUSTER, {5: 1.0}), nodes=["n3/nic7", "n1/nic1"]),
    ):
        after = replace(MACHINE, topology=change)
        rings = after.rings(range(32))
        assert (rings.orders == MACHINE.rings(range(32)).orders).all()
        edges = reroute(WAY, after).stages[0].edges
        assert edges.arcs.tolist() == rings.edges.arcs.tolist()
        assert edges.pointers.tolist() == rings.edges.pointers.tolist()
        assert change.dead.isdisjoint(edges.arcs.tolist())


def test_latencies_are_those_of_the_links_now() -> None:
    arcs = find_arcs(CLUSTER, "n0/nic0 -> fabric/leaf0")
    slow = {arc: float(CLUSTER.arcs.latency_s[arc]) + 1e-3 for arc in arcs}
    there = reroute(WAY, replace(MACHINE, topology=degrade_links(CLUSTER, {}, slow)))
    more = there.stages[0].latency_s - WAY.stages[0].latency_s
    crossing = [arcs[0] in lowered for lowered in paths(WAY)]
    assert more == pytest.approx(np.where(crossing, 1e-3, 0.0))
    assert paths(there) == paths(WAY)


def test_moving_back_is_possible() -> None:
    lost = replace(MACHINE, topology=remove_links(CLUSTER, nodes=["n1/nic3"]))
    arcs = find_arcs(CLUSTER, "n0/nic0 -> fabric/leaf0")
    slow = replace(MACHINE, topology=degrade_links(CLUSTER, {}, dict.fromkeys(arcs, 1e-3)))
    again = reroute(reroute(WAY, slow), MACHINE)
    assert again.stages[0].latency_s == pytest.approx(WAY.stages[0].latency_s)
    detour = reroute(WAY, lost)
    assert reroute(detour, MACHINE) is detour  # what is under way stays where it goes


def test_an_unreachable_peer_is_named() -> None:
    gone = remove_links(CLUSTER, nodes=[f"n1/nic{i}" for i in range(8)])
    with pytest.raises(
        TopologyError, match=r"n1/gpu\d is unreachable from n\d/gpu\d since n1/nic0"
    ):
        reroute(WAY, replace(MACHINE, topology=gone))
    with pytest.raises(TopologyError, match=r"n2/gpu4 .*unreachable.* since n2/gpu4 was lost"):
        replace(MACHINE, topology=remove_links(CLUSTER, nodes=["n2/gpu4"])).rings(range(32))


def test_a_reducing_switch_that_is_lost_is_named() -> None:
    cluster = Machine(build_topology("dgx-h100"), load_library("nccl"))
    lowered = lower_collective(cluster, "all_reduce", 1 << 20, range(8), algorithm="switch")[-1]
    gone = remove_links(cluster.topology, arcs=find_arcs(cluster.topology, "n0/gpu2 -- n0/nvs"))
    with pytest.raises(TopologyError, match="n0/gpu2 -- n0/nvs was lost"):
        reroute(lowered, replace(cluster, topology=gone))
