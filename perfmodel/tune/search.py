"""The best groups of neighbours: labels of partial solutions, of which none beats another.

A label stands for the buckets of the first gradients: when the last of these is ready (later the
more all-reduces have slowed compute down), when the last all-reduce has ended, and how late that
makes the copies back. All three only ever make what follows later, so a label that is worse than
another in all of them can be dropped. With compute that communication does not slow down, this is
the recurrence ``finish(j) = min_i max(ready(j), finish(i)) + cost(i+1..j)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.tune.clock import Clock
from perfmodel.tune.row import Cuts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Read = Callable[[Ints], Floats]
"""Seconds of all-reduces by bytes of gradients."""

MOST_LABELS = 24
"""Labels kept at a position: more than are ever left without a slowdown on models of the zoo."""


@dataclass
class _Labels:
    """Partial solutions, all positions one after the other."""

    place: Ints
    ready: Floats
    ended: Floats
    late: Floats
    before: Ints
    count: int = 0

    def add(self, place: int, rows: tuple[Floats, Floats, Floats, Ints]) -> None:
        here = slice(self.count, self.count + len(rows[0]))
        self.place[here] = place
        self.ready[here], self.ended[here], self.late[here], self.before[here] = rows
        self.count = here.stop


def best_cuts(
    clock: Clock, read: Read, *, allowed: NDArray[np.bool_] | None = None, keep: int = MOST_LABELS
) -> list[Cuts]:
    """Return the best groups of neighbours, and the runners-up that other labels stand for.

    Parameters
    ----------
    clock : Clock
    read : callable
        Times of all-reduces.
    allowed : ndarray of bool, shape (gradients, gradients + 1), optional
        Whether a group may go from one position to another.
    keep : int
        Labels kept at a position.

    Returns
    -------
    list of tuple of int
        By growing time according to the labels, which count copies back as if all-reduces did not
        slow them down. Empty if nothing is allowed.
    """
    row = clock.row
    n, sums = len(row), np.array(row.sums, dtype=np.int64)
    work = np.array((0.0, *clock.ready_s))
    out = np.concatenate([[0.0], np.cumsum(clock.out_s)])
    size = n * keep + 1
    labels = _Labels(
        np.zeros(size, np.int64), np.zeros(size), np.zeros(size), np.zeros(size),
        np.zeros(size, np.int64),
    )  # fmt: skip
    nothing = np.zeros(1)
    labels.add(0, (nothing, nothing, nothing - np.inf, np.full(1, -1)))
    for place in range(1, n + 1):
        known = np.arange(labels.count)
        if allowed is not None:
            known = known[allowed[labels.place[known], place]]
        if len(known):
            cost = read(sums[place] - sums[:place])[labels.place[known]]
            labels.add(
                place, _extended(labels, known, cost, clock.slowdown, place, work, out, keep)
            )
    return _traced(labels, clock, n, float(out[-1]))


def _extended(
    labels: _Labels,
    known: Ints,
    cost: Floats,
    slowdown: float,
    place: int,
    work: Floats,
    out: Floats,
    keep: int,
) -> tuple[Floats, Floats, Floats, Ints]:
    """All labels with one more bucket, up to a position; those that none beats."""
    begin = labels.place[known]
    ready, ended = labels.ready[known], labels.ended[known]
    left = work[place] - work[begin]
    busy = np.maximum(0.0, ended - ready)
    slowed = np.minimum(left, busy / slowdown)
    ready = ready + slowed * slowdown + (left - slowed)
    ended = np.maximum(ready, ended) + cost
    late = np.maximum(labels.late[known], ended - out[begin])
    order = np.lexsort((late, ready, ended))
    ready, ended, late = ready[order], ended[order], late[order]
    better = np.ones(len(order), dtype=bool)
    better[1:] = (ready[1:] < np.minimum.accumulate(ready)[:-1]) | (
        late[1:] < np.minimum.accumulate(late)[:-1]
    )
    kept = np.flatnonzero(better)
    if len(kept) > keep:  # the quickest, and evenly some of those that are ready earlier
        kept = kept[np.unique(np.linspace(0, len(kept) - 1, keep).astype(np.int64))]
    return ready[kept], ended[kept], late[kept], known[order[kept]]


def _traced(labels: _Labels, clock: Clock, n: int, out_s: float) -> list[Cuts]:
    """Ways to the last position, the quickest first."""
    last = np.flatnonzero(labels.place[: labels.count] == n)
    ready, ended = labels.ready[last], labels.ended[last]
    left = clock.backward_s - clock.ready_s[-1]
    slowed = np.minimum(left, np.maximum(0.0, ended - ready) / clock.slowdown)
    ready = ready + slowed * clock.slowdown + (left - slowed)
    total = np.maximum(ready + out_s, labels.late[last] + out_s)
    return [_way(labels, int(last[at])) for at in np.argsort(total, kind="stable")]


def _way(labels: _Labels, at: int) -> Cuts:
    cuts = []
    while labels.place[at] > 0:
        cuts.append(int(labels.place[at]))
        at = int(labels.before[at])
    return tuple(reversed(cuts))
