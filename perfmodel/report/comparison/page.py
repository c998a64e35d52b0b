"""A comparison as tables in the terminal, and as one self-contained HTML page with CSV and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    PREDICTED,
    Block,
    Bullets,
    Figure,
    Paragraph,
    Table,
    header,
    paragraphs,
    section,
)
from perfmodel.report.common.figures import label_rows, new_figure, short_label, time_unit
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.common.palette import WORK
from perfmodel.report.comparison import text
from perfmodel.report.comparison.text import (
    NOTHING,
    column_names,
    headline,
    limited_by,
    mostly_computes,
    sentences,
    signed_ratio,
    unread_fields,
)
from perfmodel.report.run import parallelism
from perfmodel.studies.compare.export import to_csv, to_json
from perfmodel.studies.compare.model import Comparison, Side
from perfmodel.studies.run.result.model import SizeResult

if TYPE_CHECKING:
    import plotly.graph_objects as go


def fields_table(comparison: Comparison) -> Table:
    """Which fields differ."""
    rows = [(field.name, *field.values) for field in comparison.fields]
    return Table(["field", *column_names(comparison.sides)], rows, wraps=len(comparison.sides) > 3)


def figures_table(comparison: Comparison) -> Table:
    """The figures of each side; with two of them the change too."""
    sides = comparison.sides
    points = [side.point for side in sides]
    rows: list[tuple[str, ...]] = [
        ("GPUs", *(f"{point.gpus:,}" for point in points)),
        ("global batch", *(f"{point.global_batch:,}" for point in points)),
        ("step", *_steps([point.step_time_s for point in points])),
        ("80 % interval", *map(_interval, points)),
        _throughput_row(comparison),
        *_per_sample_rows(comparison),
        ("compute", *(quantities.duration(point.compute_s) for point in points)),
        ("communication", *(quantities.duration(point.comm_s) for point in points)),
        ("exposed communication", *(quantities.duration(p.exposed_comm_s) for p in points)),
        *_exposed_rows(points),
        *_mixture_rows(points),
        ("sent per GPU", *(quantities.size(point.sent_bytes) for point in points)),
        ("MFU", *map(_utilisation, sides)),
        ("memory per GPU", *map(_memory, sides)),
        ("limited by", *(_limited_by(point, short=len(sides) > 3) for point in points)),
    ]
    return _with_change(comparison, rows, _changes(comparison))


def _steps(times_s: Sequence[float]) -> list[str]:
    """Steps with three digits; with four where three are the same for times that differ."""
    written = [quantities.duration(time_s) for time_s in times_s]
    if len(set(written)) == len({f"{time_s:.4g}" for time_s in times_s}):
        return written
    return [quantities.duration(time_s, digits=4) for time_s in times_s]


def _utilisation(side: Side) -> str:
    """Model FLOPs utilisation; of fp8, whose peak not all products have, with the peak's name."""
    text = _or_nothing(side.point.mfu)
    is_fp8 = side.scenario.compute.precision == "fp8" and side.point.mfu is not None
    return f"{text} of the fp8 peak" if is_fp8 else text


def _exposed_rows(points: Sequence[SizeResult]) -> list[tuple[str, ...]]:
    """Exposed communication by operation, where there are several."""
    ops = dict.fromkeys(use.op for point in points for use in point.communication)
    if len(ops) < 2:
        return []
    times_s = [{use.op: use.exposed_s for use in point.communication} for point in points]
    return [
        (
            f"exposed {quantities.operation(op)}",
            *(quantities.duration(each[op]) if op in each else "" for each in times_s),
        )
        for op in ops
    ]


def _mixture_rows(points: Sequence[SizeResult]) -> list[tuple[str, ...]]:
    """Degrees, bubble, and what each dimension sends and leaves exposed, where a model is split."""
    uses = [point.mixture for point in points]
    if not any(uses):
        return []
    rows = [("split", *("data" if use is None else parallelism.degrees(use) for use in uses))]
    if any(use is not None and use.bubble is not None for use in uses):
        bubbles = [None if use is None else use.bubble for use in uses]
        theory = [None if use is None else use.bubble_in_theory for use in uses]
        rows += [("bubble", *map(_or_nothing, bubbles)), ("in theory", *map(_or_nothing, theory))]
    by_name = [{each.dimension: each for each in use.dimensions} if use else {} for use in uses]
    for name in dict.fromkeys(name for each in by_name for name in each):
        exposed = (quantities.duration(e[name].exposed_s) if name in e else "" for e in by_name)
        sent = (quantities.size(e[name].sent_bytes) if name in e else "" for e in by_name)
        rows += [(f"exposed, {name}", *exposed), (f"sent, {name}", *sent)]
    return rows


