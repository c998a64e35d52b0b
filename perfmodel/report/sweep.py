"""A sweep in the terminal, and as one self-contained HTML page with CSV and JSON beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.errors import UnitError
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
    paragraphs,
    section,
)
from perfmodel.report.common.figures import (
    axis_layout,
    label_rows,
    log_axis,
    new_figure,
    short_label,
    time_unit,
)
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.common.palette import CYCLE, QUIET_INK, WORK
from perfmodel.scenario import Scenario
from perfmodel.studies.sweep import Answer, SweepResult
from perfmodel.studies.sweep.export import flatten, to_json
from perfmodel.studies.sweep.run import format_fields, format_value
from perfmodel.studies.sweep.variants import Variant
from perfmodel.units import parse_bandwidth, parse_bytes, parse_time

if TYPE_CHECKING:
    import plotly.graph_objects as go


Pair = tuple[Variant, Answer]
"""A variant that was answered, and its figures."""

FASTEST_FIRST = "Most samples per second first; those that do not fit in memory last."


def answered(swept: SweepResult) -> list[Pair]:
    """Variants with an answer: those that fit first, then by throughput."""
    pairs = zip(swept.variants, swept.answers, strict=True)
    done = [(variant, answer) for variant, answer in pairs if answer.status == "ok"]
    return sorted(done, key=lambda pair: (not pair[1].fits, -(pair[1].samples_per_s or 0.0)))


def failed(swept: SweepResult) -> list[Pair]:
    """Variants without an answer."""
    pairs = zip(swept.variants, swept.answers, strict=True)
    return [(variant, answer) for variant, answer in pairs if answer.status == "failed"]


def has_one_size(pairs: Sequence[Pair]) -> bool:
    """Whether all variants train on as many GPUs."""
    return len({answer.gpus for _, answer in pairs}) < 2


def per_gpu(answer: Answer) -> float:
    """Samples per second of one GPU."""
    return (answer.samples_per_s or 0.0) / (answer.gpus or 1)


def short_names(fields: Sequence[str]) -> dict[str, str]:
    """Last part of each field's name where no other field has the same."""
    ends = [field.rpartition(".")[2] for field in fields]
    return {f: f if ends.count(e) > 1 else e for f, e in zip(fields, ends, strict=True)}


def brief(value: object) -> str:
    """Write a value for people: ``fsdp, shard_gpus=8`` for a section, "default" for none."""
    if value is None:
        return "default"
    if not isinstance(value, Mapping):
        return format_value(value)
    rest = {name: inner for name, inner in value.items() if name != "kind"}
    parts = [name if inner is True else f"{name}={brief(inner)}" for name, inner in rest.items()]
    return ", ".join([*([str(value["kind"])] if "kind" in value else []), *parts])


def describe(values: Mapping[str, object]) -> str:
    """Write set fields for people; a field alone by its value if that is a section."""
    if len(values) == 1 and isinstance(next(iter(values.values())), Mapping):
        return brief(next(iter(values.values())))
    names = short_names(list(values))
    return ", ".join(f"{names[field]}={brief(value)}" for field, value in values.items())


def headline(swept: SweepResult) -> str:
    """Name the variant with the highest throughput that fits."""
    pairs = answered(swept)
    fitting = [pair for pair in pairs if pair[1].fits]
    if not fitting:
        return "No variant fits in memory" if pairs else "No variant was answered"
    variant, answer = fitting[0]
    rate = f"{quantities.count(answer.samples_per_s or 0.0)} samples/s"
    return f"Quickest of {len(pairs):,}: {describe(variant.set)}, {rate}"


