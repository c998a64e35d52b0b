"""Common style of figures; the figures of a step's parts and of memory."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.report.common import quantities
from perfmodel.report.common.palette import FONT, INK, MEMORY, QUIET_INK, RULE, WORK
from perfmodel.studies.run.result.model import Result, SizeResult
from perfmodel.studies.run.result.usage import Memory

if TYPE_CHECKING:
    import plotly.graph_objects as go


_UNEVEN = 4.0
"""Steps that differ by more than this factor are drawn as shares, or short ones would vanish."""

_FEW_TICKS = 3
"""Labels of a logarithmic axis, fewer than which do not say that it is one."""

_WORD = re.compile(r"[^\s._=]+[\s._=]*|[\s._=]+")
"""Parts of a label between which a line may break: words, and names of fields at their joints."""
_OVER = 4
"""Characters by which a single word may be longer than a line before it is cut."""

_BREAK = "\\u003cbr>"
"""A line break within a text, as plotly writes it into a script."""
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_TEXTS = re.compile(
    rf'("(?:hovertext|text|color)":)\[({_TEXT.pattern}(?:,{_TEXT.pattern}){{30,}})\]'
)
"""Lists of more than 30 texts; a quote within a text has a backslash, so that keys are keys."""
_NUMBERS = re.compile(r'("(?:base|x|y)":)\[((?:-?[0-9.e+-]+,){30,}-?[0-9.e+-]+)\]')
"""Lists of more than 30 numbers."""

_TIME_UNITS = (("us", 1e-6), ("ms", 1e-3), ("s", 1.0))


def new_figure(height: int, **layout: Any) -> go.Figure:
    """Empty figure in the house style; plots other than the timeline do not zoom."""
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(
        template="none",
        height=height,
        font={"family": FONT, "size": 13, "color": INK},
        margin={"l": 2, "r": 26, "t": 12, "b": 12, "pad": 4},
        paper_bgcolor="rgba(0,0,0,0)",  # that of the page, light or dark
        plot_bgcolor="rgba(0,0,0,0)",
        hoverlabel={
            "bgcolor": "white",
            "bordercolor": QUIET_INK,
            "font": {"color": INK, "family": FONT, "size": 13},
            "align": "left",
        },
        dragmode=False,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        **layout,
    )
    return figure


def axis_layout(title: str = "", **more: Any) -> dict[str, Any]:
    """Describe an axis in the house style."""
    return {
        "title": {"text": title, "font": {"size": 13, "color": QUIET_INK}, "standoff": 8},
        "gridcolor": RULE,
        "linecolor": QUIET_INK,
        "tickfont": {"size": 12, "color": QUIET_INK},
        "zeroline": False,
        "automargin": True,
        "fixedrange": True,
    } | more


def short_label(text: str, line: int = 20) -> str:
    """Break a label of an axis into at most two lines, escaped for plotly, with a gap at the end.

    A longer one is cut: a phone has no room for both labels and bars.
    """
    lines = [""]
    for word in _WORD.findall(text):
        if lines[-1] and len((lines[-1] + word).rstrip()) > line:
            lines.append("")
        lines[-1] += word
    first_two = [each.rstrip() for each in lines[:2]]
    cut = len(lines) > 2 or max(map(len, first_two)) > line + _OVER
    if cut:
        first_two = [each[: line + _OVER] for each in first_two]
        first_two[-1] = f"{first_two[-1][: line - 1]}\N{HORIZONTAL ELLIPSIS}"
    return "<br>".join(f"{escape(each, quote=False)} " for each in first_two)


def log_axis(
    title: str,
    ends: tuple[float, float],
    ticks: Sequence[float],
    write: Callable[[float], str],
    **more: Any,
) -> dict[str, Any]:
    """Describe a logarithmic axis from one end to the other, with labels at `ticks`."""
    span, labels = [math.log10(end) for end in ends], [write(tick) for tick in ticks]
    return axis_layout(title, type="log", range=span, tickvals=ticks, ticktext=labels, **more)


def time_unit(longest_s: float, least: float = 2.0) -> tuple[str, float]:
    """Return the unit for an axis that reaches `longest_s`, `least` units or more; its seconds."""
    fitting = [unit for unit in _TIME_UNITS if longest_s >= least * unit[1]]
    return fitting[-1] if fitting else _TIME_UNITS[0]


def bar_times(unit: str) -> str:
    """Begin and end of a bar along the axis of time, in the language of plotly's templates.

    The browser writes them from the bar itself: as text they would be half of a page's figures.
    """
    return f"<br>%{{base:.5~r}} to %{{x:.5~r}}\N{NO-BREAK SPACE}{unit}"


def label_rows(figure: go.Figure, labels: Sequence[str], title: str, **axis: Any) -> None:
    """Name the rows of horizontal bars from top to bottom, and what their lengths are."""
    figure.update_xaxes(**axis_layout(title, **axis))
    figure.update_yaxes(
        **axis_layout(
            autorange="reversed",
            tickvals=list(range(len(labels))),
            ticktext=labels,
            showgrid=False,
        )
    )


def title_row(figure: go.Figure, height: float, text: str) -> None:
    """Write a title at the left of a figure, above the bars of a row."""
    figure.add_annotation(
        x=0,
        xref="paper",
        y=height,
        xanchor="left",
        yanchor="bottom",
        showarrow=False,
        text=text,
        font={"size": 12, "color": QUIET_INK},
    )


def error_bars(values: Sequence[float], ends: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Describe intervals around values, which may lie on one side of them."""
    pairs = list(zip(values, ends, strict=True))
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, high - value) for value, (_, high) in pairs],
        "arrayminus": [max(0.0, value - low) for value, (low, _) in pairs],
    }


