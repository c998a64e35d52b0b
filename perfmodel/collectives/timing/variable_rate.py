"""When sends over some edges start and arrive, edge by edge, at rates that change in between.

`Clocks` is the recurrence of `recurrence.py` with its state: it takes new rates in mid-transfer,
and what was sent until then stays sent. `OneStep` is the same for a single send per edge. Times
are seconds since the collective began.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.collectives.schedule import Phase
from perfmodel.collectives.timing.unrolled import UnrolledPhases, find_parts, select_part


@dataclass(frozen=True, slots=True)
class LinkRates:
    """What edges can do from a time on.

    Parameters
    ----------
    from_s : float
    rate_Bps : ndarray of float, shape (edges,)
        Payload bytes per second while an edge sends.
    latency_s : ndarray of float, shape (edges,)
    """

    from_s: float
    rate_Bps: FloatArray
    latency_s: FloatArray

    def chosen(self, selection: IntArray) -> LinkRates:
        """The same for some of the edges."""
        return LinkRates(self.from_s, self.rate_Bps[selection], self.latency_s[selection])


def average_rates(
    begin_s: float, first: LinkRates, second: LinkRates, after: LinkRates
) -> LinkRates:
    """Average of two consecutive rates that sends as much from a time on."""
    parts = np.array([second.from_s - begin_s, after.from_s - second.from_s])
    parts /= parts.sum()
    rate_Bps = parts[0] * first.rate_Bps + parts[1] * second.rate_Bps
    return LinkRates(-np.inf, rate_Bps, second.latency_s)


def sent_s(
    start_s: FloatArray, nbytes: FloatArray, paces: list[LinkRates], on: IntArray | slice
) -> tuple[FloatArray, FloatArray]:
    """When sends of some edges that start at some times have left, and when they arrive."""
    last = paces[-1]
    if len(paces) == 1 or float(start_s.min(initial=np.inf)) >= last.from_s:
        end = start_s + nbytes / last.rate_Bps[on]
        return end, end + last.latency_s[on]
    since, remaining = start_s, nbytes
    end = np.full(len(start_s), np.inf)
    arrived, todo = end.copy(), np.ones(len(start_s), dtype=np.bool_)
    for pace, after in zip(paces, [*paces[1:], None], strict=True):
        rate, until_s = pace.rate_Bps[on], np.inf if after is None else after.from_s
        finish = since + np.where(remaining > 0, remaining / rate, 0.0)
        now = todo & (finish <= until_s) & (since <= until_s)
        end[now], arrived[now] = finish[now], (finish + pace.latency_s[on])[now]
        todo &= ~now
        if not todo.any():
            break
        remaining = np.maximum(0.0, remaining - np.maximum(0.0, until_s - since) * rate)
        since = np.maximum(since, until_s)
    return end, arrived


MOST_PACES = 16
"""So many changes of rates are kept for sends that began before them; older ones are averaged,
which is exact for what began before them all."""
SAME_GAIN = 1e-13
"""Steps that add the same to all times, up to this part, are a cycle."""


@dataclass(slots=True)
class RecurrenceState:
    """State of a recurrence.

    Parameters
    ----------
    step : int
        Repeats done, through all phases.
    free : ndarray of float, shape (edges,)
        When each edge had put its last send on the wire.
    delivered : ndarray of float, shape (depth, edges + 1)
        Row n % depth holds when the n-th send of each edge arrived; the last column stays 0 and
        is for edges that nothing feeds.
    """

    step: int
    free: FloatArray
    delivered: FloatArray

    def copy(self) -> RecurrenceState:
        """Return a copy that can go on by itself."""
        return RecurrenceState(self.step, self.free.copy(), self.delivered.copy())


@dataclass(frozen=True, slots=True)
class CompletionTimes:
    """How sends over some edges end.

    Parameters
    ----------
    wire_s : float
        When the last byte has left.
    landed_s : ndarray of float, shape (edges,)
        When the last send of each edge has arrived; 0 for edges that send nothing.
    """

    wire_s: float
    landed_s: FloatArray

    @property
    def last_s(self) -> float:
        """When everything has arrived."""
        return float(self.landed_s.max(initial=0.0))


@dataclass
class Clocks:
    """Sends over some edges in progress.

    Parameters
    ----------
    course : UnrolledPhases
    begin_s : ndarray of float, shape (edges,)
        When each edge may send at the earliest.
    pace : LinkRates
        Until `change`.
    """

    course: UnrolledPhases
    begin_s: FloatArray
    pace: LinkRates
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
        stand = self._stand.copy()
        self._run(stand, np.inf)
        return ends_of(self.course, stand)

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


def _is_uneven(stand: RecurrenceState) -> bool:
    return stand.step > 0 or bool((stand.free != stand.free[0]).any())


def ends_of(course: UnrolledPhases, stand: RecurrenceState) -> CompletionTimes:
    """How the sends ended."""
    edges = np.arange(course.edges)
    landed = stand.delivered[(course.sends - 1) % course.depth, edges]
    works = course.sends > 0
    return CompletionTimes(float(stand.free[works].max(initial=0.0)), np.where(works, landed, 0.0))


def advance(
    course: UnrolledPhases,
    stand: RecurrenceState,
    paces: list[LinkRates],
    until_s: float,
    last_step: int | None = None,
) -> None:
    """Go on in place to a step, or as long as everything of a step has left by a time."""
    end_step = course.steps if last_step is None else last_step
    with np.errstate(divide="ignore", invalid="ignore"):
        while stand.step < end_step:
            phase, first = course.phase_at(stand.step)
            last = min(end_step, first + phase.repeat)
            if stand.step == first and phase.drained:
                stand.free = _drained_free_s(course, stand, phase)
            stride = course.stride(phase)
            leaps = 0 < stride * 2 <= last - stand.step
            began = stand.copy() if leaps else stand
            goal = stand.step + stride if leaps else last
            _advance_all(course, stand, phase, goal, paces, until_s)
            if stand.step < goal:
                return
            if leaps and float(began.free.min()) >= paces[-1].from_s:
                _leap(course, stand, began, last, until_s)


def _drained_free_s(course: UnrolledPhases, stand: RecurrenceState, phase: Phase) -> FloatArray:
    """When each edge is free for a phase that begins with nothing in flight."""
    sent = course.sent(stand.step)
    last_s = stand.delivered[(sent - 1) % course.depth, np.arange(course.edges)]
    return np.maximum(stand.free, course.landed(phase, last_s))


def _leap(
    course: UnrolledPhases,
    stand: RecurrenceState,
    began: RecurrenceState,
    last: int,
    until_s: float,
) -> None:
    """If all that some steps did was to add the same to all times, do all that are alike.

    A max-plus recurrence settles into a cycle: after some steps each further `stride` steps add
    the same amount to everything on a ring.
    """
    depth, stride = course.depth, stand.step - began.step
    now = (np.arange(depth) + stand.step) % depth
    rows = stand.delivered[now, :-1] - began.delivered[(now - stride) % depth, :-1]
    gains = np.vstack([rows, stand.free - began.free]).reshape(depth + 1, course.rings, -1)
    gain = gains.max(axis=(0, 2))
    if not (gain - gains.min(axis=(0, 2)) <= SAME_GAIN * gain).all():
        return
    times = (last - stand.step) // stride
    if until_s < np.inf:
        room_s = until_s - stand.free.reshape(course.rings, -1).max(axis=1)
        times = min(times, int(np.floor(np.min(room_s / np.maximum(gain, 1e-300)))))
    if times > 0:
        more = np.repeat(times * gain, course.edges // course.rings)
        stand.free = stand.free + more
        stand.delivered = np.roll(stand.delivered, times * stride, axis=0)
        stand.delivered[:, :-1] += more
        stand.step += times * stride


def _advance_all(
    course: UnrolledPhases,
    stand: RecurrenceState,
    phase: Phase,
    goal: int,
    paces: list[LinkRates],
    until_s: float,
) -> None:
    """Go on in place to a step of the same phase, as long as all of a step leaves by a time."""
    if not course.together:
        first = course.phase_at(stand.step)[1]
        while stand.step < goal and _advance_some(course, stand, phase, first, paces, until_s):
            pass
        return
    rows, free, depth = stand.delivered, stand.free, course.depth
    feeder, *more_feeders = course.feeders.T
    last, everyone = paces[-1], slice(None)
    steady = len(paces) == 1 or float(free.min()) >= last.from_s
    hold_s = phase.nbytes / last.rate_Bps
    for number in range(stand.step, goal):
        start = rows[(number - phase.lag) % depth].take(feeder)
        for feeders in more_feeders:
            np.maximum(start, rows[(number - phase.lag) % depth].take(feeders), out=start)
        np.maximum(start, free, out=start)
        np.maximum(start, rows[(number - course.credits) % depth, :-1], out=start)
        if steady:
            end = start + hold_s
            arrived = end + last.latency_s
        else:
            end, arrived = sent_s(start, phase.nbytes, paces, everyone)
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
    paces: list[LinkRates],
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


@dataclass
class OneStep:
    """Edges each of which sends once. Times are seconds since the collective began.

    Parameters
    ----------
    phase : Phase
        Of one repeat.
    begin_s : ndarray of float, shape (edges,)
        When each edge may send at the earliest.
    rate_Bps, latency_s : ndarray of float, shape (edges,)
        Until `change`.
    """

    phase: Phase
    begin_s: FloatArray
    rate_Bps: FloatArray
    latency_s: FloatArray
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
