"""When sends over some edges start and arrive, edge by edge, at rates that change in between.

`Clocks` is the recurrence of `recurrence.py` with its state: it takes new rates in mid-transfer,
and what was sent until then stays sent. `OneStep` is the same for a single send per edge. Times
are seconds since the collective began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, sending_s
from perfmodel.collectives.schedule import Phase
from perfmodel.collectives.timing.compiled_loops import Loops
from perfmodel.collectives.timing.critical_path import are_alike, period_of, pipelines_s
from perfmodel.collectives.timing.recurrence_steps import (
    LinkRates,
    PaceRows,
    RecurrenceState,
    advance,
)
from perfmodel.collectives.timing.unrolled import UnrolledPhases

VALUE_TOLERANCE = 1e-12
"""Values this close are alike."""
ALIKE_TO_FOLD = 4
"""Edges that one stands for, in the mean, from which on folding pays beside compiled loops."""
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
        return all(are_alike(r, r[self.chosen][self.place], VALUE_TOLERANCE) for r in rows)

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
            alike = (are_alike(values, table[:, each], VALUE_TOLERANCE) for each in unlike)
            same = next((at for at, is_alike in enumerate(alike) if is_alike), -1)
            if same < 0:
                same = len(unlike)
                unlike.append(ring)
            equal[bits] = same
        stands_for[ring] = same
    periods = np.array([period_of(table[:, ring], VALUE_TOLERANCE) for ring in unlike])
    begins = np.cumsum(periods) - periods
    around = np.arange(order.shape[1])
    place = np.empty(order.size, dtype=np.int64)
    place[order] = begins[stands_for][:, None] + around % periods[stands_for][:, None]
    chosen = np.concatenate(
        [order[ring, :period] for ring, period in zip(unlike, periods, strict=True)]
    )
    return Fold(_select(course, chosen, begins), chosen, place)


def _select(course: UnrolledPhases, chosen: IntArray, begins: IntArray) -> UnrolledPhases:
    """Return the phases of the chosen edges alone, which stand for others.

    They lie ring after ring; each edge of a ring is fed by the one before it.
    """
    names = ("src", "dst", "channel", "nbytes", "first", "active")
    phases = tuple(
        replace(p, **{name: getattr(p, name)[chosen] for name in names}) for p in course.phases
    )
    feeders = np.arange(len(chosen)) - 1
    feeders[begins] = np.append(begins[1:], len(chosen)) - 1
    return UnrolledPhases(phases, course.credits, feeders[:, None], None, begins)


MOST_PACES = 16
"""So many changes of rates are kept for sends that began before them."""


@dataclass(frozen=True)
class CompletionTimes:
    """How sends over some edges end."""

    wire_s: float
    """When the last byte has left."""
    landed_s: FloatArray
    """When the last send of each edge has arrived; 0 for edges that send nothing. Shape
    (edges,)."""

    @cached_property
    def last_s(self) -> float:
        """When everything has arrived."""
        return float(self.landed_s.max(initial=0.0))


@dataclass
class Clocks:
    """Sends over some edges in progress; edges of rings that are alike are stepped through once."""

    course: UnrolledPhases
    begin_s: FloatArray
    """When each edge may send at the earliest. Shape (edges,)."""
    pace: LinkRates
    """Until `change`."""
    loops: Loops | None = None
    """Compiled loops, which step through each edge where few are alike: nothing is sought then that
    repeats."""

    def __post_init__(self) -> None:
        self._steps_through = False
        begin_s, pace = np.array(self.begin_s, float), self.pace
        self._fold = self._find_fold((pace.rate_Bps, pace.latency_s, begin_s))
        chosen = self._fold.chosen
        free = begin_s[chosen]
        # Of the edges that stand for others:
        self._stand = RecurrenceState(0, free, np.zeros((self.course.depth, len(free) + 1)))
        self._paces = PaceRows(len(free), 2 * MOST_PACES)
        self._paces.begin(pace.rate_Bps[chosen], pace.latency_s[chosen])

    def _find_fold(self, rows: Sequence[FloatArray], before: Fold | None = None) -> Fold:
        if before is not None and self._steps_through:
            return before
        found = fold(self.course, rows, before)
        self._steps_through = (
            self.loops is not None and found.size * ALIKE_TO_FOLD > self.course.edges
        )
        return Fold(self.course, slice(None), slice(None)) if self._steps_through else found

    def change(self, now_s: float, rate_Bps: FloatArray, latency_s: FloatArray) -> None:
        """From now on the edges have other rates and latencies; what is sent stays sent."""
        advance(self._fold.course, self._stand, self._paces.rows, now_s)
        self._unfold(self._find_fold((rate_Bps, latency_s), self._fold))
        chosen, earliest_s = self._fold.chosen, float(self._stand.free.min())
        self._paces.change(now_s, earliest_s, rate_Bps[chosen], latency_s[chosen])

    def _unfold(self, finer: Fold) -> None:
        """Let other edges stand for all, more of them."""
        before, self._fold = self._fold, finer
        if finer is before or isinstance(before.place, slice):
            return
        at, stand = before.place[finer.chosen], self._stand
        delivered = np.ascontiguousarray(stand.delivered[:, np.append(at, len(stand.free))])
        self._stand = RecurrenceState(stand.step, stand.free[at], delivered)
        self._paces = self._paces.chosen(at)

    def ends(self) -> CompletionTimes:
        """Return how the sends end if nothing changes any more."""
        if self._stand.step == 0:
            pieces = pieces_over_trees(self.course, self.begin_s, self._paces.last)
            if pieces is not None:
                return pieces
        stand = self._stand.copy()
        course = self._fold.course
        advance(course, stand, self._paces.rows, np.inf)
        works, last = course.sends > 0, (course.sends - 1) % course.depth
        landed_s = np.where(works, stand.delivered[last, np.arange(course.edges)], 0.0)
        return CompletionTimes(
            float(stand.free[works].max(initial=0.0)), landed_s[self._fold.place]
        )

    def least_wire_s(self) -> float:
        """Least time at which the last byte can have left, without stepping through the sends.

        Every edge still has to send what it has not sent, at its best rate so far at most.
        """
        course, stand, nbytes = self._fold.course, self._stand, self._fold.course.least_bytes
        unsent, best_Bps = course.sends - course.sent(stand.step), self._paces.rows[1].max(axis=0)
        each_s = nbytes / best_Bps if best_Bps.all() else sending_s(nbytes, best_Bps)
        least_s = stand.free + unsent * each_s
        return float(least_s[course.sends > 0].max(initial=0.0))

    def left(self) -> FloatArray:
        """Share of its sends that each edge has not yet sent for certain; shape (edges,)."""
        course = self._fold.course
        unsent = 1.0 - course.sent(self._stand.step) / np.maximum(course.sends, 1)
        return np.asarray(unsent[self._fold.place])


def pieces_over_trees(
    course: UnrolledPhases, begin_s: FloatArray, pace: LinkRates
) -> CompletionTimes | None:
    """How trees that begin at one rate end, without stepping; None if they have to be stepped."""
    is_one_pipeline = course.pipelined and len(course.phases) == 1
    is_one_rate = pace.from_s <= begin_s.min(initial=np.inf) and (pace.rate_Bps > 0).all()
    if not is_one_pipeline or not is_one_rate or (begin_s != begin_s[0]).any():
        return None
    phase, credits = course.phases[0], course.credits
    times = pipelines_s(phase, pace.rate_Bps, pace.latency_s, credits, feeders=course.feeders)
    if times is None:
        return None
    landed_s = times[1] + begin_s[0]
    return CompletionTimes(float((landed_s - pace.latency_s).max()), landed_s)


@dataclass
class OneStep:
    """Edges each of which sends once. Times are seconds since the collective began.

    Arrays have shape (edges,).
    """

    phase: Phase
    """Of one repeat."""
    begin_s: FloatArray
    """When each edge may send at the earliest."""
    rate_Bps: FloatArray
    latency_s: FloatArray
    """`rate_Bps` and `latency_s`: until `change`."""

    def __post_init__(self) -> None:
        self._left_bytes = self.phase.nbytes * self.phase.active.astype(float)
        self._since_s = np.array(self.begin_s, float)
        self._works = self.phase.active > 0
        self._all_work = bool(self._works.all())
        self._leave_s: FloatArray | None = None  # at the present rates

    def change(self, now_s: float, rate_Bps: FloatArray, latency_s: FloatArray) -> None:
        """From now on the edges have other rates and latencies; what is sent stays sent."""
        leave_s = self._leaves_s()
        under_way = leave_s > now_s
        sent = self.rate_Bps * np.maximum(0.0, now_s - self._since_s)
        self._left_bytes = np.where(under_way, np.maximum(0.0, self._left_bytes - sent), 0.0)
        # What has left keeps the time at which it did, and the latency that it met.
        self._since_s = np.where(under_way, np.maximum(self._since_s, now_s), leave_s)
        self.rate_Bps = rate_Bps
        self.latency_s = np.where(under_way, latency_s, self.latency_s)
        self._leave_s = None

    def least_wire_s(self) -> float:
        """Return when the last byte has left (see `Clocks.least_wire_s`)."""
        return self.ends().wire_s

    def ends(self) -> CompletionTimes:
        """Return how the sends end if nothing changes any more."""
        leave_s = self._leaves_s()
        landed_s = leave_s + self.latency_s
        if not self._all_work:
            landed_s, leave_s = np.where(self._works, landed_s, 0.0), leave_s[self._works]
        return CompletionTimes(float(leave_s.max(initial=0.0)), landed_s)

    def left(self) -> FloatArray:
        """Share of its bytes that each edge has not yet sent; shape (edges,)."""
        whole = self.phase.nbytes * self.phase.active.astype(float)
        return np.asarray(
            np.divide(self._left_bytes, whole, out=np.zeros(len(whole)), where=whole > 0)
        )

    def _leaves_s(self) -> FloatArray:
        """When each edge has sent its bytes if nothing changes any more; shape (edges,)."""
        if self._leave_s is None:
            nbytes, rate_Bps = self._left_bytes, self.rate_Bps
            busy_s = nbytes / rate_Bps if rate_Bps.all() else sending_s(nbytes, rate_Bps)
            self._leave_s = self._since_s + busy_s
        return self._leave_s
