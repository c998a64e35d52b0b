"""Sizes and buckets of a result as tables: for people, and as CSV for spreadsheets."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.files import csv_text
from perfmodel.report.common import quantities
from perfmodel.report.common.document import Table
from perfmodel.report.scaling.analysis import WORTH, SizeGain, size_gains
from perfmodel.studies.run.result.model import Result, SizeResult

_EFFICIENCY = slice(6, 8)

KNEE_HINT = (
    "An added GPU brings: extra throughput per extra GPU over one GPU's. Knee: the largest size to "
    f"which growing, from any smaller one, brings {quantities.percent(WORTH)} or more."
)
LINK_HINT = (
    "Hosts and their parts are counted from 0. The path of a bottleneck names links by their ends: "
    "n0 is the first host, nic0 its first network adapter; fabric is what stands between hosts."
)


def sizes_table(result: Result, marked: Sequence[int] = ()) -> Table:
    """One row per size; no efficiency where there is one size only."""
    header, *rows = [_header(result), *map(_row, size_gains(result))]
    if len(result.points) < 2:
        header, *rows = [
            (*row[: _EFFICIENCY.start], *row[_EFFICIENCY.stop :]) for row in (header, *rows)
        ]
    return Table(header, rows, marked)


def hints(result: Result) -> list[str]:
    """Explain what the table of sizes names."""
    hints = [KNEE_HINT] if len(result.points) > 1 else []
    return [*hints, LINK_HINT] if any(point.limiting_links for point in result.points) else hints


def _header(result: Result) -> tuple[str, ...]:
    """Titles of the table of sizes."""
    speed = f">{quantities.samples_short(result)}/s"
    interval = ">80\N{NO-BREAK SPACE}% interval"
    return (
        ">GPUs",
        ">Nodes",
        ">Step",
        interval,
        speed,
        interval,
        ">Efficiency",
        ">Added GPU brings",
        ">Exposed",
        "Bottleneck",
        ">Memory per GPU",
    )


def _row(grown_size: SizeGain) -> tuple[str, ...]:
    """One size of the table of sizes."""
    point, marginal = grown_size.point, grown_size.marginal
    verdict = quantities.memory_verdict(point.memory)
    return (
        f"{point.gpus:,}",
        f"{point.nodes:,}",
        quantities.duration(point.step_time_s),
        quantities.span_or("none", point.interval_s, quantities.duration),
        quantities.count(point.samples_per_s),
        quantities.span_or("none", grown_size.samples, quantities.count),
        quantities.percent_column(point.scaling_efficiency),
        "" if marginal is None else quantities.percent_column(marginal),
        quantities.duration(point.exposed_comm_s),
        point.bottleneck,
        ", ".join([quantities.memory_size(point.memory), *{verdict} - {"", "fits"}]),
    )


def communication_table(point: SizeResult) -> Table:
    """What a rank communicates in a step, by operation."""
    header = ("Operation", ">Calls", ">Size", ">Sent per GPU", ">In flight", ">Exposed")
    rows = [
        (
            quantities.operation(use.op),
            f"{use.calls:,}",
            quantities.size(use.nbytes),
            quantities.size(use.sent_bytes),
            quantities.duration(use.busy_s),
            quantities.duration(use.exposed_s),
        )
        for use in point.communication
    ]
    return Table(header, rows)


def sizes_csv(result: Result) -> str:
    """Every number of every size; SI units, empty where there is no interval."""
    parts = sorted({part for point in result.points for part in point.breakdown_s})
    titles = (
        "gpus",
        "nodes",
        "global_batch",
        "batch_per_gpu",
        "step_time_s",
        "step_low_s",
        "step_high_s",
        "first_step_time_s",
        "samples_per_s",
        "samples_low_per_s",
        "samples_high_per_s",
        "scaling_efficiency",
        "efficiency_low",
        "efficiency_high",
        "marginal_efficiency",
        "compute_s",
        "comm_s",
        "exposed_comm_s",
        "bottleneck",
        "memory_bytes",
        "memory_capacity_bytes",
        "fits",
        *(f"{part.replace(' ', '_')}_s" for part in parts),
    )
    return csv_text(titles, (_numbers(size, parts) for size in size_gains(result)))


def _numbers(size: SizeGain, parts: Sequence[str]) -> list[object]:
    point = size.point
    return [
        point.gpus,
        point.nodes,
        point.global_batch,
        point.batch_per_gpu,
        point.step_time_s,
        *(point.interval_s or (None, None)),
        point.first_step_time_s,
        point.samples_per_s,
        *(size.samples or (None, None)),
        point.scaling_efficiency,
        *(size.efficiency or (None, None)),
        size.marginal,
        point.compute_s,
        point.comm_s,
        point.exposed_comm_s,
        point.bottleneck,
        point.memory.total_bytes if point.memory.is_stated else None,
        point.memory.capacity_bytes,
        point.memory.fits if point.memory.is_stated else None,
        *(point.breakdown_s.get(part, 0.0) for part in parts),
    ]


def buckets_csv(result: Result) -> str:
    """Gradient buckets of the size that is asked about; seconds from the start of the step."""
    titles = ("index", "nbytes", "ready_s", "start_s", "end_s", "parameters")
    rows = (
        (b.index, b.nbytes, b.ready_s, b.start_s, b.end_s, " ".join(b.parameters))
        for b in result.main.buckets
    )
    return csv_text(titles, rows)
