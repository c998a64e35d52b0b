"""When sends over some edges start and arrive, edge by edge, at rates that change in between.

`Clocks` is the recurrence of `recurrence.py` with its state: it takes new rates in mid-transfer,
and what was sent until then stays sent. `OneStep` is the same for a single send per edge. Times
are seconds since the collective began.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from perfmodel.arrays import FloatArray, sending_s
from perfmodel.collectives.schedule import Phase
from perfmodel.collectives.timing.critical_path import pipelines_s
from perfmodel.collectives.timing.recurrence_steps import (
    LinkRates,
    RecurrenceState,
    advance,
    average_rates,
)
from perfmodel.collectives.timing.unrolled import UnrolledPhases, find_parts, select_part

MOST_PACES = 16
"""So many changes of rates are kept for sends that began before them; older ones are averaged,
which is exact for what began before them all."""


@dataclass(frozen=True, slots=True)
class CompletionTimes:
    """How sends over some edges end."""

    wire_s: float
    """When the last byte has left."""
    landed_s: FloatArray
    """When the last send of each edge has arrived; 0 for edges that send nothing. Shape
    (edges,)."""

    @property
    def last_s(self) -> float:
        """When everything has arrived."""
        return float(self.landed_s.max(initial=0.0))


@dataclass
class Clocks:
    """Sends over some edges in progress."""

    course: UnrolledPhases
    begin_s: FloatArray
    """When each edge may send at the earliest. Shape (edges,)."""
    pace: LinkRates
    """Until `change`."""
    _stand: RecurrenceState = field(init=False)
    _paces: list[LinkRates] = field(init=False)

    def __post_init__(self) -> None:
        edges = self.course.edges
        self._stand = RecurrenceState(
            0, np.array(self.begin_s, float), np.zeros((self.course.depth, edges + 1))
        )
        self._paces = [replace(self.pace, from_s=-np.inf)]

    def change(self, now_s: float, rate_Bps: FloatArray, latency_s: FloatArray) -> None:
        """From now on the edges have other rates and latencies; what is sent stays sent."""
        self._run(self._stand, now_s)
        earliest_s = float(self._stand.free.min())
        paces = [p for p in self._paces if p.from_s < now_s]
        while len(paces) > 1 and paces[1].from_s <= earliest_s:
            paces = [replace(paces[1], from_s=-np.inf), *paces[2:]]
        if len(paces) >= MOST_PACES:
            paces = [average_rates(earliest_s, *paces[:3]), *paces[2:]]
        self._paces = [*paces, LinkRates(now_s, rate_Bps, latency_s)]

    def ends(self) -> CompletionTimes:
        """How the sends end if nothing changes any more."""
        if self._stand.step == 0:
            pieces = pieces_over_trees(self.course, self.begin_s, self._paces[-1])
            if pieces is not None:
                return pieces
        stand = self._stand.copy()
        self._run(stand, np.inf)
        return ends_of(self.course, stand)

    def least_wire_s(self) -> float:
        """Least time at which the last byte can have left, without stepping through the sends.

        Every edge still has to send what it has not sent, at its best rate so far at most.
        """
        unsent = self.course.sends - self.course.sent(self._stand.step)
        best_Bps = np.array([pace.rate_Bps for pace in self._paces]).max(axis=0)
        nbytes = self.course.phases[0].nbytes
        for phase in self.course.phases[1:]:
            if phase.nbytes is not nbytes:
                nbytes = np.minimum(nbytes, phase.nbytes)
        each_s = nbytes / best_Bps if best_Bps.all() else sending_s(nbytes, best_Bps)
        least_s = self._stand.free + unsent * each_s
        return float(least_s[self.course.sends > 0].max(initial=0.0))

    def left(self) -> FloatArray:
        """Share of its sends that each edge has not yet sent for certain; shape (edges,)."""
        sent = self.course.sent(self._stand.step)
        return 1.0 - sent / np.maximum(self.course.sends, 1)

    def _run(self, stand: RecurrenceState, until_s: float) -> None:
        """Advance in place; rings alike, and what repeats around a ring, are computed once."""
        parts = find_parts(
            self.course,
            [
                *(row for pace in self._paces for row in (pace.rate_Bps, pace.latency_s)),
                *((stand.free, *stand.delivered[:, :-1]) if _is_uneven(stand) else ()),
            ],
        )
        if parts is None:
            advance(self.course, stand, self._paces, until_s)
            return
        free, delivered = np.empty_like(stand.free), np.zeros_like(stand.delivered)
        halts = []
        for selection, _ in parts:
            course = select_part(self.course, selection)
            flat = selection.ravel()
            columns = np.append(flat, len(stand.free))
            small = RecurrenceState(stand.step, stand.free[flat], stand.delivered[:, columns])
            halts.append((course, small, [pace.chosen(flat) for pace in self._paces]))
        if len(halts) == 1:
            advance(*halts[0], until_s)
            least = halts[0][1].step
        elif until_s < np.inf:  # all parts must stop after the same step
            trials = [(course, small.copy(), paces) for course, small, paces in halts]
            for course, small, paces in trials:
                advance(course, small, paces, until_s)
            least = min(small.step for _, small, _ in trials)
        else:
            least = self.course.steps
        for (course, small, paces), (_, back) in zip(halts, parts, strict=True):
            if small.step < least:
                advance(course, small, paces, np.inf, least)
            mine = back >= 0
            free[mine] = small.free[back[mine]]
            delivered[:, :-1][:, mine] = small.delivered[:, back[mine]]
        stand.free, stand.delivered, stand.step = free, delivered, least


def pieces_over_trees(
    course: UnrolledPhases, begin_s: FloatArray, pace: LinkRates
) -> CompletionTimes | None:
    """How trees that begin at one rate end, without stepping; None if they have to be stepped."""
    if pace.from_s > begin_s.min(initial=np.inf):
        return None
    if not course.pipelined or len(course.phases) > 1:
        return None
    if (begin_s != begin_s[0]).any() or (pace.rate_Bps <= 0).any():
        return None
    phase, credits = course.phases[0], course.credits
    feeders = course.feeders
    times = pipelines_s(phase, pace.rate_Bps, pace.latency_s, credits, feeders=feeders)
    if times is None:
        return None
    landed_s = times[1] + begin_s[0]
    return CompletionTimes(float((landed_s - pace.latency_s).max()), landed_s)


def _is_uneven(stand: RecurrenceState) -> bool:
    return stand.step > 0 or bool((stand.free != stand.free[0]).any())


def ends_of(course: UnrolledPhases, stand: RecurrenceState) -> CompletionTimes:
    """How the sends ended."""
    edges = np.arange(course.edges)
    landed = stand.delivered[(course.sends - 1) % course.depth, edges]
    works = course.sends > 0
    return CompletionTimes(float(stand.free[works].max(initial=0.0)), np.where(works, landed, 0.0))


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
    _left_bytes: FloatArray = field(init=False)
    _since_s: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self._left_bytes = self.phase.nbytes * self.phase.active.astype(float)
        self._since_s = np.array(self.begin_s, float)

    def change(self, now_s: float, rate_Bps: FloatArray, latency_s: FloatArray) -> None:
        """From now on the edges have other rates and latencies; what is sent stays sent."""
        leave_s = self._leave_s()
        under_way = leave_s > now_s
        sent = self.rate_Bps * np.maximum(0.0, now_s - self._since_s)
        self._left_bytes = np.where(under_way, np.maximum(0.0, self._left_bytes - sent), 0.0)
        # What has left keeps the time at which it did, and the latency that it met.
        self._since_s = np.where(under_way, np.maximum(self._since_s, now_s), leave_s)
        self.rate_Bps = rate_Bps
        self.latency_s = np.where(under_way, latency_s, self.latency_s)

    def least_wire_s(self) -> float:
        """When the last byte has left (see `Clocks.least_wire_s`)."""
        return self.ends().wire_s

    def ends(self) -> CompletionTimes:
        """How the sends end if nothing changes any more."""
        leave_s, works = self._leave_s(), self.phase.active > 0
        landed_s = np.where(works, leave_s + self.latency_s, 0.0)
        return CompletionTimes(float(leave_s[works].max(initial=0.0)), landed_s)

    def left(self) -> FloatArray:
        """Share of its bytes that each edge has not yet sent; shape (edges,)."""
        whole = self.phase.nbytes * self.phase.active.astype(float)
        share: FloatArray = np.divide(
            self._left_bytes, whole, out=np.zeros(len(whole)), where=whole > 0
        )
        return share

    def _leave_s(self) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            busy_s = self._left_bytes / self.rate_Bps
        return self._since_s + np.where(self._left_bytes > 0, busy_s, 0.0)


def is_one_step(phases: tuple[Phase, ...]) -> bool:
    """Whether no edge sends more than once, and none waits for another."""
    return len(phases) == 1 and phases[0].repeat == 1
