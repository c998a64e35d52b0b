"""How long a schedule takes when each edge has its own speed: a max-plus recurrence over edges.

A send may start when its data has arrived, when its edge has finished putting the send before
it on the wire, and when the edge has a credit: with c credits, when the send c before it has
been delivered. It occupies the edge for ``nbytes / rate`` and is delivered ``latency`` later.
With one credit a step costs alpha + nbytes beta (Hockney) and a ring with one slow edge takes
2(N-1) of that edge's steps; with more, latency is pipelined.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.collectives.schedule import Floats, Ints, Phase


@dataclass(slots=True)
class _State:
    """Where the recurrence stands; seconds since the start, each of shape (rings, edges)."""

    has_data: Floats
    free: Floats
    delivered: deque[Floats]

    def arrays(self) -> list[Floats]:
        return [self.has_data, self.free, *self.delivered]


def schedule_s(
    phases: Sequence[Phase], rate_Bps: Floats, latency_s: Floats, *, credits: int
) -> float:
    """Time of phases that share their edges; seconds.

    Parameters
    ----------
    phases : sequence of Phase
        In order, all with the same edges.
    rate_Bps : ndarray of float, shape (edges,)
        Rate of each edge while it sends.
    latency_s : ndarray of float, shape (edges,)
    credits : int
        Sends that an edge may have under way.

    Returns
    -------
    float
        When the last send is delivered.
    """
    busy = [phase.nbytes / rate_Bps for phase in phases]
    if not phases:
        return 0.0
    rings = _rings(phases)
    if (rings or credits == 1) and _uniform(busy, latency_s):
        # Every send waits for a whole step of the one before it: around a ring for its data, at
        # the head of a chain for its only credit.
        steps = zip(phases, busy, strict=True)
        return sum(float(phase.repeat * (hold[0] + latency_s[0])) for phase, hold in steps)
    if credits == 1 and all((p.active == p.repeat).all() for p in phases):
        # Staying on the slowest edge costs its whole step each time, and no path through the
        # recurrence can cost more than the largest step at every repeat.
        total = sum(p.repeat * (b + latency_s) for p, b in zip(phases, busy, strict=True))
        return float(np.max(total))
    if rings is None:
        return _recurrence(phases, busy, latency_s, credits)
    repeats = [phase.repeat for phase in phases]
    return max(_rings_s(repeats, alike, credits) for alike in _distinct(rings, busy, latency_s))


def _uniform(busy: Sequence[Floats], latency_s: Floats) -> bool:
    return all(bool((values == values[0]).all()) for values in (latency_s, *busy))


def _rings(phases: Sequence[Phase]) -> int | None:
    """Number of closed rings that the phases' edges form, ring after ring; None if they do not."""
    first = phases[0]
    edges, rings = len(first.src), int(first.channel[-1]) + 1
    if edges % rings or any((p.active != p.repeat).any() for p in phases):
        return None
    src, dst = first.src.reshape(rings, -1), first.dst.reshape(rings, -1)
    closed = np.array_equal(np.roll(src, -1, axis=1), dst)
    return rings if closed else None


def _distinct(rings: int, busy: Sequence[Floats], latency_s: Floats) -> list[Floats]:
    """What repeats around each ring, unlike ones only: arrays (busy per phase ..., latency).

    Like hosts make a ring periodic: its edges inside a host and out of it come back host after
    host, and so do their times; and rings on like rails are alike. Each array has shape
    (phases + 1, rings, period).
    """
    table = np.stack([*busy, latency_s]).reshape(len(busy) + 1, rings, -1)
    rows = [table[:, ring] for ring in range(rings)]
    unlike = [row for i, row in enumerate(rows) if not any(_close(row, r) for r in rows[:i])]
    by_period: dict[int, list[Floats]] = {}
    for row in unlike:
        period = _period(row)
        by_period.setdefault(period, []).append(row[:, :period])
    return [np.stack(same, axis=1) for same in by_period.values()]


def _close(one: Floats, other: Floats) -> bool:
    return bool((np.abs(one - other) <= 1e-12 * np.abs(other)).all())


