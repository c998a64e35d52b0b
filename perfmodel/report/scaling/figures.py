"""Figures of a scaling curve: throughput, step time and efficiency, each with its interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from perfmodel.report.common import quantities
from perfmodel.report.common.figures import (
    axis_layout,
    gpu_ticks,
    log_axis,
    log_ticks,
    new_figure,
    time_unit,
)
from perfmodel.report.common.palette import INK, QUIET_INK, WORK, channels
from perfmodel.report.scaling.analysis import GOOD, Range, SizeGain, knee, runs, size_gains
from perfmodel.studies.run.result.model import Result

if TYPE_CHECKING:
    import plotly.graph_objects as go


_OTHERS = ("#d55e00", "#e69f00", "#cc79a7", "#009e73", "#56b4e9")
"""Colours of bottlenecks other than compute and host, in the order in which they appear."""

_STRIP = 0.035
"""Height of the strip of bottlenecks, as a share of the figure."""

_ABOVE_CURVES = 0.84
"""Height of a label in the figure of throughput, whose curves rise from its lower left corner."""

BAND = "80\N{NO-BREAK SPACE}% interval"


def bottleneck_colours(result: Result) -> dict[str, str]:
    """Colour of each kind of bottleneck."""
    colours: dict[str, str] = {}
    for run in runs(result):
        if run.kind in colours:
            continue
        if run.limit == "compute":
            colours[run.kind] = WORK["backward"]
        elif run.limit == "host":
            colours[run.kind] = WORK["host"]
        else:
            others = sum(colour in _OTHERS for colour in colours.values())
            colours[run.kind] = _OTHERS[others % len(_OTHERS)]
    return colours


def draw_throughput(result: Result) -> go.Figure:
    """Draw throughput against GPUs, with its interval and the line of perfect scaling."""
    rows, sizes = size_gains(result), [point.gpus for point in result.points]
    speed = [point.samples_per_s for point in result.points]
    base = next((p for p in result.points if p.gpus == result.efficiency_base), result.points[0])
    ideal = [base.samples_per_s / base.gpus * gpus for gpus in sizes]
    figure = new_figure(360)
    _band(figure, rows, lambda row: row.samples, WORK["backward"])
    _curve(figure, result, speed, WORK["backward"])
    figure.add_scatter(  # drawn last, so that it shows where both lines coincide
        x=sizes,
        y=ideal,
        mode="lines",
        name="linear scaling",
        hoverinfo="skip",
        line={"dash": "dot", "color": INK, "width": 1.5},
    )
    lowest = min([*speed, *(row.samples[0] for row in rows if row.samples)])
    figure.update_xaxes(**_gpu_axis(result))
    highest = max([1.25 * max(ideal), *(1.05 * row.samples[1] for row in rows if row.samples)])
    figure.update_yaxes(**_log_axis(lowest * 0.8, highest))
    _note(figure, f"{result.scaling} scaling")
    _mark_knee(figure, result, _ABOVE_CURVES)
    return figure


def draw_step_time(result: Result) -> go.Figure:
    """Draw the step time against GPUs with its interval."""
    rows, steps = size_gains(result), [point.step_time_s for point in result.points]
    longest = max([*steps, *(p.interval_s[1] for p in result.points if p.interval_s)])
    unit, scale = time_unit(longest)
    figure = new_figure(300)

    def interval(row: SizeGain) -> Range | None:
        ends = row.point.interval_s
        return None if ends is None else (ends[0] / scale, ends[1] / scale)

    _band(figure, rows, interval, WORK["exposed communication"])
    _curve(figure, result, [s / scale for s in steps], WORK["exposed communication"])
    figure.update_xaxes(**_gpu_axis(result))
    figure.update_yaxes(**axis_layout(f"step time ({unit})", range=[0, 1.06 * longest / scale]))
    return figure


def draw_efficiency(result: Result) -> go.Figure:
    """Draw efficiency against GPUs with its interval, above a strip of bottlenecks."""
    rows = size_gains(result)
    values = [100 * point.scaling_efficiency for point in result.points]

    def interval(row: SizeGain) -> Range | None:
        ends = row.efficiency
        return None if ends is None else (100 * ends[0], 100 * ends[1])

    figure = new_figure(360)
    _band(figure, rows, interval, WORK["optimizer"])
    _curve(figure, result, values, WORK["optimizer"])
    highest = max([*values, *(100 * row.efficiency[1] for row in rows if row.efficiency)])
    top = max(105.0, 1.05 * highest)
    good, right = 100 * GOOD, values[-1] < 80  # where the curve leaves room for the label
    figure.add_hline(y=good, line={"color": QUIET_INK, "width": 1, "dash": "dot"}, layer="below")
    figure.add_annotation(
        text=f"{good:g} %",
        x=float(right),
        xref="paper",
        xanchor="right" if right else "left",
        y=good,
        yanchor="top",
        showarrow=False,
        font={"color": QUIET_INK, "size": 12},
    )
    figure.update_xaxes(**_gpu_axis(result))
    figure.update_yaxes(**axis_layout(range=[-_STRIP * 1.6 * top, top], ticksuffix=" %", tick0=0))
    _strip(figure, result)
    _mark_knee(figure, result)
    return figure


def _strip(figure: go.Figure, result: Result) -> None:
    """Colour the foot of the figure by what limits each size."""
    colours = bottleneck_colours(result)
    sizes = [point.gpus for point in result.points]
    edges = _edges(sizes)
    for run in runs(result):
        figure.add_shape(
            type="rect",
            layer="above",
            yref="paper",
            y0=0,
            y1=_STRIP,
            x0=edges[sizes.index(run.first)],
            x1=edges[sizes.index(run.last) + 1],
            fillcolor=colours[run.kind],
            line={"width": 0},
        )


def _edges(sizes: Sequence[int]) -> list[float]:
    """Borders between sizes on a logarithmic axis; the outer ones at the ends of the axis."""
    low, high = _gpu_span(sizes)
    middles = [math.sqrt(a * b) for a, b in pairwise(sizes)]
    return [10**low, *middles, 10**high]


def _curve(figure: go.Figure, result: Result, values: Sequence[float], colour: str) -> None:
    """Draw predicted values; sizes without an interval have hollow marks."""
    hollow = any(point.interval_s for point in result.points)
    symbols = [
        "circle-open" if hollow and point.interval_s is None else "circle"
        for point in result.points
    ]
    figure.add_scatter(
        x=[point.gpus for point in result.points],
        y=list(values),
        mode="lines+markers",
        name="predicted",
        hovertext=_hover(result),
        hoverinfo="text",
        line={"color": colour, "width": 2.5},
        marker={"size": 8, "symbol": symbols},
    )


def _band(
    figure: go.Figure,
    rows: Sequence[SizeGain],
    ends: Callable[[SizeGain], Range | None],
    colour: str,
) -> None:
    """Fill the interval over neighbouring sizes that have one; a size alone gets a bar."""
    fill = "rgba({},{},{},0.2)".format(*channels(colour))
    named = False
    for group in _neighbours(rows, ends):
        xs = [row.point.gpus for row, _ in group]
        low, high = [interval[0] for _, interval in group], [interval[1] for _, interval in group]
        wide = {"width": 0} if len(group) > 1 else {"width": 7, "color": fill}
        figure.add_scatter(
            x=xs + xs[::-1],
            y=high + low[::-1],
            mode="lines",
            fill="toself",
            fillcolor=fill,
            line=wide,
            marker={"color": fill},
            name=BAND,
            hoverinfo="skip",
            showlegend=not named,
        )
        named = True


def _neighbours(
    rows: Sequence[SizeGain], ends: Callable[[SizeGain], Range | None]
) -> list[list[tuple[SizeGain, Range]]]:
    """Runs of sizes that have an interval."""
    groups: list[list[tuple[SizeGain, Range]]] = [[]]
    for row in rows:
        interval = ends(row)
        if interval is not None:
            groups[-1].append((row, interval))
        elif groups[-1]:
            groups.append([])
    return [group for group in groups if group]


def _mark_knee(figure: go.Figure, result: Result, height: float = 0.12) -> None:
    """Draw where growing stops to pay; the label stands where no curve is."""
    reach = knee(result)
    if reach is None or reach.beyond is None:
        return
    figure.add_vline(x=reach.gpus, line={"color": QUIET_INK, "width": 1, "dash": "dash"})
    sizes = [point.gpus for point in result.points]
    right = reach.gpus * reach.gpus >= sizes[0] * sizes[-1]
    figure.add_annotation(
        text=f"knee {reach.gpus:,}",
        x=math.log10(reach.gpus),
        y=height,
        yref="paper",
        xref="x",
        xanchor="right" if right else "left",
        xshift=-4 if right else 4,
        showarrow=False,
        font={"color": QUIET_INK, "size": 12},
    )


def _note(figure: go.Figure, text: str) -> None:
    figure.add_annotation(
        text=text,
        x=0.09,
        y=0.98,
        xref="paper",
        yref="paper",
        showarrow=False,
        xanchor="left",
        yanchor="top",
        font={"color": QUIET_INK, "size": 13},
    )


def _gpu_span(sizes: Sequence[int]) -> Range:
    """Ends of an axis of sizes, as powers of ten."""
    room = 0.04 * math.log10(max(sizes) / min(sizes)) + 0.02
    return math.log10(min(sizes)) - room, math.log10(max(sizes)) + room


def _gpu_axis(result: Result) -> Mapping[str, Any]:
    ticks = gpu_ticks(result.points)
    span = list(_gpu_span([point.gpus for point in result.points]))
    return axis_layout(
        "GPUs", type="log", range=span, tickvals=ticks, ticktext=[f"{n:,}" for n in ticks]
    )


def _log_axis(low: float, high: float) -> Mapping[str, Any]:
    def write(tick: float) -> str:
        return quantities.count(tick) if tick < 1000 else f"{tick:,.0f}"

    return log_axis("", (low, high), log_ticks(low, high), write)


def _hover(result: Result) -> list[str]:
    return [_point_hover(result, row) for row in size_gains(result)]


def _point_hover(result: Result, row: SizeGain) -> str:
    point, samples = row.point, escape(quantities.samples_short(result))
    speed, share = (
        quantities.count(point.samples_per_s),
        quantities.percent(point.scaling_efficiency),
    )
    step = quantities.duration(point.step_time_s)
    lines = [
        f"<b>{quantities.gpus(point.gpus)}</b> on {quantities.nodes(point.nodes)}",
        f"{speed} {samples}/s{_ends(row.samples, quantities.count)}",
        f"{share} of linear scaling{_ends(row.efficiency, quantities.percent)}",
        f"step {step}{_ends(point.interval_s, quantities.duration)}",
        f"exposed communication {quantities.duration(point.exposed_comm_s)}",
        f"bottleneck: {escape(point.bottleneck, quote=False)}",
    ]
    if point.interval_s is None:
        lines.append(f"no interval: {quantities.NO_INTERVAL}")
    return "<br>".join(lines)


def _ends(interval: Range | None, write: Callable[[float], str]) -> str:
    return "" if interval is None else f" ({quantities.span(*interval, write)})"
