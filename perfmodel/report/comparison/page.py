"""A comparison as one self-contained HTML page, with CSV and JSON beside it."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.files import write_atomically, write_json
from perfmodel.report.common import quantities
from perfmodel.report.common.figures import axis_layout, new_figure
from perfmodel.report.common.page import document, figure_html, figure_section, html_table
from perfmodel.report.common.palette import WORK
from perfmodel.report.comparison import text as said
from perfmodel.studies.compare.export import to_csv, to_json
from perfmodel.studies.compare.model import Comparison

if TYPE_CHECKING:
    import plotly.graph_objects as go


def write_comparison(found: Comparison, folder: Path) -> Path:
    """Write ``compare.html``, ``compare.csv`` and ``compare.json``.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    InputError
        The folder cannot be written to.
    """
    page = folder / "compare.html"
    write_json(folder / "compare.json", to_json(found))
    write_atomically(page, comparison_html(found))
    write_atomically(folder / "compare.csv", to_csv(found))
    return page


def comparison_html(found: Comparison) -> str:
    """Build the page as one string."""
    questions = dict.fromkeys(side.result.question for side in found.sides)
    lines = "".join(f"<p>{escape(line)}</p>" for line in said.sentences(found))
    asked = "".join(f'<p class="question">{escape(line)}</p>' for line in questions if line)
    header = (
        f'<header><p class="setting">What if</p><h1>{escape(said.title(found))}</h1>{asked}{lines}'
        '<p class="note">Predictions by simulation, not measurements.</p></header>'
    )
    parts = [
        header,
        _fields(found),
        figure_section("Figures", "", _table(said.figures(found))),
        figure_section(
            "Where the step goes",
            "One step of each in its parts.",
            figure_html(steps(found), "steps", "Bars: the parts of a step of each side"),
            _table(said.step_parts(found)),
        ),
        _imagined(found),
        _grounds(found),
    ]
    body = "\n".join(part for part in parts if part)
    return document(f"Comparison: {said.title(found)}", f"<main>\n{body}\n</main>")


def _fields(found: Comparison) -> str:
    if not found.fields:
        return figure_section("What differs", "Nothing: all sides ask the same.", "")
    return figure_section("What differs", "Fields of the scenarios.", _table(said.fields(found)))


def _imagined(found: Comparison) -> str:
    if not found.imagined:
        return ""
    lead = "The step if one thing were ideal and all else stayed, and how much of it that saves."
    return figure_section("What of the step is whose", lead, _table(said.imagined(found)))


def _grounds(found: Comparison) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in found.assumptions)
    return figure_section("What the numbers rest on", "", f"<ul>{items}</ul>")


def _table(one: said.Table) -> str:
    headers, rows = one
    left = [at for at, header in enumerate(headers) if not header.startswith(">")]
    return html_table([header.removeprefix(">") for header in headers], rows, words_at=left)


def steps(found: Comparison) -> go.Figure:
    """Draw the parts of each side's step as one bar, the first side on top."""
    scale, unit = _unit(max(side.point.step_time_s for side in found.sides))
    figure = new_figure(70 + 46 * len(found.sides), barmode="stack", bargap=0.3)
    labels = [f"{_text(_short(side.label))} " for side in found.sides]
    places = list(range(len(labels)))
    for part in said.parts(found):
        times_s = [side.point.breakdown_s.get(part, 0.0) for side in found.sides]
        figure.add_bar(
            x=[time_s / scale for time_s in times_s], y=places, orientation="h", name=part,
            marker={"color": WORK.get(part, WORK["host"])}, hoverinfo="text",
            hovertext=[
                f"<b>{_text(side.label)}</b><br>{part} {quantities.duration(time_s)}"
                for side, time_s in zip(found.sides, times_s, strict=True)
            ],
        )  # fmt: skip
    figure.update_xaxes(**axis_layout(f"time per step ({unit})", rangemode="tozero"))
    figure.update_yaxes(
        **axis_layout(autorange="reversed", tickvals=places, ticktext=labels, showgrid=False)
    )
    return figure


def _text(label: str) -> str:
    """Escape for plotly, which knows few entities and no quotes among them."""
    return escape(label, quote=False)


def _short(label: str, most: int = 28) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def _unit(longest_s: float) -> tuple[float, str]:
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
    return next((pair for pair in units if longest_s >= pair[0]), units[-1])
