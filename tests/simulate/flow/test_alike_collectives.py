"""Collectives of many groups as one job, and several in a row as one: the same times and bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.arrays import FloatArray
from perfmodel.library.lowering.lowered import Edges, LoweredCollective
from perfmodel.library.lowering.rerouting import Placed
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.flow.alike_collectives import _join, _parts_of, in_a_row
from perfmodel.simulate.flow.joined_edges import JoinedEdges
from perfmodel.simulate.flow.network import FlowNetwork
from perfmodel.simulate.message.network import MessageNetwork
from perfmodel.simulate.network import LinkCounters
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.faults import degrade_links
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.spec import FabricSpec

MACHINE = Machine(
    build_topology("dgx-a100", hosts=4, fabric="rail-optimised"), load_library("nccl")
)
TIMER = UncontendedTimer(MACHINE)
NODES = tuple(range(8 * node, 8 * node + 8) for node in range(4))
RAILS = tuple(tuple(range(gpu, 32, 8)) for gpu in range(8))
PAIRS = tuple((rank, rank + 16) for rank in range(16))
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


def join_alike(collectives: Sequence[Placed], capacity_Bps: FloatArray) -> list[LoweredCollective]:
    joined = JoinedEdges()
    return [_join(members, joined) for members in _parts_of(collectives, capacity_Bps, joined)]


def timed(
    op: str, nbytes: int, groups: tuple[range | tuple[int, ...], ...], times: int = 1
) -> tuple[float, LinkCounters]:
    network = FlowNetwork(simpy.Environment(), TIMER)
    network.env.run(until=network.collective(op, nbytes, groups, groups[0][0], times))
    return float(network.env.now), network.counted


def one_by_one(
    op: str, nbytes: int, groups: tuple[range | tuple[int, ...], ...]
) -> tuple[float, LinkCounters]:
    network = FlowNetwork(simpy.Environment(), TIMER)
    network.env.run(until=network.launch(TIMER.lower(op, nbytes, groups, groups[0][0])))
    return float(network.env.now), network.counted


@settings(max_examples=12)
@given(st.sampled_from(OPS), st.integers(1, 1 << 26), st.sampled_from([NODES, RAILS]))
def test_groups_as_one_job_take_as_long_as_each_for_itself(
    op: str, nbytes: int, groups: tuple[range | tuple[int, ...], ...]
) -> None:
    joined, apart = timed(op, nbytes, groups), one_by_one(op, nbytes, groups)
    assert joined[0] == pytest.approx(apart[0], rel=1e-9)
    np.testing.assert_allclose(joined[1].wire_bytes, apart[1].wire_bytes, rtol=1e-9)


@settings(max_examples=12)
@given(st.sampled_from(OPS), st.integers(1, 1 << 24), st.integers(2, 96))
def test_several_in_a_row_take_as_many_times_as_long(op: str, nbytes: int, times: int) -> None:
    once, many = timed(op, nbytes, NODES), timed(op, nbytes, NODES, times)
    assert many[0] == pytest.approx(times * once[0], rel=1e-9)
    np.testing.assert_allclose(many[1].wire_bytes, times * once[1].wire_bytes, rtol=1e-9)


def test_several_in_a_row_are_sent_one_by_one_at_fidelity_message() -> None:
    def run(times: int) -> float:
        network = MessageNetwork(simpy.Environment(), TIMER)
        network.env.run(until=network.collective("all_reduce", 1 << 20, NODES[:1], 0, times))
        return float(network.env.now)

    assert run(3) == pytest.approx(3 * run(1), rel=1e-9)


def jobs_of(collectives: list[Placed]) -> int:
    return len(join_alike(collectives, MACHINE.topology.arcs.bandwidth_Bps))


@pytest.mark.parametrize("faster", [1, 32])
def test_pairs_on_trunks_that_carry_all_of_them_are_one_job(faster: int) -> None:
    """Where a trunk from leaf to spine is fast enough for all pairs, it holds nobody up."""
    fabric = FabricSpec(kind="rail-optimised", hosts_per_leaf=4, radix=16)
    cluster = build_topology("dgx-a100", hosts=8, fabric=fabric)
    rates_Bps = cluster.arcs.bandwidth_Bps
    trunks = [at for at, ends in enumerate(cluster.arcs.names) if "spine" in "".join(ends)]
    cluster = degrade_links(cluster, {at: faster * float(rates_Bps[at]) for at in trunks})
    timer = UncontendedTimer(Machine(cluster, load_library("nccl")))
    pairs = tuple((rank, rank + 32) for rank in range(32))
    apart = timer.lower("send", 1 << 26, pairs, 0)
    joined = join_alike(timer.place("send", 1 << 26, pairs, 0), cluster.arcs.bandwidth_Bps)
    assert np.bincount(np.concatenate([each.stages[0].edges.arcs for each in apart])).max() > 1
    assert (len(joined) == 1) == (faster > 1)
    took_s = []
    for collectives in (apart, joined):
        network = FlowNetwork(simpy.Environment(), timer)
        network.env.run(until=network.launch(collectives))
        took_s.append(network.env.now)
    assert took_s[1] == pytest.approx(took_s[0], rel=1e-12)


def test_a_group_per_node_is_one_job_and_groups_on_common_links_stay_apart() -> None:
    assert jobs_of(TIMER.place("all_reduce", 1 << 20, NODES, 0)) == 1
    common = (range(16), range(16, 32))
    shared = ((0, 8), (0, 16))  # both leave by the same adapter
    assert jobs_of(TIMER.place("all_reduce", 1 << 20, common, 0)) == 1
    assert jobs_of(TIMER.place("send", 1 << 20, shared, 0)) == 2
    unlike = (range(8), range(8, 12))
    assert jobs_of(TIMER.place("all_reduce", 1 << 20, unlike, 0)) == 2


def test_messages_of_pairs_take_the_time_of_one() -> None:
    """Each GPU has an adapter of its own, so that sixteen pairs are as quick as one."""
    assert timed("send", 1 << 26, PAIRS)[0] == pytest.approx(timed("send", 1 << 26, PAIRS[:1])[0])


def test_what_fits_is_kept_by_the_capacities_of_links() -> None:
    """Two edges, each over a link of its own and one that both use, which may carry both."""

    def edges(own: int) -> Edges:
        one = np.array([1.0])
        arcs, ends = np.array([own, 2]), np.array([own])
        return Edges(ends, ends, np.array([0, 2]), arcs, 0 * one, np.inf * one, 0 * ends, False)

    joined, parts = JoinedEdges(), ((edges(0),), (edges(1),))
    assert not joined.are_apart(parts)
    assert joined.are_apart(parts[:1])
    wide, narrow, wider = (np.array([1.0, 1.0, trunk]) for trunk in (2.0, 1.5, 9.0))
    for capacity_Bps in (wide, narrow, wide, wider, narrow):
        fits = [[0], [1]] if capacity_Bps is narrow else [[0, 1]]
        assert joined.fitting(parts, (0, 0), capacity_Bps) == fits
        assert joined.fitting(parts, (0, 1), capacity_Bps) == [[0], [1]]  # other latencies
        assert joined.fitting(parts, (None, None), capacity_Bps) == [[0], [1]]


def test_one_in_a_row_is_itself() -> None:
    (lowered,) = TIMER.lower("all_reduce", 1 << 20, NODES[:1], 0)
    assert in_a_row(lowered, 1) is lowered


def test_a_ring_of_messages_takes_the_time_of_its_slowest() -> None:
    """Inside nodes all hops are alike; across them the adapters are the slowest."""
    inside = timed("send", 1 << 26, ((0, 1),))[0]
    assert timed("send_recv", 1 << 26, NODES)[0] == pytest.approx(inside)
    across = timed("send", 1 << 26, ((7, 8),))[0]
    assert timed("send_recv", 1 << 26, (range(16),))[0] == pytest.approx(across)
    assert TIMER.best("send_recv", 1 << 26, range(16))[1] == pytest.approx(across)
    assert across > 2 * inside


@pytest.mark.parametrize("op", OPS)
def test_a_collective_of_one_host_is_that_of_another_shifted(op: str) -> None:
    """What is laid on links for itself and what is shifted are the same."""
    own = UncontendedTimer(MACHINE).best(op, 1 << 22, NODES[2], NODES[2][0])[0]
    (_, _, shifted, _) = UncontendedTimer(MACHINE).lower(op, 1 << 22, NODES, 0)
    for mine, other in zip(own.stages, shifted.stages, strict=True):
        for name in ("src", "dst", "arcs", "pointers", "latency_s", "cap_Bps", "hop"):
            np.testing.assert_array_equal(getattr(mine.edges, name), getattr(other.edges, name))
        np.testing.assert_array_equal(mine.latency_s, other.latency_s)


def test_a_host_with_a_slower_link_is_laid_for_itself() -> None:
    first = MACHINE.topology.host_arcs
    slow = {arc: MACHINE.topology.arcs.bandwidth_Bps[arc] / 2 for arc in range(first, 2 * first)}
    topology = degrade_links(MACHINE.topology, slow)
    times = UncontendedTimer(Machine(topology, MACHINE.library))
    usual, other, *_ = times.lower("all_reduce", 1 << 24, NODES, 0)
    assert times.time_s(other) > 1.5 * times.time_s(usual)
