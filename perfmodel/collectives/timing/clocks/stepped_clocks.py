"""Clocks of few edges, every one of which is stepped through in compiled loops.

As `variable_rate.Clocks`, which steps the same recurrence with NumPy and looks for what repeats.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.collectives.timing.clocks.variable_rate import (
    MOST_PACES,
    CompletionTimes,
    ends_of,
    pieces_over_trees,
)
from perfmodel.collectives.timing.recurrence_steps import (
    LinkRates,
    RecurrenceState,
    average_rates,
    drained_free_s,
    step_compiled,
)
from perfmodel.collectives.timing.unrolled import UnrolledPhases
from perfmodel.compiled_loops.compilation import Loops


class PaceRows:
    """Rates and latencies of edges from some times on, in rows of arrays that are reused."""

    def __init__(self, edges: int, room: int) -> None:
        self._low, self._high = 0, 0
        self._from_s = np.full(room, -np.inf)
        self._rate_Bps, self._latency_s = np.empty((2, room, edges))

    def begin(self, first: LinkRates) -> None:
        """Begin with one pace."""
        self._low, self._high, self._from_s[0] = 0, 1, -np.inf
        self._rate_Bps[0], self._latency_s[0] = first.rate_Bps, first.latency_s

    def __len__(self) -> int:
        return self._high - self._low

    @property
    def rows(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """When each pace begins, shape (paces,), and rates and latencies, shape (paces, edges)."""
        rows = slice(self._low, self._high)
        return self._from_s[rows], self._rate_Bps[rows], self._latency_s[rows]

    @property
    def last(self) -> LinkRates:
        """The present pace."""
        return self._pace(self._high - 1)

    def forget(self, now_s: float, earliest_s: float, most: int) -> None:
        """Forget paces that have not begun, and those before any send that is not over.

        `most`: paces; beyond it the first two become their average.
        """
        while self._high > self._low and self._from_s[self._high - 1] >= now_s:
            self._high -= 1
        while self._high - self._low > 1 and self._from_s[self._low + 1] <= earliest_s:
            self._low += 1
        if self._high - self._low >= most:
            first, second, after = map(self._pace, range(self._low, self._low + 3))
            self._low += 1
            self._rate_Bps[self._low] = average_rates(earliest_s, first, second, after).rate_Bps

    def add(self, now_s: float, rate_Bps: FloatArray, latency_s: FloatArray) -> None:
        """Add a pace from now on."""
        if self._high == len(self._from_s):
            for rows in (self._from_s, self._rate_Bps, self._latency_s):
                rows[: self._high - self._low] = rows[self._low : self._high].copy()
            self._low, self._high = 0, self._high - self._low
        self._from_s[self._low], self._from_s[self._high] = -np.inf, now_s
        self._rate_Bps[self._high], self._latency_s[self._high] = rate_Bps, latency_s
        self._high += 1

    def _pace(self, row: int) -> LinkRates:
        return LinkRates(float(self._from_s[row]), self._rate_Bps[row], self._latency_s[row])


@dataclass
class SteppedClocks:
    """Sends over some edges in progress; see `variable_rate.Clocks`."""

    loops: Loops
    course: UnrolledPhases
    begin_s: FloatArray
    """When each edge may send at the earliest. Shape (edges,)."""
    pace: LinkRates
    """Until `change`."""
    _stand: RecurrenceState = field(init=False)
    _paces: PaceRows = field(init=False)

    def __post_init__(self) -> None:
        edges = self.course.edges
        free, delivered = np.array(self.begin_s, float), np.zeros((self.course.depth, edges + 1))
        self._stand = RecurrenceState(0, free, delivered)
        self._paces = PaceRows(edges, 2 * MOST_PACES)
        self._paces.begin(self.pace)

    def change(self, now_s: float, rate_Bps: FloatArray, latency_s: FloatArray) -> None:
        """From now on the edges have other rates and latencies; what is sent stays sent."""
        self._run(self._stand, now_s)
        self._paces.forget(now_s, float(self._stand.free.min()), MOST_PACES)
        self._paces.add(now_s, rate_Bps, latency_s)

    def ends(self) -> CompletionTimes:
        """How the sends end if nothing changes any more."""
        if self._stand.step == 0:
            pieces = pieces_over_trees(self.course, self.begin_s, self._paces.last)
            if pieces is not None:
                return pieces
        stand = self._stand.copy()
        self._run(stand, np.inf)
        return ends_of(self.course, stand)

    def least_wire_s(self) -> float:
        """Least time at which the last byte can have left (see `variable_rate.Clocks`)."""
        course, step = self.course, self._stand.step
        phase, first = course.phase_at(step)
        arrays = course.contiguous(phase)
        work = course.sends, course.done(step), arrays.first, arrays.active, step - first
        rates_Bps = self._paces.rows[1]
        return self.loops.least_end(self._stand.free, *work, course.least_bytes, rates_Bps)

    def left(self) -> FloatArray:
        """Share of its sends that each edge has not yet sent for certain; shape (edges,)."""
        sent = self.course.sent(self._stand.step)
        return 1.0 - sent / np.maximum(self.course.sends, 1)

    def _run(self, stand: RecurrenceState, until_s: float) -> None:
        """Advance in place, as long as everything of a step has left by a time."""
        rates = self._paces.rows
        while stand.step < self.course.steps:
            phase, first = self.course.phase_at(stand.step)
            if stand.step == first and phase.drained:
                stand.free = drained_free_s(self.course, stand, phase)
            goal = first + phase.repeat
            stand.step = step_compiled(self.loops, self.course, stand, goal, rates, until_s)
            if stand.step < goal:
                return
