"""The steps of a recurrence over edges: from its state after some repeats to that after more.

Edges are those of an `UnrolledPhases`; they send at rates that may have changed in between.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.collectives.schedule import Phase
from perfmodel.collectives.timing.unrolled import UnrolledPhases
from perfmodel.compiled_loops import compilation


@dataclass(frozen=True, slots=True)
class LinkRates:
    """What edges can do from a time on.

    Arrays have shape (edges,).
    """

    from_s: float
    rate_Bps: FloatArray
    """Payload bytes per second while an edge sends."""
    latency_s: FloatArray
    flows: bool = field(init=False)
    """Whether all edges have a rate above zero."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "flows", bool(self.rate_Bps.all()))

    def chosen(self, selection: IntArray | slice) -> LinkRates:
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
    last, first_s = paces[-1], float(start_s.min(initial=np.inf))
    if len(paces) == 1 or first_s >= last.from_s:
        end = start_s + nbytes / last.rate_Bps[on]
        return end, end + last.latency_s[on]
    # What was before all of these sends is skipped: there may be many changes of rates.
    begin = max(0, bisect_right(paces, first_s, key=lambda pace: pace.from_s) - 1)
    since, remaining = start_s, nbytes
    end = np.full(len(start_s), np.inf)
    arrived, todo = end.copy(), np.ones(len(start_s), dtype=np.bool_)
    for pace, after in zip(paces[begin:], [*paces[begin + 1 :], None], strict=True):
        rate, until_s = pace.rate_Bps[on], np.inf if after is None else after.from_s
        finish = since + np.where(remaining > 0, remaining / rate, 0.0)
        now = todo & (finish <= until_s) & (since <= until_s)
        np.copyto(end, finish, where=now)
        np.copyto(arrived, finish + pace.latency_s[on], where=now)
        todo &= ~now
        if not todo.any():
            break
        remaining = np.maximum(0.0, remaining - np.maximum(0.0, until_s - since) * rate)
        since = np.maximum(since, until_s)
    return end, arrived


SAME_GAIN = 1e-13
"""Steps that add the same to all times, up to this part, are a cycle."""


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
                stand.free = drained_free_s(course, stand, phase)
            stride = course.stride(phase)
            leaps = 0 < stride * 2 <= last - stand.step
            began = stand.copy() if leaps else stand
            goal = stand.step + stride if leaps else last
            _advance_all(course, stand, phase, goal, paces, until_s)
            if stand.step < goal:
                return
            if leaps and float(began.free.min()) >= paces[-1].from_s:
                _leap(course, stand, began, last, until_s)


def drained_free_s(course: UnrolledPhases, stand: RecurrenceState, phase: Phase) -> FloatArray:
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
    begins = course.ring_begins
    assert begins is not None  # elsewhere there is no stride
    gains = np.vstack([rows, stand.free - began.free])
    gain = np.maximum.reduceat(gains.max(axis=0), begins)
    if not (gain - np.minimum.reduceat(gains.min(axis=0), begins) <= SAME_GAIN * gain).all():
        return
    times = (last - stand.step) // stride
    if until_s < np.inf:
        room_s = until_s - np.maximum.reduceat(stand.free, begins)
        times = min(times, int(np.floor(np.min(room_s / np.maximum(gain, 1e-300)))))
    if times > 0:
        more = np.repeat(times * gain, course.ring_edges)
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
    loops = compilation.loaded()
    if loops is not None and all(pace.flows for pace in paces):
        _advance_compiled(loops, course, stand, goal, paces, until_s)
        return
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


def _advance_compiled(
    loops: compilation.Loops,
    course: UnrolledPhases,
    stand: RecurrenceState,
    goal: int,
    paces: list[LinkRates],
    until_s: float,
) -> None:
    """As `_advance_all`."""
    stand.delivered, stand.free = np.ascontiguousarray(stand.delivered), stand.free.copy()
    rates = (
        np.array([pace.from_s for pace in paces]),
        np.stack([pace.rate_Bps for pace in paces]),
        np.stack([pace.latency_s for pace in paces]),
    )
    stand.step = step_compiled(loops, course, stand, goal, rates, until_s)


def step_compiled(
    loops: compilation.Loops,
    course: UnrolledPhases,
    stand: RecurrenceState,
    goal: int,
    rates: tuple[FloatArray, FloatArray, FloatArray],
    until_s: float,
) -> int:
    """Go on in contiguous arrays of a state to a step of the same phase; return the step reached.

    `rates`: when each pace begins, and the rates and latencies of edges at each.
    """
    phase, first = course.phase_at(stand.step)
    arrays = course.contiguous(phase)
    state = stand.delivered, stand.free, arrays.feeders
    if course.together:
        steps = stand.step, goal, phase.lag, course.credits
        return loops.step_rings(*state, *steps, arrays.nbytes, *rates, until_s)
    work = arrays.begins, arrays.first, arrays.active, course.done(stand.step)
    lag = 0 if course.pipelined else phase.lag
    return loops.step_trees(
        *state, *work, stand.step, goal, first, lag, course.credits, arrays.nbytes, *rates, until_s
    )


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
