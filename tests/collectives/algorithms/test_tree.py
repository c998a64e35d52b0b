"""Trees over nodes as NCCL builds them, and how long pieces take over them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.collectives.algorithms import sharp
from perfmodel.collectives.algorithms.tree import (
    NO_PARENT,
    chained_parents,
    forest_all_reduce,
    forest_of,
    node_parents,
)
from perfmodel.collectives.schedule import Schedule
from perfmodel.collectives.timing.critical_path import pipelines_s
from perfmodel.collectives.timing.recurrence import TimedPhases, _step_through, leg_ends
from perfmodel.collectives.verify import verify
from perfmodel.errors import ScheduleError


def test_the_first_tree_of_14_nodes_is_that_of_nccl() -> None:
    """Drawn in NVIDIA/nccl ``src/graph/trees.cc``."""
    drawn = {8: 0, 4: 8, 12: 8, 2: 4, 6: 4, 10: 12, 1: 2, 3: 2, 5: 6, 7: 6, 9: 10, 11: 10, 13: 12}
    parent, is_first = node_parents(14, second=False)
    assert parent[0] == NO_PARENT
    assert {node: int(parent[node]) for node in drawn} == drawn
    assert [node for node in drawn if is_first[node]] == [4, 2, 10, 1, 5, 9]


@pytest.mark.parametrize("nodes", range(2, 40))
def test_who_is_inside_one_tree_is_a_leaf_in_the_other(nodes: int) -> None:
    inside = [
        set(node_parents(nodes, second)[0].tolist()) - {NO_PARENT} for second in (False, True)
    ]
    assert len(inside[0] & inside[1]) <= 1
    for second in (False, True):
        parent, is_first = node_parents(nodes, second)
        assert np.count_nonzero(parent == NO_PARENT) == 1
        for above in set(parent.tolist()) - {NO_PARENT}:
            children = np.flatnonzero(parent == above)
            assert len(children) <= 2
            assert np.count_nonzero(is_first[children]) <= 1


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("spread", [False, True])
def test_data_is_right_over_chains_in_trees(nodes: int, size: int, spread: bool) -> None:
    chains = np.random.default_rng(nodes).permutation(nodes * size).reshape(nodes, size)
    parents = [chained_parents(chains, second=second, spread=spread) for second in (False, True)]
    schedule = forest_all_reduce(forest_of(np.stack(parents)), 4 * 53, pieces=3)
    verify(schedule, orders=2)
    if nodes * size > 1:
        trees = forest_of(np.stack(parents))
        assert schedule.phases[0].repeat == int(trees.first.max()) + 3


def test_a_spread_tree_reaches_the_second_of_a_chain() -> None:
    """The first child of node 2 is node 1, its second node 3."""
    chains = np.arange(8).reshape(4, 2)
    assert chained_parents(chains, second=False, spread=False)[[2, 6]].tolist() == [4, 4]
    assert chained_parents(chains, second=False, spread=True)[[2, 6]].tolist() == [5, 4]


@pytest.mark.parametrize("nodes", [4, 8, 13])
def test_nodes_of_four_and_more_send_twice_the_buffer(nodes: int) -> None:
    """Inside one tree: half up and twice half down; a leaf of the other: half up."""
    chains = np.arange(nodes)[:, None]
    parents = [chained_parents(chains, second=second, spread=False) for second in (False, True)]
    size = 4 * 2 * 30
    schedule = forest_all_reduce(forest_of(np.stack(parents)), size, pieces=5)
    sent = sum(np.bincount(part.src, part.nbytes, nodes) for part in schedule.rounds())
    assert sent.max() == 2 * size
    assert np.median(sent) == 2 * size or nodes < 8


def test_no_pieces_are_refused() -> None:
    with pytest.raises(ScheduleError, match="0 pieces; allowed: 1 or more"):
        forest_all_reduce(forest_of(np.array([[-1, 0]])), 16, pieces=0)


def test_nvls_ports_carry_one_nth_more_than_the_buffer_each_way() -> None:
    """NCCL's ``sym_kernels.cc`` and the NVLS search count the same bytes."""
    for ranks in (2, 4, 8):
        size = 4 * ranks * 12
        schedule = sharp.nvls_all_reduce(ranks, size, piece_bytes=16)
        for ends in ("src", "dst"):
            carried = sum(
                np.bincount(getattr(part, ends), part.nbytes, ranks + 2)
                for part in schedule.rounds()
            )
            assert carried[:ranks].tolist() == [size * (1 + 1 / ranks)] * ranks


def test_heads_fewer_than_ranks_share_the_parts() -> None:
    schedule = sharp.nvls_tree_all_reduce(12, 4 * 60, groups=np.arange(12).reshape(3, 4), heads=2)
    verify(schedule, orders=3)
    fetched = {
        (int(s), int(d))
        for s, d in zip(schedule.phases[0].src, schedule.phases[0].dst, strict=True)
    }
    # Node i fetches from switch 12 + i, which only its first two ranks do.
    assert {d for s, d in fetched if s == 13} == {4, 5}


def test_a_network_that_adds_carries_the_buffer_once() -> None:
    """Each NIC sends S and is sent S, whatever the number of nodes."""
    for nodes in (2, 5):
        groups = np.arange(nodes * 3).reshape(nodes, 3)
        schedule = sharp.chain_all_reduce(nodes * 3, 240, groups=groups, piece_bytes=40)
        to_switch = sum(int(part.nbytes[part.dst == nodes * 3].sum()) for part in schedule.rounds())
        assert to_switch == nodes * 240


@st.composite
def pipelined(draw: st.DrawFn) -> Schedule:
    nodes, size = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    if nodes * size < 2:
        nodes = 2
    chains = np.arange(nodes * size).reshape(nodes, size)
    if draw(st.booleans()):
        ways = [(a, b) for a in (False, True) for b in (False, True)]
        parents = [chained_parents(chains, second=a, spread=b) for a, b in ways]
        trees = forest_of(np.stack(parents))
        return forest_all_reduce(trees, 4000, pieces=draw(st.integers(1, 12)))
    heads = draw(st.integers(1, size))
    piece = draw(st.integers(50, 2000))
    return sharp.nvls_tree_all_reduce(
        nodes * size, 4000, groups=chains, heads=heads, piece_bytes=piece
    )


@given(made=pipelined(), credits=st.sampled_from([1, 2, 3, 8]), seed=st.integers(0, 999))
def test_pieces_take_as_long_as_when_stepped_through(
    made: Schedule, credits: int, seed: int
) -> None:
    phase, rng = made.phases[0], np.random.default_rng(seed)
    rate, late = rng.uniform(1, 10, len(phase.src)), rng.uniform(0, 500, len(phase.src))
    stepped = _step_through(TimedPhases((phase,), rate, late), np.zeros(len(rate)), credits)
    actual = pipelines_s(phase, rate, late, credits)
    assert actual is not None
    assert actual[0] == pytest.approx(stepped.wire_s, rel=1e-12)
    assert actual[1] == pytest.approx(stepped.landed_s, rel=1e-12)
    assert leg_ends(TimedPhases((phase,), rate, late), credits).last_s == pytest.approx(
        actual[1].max()
    )


def test_rings_and_drained_phases_are_not_taken_for_pipelines() -> None:
    from perfmodel.collectives.algorithms import ring

    phase = ring.all_reduce(4, 160).phases[0]
    assert pipelines_s(phase, np.ones(4), np.ones(4), 2) is None
