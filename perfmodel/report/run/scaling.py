"""What a scaling curve says, in sentences and as a section of the page.

Figures of a scaling curve: throughput, step time and efficiency, each with its interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, groupby, pairwise
from typing import Any

from perfmodel.memo import first_applying, grouped
from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    Box,
    Bullets,
    Figure,
    Heading,
    Markup,
    Paragraph,
    Section,
    pair,
    paragraphs,
    section,
)
from perfmodel.report.common.figures import (
    Drawing,
    add_note,
    axis_layout,
    band,
    gpu_ticks,
    lines,
    log_axis,
    log_ticks,
    new_figure,
    time_unit,
)
from perfmodel.report.common.palette import INK, QUIET_INK, WORK, channels
from perfmodel.report.run import sizes
from perfmodel.report.run.sizes import (
    GOOD_EFFICIENCY,
    WORTHWHILE_GAIN_SHARE,
    Range,
    Reach,
    Run,
    ends,
    good_until,
    knee,
    linear_speeds,
    runs,
    size_gains,
)
from perfmodel.report.topology_layout import has_layers
from perfmodel.studies.run.result import Result


def basis(result: Result) -> str:
    """What is held fixed over the sizes, and what efficiency is relative to."""
    size = quantities.gpus(result.main.gpus)
    efficiency = f"Efficiency is {quantities.efficiency_base(result)}."
    return first_applying(
        (len(result.points) > 1, f"{quantities.scaling(result)}. {efficiency}"),
        (
            not has_layers(result.topology),
            f"A graph is one size, {size}, so how it scales is not known.",
        ),
        (
            True,
            (
                f"Only one size was asked for, {size}, so how it scales is not known; `scale` in "
                "the scenario asks for more."
            ),
        ),
    )


def findings(result: Result) -> list[str]:
    """What the curve says, in sentences; empty for one size."""
    points = result.points
    if len(points) < 2:
        return []
    joined, best = runs(result), max(points, key=lambda point: point.samples_per_s)
    limits = "; ".join(f"{run.first.bottleneck} on {sizes_of(run)}" for run in joined)
    missing = [f"{point.gpus:,}" for point in points if point.interval_s is None]
    lacking = f"{', '.join(missing)} GPU{'' if missing == ['1'] else 's'}"
    too_big = ", ".join(f"{point.gpus:,}" for point in points if not point.memory.fits)
    return [
        sentence
        for applies, sentence in (
            (True, knee_sentence(result)),
            (True, good_sentence(result)),
            (
                len(joined) == 1,
                f"The bottleneck is the same at every size: {joined[0].first.bottleneck}.",
            ),
            (len(joined) > 1, f"Bottleneck: {limits}."),
            (True, quantities.slowest(result)),
            (
                best is not result.main,
                (
                    f"The quickest size is {quantities.gpus(best.gpus)}, not the largest: "
                    f"{quantities.count(best.samples_per_s)} {result.samples.units}/s"
                    f"{'' if best.memory.fits else ', if it fitted in GPU memory'}."
                ),
            ),
            (
                len(missing) == len(points),
                f"No size has an interval: {quantities.NO_INTERVAL}.",
            ),
            (
                0 < len(missing) < len(points),
                f"No interval on {lacking}: {quantities.NO_INTERVAL}.",
            ),
            (
                too_big,
                f"Does not fit in GPU memory on {too_big} GPUs: those rows are hypothetical.",
            ),
        )
        if applies and sentence
    ]


def knee_sentence(result: Result) -> str:
    """Say where the knee is, how far it moves within the intervals, and what comes after it."""
    reach = knee(result)
    if reach is None:
        return ""
    but = ", ".join(f"{size:,}" for size in reach.exceptions)
    base = (
        "what one GPU trains alone"
        if result.efficiency_base == 1
        else f"what a GPU of {quantities.gpus(result.efficiency_base)} trains"
    )
    grown_to = (
        "from any smaller size on each added GPU brings at least "
        f"{quantities.percent(WORTHWHILE_GAIN_SHARE)} of {base}"
        f"{f' (growing to {but} does not)' if but else ''}"
    )
    text = f"No knee up to {quantities.gpus(reach.gpus)}: {grown_to}"
    if reach.beyond is not None:
        smallest = reach.gpus == result.points[0].gpus
        brings = f"brings {quantities.percent(reach.value)}{f' of {base}' if smallest else ''}"
        text = (
            f"The knee is at {quantities.gpus(reach.gpus)}"
            f"{', the smallest size: ' if smallest else f': {grown_to}; '}"
            f"from {reach.gpus:,} to {quantities.gpus(reach.beyond)} an added GPU "
            f"{brings if reach.value >= 0 else 'lowers the total throughput'}"
        )
    return f"{text}{_within_intervals(result, reach, knee)}."


def _within_intervals(
    result: Result, reach: Reach, of: Callable[[Result, Sequence[float]], Reach | None]
) -> str:
    """Say how far a reach moves between the ends of the intervals."""
    reaches = (of(result, speeds) for speeds in ends(result) or ())
    gpus = {each.gpus for each in reaches if each is not None}
    if not gpus:
        return ""
    low, high = min(gpus), quantities.gpus(max(gpus))
    where = first_applying(
        (len(gpus) > 1, f"{low:,} or {high} at the"),
        (low == reach.gpus, "the same at both"),
        (True, f"{high} at both"),
    )
    return f"; {where} ends of the 80\N{NO-BREAK SPACE}% intervals"


def good_sentence(result: Result) -> str:
    """Say up to which size efficiency is good, and what it is at the largest."""
    reach = good_until(result)
    if reach is None:
        return ""
    last, but = result.points[-1], ", ".join(f"{size:,}" for size in reach.exceptions)
    ends = " to ".join(map(quantities.percent, last.scaling_efficiency_interval or ()))
    interval = f" (80\N{NO-BREAK SPACE}% interval {ends})" if ends else ""
    return (
        f"Efficiency is {quantities.percent(GOOD_EFFICIENCY)} or more up to "
        f"{quantities.gpus(reach.gpus)}"
        f"{f', but not on {but}' if but else ''}{_within_intervals(result, reach, good_until)}. "
        f"At {quantities.gpus(last.gpus)} it is {quantities.percent(last.scaling_efficiency)}"
        f"{interval}."
    )


def sizes_of(run: Run) -> str:
    """``"8 GPUs"``, ``"16 to 128 GPUs"``."""
    last = quantities.gpus(run.last.gpus)
    return last if run.first is run.last else f"{run.first.gpus:,} to {last}"


def scaling_section(result: Result) -> Section:
    """Build the section: findings, figures with intervals, what limits each size, all sizes."""
    moved = [number for number, size in enumerate(size_gains(result)) if size.moved]
    hints = sizes.hints(result) + (["A line marks where the bottleneck changes."] if moved else [])
    several = len(result.points) > 1
    return section(
        "Scaling",
        basis(result),
        *([Bullets(findings(result), "findings"), *_figures(result)] if several else []),
        Heading("All sizes") if several else None,
        sizes.sizes_table(result, moved),
        *paragraphs([" ".join(hints)], "hint"),
    )


def _figures(result: Result) -> list[Box]:
    from html import escape

    colours = bottleneck_colours(result)
    items = "".join(
        f'<li><i class="swatch" style="--c:{colours[run.kind]}"></i>'
        f"<span><b>{sizes_of(run)}</b> {escape(run.first.bottleneck)}</span></li>"
        for run in runs(result)
    )
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
                Paragraph(
                    "The strip at the foot of the efficiency figure has the same colours.", "hint"
                ),
            ],
        ),
    ]


_OTHERS = ("#d55e00", "#e69f00", "#cc79a7", "#009e73", "#56b4e9")
"""Colours of bottlenecks other than compute and host, in the order in which they appear."""

_STRIP_HEIGHT_SHARE = 0.035
"""Height of the strip of bottlenecks, as a share of the figure."""

_ABOVE_CURVES = 0.84
"""Height of a label in the figure of throughput, whose curves rise from its lower left corner."""


def bottleneck_colours(result: Result) -> dict[str, str]:
    """Colour of each kind of bottleneck."""
    own, others = {"compute": WORK["backward"], "host": WORK["host"]}, cycle(_OTHERS)
    limits = grouped((run.kind, run.first.limit) for run in runs(result))
    return {kind: own.get(first) or next(others) for kind, (first, *_) in limits.items()}


def draw_throughput(result: Result) -> Drawing:
    """Draw throughput against GPUs, with its interval and the line of perfect scaling."""
    ideal, speed = linear_speeds(result), [point.samples_per_s for point in result.points]
    ends = [row.samples for row in size_gains(result)]
    lowest = min([*speed, *(low for low, _ in filter(None, ends))])
    highest = max([1.25 * max(ideal), *(1.05 * high for _, high in filter(None, ends))])
    figure = new_figure(
        360,
        [
            *_curve(result, speed, ends, WORK["backward"]),
            lines(  # drawn last, so that it shows where both lines coincide
                "linear scaling",
                [point.gpus for point in result.points],
                ideal,
                {"dash": "dot", "color": INK, "width": 1.5},
            ),
        ],
        x=_gpu_axis(result),
        y=log_axis(
            "",
            (lowest * 0.8, highest),
            log_ticks(lowest * 0.8, highest),
            lambda tick: quantities.count(tick) if tick < 1000 else f"{tick:,.0f}",
        ),
    )
    add_note(
        figure,
        f"{result.scaling} scaling",
        x=0.09,
        y=0.98,
        xref="paper",
        yref="paper",
        xanchor="left",
        yanchor="top",
        font={"color": QUIET_INK, "size": 13},
    )
    _mark_knee(figure, result, _ABOVE_CURVES)
    return figure


def draw_step_time(result: Result) -> Drawing:
    """Draw the step time against GPUs with its interval."""
    steps = [point.step_time_s for point in result.points]
    longest = max([*steps, *(p.interval_s[1] for p in result.points if p.interval_s)])
    unit, scale = time_unit(longest)
    return new_figure(
        300,
        _curve(
            result,
            [step / scale for step in steps],
            [_scaled(point.interval_s, 1 / scale) for point in result.points],
            WORK["exposed communication"],
        ),
        x=_gpu_axis(result),
        y=axis_layout(f"step time ({unit})", range=[0, 1.06 * longest / scale]),
    )


def draw_efficiency(result: Result) -> Drawing:
    """Draw efficiency against GPUs with its interval, above a strip of bottlenecks."""
    values = [100 * point.scaling_efficiency for point in result.points]
    ends = [_scaled(row.efficiency, 100) for row in size_gains(result)]
    top = max([105.0, 1.05 * max([*values, *(high for _, high in filter(None, ends))])])
    good, right = 100 * GOOD_EFFICIENCY, values[-1] < 80  # where there is room for the label
    figure = new_figure(
        360,
        _curve(result, values, ends, WORK["optimizer"]),
        x=_gpu_axis(result),
        y=axis_layout(range=[-_STRIP_HEIGHT_SHARE * 1.6 * top, top], ticksuffix=" %", tick0=0),
    )
    figure.add_hline(y=good, line={"color": QUIET_INK, "width": 1, "dash": "dot"}, layer="below")
    add_note(
        figure,
        f"{good:g} %",
        x=float(right),
        xref="paper",
        xanchor="right" if right else "left",
        y=good,
        yanchor="top",
    )
    _strip(figure, result)
    _mark_knee(figure, result)
    return figure


def _scaled(ends: Range | None, factor: float) -> Range | None:
    return None if ends is None else (factor * ends[0], factor * ends[1])


def _strip(figure: Drawing, result: Result) -> None:
    """Colour the foot of the figure by what limits each size; borders lie between sizes."""
    colours, sizes = bottleneck_colours(result), [point.gpus for point in result.points]
    low, high = _gpu_span(sizes)
    edges = [10**low, *(math.sqrt(a * b) for a, b in pairwise(sizes)), 10**high]
    for run in runs(result):
        figure.add_shape(
            type="rect",
            layer="above",
            yref="paper",
            y0=0,
            y1=_STRIP_HEIGHT_SHARE,
            x0=edges[sizes.index(run.first.gpus)],
            x1=edges[sizes.index(run.last.gpus) + 1],
            fillcolor=colours[run.kind],
            line={"width": 0},
        )


def _curve(
    result: Result, values: Sequence[float], ends: Sequence[Range | None], colour: str
) -> Iterator[dict[str, Any]]:
    """Describe predicted values and their intervals; sizes without one have hollow marks.

    The interval is filled over neighbouring sizes that have one; a size alone gets a bar.
    """
    sizes = [point.gpus for point in result.points]
    fill = "rgba({},{},{},0.2)".format(*channels(colour))
    neighbours = groupby(zip(sizes, ends, strict=True), lambda pair: pair[1] is not None)
    for at, group in enumerate([*pairs] for has_interval, pairs in neighbours if has_interval):
        yield band(
            [size for size, _ in group],
            [interval for _, interval in group if interval is not None],
            fill,
            line={"width": 0} if len(group) > 1 else {"width": 7, "color": fill},
            marker={"color": fill},
            name=quantities.INTERVAL,
            showlegend=at == 0,
        )
    hollow = any(point.interval_s for point in result.points)
    yield lines(
        "predicted",
        sizes,
        values,
        {"color": colour, "width": 2.5},
        mode="lines+markers",
        hovertext=_hover(result),
        marker={
            "size": 8,
            "symbol": [
                "circle-open" if hollow and point.interval_s is None else "circle"
                for point in result.points
            ],
        },
    )


def _mark_knee(figure: Drawing, result: Result, height: float = 0.12) -> None:
    """Draw where growing stops to pay; the label stands where no curve is."""
    reach = knee(result)
    if reach is None or reach.beyond is None:
        return
    figure.add_vline(x=reach.gpus, line={"color": QUIET_INK, "width": 1, "dash": "dash"})
    right = reach.gpus * reach.gpus >= result.points[0].gpus * result.points[-1].gpus
    add_note(
        figure,
        f"knee {reach.gpus:,}",
        x=math.log10(reach.gpus),
        y=height,
        yref="paper",
        xref="x",
        xanchor="right" if right else "left",
        xshift=-4 if right else 4,
    )


def _gpu_span(sizes: Sequence[int]) -> Range:
    """Ends of an axis of sizes, as powers of ten."""
    room = 0.04 * math.log10(max(sizes) / min(sizes)) + 0.02
    return math.log10(min(sizes)) - room, math.log10(max(sizes)) + room


def _gpu_axis(result: Result) -> Mapping[str, Any]:
    ticks, sizes = gpu_ticks(result.points), [point.gpus for point in result.points]
    return axis_layout(
        "GPUs",
        type="log",
        range=list(_gpu_span(sizes)),
        tickvals=ticks,
        ticktext=[f"{gpus:,}" for gpus in ticks],
    )


def _hover(result: Result) -> list[str]:
    from html import escape

    def ends(interval: Range | None, write: Callable[[float], str]) -> str:
        return "" if interval is None else f" ({quantities.span(*interval, write)})"

    unit, none = escape(result.samples.units), f"no interval: {quantities.NO_INTERVAL}"
    return [
        f"<b>{quantities.gpus(point.gpus)}</b> on {quantities.nodes(point.nodes)}<br>"
        f"{quantities.count(point.samples_per_s)} {unit}/s{ends(row.samples, quantities.count)}<br>"
        f"{quantities.percent(point.scaling_efficiency)} of linear scaling"
        f"{ends(row.efficiency, quantities.percent)}<br>"
        f"step {quantities.duration(point.step_time_s)}"
        f"{ends(point.interval_s, quantities.duration)}<br>"
        f"exposed communication {quantities.duration(point.exposed_comm_s)}<br>"
        f"bottleneck: {escape(point.bottleneck, quote=False)}"
        + ("" if point.interval_s else f"<br>{none}")
        for row, point in ((row, row.point) for row in size_gains(result))
    ]
