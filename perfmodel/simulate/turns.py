"""What edges get of their links that work by turns, as in chains and trees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.library.carry import Stage

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def share_by_turns(capacity_Bps: Floats, stage: Stage) -> Floats:
    """What the links leave to edges that work in some repeats only, as in chains and trees.

    While an edge works, it meets on each of its links the others that work in the same repeats:
    its share is capacity / (1 + the parts of its own repeats in which each of them works too).
    Edges of one channel that send by turns do not slow each other; channels that start together
    do. That is what they get where all that meet are limited by that link; elsewhere it is too
    little.

    Parameters
    ----------
    capacity_Bps : ndarray of float, shape (links,)
    stage : Stage

    Returns
    -------
    ndarray of float, shape (edges,)
        Wire bytes per second while an edge sends, whatever its own cap.
    """
    edges = stage.edges
    lengths = np.diff(edges.pointers)
    met = sum((_met(edges.arcs, lengths, p.first, p.active) for p in stage.phases), np.zeros(1))
    works = sum((phase.active for phase in stage.phases), np.zeros(len(edges)))
    crowd = met / np.repeat(np.maximum(works, 1), lengths)
    shares = capacity_Bps[edges.arcs] / np.maximum(crowd, 1.0)
    least, crosses = np.full(len(edges), np.inf), lengths > 0
    if crosses.any():
        least[crosses] = np.minimum.reduceat(shares, edges.pointers[:-1][crosses])
    return least


def _met(arcs: Ints, lengths: Ints, first: Ints, active: Ints) -> Ints:
    """Repeats of all edges on each link of an edge, in those in which the edge works too.

    Of shape (arcs,). All that have worked on a link by repeat t is the sum of
    min(t, last) - min(t, first) over its edges.
    """
    met = np.repeat(active, lengths)
    shared = np.flatnonzero(np.bincount(arcs)[arcs] > 1)
    span = int((first + active).max(initial=0)) + 1
    base, begins = arcs[shared] * span, np.repeat(first, lengths)[shared]
    order = np.argsort(base + begins)  # so that neighbours are looked for one after the other
    shared, base, begins = shared[order], base[order], begins[order]
    ends = begins + met[shared]
    begun, ended = base + begins, np.sort(base + ends)
    sums = [(keys, np.concatenate([[0], np.cumsum(keys)])) for keys in (begun, ended)]
    lows, highs = np.searchsorted(begun, base), np.searchsorted(begun, base + span)

    def worked(until: Ints) -> Ints:
        total: list[Ints] = []
        for keys, sum_ in sums:
            here = np.searchsorted(keys, base + until)
            before = sum_[here] - sum_[lows] - (here - lows) * base
            total.append(before + (highs - here) * until)
        done: Ints = total[1] - total[0]
        return done

    met[shared] = worked(ends) - worked(begins)
    return met
