"""A surrogate of the simulation: a settled step as a recurrence over buckets.

It equals the simulation where one all-reduce is under way at a time, all ranks are alike, and the
host is ahead of the device: then compute goes on without a pause from the first layer of the last
backward to its end, slower while an all-reduce is under way, and bucket by bucket
``end = max(ready, end of the one before) + cost``. Elsewhere it is an estimate that only guides
the search. It takes microseconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from perfmodel.studies.tune.allreduce_times import AllReduceTimes, TimeOf
from perfmodel.studies.tune.caps import Cuts, GradientOrder, Groups
from perfmodel.studies.tune.model import STEP_ROUNDING
from perfmodel.training.plan.step_plan import Compute, StepPlan


@dataclass(frozen=True)
class StepSurrogate:
    """Work of a step that does not depend on its buckets.

    `before_s`: from the end of the step before to the start of the last backward.
    `ready_s`: work from there until each gradient is in its bucket, without slowdown.
    `backward_s`: work of all of that backward, copies in included.
    `out_s`: work to copy each gradient back.
    `optimizer_s`: with what follows it.
    `slowdown`: factor on compute while an all-reduce is under way.
    """

    gradients: GradientOrder
    before_s: float
    ready_s: tuple[float, ...]
    backward_s: float
    out_s: tuple[float, ...]
    optimizer_s: float
    slowdown: float

    @cached_property
    def sums_out_s(self) -> tuple[float, ...]:
        """Work to copy back all gradients before each position, and all of them; seconds."""
        return (0.0, *itertools.accumulate(self.out_s))

    @property
    def work_s(self) -> float:
        """Work of the device in a step without slowdown, with waits before backward; seconds."""
        return self.before_s + self.backward_s + sum(self.out_s) + self.optimizer_s

    def scaled(self, by: float) -> StepSurrogate:
        """Return the step of ranks that are slower by a factor; `before_s` stays."""
        return replace(
            self,
            ready_s=tuple(by * at for at in self.ready_s),
            backward_s=by * self.backward_s,
            out_s=tuple(by * each for each in self.out_s),
            optimizer_s=by * self.optimizer_s,
        )

    def step_s(self, buckets: Sequence[Bucket], cost: TimeOf) -> float:
        """Return the time of a step with some buckets; seconds."""
        return self.times(buckets, cost)[0]

    def times(self, buckets: Sequence[Bucket], cost: TimeOf) -> tuple[float, float]:
        """Return the time of a step, and how long all-reduces kept the device waiting; seconds."""
        now = ended = done_s = waited_s = 0.0
        ends = []
        for position, nbytes, _ in buckets:
            now = self.after(now, self.ready_s[position] - done_s, ended)
            done_s = self.ready_s[position]
            ended = max(now, ended) + cost(nbytes)
            ends.append(ended)
        now = self.after(now, self.backward_s - done_s, ended)
        for (_, _, out_s), end in zip(buckets, ends, strict=True):
            waited_s += max(0.0, end - now)
            now = self.after(max(now, end), out_s, ended)
        waited_s += max(0.0, ended - now)
        return self.before_s + max(now, ended) + self.optimizer_s, waited_s

    def after(self, now: float, work_s: float, ended: float) -> float:
        """Return when work that begins now ends, if all-reduces are under way until `ended`."""
        if ended <= now or self.slowdown == 1.0:
            return now + work_s
        done_s = (ended - now) / self.slowdown
        slowed = work_s <= done_s
        return now + work_s * self.slowdown if slowed else ended + (work_s - done_s)


Bucket = tuple[int, int, float]
"""Position of the last gradient, bytes, and work to copy them back in seconds."""


def build_surrogate(
    plan: StepPlan, gradients: GradientOrder, before_s: float, slowdown: float
) -> StepSurrogate:
    """Build the surrogate from a plan in which each gradient has a bucket of its own.

    `gradients`: in the order of the plan's buckets.
    `before_s`: from the end of a step to the start of the last backward of the next; seconds.
    """
    last = max(task.micro_batch for task in plan.tasks)
    begin = next(
        index
        for index, task in enumerate(plan.tasks)
        if task.kind == "backward" and task.micro_batch == last
    )
    compute = frozenset(stream.name for stream in plan.streams if stream.kind == "compute")
    ready, out = [0.0] * len(gradients), [0.0] * len(gradients)
    backward_s, optimizer_s, is_over = 0.0, 0.0, False
    for task in plan.tasks[begin:]:
        if not isinstance(task.work, Compute) or task.stream not in compute:
            continue
        is_over = is_over or task.kind == "optimizer"
        if is_over:
            optimizer_s += task.work.duration_s
        elif task.role == "copy_out" and task.bucket is not None:
            out[task.bucket] += task.work.duration_s
        elif task.role != "compress":  # a bucket's, not a gradient's
            backward_s += task.work.duration_s
            if task.kind == "copy" and task.bucket is not None:
                ready[task.bucket] = backward_s
    return StepSurrogate(
        gradients=gradients,
        before_s=before_s,
        ready_s=tuple(itertools.accumulate(ready, max)),
        backward_s=backward_s,
        out_s=tuple(out),
        optimizer_s=optimizer_s,
        slowdown=slowdown,
    )


def buckets_of_cuts(surrogate: StepSurrogate, cuts: Cuts) -> list[Bucket]:
    """Return contiguous groups as buckets."""
    sums, out_s = surrogate.gradients.sums, surrogate.sums_out_s
    return [
        (end - 1, sums[end] - sums[begin], out_s[end] - out_s[begin])
        for begin, end in pairwise((0, *cuts))
    ]


def buckets_of_groups(surrogate: StepSurrogate, groups: Groups) -> list[Bucket]:
    """Return any groups of tensors as buckets, each of which waits for those before it."""
    positions = [[surrogate.gradients.positions[tensor] for tensor in group] for group in groups]
    latest = itertools.accumulate((max(group) for group in positions), max)
    return [
        (
            last,
            sum(surrogate.gradients.nbytes[position] for position in group),
            sum(surrogate.out_s[position] for position in group),
        )
        for last, group in zip(latest, positions, strict=True)
    ]


# ---------------------------------------------------------------- lower bound

Line = tuple[float, float]
"""Seconds, and seconds per byte on the network."""
Point = tuple[float, float]
"""Bytes on the network, and the least time that these take; seconds."""


BOUND_TOLERANCE = 1e-3
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
        if bound_s > best_s * (1 - BOUND_TOLERANCE) or weakest is None:
            break
        allreduce.compute(int(weakest / allreduce.scale))
    return lower_bound_s(surrogate, allreduce, workers)


def _compute_bound(
    surrogate: StepSurrogate, allreduce: AllReduceTimes, workers: int
) -> tuple[float, float | None]:
    """Return the bound, and a size whose exact time may raise it."""
    cells = allreduce.lower_bounds()
    lines = list(minorants([(float(high), least_s) for _, high, least_s in cells]))
    sums, lost = surrogate.gradients.sums, 1.0 - 1.0 / surrogate.slowdown
    wire_s_per_byte = allreduce.wire_s_per_byte

    def least_s(before: int) -> tuple[float, Line | None]:
        """Return the least time of all gradients but the first bytes, and the line that says so."""
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
