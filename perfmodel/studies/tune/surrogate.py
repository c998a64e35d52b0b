"""A surrogate of the simulation: a settled step as a recurrence over buckets.

It equals the simulation where one all-reduce is under way at a time, all ranks are alike, and the
host is ahead of the device: then compute goes on without a pause from the first layer of the last
backward to its end, slower while an all-reduce is under way, and bucket by bucket
``end = max(ready, end of the one before) + cost``. Elsewhere it is an estimate that only guides
the search. It takes microseconds.

The time of an all-reduce of any size is computed for some sizes, interpolated between them. A
library changes its algorithm or protocol at certain sizes, where times jump. Bisection finds these;
between two computed sizes with the same algorithm and protocol the time is close to linear. How
close is measured whenever a size is computed that was interpolated before.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, RankGroup
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.lowering.lowered import link_times_s
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.steps.simulate_step import simulated_s
from perfmodel.studies.tune.caps import Cuts, GradientOrder, Groups
from perfmodel.training.plan.step_plan import Compute, StepPlan

# ---------------------------------------------------------------- times of all-reduces

AlgorithmProtocol = tuple[str, str]
"""Algorithm and protocol of a size."""

SIZE_STEP_BYTES = 4
"""Resolution of sizes."""
FEW_RANKS = 32
"""Most ranks for which computing a collective takes about a millisecond."""
RATIO_ON_FEW, RATIO_ON_MANY = 2.0, 3.0
"""Ratio of neighbouring sizes of the first grid, on few and on many ranks."""
LEAST_ERROR = 2e-4
"""Least relative error of interpolation that is assumed.

