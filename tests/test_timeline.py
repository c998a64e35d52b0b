"""Interval arithmetic of timelines, against counting cells of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.timeline import Span, Timeline, assign_lanes, covered_s, exposed, exposed_s

CELLS = 40
intervals = st.lists(
    st.tuples(st.integers(0, CELLS), st.integers(0, CELLS)).map(
        lambda pair: (float(min(pair)), float(max(pair)))
    ),
    max_size=12,
)


def cells(spans: Sequence[tuple[float, float]]) -> set[int]:
    """Unit cells [i, i + 1) that intervals with whole ends cover."""
    return {cell for start, stop in spans for cell in range(int(start), int(stop))}


def span(start: float, end: float, **more: object) -> Span:
    fields: dict[str, object] = {
        "name": "x",
        "kind": "communication",
        "rank_class": "all",
        "stream": "comm",
        "step": 0,
        "ready_s": start,
    }
    return Span(start_s=start, end_s=end, **{**fields, **more})  # type: ignore[arg-type]


@given(intervals)
def test_covered_counts_overlaps_once(spans: list[tuple[float, float]]) -> None:
    assert covered_s(spans) == len(cells(spans))


@given(intervals, intervals)
def test_exposed_is_what_the_cover_leaves(
    busy: list[tuple[float, float]], cover: list[tuple[float, float]]
) -> None:
    left = cells(busy) - cells(cover)
    assert exposed_s(busy, cover) == len(left)
    pieces = exposed(busy, cover)
    assert cells(pieces) == left
    assert covered_s(pieces) == sum(high - low for low, high in pieces)
    assert pieces == sorted(pieces)


def test_exposed_takes_any_iterable() -> None:
    assert exposed_s(iter([(0.0, 3.0)]), iter([(1.0, 2.0)])) == pytest.approx(2.0)


@given(intervals)
def test_lanes_never_overlap_and_lose_nothing(spans: list[tuple[float, float]]) -> None:
    spread = assign_lanes([span(start, stop) for start, stop in spans])
    found = [(s.start_s, s.end_s) for lane in spread for s in lane]
    assert sorted(found) == sorted(spans)
    for lane in spread:
        assert all(a.end_s <= b.start_s for a, b in pairwise(lane))


@given(intervals)
def test_lanes_are_as_few_as_the_deepest_overlap(spans: list[tuple[float, float]]) -> None:
    spans = [(start, stop) for start, stop in spans if stop > start]
    deepest = max(
        (sum(start <= at < stop for start, stop in spans) for at in range(CELLS)), default=0
    )
    assert len(assign_lanes([span(start, stop) for start, stop in spans])) == deepest


def test_table_has_one_row_per_span_and_all_columns() -> None:
    timeline = Timeline((span(0.0, 1.0, bucket=3), span(1.0, 2.0, step=1)))
    table = timeline.table()
    assert list(table.columns) == list(Span._fields)
    assert next(iter(table["bucket"])) == 3
    assert len(timeline.step(1).spans) == 1
    assert list(Timeline(()).table().columns) == list(Span._fields)


def test_rounding_of_sums_opens_no_second_lane() -> None:
    steps = [(i * 1e-4, i * 1e-4 + 1e-4) for i in range(500)]
    assert any(before[1] > after[0] for before, after in pairwise(steps))
    assert len(assign_lanes([span(start, stop) for start, stop in steps])) == 1
