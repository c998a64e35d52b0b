"""A surrogate of the simulation: a settled step as a recurrence over buckets.

It equals the simulation where one all-reduce is under way at a time, all ranks are alike, and the
host is ahead of the device: then compute goes on without a pause from the first layer of the last
backward to its end, slower while an all-reduce is under way, and bucket by bucket
``end = max(ready, end of the one before) + cost``. Elsewhere it is an estimate that only guides
the search. It takes microseconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from perfmodel.studies.tune.objective.allreduce_times import TimeOf
from perfmodel.studies.tune.objective.gradients import Cuts, GradientOrder, Groups
from perfmodel.training.plan.step_plan import Compute, StepPlan, Task


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
    parts = _Parts(len(gradients), compute)
    for task in plan.tasks[begin:]:
        parts.count(task)
    return StepSurrogate(
        gradients=gradients,
        before_s=before_s,
        ready_s=tuple(itertools.accumulate(parts.ready, max)),
        backward_s=parts.work_s,
        out_s=tuple(parts.out),
        optimizer_s=parts.optimizer_s,
        slowdown=slowdown,
    )


class _Parts:
    """Sums of the work of the last backward and of the tasks after it."""

    def __init__(self, gradients: int, streams: frozenset[str]) -> None:
        self.streams = streams
        self.ready, self.out = [0.0] * gradients, [0.0] * gradients
        self.work_s = self.optimizer_s = 0.0
        self.is_over = False

    def count(self, task: Task) -> None:
        """Add a task."""
        if not isinstance(task.work, Compute) or task.stream not in self.streams:
            return
        if task.kind == "optimizer" or self.is_over:
            self.is_over = True
            self.optimizer_s += task.work.duration_s
        elif task.role == "copy_out" and task.bucket is not None:
            self.out[task.bucket] += task.work.duration_s
        elif task.role != "compress":  # a bucket's, not a gradient's
            self.work_s += task.work.duration_s
            if task.kind == "copy" and task.bucket is not None:
                self.ready[task.bucket] = self.work_s


def buckets_of_cuts(surrogate: StepSurrogate, cuts: Cuts) -> list[Bucket]:
    """Return contiguous groups as buckets."""
    gradients = surrogate.gradients
    return [
        (
            end - 1,
            gradients.sums[end] - gradients.sums[begin],
            surrogate.sums_out_s[end] - surrogate.sums_out_s[begin],
        )
        for begin, end in itertools.pairwise((0, *cuts))
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
