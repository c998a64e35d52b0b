"""The steps of a recurrence over edges: from its state after some repeats to that after more.

Edges are those of an `UnrolledPhases`; they send at rates that may have changed in between.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.collectives.schedule import Phase
from perfmodel.collectives.timing import compiled_loops
from perfmodel.collectives.timing.unrolled import UnrolledPhases


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Rates and latencies of the edges of a collective from a moment on.

    Arrays have shape (edges,).
    """

    from_s: float
    rate_Bps: FloatArray
    """Payload bytes per second while an edge sends."""
    latency_s: FloatArray


Paces = tuple[FloatArray, FloatArray, FloatArray]
"""When each pace begins, shape (paces,), and rates and latencies, shape (paces, edges)."""


class PaceRows:
    """Rates and latencies of edges from some times on, in rows of arrays that are reused.

    Sends that began before a change of rates go on at the new ones from then on. So many changes
    are kept as there is `room` for twice; of older ones the first two become their average, which
    is exact for what began before them all.
    """

    def __init__(self, edges: int, room: int) -> None:
        self._low, self._high, self._most = 0, 0, room // 2
        self._from_s = np.full(room, -np.inf)
        self._rate_Bps, self._latency_s = np.empty((2, room, edges))

    def begin(self, rate_Bps: FloatArray, latency_s: FloatArray) -> None:
        """Begin with one pace."""
        self._low, self._high, self._from_s[0] = 0, 1, -np.inf
        self._rate_Bps[0], self._latency_s[0] = rate_Bps, latency_s

    def chosen(self, edges: IntArray) -> PaceRows:
        """Return the paces of some of the edges."""
        rows = PaceRows(len(edges), len(self._from_s))
        rows._low, rows._high, rows._from_s = self._low, self._high, self._from_s
        rows._rate_Bps[:], rows._latency_s[:] = self._rate_Bps[:, edges], self._latency_s[:, edges]
        return rows

    @property
    def rows(self) -> Paces:
        """All paces."""
        rows = slice(self._low, self._high)
        return self._from_s[rows], self._rate_Bps[rows], self._latency_s[rows]

    @property
    def last(self) -> LinkRates:
        """The present pace."""
        at = self._high - 1
        return LinkRates(float(self._from_s[at]), self._rate_Bps[at], self._latency_s[at])

    @property
    def is_full(self) -> bool:
        """Whether one more would make an average of the first two."""
        return self._high - self._low >= self._most

    def change(
        self, now_s: float, earliest_s: float, rate_Bps: FloatArray, latency_s: FloatArray
    ) -> None:
        """Add a pace from now on; forget those that have not begun, and those before all sends.

        `earliest_s`: when the first edge is free.
        """
        from_s = self._from_s
        while self._high > self._low and from_s[self._high - 1] >= now_s:
            self._high -= 1
        while self._high - self._low > 1 and from_s[self._low + 1] <= earliest_s:
            self._low += 1
        if self.is_full:
            parts = np.diff([earliest_s, *from_s[self._low + 1 : self._low + 3]])
            parts /= parts.sum()
            first, second = self._rate_Bps[self._low : self._low + 2]
            self._low += 1
            self._rate_Bps[self._low] = parts[0] * first + parts[1] * second
        if self._high == len(from_s):
            for rows in (from_s, self._rate_Bps, self._latency_s):
                rows[: self._high - self._low] = rows[self._low : self._high].copy()
            self._low, self._high = 0, self._high - self._low
        from_s[self._low], from_s[self._high] = -np.inf, now_s
        self._rate_Bps[self._high], self._latency_s[self._high] = rate_Bps, latency_s
        self._high += 1


def sent_s(
    start_s: FloatArray, nbytes: FloatArray, paces: Paces, on: IntArray | slice
) -> tuple[FloatArray, FloatArray]:
    """Return when sends of some edges that start at some times have left, and when they arrive."""
    (from_s, rate_Bps, latency_s), first_s = paces, float(start_s.min(initial=np.inf))
    if first_s >= from_s[-1]:
        end = start_s + nbytes / rate_Bps[-1][on]
        return end, end + latency_s[-1][on]
    since, remaining = start_s, nbytes
    end = np.full(len(start_s), np.inf)
    arrived, todo = end.copy(), np.ones(len(start_s), dtype=np.bool_)
    # What was before all of these sends is skipped: there may be many changes of rates.
    for pace in range(max(0, bisect_right(from_s, first_s) - 1), len(from_s)):
        rate, until_s = rate_Bps[pace][on], np.append(from_s, np.inf)[pace + 1]
        finish = since + np.where(remaining > 0, remaining / rate, 0.0)
        now = todo & (finish <= until_s) & (since <= until_s)
        np.copyto(end, finish, where=now)
        np.copyto(arrived, finish + latency_s[pace][on], where=now)
        todo &= ~now
        if not todo.any():
            break
        remaining = np.maximum(0.0, remaining - np.maximum(0.0, until_s - since) * rate)
        since = np.maximum(since, until_s)
    return end, arrived