Pieces of a size are whole lines of a protocol: 1.2e-4 of the small trees on 8 ranks over Ethernet.
"""
UNSEEN_ERROR = 0.05
"""Relative error of interpolation where none was measured yet."""

TimeOf = Callable[[int], float]
"""Seconds of an all-reduce of so many bytes of gradients."""


@dataclass
class AllReduceTimes:
    """Times of all-reduces of one group with nothing else on the network.

    `scale`: bytes on the network per byte of gradients (a hook that compresses sends fewer).
    `factor`: on all times; 0 where communication takes no time.
    """

    timer: UncontendedTimer
    group: RankGroup
    scale: float = 1.0
    factor: float = 1.0
    _sizes: list[int] = field(default_factory=list)
    _timed: dict[int, tuple[float, AlgorithmProtocol]] = field(default_factory=dict)
    _errors: dict[int, float] = field(default_factory=dict)  # by the lower size of an interval
    _per_byte: FloatArray | None = None
    _interpolated: dict[int, float] = field(default_factory=dict)
    _lower: dict[int, float] = field(default_factory=dict)

    @property
    def computed_sizes(self) -> int:
        """Number of sizes computed so far."""
        return len(self._timed)

    def compute(self, nbytes: int) -> float:
        """Compute the time of one size of gradients; seconds."""
        size = self.wire_bytes(nbytes)
        if size not in self._timed:
            lowered, time_s = self.timer.best("all_reduce", size, self.group)
            if self.in_order:
                time_s = simulated_s(self.timer, self.group, "all_reduce", size)
            time_s *= self.factor
            self._record_error(size, time_s)
            self._timed[size] = (time_s, (lowered.schedule.algorithm, lowered.protocol))
            capacity_Bps = self.timer.machine.topology.arcs.bandwidth_Bps
            links = self.factor * link_times_s(capacity_Bps, lowered) / size
            self._per_byte = links if self._per_byte is None else np.minimum(self._per_byte, links)
            insort(self._sizes, size)
            self._interpolated.clear()
            self._lower.clear()
        return self._timed[size][0]

    @property
    def in_order(self) -> bool:
        """Whether the messages of a connection are in order, so that each is simulated."""
        return self.timer.machine.library.in_order

    def is_timed(self, nbytes: int) -> bool:
        """Whether the time of a size has been computed."""
        return self.wire_bytes(nbytes) in self._timed

    def interpolate(self, nbytes: IntArray) -> FloatArray:
        """Interpolate the times of some sizes of gradients; seconds."""
        read: FloatArray = np.interp(
            np.ceil(nbytes * self.scale / SIZE_STEP_BYTES) * SIZE_STEP_BYTES,
            self._sizes,
            [self._timed[size][0] for size in self._sizes],
        )
        return read

    def time_s(self, nbytes: int) -> float:
        """Return the time of one size, computed before or interpolated; seconds."""
        if nbytes not in self._interpolated:
            self._interpolated[nbytes] = self._interpolate(self.wire_bytes(nbytes))
        return self._interpolated[nbytes]

    def _interpolate(self, size: int) -> float:
        timed, sizes = self._timed, self._sizes
        index = bisect_left(sizes, size)
        if size in timed or not 0 < index < len(sizes):
            return timed[sizes[min(index, len(sizes) - 1)]][0]
        low, high = sizes[index - 1], sizes[index]
        low_s, high_s = timed[low][0], timed[high][0]
        return low_s + (high_s - low_s) * ((size - low) / (high - low))

    def lower_s(self, nbytes: int) -> float:
        """Return the least time of a size, given the error that interpolation may have; seconds."""
        if nbytes not in self._lower:
            size, least_s = self.wire_bytes(nbytes), self.time_s(nbytes)
            if size not in self._timed:
                position = bisect_left(self._sizes, size)
                low = self._sizes[max(0, position - 1)]
                least_s *= 1 - self._errors.get(low, UNSEEN_ERROR)
                (before_s, style), (_, other) = self._timed[low], self._timed[self._sizes[position]]
                least_s = max(before_s, least_s) if style == other else least_s
            self._lower[nbytes] = least_s
        return self._lower[nbytes]

    def prepare(self, least: int, most: int) -> None:
        """Compute enough sizes to interpolate all between two sizes of gradients."""
        ratio = RATIO_ON_MANY if len(self.group) > FEW_RANKS else RATIO_ON_FEW
        steps = max(1, int(np.ceil(np.log(max(most / least, 1.0)) / np.log(ratio))))
        grid = [int(size) for size in np.geomspace(least, most, steps + 1)]
        for size in [least, most, *grid[::2], *grid[1::2]]:
            self.compute(size)
        for low, high in list(pairwise(self._sizes)):
            if self._timed[low][1] != self._timed[high][1]:
                self._find_jump(low, high)

    def lower_bounds(self) -> list[tuple[int, int, float]]:
        """Return the least time of the sizes between neighbouring computed ones.

        Times do not fall with the size while algorithm and protocol are the same.

        Returns first size and last, in bytes on the network, and seconds.
        """
        timed = ((size, *self._timed[size]) for size in (*self._sizes, self._sizes[-1]))
        return [
            (low, high, low_s if style == high_style else min(low_s, high_s))
            for (low, low_s, style), (high, high_s, high_style) in pairwise(timed)
        ]

    @property
    def wire_s_per_byte(self) -> float:
        """Least time of the busiest link per byte over all algorithms used; seconds per byte."""
        if self._per_byte is None or self.in_order:  # shaped links let bursts pass at any rate
            return 0.0
        return float(self._per_byte.max(initial=0.0))

    def wire_bytes(self, nbytes: int) -> int:
        """Return the bytes on the network of some bytes of gradients."""
        return max(
            SIZE_STEP_BYTES, math.ceil(nbytes * self.scale / SIZE_STEP_BYTES) * SIZE_STEP_BYTES
        )

    def _record_error(self, size: int, time_s: float) -> None:
        """Record the error that interpolating this size would have had.

        Halving an interval quarters the error of a straight line; half of it is assumed.
        """
        position = bisect_left(self._sizes, size)
        if not 0 < position < len(self._sizes):
            return
        low, high = self._sizes[position - 1], self._sizes[position]
        if self._timed[low][1] == self._timed[high][1] and time_s > 0:
            self._errors[low] = self._errors[size] = max(
                abs(self._interpolate(size) / time_s - 1.0) / 2, LEAST_ERROR
            )

    def _find_jump(self, low: int, high: int) -> None:
        """Find the size between two at which algorithm or protocol change, by bisection."""
        first = self._timed[low][1]
        while high - low > SIZE_STEP_BYTES:
            middle = (low + high) // (2 * SIZE_STEP_BYTES) * SIZE_STEP_BYTES
            lowerings = lower_collective(self.timer.machine, "all_reduce", middle, self.group)
            lowered = lowerings[0]
            if len(lowerings) > 1:
                lowered, _ = self.timer.best("all_reduce", middle, self.group)
            is_first = (lowered.schedule.algorithm, lowered.protocol) == first
            low, high = (middle, high) if is_first else (low, middle)
        for size in (low, high):
            if size not in self._timed:
                self.compute(int(size / self.scale))


# ---------------------------------------------------------------- the step


@dataclass(frozen=True)
class StepSurrogate:
    """Work of a step that does not depend on its buckets.

    `before_s`: from the end of the step before to the start of the last backward.
    `ready_s`: work from there until each gradient is in its bucket, without slowdown.
    `backward_s`: work of all of that backward, copies in included.
    `out_s`: work to copy each gradient back.
    `optimizer_s`: from there, once all is reduced, to the end of the step.
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
        """Return the step of ranks that are slower by a factor; what was simulated stays."""
        return replace(
            self,
            ready_s=tuple(by * at for at in self.ready_s),
            backward_s=by * self.backward_s,
            out_s=tuple(by * each for each in self.out_s),
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
        return now + work_s * self.slowdown if work_s <= done_s else ended + (work_s - done_s)


Bucket = tuple[int, int, float]
"""Position of the last gradient, bytes, and work to copy them back in seconds."""


def build_surrogate(
    plan: StepPlan, gradients: GradientOrder, around_s: tuple[float, float], slowdown: float
) -> StepSurrogate:
    """Build the surrogate from a plan in which each gradient has a bucket of its own.

    `gradients`: in the order of the plan's buckets.
    `around_s`: from the end of a step to the start of the last backward of the next, and from the
        start of the optimizer to the end of its step; seconds.
    """
    last = max(task.micro_batch for task in plan.tasks)
    begin = next(
        index
        for index, task in enumerate(plan.tasks)
        if task.kind == "backward" and task.micro_batch == last
    )
    compute = frozenset(stream.name for stream in plan.streams if stream.kind == "compute")
    ready, out = [0.0] * len(gradients), [0.0] * len(gradients)
    backward_s = 0.0
    for task in plan.tasks[begin:]:
        if not isinstance(task.work, Compute) or task.stream not in compute:
            continue
        if task.kind == "optimizer":
            break
        if task.role == "copy_out" and task.bucket is not None:
            out[task.bucket] += task.work.duration_s
        elif task.role != "compress":  # a bucket's, not a gradient's
            backward_s += task.work.duration_s
            if task.kind == "copy" and task.bucket is not None:
                ready[task.bucket] = backward_s
    return StepSurrogate(
        gradients=gradients,
        before_s=around_s[0],
        ready_s=tuple(itertools.accumulate(ready, max)),
        backward_s=backward_s,
        out_s=tuple(out),
        optimizer_s=around_s[1],
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
    return [
        (
            last,
            sum(surrogate.gradients.nbytes[position] for position in group),
            sum(surrogate.out_s[position] for position in group),
        )
        for last, group in zip(
            itertools.accumulate((max(group) for group in positions), max), positions, strict=True
        )
    ]
