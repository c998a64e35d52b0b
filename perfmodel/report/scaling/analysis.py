"""What a scaling curve says: intervals, what an added GPU brings, the knee, bottlenecks by size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from perfmodel.studies.run.result.model import Limit, Result, SizeResult

WORTH = 0.8
"""Share of one GPU's throughput that an added GPU must bring for growing to pay.

The knee is the largest size to which growing pays from every smaller size. A convention, said
wherever the knee is: beyond it more than a fifth of what is added is lost."""

GOOD = 0.9
"""Efficiency that is reported beside the knee: the share of linear scaling most papers aim at."""

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class SizeGain:
    """One size of the curve, beside the sizes before it.

    `samples`: 80 % interval of throughput, samples per second; from that of the step time.
    `efficiency`: 80 % interval of the efficiency; what both sizes share partly cancels.
    `marginal`: throughput that each GPU added since the size before brings, over the throughput per
        GPU at `Result.efficiency_base`. None for the smallest size.
    `moved`: whether the bottleneck is of another kind than at the size before.
    """

    point: SizeResult
    samples: Range | None
    efficiency: Range | None
    marginal: float | None
    moved: bool


@dataclass(frozen=True, slots=True)
class Reach:
    """Up to which size a value is high enough.

    `gpus`: the largest such size.
    `beyond`: the next size, where it is too low; None where `gpus` is the largest size.
    `value`: the value at `beyond`, or else at `gpus`.
    `exceptions`: smaller sizes at which the value is too low.
    """

    gpus: int
    beyond: int | None
    value: float
    exceptions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring sizes with the same kind of bottleneck."""

    first: int
    last: int
    bottleneck: str
    kind: str
    limit: Limit


def size_gains(result: Result) -> tuple[SizeGain, ...]:
    """Every size of a curve with what it adds to the size before it."""
    marginals = (None, *marginal_efficiencies(result, [p.samples_per_s for p in result.points]))
    kinds = [kind_of(point.bottleneck) for point in result.points]
    return tuple(
        SizeGain(
            point=point,
            samples=throughput_interval(point),
            efficiency=point.scaling_efficiency_interval,
            marginal=marginal,
            moved=at > 0 and kinds[at] != kinds[at - 1],
        )
        for at, (point, marginal) in enumerate(zip(result.points, marginals, strict=True))
    )


def throughput_interval(point: SizeResult) -> Range | None:
    """80 % interval of samples per second: a longer step is less throughput."""
    if point.interval_s is None:
        return None
    low_s, high_s = point.interval_s
    samples = point.samples_per_s * point.step_time_s
    return samples / high_s, samples / low_s


def _relative_interval(point: SizeResult) -> Range | None:
    """Samples per second at both ends of the efficiency; of the throughput where it has none."""
    if point.scaling_efficiency_interval is None:
        return throughput_interval(point)
    low, high = point.scaling_efficiency_interval
    ideal = point.samples_per_s / point.scaling_efficiency
    return low * ideal, high * ideal


def kind_of(bottleneck: str) -> str:
    """Kind of a bottleneck: the same link of another host or switch is the same kind.

    Examples
    --------
    >>> kind_of("host 1's NIC 3")
    "host *'s NIC *"
    """
    return re.sub(r"\d+", "*", bottleneck)


def _per_gpu(result: Result) -> float:
    """Throughput per GPU at the size that efficiency is relative to."""
    base = next((p for p in result.points if p.gpus == result.efficiency_base), result.points[0])
    return base.samples_per_s / base.gpus


def marginal_efficiencies(result: Result, samples_per_s: Sequence[float]) -> tuple[float, ...]:
    """Extra throughput per extra GPU over the base's throughput per GPU, for each growth.

    `samples_per_s` has shape (sizes,), the result (sizes - 1,). It is negative where a larger
    cluster is slower.
    """
    each = _per_gpu(result)
    sizes = [point.gpus for point in result.points]
    return tuple(
        (after - before) / (more - fewer) / each
        for (fewer, before), (more, after) in pairwise(zip(sizes, samples_per_s, strict=True))
    )


def knee(result: Result, samples_per_s: Sequence[float] | None = None) -> Reach | None:
    """The largest size to which growing pays from every smaller size; None for one size.

    It pays where each added GPU brings at least `WORTH` of the throughput of one GPU.
    """
    points = result.points
    if len(points) < 2:
        return None
    speeds = samples_per_s or [point.samples_per_s for point in points]
    each, sizes = _per_gpu(result), [point.gpus for point in points]

    def gain(before: int, after: int) -> float:
        added = sizes[after] - sizes[before]
        return (speeds[after] - speeds[before]) / added / each

    least = [min(gain(b, a) for b in range(a)) for a in range(1, len(sizes))]
    reach = _reach(sizes, [1.0, *least], WORTH)
    if reach.beyond is None:
        return reach
    at = sizes.index(reach.gpus)
    return replace(reach, value=gain(at, at + 1))


def good_until(result: Result, samples_per_s: Sequence[float] | None = None) -> Reach | None:
    """The largest size whose efficiency is at least `GOOD`; None for one size."""
    if len(result.points) < 2:
        return None
    speeds = samples_per_s or [point.samples_per_s for point in result.points]
    each, sizes = _per_gpu(result), [point.gpus for point in result.points]
    return _reach(sizes, [s / n / each for n, s in zip(sizes, speeds, strict=True)], GOOD)


def _reach(sizes: Sequence[int], values: Sequence[float], least: float) -> Reach:
    """The largest size whose value is at least `least`; the smallest size if there is none."""
    reached = [value >= least for value in values]
    at = max((number for number, is_reached in enumerate(reached) if is_reached), default=0)
    exceptions = tuple(sizes[number] for number in range(at) if not reached[number])
    if at + 1 == len(sizes):
        return Reach(sizes[at], None, values[at], exceptions)
    return Reach(sizes[at], sizes[at + 1], values[at + 1], exceptions)


def ends(result: Result) -> tuple[list[float], list[float]] | None:
    """Throughput of every size at the slow and at the quick end of its efficiency.

    The size that efficiency is relative to is held at its predicted throughput, so that what all
    sizes share, as the error of compute, cancels. For sizes without an interval both are the
    predicted value. None where no size has one.
    """
    intervals = [_relative_interval(point) for point in result.points]
    if all(interval is None for interval in intervals):
        return None
    pairs = [
        interval or (point.samples_per_s, point.samples_per_s)
        for point, interval in zip(result.points, intervals, strict=True)
    ]
    return [slow for slow, _ in pairs], [quick for _, quick in pairs]


def runs(result: Result) -> tuple[Run, ...]:
    """Neighbouring sizes with the same kind of bottleneck, joined."""
    joined: list[Run] = []
    for point in result.points:
        kind = kind_of(point.bottleneck)
        if joined and joined[-1].kind == kind:
            last = joined[-1]
            joined[-1] = replace(last, last=point.gpus)
        else:
            joined.append(Run(point.gpus, point.gpus, point.bottleneck, kind, point.limit))
    return tuple(joined)
