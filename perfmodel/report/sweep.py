"""A sweep in the terminal, and as one self-contained HTML page with CSV and JSON beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from perfmodel.errors import UnitError
from perfmodel.memo import first_applying
from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    PREDICTED,
    Block,
    Definitions,
    Figure,
    Paragraph,
    Section,
    Table,
    header,
    join_applying,
    paragraphs,
    section,
    table_section,
    tabulate,
)
from perfmodel.report.common.figures import (
    Drawing,
    axis_layout,
    lines,
    log_axis,
    new_figure,
    short_label,
    stack_parts,
)
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.common.palette import CYCLE, QUIET_INK, WORK
from perfmodel.report.common.spreadsheet import SPREADSHEET, spreadsheet
from perfmodel.scenario import Scenario
from perfmodel.scenario.source_map import format_fields, format_value
from perfmodel.studies.sweep import Answer, SweepResult
from perfmodel.studies.sweep.run import flatten, to_json
from perfmodel.studies.sweep.variants import Variant
from perfmodel.units import parse_bandwidth, parse_bytes, parse_time

Pair = tuple[Variant, Answer]
"""A variant that was answered, and its figures."""

FASTEST_FIRST = "Most samples per second first; those that do not fit in memory last."


def answered(swept: SweepResult) -> list[Pair]:
    """Variants with an answer: those that fit first, then by throughput."""
    return sorted(
        _with_status(swept, "ok"),
        key=lambda pair: (not pair[1].fits, -(pair[1].samples_per_s or 0.0)),
    )


def failed(swept: SweepResult) -> list[Pair]:
    """Variants without an answer."""
    return _with_status(swept, "failed")


def _with_status(swept: SweepResult, status: str) -> list[Pair]:
    return [
        (variant, answer)
        for variant, answer in zip(swept.variants, swept.answers, strict=True)
        if answer.status == status
    ]


def has_one_size(pairs: Sequence[Pair]) -> bool:
    """Whether all variants train on as many GPUs."""
    return len({answer.gpus for _, answer in pairs}) < 2


def per_gpu(answer: Answer) -> float:
    """Samples per second of one GPU."""
    return (answer.samples_per_s or 0.0) / (answer.gpus or 1)


def brief(value: object) -> str:
    """Write a value for people: ``fsdp, shard_gpus=8`` for a section, "default" for none."""
    if not isinstance(value, Mapping):
        return "default" if value is None else format_value(value)
    return ", ".join(
        [
            *([str(value["kind"])] if "kind" in value else []),
            *(
                name if inner is True else f"{name}={brief(inner)}"
                for name, inner in value.items()
                if name != "kind"
            ),
        ]
    )


def describe(values: Mapping[str, object]) -> str:
    """Write set fields for people; a field alone by its value if that is a section.

    Of a field's name the last part is written, where no other field has the same.
    """
    if len(values) == 1 and isinstance(next(iter(values.values())), Mapping):
        return brief(next(iter(values.values())))
    ends = [field.rpartition(".")[2] for field in values]
    return ", ".join(
        f"{field if ends.count(end) > 1 else end}={brief(value)}"
        for (field, value), end in zip(values.items(), ends, strict=True)
    )


def headline(swept: SweepResult) -> str:
    """Name the variant with the highest throughput that fits."""
    pairs = answered(swept)
    fitting = [pair for pair in pairs if pair[1].fits]
    if not fitting:
        return "No variant fits in memory" if pairs else "No variant was answered"
    variant, answer = fitting[0]
    return (
        f"Quickest of {len(pairs):,}: {describe(variant.set)}, "
        f"{quantities.count(answer.samples_per_s or 0.0)} samples/s"
    )


def findings(swept: SweepResult) -> Iterator[str]:
    """Say how far apart the variants are, and what else decides."""
    pairs = [pair for pair in answered(swept) if pair[1].fits]
    if len(pairs) > 1:
        (last, slowest), most = pairs[-1], pairs[0][1].samples_per_s or 1.0
        yield (
            f"The slowest that fits ({describe(last.set)}) trains "
            f"{quantities.count(slowest.samples_per_s or 0.0)} samples/s, "
            f"{quantities.percent((slowest.samples_per_s or 0.0) / most)} of that."
        )
    if not has_one_size(pairs):
        variant, answer = max(pairs, key=lambda pair: per_gpu(pair[1]))
        rate = quantities.count(per_gpu(answer))
        yield f"Most for each GPU: {describe(variant.set)}, {rate} samples/s per GPU."
    lacking = [variant for variant, answer in answered(swept) if not answer.fits]
    if lacking:
        only = f" ({describe(lacking[0].set)})" if len(lacking) == 1 else ""
        yield f"{len(lacking):,}{only} {'does' if only else 'do'} not fit in memory."
    if swept.failed:
        yield f"{swept.failed:,} could not be answered."


def variant_table(swept: SweepResult, most: int) -> Table:
    """List variants with their figures, the fastest first."""

    def value(name: str) -> Callable[[Pair], str]:
        return lambda pair: brief(pair[0].set.get(name))

    return tabulate(
        answered(swept)[:most],
        (
            *((name, value(name)) for name in swept.fields),
            (">GPUs", lambda pair: f"{pair[1].gpus:,}"),
            (">step", lambda pair: quantities.duration(pair[1].step_time_s or 0.0)),
            (
                ">80 % interval",
                lambda pair: quantities.span_or("not known", _ends(pair[1]), quantities.duration),
            ),
            (">exposed", lambda pair: quantities.duration(pair[1].exposed_comm_s or 0.0)),
            (">samples/s", lambda pair: quantities.count(pair[1].samples_per_s or 0.0)),
            (">memory", lambda pair: quantities.size(pair[1].memory_bytes or 0.0)),
            ("bottleneck", lambda pair: (pair[1].bottleneck or "") + memory_note(pair[1])),
        ),
    )


def _ends(answer: Answer) -> tuple[float, float] | None:
    low_s, high_s = answer.low_s, answer.high_s
    return None if low_s is None or high_s is None else (low_s, high_s)


def memory_note(answer: Answer) -> str:
    """Say in brackets that a variant does not fit, or only just."""
    return first_applying(
        (not answer.fits, " (does not fit in memory)"),
        (answer.tight, " (memory is tight)"),
        (True, ""),
    )


FEWEST_NUMBERS = 3
"""Numbers along an axis, at least."""


class SweepAxes(NamedTuple):
    """The field along the axis and its places, by the value as written; fields that make lines."""

    field: str
    places: dict[str, float]
    lines: tuple[str, ...]


def choose_axes(fields: Sequence[str], pairs: Sequence[Pair]) -> SweepAxes | None:
    """Choose the field with the most numbers among its values; None where none has enough.

    Fields that change along with it are not lines: a ``zip`` sets them together.
    """
    numbered = {field: _places(field, pairs) for field in fields}
    longest = max(numbered, key=lambda field: len(numbered[field]), default="")
    if not longest or len(numbered[longest]) < FEWEST_NUMBERS:
        return None
    lines = tuple(f for f in fields if f != longest and not _follows(f, longest, pairs))
    return SweepAxes(longest, numbered[longest], lines)


def _places(field: str, pairs: Sequence[Pair]) -> dict[str, float]:
    """Numbers of a field by the value as written; what is no number has no place."""
    values = [variant.set.get(field) for variant, _ in pairs]
    placed = {format_value(value): _number(value) for value in values}
    return {text: number for text, number in placed.items() if number is not None and number > 0}


def _number(value: object) -> float | None:
    if not isinstance(value, str):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number else None  # type: ignore[arg-type]
    for parse in (parse_bytes, parse_time, parse_bandwidth):
        with suppress(UnitError):
            return parse(value)
    return None


def _follows(field: str, other: str, pairs: Sequence[Pair]) -> bool:
    """Whether each value of the other field goes with one of this field, which varies."""
    both = {(format_value(v.set.get(field)), format_value(v.set.get(other))) for v, _ in pairs}
    return len(both) == len({its for _, its in both}) and len({mine for mine, _ in both}) > 1


MOST_COLOURED_LINES = 7
"""Lines with a colour of their own; the slower ones are grey."""

MOST_BARS = 16
"""Variants whose steps are drawn."""

_MOST_AXIS_LABELS = 7
_LOG_AXIS_RATIO = 8.0
"""Numbers further apart than this factor stand on a logarithmic axis."""


def draw_sweep(swept: SweepResult) -> Drawing:
    """Draw throughput along the field that has numbers, else the steps of the quickest."""
    pairs = answered(swept)
    axes = choose_axes(swept.fields, pairs)
    return draw_steps(pairs) if axes is None else draw_throughput(pairs, axes)


def draw_throughput(pairs: Sequence[Pair], axes: SweepAxes) -> Drawing:
    """Draw throughput along a field, one line for each combination of the other fields."""
    each_gpu = not has_one_size(pairs)
    by_label: dict[str, list[tuple[float, float, Pair]]] = defaultdict(list)
    for variant, answer in pairs:
        place = axes.places.get(format_value(variant.set.get(axes.field)))
        if place is not None:
            label = describe({name: variant.set.get(name) for name in axes.lines})
            rate = per_gpu(answer) if each_gpu else answer.samples_per_s or 0.0
            by_label[label].append((place, rate, (variant, answer)))
    best = sorted(by_label, key=lambda label: -max(rate for _, rate, _ in by_label[label]))
    return new_figure(
        420,
        [_line(label, at, by_label[label]) for at, label in enumerate(best)],
        x=_field_axis(axes),
        y=axis_layout("samples/s per GPU" if each_gpu else "samples/s", rangemode="tozero"),
    )


def _line(label: str, at: int, found: Sequence[tuple[float, float, Pair]]) -> dict[str, Any]:
    """Describe one line, filled where it fits: the highest mark may be of what cannot run."""
    points, is_grey = sorted(found, key=lambda point: point[:2]), at >= MOST_COLOURED_LINES
    colour = QUIET_INK if is_grey else CYCLE[at]
    return lines(
        escape(label, quote=False),
        [place for place, _, _ in points],
        [rate for _, rate, _ in points],
        {"color": colour, "width": 1 if is_grey else 2},
        mode="lines+markers",
        showlegend=bool(label) and not is_grey,
        opacity=0.4 if is_grey else 1.0,
        marker={
            "color": colour,
            "size": 7,
            "symbol": ["circle" if answer.fits else "circle-open" for *_, (_, answer) in points],
        },
        hovertext=[hover(pair) for _, _, pair in points],
    )


def _field_axis(axes: SweepAxes) -> dict[str, object]:
    """Describe the axis of a field: its own values are the labels."""
    texts = {place: text for text, place in axes.places.items()}
    places = sorted(texts)
    low, high, step = places[0], places[-1], -(-len(places) // _MOST_AXIS_LABELS)
    labelled = places[::-step][::-1]
    if high < _LOG_AXIS_RATIO * low:
        return axis_layout(
            axes.field, tickvals=labelled, ticktext=[texts[place] for place in labelled]
        )
    room = (high / low) ** 0.03
    return log_axis(axes.field, (low / room, high * room), labelled, texts.__getitem__)


def hover(pair: Pair) -> str:
    """Write what is shown when a mark is pointed at."""
    variant, answer = pair
    ends = " to ".join(map(quantities.duration, _ends(answer) or ()))
    return (
        f"<b>{escape(describe(variant.set), quote=False)}</b>"
        f"<br>{quantities.count(answer.samples_per_s or 0.0)} samples/s"
        f" on {quantities.gpus(answer.gpus or 0)}"
        f"<br>step {quantities.duration(answer.step_time_s or 0.0)}"
        f"{f'<br>80 % interval {ends}' if ends else ''}"
        f"<br>{escape(answer.bottleneck or '', quote=False)}{memory_note(answer)}"
    )


def draw_steps(pairs: Sequence[Pair]) -> Drawing:
    """Draw the step of the first variants: compute, exposed communication, and the rest."""
    shown = pairs[:MOST_BARS]
    longest_s = max((answer.step_time_s or 0.0 for _, answer in shown), default=1.0)
    times_s = [
        parts_s(answer.step_time_s, answer.compute_s, answer.exposed_comm_s) for _, answer in shown
    ]
    colours = {
        "compute": WORK["backward"],
        "exposed communication": WORK["exposed communication"],
        "the rest": WORK["idle"],
    }
    return stack_parts(
        # values only: the hover text has the names of their fields
        [short_label(", ".join(map(brief, variant.set.values()))) for variant, _ in shown],
        [
            (part, colour, [each_s[part] for each_s in times_s], list(map(hover, shown)))
            for part, colour in colours.items()
            if any(each_s[part] > quantities.ROUNDING_SHARE * longest_s for each_s in times_s)
        ],
        longest_s=longest_s,
        row_pixels=34,
    )


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


FILES = ("sweep.html", "sweep.csv", "sweep.json", SPREADSHEET)
"""Files that `write_sweep` writes."""

MOST_PAGE_ROWS = 300
"""Variants in the table of the page; the files beside it have all."""

MOST_TERMINAL_ROWS = 40
"""Variants in the table of the terminal."""


def write_sweep(scenario: Scenario, swept: SweepResult, folder: Path) -> Path:
    """Write ``sweep.html``, ``sweep.csv``, ``sweep.json`` and ``result.xlsx``.

    Returns and raises as `write_report_files`.
    """
    document = to_json(scenario.name, scenario.question, swept)
    return write_report_files(
        folder,
        {
            "sweep.html": sweep_html(swept),
            "sweep.csv": flatten(swept).to_csv(lineterminator="\n"),
            "sweep.json": document,
            SPREADSHEET: spreadsheet(document),
        },
    )


def _question(variant: Scenario, fields: Collection[str]) -> str:
    """What all variants ask: that of one without the fields that vary."""
    flags = tuple(flag for flag in variant.origin.flags if flag not in fields)
    return variant.with_origin(replace(variant.origin, flags=flags)).question


def sweep_html(swept: SweepResult) -> str:
    """Build the page as one string."""
    scenarios = [variant.scenario for variant in swept.variants if variant.scenario is not None]
    name, count = scenarios[0].name if scenarios else "a scenario", len(answered(swept))
    more = f" The first {MOST_PAGE_ROWS} of {count:,}: sweep.csv has all."
    messages = {
        format_fields(v.set): answer.message
        for v, answer in _with_status(swept, "failed")[:MOST_PAGE_ROWS]
    }
    return render_html(
        f"Sweep: {name}",
        [
            header(
                f"Sweep of {name} over {', '.join(swept.fields)}",
                headline(swept),
                [PREDICTED],
                [_question(scenario, swept.fields) for scenario in scenarios[:1]],
                findings(swept),
            ),
            *_charts(swept),
            table_section(
                "All variants",
                f"{FASTEST_FIRST}{more if count > MOST_PAGE_ROWS else ''}",
                variant_table(swept, MOST_PAGE_ROWS),
            ),
            section("Not answered", "", Definitions(messages)) if messages else None,
        ],
    )


def _charts(swept: SweepResult) -> list[Section]:
    pairs = answered(swept)
    if not pairs:
        return []
    which = "Steps of the quickest variants" if len(pairs) > MOST_BARS else "Steps of all variants"
    steps = section(
        "Where the step goes",
        f"{which}, by {', '.join(swept.fields)}. {FASTEST_FIRST}",
        Figure(draw_steps(pairs), "steps", "Bars: the parts of a step of each variant"),
    )
    axes = choose_axes(swept.fields, pairs)
    if axes is None:
        return [steps]
    field, one_size = axes.field, has_one_size(pairs)
    combinations = {describe({n: v.set.get(n) for n in axes.lines}) for v, _ in pairs}
    coloured = f"; the best {MOST_COLOURED_LINES} in colour"
    lead = join_applying(
        (one_size, f"Throughput along {field}."),
        (not one_size, f"Throughput of each GPU along {field}: what falls is lost to scale."),
        (
            axes.lines,
            (
                "A line for each combination of the rest"
                f"{coloured if len(combinations) > MOST_COLOURED_LINES else ''}."
            ),
        ),
        (
            len({format_value(variant.set.get(field)) for variant, _ in pairs}) > len(axes.places),
            f"Values of {field} that are no numbers are in the table alone.",
        ),
        (not all(answer.fits for _, answer in pairs), "Open marks do not fit in memory."),
    )
    return [
        section(
            f"Throughput by {field}",
            lead,
            Figure(draw_throughput(pairs, axes), "throughput", f"Lines: throughput along {field}"),
        ),
        steps,
    ]


def sweep_lines(swept: SweepResult) -> list[Block]:
    """Arrange a sweep for the terminal: the answer, and the table."""
    return [
        *paragraphs([f"{headline(swept)}.", *findings(swept)]),
        Paragraph(""),
        variant_table(swept, MOST_TERMINAL_ROWS),
    ]
