"""When pieces over trees leave and arrive, at rates that change in between, in compiled loops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.collectives.timing.compiled_loops import Loops
from perfmodel.collectives.timing.recurrence_steps import LinkRates, PaceRows
from perfmodel.collectives.timing.unrolled import MANY_PIECES, UnrolledPhases
from perfmodel.collectives.timing.variable_rate import CompletionTimes

MOST_TREE_PACES = 64
"""So many changes of rates are kept for sends that began before them; see `MOST_PACES`."""


@dataclass
class TreeClocks:
    """Pieces over trees in progress, in compiled loops; see `variable_rate.Clocks`.

    It is for edges that depend on those before them only (`UnrolledPhases.are_trees`). Changes of
    rates are written down, and pieces are worked out when their ends are asked for; those that have
    left every edge are kept where there are too many changes.
    """

    loops: Loops
    course: UnrolledPhases
    begin_s: FloatArray
    """When each edge may send at the earliest. Shape (edges,)."""
    pace: LinkRates
    """Until `change`."""

    def __post_init__(self) -> None:
        spare, edges, self._kept = self.course.spare, self.course.edges, 0
        self._pieces = int(self.course.sends[0])
        self._arrays = self.course.contiguous(self.course.phases[0])
        if not spare:
            in_flight = np.empty((min(self.course.credits, self._pieces), edges + 1))
            spare.append((np.empty(edges), in_flight, PaceRows(edges, 2 * MOST_TREE_PACES)))
        # When the last of the pieces that are kept have left each edge, in `tree_order`, and when
        # the last ones in flight have arrived; edges that nothing feeds are fed by the last column,
        # which stays 0.
        self._free_s, self._arrived_s, self._paces = spare.pop()
        np.maximum(self.begin_s[self.course.tree_order], 0.0, out=self._free_s)
        self._arrived_s[:] = 0.0
        self._paces.begin(self.pace.rate_Bps, self.pace.latency_s)

    def release(self) -> None:
        """Give back the arrays: new ones of a MB take longer to touch than to fill."""
        self.course.spare.append((self._free_s, self._arrived_s, self._paces))

    def change(self, now_s: float, rate_Bps: FloatArray, latency_s: FloatArray) -> None:
        """From now on the edges have other rates and latencies; what is sent stays sent."""
        if self._paces.is_full:
            before, self._kept = self._kept, self._left_everywhere(now_s)
            self._send(before, self._kept, self._free_s, self._arrived_s, last=len(self._arrived_s))
        self._paces.change(now_s, float(self._free_s.min()), rate_Bps, latency_s)

    def ends(self) -> CompletionTimes:
        """Return how the sends end if nothing changes any more."""
        one_by_one = self._go_one_by_one(self._pieces - self._kept)
        arrived_s = (self._arrived_s if one_by_one else self._arrived_s[:1]).copy()
        free_s = self._free_s.copy()
        self._send(self._kept, self._pieces, free_s, arrived_s)
        landed_s = np.empty(self.course.edges)
        landed_s[self.course.tree_order] = arrived_s[(self._pieces - 1) % len(arrived_s), :-1]
        return CompletionTimes(float(free_s.max()), landed_s)

    def least_wire_s(self) -> float:
        """Least time at which the last byte can have left: every edge has to send the rest."""
        return self.loops.least_tree_end(
            self.course.tree_order,
            self._arrays.nbytes,
            self._pieces - self._kept,
            self._free_s,
            *self._paces.rows[:2],
        )

    def left(self) -> FloatArray:
        """Share of its sends that each edge has not yet sent for certain; shape (edges,)."""
        step = self._left_by(self._paces.last.from_s)
        kept = np.clip(step - self.course.phases[0].first, 0, self._pieces)
        return 1.0 - kept / self._pieces

    def _left_everywhere(self, now_s: float) -> int:
        """How many pieces have left every edge for certain."""
        last = int(self.course.phases[0].first.max())
        return max(self._kept, min(self._left_by(now_s) - last, self._pieces))

    def _left_by(self, now_s: float) -> int:
        """Return how many steps have left for certain.

        Steps and not pieces, because a piece may arrive before its end has left (latencies of
        NCCL's trees below zero), and what it fed was then sent at times that no longer hold.
        """
        free_s, arrived_s = self._free_s.copy(), self._arrived_s.copy()
        return self._send(self._kept, self._pieces, free_s, arrived_s, now_s)

    def _send(
        self,
        begin: int,
        goal: int,
        free_s: FloatArray,
        arrived_s: FloatArray,
        until_s: float = np.inf,
        *,
        last: int = 1,
    ) -> int:
        """Go on in place from one piece to another; return the first step that leaves later.

        `last`: pieces in flight that are asked for.
        """
        one_by_one = self._go_one_by_one(goal - begin)
        send = self.loops.send_over_trees if one_by_one else self.loops.send_in_runs
        return send(
            self.course.tree_order,
            self.course.tree_feeders,
            self._arrays.first,
            self._arrays.nbytes,
            begin,
            goal,
            free_s,
            arrived_s,
            *self._paces.rows,
            until_s,
            last,
        )

    def _go_one_by_one(self, pieces: int) -> bool:
        """Whether pieces are few, or may wait for one in flight, as these may exceed credits."""
        if pieces < MANY_PIECES:
            return True
        _, rate_Bps, latency_s = self._paces.rows
        with np.errstate(invalid="ignore"):
            in_flight = latency_s.max(axis=0) * rate_Bps.max(axis=0)
        return bool((in_flight > (self.course.credits - 1) * self._arrays.nbytes).any())