def findings(swept: SweepResult) -> Iterator[str]:
    """Say how far apart the variants are, and what else decides."""
    pairs = [pair for pair in answered(swept) if pair[1].fits]
    if len(pairs) > 1:
        (_, best), (last, slowest) = pairs[0], pairs[-1]
        share = (slowest.samples_per_s or 0.0) / (best.samples_per_s or 1.0)
        yield (
            f"The slowest that fits ({describe(last.set)}) trains "
            f"{quantities.count(slowest.samples_per_s or 0.0)} samples/s, "
            f"{quantities.percent(share)} of that."
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
    headers = (
        *swept.fields,
        ">GPUs",
        ">step",
        ">80 % interval",
        ">exposed",
        ">samples/s",
        ">memory",
        "bottleneck",
    )
    rows = [
        (
            *(brief(variant.set.get(name)) for name in swept.fields),
            f"{answer.gpus:,}",
            quantities.duration(answer.step_time_s or 0.0),
            _interval(answer),
            quantities.duration(answer.exposed_comm_s or 0.0),
            quantities.count(answer.samples_per_s or 0.0),
            quantities.size(answer.memory_bytes or 0.0),
            (answer.bottleneck or "") + memory_note(answer),
        )
        for variant, answer in answered(swept)[:most]
    ]
    return Table(headers, rows)


def _interval(answer: Answer) -> str:
    if answer.low_s is None or answer.high_s is None:
        return "not known"
    return quantities.span(answer.low_s, answer.high_s, quantities.duration)


def memory_note(answer: Answer) -> str:
    """Say in brackets that a variant does not fit, or only just."""
    if not answer.fits:
        return " (does not fit in memory)"
    return " (memory is tight)" if answer.tight else ""


FEWEST = 3
"""Numbers along an axis, at least."""

_PARSERS: tuple[Callable[[object], float], ...] = (parse_bytes, parse_time, parse_bandwidth)


@dataclass(frozen=True, slots=True)
class SweepAxes:
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
    if not longest or len(numbered[longest]) < FEWEST:
        return None
    lines = tuple(f for f in fields if f != longest and not _follows(f, longest, pairs))
    return SweepAxes(longest, numbered[longest], lines)


def _places(field: str, pairs: Sequence[Pair]) -> dict[str, float]:
    """Numbers of a field by the value as written; what is no number has no place."""
    values = {format_value(variant.set.get(field)): variant.set.get(field) for variant, _ in pairs}
    placed = {text: _number(value) for text, value in values.items()}
    return {text: number for text, number in placed.items() if number is not None and number > 0}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if not isinstance(value, str):
        return float(value)
    for parse in _PARSERS:
        try:
            return parse(value)
        except UnitError:
            continue
    return None


def _follows(field: str, other: str, pairs: Sequence[Pair]) -> bool:
    """Whether each value of the other field goes with one of this field, which varies."""
    both = {(format_value(v.set.get(field)), format_value(v.set.get(other))) for v, _ in pairs}
    own = {mine for mine, _ in both}
    return len(both) == len({its for _, its in both}) and len(own) > 1


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
        # filled where it fits: the highest mark may be of what cannot run
        symbols = ["circle" if answer.fits else "circle-open" for _, _, (_, answer) in points]
        colour = QUIET_INK if is_grey else CYCLE[at]
        figure.add_scatter(
            x=[place for place, _, _ in points],
            y=[rate for _, rate, _ in points],
            name=escape(label, quote=False),
            showlegend=bool(label) and not is_grey,
            mode="lines+markers",
            line={"color": colour, "width": 1 if is_grey else 2},
            opacity=0.4 if is_grey else 1.0,
            marker={"color": colour, "size": 7, "symbol": symbols},
            hoverinfo="text",
            hovertext=[hover(pair) for _, _, pair in points],
        )
    figure.update_xaxes(**_field_axis(axes))
    title = "samples/s per GPU" if each_gpu else "samples/s"
    figure.update_yaxes(**axis_layout(title, rangemode="tozero"))
    return figure


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
    # Values only: the hover text has the names of their fields.
    labels = [
        short_label(", ".join(map(brief, variant.set.values()))) for variant, _ in shown_pairs
    ]
    label_rows(figure, labels, f"time per step ({unit})", rangemode="tozero")
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
        headline(swept),
        [PREDICTED],
        [scenario.question for scenario in scenarios[:1]],
        findings(swept),
    )
    return render_html(f"Sweep: {name}", [head, *_charts(swept), *_lists(swept)])


def _charts(swept: SweepResult) -> list[Section]:
    pairs = answered(swept)
    if not pairs:
        return []
    sections = []
    axes = choose_axes(swept.fields, pairs)
    if axes is not None:
        lead = f"Throughput along {axes.field}."
        if not has_one_size(pairs):
            lead = f"Throughput of each GPU along {axes.field}: what falls is lost to scale."
        if axes.lines:
            lead += " A line for each combination of the rest"
            combinations = {describe({n: v.set.get(n) for n in axes.lines}) for v, _ in pairs}
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
    return [*sections, section("Where the step goes", f"{lead} {FASTEST_FIRST}", bars)]


def _lists(swept: SweepResult) -> list[Section]:
    pairs, faults = answered(swept), failed(swept)
    sections = []
    if pairs:
        rest = f" The first {ROWS} of {len(pairs):,}: sweep.csv has all."
        lead = FASTEST_FIRST + (rest if len(pairs) > ROWS else "")
        sections.append(section("All variants", lead, variant_table(swept, ROWS)))
    if faults:
        messages = {format_fields(v.set): answer.message for v, answer in faults[:ROWS]}
        sections.append(section("Not answered", "", Definitions(messages)))
    return sections


def sweep_lines(swept: SweepResult) -> list[Block]:
    """Arrange a sweep for the terminal: the answer, and the table."""
    lines = [f"{headline(swept)}.", *findings(swept)]
    return [*paragraphs(lines), Paragraph(""), variant_table(swept, TERMINAL_ROWS)]
