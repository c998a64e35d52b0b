"""The best list of caps where the surrogate is exact, and a bound that no list is below.

The search is dynamic programming with dominance.

A label is a partial solution, the buckets of the first gradients, by three times: when the last of
these gradients is ready (later the more all-reduces have slowed compute down), when the last
all-reduce has ended, and how late that makes the copies back. A larger value of any of them never
makes the rest of the step shorter, so a label that another one dominates in all three is dropped.
Where communication does not slow compute down, this is the recurrence
``finish(j) = min_i max(ready(j), finish(i)) + cost(i+1..j)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.studies.tune.caps import Cuts, GradientOrder
from perfmodel.studies.tune.evaluator import Evaluator
from perfmodel.studies.tune.model import STEP_ROUNDING
from perfmodel.studies.tune.surrogate import AllReduceTimes, StepSurrogate, buckets_of_cuts
from perfmodel.training.ddp.options import MIB

Rate = Callable[[Cuts], float]
"""Seconds of a step, or infinity where a group is not allowed."""

END_SHIFTS = (-8, -4, -2, -1, 1, 2, 4, 8)
"""Gradients by which an end of a group is moved."""
MOST_RATED_BUCKETS = 100_000
MANY_GROUPS = 30
"""Groups from which on only the middle of each is tried as a new end."""
LEAST_GAIN = 1e-10
"""Least relative gain of a round."""


def neighbourhood(cuts: Cuts, every: bool = True) -> Iterator[Cuts]:
    """Yield the groups that differ from given ones in one end.

    `every`: whether to try all new ends, or only the middle of each group.
    """
    inner, n = cuts[:-1], cuts[-1]
    for at, cut in enumerate(inner):
        yield (*inner[:at], *inner[at + 1 :], n)
        low, high = (0, *inner)[at], (*inner, n)[at + 1]
        moved = (cut + shift for shift in END_SHIFTS)
        yield from ((*inner[:at], end, *inner[at + 1 :], n) for end in moved if low < end < high)
    middles = ((a + b) // 2 for a, b in zip((0, *inner), cuts, strict=True) if b - a > 1)
    positions = range(1, n) if every else middles
    yield from (tuple(sorted((*cuts, place))) for place in positions if place not in inner)


def improve(cuts: Cuts, rate: Rate) -> Cuts:
    """Take the best neighbour as long as it is better and `MOST_RATED_BUCKETS` allow."""
    best_s, left = rate(cuts), MOST_RATED_BUCKETS
    while left > 0:
        candidates = list(neighbourhood(cuts, every=len(cuts) <= MANY_GROUPS))
        left -= len(candidates) * len(cuts)
        nearest_s, nearest = min(
            ((rate(candidate), candidate) for candidate in candidates), default=(best_s, cuts)
        )
        if nearest_s >= best_s * (1 - LEAST_GAIN):
            break
        best_s, cuts = nearest_s, nearest
    return cuts


def simplify(cuts: Cuts, rate: Rate) -> Cuts:
    """Remove ends that gain nothing."""
    limit_s = rate(cuts) * (1 + LEAST_GAIN)
    for end in cuts[:-1]:
        fewer = tuple(cut for cut in cuts if cut != end)
        if rate(fewer) <= limit_s:
            cuts = fewer
    return cuts


# ---------------------------------------------------------------- dynamic programming

BoolArray = NDArray[np.bool_]
ReadTimes = Callable[[IntArray], FloatArray]
"""Seconds of all-reduces by bytes of gradients."""

MOST_LABELS, MOST_LABELS_SLOWED = 24, 8
"""Labels per position: without a slowdown more than dominance leaves on models of the zoo, and
where all-reduces slow compute down."""
MOST_SEARCHES = 4
"""Searches, each with exact times of the sizes that the one before chose."""
MOST_FINALISTS = 4
"""Labels whose step is computed, where all-reduces slow the copies back down."""

LABEL = np.dtype(
    [
        ("position", np.int64),
        ("ready", float),
        ("ended", float),
        ("late", float),
        ("before", np.int64),
    ]
)
"""A label of some position; `before` is the index of its predecessor."""


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
    gradients, slowdown = surrogate.gradients, surrogate.slowdown
    n, sums = len(gradients), np.array(gradients.sums, dtype=np.int64)
    work_s = np.array((0.0, *surrogate.ready_s))
    out_s = np.concatenate([[0.0], np.cumsum(surrogate.out_s)])
    labels, count = np.zeros(n * keep + 1, LABEL), 1
    labels[0] = (0, 0.0, 0.0, -np.inf, -1)
    for position in range(1, n + 1):
        begins = np.arange(count)
        if allowed is not None:
            begins = begins[allowed[labels["position"][:count], position]]
        if not len(begins):
            continue
        at = labels["position"][begins]  # where the bucket begins
        cost = read(sums[position] - sums[:position])[at]
        ready, ended = labels["ready"][begins], labels["ended"][begins]
        ready = _after(ready, work_s[position] - work_s[at], ended, slowdown)
        ended = np.maximum(ready, ended) + cost
        late = np.maximum(labels["late"][begins], ended - out_s[at])
        chosen = _undominated(ready, ended, late, keep)
        new = labels[count : count + len(chosen)]
        new["position"], new["before"] = position, begins[chosen]
        new["ready"], new["ended"], new["late"] = ready[chosen], ended[chosen], late[chosen]
        count += len(chosen)
    last = np.flatnonzero(labels["position"][:count] == n)
    tail_s = np.full(len(last), surrogate.backward_s - surrogate.ready_s[-1])
    ready = _after(labels["ready"][last], tail_s, labels["ended"][last], slowdown)
    total_s = np.maximum(ready + out_s[-1], labels["late"][last] + out_s[-1])
    return [_trace_back(labels, int(last[at])) for at in np.argsort(total_s, kind="stable")]


def _after(ready: FloatArray, work_s: FloatArray, ended: FloatArray, slowdown: float) -> FloatArray:
    """Return when work that begins once ready ends; all-reduces are under way until `ended`."""
    slowed_s = np.minimum(work_s, np.maximum(0.0, ended - ready) / slowdown)
    return ready + slowed_s * slowdown + (work_s - slowed_s)


def _undominated(ready: FloatArray, ended: FloatArray, late: FloatArray, keep: int) -> IntArray:
    """Return which labels no other dominates in all three times, the earliest end first."""
    order = np.lexsort((late, ready, ended))
    ready, late = ready[order], late[order]
    better = np.ones(len(order), dtype=bool)
    better[1:] = (ready[1:] < np.minimum.accumulate(ready)[:-1]) | (
        late[1:] < np.minimum.accumulate(late)[:-1]
    )
    chosen = np.flatnonzero(better)
    if len(chosen) > keep:  # the quickest, and evenly spread ones of those that are ready earlier
        chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, keep).astype(np.int64))]
    return order[chosen]


def _trace_back(labels: Any, at: int) -> Cuts:
    cuts = []
    while labels["position"][at] > 0:
        cuts.append(int(labels["position"][at]))
        at = int(labels["before"][at])
    return tuple(reversed(cuts))


def search_by_surrogate(evaluator: Evaluator, allowed: BoolArray | None = None) -> Cuts | None:
    """Return the contiguous groups with the shortest step; None if none are allowed.

    `allowed`: whether a group may go from one position to another; (gradients, gradients + 1).
    """
    surrogate, allreduce = evaluator.surrogate, evaluator.allreduce
    slowed = surrogate.slowdown > 1.0

    def rate(cuts: Cuts) -> float:
        if allowed is not None and not all(allowed[a, b] for a, b in pairwise((0, *cuts))):
            return float("inf")
        return surrogate.step_s(buckets_of_cuts(surrogate, cuts), allreduce.time_s)

    best: list[Cuts] = []
    keep, most = (MOST_LABELS_SLOWED, MOST_FINALISTS) if slowed else (MOST_LABELS, 1)
    for _ in range(MOST_SEARCHES):
        ranked = best_cuts(surrogate, allreduce.interpolate, allowed=allowed, keep=keep)
        if not ranked:
            return None
        found = simplify(min([*ranked[:most], *best], key=rate), rate)
        best = [simplify(improve(found, rate), rate) if slowed else found]
        if not evaluator.time_allreduces(evaluator.gradients.groups(best[0])):
            break
    return best[0]


def time_all_sizes(evaluator: Evaluator, at_most: int) -> None:
    """Compute the time of every contiguous group, if these are few."""
    if len(evaluator.gradients.sums) ** 2 > 4 * at_most:
        return
    sizes = evaluator.gradients.group_sizes
    for size in sorted(sizes) if len(sizes) <= at_most else ():
        evaluator.allreduce.compute(size)


def allow_integer_caps(gradients: GradientOrder) -> BoolArray:
    """Whether a cap of whole MiB makes a bucket of the gradients from one position to another."""
    n, sums = len(gradients), np.array(gradients.sums, dtype=np.int64)
    begin, end = np.meshgrid(np.arange(n), np.arange(n + 1), indexing="ij")
    nbytes, sizes = sums[end] - sums[begin], np.array(gradients.nbytes, dtype=np.int64)
    closing = begin if gradients.reverse_filled else np.maximum(end, 1) - 1
    cap = np.maximum(1, (nbytes - sizes[closing]) // MIB + 1)
    is_last = begin == 0 if gradients.reverse_filled else end == n
    allowed: BoolArray = (end > begin) & ((cap * MIB <= nbytes) | is_last)
    return allowed


# ---------------------------------------------------------------- lower bound

Line = tuple[float, float]
"""Seconds, and seconds per byte on the network."""
Point = tuple[float, float]
"""Bytes on the network, and the least time that these take; seconds."""


BOUND_TOLERANCE = 1e-3
"""Relative distance from the best step at which the bound is good enough."""


def lower_bound_s(
    surrogate: StepSurrogate,
    allreduce: AllReduceTimes,
    workers: int,
    best_s: float = math.inf,
    at_most: int = 0,
) -> float:
    """Return a time that no step is below, whatever its buckets; seconds.

    `allreduce`: with exact times of the least and the largest possible size.
    `workers`: all-reduces under way at a time.
    `at_most`: sizes to compute where that may raise the bound, as long as it is below a step of
        `best_s`.
    """
    for _ in range(at_most):
        bound_s, weakest = _compute_bound(surrogate, allreduce, workers)
        if bound_s > best_s * (1 - BOUND_TOLERANCE) or weakest is None:
            break
        allreduce.compute(int(weakest / allreduce.scale))
    return _compute_bound(surrogate, allreduce, workers)[0]


def _compute_bound(
    surrogate: StepSurrogate, allreduce: AllReduceTimes, workers: int
) -> tuple[float, float | None]:
    """Return the bound, and a size whose exact time may raise it."""
    cells = allreduce.lower_bounds()
    lines = list(minorants([(float(high), least_s) for _, high, least_s in cells]))
    sums, lost = surrogate.gradients.sums, 1.0 - 1.0 / surrogate.slowdown
    wire_s_per_byte = allreduce.wire_s_per_byte

    def least_s(before: int) -> tuple[float, Line | None]:
        """Return the least time to reduce all gradients after the first `before` bytes; seconds.

        With it comes the line (seconds, seconds per byte) that gives it; None if the wire does.
        """
        nbytes = (sums[-1] - before) * allreduce.scale
        by_wire_s = wire_s_per_byte * nbytes
        by_line_s, line = max((a + b * nbytes, (a, b)) for a, b in lines)
        by_line_s /= workers
        return (by_wire_s, None) if by_wire_s > by_line_s else (by_line_s, line)

    all_s, line = least_s(0)
    best, tight = surrogate.work_s + lost * all_s, line
    behind_s = min(surrogate.out_s) + surrogate.optimizer_s + surrogate.before_s
    for before, ready_s in zip(sums, surrogate.ready_s, strict=False):
        rest_s, line = least_s(before)
        bound_s = behind_s + ready_s + lost * max(0.0, all_s - rest_s) + rest_s
        if bound_s > best:
            best, tight = bound_s, line
    return best * (1 - STEP_ROUNDING), _find_weakest(cells, tight)


def _find_weakest(cells: Sequence[tuple[int, int, float]], line: Line | None) -> float | None:
    """Return the middle of the widest interval of sizes whose bound a line touches."""
    a, b = line or (-math.inf, 0.0)  # without a line none is touched
    touched = [
        (high - low, (low + high) / 2)
        for low, high, least_s in cells
        if high - low > 4 and high > 1.003 * low and least_s <= (a + b * high) * (1 + STEP_ROUNDING)
    ]
    return max(touched)[1] if touched else None


def minorants(points: Sequence[Point]) -> Iterator[Line]:
    """Lines with a, b >= 0 below all points: edges of their lower hull, and the two extremes."""
    yield min(y for _, y in points), 0.0
    yield 0.0, min(y / x for x, y in points)
    hull: list[Point] = []
    for point in sorted(points):
        if hull and hull[-1][0] == point[0]:
            continue  # the lower one of two above each other came first
        while len(hull) > 1 and _turns_down(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    for (x0, y0), (x1, y1) in pairwise(hull):
        b = (y1 - y0) / (x1 - x0)
        a = y0 - b * x0
        if a >= 0 and b >= 0:
            yield a, b


def _turns_down(first: Point, second: Point, third: Point) -> bool:
    """Return whether the middle one of three points lies above the line through the others."""
    return (second[1] - first[1]) * (third[0] - first[0]) >= (third[1] - first[1]) * (
        second[0] - first[0]
    )
