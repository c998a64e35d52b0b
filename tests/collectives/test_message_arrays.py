"""All messages at once: the same as derived send by send."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.collectives.catalog import ALGORITHMS, make
from perfmodel.collectives.dependencies import messages, unroll
from perfmodel.collectives.schedule import Round, Schedule
from perfmodel.errors import ScheduleError

PAIRS = [(op, name) for op, makers in ALGORITHMS.items() for name in makers if op != "send"]


def same(schedule: Schedule) -> None:
    """Messages and what they wait for are those that reading send by send finds."""
    actual = messages(unroll(schedule))
    nbytes: dict[tuple[int, ...], int] = {}
    pairs: set[tuple[int, int]] = set()
    written: dict[tuple[int, int], set[int]] = {}
    read: dict[tuple[int, int], set[int]] = {}
    for at, part in enumerate(schedule.rounds()):
        columns = (part.channel, part.src, part.dst, part.src_chunk, part.dst_chunk, part.nbytes)
        sends = list(zip(*(column.tolist() for column in columns), strict=True))
        reads, writes = defaultdict[Any, set[int]](set), defaultdict[Any, set[int]](set)
        for channel, src, dst, source, target, size in sends:
            edge = (at, channel, src, dst)
            nbytes[edge] = nbytes.get(edge, 0) + size
            number = list(nbytes).index(edge)
            reads[src, source].add(number)
            writes[dst, target].add(number)
            others = [
                written.get((src, source)),
                written.get((dst, target)),
                read.get((dst, target)),
            ]
            pairs |= {(number, other) for each in others for other in each or ()}
        for place in writes:
            read.pop(place, None)
        for place, numbers in reads.items():  # of this round, before what it writes there lands
            if place not in writes:
                read[place] = read.get(place, set()) | numbers
        written |= writes
    names = ("round", "channel", "src", "dst")
    assert list(zip(*(getattr(actual, name).tolist() for name in names), strict=True)) == list(
        nbytes
    )
    assert actual.nbytes.tolist() == list(nbytes.values())
    assert list(zip(actual.waits.tolist(), actual.awaited.tolist(), strict=True)) == sorted(pairs)


@pytest.mark.parametrize(("op", "name"), PAIRS)
@pytest.mark.parametrize("ranks", [2, 4, 5, 8])
def test_every_algorithm(op: str, name: str, ranks: int) -> None:
    try:
        schedule = make(op, name, ranks, ranks * 4096, itemsize=4)
    except ScheduleError:
        pytest.skip("not for so many ranks")
    same(schedule)


@st.composite
def random_rounds(draw: st.DrawFn) -> list[Round]:
    """Any sends at all: only two that replace the same chunk in one round are left out."""
    number = st.integers(0, 3)
    rounds = []
    for _ in range(draw(st.integers(0, 6))):
        sends = draw(
            st.lists(st.tuples(number, number, number, number, st.integers(0, 1)), max_size=6)
        )
        adds = draw(st.booleans())
        if not adds:
            sends = list({(send[1], send[3]): send for send in sends}.values())
        columns = np.array(sends, dtype=np.int64).reshape(-1, 5).T
        count = columns.shape[1]
        rounds.append(
            Round(
                columns[0],
                columns[1],
                columns[2],
                columns[3],
                np.full(count, 8),
                columns[4],
                np.full(count, adds),
            )
        )
    return rounds


@pytest.mark.slow
@given(random_rounds())
def test_random_rounds(rounds: list[Round]) -> None:
    schedule = make("all_reduce", "ring", 4, 64, itemsize=4)
    same(replace(schedule, unroll=lambda: iter(rounds)))


def test_a_race_is_refused() -> None:
    one = np.zeros(2, np.int64)
    part = Round(one, one + 1, np.arange(2), one, one + 8, one, np.zeros(2, np.bool_))
    schedule = make("all_reduce", "ring", 4, 64, itemsize=4)
    with pytest.raises(ScheduleError, match="2 sends of one round write chunk 0 of rank 1"):
        unroll(replace(schedule, unroll=lambda: iter([part])))
