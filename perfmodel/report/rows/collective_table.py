"""Times of a collective by size as table, figure and page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.report.common import quantities
from perfmodel.report.common.document import Block, Figure, Paragraph, Table, header, section
from perfmodel.report.common.figures import axis_layout, new_figure
from perfmodel.report.common.html import render_html
from perfmodel.report.common.palette import CYCLE
from perfmodel.units import format_bandwidth, format_bytes, format_time

if TYPE_CHECKING:
    import plotly.graph_objects as go

Rows = Sequence[Mapping[str, Any]]
"""As `perfmodel.studies.run.collective.collective_rows` gives them."""


def collective_headline(rows: Rows, title: str) -> str:
    """Name the largest bus bandwidth and its size."""
    best = max(rows, key=lambda row: row["busbw_Bps"])
    at = f"{format_bytes(best['nbytes'])} ({best['algorithm']}, {best['protocol']})"
    return f"{title}: up to {format_bandwidth(best['busbw_Bps'])} of bus bandwidth, at {at}."


def collective_lines(rows: Rows, title: str, notes: Sequence[str] = ()) -> list[Block]:
    """Arrange the times for a notebook."""
    titles = (">size", ">time", ">80 % interval", ">algbw", ">busbw", "algorithm", "protocol")
    cells = [
        (
            format_bytes(row["nbytes"]),
            format_time(row["time_s"]),
            _interval(row),
            format_bandwidth(row["algbw_Bps"]),
            format_bandwidth(row["busbw_Bps"]),
            str(row["algorithm"]),
            str(row["protocol"]),
        )
        for row in rows
    ]
    lines = [Paragraph(note, "note") for note in notes]
    return [Paragraph(collective_headline(rows, title), "headline"), Table(titles, cells), *lines]


def _interval(row: Mapping[str, Any]) -> str:
    if not row["interval_s"]:
        return ""
    low_s, high_s = row["interval_s"]
    return quantities.span(low_s, high_s, quantities.duration)


def draw_bus_bandwidth(rows: Rows) -> go.Figure:
    """Draw the bus bandwidth over the size, with what the interval of the time makes of it."""
    figure = new_figure(360)
    sizes = [row["nbytes"] for row in rows]
    rates = [row["busbw_Bps"] / 1e9 for row in rows]
    ends = [_rate_ends(row) for row in rows]
    figure.add_scatter(
        x=[*sizes, *sizes[::-1]], y=[high for _, high in ends] + [low for low, _ in ends][::-1],
        fill="toself", mode="none", opacity=0.3, fillcolor=CYCLE[0], hoverinfo="skip",
        name="80\N{NO-BREAK SPACE}% interval",
    )  # fmt: skip
    figure.add_scatter(
        x=sizes, y=rates, mode="lines+markers", name="bus bandwidth",
        line={"color": CYCLE[0]}, marker={"color": CYCLE[0]}, hoverinfo="text",
        hovertext=[
            f"<b>{format_bytes(row['nbytes'])}</b><br>{format_time(row['time_s'])}<br>"
            f"{format_bandwidth(row['busbw_Bps'])}"
            for row in rows
        ],
    )  # fmt: skip
    marks = sizes[:: max(1, len(sizes) // 6)]
    figure.update_xaxes(
        **axis_layout(
            "size", type="log", tickvals=marks, ticktext=[format_bytes(size) for size in marks]
        )
    )
    figure.update_yaxes(**axis_layout("bus bandwidth (GB/s)", rangemode="tozero"))
    return figure


def _rate_ends(row: Mapping[str, Any]) -> tuple[float, float]:
    """Bus bandwidth at the slow and at the quick end of the interval; GB/s."""
    rate = row["busbw_Bps"] / 1e9
    if not row["interval_s"] or not row["time_s"]:
        return rate, rate
    quick_s, slow_s = row["interval_s"]
    return rate * row["time_s"] / slow_s, rate * row["time_s"] / quick_s


def collective_html(rows: Rows, title: str, notes: Sequence[str] = ()) -> str:
    """Build the page as one string."""
    _, *rest = collective_lines(rows, title, notes)
    drawn = Figure(draw_bus_bandwidth(rows), "busbw", "Bus bandwidth over size, with its interval")
    note = "Predictions by simulation, not measurements."
    head = header("As nccl-tests would print it", collective_headline(rows, title), [note])
    return render_html(title, [head, section("Sizes", "", drawn, *rest)])
