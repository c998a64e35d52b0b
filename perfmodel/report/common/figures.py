"""Common style of figures; the figures of a step's parts and of memory."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from perfmodel.report.common import quantities
from perfmodel.report.common.palette import FONT, INK, MEMORY, QUIET_INK, RULE, WORK
from perfmodel.studies.run.result import Result, SizeResult
from perfmodel.studies.run.usage import Memory

if TYPE_CHECKING:
    import plotly.graph_objects as go


Drawing: TypeAlias = "go.Figure"
"""A figure of plotly, which is imported where one is made."""


def size_axis(ends: tuple[float, float], powers: range) -> dict[str, Any]:
    """Describe a logarithmic axis of sizes, labelled at some of these powers of two."""
    labelled = powers[:: max(1, -(-(len(powers) - 1) // (_SIZE_LABELS - 1)))]
    return log_axis(
        "size",
        ends,
        [2.0**power for power in labelled] or [ends[0]],
        lambda size: quantities.whole(quantities.size(size)),
    )


_UNEVEN_STEPS_RATIO = 4.0
"""Steps that differ by more than this factor are drawn as shares, or short ones would vanish."""

_FEW_TICKS = 3
"""Labels of a logarithmic axis, fewer than which do not say that it is one."""

_WORD = re.compile(r"[^\s._=]+[\s._=]*|[\s._=]+")
"""Parts of a label between which a line may break: words, and names of fields at their joints."""
_LONGEST_WORD_EXCESS_CHARACTERS = 4
"""Characters by which a single word may be longer than a line before it is cut."""

_BREAK = "\\u003cbr>"
"""A line break within a text, as plotly writes it into a script."""
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_TEXTS = re.compile(
    rf'("(?:hovertext|text|color)":)\[({_TEXT.pattern}(?:,{_TEXT.pattern}){{30,}})\]'
)
"""Lists of more than 30 texts; a quote within a text has a backslash, so that keys are keys."""
_NUMBERS = re.compile(r'("(?:base|x|y)":)\[((?:[0-9.e+-]+,){30,}[0-9.e+-]+)\]')
"""Lists of more than 30 numbers; a sign is written once, or lists with a null take seconds."""

_SIZE_LABELS = 6
"""Labels of an axis of sizes, at most."""

_TIME_UNITS = (("us", 1e-6), ("ms", 1e-3), ("s", 1.0))


def new_figure(
    height: int,
    traces: Iterable[Mapping[str, Any]] = (),
    *,
    x: Mapping[str, Any] | None = None,
    y: Mapping[str, Any] | None = None,
    margin: Mapping[str, int] | None = None,
    **layout: Any,
) -> Drawing:
    """Make a figure in the house style; plots other than the timeline do not zoom.

    `traces`: as plotly describes them, with their ``type``; more can be added.
    `x`, `y`: what `axis_layout` makes.
    `margin`: ends that differ from the usual ones.
    """
    import plotly.graph_objects as go

    axes = {name: axis for name, axis in (("xaxis", x), ("yaxis", y)) if axis is not None}
    usual: dict[str, Any] = {
        "template": "none",
        "height": height,
        "font": {"family": FONT, "size": 13, "color": INK},
        "margin": {"l": 2, "r": 26, "t": 12, "b": 12, "pad": 4} | dict(margin or {}),
        "paper_bgcolor": "rgba(0,0,0,0)",  # that of the page, light or dark
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {
            "bgcolor": "white",
            "bordercolor": QUIET_INK,
            "font": {"color": INK, "family": FONT, "size": 13},
            "align": "left",
        },
        "dragmode": False,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    }
    return go.Figure(list(traces), usual | axes | layout)


def add_note(figure: Drawing, text: str, **place: Any) -> None:
    """Write small quiet text into a figure, without an arrow."""
    figure.add_annotation(
        **({"text": text, "showarrow": False, "font": {"size": 12, "color": QUIET_INK}} | place)
    )


def bars(
    name: str, x: Sequence[Any], y: Sequence[Any], colour: str, hover: Sequence[str], **more: Any
) -> dict[str, Any]:
    """Describe bars of one colour with a text of each; without a name they have no legend."""
    return {
        "type": "bar",
        "name": name or None,
        "x": x,
        "y": y,
        "marker": {"color": colour},
        "hoverinfo": "text",
        "hovertext": hover,
    } | more


def time_bars(
    name: str,
    colour: str,
    placed: Iterable[tuple[float, float, float, str]],
    scale: float,
    *,
    width: float | Sequence[float],
    line: Mapping[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """Describe bars along an axis of time.

    `placed`: height, begin and end in seconds, and text of each.
    `scale`: seconds of the axis's unit.
    `line`: edge of the bars.
    """
    heights, starts_s, ends_s, hover = zip(*placed, strict=True)
    return bars(
        name,
        [(end_s - start_s) / scale for start_s, end_s in zip(starts_s, ends_s, strict=True)],
        list(heights),
        colour,
        list(hover),
        orientation="h",
        base=[start_s / scale for start_s in starts_s],
        width=width,
        marker={"color": colour, "line": line},
        **more,
    )


def lines(
    name: str, x: Sequence[Any], y: Sequence[Any], line: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """Describe a line; one without ``hovertext`` says nothing when it is pointed at."""
    return {
        "type": "scatter",
        "name": name or None,
        "x": x,
        "y": y,
        "mode": "lines",
        "line": line,
        "hoverinfo": "text" if "hovertext" in more else "skip",
    } | more


def band(
    x: Sequence[Any], ends: Sequence[Sequence[float]], colour: str, **more: Any
) -> dict[str, Any]:
    """Describe the area between low and high ends."""
    return {
        "type": "scatter",
        "x": [*x, *reversed(x)],
        "y": [*(end[1] for end in ends), *(end[0] for end in reversed(ends))],
        "fill": "toself",
        "fillcolor": colour,
        "mode": "lines",
        "hoverinfo": "skip",
        "line": {"width": 0, "color": colour},
    } | more


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
    from html import escape

    lines = [""]
    for word in _WORD.findall(text):
        if lines[-1] and len((lines[-1] + word).rstrip()) > line:
            lines.append("")
        lines[-1] += word
    first_two = [each.rstrip() for each in lines[:2]]
    if len(lines) > 2 or max(map(len, first_two)) > line + _LONGEST_WORD_EXCESS_CHARACTERS:
        first_two = [each[: line + _LONGEST_WORD_EXCESS_CHARACTERS] for each in first_two]
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


def label_rows(labels: Sequence[str], title: str, **axis: Any) -> dict[str, dict[str, Any]]:
    """Describe both axes of horizontal bars: names of rows from the top, what lengths are."""
    rows: dict[str, Any] = {
        "autorange": "reversed",
        "tickvals": list(range(len(labels))),
        "ticktext": labels,
        "showgrid": False,
    }
    return {"x": axis_layout(title, **axis), "y": axis_layout(**rows)}


def stack_parts(
    labels: Sequence[str],
    parts: Iterable[tuple[str, str, Sequence[float], Sequence[str]]],
    *,
    longest_s: float,
    row_pixels: int,
) -> Drawing:
    """Draw steps as horizontal bars of their parts, the first step on top.

    `labels`: names of the steps.
    `parts`: name, colour, seconds in each step, and what is shown where a bar is pointed at.
    """
    unit, scale = time_unit(longest_s, least=1.0)
    return new_figure(
        70 + row_pixels * len(labels),
        [
            bars(
                name,
                [time_s / scale for time_s in times_s],
                list(range(len(labels))),
                colour,
                hover,
                orientation="h",
            )
            for name, colour, times_s, hover in parts
        ],
        **label_rows(labels, f"time per step ({unit})", rangemode="tozero"),
        barmode="stack",
        bargap=0.3,
    )


def title_row(figure: Drawing, height: float, text: str) -> None:
    """Write a title at the left of a figure, above the bars of a row."""
    add_note(figure, text, x=0, xref="paper", y=height, xanchor="left", yanchor="bottom")


def error_bars(values: Sequence[float], ends: Sequence[Sequence[float]]) -> dict[str, Any]:
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
    first, last = points[0].gpus, points[-1].gpus
    least, labelled = apart * (math.log(last / first) or 1.0), [last]
    for size in (point.gpus for point in reversed(points[1:-1])):
        if math.log(labelled[-1] / size) >= least and math.log(size / first) >= least:
            labelled.append(size)
    return [first, *labelled[::-1]] if len(points) > 1 else labelled


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values between `low` and `high`, spread evenly on a logarithmic axis."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    more, *choices = [
        [step * 10.0**at for at in decades for step in steps if low <= step * 10.0**at <= high]
        for steps in ((1, 2, 3, 4, 6, 8), (1, 2, 5), (1, 3), (1,))
    ]
    inside = next((each for each in choices if len(each) <= most), choices[-1])
    return more if len(inside) < _FEW_TICKS and len(more) <= most else inside


def draw_breakdown(result: Result) -> Drawing:
    """Draw where the step's time goes at each size, as times or (if uneven) as shares.

    One size alone is a bar from left to right, as wide as the page and no taller than it needs.
    """
    points, steps = result.points, [point.step_time_s for point in result.points]
    shares, lies = max(steps) > _UNEVEN_STEPS_RATIO * min(steps), len(points) == 1
    unit, scale = ("%", 0.01) if shares else time_unit(max(steps))

    def height(point: SizeResult, part: str) -> float:
        return point.breakdown_s.get(part, 0.0) / (point.step_time_s if shares else 1) / scale

    def hover(point: SizeResult, part: str) -> str:
        from html import escape

        time_s = point.breakdown_s.get(part, 0.0)
        return (
            f"<b>{quantities.gpus(point.gpus)}</b><br>{escape(part)} "
            f"{quantities.duration(time_s)}<br>"
            f"{quantities.percent(time_s / point.step_time_s)} of the step"
        )

    title = "share of the step" if shares else f"time per step ({unit})"
    return new_figure(
        130 if lies else 360,
        [
            bars(
                part,
                [height(point, part) if lies else f"{point.gpus:,}" for point in points],
                ["" if lies else height(point, part) for point in points],
                WORK.get(part, WORK["host"]),
                [hover(point, part) for point in points],
                orientation="h" if lies else "v",
            )
            for part in parts_that_matter(points)
        ],
        x=axis_layout(title, range=[0, 1.02 * max(steps) / scale])
        if lies
        else axis_layout("GPUs", type="category", showgrid=False),
        y=axis_layout(showticklabels=False, showgrid=False, showline=False)
        if lies
        else axis_layout(title, rangemode="tozero", ticksuffix=" %" if shares else ""),
        barmode="stack",
        bargap=0.35,
    )


def parts_that_matter(points: Sequence[SizeResult]) -> list[str]:
    """Parts of the step that matter somewhere, in the order of the palette."""
    present = {
        part
        for point in points
        for part, time in point.breakdown_s.items()
        if time > 1e-4 * point.step_time_s
    }
    return [part for part in WORK if part in present] + sorted(present - WORK.keys())


def draw_memory(part: Memory) -> Drawing:
    """Draw memory per GPU as one bar against the device's capacity."""
    parts = {
        "parameters": part.parameters_bytes,
        "gradients": part.gradients_bytes,
        "optimizer states": part.optimizer_bytes,
        "buckets": part.buckets_bytes,
        "activations": part.activations_bytes,
        "gathered units": part.gathered_bytes,
        "temporary": part.temporary_bytes,
    }
    gib, held = 2.0**30, {name: quantities.size(nbytes) for name, nbytes in parts.items() if nbytes}
    capacity = part.capacity_bytes / gib
    figure = new_figure(
        150,
        [
            bars(
                f"{name} {size}",
                [parts[name] / gib],
                [""],
                MEMORY[name],
                [f"{name}: {size}"],
                orientation="h",
                width=0.6,
            )
            for name, size in held.items()
        ],
        x=axis_layout("GiB per GPU", range=[0, 1.02 * max(capacity, part.total_bytes / gib)]),
        y=axis_layout(showticklabels=False, showgrid=False, showline=False),
        margin={"t": 28},
        barmode="stack",
    )
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
    small = np.all((np.abs(values) < 128) & (values == np.trunc(values)))  # nor NaN
    code = base64.b64encode(values.astype("<i1" if small else "<f4").tobytes()).decode("ascii")
    return f'{match[1]}{{"dtype":"{"i1" if small else "f4"}","bdata":"{code}"}}'
