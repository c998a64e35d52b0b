"""What a scaling curve says, in sentences and as a section of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    Block,
    Box,
    Bullets,
    Figure,
    Heading,
    Markup,
    Section,
    pair,
    paragraphs,
    section,
)
from perfmodel.report.run import tables
from perfmodel.report.scaling.analysis import (
    GOOD,
    WORTH,
    Reach,
    Run,
    ends,
    good_until,
    knee,
    runs,
    size_gains,
)
from perfmodel.report.scaling.figures import (
    bottleneck_colours,
    draw_efficiency,
    draw_step_time,
    draw_throughput,
)
from perfmodel.report.topology.summary import has_layers
from perfmodel.studies.run.result.model import Result


def basis(result: Result) -> str:
    """What is held fixed over the sizes, and what efficiency is relative to."""
    if len(result.points) < 2:
        size = quantities.gpus(result.main.gpus)
        if not has_layers(result.topology):
            return f"A graph is one size, {size}, so how it scales is not known."
        return (
            f"Only one size was asked for, {size}, so how it scales is not known; `scale` in the "
            "scenario asks for more."
        )
    return f"{quantities.scaling(result)}. Efficiency is {quantities.efficiency_base(result)}."


def findings(result: Result) -> list[str]:
    """What the curve says, in sentences; empty for one size."""
    if len(result.points) < 2:
        return []
    sentences = [
        knee_sentence(result),
        good_sentence(result),
        *_limits(result),
        quantities.slowest(result),
        _quickest_size(result),
    ]
    sentences += [*_without_interval(result), *_not_fitting(result)]
    return [sentence for sentence in sentences if sentence]


def knee_sentence(result: Result) -> str:
    """Say where the knee is, how far it moves within the intervals, and what comes after it."""
    reach = knee(result)
    if reach is None:
        return ""
    sizes = ", ".join(f"{size:,}" for size in reach.exceptions)
    exceptions = f" (growing to {sizes} does not)" if sizes else ""
    base = f"what a GPU of {quantities.gpus(result.efficiency_base)} trains"
    if result.efficiency_base == 1:
        base = "what one GPU trains alone"
    grown_to = (
        f"from any smaller size on each added GPU brings at least {quantities.percent(WORTH)} of "
        f"{base}{exceptions}"
    )
    if reach.beyond is None:
        text = f"No knee up to {quantities.gpus(reach.gpus)}: {grown_to}"
    else:
        smallest = reach.gpus == result.points[0].gpus
        text = f"The knee is at {quantities.gpus(reach.gpus)}"
        text += ", the smallest size: " if smallest else f": {grown_to}; "
        text += f"from {reach.gpus:,} to {quantities.gpus(reach.beyond)} an added GPU "
        brings = f"brings {quantities.percent(reach.value)}{f' of {base}' if smallest else ''}"
        text += brings if reach.value >= 0 else "lowers the total throughput"
    return f"{text}{_within_intervals(result, reach, knee)}."


def _within_intervals(
    result: Result, reach: Reach, of: Callable[[Result, Sequence[float]], Reach | None]
) -> str:
    """Say how far a reach moves between the ends of the intervals."""
    reaches = [of(result, speeds) for speeds in ends(result) or ()]
    sizes = [each.gpus for each in reaches if each is not None]
    if not sizes:
        return ""
    low, high = min(sizes), max(sizes)
    both = "both ends of the 80\N{NO-BREAK SPACE}% intervals"
    if low == high:
        return (
            f"; the same at {both}" if low == reach.gpus else f"; {quantities.gpus(low)} at {both}"
        )
    return f"; {low:,} or {quantities.gpus(high)} at the {both.partition(' ')[2]}"


def good_sentence(result: Result) -> str:
    """Say up to which size efficiency is good, and what it is at the largest."""
    reach = good_until(result)
    if reach is None:
        return ""
    last, least = size_gains(result)[-1], quantities.percent(GOOD)
    sizes = ", ".join(f"{size:,}" for size in reach.exceptions)
    text = f"Efficiency is {least} or more up to {quantities.gpus(reach.gpus)}"
    text += f", but not on {sizes}" if sizes else ""
    text += f"{_within_intervals(result, reach, good_until)}. "
    text += f"At {quantities.gpus(last.point.gpus)} it is "
    text += quantities.percent(last.point.scaling_efficiency)
    if last.efficiency is not None:
        low, high = map(quantities.percent, last.efficiency)
        text += f" (80\N{NO-BREAK SPACE}% interval {low} to {high})"
    return f"{text}."


def _limits(result: Result) -> list[str]:
    joined = runs(result)
    if len(joined) == 1:
        return [f"The bottleneck is the same at every size: {joined[0].bottleneck}."]
    return [f"Bottleneck: {'; '.join(f'{r.bottleneck} on {sizes_of(r)}' for r in joined)}."]


def sizes_of(run: Run) -> str:
    """``"8 GPUs"``, ``"16 to 128 GPUs"``."""
    first = "" if run.first == run.last else f"{run.first:,} to "
    return f"{first}{quantities.gpus(run.last)}"


def _quickest_size(result: Result) -> str:
    best = max(result.points, key=lambda point: point.samples_per_s)
    if best is result.main:
        return ""
    return (
        f"The quickest size is {quantities.gpus(best.gpus)}, not the largest: "
        f"{quantities.count(best.samples_per_s)} {quantities.samples_short(result)}/s"
        f"{'' if best.memory.fits else ', if it fitted in GPU memory'}."
    )


def _without_interval(result: Result) -> list[str]:
    missing = [point for point in result.points if point.interval_s is None]
    sizes = ", ".join(f"{point.gpus:,}" for point in missing)
    lacks = f"No interval on {sizes} GPU{'' if sizes == '1' else 's'}"
    if len(missing) == len(result.points):
        lacks = "No size has an interval"
    return [f"{lacks}: {quantities.NO_INTERVAL}."] if missing else []


def _not_fitting(result: Result) -> list[str]:
    sizes = [f"{point.gpus:,}" for point in result.points if not point.memory.fits]
    if not sizes:
        return []
    return [f"Does not fit in GPU memory on {', '.join(sizes)} GPUs: those rows are hypothetical."]


def scaling_section(result: Result) -> Section:
    """Build the section: findings, figures with intervals, what limits each size, all sizes."""
    moved = [number for number, size in enumerate(size_gains(result)) if size.moved]
    hints = tables.hints(result)
    if moved:
        hints.append("A line marks where the bottleneck changes.")
    sizes = [tables.sizes_table(result, moved), *paragraphs([" ".join(hints)], "hint")]
    if len(result.points) < 2:
        return section("Scaling", basis(result), *sizes)
    sentences = Bullets(findings(result), "findings")
    return section(
        "Scaling", basis(result), sentences, *_figures(result), Heading("All sizes"), *sizes
    )


def _figures(result: Result) -> list[Box]:
    speed, share = draw_throughput(result), draw_efficiency(result)
    steps = draw_step_time(result)
    return [
        pair(
            [
                Heading(f"Throughput, {quantities.samples(result)} per second"),
                Figure(speed, "scaling", "Throughput against number of GPUs"),
            ],
            [
                Heading("Efficiency, share of linear scaling"),
                Figure(share, "efficiency", "Efficiency against number of GPUs"),
            ],
        ),
        pair(
            [Heading("Step time"), Figure(steps, "steptime", "Step time against number of GPUs")],
            [Heading("What limits which size"), *_limit_list(result)],
        ),
    ]


def _limit_list(result: Result) -> list[Block]:
    colours = bottleneck_colours(result)
    items = "".join(
        f'<li><i class="swatch" style="--c:{colours[run.kind]}"></i>'
        f"<span><b>{sizes_of(run)}</b> {escape(run.bottleneck)}</span></li>"
        for run in runs(result)
    )
    foot = "The strip at the foot of the efficiency figure has the same colours."
    return [Markup(f'<ul class="limits">{items}</ul>'), *paragraphs([foot], "hint")]
