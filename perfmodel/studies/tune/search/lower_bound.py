"""A lower bound of the step time over all choices of buckets, contiguous or not.

Let C be the compute of a step, X the time in which all-reduces are under way, and f the factor by
which these slow compute down. The device loses at least the share 1 - 1/f of X, so
``T >= C + (1 - 1/f) X``. The B_k bytes that get ready from gradient k on are reduced after the work
W_k before it is done, so ``T >= W_k + (1 - 1/f)(X - X_k) + X_k + (copy out, optimizer)`` with
X_k >= h(B_k). And h(B), the least time in which B bytes are reduced in any number of all-reduces,
is bounded by every line a + b s (a, b >= 0) that is below the time of all-reduces of any size s:
``h(B) >= a + b B``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from perfmodel.studies.tune.objective.allreduce_times import AllReduceTimes
from perfmodel.studies.tune.objective.surrogate import StepSurrogate

Line = tuple[float, float]
"""Seconds, and seconds per byte on the network."""
Point = tuple[float, float]
"""Bytes on the network, and the least time that these take; seconds."""

SLACK = 1e-9
"""Relative allowance for the rounding of sums."""


CLOSE = 1e-3
"""Relative distance from the best step at which the bound is good enough."""


def lower_bound_s(surrogate: StepSurrogate, allreduce: AllReduceTimes, workers: int) -> float:
    """Return a time that no step is below, whatever its buckets; seconds.

    `allreduce`: with exact times of the least and the largest possible size.
    `workers`: all-reduces under way at a time.
    """
    return _compute_bound(surrogate, allreduce, workers)[0]


def tighten_bound(
    surrogate: StepSurrogate, allreduce: AllReduceTimes, workers: int, best_s: float, at_most: int
) -> float:
    """Compute sizes where that may raise the bound, as long as it is below a step of `best_s`.

    Returns the raised bound; seconds.
    """
    for _ in range(at_most):
        bound_s, weakest = _compute_bound(surrogate, allreduce, workers)
        if bound_s > best_s * (1 - CLOSE) or weakest is None:
            break
        allreduce.compute(int(weakest / allreduce.scale))
    return lower_bound_s(surrogate, allreduce, workers)


def _compute_bound(
    surrogate: StepSurrogate, allreduce: AllReduceTimes, workers: int
) -> tuple[float, float | None]:
    """Return the bound, and a size whose exact time may raise it."""
    cells = allreduce.lower_bounds()
    points = [(float(high), least_s) for _, high, least_s in cells]
    lines = list(minorants(points))
    rate = allreduce.wire_s_per_byte
    lost = 1.0 - 1.0 / surrogate.slowdown
    total = surrogate.gradients.sums[-1] * allreduce.scale

    def least_s(nbytes: float) -> tuple[float, Line | None]:
        by_line = max((a + b * nbytes, (a, b)) for a, b in lines)
        by_wire_s = rate * nbytes
        return (
            (by_wire_s, None)
            if by_wire_s > by_line[0] / workers
            else (by_line[0] / workers, by_line[1])
        )

    all_s, line = least_s(total)
    best = surrogate.work_s + lost * all_s
    tight = line
    behind_s = min(surrogate.out_s) + surrogate.optimizer_s + surrogate.before_s
    for position, ready_s in enumerate(surrogate.ready_s):
        rest_s, of_rest = least_s(
            (surrogate.gradients.sums[-1] - surrogate.gradients.sums[position]) * allreduce.scale
        )
        bound_s = behind_s + ready_s + lost * max(0.0, all_s - rest_s) + rest_s
        if bound_s > best:
            best, tight = bound_s, of_rest
    return best * (1 - SLACK), _find_weakest(cells, tight)


def _find_weakest(cells: Sequence[tuple[int, int, float]], line: Line | None) -> float | None:
    """Return the middle of the widest interval of sizes whose bound a line touches."""
    if line is None:
        return None
    a, b = line
    touched = [
        (high - low, (low + high) / 2)
        for low, high, least_s in cells
        if high - low > 4 and high > 1.003 * low and least_s <= (a + b * high) * (1 + 1e-9)
    ]
    return max(touched)[1] if touched else None


def minorants(points: Sequence[Point]) -> Iterator[Line]:
    """Lines with a, b >= 0 below all points: edges of their lower hull, and the two extremes."""
    yield min(y for _, y in points), 0.0
    yield 0.0, min(y / x for x, y in points)
    hull: list[Point] = []
    for x, y in sorted(points):
        if hull and hull[-1][0] == x:
            continue  # the lower one of two above each other came first
        while len(hull) > 1 and _turns_down(hull[-2], hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    for (x0, y0), (x1, y1) in pairwise(hull):
        b = (y1 - y0) / (x1 - x0)
        a = y0 - b * x0
        if a >= 0 and b >= 0:
            yield a, b


def _turns_down(first: Point, second: Point, third: Point) -> bool:
    """Whether the middle one of three points lies above the line through the others."""
    return (second[1] - first[1]) * (third[0] - first[0]) >= (third[1] - first[1]) * (
        second[0] - first[0]
    )