def _limited_by(point: SizeResult, *, short: bool) -> str:
    """Name the bottleneck; where columns are many by kinds of parts, whose names are short."""
    relief = point.relief
    if not short or relief is None or not relief.parts:
        return limited_by(point)
    return "compute" if mostly_computes(point) else ", ".join(relief.parts)


def _per_sample_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Time per sample, where steps train unlike numbers of the same samples."""
    differences = comparison.differences
    if not all(each.same_samples for each in differences):
        return []
    if all(each.same_batch for each in differences):
        return []
    points = [side.point for side in comparison.sides]
    return [("time per sample", *(quantities.duration(1 / p.samples_per_s) for p in points))]


def _or_nothing(share: float | None) -> str:
    return "" if share is None else quantities.percent_column(share)


def parts_table(comparison: Comparison) -> Table:
    """Where the step of each side goes; with two sides the change too."""
    rows: list[tuple[str, ...]] = [
        (name, *(quantities.duration(s.point.breakdown_s.get(name, 0.0)) for s in comparison.sides))
        for name in parts(comparison)
    ]
    own = {
        name: _signed_time(time_s)
        for versus in comparison.differences
        for name, time_s in versus.parts_s.items()
        if abs(time_s) >= 0.5e-3 * max(side.point.step_time_s for side in comparison.sides)
    }
    return _with_change(comparison, rows, own)


def _with_change(
    comparison: Comparison, rows: list[tuple[str, ...]], changes: Mapping[str, str]
) -> Table:
    titles = ["", *(f">{name}" for name in column_names(comparison.sides))]
    if len(comparison.sides) != 2:
        return Table(titles, rows, wraps=len(comparison.sides) > 3)
    return Table([*titles, ">change"], [(*row, changes.get(row[0], "")) for row in rows])


def _changes(comparison: Comparison) -> Mapping[str, str]:
    """What the column of changes says of two sides."""
    if len(comparison.sides) != 2:
        return {}
    (versus,), (first, other) = comparison.differences, [side.point for side in comparison.sides]
    own = {
        "step": signed_ratio(versus.step.ratio),
        "communication": _signed_time(other.comm_s - first.comm_s),
        "exposed communication": _signed_time(versus.exposed_s),
    }
    if abs(other.compute_s / first.compute_s - 1) >= NOTHING:
        own["compute"] = _signed_time(other.compute_s - first.compute_s)
    if versus.same_samples:
        own[_throughput_row(comparison)[0]] = signed_ratio(versus.throughput.ratio)
    if versus.step.interval is not None:
        low, high = versus.step.interval
        own["80 % interval"] = f"{signed_ratio(low)} to {signed_ratio(high)}"
    return own


def _throughput_row(comparison: Comparison) -> tuple[str, ...]:
    """Throughputs; their unit beside the name where there are many sides of one kind of sample."""
    counts = [quantities.count(side.point.samples_per_s) for side in comparison.sides]
    units = [f"{quantities.samples_short(side.result)}/s" for side in comparison.sides]
    if len(set(units)) == 1:
        return (f"throughput, {units[0]}", *counts)
    pairs = zip(counts, units, strict=True)
    return ("throughput", *(f"{number} {unit}" for number, unit in pairs))


def _memory(side: Side) -> str:
    memory, verdict = side.point.memory, quantities.memory_verdict(side.point.memory)
    return quantities.size(memory.total_bytes) + ("" if verdict == "fits" else f" ({verdict})")


def parts(comparison: Comparison) -> list[str]:
    """Parts of a step that matter on some side, in their usual order."""
    names = dict.fromkeys(name for side in comparison.sides for name in side.point.breakdown_s)
    return [
        name
        for name in names
        if any(
            side.point.breakdown_s.get(name, 0.0) > 1e-4 * side.point.step_time_s
            for side in comparison.sides
        )
    ]


def _interval(point: SizeResult) -> str:
    return quantities.span_or("not known", point.interval_s, quantities.duration)


def _signed_time(time_s: float) -> str:
    return "0 s" if time_s == 0 else quantities.signed(time_s, quantities.duration)


def what_if_table(comparison: Comparison) -> Table:
    """The classic what-ifs: step, what is saved, and how much of the difference is gone."""
    names = column_names(comparison.sides)
    if len(names) > 3:
        return _many_what_ifs(comparison, names)
    titles = ["with"]
    for name in names:
        titles += [f">{name}", ">saved"]
    shared = any(share is not None for each in comparison.what_ifs for share in each.shares)
    if shared:
        of = ">of the difference"
        titles += [of] if len(names) == 2 else [f"{of} ({name})" for name in names[1:]]
    unchanged = ["everything as it is"]
    for side in comparison.sides:
        unchanged += [quantities.duration(side.point.step_time_s), ""]
    rows = [unchanged + [""] * (len(titles) - len(unchanged))]
    for imagined in comparison.what_ifs:
        row = [imagined.what]
        for side, step_s in zip(comparison.sides, imagined.steps_s, strict=True):
            row += _cells(step_s, side.point.step_time_s)
        shares = (
            "" if s is None else f"{round(100 * s)}\N{NO-BREAK SPACE}%" for s in imagined.shares
        )
        rows.append([*row, *list(shares)[1:]] if shared else row)
    return Table(titles, rows)


def _many_what_ifs(comparison: Comparison, names: Sequence[str]) -> Table:
    """One column per side, of the step and what is saved of it."""
    now_s = [side.point.step_time_s for side in comparison.sides]
    rows = [["everything as it is", *map(quantities.duration, now_s)]]
    for imagined in comparison.what_ifs:
        cells = [_cells(*pair) for pair in zip(imagined.steps_s, now_s, strict=True)]
        rows.append(
            [imagined.what, *(f"{step} ({saved})" if saved else step for step, saved in cells)]
        )
    return Table(["with (saved)", *(f">{name}" for name in names)], rows, wraps=True)


def _cells(step_s: float | None, now_s: float) -> tuple[str, str]:
    if step_s is None:
        return "failed", ""
    return quantities.duration(step_s), f"{100 * (1 - step_s / now_s):.1f}\N{NO-BREAK SPACE}%"


def comparison_lines(comparison: Comparison) -> list[Block]:
    """Arrange a comparison for the terminal: sentences, what differs, figures, what-ifs."""
    blank = Paragraph("")
    answer = [Paragraph(f"{headline(comparison)}.")] if comparison.differences else []
    blocks: list[Block] = [*answer, *paragraphs(sentences(comparison)), blank]
    if len(comparison.sides) > 1:
        nothing = Paragraph("No field differs.")
        blocks += [fields_table(comparison) if comparison.fields else nothing]
        blocks += [*paragraphs(unread_fields(comparison)), blank]
    blocks += [figures_table(comparison), blank, parts_table(comparison)]
    if comparison.what_ifs:
        blocks += [blank, what_if_table(comparison)]
    return [*blocks, blank]


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
        fields = [fields_table(comparison)]
    steps = Figure(draw_steps(comparison), "steps", "Bars: the parts of a step of each side")
    parts = "One step of each in its parts."
    sections = [
        *([section("What differs", lead, *fields)] if len(comparison.sides) > 1 else []),
        section("Figures", "", figures_table(comparison)),
        section("Where the step goes", parts, steps, parts_table(comparison)),
    ]
    if comparison.what_ifs:
        lead = (
            "The step if one thing were ideal and all else stayed, and how much of it that saves."
        )
        table = what_if_table(comparison)
        sections.append(section("What each part of the machine costs", lead, table))
    grounds = section("What the numbers rest on", "", Bullets(text.assumptions(comparison)))
    questions = dict.fromkeys(side.result.question for side in comparison.sides)
    answer, sentences = text.headline(comparison), text.sentences(comparison)
    head = header(title, answer, [PREDICTED], questions, sentences)
    return render_html(f"Comparison: {title}", [head, *sections, grounds])


def draw_steps(comparison: Comparison) -> go.Figure:
    """Draw the parts of each side's step as one bar, the first side on top."""
    unit, scale = time_unit(max(side.point.step_time_s for side in comparison.sides), least=1.0)
    figure = new_figure(70 + 46 * len(comparison.sides), barmode="stack", bargap=0.3)
    labels = [short_label(name) for name in text.side_names(comparison)]
    places = list(range(len(labels)))
    for part in parts(comparison):
        times_s = [side.point.breakdown_s.get(part, 0.0) for side in comparison.sides]
        figure.add_bar(
            x=[time_s / scale for time_s in times_s],
            y=places,
            orientation="h",
            name=part,
            marker={"color": WORK.get(part, WORK["host"])},
            hoverinfo="text",
            hovertext=[
                f"<b>{escape(side.label, quote=False)}</b><br>{part} {quantities.duration(time_s)}"
                for side, time_s in zip(comparison.sides, times_s, strict=True)
            ],
        )
    label_rows(figure, labels, f"time per step ({unit})", rangemode="tozero")
    return figure
