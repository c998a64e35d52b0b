"""Schedules from tuples: the data and the times of the shipped algorithms, and every fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.collectives.catalog import ALGORITHMS, allows, make
from perfmodel.collectives.schedule import Schedule
from perfmodel.collectives.verify import verify
from perfmodel.errors import DataMismatch, InputError, PerfmodelError, ScheduleError
from perfmodel.library.lowering.protocols import with_protocol
from perfmodel.library.lowering.rings import lay_directly
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine.engine import network_class
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.templates.build import build_topology

STEPPED = (
    ("all_reduce", "ring"),
    ("all_reduce", "torus"),
    ("all_reduce", "hierarchical"),
    ("all_reduce", "recursive_doubling"),
    ("all_reduce", "halving_doubling"),
    ("all_reduce", "rabenseifner"),
    ("all_reduce", "binomial"),
    ("all_reduce", "server"),
    ("all_reduce", "all_pairs"),
    ("reduce_scatter", "ring"),
    ("reduce_scatter", "recursive_halving"),
    ("all_gather", "bruck"),
    ("all_gather", "pat"),
    ("broadcast", "binomial"),
    ("reduce", "binomial"),
    ("scatter", "star"),
    ("gather", "star"),
    ("all_to_all", "pairwise"),
    ("all_to_all", "direct"),
)
"""Algorithms that go step by step on one channel, as rounds do."""


def ring(ranks: int, nbytes: int) -> Schedule:
    """Patarasuk and Yuan's ring, written by hand."""
    rounds = [
        [(r, (r + 1) % ranks, (r - step) % ranks, step < ranks - 1) for r in range(ranks)]
        for step in range(2 * (ranks - 1))
    ]
    return Schedule.from_rounds(ranks, nbytes, rounds)


def tuples(schedule: Schedule) -> Iterator[list[tuple[int, ...]]]:
    """The rounds of a schedule as somebody would write them."""
    for part in schedule.rounds():
        columns = (part.src, part.dst, part.src_chunk, part.reduce, part.dst_chunk)
        yield list(zip(*(column.tolist() for column in columns), strict=True))


def rewritten(schedule: Schedule) -> Schedule:
    """The same sends, as rounds by hand."""
    return Schedule.from_rounds(
        schedule.ranks,
        schedule.nbytes,
        tuples(schedule),
        collective=schedule.collective,
        chunks=schedule.chunk_bytes.tolist(),
        owner=schedule.owner.tolist(),
        root=schedule.root,
        itemsize=schedule.itemsize,
    )


@cache
def timer_with(library: str) -> UncontendedTimer:
    return UncontendedTimer(Machine(build_topology("dgx-a100"), load_library(library)))


def time_s(schedule: Schedule, fidelity: str, library: str = "plain") -> float:
    """Time on the nearest links of a DGX A100, alone."""
    timer = timer_with(library)
    machine = timer.machine
    laid = lay_directly(machine, schedule, range(schedule.ranks))
    (name, protocol), *_ = machine.library.protocols.items()
    env = simpy.Environment()
    lowered = with_protocol(laid, name, protocol, schedule.nbytes)
    env.run(until=network_class(fidelity)(env, timer).launch([lowered]))
    return float(env.now)


@pytest.mark.parametrize(("op", "name"), STEPPED)
def test_a_shipped_algorithm_written_by_hand_is_the_same(op: str, name: str) -> None:
    for ranks in (2, 3, 8):
        if allows(op, name, ranks) is not None:
            continue
        shipped = make(op, name, ranks, 96 * ranks)
        by_hand = rewritten(shipped)
        assert verify(by_hand).max_bytes_sent == verify(shipped).max_bytes_sent
        for fidelity in ("flow", "message"):
            assert time_s(by_hand, fidelity) == pytest.approx(time_s(shipped, fidelity), rel=1e-9)


@given(
    ranks=st.integers(2, 8),
    elements=st.integers(1, 5000),
    library=st.sampled_from(["plain", "nccl", "mpi"]),
)
@settings(max_examples=30, deadline=None)
def test_a_ring_by_hand_takes_the_time_of_the_shipped_ring(
    ranks: int, elements: int, library: str
) -> None:
    shipped = replace(make("all_reduce", "ring", ranks, 4 * elements), algorithm="own")
    by_hand = ring(ranks, 4 * elements)
    verify(by_hand)
    for fidelity in ("flow", "message"):
        assert time_s(by_hand, fidelity, library) == pytest.approx(
            time_s(shipped, fidelity, library), rel=1e-9
        )


@given(data=st.data(), ranks=st.integers(2, 6))
def test_phases_and_rounds_carry_the_same_bytes(data: st.DataObject, ranks: int) -> None:
    rank = st.integers(0, ranks - 1)
    send = st.tuples(rank, rank, st.integers(0, 4), st.booleans()).filter(lambda s: s[0] != s[1])
    rounds = data.draw(st.lists(st.lists(send, max_size=6), max_size=8))
    rounds += rounds[-1:]  # so that some are alike
    schedule = Schedule.from_rounds(ranks, 4 * data.draw(st.integers(0, 99)), rounds, chunks=5)
    sent = np.zeros((2, ranks, ranks))
    for part in schedule.rounds():
        np.add.at(sent[0], (part.src, part.dst), part.nbytes)
    for phase in schedule.phases:
        np.add.at(sent[1], (phase.src, phase.dst), phase.nbytes * phase.active)
    np.testing.assert_allclose(sent[0], sent[1], atol=1e-9)
    assert sum(phase.repeat for phase in schedule.phases) == len([r for r in rounds if r])