def gpu_ticks(points: Sequence[SizeResult], apart: float = 0.09) -> list[int]:
    """Choose sizes to label, the first and the last among them, on a logarithmic axis.

    Labels stand at least the share `apart` of the axis from each other.
    """
    sizes = [point.gpus for point in points]
    span = math.log(sizes[-1] / sizes[0]) or 1.0
    labelled = [sizes[-1]]
    for size in reversed(sizes[:-1]):
        if math.log(labelled[-1] / size) >= apart * span:
            labelled.append(size)
    if labelled[-1] != sizes[0]:
        labelled[-1:] = [sizes[0]] if len(labelled) > 1 else [labelled[-1], sizes[0]]
    return labelled[::-1]


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values between `low` and `high`, spread evenly on a logarithmic axis."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = range(first, last + 1)
    inside: list[float] = []
    for steps in ((1, 2, 5), (1, 3), (1,)):
        inside = _round_values(steps, decades, low, high)
        if len(inside) <= most:
            break
    more = _round_values((1, 2, 3, 4, 6, 8), decades, low, high)
    return more if len(inside) < _FEW_TICKS and len(more) <= most else inside


def _round_values(
    steps: Sequence[int], decades: Sequence[int], low: float, high: float
) -> list[float]:
    values = [step * 10.0**decade for decade in decades for step in steps]
    return [value for value in values if low <= value <= high]


def draw_breakdown(result: Result) -> go.Figure:
    """Draw where the step's time goes at each size, as times or (if uneven) as shares.

    One size alone is a bar from left to right, as wide as the page and no taller than it needs.
    """
    steps = [point.step_time_s for point in result.points]
    shares = max(steps) > _UNEVEN * min(steps)
    unit, scale = ("%", 0.01) if shares else time_unit(max(steps))
    lies = len(result.points) == 1
    figure = new_figure(130 if lies else 360, barmode="stack", bargap=0.35)
    names = [f"{point.gpus:,}" for point in result.points]
    for part in _parts(result.points):
        times = [point.breakdown_s.get(part, 0.0) for point in result.points]
        values = [t / (s if shares else 1) / scale for t, s in zip(times, steps, strict=True)]
        figure.add_bar(
            x=values if lies else names,
            y=[""] if lies else values,
            orientation="h" if lies else "v",
            name=part,
            marker={"color": WORK.get(part, WORK["host"])},
            hoverinfo="text",
            hovertext=[
                f"<b>{quantities.gpus(point.gpus)}</b><br>{escape(part)} "
                f"{quantities.duration(time)}<br>"
                f"{quantities.percent(time / point.step_time_s)} of the step"
                for point, time in zip(result.points, times, strict=True)
            ],
        )
    title = "share of the step" if shares else f"time per step ({unit})"
    if lies:
        figure.update_xaxes(**axis_layout(title, range=[0, 1.02 * max(steps) / scale]))
        figure.update_yaxes(**axis_layout(showticklabels=False, showgrid=False, showline=False))
        return figure
    figure.update_xaxes(**axis_layout("GPUs", type="category", showgrid=False))
    figure.update_yaxes(**axis_layout(title, rangemode="tozero", ticksuffix=" %" if shares else ""))
    return figure


