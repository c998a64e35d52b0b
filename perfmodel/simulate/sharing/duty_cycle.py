"""What edges get of their links that work by turns, as in chains and trees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from perfmodel.collectives.schedule import Phase
from perfmodel.library.lowering.lowered import Stage

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def share_by_turns(capacity_Bps: Floats, stage: Stage) -> Floats:
    """What the links leave to edges that work in some repeats only, as in chains and trees.

    While an edge works, it meets on each of its links the others that work in the same repeats.
    Edges that send more in a repeat need more of a link to keep in step, so that a link is shared
    by bytes: a share is capacity x own bytes / bytes of all that an edge meets, itself included,
    in its own repeats. Edges of one channel that send by turns do not slow each other; channels
    that start together do. That is what they get where all that meet are limited by that link;
    elsewhere it is too little.

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
    met, own = np.zeros(len(edges.arcs)), np.zeros(len(edges))
    unit = max((float(phase.nbytes.max(initial=0.0)) for phase in stage.phases), default=0.0) or 1.0
    for phase in stage.phases:
        nbytes = phase.nbytes / unit  # sums of equal ones are then exact
        met += _met(edges.arcs, lengths, phase.first, phase.active, nbytes)
        own += nbytes * phase.active
    crowd = met / np.repeat(np.where(own > 0, own, np.inf), lengths)
    shares = capacity_Bps[edges.arcs] / np.maximum(crowd, 1.0)
    least, crosses = np.full(len(edges), np.inf), lengths > 0
    if crosses.any():
        least[crosses] = np.minimum.reduceat(shares, edges.pointers[:-1][crosses])
    return least


def _met(arcs: Ints, lengths: Ints, first: Ints, active: Ints, nbytes: Floats) -> Floats:
    """Bytes of all edges on each link of an edge, in the repeats in which the edge works too.

    Of shape (arcs,). All that has crossed a link by repeat t is the sum of
    nbytes (min(t, last) - min(t, first)) over its edges.
    """
    met = np.repeat(active * nbytes, lengths)
    shared = np.flatnonzero(np.bincount(arcs)[arcs] > 1)
    span = int((first + active).max(initial=0)) + 1
    base, begins = arcs[shared] * span, np.repeat(first, lengths)[shared]
    order = np.argsort(base + begins)  # so that neighbours are looked for one after the other
    shared, base, begins = shared[order], base[order], begins[order]
    ends = begins + np.repeat(active, lengths)[shared]
    weight = np.repeat(nbytes, lengths)[shared]
    by_end = np.argsort(base + ends, kind="stable")
    sums = [
        (keys, _summed(own), _summed(own * at))
        for keys, own, at in (
            (base + begins, weight, begins),
            ((base + ends)[by_end], weight[by_end], ends[by_end]),
        )
    ]
    lows, highs = np.searchsorted(base, base), np.searchsorted(base, base, side="right")

    def crossed(until: Ints) -> Floats:
        total: list[Floats] = []
        for keys, weights, products in sums:
            here = np.searchsorted(keys, base + until)
            before = products[here] - products[lows]
            total.append(before + (weights[highs] - weights[here]) * until)
        done: Floats = total[1] - total[0]
        return done

    met[shared] = crossed(ends) - crossed(begins)
    return met


def share_at_ends(capacity_Bps: Floats, stage: Stage) -> Floats:
    """What the links leave to edges of a pipeline while it fills or drains.

    The first pieces of edges that begin early, and the last of those that end late, meet few others
    on their links. An edge's share here is that in its first repeat or that in its last, whichever
    is more: what it meets there is shared equally, piece by piece, so that a small piece waits for
    as much of a large one as it is long.

    Parameters
    ----------
    capacity_Bps : ndarray of float, shape (links,)
    stage : Stage
        Of one phase.

    Returns
    -------
    ndarray of float, shape (edges,)
        Wire bytes per second, whatever an edge's own cap.
    """
    phase, edges = stage.phases[0], stage.edges
    lengths = np.diff(edges.pointers)
    at_first, at_last = _meeting(edges.arcs, lengths, phase)
    busy_s = np.minimum(at_first, at_last) / capacity_Bps[edges.arcs]
    longest_s, crosses = np.zeros(len(edges)), lengths > 0
    if crosses.any():
        longest_s[crosses] = np.maximum.reduceat(busy_s, edges.pointers[:-1][crosses])
    with np.errstate(divide="ignore", invalid="ignore"):
        shares: Floats = np.where(longest_s > 0, phase.nbytes / longest_s, np.inf)
    return shares


def _meeting(arcs: Ints, lengths: Ints, phase: Phase) -> tuple[Floats, Floats]:
    """Bytes that keep each link of an edge busy while the edge sends there.

    In the first repeat of the edge, and in its last.
    """
    span = int((phase.first + phase.active).max(initial=0)) + 1
    base = arcs * span
    weight = np.repeat(phase.nbytes, lengths)
    begun, ended = (
        _until(base + np.repeat(starts, lengths), weight)
        for starts in (phase.first, phase.first + phase.active)
    )

    def busy(repeat: Ints) -> Floats:
        now = base + np.repeat(repeat, lengths)
        (come, came), (gone, went) = begun(now), ended(now)
        nbytes: Floats = np.maximum(weight, np.minimum((come - gone) * weight, came - went))
        return nbytes

    return busy(phase.first), busy(phase.first + (phase.active - 1))


def _until(keys: Ints, weight: Floats) -> Callable[[Ints], tuple[Ints, Floats]]:
    """Return a function: how many keys are at most so large, and their weights together."""
    order = np.argsort(keys, kind="stable")
    risen, sums = keys[order], _summed(weight[order])

    def until(most: Ints) -> tuple[Ints, Floats]:
        here = np.searchsorted(risen, most, side="right")
        return here, sums[here]

    return until


def _summed(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])
