"""What a scaling curve says, in sentences and as a section of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
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
from perfmodel.report.run import sizes
from perfmodel.report.run.scaling_figures import (
    bottleneck_colours,
    draw_efficiency,
    draw_step_time,
    draw_throughput,
)
from perfmodel.report.run.sizes import (
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
    points = result.points
    if len(points) < 2:
        return []
    joined, best = runs(result), max(points, key=lambda point: point.samples_per_s)
    limits = "; ".join(f"{run.bottleneck} on {sizes_of(run)}" for run in joined)
    same = f"The bottleneck is the same at every size: {joined[0].bottleneck}."
    missing = [f"{point.gpus:,}" for point in points if point.interval_s is None]
    lacks = f"No interval on {', '.join(missing)} GPU{'' if missing == ['1'] else 's'}"
    if len(missing) == len(points):
        lacks = "No size has an interval"
    too_big = ", ".join(f"{point.gpus:,}" for point in points if not point.memory.fits)
    sentences = (
        (True, knee_sentence(result)),
        (True, good_sentence(result)),
        (True, same if len(joined) == 1 else f"Bottleneck: {limits}."),
        (True, quantities.slowest(result)),
        (
            best is not result.main,
            (
                f"The quickest size is {quantities.gpus(best.gpus)}, not the largest: "
                f"{quantities.count(best.samples_per_s)} {quantities.samples_short(result)}/s"
                f"{'' if best.memory.fits else ', if it fitted in GPU memory'}."
            ),
        ),
        (missing, f"{lacks}: {quantities.NO_INTERVAL}."),
        (
            too_big,
            f"Does not fit in GPU memory on {too_big} GPUs: those rows are hypothetical.",
        ),
    )
    return [sentence for applies, sentence in sentences if applies and sentence]


def knee_sentence(result: Result) -> str:
    """Say where the knee is, how far it moves within the intervals, and what comes after it."""
    reach = knee(result)
    if reach is None:
        return ""
    but = ", ".join(f"{size:,}" for size in reach.exceptions)
    base = f"what a GPU of {quantities.gpus(result.efficiency_base)} trains"
    if result.efficiency_base == 1:
        base = "what one GPU trains alone"
    grown_to = (
        f"from any smaller size on each added GPU brings at least {quantities.percent(WORTH)} of "
        f"{base}{f' (growing to {but} does not)' if but else ''}"
    )
    text = f"No knee up to {quantities.gpus(reach.gpus)}: {grown_to}"
    if reach.beyond is not None:
        smallest = reach.gpus == result.points[0].gpus
        brings = f"brings {quantities.percent(reach.value)}{f' of {base}' if smallest else ''}"
        text = (
            f"The knee is at {quantities.gpus(reach.gpus)}"
            f"{', the smallest size' if smallest else f': {grown_to}'}{': ' if smallest else '; '}"
            f"from {reach.gpus:,} to {quantities.gpus(reach.beyond)} an added GPU "
            f"{brings if reach.value >= 0 else 'lowers the total throughput'}"
        )
    return f"{text}{_within_intervals(result, reach, knee)}."


def _within_intervals(
    result: Result, reach: Reach, of: Callable[[Result, Sequence[float]], Reach | None]
) -> str:
    """Say how far a reach moves between the ends of the intervals."""
    reaches = [of(result, speeds) for speeds in ends(result) or ()]
    if not (sizes := {each.gpus for each in reaches if each is not None}):
        return ""
    low, high = min(sizes), quantities.gpus(max(sizes))
    both = "ends of the 80\N{NO-BREAK SPACE}% intervals"
    if len(sizes) > 1:
        return f"; {low:,} or {high} at the {both}"
    return f"; {'the same' if low == reach.gpus else high} at both {both}"


def good_sentence(result: Result) -> str:
    """Say up to which size efficiency is good, and what it is at the largest."""
    reach = good_until(result)
    if reach is None:
        return ""
    last, but = size_gains(result)[-1], ", ".join(f"{size:,}" for size in reach.exceptions)
    interval = ""
    if last.efficiency is not None:
        low, high = map(quantities.percent, last.efficiency)
        interval = f" (80\N{NO-BREAK SPACE}% interval {low} to {high})"
    return (
        f"Efficiency is {quantities.percent(GOOD)} or more up to {quantities.gpus(reach.gpus)}"
        f"{f', but not on {but}' if but else ''}{_within_intervals(result, reach, good_until)}. "
        f"At {quantities.gpus(last.point.gpus)} it is "
        f"{quantities.percent(last.point.scaling_efficiency)}{interval}."
    )


def sizes_of(run: Run) -> str:
    """``"8 GPUs"``, ``"16 to 128 GPUs"``."""
    first = "" if run.first == run.last else f"{run.first:,} to "
    return f"{first}{quantities.gpus(run.last)}"


def scaling_section(result: Result) -> Section:
    """Build the section: findings, figures with intervals, what limits each size, all sizes."""
    moved = [number for number, size in enumerate(size_gains(result)) if size.moved]
    hints = [*sizes.hints(result), *["A line marks where the bottleneck changes."] * bool(moved)]
    table = [sizes.sizes_table(result, moved), *paragraphs([" ".join(hints)], "hint")]
    if len(result.points) < 2:
        return section("Scaling", basis(result), *table)
    said = Bullets(findings(result), "findings")
    return section("Scaling", basis(result), said, *_figures(result), Heading("All sizes"), *table)


def _figures(result: Result) -> list[Box]:
    colours = bottleneck_colours(result)
    items = "".join(
        f'<li><i class="swatch" style="--c:{colours[run.kind]}"></i>'
        f"<span><b>{sizes_of(run)}</b> {escape(run.bottleneck)}</span></li>"
        for run in runs(result)
    )
    foot = "The strip at the foot of the efficiency figure has the same colours."
    speed, share, step = (
        Figure(draw(result), name, f"{what} against number of GPUs")
        for draw, name, what in (
            (draw_throughput, "scaling", "Throughput"),
            (draw_efficiency, "efficiency", "Efficiency"),
            (draw_step_time, "steptime", "Step time"),
        )
    )
    return [
        pair(
            [Heading(f"Throughput, {quantities.samples(result)} per second"), speed],
            [Heading("Efficiency, share of linear scaling"), share],
        ),
        pair(
            [Heading("Step time"), step],
            [
                Heading("What limits which size"),
                Markup(f'<ul class="limits">{items}</ul>'),
                *paragraphs([foot], "hint"),
            ],
        ),
    ]
