"""What is particular to single algorithms: shapes of trees, Gloo's segments, groups, rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.collectives import catalog
from perfmodel.collectives.algorithms import (
    all_to_all,
    hierarchical,
    linear,
    recursive_doubling,
    ring,
    sharp,
    tree,
)
from perfmodel.collectives.algorithms import (
    ring as gloo,
)
from perfmodel.collectives.dependencies import Messages, messages, unroll
from perfmodel.collectives.schedule import Schedule
from perfmodel.collectives.timing import recurrence
from perfmodel.collectives.verify import verify
from perfmodel.collectives.verify_table import verify_table
from perfmodel.errors import ScheduleError
from reports.oracle import closed_forms


@pytest.mark.parametrize(
    ("ranks", "nbytes", "number", "each", "transfers"),
    [(4, 25 << 20, 28, 936232, 21), (2, 1024, 4, 256, 2), (8, 1 << 20, 16, 65536, 14)],
)
def test_gloo_cuts_segments_as_its_source_does(
    ranks: int, nbytes: int, number: int, each: int, transfers: int
) -> None:
    """Worked by hand from ``gloo/allreduce.cc``."""
    assert gloo.segments(ranks, nbytes) == (number, each)
    schedule = gloo.ring_all_reduce(ranks, nbytes)
    assert [phase.repeat for phase in schedule.phases] == [transfers, transfers]
    assert int(schedule.chunk_bytes.sum()) == nbytes
    assert (schedule.phases[0].dst == (schedule.phases[0].src - 1) % ranks).all()


@pytest.mark.parametrize("ranks", range(2, 70))
def test_trees_are_low_and_complementary(ranks: int) -> None:
    """Height ceil(log2 N); nobody has children in both trees, save one rank if N is odd."""
    phase = tree.double_binary_tree(ranks, 4096).phases[0]
    up = phase.src[: 4 * (ranks - 1)]
    assert phase.repeat == 2 * math.ceil(math.log2(ranks)) - 1 + 1
    inside = []
    for channel in (0, 1):
        mine = phase.channel == channel
        assert mine.sum() == 2 * (ranks - 1)
        children = np.bincount(up[mine][ranks - 1 :], minlength=ranks)
        assert children.max() <= 2
        inside.append(children > 0)
    assert (inside[0] & inside[1]).sum() <= ranks % 2 + (ranks == 2)


@pytest.mark.slow
@given(
    size=st.integers(1, 4),
    number=st.integers(1, 5),
    elements=st.integers(0, 60),
    seed=st.integers(0, 2**32 - 1),
)
def test_groups_in_any_order(size: int, number: int, elements: int, seed: int) -> None:
    ranks = size * number
    groups = np.random.default_rng(seed).permutation(ranks).reshape(number, size).tolist()
    verify(hierarchical.all_reduce(ranks, elements * 4, groups=groups), orders=2, seed=seed)
    chained = tree.double_binary_tree(ranks, elements * 4, piece_bytes=16, groups=groups)
    verify(chained, orders=2, seed=seed)
    torus = hierarchical.torus(ranks, elements * 4, rows=number, columns=size)
    verify(torus, orders=2, seed=seed)


def test_only_rails_leave_a_group() -> None:
    groups = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    schedule = hierarchical.all_reduce(12, 4 * 120, groups=groups)
    across = [p for p in schedule.phases if "across" in p.name]
    inside = [p for p in schedule.phases if "inside" in p.name]
    assert all((p.src % 4 == p.dst % 4).all() for p in across)
    assert all((p.src // 4 == p.dst // 4).all() for p in inside)
    assert [p.repeat for p in schedule.phases] == [3, 2, 2, 3]


def test_a_torus_step_goes_to_a_neighbour() -> None:
    for phase in hierarchical.torus(12, 480, rows=3, columns=4).phases:
        row = np.abs(phase.src // 4 - phase.dst // 4)
        column = np.abs(phase.src % 4 - phase.dst % 4)
        assert (np.minimum(row, 3 - row) + np.minimum(column, 4 - column) == 1).all()


@given(
    ranks=st.integers(1, 9),
    elements=st.integers(0, 40),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_any_servers(ranks: int, elements: int, seed: int, data: st.DataObject) -> None:
    servers = data.draw(st.sets(st.integers(0, ranks - 1), min_size=1))
    schedule = linear.server_all_reduce(ranks, elements * 4, servers=tuple(servers))
    verify(schedule, orders=2, seed=seed)


def test_halving_begins_between_neighbours_with_half_of_the_buffer() -> None:
    phases = recursive_doubling.halving_doubling(8, 800).phases
    assert [int(np.abs(p.src - p.dst)[0]) for p in phases] == [1, 2, 4, 4, 2, 1]
    assert [p.nbytes[0] for p in phases] == [400, 200, 100, 100, 200, 400]


def test_rabenseifner_folds_halves() -> None:
    names = [(p.name, float(p.nbytes[0])) for p in recursive_doubling.rabenseifner(6, 800).phases]
    assert names[:2] == [("swap halves", 400), ("fold", 400)]
    assert names[-1] == ("unfold", 800)


def test_each_rank_swaps_with_one_other_at_a_time() -> None:
    """Recursive algorithms and shifts keep every port to one partner per step."""
    for schedule in (
        recursive_doubling.all_reduce(13, 400),
        recursive_doubling.halving_doubling(13, 400),
        recursive_doubling.bruck_all_gather(13, 400),
        recursive_doubling.reduce_scatter(13, 400),
        all_to_all.pairwise(13, 13 * 8),
        all_to_all.bruck(13, 13 * 8),
    ):
        for phase in schedule.phases:
            assert np.bincount(phase.src).max() == np.bincount(phase.dst).max() == 1


def test_two_rings_in_opposite_directions_use_both_neighbours_alike() -> None:
    phase = ring.bidirectional_all_reduce(5, 4 * 100).phases[0]
    ahead = (phase.dst - phase.src) % 5
    assert sorted(set(ahead.tolist())) == [1, 4]
    assert phase.nbytes[ahead == 1].sum() == phase.nbytes[ahead == 4].sum()


def test_an_all_to_all_that_does_not_divide_is_padded() -> None:
    schedule = all_to_all.pairwise(4, 4 * 5)
    assert set(schedule.chunk_bytes.tolist()) == {8}
    assert [p.nbytes.tolist() for p in schedule.phases] == [[8.0] * 4] * 3


def test_a_switch_is_no_rank() -> None:
    schedule = sharp.switch_all_reduce(4, 4 * 100, piece_bytes=80)
    assert schedule.switches == 1
    assert schedule.phases[0].repeat == 5 + 1
    assert schedule.phases[0].dst.max() == 4
    assert verify(schedule).max_bytes_sent == 400


def test_chunks_of_one_pair_and_round_travel_as_one_message() -> None:
    """A message per edge and round, waiting for whatever any of its chunks waits for."""
    sends = unroll(recursive_doubling.halving_doubling(8, 8 * 40))
    joined = messages(sends)
    assert len(joined) == 8 * 6
    assert joined.nbytes[:8].tolist() == [160] * 8
    assert joined.nbytes.sum() == sends.nbytes.sum()
    for number, after in enumerate(joined.after):
        assert all(joined.round[other] < joined.round[number] for other in after)
    assert not any(joined.after[:8])
    assert all(joined.after[8:])


def _edges(sent: Messages) -> list[tuple[int, ...]]:
    columns = (sent.round, sent.channel, sent.src, sent.dst)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_a_message_waits_for_all_that_any_of_its_chunks_waits_for() -> None:
    """The last all-gather of a hierarchy carries chunks that came in different rounds."""
    sends = unroll(hierarchical.all_reduce(6, 6 * 40, groups=[[0, 1], [2, 3], [4, 5]]))
    joined = messages(sends)
    numbers = {edge: number for number, edge in enumerate(_edges(joined))}
    message_of = [numbers[edge] for edge in _edges(sends)]
    waits = [(message_of[s], message_of[w]) for s, after in enumerate(sends.after) for w in after]
    assert set(waits) == {(i, other) for i, after in enumerate(joined.after) for other in after}
    assert max(len({joined.round[other] for other in after}) for after in joined.after) > 1


@pytest.mark.parametrize(
    ("make", "name", "told"),
    [
        (lambda: ring.all_reduce(6, 6 * 4000), "ring", {}),
        (lambda: recursive_doubling.all_reduce(2, 6 * 4000), "recursive_doubling", {}),
        (lambda: gloo.ring_all_reduce(6, 6 * 4000), "gloo_ring", {}),
    ],
)
def test_timing_of_one_stage_is_the_closed_form(
    make: Callable[[], Schedule], name: str, told: dict[str, int]
) -> None:
    schedule = make()
    edges = len(schedule.phases[0].src)
    rate, latency = np.full(edges, 2e9), np.full(edges, 3e-6)
    actual = recurrence.schedule_s(schedule.phases, rate, latency, credits=1)
    expected = closed_forms.closed_form_s(
        "all_reduce",
        name,
        schedule.ranks,
        schedule.nbytes,
        alpha_s=3e-6,
        beta_s_per_B=1 / 2e9,
        **told,
    )
    assert actual == pytest.approx(expected, rel=1e-9)


def test_the_table_of_verify() -> None:
    rows = verify_table("ring", range(2, 5), orders=1)
    assert [(row.op, row.ranks) for row in rows[:4]] == [
        ("all_reduce", 2),
        ("reduce_scatter", 2),
        ("all_gather", 2),
        ("all_reduce", 3),
    ]
    assert rows[0].sizes == (0, 4, 28, 32)
    assert rows[3].bytes_per_rank_over_nbytes == pytest.approx(2 * 2 / 3)
    assert (rows[3].steps, rows[3].sends) == (4, 12)
    own: list[tuple[int, int]] = []
    rows = verify_table(
        "recursive-doubling", (3, 4), progress=lambda done, of: own.append((done, of))
    )
    assert [(row.op, row.ranks) for row in rows] == [
        ("all_reduce", 3),
        ("all_reduce", 4),
        ("all_gather", 4),
    ]
    assert own == [(1, 2), (2, 2)]


@pytest.mark.parametrize("name", catalog.algorithms())
def test_the_table_knows_every_algorithm(name: str) -> None:
    assert verify_table(name, (2, 4), elements=(5,), orders=1)


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: hierarchical.all_reduce(4, 16, groups=[[0, 1, 2], [3]]), "groups of one size"),
        (lambda: hierarchical.all_reduce(4, 16, groups=[[0, 1], [2, 2]]), "each rank 0 to 3 once"),
        (lambda: hierarchical.torus(12, 48, rows=5, columns=3), "rows x columns = 12 ranks"),
        (
            lambda: linear.server_all_reduce(3, 12, servers=()),
            "one or more different ranks from 0 to 2",
        ),
        (lambda: linear.server_all_reduce(3, 12, servers=(0, 3)), "from 0 to 2"),
        (lambda: linear.server_all_reduce(3, 12, servers=(1, 1)), "different"),
        (lambda: recursive_doubling.all_gather(6, 24), "power of two"),
        (lambda: gloo.ring_all_reduce(3, 5), "whole number of 4-byte elements"),
    ],
)
def test_bad_requests_say_what_is_allowed(make: Callable[[], Schedule], wanted: str) -> None:
    with pytest.raises(ScheduleError, match=wanted):
        make()


def test_two_sends_that_overwrite_one_chunk_in_a_round_are_refused() -> None:
    right = tree.broadcast(4, 16)
    last = list(right.rounds())[-1]
    racing = dataclasses.replace(last, dst=np.full_like(last.dst, 3))
    with pytest.raises(ScheduleError, match="2 sends of one round write chunk 0 of rank 3"):
        verify(dataclasses.replace(right, unroll=[racing].__iter__))
