"""Sizes and buckets of a result as tables: for people, and as CSV for spreadsheets.

What a scaling curve says: intervals, what an added GPU brings, the knee, bottlenecks by size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from perfmodel.report.common import quantities
from perfmodel.report.common.document import Column, Table, tabulate
from perfmodel.studies.run.result import Result, SizeResult

WORTHWHILE_GAIN_SHARE = 0.8
"""Share of one GPU's throughput that an added GPU must bring for growing to pay.

The knee is the largest size to which growing pays from every smaller size. A convention, said
wherever the knee is: beyond it more than a fifth of what is added is lost."""

GOOD_EFFICIENCY = 0.9
"""Efficiency that is reported beside the knee: the share of linear scaling most papers aim at."""

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class SizeGain:
    """One size of the curve, beside the sizes before it.

    `samples`: 80 % interval of throughput, samples per second; from that of the step time.
    `efficiency`: 80 % interval of the efficiency; what both sizes share partly cancels.
    `marginal`: throughput that each GPU added since the size before brings, over the throughput per
        GPU at `Result.efficiency_base`; negative where a larger cluster is slower. None for the
        smallest size.
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

    kind: str
    first: SizeResult
    last: SizeResult


def size_gains(result: Result) -> tuple[SizeGain, ...]:
    """Every size of a curve with what it adds to the size before it."""
    each = _per_gpu(result)
    return tuple(
        SizeGain(
            point=point,
            samples=throughput_interval(point),
            efficiency=point.scaling_efficiency_interval,
            marginal=None
            if before is None
            else (point.samples_per_s - before.samples_per_s) / (point.gpus - before.gpus) / each,
            moved=before is not None and kind_of(point.bottleneck) != kind_of(before.bottleneck),
        )
        for before, point in zip((None, *result.points[:-1]), result.points, strict=True)
    )


def linear_speeds(result: Result) -> list[float]:
    """Throughput of every size if each GPU brought that of the size efficiency is relative to."""
    base = next((p for p in result.points if p.gpus == result.efficiency_base), result.points[0])
    return [base.samples_per_s / base.gpus * point.gpus for point in result.points]


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
    return linear_speeds(result)[0] / result.points[0].gpus


def knee(result: Result, samples_per_s: Sequence[float] | None = None) -> Reach | None:
    """The largest size to which growing pays from every smaller size; None for one size.

    It pays where each added GPU brings at least `WORTHWHILE_GAIN_SHARE` of what one GPU trains.
    """
    if len(result.points) < 2:
        return None
    speeds = samples_per_s or [point.samples_per_s for point in result.points]
    each, sizes = _per_gpu(result), [point.gpus for point in result.points]

    def gain(before: int, after: int) -> float:
        return (speeds[after] - speeds[before]) / (sizes[after] - sizes[before]) / each

    least = [min(gain(b, a) for b in range(a)) for a in range(1, len(sizes))]
    reach = _reach(sizes, [1.0, *least], WORTHWHILE_GAIN_SHARE)
    at = sizes.index(reach.gpus)
    return reach if reach.beyond is None else replace(reach, value=gain(at, at + 1))


def good_until(result: Result, samples_per_s: Sequence[float] | None = None) -> Reach | None:
    """The largest size whose efficiency is at least `GOOD_EFFICIENCY`; None for one size."""
    if len(result.points) < 2:
        return None
    each, sizes = _per_gpu(result), [point.gpus for point in result.points]
    speeds = zip(sizes, samples_per_s or [p.samples_per_s for p in result.points], strict=True)
    return _reach(sizes, [speed / gpus / each for gpus, speed in speeds], GOOD_EFFICIENCY)


def _reach(sizes: Sequence[int], values: Sequence[float], least: float) -> Reach:
    """The largest size whose value is at least `least`; the smallest size if there is none."""
    at = max((number for number, value in enumerate(values) if value >= least), default=0)
    beyond = at + 1 if at + 1 < len(sizes) else None
    return Reach(
        sizes[at],
        None if beyond is None else sizes[beyond],
        values[at if beyond is None else beyond],
        tuple(sizes[number] for number in range(at) if values[number] < least),
    )


