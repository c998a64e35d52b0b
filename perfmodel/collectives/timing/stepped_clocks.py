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
    PaceRows,
)
from perfmodel.collectives.timing.unrolled import UnrolledPhases
from perfmodel.collectives.timing.variable_rate import (
    CompletionTimes,
)
from perfmodel.compiled_loops.compilation import Loops

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
        self._times.paces.begin(self.pace.rate_Bps, self.pace.latency_s)
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
        self._times.paces.change(now_s, earliest_s, rate_Bps, latency_s)
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
