"""A sweep as sentences, table, figure and page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perfmodel.report.common import quantities
from perfmodel.report.common.document import Block, Figure, Paragraph, Table, header, section
from perfmodel.report.common.figures import axis_layout, new_figure, time_unit
from perfmodel.report.common.html import render_html
from perfmodel.report.common.palette import CYCLE
from perfmodel.studies.sweep.run import SweepResult, format_fields, format_value

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_ROWS = 60
"""Variants that a notebook or a page lists."""


def sweep_headline(swept: SweepResult) -> str:
    """Name the variant with the most samples per second that fits."""
    done = f"{len(swept.answers)} variants"
    if swept.failed:
        done += f", {swept.failed} of them failed"
    fitting = [row for row in swept.rows if row["status"] == "ok" and row["fits"]]
    if not fitting:
        return f"{done}; none of them fits the memory of its GPUs."
    best = max(fitting, key=lambda row: row["samples_per_s"])
    values = format_fields({name: best[name] for name in swept.fields})
    rate = quantities.count(best["samples_per_s"])
    step = quantities.duration(best["step_time_s"])
    return f"{done}; most samples per second with {values}: {rate}, a step takes {step}."


def sweep_lines(swept: SweepResult) -> list[Block]:
    """Arrange a sweep for a notebook: the best variant, then all of them."""
    rows = [_cells(swept, row) for row in swept.rows[:MOST_ROWS]]
    titles = [*swept.fields, ">step", ">80 % interval", ">samples/s", ">exposed", "bottleneck"]
    more = len(swept.rows) - len(rows)
    rest = [Paragraph(f"{more} more are in its table (to_frame).", "note")] if more > 0 else []
    return [Paragraph(sweep_headline(swept), "headline"), Table(titles, rows), *rest]


def _cells(swept: SweepResult, row: Mapping[str, Any]) -> list[str]:
    values = [format_value(row[name]) for name in swept.fields]
    if row["status"] != "ok":
        return [*values, "failed", "", "", "", row["message"].partition("\n")[0]]
    ends = ""
    if row["low_s"] is not None:
        ends = quantities.span(row["low_s"], row["high_s"], quantities.duration)
    limit = row["bottleneck"] if row["fits"] else f"does not fit; {row['bottleneck']}"
    return [
        *values,
        quantities.duration(row["step_time_s"]),
        ends,
        quantities.count(row["samples_per_s"]),
        quantities.duration(row["exposed_comm_s"]),
        limit,
    ]


def draw_variants(swept: SweepResult) -> go.Figure:
    """Draw the step over the first field that varies, a line for each choice of the others."""
    answered = [row for row in swept.rows if row["status"] == "ok"]
    longest = max((row["high_s"] or row["step_time_s"] for row in answered), default=1.0)
    unit, scale = time_unit(longest)
    figure = new_figure(360)
    x_field = swept.fields[0] if swept.fields else ""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in answered:
        others = format_fields({name: row[name] for name in swept.fields[1:]})
        lines.setdefault(others or "step", []).append(row)
    for at, (name, rows) in enumerate(lines.items()):
        steps = [row["step_time_s"] / scale for row in rows]
        ends = [(row["low_s"] or row["step_time_s"], row["high_s"] or row["step_time_s"])
                for row in rows]  # fmt: skip
        colour = CYCLE[at % len(CYCLE)]
        figure.add_scatter(
            x=[format_value(row[x_field]) if x_field else "" for row in rows], y=steps, name=name,
            mode="lines+markers", line={"color": colour}, marker={"color": colour},
            error_y={
                "type": "data", "symmetric": False, "thickness": 1, "width": 3,
                "array": [high / scale - step for (_, high), step in zip(ends, steps, strict=True)],
                "arrayminus": [
                    step - low / scale for (low, _), step in zip(ends, steps, strict=True)
                ],
            },
        )  # fmt: skip
    figure.update_xaxes(**axis_layout(x_field, type="category"))
    figure.update_yaxes(**axis_layout(f"step time with 80 % interval ({unit})", rangemode="tozero"))
    return figure


def sweep_html(swept: SweepResult) -> str:
    """Build the page as one string."""
    _, *rest = sweep_lines(swept)
    drawn = Figure(draw_variants(swept), "variants", "Step time of each variant, with its interval")
    note = "Predictions by simulation, not measurements."
    return render_html(
        "Sweep",
        [header("Sweep", sweep_headline(swept), [note]), section("Variants", "", drawn, *rest)],
    )