def _parts(points: Sequence[SizeResult]) -> list[str]:
    """Parts of the step that matter somewhere, in the order of the palette."""
    present = {
        part
        for point in points
        for part, time in point.breakdown_s.items()
        if time > 1e-4 * point.step_time_s
    }
    return [part for part in WORK if part in present] + sorted(present - WORK.keys())


def draw_memory(part: Memory) -> go.Figure:
    """Draw memory per GPU as one bar against the device's capacity."""
    gib = 2.0**30
    parts = {
        "parameters": part.parameters_bytes,
        "gradients": part.gradients_bytes,
        "optimizer states": part.optimizer_bytes,
        "buckets": part.buckets_bytes,
        "activations": part.activations_bytes,
        "gathered units": part.gathered_bytes,
        "temporary": part.temporary_bytes,
    }
    figure = new_figure(150, barmode="stack")
    for name, nbytes in parts.items():
        if not nbytes:
            continue
        figure.add_bar(
            x=[nbytes / gib],
            y=[""],
            orientation="h",
            width=0.6,
            hoverinfo="text",
            name=f"{name} {quantities.size(nbytes)}",
            marker={"color": MEMORY[name]},
            hovertext=[f"{name}: {quantities.size(nbytes)}"],
        )
    capacity = part.capacity_bytes / gib
    figure.add_vline(x=capacity, line={"color": INK, "width": 2})
    figure.add_annotation(
        x=capacity,
        y=1,
        yref="paper",
        yanchor="bottom",
        xanchor="right",
        showarrow=False,
        text=f"capacity {quantities.size(part.capacity_bytes)}",
        font={"size": 12},
    )
    figure.update_layout(margin={"t": 28})
    longest = max(capacity, part.total_bytes / gib)
    figure.update_xaxes(**axis_layout("GiB per GPU", range=[0, 1.02 * longest]))
    figure.update_yaxes(**axis_layout(showticklabels=False, showgrid=False, showline=False))
    return figure


def pack(drawing: str) -> str:
    """Write long lists in a script of plotly's shortly.

    Texts become calls of `texts` of page.js: what is between line breaks is written once, and each
    text as the numbers of its parts. Numbers become plotly's arrays of bytes, of 7 digits.
    """
    return _NUMBERS.sub(_packed_numbers, _TEXTS.sub(_packed_texts, drawing))


def _packed_texts(match: re.Match[str]) -> str:
    lines: dict[str, int] = {}
    numbers = []
    for text in _TEXT.findall(match[2]):
        parts = [lines.setdefault(part, len(lines)) for part in text.split(_BREAK)]
        numbers.append(f"{parts[0]}" if len(parts) == 1 else f"[{','.join(map(str, parts))}]")
    quoted = ",".join(f'"{line}"' for line in lines)
    return f"{match[1]}texts([{quoted}],[{','.join(numbers)}])"


def _packed_numbers(match: re.Match[str]) -> str:
    values = np.array(match[2].split(","), dtype=np.float64)
    small = np.all(values == values.astype(np.int8))
    data = values.astype("<i1" if small else "<f4").tobytes()
    code = base64.b64encode(data).decode("ascii")
    return f'{match[1]}{{"dtype":"{"i1" if small else "f4"}","bdata":"{code}"}}'