def test_arrays_and_numpy_numbers_are_sends_too() -> None:
    rounds = [
        np.array([[0, 1, 1, 1], [1, 0, 0, 1]]),
        [(np.int64(0), 1, 0, np.bool_(False)), (1, 0, 1)],
    ]
    assert verify(Schedule.from_rounds(2, 1024, rounds)).sends == 4


def test_owners_are_in_rank_order_unless_they_are_given() -> None:
    gather = [[(0, 1, 0), (1, 0, 1)]]
    verify(Schedule.from_rounds(2, 64, gather, collective="all_gather"))
    turned = [[(1, 0, 0), (0, 1, 1)]]
    verify(Schedule.from_rounds(2, 64, turned, collective="all_gather", owner=[1, 0]))
    with pytest.raises(DataMismatch):
        verify(Schedule.from_rounds(2, 64, turned, collective="all_gather"))


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no send": (
        lambda: [[(0, 1, "a"), (0, 1)], [(0, 1, 0.5)]],
        r"rounds\.0\.0: found \(0, 1, 'a'\)",
    ),
    "no round": (lambda: [5], r"rounds\.0: found 5; allowed: a list of sends"),
    "no list of rounds": (lambda: [(0, 1, 0)], r"rounds\.0\.0: found 0"),
    "a rank too many": (lambda: [[(0, 2, 0)]], r"found \(0, 2, 0.*ranks from 0 to 1"),
    "a rank below zero": (lambda: [[(-1, 1, 0)]], "ranks from 0 to 1"),
    "to itself": (lambda: [[(1, 1, 0)]], "two ranks"),
    "a chunk below zero": (lambda: [[(0, 1, -1)]], "chunks from 0 to"),
    "adds a number": (lambda: [[(0, 1, 0, 2)]], "True or False for adds"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rounds_say_where_and_what_is_expected(name: str) -> None:
    rounds, text = WRONG[name]
    with pytest.raises(InputError, match=text):
        Schedule.from_rounds(2, 64, rounds())


def test_all_faults_come_at_once() -> None:
    with pytest.raises(InputError) as caught:
        Schedule.from_rounds(2, 64, [[(0, 5, 0)], [(0, 1, 0), (7, 1, 0)]])
    assert [fault.field for fault in caught.value.faults] == ["rounds.0.0", "rounds.1.1"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"collective": "all_sum"}, "did you mean 'all_reduce'"),
        ({"chunks": 0}, "chunks: found 0"),
        ({"chunks": 1}, "chunks from 0 to 0"),
        ({"chunks": [32, 16, 16]}, "chunks of one size"),
        ({"owner": [0, 5]}, "a rank for each of the 2 chunks"),
        ({"nbytes": 63}, "whole number of 4-byte elements"),
        ({"root": 2}, "root 2 of 2 ranks"),
        ({"ranks": 0}, "a collective of 0 ranks"),
    ],
)
def test_wrong_fields_are_faults(changes: dict[str, Any], text: str) -> None:
    fields = {"ranks": 2, "nbytes": 64, "rounds": [[(0, 1, 0, False, 1)]]} | changes
    with pytest.raises(PerfmodelError, match=text):
        Schedule.from_rounds(
            fields.pop("ranks"), fields.pop("nbytes"), fields.pop("rounds"), **fields
        )


def test_two_that_write_one_chunk_race() -> None:
    with pytest.raises(ScheduleError, match="2 sends of one round write chunk 0 of rank 2"):
        verify(Schedule.from_rounds(3, 64, [[(0, 2, 0), (1, 2, 0)]]))


def test_every_stepped_algorithm_ships() -> None:
    assert all(name in ALGORITHMS[op] for op, name in STEPPED)


@pytest.mark.parametrize("fidelity", ["flow", "message"])
def test_rounds_of_unlike_bytes_keep_their_own(fidelity: str) -> None:
    """A step for 4,000 bytes and one for 4,100, one after the other: nothing is averaged."""
    small, large = 4000, 4100
    rounds = [[(0, 1, 0)], [(0, 1, 1)]]
    both = Schedule.from_rounds(
        2, small + large, rounds, collective="broadcast", chunks=[small, large]
    )
    assert [phase.nbytes.tolist() for phase in both.phases] == [[small], [large]]
    alone = [
        Schedule.from_rounds(2, nbytes, [[(0, 1, 0)]], collective="broadcast")
        for nbytes in (small, large)
    ]
    expected = sum(time_s(each, fidelity) for each in alone)
    assert time_s(both, fidelity) == pytest.approx(expected, rel=1e-9)
