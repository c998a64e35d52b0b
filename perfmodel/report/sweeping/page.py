"""A sweep as one self-contained HTML page, with CSV and JSON beside it."""

from __future__ import annotations

from pathlib import Path

from perfmodel.report.common.document import (
    PREDICTED,
    Block,
    Definitions,
    Figure,
    Paragraph,
    Section,
    header,
    paragraphs,
    section,
)
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.sweeping import text
from perfmodel.report.sweeping.figures import BARS, COLOURED, draw_steps, draw_throughput
from perfmodel.report.sweeping.sweep_axes import choose_axes
from perfmodel.scenario import Scenario
from perfmodel.studies.sweep import SweepResult
from perfmodel.studies.sweep.run import flatten, format_fields, format_value, to_json

FILES = ("sweep.html", "sweep.csv", "sweep.json")
"""Files that `write_sweep` writes."""

ROWS = 300
"""Variants in the table of the page; the files beside it have all."""

TERMINAL_ROWS = 40
"""Variants in the table of the terminal."""


def write_sweep(scenario: Scenario, swept: SweepResult, folder: Path) -> Path:
    """Write ``sweep.html``, ``sweep.csv`` and ``sweep.json``.

    Returns and raises as `write_report_files`.
    """
    files = {
        "sweep.html": sweep_html(swept),
        "sweep.csv": flatten(swept).to_csv(lineterminator="\n"),
        "sweep.json": to_json(scenario.name, scenario.question, swept),
    }
    return write_report_files(folder, files)


def sweep_html(swept: SweepResult) -> str:
    """Build the page as one string."""
    scenarios = [variant.scenario for variant in swept.variants if variant.scenario is not None]
    name = scenarios[0].name if scenarios else "a scenario"
    head = header(
        f"Sweep of {name} over {', '.join(swept.fields)}",
        text.headline(swept),
        [PREDICTED],
        [scenario.question for scenario in scenarios[:1]],
        text.findings(swept),
    )
    return render_html(f"Sweep: {name}", [head, *_charts(swept), *_lists(swept)])


def _charts(swept: SweepResult) -> list[Section]:
    pairs = text.answered(swept)
    if not pairs:
        return []
    sections = []
    axes = choose_axes(swept.fields, pairs)
    if axes is not None:
        lead = f"Throughput along {axes.field}."
        if not text.has_one_size(pairs):
            lead = f"Throughput of each GPU along {axes.field}: what falls is lost to scale."
        if axes.lines:
            lead += " A line for each combination of the rest"
            combinations = {text.describe({n: v.set.get(n) for n in axes.lines}) for v, _ in pairs}
            lead += f"; the best {COLOURED} in colour." if len(combinations) > COLOURED else "."
        values = {format_value(variant.set.get(axes.field)) for variant, _ in pairs}
        if len(values) > len(axes.places):
            lead += f" Values of {axes.field} that are no numbers are in the table alone."
        if not all(answer.fits for _, answer in pairs):
            lead += " Open marks do not fit in memory."
        description = f"Lines: throughput along {axes.field}"
        chart = Figure(draw_throughput(pairs, axes), "throughput", description)
        sections.append(section(f"Throughput by {axes.field}", lead, chart))
    lead = "Steps of the quickest variants" if len(pairs) > BARS else "Steps of all variants"
    lead += f", by {', '.join(swept.fields)}."
    bars = Figure(draw_steps(pairs), "steps", "Bars: the parts of a step of each variant")
    return [*sections, section("Where the step goes", f"{lead} {text.FASTEST_FIRST}", bars)]


def _lists(swept: SweepResult) -> list[Section]:
    pairs, faults = text.answered(swept), text.failed(swept)
    sections = []
    if pairs:
        rest = f" The first {ROWS} of {len(pairs):,}: sweep.csv has all."
        lead = text.FASTEST_FIRST + (rest if len(pairs) > ROWS else "")
        sections.append(section("All variants", lead, text.variant_table(swept, ROWS)))
    if faults:
        messages = {format_fields(v.set): answer.message for v, answer in faults[:ROWS]}
        sections.append(section("Not answered", "", Definitions(messages)))
    return sections


def sweep_lines(swept: SweepResult) -> list[Block]:
    """Arrange a sweep for the terminal: the answer, and the table."""
    lines = [f"{text.headline(swept)}.", *text.findings(swept)]
    return [*paragraphs(lines), Paragraph(""), text.variant_table(swept, TERMINAL_ROWS)]
