"""The best list of caps where the surrogate is exact: dynamic programming with dominance.

A label is a partial solution, the buckets of the first gradients, by three times: when the last of
these gradients is ready (later the more all-reduces have slowed compute down), when the last
all-reduce has ended, and how late that makes the copies back. A larger value of any of them never
makes the rest of the step shorter, so a label that another one dominates in all three is dropped.
Where communication does not slow compute down, this is the recurrence
``finish(j) = min_i max(ready(j), finish(i)) + cost(i+1..j)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.studies.tune.caps import Cuts, GradientOrder
from perfmodel.studies.tune.evaluator import Evaluator
from perfmodel.studies.tune.surrogate import StepSurrogate, buckets_of_cuts
from perfmodel.training.ddp.options import MIB

Rate = Callable[[Cuts], float]
"""Seconds of a step, or infinity where a group is not allowed."""

SHIFTS = (-8, -4, -2, -1, 1, 2, 4, 8)
EFFORT = 100_000
MANY = 30
"""Groups from which on only the middle of each is tried as a new end."""
LEAST_GAIN = 1e-10
"""Least relative gain of a round."""


def neighbourhood(cuts: Cuts, every: bool = True) -> Iterator[Cuts]:
    """Yield the groups that differ from given ones in one end.

    `every`: whether to try all new ends, or only the middle of each group.
    """
    inner, n = cuts[:-1], cuts[-1]
    ends = set(inner)
    for at, cut in enumerate(inner):
        yield (*inner[:at], *inner[at + 1 :], n)
        low, high = (0, *inner)[at], (*inner, n)[at + 1]
        for shift in SHIFTS:
            if low < cut + shift < high:
                yield (*inner[:at], cut + shift, *inner[at + 1 :], n)
    if every:
        new = [position for position in range(1, n) if position not in ends]
    else:
        new = [(a + b) // 2 for a, b in zip((0, *inner), cuts, strict=True) if b - a > 1]
    for position in new:
        yield tuple(sorted((*cuts, position)))


def improve(cuts: Cuts, rate: Rate, effort: int = EFFORT) -> Cuts:
    """Take the best neighbour as long as it is better and effort remains.

    `effort`: most buckets to rate.
    """
    best_s = rate(cuts)
    while effort > 0:
        candidates = list(neighbourhood(cuts, every=len(cuts) <= MANY))
        effort -= len(candidates) * len(cuts)
        nearest_s, nearest = min(
            ((rate(candidate), candidate) for candidate in candidates), default=(best_s, cuts)
        )
        if nearest_s >= best_s * (1 - LEAST_GAIN):
            break
        best_s, cuts = nearest_s, nearest
    return cuts


def simplify(cuts: Cuts, rate: Rate, within: float = LEAST_GAIN) -> Cuts:
    """Remove ends that gain nothing."""
    best_s = rate(cuts)
    at = 0
    while at < len(cuts) - 1:
        fewer = (*cuts[:at], *cuts[at + 1 :])
        if rate(fewer) <= best_s * (1 + within):
            cuts = fewer
        else:
            at += 1
    return cuts


# ---------------------------------------------------------------- dynamic programming

BoolArray = NDArray[np.bool_]
ReadTimes = Callable[[IntArray], FloatArray]
"""Seconds of all-reduces by bytes of gradients."""

MOST_LABELS, MOST_LABELS_SLOWED = 24, 8
"""Labels per position: without a slowdown more than dominance leaves on models of the zoo, and
where all-reduces slow compute down."""


PASSES = 4
"""Searches, each with exact times of the sizes that the one before chose."""


FINALISTS = 4
"""Labels whose step is computed, where all-reduces slow the copies back down."""


@dataclass
class _Labels:
    """Labels of all positions in one set of arrays; `before` is the index of the predecessor."""

    position: IntArray
    ready: FloatArray
    ended: FloatArray
    late: FloatArray
    before: IntArray
    count: int = 0

    def add(self, position: int, rows: tuple[FloatArray, FloatArray, FloatArray, IntArray]) -> None:
        span = slice(self.count, self.count + len(rows[0]))
        self.position[span] = position
        self.ready[span], self.ended[span], self.late[span], self.before[span] = rows
        self.count = span.stop


def best_cuts(
    surrogate: StepSurrogate,
    read: ReadTimes,
    *,
    allowed: BoolArray | None = None,
    keep: int = MOST_LABELS,
) -> list[Cuts]:
    """Return the best contiguous groups, and the runners-up of the other labels at the end.

    `read`: times of all-reduces.
    `allowed`: whether a group may go from one position to another; (gradients, gradients + 1).
    `keep`: most labels per position.
    They come by growing time according to the labels, which count copies back as if all-reduces did
    not slow them down. Empty if nothing is allowed.
    """
    gradients = surrogate.gradients
    n, sums = len(gradients), np.array(gradients.sums, dtype=np.int64)
    work = np.array((0.0, *surrogate.ready_s))
    out = np.concatenate([[0.0], np.cumsum(surrogate.out_s)])
    size = n * keep + 1
    labels = _Labels(
        np.zeros(size, np.int64),
        np.zeros(size),
        np.zeros(size),
        np.zeros(size),
        np.zeros(size, np.int64),
    )
    nothing = np.zeros(1)
    labels.add(0, (nothing, nothing, nothing - np.inf, np.full(1, -1)))
    for position in range(1, n + 1):
        begins = np.arange(labels.count)
        if allowed is not None:
            begins = begins[allowed[labels.position[begins], position]]
        if len(begins):
            cost = read(sums[position] - sums[:position])[labels.position[begins]]
            labels.add(
                position,
                _extend(labels, begins, cost, surrogate.slowdown, position, work, out, keep),
            )
    return _trace_all_back(labels, surrogate, n, float(out[-1]))


def _extend(
    labels: _Labels,
    begins: IntArray,
    cost: FloatArray,
    slowdown: float,
    position: int,
    work: FloatArray,
    out: FloatArray,
    keep: int,
) -> tuple[FloatArray, FloatArray, FloatArray, IntArray]:
    """Extend labels by one bucket up to a position, and drop those that are dominated."""
    position_of_begin = labels.position[begins]
    ready, ended = labels.ready[begins], labels.ended[begins]
    work_s = work[position] - work[position_of_begin]
    busy = np.maximum(0.0, ended - ready)
    slowed = np.minimum(work_s, busy / slowdown)
    ready = ready + slowed * slowdown + (work_s - slowed)
    ended = np.maximum(ready, ended) + cost
    late = np.maximum(labels.late[begins], ended - out[position_of_begin])
    order = np.lexsort((late, ready, ended))
    ready, ended, late = ready[order], ended[order], late[order]
    better = np.ones(len(order), dtype=bool)
    better[1:] = (ready[1:] < np.minimum.accumulate(ready)[:-1]) | (
        late[1:] < np.minimum.accumulate(late)[:-1]
    )
    chosen = np.flatnonzero(better)
    if len(chosen) > keep:  # the quickest, and evenly spread ones of those that are ready earlier
        chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, keep).astype(np.int64))]
    return ready[chosen], ended[chosen], late[chosen], begins[order[chosen]]


def _trace_all_back(labels: _Labels, surrogate: StepSurrogate, n: int, out_s: float) -> list[Cuts]:
    """Return the groups of all labels at the last position, the quickest first."""
    last = np.flatnonzero(labels.position[: labels.count] == n)
    ready, ended = labels.ready[last], labels.ended[last]
    work_s = surrogate.backward_s - surrogate.ready_s[-1]
    slowed = np.minimum(work_s, np.maximum(0.0, ended - ready) / surrogate.slowdown)
    ready = ready + slowed * surrogate.slowdown + (work_s - slowed)
    total = np.maximum(ready + out_s, labels.late[last] + out_s)
    return [_trace_back(labels, int(last[at])) for at in np.argsort(total, kind="stable")]


def _trace_back(labels: _Labels, at: int) -> Cuts:
    cuts = []
    while labels.position[at] > 0:
        cuts.append(int(labels.position[at]))
        at = int(labels.before[at])
    return tuple(reversed(cuts))


def search_by_surrogate(evaluator: Evaluator, allowed: BoolArray | None = None) -> Cuts | None:
    """Return the contiguous groups with the shortest step; None if none are allowed.

    `allowed`: whether a group may go from one position to another; (gradients, gradients + 1).
    """
    surrogate, allreduce = evaluator.surrogate, evaluator.allreduce
    slowed = surrogate.slowdown > 1.0

    def rate(cuts: Cuts) -> float:
        if allowed is not None and not all(
            allowed[a, b] for a, b in zip((0, *cuts), cuts, strict=False)
        ):
            return float("inf")
        return surrogate.step_s(buckets_of_cuts(surrogate, cuts), allreduce.time_s)

    best: Cuts | None = None
    for _ in range(PASSES):
        keep = MOST_LABELS_SLOWED if slowed else MOST_LABELS
        ranked = best_cuts(surrogate, allreduce.interpolate, allowed=allowed, keep=keep)
        if not ranked:
            return None
        candidates = [*ranked[: FINALISTS if slowed else 1], *([best] if best else [])]
        cuts = min(candidates, key=rate)
        cuts = simplify(cuts, rate)
        best = simplify(improve(cuts, rate), rate) if slowed else cuts
        if not evaluator.time_allreduces(evaluator.gradients.groups(best)):
            break
    return best


def all_sizes_timed(evaluator: Evaluator) -> bool:
    """Whether the time of every contiguous group was computed, none interpolated."""
    sizes = _group_sizes(evaluator.gradients)
    return all(evaluator.allreduce.is_timed(size) for size in sizes)


def _group_sizes(gradients: GradientOrder) -> set[int]:
    """Bytes of all contiguous groups."""
    sums = gradients.sums
    return {b - a for i, a in enumerate(sums) for b in sums[i + 1 :]}


def time_all_sizes(evaluator: Evaluator, at_most: int) -> None:
    """Compute the time of every contiguous group, if these are few."""
    if len(evaluator.gradients.sums) ** 2 > 4 * at_most:
        return
    sizes = _group_sizes(evaluator.gradients)
    if len(sizes) <= at_most:
        for size in sorted(sizes):
            evaluator.allreduce.compute(size)


def allow_integer_caps(gradients: GradientOrder) -> BoolArray:
    """Whether a cap of whole MiB makes a bucket of the gradients from one position to another."""
    n, sums = len(gradients), np.array(gradients.sums, dtype=np.int64)
    begin, end = np.meshgrid(np.arange(n), np.arange(n + 1), indexing="ij")
    nbytes = sums[end] - sums[begin]
    sizes = np.array(gradients.nbytes, dtype=np.int64)
    last = sizes[begin] if gradients.reverse_filled else sizes[np.maximum(end, 1) - 1]
    above = nbytes - last
    cap = np.maximum(1, above // MIB + 1)
    is_last = begin == 0 if gradients.reverse_filled else end == n
    allowed: BoolArray = (end > begin) & ((cap * MIB <= nbytes) | is_last)
    return allowed
