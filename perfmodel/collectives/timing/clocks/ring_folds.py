"""Edges of rings that are unlike, each of which stands for others.

Like hosts make a ring periodic: its edges inside a host and out of it come back host after host,
and so do their times; and rings on like rails are alike. 8,192 edges of rings over eight hosts are
some forty that are unlike. Which they are follows from rates, latencies and when edges begin, and
is the same for all collectives that meet in the same way: it is found once for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.collectives.timing.unrolled import UnrolledPhases

SAME = 1e-12
"""Values this close are alike."""
MOST_FOLDS = 16
"""Folds of a course that are kept; the one used longest ago goes first."""


@dataclass(frozen=True, eq=False)
class Fold:
    """Edges of a course that stand for all of its edges.

    Parameters
    ----------
    course : UnrolledPhases
        Of the edges that stand for others.
    chosen : ndarray of int, shape (folded edges,), or slice
        Which edges these are.
    place : ndarray of int, shape (edges,), or slice
        For each edge the one of `chosen` that stands for it.
    """

    course: UnrolledPhases
    chosen: IntArray | slice
    place: IntArray | slice

    @property
    def size(self) -> int:
        """How many edges stand for all."""
        return self.course.edges

    def fits(self, rows: Sequence[FloatArray]) -> bool:
        """Whether edges have the values of those that stand for them."""
        return all(_same(row, row[self.chosen][self.place]) for row in rows)

    def is_finer(self, other: Fold) -> bool:
        """Whether edges that one edge stands for here have one that stands for them there."""
        at = other.place
        return not isinstance(at, slice) and np.array_equal(at, at[self.chosen][self.place])


def fold(course: UnrolledPhases, rows: Sequence[FloatArray], before: Fold | None = None) -> Fold:
    """Edges of rings that are unlike in what they send and in `rows`; all edges without rings.

    `before`: edges that are unlike there are so here, too.
    """
    if course.order is None:
        return Fold(course, slice(None), slice(None))
    folds: list[Fold] = course.folds
    for each in sorted(folds, key=lambda each: each.size):
        if (before is None or each is before or each.is_finer(before)) and each.fits(rows):
            break
    else:
        unlike = [] if before is None else [np.arange(before.size, dtype=float)[before.place]]
        each = _find(course, course.order, [*rows, *unlike])
    course.folds = [each, *(other for other in folds if other is not each)][:MOST_FOLDS]
    return each


def _find(course: UnrolledPhases, order: IntArray, rows: Sequence[FloatArray]) -> Fold:
    table = np.stack([*(p.nbytes for p in course.phases), *rows])[:, order]
    unlike: list[int] = []
    equal: dict[bytes, int] = {}  # most rings that are alike are so to the bit
    stands_for = np.empty(len(order), dtype=np.int64)  # by its place among those that are unlike
    for ring, values in enumerate(np.ascontiguousarray(table.swapaxes(0, 1))):
        bits = values.tobytes()
        same = equal.get(bits, -1)
        if same < 0:
            same = next((at for at, i in enumerate(unlike) if _same(values, table[:, i])), -1)
            if same < 0:
                same = len(unlike)
                unlike.append(ring)
            equal[bits] = same
        stands_for[ring] = same
    periods = np.array([_period(table[:, ring]) for ring in unlike])
    begins = np.cumsum(periods) - periods
    around = np.arange(order.shape[1])
    place = np.empty(order.size, dtype=np.int64)
    place[order] = begins[stands_for][:, None] + around % periods[stands_for][:, None]
    chosen = np.concatenate(
        [order[ring, :period] for ring, period in zip(unlike, periods, strict=True)]
    )
    return Fold(_select(course, chosen, begins), chosen, place)


def _select(course: UnrolledPhases, chosen: IntArray, begins: IntArray) -> UnrolledPhases:
    """The phases of edges that stand for others, ring after ring, each fed by the one before it."""
    names = ("src", "dst", "channel", "nbytes", "first", "active")
    phases = tuple(
        replace(p, **{name: getattr(p, name)[chosen] for name in names}) for p in course.phases
    )
    feeders = np.arange(len(chosen)) - 1
    feeders[begins] = np.append(begins[1:], len(chosen)) - 1
    return UnrolledPhases(phases, course.credits, feeders[:, None], None, begins)


def _same(values: FloatArray, others: FloatArray) -> bool:
    if np.array_equal(values, others):
        return True
    return bool((np.abs(values - others) <= SAME * np.abs(others)).all())


def _period(rows: FloatArray) -> int:
    """After how many edges the values of a ring come back."""
    length: int = rows.shape[1]
    small = [d for d in range(1, int(length**0.5) + 1) if length % d == 0]
    for period in sorted({*small, *(length // d for d in small)}):
        if period < length and _same(rows[:, period:], rows[:, :-period]):
            return period
    return length
