"""How long pieces take that follow each other up and down trees, without stepping through them.

Every edge may send a piece when those that feed it have delivered it, when its own last piece is on
the wire and when its piece of `credits` pieces ago has been delivered. So piece P of an edge comes
at the weight of the heaviest way from a leaf to it: once across each edge of the way (hold +
latency), and P - 1 waits, all where that weighs most: a wait weighs the hold of the edge where it
is spent, and `credits` of them at one edge weigh its hold and latency, if that is more. One pass
over the edges, level by level, finds it.
"""

from __future__ import annotations

import itertools
from functools import reduce

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.collectives.schedule import Phase
from perfmodel.collectives.timing.unrolled import feeders_of


def pipelines_s(
    phase: Phase, rate_Bps: FloatArray, latency_s: FloatArray, credits: int
) -> tuple[float, FloatArray] | None:
    """Time of pieces over trees; None if the phase's edges do not form such.

    Parameters
    ----------
    phase : Phase
        Each edge begins after those that feed it, and carries as many pieces as they do.
    rate_Bps, latency_s : ndarray of float, shape (edges,)
    credits : int

    Returns
    -------
    tuple of (float, ndarray of float, shape (edges,)) or None
        When the last byte has left, and when the last send of each edge has arrived; seconds.
    """
    if phase.drained or not phase.first.max(initial=0):
        return None
    pieces = int(phase.active[0])
    if (phase.active != pieces).any():
        return None
    feeders, hold_s = feeders_of(phase), phase.nbytes / rate_Bps
    whole, rest = divmod(pieces - 1, credits)
    delivery_s = hold_s + latency_s
    # What a way is worth: without waits, with all for a hold, and with some for a delivery.
    gains = (pieces - 1) * hold_s, whole * delivery_s, rest * hold_s
    landed_s = _heaviest(feeders, phase.first, delivery_s, gains)
    return float((landed_s - np.maximum(latency_s, 0.0)).max()), landed_s


def _heaviest(
    feeders: IntArray,
    first: IntArray,
    own_s: FloatArray,
    gains_s: tuple[FloatArray, FloatArray, FloatArray],
) -> FloatArray:
    """Heaviest way to each edge: its own weights, and the first gain, or the two others, once each.

    `own_s` and the gains have shape (edges,).
    """
    edges = len(own_s)
    # Rows: nothing gained yet, the first gain, the second, the third, the second and the third.
    best = np.zeros((5, edges + 1))
    gains, others = np.stack(gains_s), np.stack(gains_s[:0:-1])
    order = np.argsort(first, kind="stable")
    ends = np.flatnonzero(np.diff(first[order])) + 1
    for begin, end in itertools.pairwise([0, *ends.tolist(), edges]):
        level = order[begin:end]
        before = reduce(np.maximum, (best[:, column] for column in feeders[level].T))
        gained = before[0] + gains[:, level]
        both = np.maximum.reduce(before[2:4] + others[:, level])
        last = np.maximum(before[4], gained[1] + gains[2, level])
        np.maximum(before[4], np.maximum(both, last), out=before[4])
        np.maximum(before[1:4], gained, out=before[1:4])
        best[:, level] = before + own_s[level]
    landed: FloatArray = np.maximum(best[1, :edges], best[4, :edges])
    return landed
