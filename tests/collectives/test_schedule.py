"""Schedules: the data arrives right in any legal order, and both views tell the same story."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.collectives.algorithms import linear, ring
from perfmodel.collectives.dependencies import unroll
from perfmodel.collectives.schedule import Round, Schedule
from perfmodel.collectives.verify import verify
from perfmodel.errors import DataMismatch, ScheduleError

ALGORITHMS: dict[str, Callable[..., Schedule]] = {
    "ring all_reduce": ring.all_reduce,
    "ring reduce_scatter": ring.reduce_scatter,
    "ring all_gather": ring.all_gather,
    "chain broadcast": ring.broadcast,
    "chain reduce": ring.reduce,
    "star scatter": linear.scatter,
    "star gather": linear.gather,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("ranks", [*range(1, 18), 32])
def test_data_is_right_for_every_size_of_group(name: str, ranks: int) -> None:
    for elements in (0, 1, 7, ranks, 97, 128):
        verify(ALGORITHMS[name](ranks, elements * 4), orders=2, seed=ranks)


@given(
    ranks=st.integers(2, 9),
    elements=st.integers(0, 60),
    rings=st.integers(1, 3),
    itemsize=st.sampled_from([1, 2, 4, 8]),
    seed=st.integers(0, 2**32 - 1),
)
def test_several_rings_in_random_orders(
    ranks: int, elements: int, rings: int, itemsize: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(ranks).tolist() for _ in range(rings)]
    for make in (ring.all_reduce, ring.reduce_scatter, ring.all_gather):
        schedule = make(ranks, elements * itemsize, itemsize=itemsize, orders=orders)
        verify(schedule, orders=2, seed=seed)


@given(
    ranks=st.integers(2, 8),
    root=st.integers(0, 7),
    elements=st.integers(0, 50),
    piece=st.integers(4, 64),
    seed=st.integers(0, 2**32 - 1),
)
def test_chains_from_any_root_in_any_pieces(
    ranks: int, root: int, elements: int, piece: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(ranks).tolist() for _ in range(1 + seed % 3)]
    for make in (ring.broadcast, ring.reduce):
        schedule = make(ranks, elements * 4, root=root % ranks, piece_bytes=piece, orders=orders)
        verify(schedule, orders=2, seed=seed)


def test_a_wrong_schedule_names_rank_chunk_found_and_wanted() -> None:
    right = ring.all_reduce(4, 64)

    def one_round_short() -> object:
        return iter(list(right.rounds())[:-1])

    wrong = dataclasses.replace(right, unroll=one_round_short)
    with pytest.raises(DataMismatch) as caught:
        verify(wrong)
    assert "rank" in str(caught.value)
    assert "chunk" in str(caught.value)


def test_sends_that_wait_for_each_other_are_refused() -> None:
    schedule = ring.all_reduce(2, 8)
    sends = unroll(schedule)
    later = sends.waits > 1
    circle = dataclasses.replace(
        sends,
        waits=np.append([0, 1], sends.waits[later]),
        awaited=np.append([1, 0], sends.awaited[later]),
    )
    with pytest.raises(ScheduleError, match="wait for each other"):
        verify(schedule, sends=circle)


def test_a_chunk_is_not_overwritten_before_it_was_read() -> None:
    """Round 1 reads chunk 0 of rank 0, round 2 overwrites it: the second waits for the first."""
    zero, one, four = np.array([0]), np.array([1]), np.array([4])
    keep = np.array([False])
    rounds = [
        Round(zero, one, zero, zero, four, zero, keep),
        Round(one, zero, one, zero, four, zero, keep),
    ]
    schedule = dataclasses.replace(ring.all_gather(2, 8), unroll=lambda: iter(rounds))
    assert unroll(schedule).after == [[], [0]]


def test_an_exchange_in_one_round_reads_the_state_before_it() -> None:
    """Two ranks that swap and add in one round both end with the sum (recursive doubling)."""
    ids = np.array([0, 1])
    exchange = Round(ids, ids[::-1], ids * 0, ids * 0, ids * 0 + 8, ids * 0, ids == ids)
    schedule = dataclasses.replace(
        ring.all_reduce(2, 8),
        chunk_bytes=np.array([8]),
        owner=np.array([-1]),
        unroll=lambda: iter([exchange]),
    )
    verify(schedule, orders=50)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("elements", [0, 1, 13, 120])
def test_phases_and_rounds_carry_the_same_bytes_over_the_same_edges(
    name: str, ranks: int, elements: int
) -> None:
    schedule = ALGORITHMS[name](ranks, elements * 4)
    by_round: dict[tuple[int, int, int], float] = {}
    number = 0
    for part in schedule.rounds():
        number += 1
        for edge in zip(part.channel, part.src, part.dst, part.nbytes, strict=True):
            by_round[edge[:3]] = by_round.get(edge[:3], 0) + edge[3]
    by_phase: dict[tuple[int, int, int], float] = {}
    for phase in schedule.phases:
        rows = (phase.channel, phase.src, phase.dst, phase.nbytes * phase.active)
        for edge in zip(*rows, strict=True):
            by_phase[edge[:3]] = by_phase.get(edge[:3], 0) + edge[3]
    assert by_round == pytest.approx(by_phase)
    assert number == sum(phase.repeat for phase in schedule.phases)


@pytest.mark.parametrize("ranks", [2, 3, 8, 16])
def test_a_ring_sends_exactly_its_share(ranks: int) -> None:
    """2(N-1)/N K bytes and 2(N-1) steps per rank, as the docstring says."""
    nbytes = ranks * 4 * 25
    checked = verify(ring.all_reduce(ranks, nbytes))
    assert checked.max_bytes_sent * ranks == 2 * (ranks - 1) * nbytes
    assert sum(p.repeat for p in ring.all_reduce(ranks, nbytes).phases) == 2 * (ranks - 1)
    for make in (ring.reduce_scatter, ring.all_gather):
        assert verify(make(ranks, nbytes)).max_bytes_sent * ranks == (ranks - 1) * nbytes


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_docstrings_bytes_are_the_schedules_bytes(
    name: str, ranks: int, theory: ModuleType
) -> None:
    nbytes = ranks * 4 * 10
    schedule = ALGORITHMS[name](ranks, nbytes)
    sends = unroll(schedule)
    # "gather" is the mirror of "scatter": its busiest rank receives what scatter's sends.
    ends = sends.dst if schedule.collective == "gather" else sends.src
    busiest = np.bincount(ends, weights=sends.nbytes).max()
    assert busiest == theory.sent_share(schedule.collective, ranks) * nbytes


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: ring.all_reduce(0, 4), "1 or more"),
        (lambda: ring.all_reduce(2, 5), "whole number of 4-byte elements"),
        (lambda: ring.all_reduce(2, -4), "whole number"),
        (lambda: ring.all_reduce(3, 12, orders=[[0, 1, 1]]), "each rank 0 to 2 once"),
        (lambda: ring.all_reduce(3, 12, orders=[[0, 1]]), r"allowed: \(rings, 3\)"),
        (lambda: ring.broadcast(3, 12, root=3), "0 to 2"),
    ],
)
def test_bad_requests_say_what_is_allowed(make: Callable[[], Schedule], wanted: str) -> None:
    with pytest.raises(ScheduleError, match=wanted):
        make()
