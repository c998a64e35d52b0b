"""A comparison as one self-contained HTML page, with CSV and JSON beside it."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.report.common import quantities
from perfmodel.report.common.document import PREDICTED, Bullets, Figure, Header, header, section
from perfmodel.report.common.figures import axis_layout, new_figure, short_label, time_unit
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.common.palette import WORK
from perfmodel.report.comparison import tables, text
from perfmodel.studies.compare.model import Comparison, to_csv, to_json

if TYPE_CHECKING:
    import plotly.graph_objects as go


FILES = ("compare.html", "compare.csv", "compare.json")
"""Files that `write_comparison` writes."""


def write_comparison(comparison: Comparison, folder: Path) -> Path:
    """Write ``compare.html``, ``compare.csv`` and ``compare.json``.

    Returns and raises as `write_report_files`.
    """
    page, table = comparison_html(comparison), to_csv(comparison)
    files = {"compare.html": page, "compare.csv": table, "compare.json": to_json(comparison)}
    return write_report_files(folder, files)


def comparison_html(comparison: Comparison) -> str:
    """Build the page as one string."""
    title = text.title(comparison)
    lead, fields = "Nothing: all sides ask the same.", []
    if comparison.fields:
        lead = " ".join(text.unread_fields(comparison))
        fields = [tables.fields_table(comparison)]
    steps = Figure(draw_steps(comparison), "steps", "Bars: the parts of a step of each side")
    parts = "One step of each in its parts."
    sections = [
        *([section("What differs", lead, *fields)] if len(comparison.sides) > 1 else []),
        section("Figures", "", tables.figures_table(comparison)),
        section("Where the step goes", parts, steps, tables.parts_table(comparison)),
    ]
    if comparison.what_ifs:
        lead = (
            "The step if one thing were ideal and all else stayed, and how much of it that saves."
        )
        table = tables.what_if_table(comparison)
        sections.append(section("What each part of the machine costs", lead, table))
    grounds = section("What the numbers rest on", "", Bullets(text.assumptions(comparison)))
    return render_html(f"Comparison: {title}", [_header(comparison), *sections, grounds])


def _header(comparison: Comparison) -> Header:
    questions = dict.fromkeys(side.result.question for side in comparison.sides)
    sentences = text.sentences(comparison)
    return header(
        text.title(comparison), text.headline(comparison), [PREDICTED], questions, sentences
    )


def draw_steps(comparison: Comparison) -> go.Figure:
    """Draw the parts of each side's step as one bar, the first side on top."""
    unit, scale = time_unit(max(side.point.step_time_s for side in comparison.sides), least=1.0)
    figure = new_figure(70 + 46 * len(comparison.sides), barmode="stack", bargap=0.3)
    labels = [short_label(name) for name in text.side_names(comparison)]
    places = list(range(len(labels)))
    for part in tables.parts(comparison):
        times_s = [side.point.breakdown_s.get(part, 0.0) for side in comparison.sides]
        figure.add_bar(
            x=[time_s / scale for time_s in times_s],
            y=places,
            orientation="h",
            name=part,
            marker={"color": WORK.get(part, WORK["host"])},
            hoverinfo="text",
            hovertext=[
                f"<b>{_escape(side.label)}</b><br>{part} {quantities.duration(time_s)}"
                for side, time_s in zip(comparison.sides, times_s, strict=True)
            ],
        )
    figure.update_xaxes(**axis_layout(f"time per step ({unit})", rangemode="tozero"))
    figure.update_yaxes(
        **axis_layout(autorange="reversed", tickvals=places, ticktext=labels, showgrid=False)
    )
    return figure


def _escape(label: str) -> str:
    """Escape for plotly, which knows few entities and no quotes among them."""
    return escape(label, quote=False)
