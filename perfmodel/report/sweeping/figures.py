"""Figures of a sweep: throughput along a field, and where the steps of the quickest go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from perfmodel.report.common import quantities
from perfmodel.report.common.figures import (
    axis_layout,
    log_axis,
    new_figure,
    short_label,
    time_unit,
)
from perfmodel.report.common.palette import CYCLE, QUIET_INK, WORK
from perfmodel.report.sweeping.sweep_axes import SweepAxes, choose_axes
from perfmodel.report.sweeping.text import (
    Pair,
    answered,
    brief,
    describe,
    has_one_size,
    memory_note,
    per_gpu,
)
from perfmodel.studies.sweep import SweepResult
from perfmodel.studies.sweep.run import format_value

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLOURED = 7
"""Lines with a colour of their own; the slower ones are grey."""

BARS = 16
"""Variants whose steps are drawn."""

_NOTHING = 1e-9
"""Of a unit of time: what rounding leaves of nothing."""

_LABELS = 7
_SPREAD = 8.0
"""Numbers further apart than this factor stand on a logarithmic axis."""


def draw_sweep(swept: SweepResult) -> go.Figure:
    """Draw throughput along the field that has numbers, else the steps of the quickest."""
    pairs = answered(swept)
    axes = choose_axes(swept.fields, pairs)
    return draw_steps(pairs) if axes is None else draw_throughput(pairs, axes)


def draw_throughput(pairs: Sequence[Pair], axes: SweepAxes) -> go.Figure:
    """Draw throughput along a field, one line for each combination of the other fields."""
    each_gpu = not has_one_size(pairs)
    lines: dict[str, list[tuple[float, float, Pair]]] = {}
    for pair in pairs:
        variant, answer = pair
        place = axes.places.get(format_value(variant.set.get(axes.field)))
        if place is not None:
            label = describe({name: variant.set.get(name) for name in axes.lines})
            rate = per_gpu(answer) if each_gpu else answer.samples_per_s or 0.0
            lines.setdefault(label, []).append((place, rate, pair))
    best = sorted(lines, key=lambda label: -max(rate for _, rate, _ in lines[label]))
    figure = new_figure(420)
    for at, label in enumerate(best):
        points = sorted(lines[label], key=lambda point: point[:2])
        is_grey = at >= COLOURED
        colour = QUIET_INK if is_grey else CYCLE[at]
        figure.add_scatter(
            x=[place for place, _, _ in points],
            y=[rate for _, rate, _ in points],
            name=escape(label, quote=False),
            showlegend=bool(label) and not is_grey,
            mode="lines+markers",
            line={"color": colour, "width": 1 if is_grey else 2},
            opacity=0.4 if is_grey else 1.0,
            marker={"color": colour, "size": 7, "symbol": [_symbol(p) for _, _, p in points]},
            hoverinfo="text",
            hovertext=[hover(pair) for _, _, pair in points],
        )
    figure.update_xaxes(**_field_axis(axes))
    title = "samples/s per GPU" if each_gpu else "samples/s"
    figure.update_yaxes(**axis_layout(title, rangemode="tozero"))
    return figure


def _symbol(pair: Pair) -> str:
    """Filled where it fits: the highest mark may be of what cannot run."""
    return "circle" if pair[1].fits else "circle-open"


def _field_axis(axes: SweepAxes) -> dict[str, object]:
    """Describe the axis of a field: its own values are the labels."""
    texts = {place: text for text, place in axes.places.items()}
    places = sorted(texts)
    step = -(-len(places) // _LABELS)
    labelled = places[::-step][::-1]
    ends = places[0], places[-1]
    if ends[1] < _SPREAD * ends[0]:
        more = {"tickvals": labelled, "ticktext": [texts[place] for place in labelled]}
        return axis_layout(axes.field, **more)
    room = (ends[1] / ends[0]) ** 0.03
    return log_axis(axes.field, (ends[0] / room, ends[1] * room), labelled, texts.__getitem__)


def hover(pair: Pair) -> str:
    """Write what is shown when a mark is pointed at."""
    variant, answer = pair
    interval = ""
    if answer.low_s is not None and answer.high_s is not None:
        ends = f"{quantities.duration(answer.low_s)} to {quantities.duration(answer.high_s)}"
        interval = f"<br>80 % interval {ends}"
    return (
        f"<b>{escape(describe(variant.set), quote=False)}</b>"
        f"<br>{quantities.count(answer.samples_per_s or 0.0)} samples/s"
        f" on {quantities.gpus(answer.gpus or 0)}"
        f"<br>step {quantities.duration(answer.step_time_s or 0.0)}{interval}"
        f"<br>{escape(answer.bottleneck or '', quote=False)}{memory_note(answer)}"
    )


def draw_steps(pairs: Sequence[Pair]) -> go.Figure:
    """Draw the step of the first variants: compute, exposed communication, and the rest."""
    shown_pairs = pairs[:BARS]
    unit, scale = time_unit(
        max((answer.step_time_s or 0.0 for _, answer in shown_pairs), default=1.0), least=1.0
    )
    figure = new_figure(70 + 34 * len(shown_pairs), barmode="stack", bargap=0.3)
    places = list(range(len(shown_pairs)))
    colours = {
        "compute": WORK["backward"],
        "exposed communication": WORK["exposed communication"],
        "the rest": WORK["idle"],
    }
    for part, colour in colours.items():
        times = [
            parts_s(answer.step_time_s, answer.compute_s, answer.exposed_comm_s)[part] / scale
            for _, answer in shown_pairs
        ]
        if not any(time > _NOTHING for time in times):
            continue
        figure.add_bar(
            x=times,
            y=places,
            orientation="h",
            name=part,
            marker={"color": colour},
            hoverinfo="text",
            hovertext=[hover(pair) for pair in shown_pairs],
        )
    figure.update_xaxes(**axis_layout(f"time per step ({unit})", rangemode="tozero"))
    # Values only: the hover text has the names of their fields.
    labels = [
        short_label(", ".join(map(brief, variant.set.values()))) for variant, _ in shown_pairs
    ]
    figure.update_yaxes(
        **axis_layout(autorange="reversed", tickvals=places, ticktext=labels, showgrid=False)
    )
    return figure


def parts_s(
    step_s: float | None, compute_s: float | None, exposed_s: float | None
) -> Mapping[str, float]:
    """Parts of a step that add up to it; seconds."""
    step, exposed = step_s or 0.0, min(exposed_s or 0.0, step_s or 0.0)
    compute = min(compute_s or 0.0, step - exposed)
    return {
        "compute": compute,
        "exposed communication": exposed,
        "the rest": step - exposed - compute,
    }