def ends(result: Result) -> tuple[list[float], list[float]] | None:
    """Throughput of every size at the slow and at the quick end of its efficiency.

    The size that efficiency is relative to is held at its predicted throughput, so that what all
    sizes share, as the error of compute, cancels. For sizes without an interval both are the
    predicted value. None where no size has one.
    """
    if all(_relative_interval(point) is None for point in result.points):
        return None
    pairs = [_relative_interval(p) or (p.samples_per_s, p.samples_per_s) for p in result.points]
    return [slow for slow, _ in pairs], [quick for _, quick in pairs]


def runs(result: Result) -> tuple[Run, ...]:
    """Neighbouring sizes with the same kind of bottleneck, joined."""
    return tuple(
        Run(kind, first, (first, *rest)[-1])
        for kind, (first, *rest) in groupby(result.points, key=lambda p: kind_of(p.bottleneck))
    )


KNEE_HINT = (
    "An added GPU brings: extra throughput per extra GPU over one GPU's. Knee: the largest size to "
    "which growing, from any smaller one, brings "
    f"{quantities.percent(WORTHWHILE_GAIN_SHARE)} or more."
)
LINK_HINT = (
    "Hosts and their parts are counted from 0. The path of a bottleneck names links by their ends: "
    "n0 is the first host, nic0 its first network adapter; fabric is what stands between hosts."
)


def sizes_table(result: Result, marked: Sequence[int] = ()) -> Table:
    """One row per size; no efficiency where there is one size only."""
    interval, several = ">80\N{NO-BREAK SPACE}% interval", len(result.points) > 1

    def held(row: SizeGain) -> str:
        verdict = {quantities.memory_verdict(row.point.memory)} - {"", "fits"}
        return ", ".join([quantities.memory_size(row.point.memory), *verdict])

    columns: list[Column | None] = [
        (">GPUs", lambda row: f"{row.point.gpus:,}"),
        (">Nodes", lambda row: f"{row.point.nodes:,}"),
        (">Step", lambda row: quantities.duration(row.point.step_time_s)),
        (
            interval,
            lambda row: quantities.span_or("none", row.point.interval_s, quantities.duration),
        ),
        (
            f">{result.samples.units}/s",
            lambda row: quantities.count(row.point.samples_per_s),
        ),
        (interval, lambda row: quantities.span_or("none", row.samples, quantities.count)),
        (">Efficiency", lambda row: quantities.percent_column(row.point.scaling_efficiency))
        if several
        else None,
        (
            ">Added GPU brings",
            lambda row: quantities.or_empty(quantities.percent_column, row.marginal),
        )
        if several
        else None,
        (">Exposed", lambda row: quantities.duration(row.point.exposed_comm_s)),
        ("Bottleneck", lambda row: row.point.bottleneck),
        (">Memory per GPU", held),
    ]
    return tabulate(size_gains(result), columns, marked=marked)


def hints(result: Result) -> list[str]:
    """Explain what the table of sizes names."""
    hints = [KNEE_HINT] if len(result.points) > 1 else []
    return [*hints, LINK_HINT] if any(point.limiting_links for point in result.points) else hints


def communication_table(point: SizeResult) -> Table:
    """What a rank communicates in a step, by operation."""
    return tabulate(
        point.communication,
        (
            ("Operation", lambda use: quantities.operation(use.op)),
            (">Calls", lambda use: f"{use.calls:,}"),
            (">Size", lambda use: quantities.size(use.nbytes)),
            (">Sent per GPU", lambda use: quantities.size(use.sent_bytes)),
            (">In flight", lambda use: quantities.duration(use.busy_s)),
            (">Exposed", lambda use: quantities.duration(use.exposed_s)),
        ),
    )
