"""What a scaling curve says, in sentences.

The scaling curve as a section of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from perfmodel.report.common import quantities
from perfmodel.report.common.page import figure_html, figure_section, html_table
from perfmodel.report.run import tables
from perfmodel.report.scaling import figures
from perfmodel.report.scaling.analysis import (
    GOOD,
    WORTH,
    Reach,
    Run,
    ends,
    good_until,
    grown,
    knee,
    runs,
)
from perfmodel.studies.run.result import Result


def basis(result: Result) -> str:
    """What is held fixed over the sizes, and what efficiency is relative to."""
    if len(result.points) < 2:
        return (
            f"Only one size was asked for, {quantities.gpus(result.main.gpus)}, so how it scales is not "
            "known; scale in the scenario asks for more."
        )
    return f"{quantities.scaling(result)}. Efficiency is {quantities.efficiency_base(result)}."


def findings(result: Result) -> list[str]:
    """What the curve says, in sentences; empty for one size."""
    if len(result.points) < 2:
        return []
    said = [knee_sentence(result), good_sentence(result), *_limits(result), _most(result)]
    said += [*_without_interval(result), *_not_fitting(result)]
    return [sentence for sentence in said if sentence]


def knee_sentence(result: Result) -> str:
    """Say where the knee is, how far it moves within the intervals, and what comes after it."""
    found = knee(result)
    if found is None:
        return ""
    one = f"the throughput of one at {quantities.gpus(result.efficiency_base)}"
    if result.efficiency_base == 1:
        one = "the throughput of a single GPU"
    grown_to = (
        f"growing to it from any smaller size brings at least {quantities.percent(WORTH)} of {one} per "
        f"added GPU{_but(found)}"
    )
    if found.beyond is None:
        text = f"No knee up to {quantities.gpus(found.gpus)}: {grown_to}"
    else:
        smallest = found.gpus == result.points[0].gpus
        text = f"The knee is at {quantities.gpus(found.gpus)}"
        text += ", the smallest size: " if smallest else f": {grown_to}; "
        text += f"from {found.gpus:,} to {quantities.gpus(found.beyond)} an added GPU "
        brings = f"brings {quantities.percent(found.value)}{f' of {one}' if smallest else ''}"
        text += brings if found.value >= 0 else "lowers the total throughput"
    return f"{text}{_within(result, found, knee)}."


def _but(found: Reach) -> str:
    """Name smaller sizes that are an exception."""
    return f" (growing to {', '.join(f'{n:,}' for n in found.but)} does not)" if found.but else ""


def _within(
    result: Result, found: Reach, of: Callable[[Result, Sequence[float]], Reach | None]
) -> str:
    """Say how far a reach moves between the ends of the intervals."""
    reaches = [of(result, speeds) for speeds in ends(result) or ()]
    sizes = [reach.gpus for reach in reaches if reach is not None]
    if not sizes:
        return ""
    low, high = min(sizes), max(sizes)
    both = "both ends of the 80\N{NO-BREAK SPACE}% intervals"
    if low == high:
        return (
            f"; the same at {both}" if low == found.gpus else f"; {quantities.gpus(low)} at {both}"
        )
    return f"; from {low:,} to {quantities.gpus(high)} between {both}"


def good_sentence(result: Result) -> str:
    """Say how far efficiency is good, and what it is at the size asked about."""
    found = good_until(result)
    if found is None:
        return ""
    last, least = grown(result)[-1], quantities.percent(GOOD)
    but = f", but not on {', '.join(f'{n:,}' for n in found.but)}" if found.but else ""
    text = f"Efficiency is {least} or more up to {quantities.gpus(found.gpus)}{but}"
    text += f"{_within(result, found, good_until)}. At {quantities.gpus(last.point.gpus)} it is "
    text += quantities.percent(last.point.scaling_efficiency)
    if last.efficiency is not None:
        low, high = map(quantities.percent, last.efficiency)
        text += f" (80\N{NO-BREAK SPACE}% interval {low} to {high})"
    return f"{text}."


def _limits(result: Result) -> list[str]:
    found = runs(result)
    if len(found) == 1:
        return [f"The bottleneck is the same at every size: {found[0].bottleneck}."]
    return [f"Bottleneck: {'; '.join(f'{r.bottleneck} on {sizes_of(r)}' for r in found)}."]


def sizes_of(run: Run) -> str:
    """``"8 GPUs"``, ``"16 to 128 GPUs"``."""
    first = "" if run.first == run.last else f"{run.first:,} to "
    return f"{first}{quantities.gpus(run.last)}"


def _most(result: Result) -> str:
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
    if not missing:
        return []
    if len(missing) == len(result.points):
        return [f"No size has an interval: {quantities.no_interval_because(missing[-1])}."]
    sizes = ", ".join(f"{point.gpus:,}" for point in missing)
    reasons = dict.fromkeys(quantities.no_interval_because(point) for point in missing)
    return [f"No interval on {sizes} GPU{'s' * (sizes != '1')}: {'; '.join(reasons)}."]


def _not_fitting(result: Result) -> list[str]:
    sizes = [f"{point.gpus:,}" for point in result.points if not point.memory.fits]
    if not sizes:
        return []
    return [f"Does not fit in GPU memory on {', '.join(sizes)} GPUs: those rows are hypothetical."]


def section(result: Result) -> str:
    """Build the section: findings, figures with intervals, what limits each size, all sizes."""
    titles, rows, words_at = tables.listed(result)
    moved = [at for at, row in enumerate(grown(result)) if row.moved]
    listed = html_table(titles, rows, words_at=words_at, marked=moved)
    hints = tables.hints(result)
    if moved:
        hints.append("A line marks where the bottleneck changes.")
    listed += f'<p class="hint">{escape(" ".join(hints))}</p>' if hints else ""
    lead = basis(result)
    if len(result.points) < 2:
        return figure_section("Scaling", lead, listed)
    said = "".join(f"<li>{escape(sentence)}</li>" for sentence in findings(result))
    return figure_section(
        "Scaling", lead, f'<ul class="findings">{said}</ul>', _figures(result),
        f"<h3>All sizes</h3>{listed}",
    )  # fmt: skip


def _figures(result: Result) -> str:
    speed = figure_html(figures.throughput(result), "scaling", "Throughput against number of GPUs")
    share = figure_html(
        figures.efficiency(result), "efficiency", "Efficiency against number of GPUs"
    )
    steps = figure_html(figures.step_time(result), "steptime", "Step time against number of GPUs")
    samples = escape(quantities.samples(result))
    return (
        f'<div class="pair"><div><h3>Throughput, {samples} per second</h3>{speed}</div>'
        f"<div><h3>Efficiency, share of linear scaling</h3>{share}</div></div>"
        f'<div class="pair"><div><h3>Step time</h3>{steps}</div>'
        f"<div><h3>What limits which size</h3>{_limit_table(result)}</div></div>"
    )


def _limit_table(result: Result) -> str:
    colours = figures.bottleneck_colours(result)
    items = "".join(
        f'<li><i class="swatch" style="--c:{colours[run.kind]}"></i>'
        f"<span><b>{sizes_of(run)}</b> {escape(run.bottleneck)}</span></li>"
        for run in runs(result)
    )
    foot = "The strip at the foot of the efficiency figure has the same colours."
    return f'<ul class="limits">{items}</ul><p class="hint">{foot}</p>'