def _period(rows: Floats) -> int:
    length: int = rows.shape[1]
    for period in range(1, length // 2 + 1):
        if length % period == 0 and _close(rows[:, period:], rows[:, :-period]):
            return period
    return length


def _rings_s(repeats: Sequence[int], stretch: Floats, credits: int) -> float:
    """Time of the slowest of some rings, given the edges that repeat around each; seconds."""
    *busy, latency_s = stretch
    zeros = np.zeros(latency_s.shape)
    state = _State(zeros, zeros, deque([zeros] * credits, maxlen=credits))
    for repeat, hold in zip(repeats, busy, strict=True):
        _run_all(state, repeat, hold, latency_s)
    return float(state.delivered[-1].max())


def _feeders(phase: Phase) -> Ints:
    """Edges that bring what each edge sends on, shape (edges, most feeders); padded with `edges`.

    They end where it starts, on its channel. In a pipeline an edge that starts working later
    sends on what came over those that started before it; where all start together, each repeat
    sends what the one before brought.
    """
    edges, ranks = len(phase.src), 1 + int(max(phase.src.max(), phase.dst.max()))
    ends, starts = phase.channel * ranks + phase.dst, phase.channel * ranks + phase.src
    by_end = np.argsort(ends, kind="stable")
    low = np.searchsorted(ends[by_end], starts, side="left")
    high = np.searchsorted(ends[by_end], starts, side="right")
    place = low[:, None] + np.arange(max(1, int((high - low).max())))
    found = np.where(place < high[:, None], by_end[np.minimum(place, edges - 1)], edges)
    if phase.first.max() > 0:
        begun = np.append(phase.first, edges + 1)[found] < phase.first[:, None]
        found = np.where(begun, found, edges)
    return found.astype(np.int64)


def _recurrence(
    phases: Sequence[Phase], busy: Sequence[Floats], latency_s: Floats, credits: int
) -> float:
    """Time of phases over any edges, some of which may work only for a while; seconds.

    `delivered[n % depth]` holds when the n-th send of each edge arrived; the last column stays 0
    and stands for edges without feeders. Each step looks only at the edges that work in it.
    """
    feeders, first = _feeders(phases[0]), phases[0].first
    edges = len(latency_s)
    ahead = int(np.max(first[:, None] - np.append(first, first.max())[feeders]))
    depth = credits + max(1, ahead) + 1
    delivered, free = np.zeros((depth, edges + 1)), np.zeros(edges)
    done, end = np.zeros(edges, dtype=np.int64), 0.0
    pipelined = bool(first.max() > 0)
    for phase, hold in zip(phases, busy, strict=True):
        for step, on in enumerate(_working(phase)):
            number = done[on] + step - phase.first[on]
            feed = (number if pipelined else number - 1) % depth
            ready = delivered[feed[:, None], feeders[on]].max(axis=1)
            credit = delivered[(number - credits) % depth, on]
            free[on] = np.maximum(np.maximum(ready, free[on]), credit) + hold[on]
            arrived = free[on] + latency_s[on]
            delivered[number % depth, on] = arrived
            end = max(end, float(arrived.max())) if len(on) else end
        done += phase.active
    return end


def _working(phase: Phase) -> Iterator[Ints]:
    """Edges that work in each repeat of a phase."""
    begins = np.argsort(phase.first, kind="stable")
    first = phase.first[begins]
    if (phase.active == phase.active[0]).all():
        for step in range(phase.repeat):
            low, high = np.searchsorted(first, [step - phase.active[0] + 1, step + 1])
            yield begins[low:high]
        return
    for step in range(phase.repeat):
        yield np.flatnonzero((phase.first <= step) & (step < phase.first + phase.active))


def _step(state: _State, hold: Floats, latency_s: Floats) -> None:
    start = np.maximum(np.maximum(state.has_data, state.free), state.delivered[0])
    state.free = start + hold
    arrived = state.free + latency_s
    state.delivered.append(arrived)
    state.has_data = np.concatenate([arrived[:, -1:], arrived[:, :-1]], axis=1)


def _run_all(state: _State, repeat: int, hold: Floats, latency_s: Floats) -> None:
    """Repeat a step in which every edge works.

    A max-plus recurrence settles into a cycle: after some steps each further `stride` steps add
    the same amount to everything on a ring. Once that is seen, the rest is one multiplication.
    """
    stride, done = hold.shape[1], 0
    while done < repeat:
        if stride * 2 > repeat - done:
            _step(state, hold, latency_s)
            done += 1
            continue
        old = state.arrays()
        for _ in range(stride):
            _step(state, hold, latency_s)
        done += stride
        gains = np.stack(state.arrays()) - np.stack(old)
        gain = gains.max(axis=(0, 2), keepdims=True)[0]
        if (gain - gains.min(axis=(0, 2), keepdims=True)[0] <= 1e-13 * gain).all():
            leap = (repeat - done) // stride
            state.has_data = state.has_data + leap * gain
            state.free = state.free + leap * gain
            state.delivered = deque(
                [row + leap * gain for row in state.delivered], maxlen=state.delivered.maxlen
            )
            done += leap * stride
