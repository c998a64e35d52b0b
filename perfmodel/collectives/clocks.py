"""When sends over some edges start and arrive, edge by edge, at rates that change now and then.

The recurrence of `timing.py`, kept where it stands: `Clocks` takes new rates in mid-transfer, and
what was sent until then stays sent. Times are seconds since the collective began.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from perfmodel.collectives.course import Course, part_of, parts_of
from perfmodel.collectives.pace import Pace, merged, sent_s
from perfmodel.collectives.schedule import Floats, Phase

MOST_PACES = 16
"""So many changes of rates are kept for sends that began before them; older ones are averaged,
which is exact for what began before them all."""
SAME_GAIN = 1e-13
"""Steps that add the same to all times, up to this part, are a cycle."""


@dataclass(slots=True)
class Stand:
    """Where a recurrence stands.

    Parameters
    ----------
    step : int
        Repeats done, through all phases.
    free : ndarray of float, shape (edges,)
        When each edge had put its last send on the wire.
    delivered : ndarray of float, shape (depth, edges + 1)
        Row n % depth holds when the n-th send of each edge arrived; the last column stays 0 and
        stands for edges that nobody feeds.
    """

    step: int
    free: Floats
    delivered: Floats

    def copy(self) -> Stand:
        """Return a copy that can go on by itself."""
        return Stand(self.step, self.free.copy(), self.delivered.copy())


@dataclass(frozen=True, slots=True)
class Ends:
    """How sends over some edges end.

    Parameters
    ----------
    wire_s : float
        When the last byte has left.
    landed_s : ndarray of float, shape (edges,)
        When the last send of each edge has arrived; 0 for edges that send nothing.
    """

    wire_s: float
    landed_s: Floats

    @property
    def last_s(self) -> float:
        """When everything has arrived."""
        return float(self.landed_s.max(initial=0.0))


@dataclass
class Clocks:
    """Sends over some edges on their way.

    Parameters
    ----------
    course : Course
    begin_s : ndarray of float, shape (edges,)
        When each edge may send at the earliest.
    pace : Pace
        Until `change`.
    """

    course: Course
    begin_s: Floats
    pace: Pace
    _stand: Stand = field(init=False)
    _paces: list[Pace] = field(init=False)

    def __post_init__(self) -> None:
        edges = self.course.edges
        self._stand = Stand(
            0, np.array(self.begin_s, float), np.zeros((self.course.depth, edges + 1))
        )
        self._paces = [replace(self.pace, from_s=-np.inf)]

    def change(self, now_s: float, rate_Bps: Floats, latency_s: Floats) -> None:
        """From now on the edges have other rates and latencies; what is sent stays sent."""
        self._run(self._stand, now_s)
        earliest_s = float(self._stand.free.min())
        paces = [p for p in self._paces if p.from_s < now_s]
        while len(paces) > 1 and paces[1].from_s <= earliest_s:
            paces = [replace(paces[1], from_s=-np.inf), *paces[2:]]
        if len(paces) >= MOST_PACES:
            paces = [merged(earliest_s, *paces[:3]), *paces[2:]]
        self._paces = [*paces, Pace(now_s, rate_Bps, latency_s)]

    def ends(self) -> Ends:
        """Tell how the sends end if nothing changes any more."""
        stand = self._stand.copy()
        self._run(stand, np.inf)
        return ends_of(self.course, stand)

    def left(self) -> Floats:
        """Share of its sends that each edge has not yet sent for certain; shape (edges,)."""
        sent = self.course.sent(self._stand.step)
        return 1.0 - sent / np.maximum(self.course.sends, 1)

    def _run(self, stand: Stand, until_s: float) -> None:
        """Go on in place; alike rings, and what repeats around a ring, are computed once."""
        parts = parts_of(
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
        for which, _ in parts:
            course = part_of(self.course, which)
            flat = which.ravel()
            columns = np.append(flat, len(stand.free))
            small = Stand(stand.step, stand.free[flat], stand.delivered[:, columns])
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


def _is_uneven(stand: Stand) -> bool:
    return stand.step > 0 or bool((stand.free != stand.free[0]).any())


def ends_of(course: Course, stand: Stand) -> Ends:
    """How the sends ended."""
    edges = np.arange(course.edges)
    landed = stand.delivered[(course.sends - 1) % course.depth, edges]
    works = course.sends > 0
    return Ends(float(stand.free[works].max(initial=0.0)), np.where(works, landed, 0.0))


def advance(
    course: Course, stand: Stand, paces: list[Pace], until_s: float, last_step: int | None = None
) -> None:
    """Go on in place to a step, or as long as everything of a step has left by a time."""
    end_step = course.steps if last_step is None else last_step
    with np.errstate(divide="ignore", invalid="ignore"):
        while stand.step < end_step:
            phase, first = course.phase_at(stand.step)
            last = min(end_step, first + phase.repeat)
            if stand.step == first and phase.drained:
                stand.free = _drained(course, stand, phase)
            stride = course.stride(phase)
            leaps = 0 < stride * 2 <= last - stand.step
            began = stand.copy() if leaps else stand
            goal = stand.step + stride if leaps else last
            _steps(course, stand, phase, goal, paces, until_s)
            if stand.step < goal:
                return
            if leaps and float(began.free.min()) >= paces[-1].from_s:
                _leap(course, stand, began, last, until_s)


def _drained(course: Course, stand: Stand, phase: Phase) -> Floats:
    """When each edge is free for a phase that begins with nothing under way."""
    sent = course.sent(stand.step)
    last_s = stand.delivered[(sent - 1) % course.depth, np.arange(course.edges)]
    return np.maximum(stand.free, course.landed(phase, last_s))


def _leap(course: Course, stand: Stand, began: Stand, last: int, until_s: float) -> None:
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


def _steps(
    course: Course, stand: Stand, phase: Phase, goal: int, paces: list[Pace], until_s: float
) -> None:
    """Go on in place to a step of the same phase, as long as all of a step leaves by a time."""
    if not course.together:
        first = course.phase_at(stand.step)[1]
        while stand.step < goal and _some(course, stand, phase, first, paces, until_s):
            pass
        return
    rows, free, depth = stand.delivered, stand.free, course.depth
    one, *others = course.feeders.T
    last, everyone = paces[-1], slice(None)
    steady = len(paces) == 1 or float(free.min()) >= last.from_s
    hold_s = phase.nbytes / last.rate_Bps
    for number in range(stand.step, goal):
        start = rows[(number - phase.lag) % depth].take(one)
        for other in others:
            np.maximum(start, rows[(number - phase.lag) % depth].take(other), out=start)
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


def _some(
    course: Course, stand: Stand, phase: Phase, first: int, paces: list[Pace], until_s: float
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
