"""A comparison as tables in the terminal, and as one self-contained HTML page with CSV and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from itertools import chain

from perfmodel.report import comparison_text
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
    short_label,
    stack_parts,
)
from perfmodel.report.common.html import render_html
from perfmodel.report.common.palette import WORK
from perfmodel.report.common.spreadsheet import SPREADSHEET, spreadsheet
from perfmodel.report.comparison_text import (
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

_or_nothing = partial(quantities.or_empty, quantities.percent_column)


def fields_table(comparison: Comparison) -> Table:
    """Which fields differ."""
    return Table(
        ["field", *column_names(comparison.sides)],
        [(field.name, *field.values) for field in comparison.fields],
        wraps=len(comparison.sides) > 3,
    )


def figures_table(comparison: Comparison) -> Table:
    """The figures of each side; with two of them the change too."""
    sides, points = comparison.sides, [side.point for side in comparison.sides]

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
            row("rests on", lambda p: p.evidence.grade if p.evidence else "not known"),
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
            row("limited by", lambda point: _limited_by(point, short=len(sides) > 3)),
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
    of_peak = " of the fp8 peak" if side.scenario.compute.precision == "fp8" else ""
    return "" if side.point.mfu is None else f"{_or_nothing(side.point.mfu)}{of_peak}"


def _exposed_rows(points: Sequence[SizeResult]) -> list[tuple[str, ...]]:
    """Exposed communication by operation, where there are several."""
    times_s = [{use.op: use.exposed_s for use in point.communication} for point in points]
    ops = dict.fromkeys(op for each in times_s for op in each)
    return [
        (
            f"exposed {quantities.operation(op)}",
            *(quantities.duration(each[op]) if op in each else "" for each in times_s),
        )
        for op in (ops if len(ops) > 1 else ())
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


def parts_table(comparison: Comparison) -> Table:
    """Where the step of each side goes; with two sides the change too."""
    steps_s = [side.point.breakdown_s for side in comparison.sides]
    least_s = 0.5e-3 * max(side.point.step_time_s for side in comparison.sides)
    return _with_change(
        comparison,
        [
            (name, *(quantities.duration(step_s.get(name, 0.0)) for step_s in steps_s))
            for name in parts(comparison)
        ],
        {
            name: _signed_time(time_s)
            for versus in comparison.differences
            for name, time_s in versus.parts_s.items()
            if abs(time_s) >= least_s
        },
    )


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
    units = [f"{side.result.samples.units}/s" for side in comparison.sides]
    return (
        (f"throughput, {units[0]}", *counts)
        if len(set(units)) == 1
        else ("throughput", *map(" ".join, zip(counts, units, strict=True)))
    )


def _memory(side: Side) -> str:
    memory, verdict = side.point.memory, quantities.memory_verdict(side.point.memory)
    return quantities.size(memory.total_bytes) + ("" if verdict == "fits" else f" ({verdict})")


def parts(comparison: Comparison) -> list[str]:
    """Parts of a step that matter on some side, in their usual order."""
    points = [side.point for side in comparison.sides]
    return [
        name
        for name in dict.fromkeys(name for point in points for name in point.breakdown_s)
        if any(point.breakdown_s.get(name, 0.0) > 1e-4 * point.step_time_s for point in points)
    ]


def _signed_time(time_s: float) -> str:
    return "0 s" if time_s == 0 else quantities.signed(time_s, quantities.duration)


def what_if_table(comparison: Comparison) -> Table:
    """Return a table of what-ifs: each side's step and what it saves of today's.

    Where known, a column says how much of the difference of the sides is gone.
    """
    names, imagined = column_names(comparison.sides), comparison.what_ifs
    now_s = [side.point.step_time_s for side in comparison.sides]
    rows = [
        ("everything as it is", [(quantities.duration(step_s), "") for step_s in now_s]),
        *((each.what, list(map(_cells, each.steps_s, now_s))) for each in imagined),
    ]
    if len(names) > 3:  # one column per side, of the step and what is saved of it
        titles = ["with (saved)", *(f">{name}" for name in names)]
        return Table(
            titles,
            [
                [what, *(f"{step} ({saved})" if saved else step for step, saved in pairs)]
                for what, pairs in rows
            ],
            wraps=True,
        )
    titles = ["with", *(title for name in names for title in (f">{name}", ">saved"))]
    shares: list[list[str]] = [[] for _ in rows]
    if any(share is not None for each in imagined for share in each.shares):
        of = ">of the difference"
        titles += [of] if len(names) == 2 else [f"{of} ({name})" for name in names[1:]]
        shares = [
            [""] * (len(names) - 1),
            *(
                [quantities.or_empty(_percent, share) for share in each.shares[1:]]
                for each in imagined
            ),
        ]
    return Table(
        titles,
        [
            [what, *chain.from_iterable(pairs), *own]
            for (what, pairs), own in zip(rows, shares, strict=True)
        ],
    )


def _percent(share: float) -> str:
    return f"{round(100 * share)}\N{NO-BREAK SPACE}%"


def _cells(step_s: float | None, now_s: float) -> tuple[str, str]:
    if step_s is None:
        return "failed", ""
    return quantities.duration(step_s), f"{100 * (1 - step_s / now_s):.1f}\N{NO-BREAK SPACE}%"


def comparison_lines(comparison: Comparison) -> list[Block]:
    """Arrange a comparison for the terminal: sentences, what differs, figures, what-ifs."""
    blank, several = Paragraph(""), len(comparison.sides) > 1
    fields = fields_table(comparison) if comparison.fields else Paragraph("No field differs.")
    return [
        *paragraphs([f"{headline(comparison)}."] if comparison.differences else []),
        *paragraphs(sentences(comparison)),
        blank,
        *([fields, *paragraphs(unread_fields(comparison)), blank] if several else []),
        figures_table(comparison),
        blank,
        parts_table(comparison),
        *([blank, what_if_table(comparison)] if comparison.what_ifs else []),
        blank,
    ]


def comparison_html(comparison: Comparison) -> str:
    """Build the page as one string."""
    title, fields = comparison_text.title(comparison), fields_table(comparison)
    results = [side.result for side in comparison.sides]
    lead = (
        " ".join(unread_fields(comparison)) if fields.rows else "Nothing: all sides ask the same."
    )
    return render_html(
        f"Comparison: {title}",
        [
            header(
                title,
                headline(comparison),
                [PREDICTED],
                # once for each scenario: "What differs" has what its variations change
                reversed({s.scenario: s.question for s in results[::-1]}.values()),
                sentences(comparison),
            ),
            section("What differs", lead, fields if fields.rows else None)
            if len(comparison.sides) > 1
            else None,
            section("Figures", "", figures_table(comparison)),
            section(
                "Where the step goes",
                "One step of each in its parts.",
                Figure(draw_steps(comparison), "steps", "Bars: the parts of a step of each side"),
                parts_table(comparison),
            ),
            section(
                "What each part of the machine costs",
                "The step if one thing were ideal and all else stayed, and how much of it that "
                "saves.",
                what_if_table(comparison),
            )
            if comparison.what_ifs
            else None,
            section(
                "What the numbers rest on", "", Bullets(comparison_text.assumptions(comparison))
            ),
        ],
    )


def draw_steps(comparison: Comparison) -> Drawing:
    """Draw the parts of each side's step as one bar, the first side on top."""
    steps_s = [(side.label, side.point.breakdown_s) for side in comparison.sides]
    return stack_parts(
        [short_label(name) for name in comparison_text.side_names(comparison)],
        [
            (
                part,
                WORK.get(part, WORK["host"]),
                [step_s.get(part, 0.0) for _, step_s in steps_s],
                [
                    f"<b>{escape(label, quote=False)}</b><br>{part} "
                    f"{quantities.duration(step_s.get(part, 0.0))}"
                    for label, step_s in steps_s
                ],
            )
            for part in parts(comparison)
        ],
        longest_s=max(side.point.step_time_s for side in comparison.sides),
        row_pixels=46,
    )


FILES = {
    "compare.html": comparison_html,
    "compare.csv": to_csv,
    "compare.json": to_json,
    SPREADSHEET: lambda answer: spreadsheet(to_json(answer)),
}
"""Files of a comparison, and what makes them."""
