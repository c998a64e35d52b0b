"""Time of rings, chains and trees of unlike edges in closed form, without stepping through sends.

A send may start when the edges that feed it have delivered, when the edge's own last send is on
the wire and when its send of `credits` sends ago has been delivered. So the time is the weight of
the heaviest path through these dependencies. Going on to the next edge weighs a delivery (hold +
latency) of the edge before; waiting at an edge weighs its hold, and `credits` waits at one edge
weigh its delivery, if that is more.

Around a ring, n steps are a path of n - 1 moves: a window of neighbouring edges, and waits where
they weigh most; the best window is a question of prefix sums. Along a chain every edge is in the
window. In trees, piece P of an edge has a path from a leaf with P - 1 waits, found level by level.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, sending_s
from perfmodel.collectives.schedule import Phase
from perfmodel.collectives.timing.path_classes import (
    EdgeClasses,
    Gains,
    heaviest_rows,
    whole_paths,
)
from perfmodel.collectives.timing.unrolled import feeders_of
from perfmodel.memo import once

_REACHED_TOLERANCE = 1e-12
_TIME_TOLERANCE = 1e-6


def rings_s(
    phases: Sequence[Phase], rings: int, rate_Bps: FloatArray, latency_s: FloatArray, credits: int
) -> tuple[float, float] | None:
    """Time of closed rings whose steps are alike, if it is known without stepping.

    Where sends differ by a few bytes (chunks of whole elements, averaged over the repeats) the time
    is that for sends in the middle between the least and the most: no path has more sends than
    there are repeats, so that the time is off by half their difference on the slowest edge, times
    the repeats, at most. That has to be less than a millionth.

    Parameters
    ----------
    phases : sequence of Phase
        Over the same edges, ring after ring, every edge active in every repeat.
    rings : int
    rate_Bps, latency_s : ndarray of float, shape (edges,)
    credits : int
        At least two.

    Returns
    -------
    tuple of (float, float) or None
        When the last byte has left and when everything has arrived; seconds.
    """
    if any(phase.lag != 1 or phase.drained for phase in phases):
        return None
    repeat = sum(phase.repeat for phase in phases)
    least = min(float(phase.nbytes.min()) for phase in phases)
    most = max(float(phase.nbytes.max()) for phase in phases)
    hold_s = ((least + most) / 2 / rate_Bps).reshape(rings, -1)
    times = _slowest(hold_s, latency_s.reshape(rings, -1), repeat, credits)
    unsure_s = repeat * (most - least) / float(rate_Bps.min())
    return None if times is None or unsure_s > _TIME_TOLERANCE * times[1] else times


def _slowest(
    hold_s: FloatArray, latency_s: FloatArray, repeat: int, credits: int
) -> tuple[float, float] | None:
    """Time of the slowest of some rings, shape (rings, edges); each different one is looked at."""
    unlike = {
        (hold.tobytes(), late.tobytes()): (hold, late)
        for hold, late in zip(hold_s, latency_s, strict=True)
    }
    ends = [-np.inf, -np.inf]
    for ring in unlike.values():
        for at, sent in enumerate((True, False)):
            end_s = ring_s(*ring, repeat, credits, sent=sent)
            if end_s is None:
                return None
            ends[at] = max(ends[at], end_s)
    return ends[0], ends[1]


def ring_s(
    hold_s: FloatArray, latency_s: FloatArray, repeat: int, credits: int, *, sent: bool = False
) -> float | None:
    """Time of `repeat` steps of a ring, every edge active in each.

    Parameters
    ----------
    hold_s, latency_s : ndarray of float, shape (edges,)
        What repeats around the ring: how long a send occupies its edge, and how much later it is
        delivered.
    repeat : int
    credits : int
        Sends that an edge may have in flight.
    sent : bool
        Until the last byte has left, and not until everything has arrived.

    Returns
    -------
    float or None
        Seconds; None where the heaviest path may be below its bound (the edge on which it
        should wait lies outside its window), so that only stepping gives the time.

    Notes
    -----
    Let W be the largest delivery and H the largest hold. Waiting is worth W per `credits` steps and
    H for each of the b < `credits` steps that remain, or H for every step if that is more. Assuming
    both bounds the time from above; the bound is reached, and so is the time, if the
    best window holds edges that have them.
    """
    around = period_of(np.stack([hold_s, latency_s]))
    hold_s, delivery_s = hold_s[:around], (hold_s + latency_s)[:around]
    most, longest = float(delivery_s.max()), float(hold_s.max())
    stride = credits if most > credits * longest else 1
    wait_s = most / stride if stride > 1 else longest
    windows = _Windows(delivery_s - wait_s, -latency_s[:around] * sent, stride, repeat)
    best, window, rest = -np.inf, (0, 1), 0
    for spare in range(min(stride, repeat)):
        start, end, gain = windows.best(repeat - spare)
        total = gain + (repeat - spare) * wait_s + spare * longest
        if total > best:
            best, window, rest = total, (start, end), spare
    inside = np.arange(*window)[:around] % around
    waits = repeat - (window[1] - window[0]) - rest
    crossing = delivery_s[inside].max() if stride > 1 else hold_s[inside].max()
    least = most if stride > 1 else longest
    is_exact = (waits == 0 or crossing >= least * (1 - _REACHED_TOLERANCE)) and (
        rest == 0 or hold_s[inside].max() >= longest * (1 - _REACHED_TOLERANCE)
    )
    return best if is_exact else None


def period_of(rows: FloatArray, tolerance: float = 0.0) -> int:
    """Return after how many edges the values of a ring come back, as they do host after host.

    `rows`: shape (values, edges). `tolerance`: relative difference of values that are alike.
    """
    count = rows.shape[1]
    is_first = np.isclose(rows, rows[:, :1], rtol=tolerance, atol=0.0).all(axis=0)
    periods = (
        period
        for period in np.flatnonzero(is_first)[1:].tolist()
        if count % period == 0 and are_alike(rows[:, period:], rows[:, :-period], tolerance)
    )
    return int(next(periods, count))


def are_alike(values: FloatArray, others: FloatArray, tolerance: float) -> bool:
    """Whether values differ from others by a part of these at most."""
    is_equal = np.array_equal(values, others)
    return is_equal or bool((np.abs(values - others) <= tolerance * np.abs(others)).all())


class _Windows:
    """Windows of neighbouring edges of a ring, and what they are worth.

    Once around the ring adds the same whatever the window. So among lengths that differ by whole
    turns (of the ring, and of the stride) the shortest or the longest is best.

    Parameters
    ----------
    gain_s : ndarray of float, shape (edges,)
        What an edge in a window is worth.
    last_s : ndarray of float, shape (edges,)
        What an edge is worth more as the last of its window.
    stride : int
        Lengths that are chosen from differ by this.
    longest : int
        No window is longer.
    """

    def __init__(self, gain_s: FloatArray, last_s: FloatArray, stride: int, longest: int) -> None:
        self._edges, self._stride = len(gain_s), stride
        self._turn = int(np.lcm(self._edges, stride))
        self._sums = np.concatenate([[0.0], np.cumsum(gain_s)])
        ends = np.arange(self._edges + min(longest, 3 * self._turn) + 1)
        turns, rest = np.divmod(ends, self._edges)
        self._ends = turns * self._sums[-1] + self._sums[rest] + last_s[rest - 1]
        self._ahead: dict[tuple[int, int], FloatArray] = {}

    def best(self, longest: int) -> tuple[int, int, float]:
        """Begin, end and worth of the best of `longest` edges less a multiple of the stride."""
        stride, turn = self._stride, self._turn
        shortest = (longest - 1) % stride + 1
        if longest - shortest < 2 * turn:
            return self._best_of(shortest, longest)
        short = self._best_of(shortest, shortest + turn - stride)
        whole = (longest - shortest) // turn - 1  # turns that all of the longest have
        low = longest - turn + stride - whole * turn
        start, end, gain = self._best_of(low, low + turn - stride)
        gain += whole * turn // self._edges * float(self._sums[-1])
        return short if short[2] > gain else (start, end + whole * turn, gain)

    def _best_of(self, low: int, high: int) -> tuple[int, int, float]:
        """Return the best of `low`, `low + stride` ... or `high` edges."""
        stride, lengths = self._stride, (high - low) // self._stride + 1
        best, chosen = -np.inf, 0
        for first in range(min(stride, self._edges)):
            own = self._sums[first : self._edges : stride]
            after = (first + low) // stride
            ahead = self._most_ahead((first + low) % stride, lengths)[after : after + len(own)]
            gains = ahead - own
            at = int(gains.argmax())
            if gains[at] > best:
                best, chosen = float(gains[at]), first + stride * at
        reached = self._ends[chosen + low : chosen + high + 1 : stride]
        return chosen, chosen + low + stride * int(reached.argmax()), best

    def _most_ahead(self, first: int, size: int) -> FloatArray:
        """Return what the best of so many ends is worth, from each on."""
        ends = self._ends[first :: self._stride]
        return once(self._ahead, (first, size), lambda: _most_ahead(ends, size))


def _most_ahead(values: FloatArray, size: int) -> FloatArray:
    """Return the largest of `size` values from each on, shape (values - size + 1,).

    Every stretch is the end of one block of `size` values and the beginning of the next. Source:
    van Herk, Pattern Recognition Letters 13, 1992.
    """
    padded = np.full(-(-len(values) // size) * size, -np.inf)
    padded[: len(values)] = values
    blocks = padded.reshape(-1, size)
    begun = np.maximum.accumulate(blocks, axis=1).ravel()
    before = np.maximum.accumulate(blocks[:, ::-1], axis=1)[:, ::-1].ravel()
    return np.maximum(before[: len(values) - size + 1], begun[size - 1 : len(values)])


def chains_s(
    phase: Phase, rate_Bps: FloatArray, latency_s: FloatArray, credits: int
) -> tuple[float, FloatArray] | None:
    """Time of pipelines along open chains; None if the phase's edges do not form such.

    The path crosses every edge of a chain once and waits, chunk after chunk, where that weighs
    most; every edge is in its window, so nothing is left to guess.

    Parameters
    ----------
    phase : Phase
        Chain after chain, each edge beginning one repeat after the one that feeds it.
    rate_Bps, latency_s : ndarray of float, shape (edges,)
    credits : int

    Returns
    -------
    tuple of (float, ndarray of float, shape (edges,)) or None
        When the last byte has left, and when the last send of each edge has arrived; seconds.
    """
    chains = int(phase.channel.max()) + 1
    if phase.drained or len(phase.src) % chains:
        return None
    src, dst, first, active, channel = (
        column.reshape(chains, -1)
        for column in (phase.src, phase.dst, phase.first, phase.active, phase.channel)
    )
    in_order = (
        (src[:, 1:] == dst[:, :-1]).all()
        and (first == np.arange(first.shape[1])).all()
        and (active == active[:, :1]).all()
        and (channel == np.arange(chains)[:, None]).all()
    )
    if not in_order:
        return None
    hold_s = sending_s(phase.nbytes, rate_Bps).reshape(chains, -1)
    late_s = latency_s.reshape(chains, -1)
    delivery_s = hold_s + late_s
    longest, most = (np.maximum.accumulate(part, axis=1) for part in (hold_s, delivery_s))
    more = active[:, :1] - 1
    whole, rest = np.divmod(more, credits)
    waits_s = np.maximum(more * longest, whole * most + rest * longest)
    landed_s: FloatArray = np.cumsum(delivery_s, axis=1) + waits_s
    return float((landed_s - late_s).max()), landed_s.ravel()


def pipelines_s(
    phase: Phase,
    rate_Bps: FloatArray,
    latency_s: FloatArray,
    credits: int,
    classes: EdgeClasses | None = None,
    feeders: IntArray | None = None,
) -> tuple[float, FloatArray] | None:
    """Time of pieces over trees; None if the phase's edges do not form such.

    Parameters
    ----------
    phase : Phase
        Each edge begins after those that feed it, and carries as many pieces as they do.
    rate_Bps, latency_s : ndarray of float, shape (edges,)
    credits : int
    classes : EdgeClasses, optional
        Edges that may be alike: then each shape of trees is looked at once.
    feeders : ndarray of int, shape (edges, most feeders), optional
        `feeders_of` the phase, if known.

    Returns
    -------
    tuple of (float, ndarray of float, shape (edges,)) or None
        When the last byte has left, and when the last send of each edge has arrived, or of trees of
        few shapes the last of all, shape (1,); seconds.
    """
    is_pipeline = not phase.drained and phase.first.max(initial=0) > 0
    if not is_pipeline or (phase.active != phase.active[0]).any():
        return None
    hold_s = sending_s(phase.nbytes, rate_Bps)
    if classes is not None and classes.agree(hold_s) and classes.agree(latency_s):
        sample = classes.sample
        times = classed_trees_s(phase, classes, hold_s[sample], latency_s[sample], credits)
        if times is not None:
            return times[0], np.array([times[1]])
    delivery_s, late_s, gains = _weights(int(phase.active[0]), hold_s, latency_s, credits)
    zero = np.zeros(len(hold_s) + 1)
    feeders = feeders_of(phase) if feeders is None else feeders
    landed_s = whole_paths(heaviest_rows(feeders, phase.first, delivery_s, gains, zero)[:, :-1])
    return float((landed_s - late_s).max()), landed_s


def classed_trees_s(
    phase: Phase, classes: EdgeClasses, hold_s: FloatArray, latency_s: FloatArray, credits: int
) -> tuple[float, float] | None:
    """Time of pieces over trees of few shapes; None if the phase's edges do not form such.

    The cost is that of the shapes, however many edges have them.

    Parameters
    ----------
    phase : Phase
        Each edge begins after those that feed it, and carries as many pieces as they do.
    classes : EdgeClasses
        Edges that are alike in all that follows.
    hold_s, latency_s : ndarray of float, shape (classes,)
        How long a send occupies an edge of each class, and how much later it is delivered.
    credits : int

    Returns
    -------
    tuple of (float, float) or None
        When the last byte has left, and when everything has arrived; seconds.
    """
    weights = _weights(int(phase.active[0]), hold_s, latency_s, credits)
    shapes = classes.shapes(phase) if (weights[0] >= 0).all() else None
    return None if shapes is None else shapes.times(*weights)


def _weights(
    pieces: int, hold_s: FloatArray, latency_s: FloatArray, credits: int
) -> tuple[FloatArray, FloatArray, Gains]:
    """Weight of edges on a path, how much of it is after their last byte, and what waits gain."""
    whole, rest = divmod(pieces - 1, credits)
    delivery_s = hold_s + latency_s
    # Weight of waits on a path: of none, with all for a hold, and with some for a delivery.
    gains = (pieces - 1) * hold_s, whole * delivery_s, rest * hold_s
    return delivery_s, np.maximum(latency_s, 0.0), gains