@dataclass(slots=True)
class RecurrenceState:
    """State of a recurrence."""

    step: int
    """Repeats done, through all phases."""
    free: FloatArray
    """When each edge had put its last send on the wire. Shape (edges,)."""
    delivered: FloatArray
    """Row n % depth holds when the n-th send of each edge arrived; the last column stays 0 and is
    for edges that nothing feeds. Shape (depth, edges + 1)."""

    def copy(self) -> RecurrenceState:
        """Return a copy that can go on by itself."""
        return RecurrenceState(self.step, self.free.copy(), self.delivered.copy())


def advance(course: UnrolledPhases, stand: RecurrenceState, paces: Paces, until_s: float) -> None:
    """Go on in place to the end, or as long as everything of a step has left by a time."""
    with np.errstate(divide="ignore", invalid="ignore"):
        while stand.step < course.steps:
            phase, first = course.phase_at(stand.step)
            if stand.step == first and phase.drained:
                stand.free = drained_free_s(course, stand, phase)
            goal = first + phase.repeat
            _advance_all(course, stand, phase, goal, paces, until_s)
            if stand.step < goal:
                return


def drained_free_s(course: UnrolledPhases, stand: RecurrenceState, phase: Phase) -> FloatArray:
    """Return when each edge is free for a phase that begins with nothing in flight."""
    last_s = stand.delivered[(course.sent(stand.step) - 1) % course.depth, np.arange(course.edges)]
    return np.maximum(stand.free, course.landed(phase, last_s))


def _advance_all(
    course: UnrolledPhases,
    stand: RecurrenceState,
    phase: Phase,
    goal: int,
    paces: Paces,
    until_s: float,
) -> None:
    """Go on in place to a step of the same phase, as long as all of a step leaves by a time."""
    loops = compiled_loops.loaded()
    if loops is not None and course.rings is not None:
        stand.step = loops.step_rings(
            stand.delivered,
            stand.free,
            course.rings,
            stand.step,
            goal,
            phase.lag,
            course.credits,
            course.contiguous(phase).nbytes,
            *paces,
            until_s,
        )
        return
    if not course.together:
        first = course.phase_at(stand.step)[1]
        while stand.step < goal and _advance_some(course, stand, phase, first, paces, until_s):
            pass
        return
    rows, free, depth = stand.delivered, stand.free, course.depth
    feeder, *more_feeders = course.feeders.T
    from_s, rate_Bps, latency_s = paces
    steady = float(free.min()) >= from_s[-1]
    hold_s = phase.nbytes / rate_Bps[-1]
    for number in range(stand.step, goal):
        start = rows[(number - phase.lag) % depth].take(feeder)
        for feeders in more_feeders:
            np.maximum(start, rows[(number - phase.lag) % depth].take(feeders), out=start)
        np.maximum(start, free, out=start)
        np.maximum(start, rows[(number - course.credits) % depth, :-1], out=start)
        if steady:
            end = start + hold_s
            arrived = end + latency_s[-1]
        else:
            end, arrived = sent_s(start, phase.nbytes, paces, slice(None))
        if until_s < np.inf and float(end.max()) > until_s:
            break
        rows[number % depth, :-1] = arrived
        free = end
        stand.step = number + 1
    stand.free = free


def _advance_some(
    course: UnrolledPhases,
    stand: RecurrenceState,
    phase: Phase,
    first: int,
    paces: Paces,
    until_s: float,
) -> bool:
    """One repeat in which not all edges work; False if not all of it has left by a time."""
    k, depth = stand.step - first, course.depth
    on = course.working(phase, k)
    numbers = course.done(stand.step)[on] + k - phase.first[on]
    feed = (numbers if course.pipelined else numbers - phase.lag) % depth
    ready = stand.delivered[feed[:, None], course.feeders[on]].max(axis=1)
    credit = stand.delivered[(numbers - course.credits) % depth, on]
    start = np.maximum(np.maximum(ready, stand.free[on]), credit)
    end, arrived = sent_s(start, phase.nbytes[on], paces, on)
    if end.max(initial=-np.inf) > until_s:
        return False
    stand.free[on] = end
    stand.delivered[numbers % depth, on] = arrived
    stand.step += 1
    return True
