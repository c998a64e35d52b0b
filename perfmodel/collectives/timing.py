"""How long a schedule takes when each edge has its own speed: a max-plus recurrence over edges.

A send may start when its data has arrived, when its edge has finished putting the send before
it on the wire, and when the edge has a credit: with c credits, when the send c before it has
been delivered. It occupies the edge for ``nbytes / rate`` and is delivered ``latency`` later.
With one credit a step costs alpha + nbytes beta (Hockney) and a ring with one slow edge takes
2(N-1) of that edge's steps; with more, latency is pipelined.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
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


@dataclass(frozen=True, slots=True)
class _Feeds:
    """Which edge brings what another sends on: `by[i]` feeds `to[i]`, `lag[i]` repeats earlier."""

    to: Ints
    by: Ints
    lag: Ints


def _feeds(phase: Phase) -> _Feeds:
    """Find the feeders of each edge: those that end where it starts, on its channel.

    In a pipeline an edge that starts working later sends on what came over those that started
    before it, piece by piece. Where all start together, each repeat sends what the one before
    brought.
    """
    into: dict[tuple[int, int], list[int]] = {}
    for edge, end in enumerate(zip(phase.channel.tolist(), phase.dst.tolist(), strict=True)):
        into.setdefault(end, []).append(edge)
    first = phase.first.tolist()
    staggered = max(first) > 0
    rows = [
        (edge, feeder, first[edge] - first[feeder] if staggered else 1)
        for edge, start in enumerate(zip(phase.channel.tolist(), phase.src.tolist(), strict=True))
        for feeder in into.get(start, ())
        if not staggered or first[feeder] < first[edge]
    ]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return _Feeds(table[:, 0], table[:, 1], table[:, 2])


def _recurrence(
    phases: Sequence[Phase], busy: Sequence[Floats], latency_s: Floats, credits: int
) -> float:
    """Time of phases over any edges, some of which may work only for a while; seconds."""
    feeds = _feeds(phases[0])
    lags = np.unique(feeds.lag).tolist()
    chosen = {lag: np.flatnonzero(feeds.lag == lag) for lag in lags}
    free = np.zeros(len(latency_s))
    delivered = deque([free] * max(credits, *lags, 1), maxlen=max(credits, *lags, 1))
    for phase, hold in zip(phases, busy, strict=True):
        for step in range(phase.repeat):
            on = np.flatnonzero((phase.first <= step) & (step < phase.first + phase.active))
            ready = np.zeros(len(latency_s))
            for lag, rows in chosen.items():
                np.maximum.at(ready, feeds.to[rows], delivered[-lag][feeds.by[rows]])
            start = np.maximum(np.maximum(ready[on], free[on]), delivered[-credits][on])
            free, arrived = free.copy(), delivered[-1].copy()
            free[on] = start + hold[on]
            arrived[on] = free[on] + latency_s[on]
            delivered.append(arrived)
    return float(delivered[-1].max())


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
