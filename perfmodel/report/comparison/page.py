"""A comparison as tables in the terminal, and as one self-contained HTML page with CSV and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import chain

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
from perfmodel.report.common.figures import (
    Drawing,
    bars,
    label_rows,
    new_figure,
    short_label,
    time_unit,
)
from perfmodel.report.common.html import render_html
from perfmodel.report.common.palette import WORK
from perfmodel.report.comparison import text
from perfmodel.report.comparison.text import (
    LEAST_RELATIVE_CHANGE,
    column_names,
    headline,
    limited_by,
    mostly_computes,
    sentences,
    signed_ratio,
    unread_fields,
)
from perfmodel.report.run import parallelism
from perfmodel.studies.comparison import Comparison, Side, to_csv, to_json
from perfmodel.studies.run.result import SizeResult


def fields_table(comparison: Comparison) -> Table:
    """Which fields differ."""
    rows = [(field.name, *field.values) for field in comparison.fields]
    return Table(["field", *column_names(comparison.sides)], rows, wraps=len(comparison.sides) > 3)


def figures_table(comparison: Comparison) -> Table:
    """The figures of each side; with two of them the change too."""
    sides, points = comparison.sides, [side.point for side in comparison.sides]
    count = len(sides)

    def row(title: str, write: Callable[[SizeResult], str]) -> tuple[str, ...]:
        return (title, *map(write, points))

    return _with_change(
        comparison,
        [
            row("GPUs", lambda point: f"{point.gpus:,}"),
            row("global batch", lambda point: f"{point.global_batch:,}"),
            ("step", *_steps([point.step_time_s for point in points])),
            row(
                "80 % interval",
                lambda p: quantities.span_or("not known", p.interval_s, quantities.duration),
            ),
            _throughput_row(comparison),
            *(
                [row("time per sample", lambda p: quantities.duration(1 / p.samples_per_s))]
                if all(each.same_samples for each in comparison.differences)
                and not all(each.same_batch for each in comparison.differences)
                else []
            ),
            row("compute", lambda point: quantities.duration(point.compute_s)),
            row("communication", lambda point: quantities.duration(point.comm_s)),
            row("exposed communication", lambda p: quantities.duration(p.exposed_comm_s)),
            *_exposed_rows(points),
            *_layout_rows(points),
            row("sent per GPU", lambda point: quantities.size(point.sent_bytes)),
            ("MFU", *map(_utilisation, sides)),
            ("memory per GPU", *map(_memory, sides)),
            row("limited by", lambda point: _limited_by(point, short=count > 3)),
        ],
        _changes(comparison),
    )


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


def _layout_rows(points: Sequence[SizeResult]) -> Iterator[tuple[str, ...]]:
    """Degrees, bubble, and what each dimension sends and leaves exposed, where a model is split."""
    uses = [point.parallel_layout for point in points]
    if not any(uses):
        return
    yield ("split", *("data" if use is None else parallelism.degrees(use) for use in uses))
    if any(use is not None and use.bubble is not None for use in uses):
        yield ("bubble", *(_or_nothing(None if use is None else use.bubble) for use in uses))
        yield (
            "in theory",
            *(_or_nothing(None if use is None else use.bubble_in_theory) for use in uses),
        )
    by_name = [{each.dimension: each for each in use.dimensions} if use else {} for use in uses]
    for name in dict.fromkeys(name for each in by_name for name in each):
        owns = [each.get(name) for each in by_name]
        yield (
            f"exposed, {name}",
            *("" if own is None else quantities.duration(own.exposed_s) for own in owns),
        )
        yield (
            f"sent, {name}",
            *("" if own is None else quantities.size(own.sent_bytes) for own in owns),
        )


def _limited_by(point: SizeResult, *, short: bool) -> str:
    """Name the bottleneck; where columns are many by kinds of parts, whose names are short."""
    relief = point.relief
    if not short or relief is None or not relief.parts:
        return limited_by(point)
    return "compute" if mostly_computes(point) else ", ".join(relief.parts)


def _or_nothing(share: float | None) -> str:
    return "" if share is None else quantities.percent_column(share)


def parts_table(comparison: Comparison) -> Table:
    """Where the step of each side goes; with two sides the change too."""
    sides = comparison.sides
    rows: list[tuple[str, ...]] = [
        (name, *(quantities.duration(side.point.breakdown_s.get(name, 0.0)) for side in sides))
        for name in parts(comparison)
    ]
    least_s = 0.5e-3 * max(side.point.step_time_s for side in sides)
    changes = {
        name: _signed_time(time_s)
        for versus in comparison.differences
        for name, time_s in versus.parts_s.items()
        if abs(time_s) >= least_s
    }
    return _with_change(comparison, rows, changes)


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
    low, high = versus.step.interval or (1.0, 1.0)
    changes = (
        (True, "step", signed_ratio(versus.step.ratio)),
        (True, "communication", _signed_time(other.comm_s - first.comm_s)),
        (True, "exposed communication", _signed_time(versus.exposed_s)),
        (
            abs(other.compute_s / first.compute_s - 1) >= LEAST_RELATIVE_CHANGE,
            "compute",
            _signed_time(other.compute_s - first.compute_s),
        ),
        (
            versus.same_samples,
            _throughput_row(comparison)[0],
            signed_ratio(versus.throughput.ratio),
        ),
        (
            versus.step.interval is not None,
            "80 % interval",
            f"{signed_ratio(low)} to {signed_ratio(high)}",
        ),
    )
    return {name: change for applies, name, change in changes if applies}


def _throughput_row(comparison: Comparison) -> tuple[str, ...]:
    """Throughputs; their unit beside the name where there are many sides of one kind of sample."""
    counts = [quantities.count(side.point.samples_per_s) for side in comparison.sides]
    units = [f"{quantities.samples_short(side.result)}/s" for side in comparison.sides]
    if len(set(units)) == 1:
        return (f"throughput, {units[0]}", *counts)
    return ("throughput", *map(" ".join, zip(counts, units, strict=True)))


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


def _signed_time(time_s: float) -> str:
    return "0 s" if time_s == 0 else quantities.signed(time_s, quantities.duration)


def what_if_table(comparison: Comparison) -> Table:
    """The classic what-ifs: step, what is saved, and how much of the difference is gone."""
    names = column_names(comparison.sides)
    now_s = [side.point.step_time_s for side in comparison.sides]
    if len(names) > 3:
        return _many_what_ifs(comparison, names)
    titles = ["with", *(title for name in names for title in (f">{name}", ">saved"))]
    unchanged = [cell for time_s in now_s for cell in (quantities.duration(time_s), "")]
    rows = [["everything as it is", *unchanged]]
    of, others = ">of the difference", range(1, len(names))
    if shared := any(share is not None for each in comparison.what_ifs for share in each.shares):
        titles += [of] if len(names) == 2 else [f"{of} ({name})" for name in names[1:]]
        rows[0] += [""] * len(others)
    for imagined in comparison.what_ifs:
        flat = chain.from_iterable(map(_cells, imagined.steps_s, now_s))
        shares = [
            "" if share is None else f"{round(100 * share)}\N{NO-BREAK SPACE}%"
            for share in imagined.shares[1:]
        ]
        rows.append([imagined.what, *flat, *(shares if shared else [])])
    return Table(titles, rows)


def _many_what_ifs(comparison: Comparison, names: Sequence[str]) -> Table:
    """One column per side, of the step and what is saved of it."""
    now_s = [side.point.step_time_s for side in comparison.sides]
    rows = [
        [
            imagined.what,
            *(
                f"{step} ({saved})" if saved else step
                for step, saved in map(_cells, imagined.steps_s, now_s)
            ),
        ]
        for imagined in comparison.what_ifs
    ]
    return Table(
        ["with (saved)", *(f">{name}" for name in names)],
        [["everything as it is", *map(quantities.duration, now_s)], *rows],
        wraps=True,
    )


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
    what_ifs = [blank, what_if_table(comparison)] if comparison.what_ifs else []
    return [*blocks, figures_table(comparison), blank, parts_table(comparison), *what_ifs, blank]


def comparison_html(comparison: Comparison) -> str:
    """Build the page as one string."""
    title = text.title(comparison)
    steps = Figure(draw_steps(comparison), "steps", "Bars: the parts of a step of each side")
    questions = dict.fromkeys(side.result.question for side in comparison.sides)
    differs = what_ifs = None
    if len(comparison.sides) > 1:
        said = "Nothing: all sides ask the same."
        differs = section("What differs", said)
        if comparison.fields:
            said = " ".join(unread_fields(comparison))
            differs = section("What differs", said, fields_table(comparison))
    if comparison.what_ifs:
        lead = (
            "The step if one thing were ideal and all else stayed, and how much of it that saves."
        )
        what_ifs = section("What each part of the machine costs", lead, what_if_table(comparison))
    return render_html(
        f"Comparison: {title}",
        [
            header(title, headline(comparison), [PREDICTED], questions, sentences(comparison)),
            differs,
            section("Figures", "", figures_table(comparison)),
            section(
                "Where the step goes",
                "One step of each in its parts.",
                steps,
                parts_table(comparison),
            ),
            what_ifs,
            section("What the numbers rest on", "", Bullets(text.assumptions(comparison))),
        ],
    )


def draw_steps(comparison: Comparison) -> Drawing:
    """Draw the parts of each side's step as one bar, the first side on top."""
    sides = comparison.sides
    unit, scale = time_unit(max(side.point.step_time_s for side in sides), least=1.0)
    labels = [short_label(name) for name in text.side_names(comparison)]
    parts_s = {
        part: [side.point.breakdown_s.get(part, 0.0) for side in sides]
        for part in parts(comparison)
    }
    return new_figure(
        70 + 46 * len(sides),
        [
            bars(
                part,
                [time_s / scale for time_s in times_s],
                list(range(len(sides))),
                WORK.get(part, WORK["host"]),
                [
                    f"<b>{escape(side.label, quote=False)}</b><br>{part} "
                    f"{quantities.duration(time_s)}"
                    for side, time_s in zip(sides, times_s, strict=True)
                ],
                orientation="h",
            )
            for part, times_s in parts_s.items()
        ],
        **label_rows(labels, f"time per step ({unit})", rangemode="tozero"),
        barmode="stack",
        bargap=0.3,
    )


FILES = {"compare.html": comparison_html, "compare.csv": to_csv, "compare.json": to_json}
"""Files of a comparison, and what makes them."""
