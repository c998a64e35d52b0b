"""Clocks of pieces that travel over trees, edge after edge, in compiled loops.

As `variable_rate.Clocks`, of edges that depend on those before them only
(`UnrolledPhases.are_trees`). When rates change, steps that have left are kept and the rest is
worked out anew: steps and not pieces, because a piece may arrive before its end has left
(latencies of NCCL's trees below zero), and what it fed was then sent at times that no longer hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.collectives.timing.recurrence_steps import (
    LinkRates,
    RecurrenceState,
    average_rates,
    drained_free_s,
    step_compiled,
)
from perfmodel.collectives.timing.unrolled import UnrolledPhases
from perfmodel.collectives.timing.variable_rate import (
    MOST_PACES,
    CompletionTimes,
    ends_of,
    pieces_over_trees,
)
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


MOST_TREE_PACES = 64
"""So many changes of rates are kept for sends that began before them; see `MOST_PACES`."""


@dataclass(slots=True, eq=False)
class TreeTimes:
    """When pieces leave and arrive over edges of trees, and the paces at which they do.

    Parameters
    ----------
    kept : ndarray of int, shape (edges,)
        Pieces of each edge in steps that have left for certain.
    left_s : ndarray of float, shape (edges, pieces)
    arrived_s : ndarray of float, shape (edges + 1, pieces)
        The last row stays 0 and is for edges that nothing feeds.
    paces : PaceRows
    """

    kept: IntArray
    left_s: FloatArray
    arrived_s: FloatArray
    paces: PaceRows


def _make_times(course: UnrolledPhases) -> TreeTimes:
    edges, pieces = course.edges, int(course.sends[0])
    arrived_s = np.empty((edges + 1, pieces))
    arrived_s[-1] = 0.0
    paces = PaceRows(edges, 2 * MOST_TREE_PACES)
    return TreeTimes(np.zeros(edges, np.int64), np.empty((edges, pieces)), arrived_s, paces)


@dataclass
class TreeClocks:
    """Pieces over trees in progress; see `variable_rate.Clocks`."""

    loops: Loops
    course: UnrolledPhases
    begin_s: FloatArray
    """When each edge may send at the earliest. Shape (edges,)."""
    pace: LinkRates
    """Until `change`."""
    _times: TreeTimes = field(init=False)
    _is_current: bool = False  # whether times are those at the present paces

    def __post_init__(self) -> None:
        spare = self.course.spare
        self._times = spare.pop() if spare else _make_times(self.course)
        self._times.kept[:] = 0
        self._times.paces.begin(self.pace)
        self._begin_s = np.ascontiguousarray(self.begin_s, dtype=np.float64)
        self._first = np.ascontiguousarray(self.course.phases[0].first)

    def release(self) -> None:
        """Give back the arrays: new ones of a MB take longer to touch than to fill."""
        self.course.spare.append(self._times)

    def change(self, now_s: float, rate_Bps: FloatArray, latency_s: FloatArray) -> None:
        """From now on the edges have other rates and latencies; what is sent stays sent."""
        self._work_out()
        sent = self._times.kept, self._times.left_s, self._begin_s
        earliest_s = self.loops.keep_sent(*sent, self._first, now_s)
        self._times.paces.forget(now_s, earliest_s, MOST_TREE_PACES)
        self._times.paces.add(now_s, rate_Bps, latency_s)
        self._is_current = False

    def ends(self) -> CompletionTimes:
        """How the sends end if nothing changes any more."""
        self._work_out()
        last = self._times.left_s[:, -1], self._times.arrived_s[:-1, -1]
        return CompletionTimes(float(last[0].max()), last[1].copy())

    def least_wire_s(self) -> float:
        """Least time at which the last byte can have left: every edge has to send the rest."""
        nbytes = self.course.least_bytes
        from_s, rate_Bps, _ = self._times.paces.rows
        sent = self._times.kept, self._times.left_s, self._begin_s
        return self.loops.least_tree_end(*sent, nbytes, from_s, rate_Bps)

    def left(self) -> FloatArray:
        """Share of its sends that each edge has not yet sent for certain; shape (edges,)."""
        return 1.0 - self._times.kept / np.maximum(self.course.sends, 1)

    def _work_out(self) -> None:
        """Work out when the pieces that are left leave and arrive at the present paces."""
        if self._is_current:
            return
        course = self.course
        arrays = course.contiguous(course.phases[0])
        edges = arrays.begins, arrays.feeders, arrays.nbytes, self._begin_s
        sends = self._times.kept, self._times.left_s, self._times.arrived_s
        self.loops.send_over_trees(*edges, *sends, course.credits, *self._times.paces.rows)
        self._is_current = True
