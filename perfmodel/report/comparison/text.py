"""Sentences and tables of a comparison; the page and the terminal say the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perfmodel.report.common import quantities
from perfmodel.report.common.document import Block, Paragraph, Table, paragraphs
from perfmodel.report.run.parallel import parallelism
from perfmodel.studies.compare.model import Change, Comparison, Side, SideDifference
from perfmodel.studies.run.result import SizeResult

NOTHING = 0.0005
"""Changes below this are none."""


def title(comparison: Comparison) -> str:
    """Name what is compared."""
    return " against ".join(side.label for side in comparison.sides)


def sentences(comparison: Comparison) -> Iterator[str]:
    """Compare each side with the first in one sentence."""
    first = comparison.sides[0]
    for side, versus in zip(comparison.sides[1:], comparison.differences, strict=True):
        parts = (_headline(first, side, versus), _limit(versus), _lacking_memory(first, side))
        yield f"{side.label}: {' '.join(part for part in parts if part)}"
    if not comparison.differences:
        yield f"{first.label}: a step takes {quantities.duration(first.point.step_time_s)}."


def _headline(first: Side, side: Side, versus: SideDifference) -> str:
    before, after = first.point, side.point
    if versus.same_batch or not versus.same_samples:
        now, then = quantities.duration(after.step_time_s), quantities.duration(before.step_time_s)
        by = change(versus.step, "longer", "shorter")
        unlike = "" if versus.same_samples else " The samples are different things."
        return f"a step takes {now} instead of {then}, {by}.{unlike}{_largest_part(versus)}"
    now, then = quantities.count(after.samples_per_s), quantities.count(before.samples_per_s)
    unit, by = quantities.samples_short(side.result), change(versus.throughput, "more", "fewer")
    return f"{now} instead of {then} {unit}/s, {by}; steps differ in size."


def change(difference: Change, more: str, less: str) -> str:
    """Say a change with its interval: ``"18 % shorter (15 % to 20 %)"``."""
    if abs(difference.ratio - 1) < NOTHING and difference.interval is None:
        return "no change"
    sentence = _direction(difference.ratio, more, less)
    if difference.interval is None:
        return f"{sentence} (no interval is known)"
    low, high = sorted(difference.interval, key=lambda ratio: abs(ratio - 1))
    if max(abs(low - 1), abs(high - 1)) < NOTHING:
        return sentence
    ends = " to ".join(_direction(ratio, more, less) for ratio in difference.interval)
    if difference.within:
        return f"{sentence}, which is within the interval ({ends})"
    if (low < 1) == (high < 1):
        ends = f"{_percent(low)} to {_percent(high)}"
        if _percent(low) == _percent(high):
            ends = f"{_percent(low)} at both ends of the interval"
    return f"{sentence} ({ends})"


def _direction(ratio: float, more: str, less: str) -> str:
    if abs(ratio - 1) < NOTHING:
        return "no change"
    return f"{_percent(ratio)} {more if ratio > 1 else less}"


def _percent(ratio: float) -> str:
    value = 100 * abs(ratio - 1)
    digits = 0 if value >= 10 else 1 if value >= 1 else 2
    return f"{value:,.{digits}f}\N{NO-BREAK SPACE}%"


def _largest_part(versus: SideDifference) -> str:
    """Name the part of a step that changed most, where it changed at all."""
    part = max(versus.parts_s, key=lambda name: abs(versus.parts_s[name]))
    apart_s = versus.parts_s[part]
    if abs(versus.step.ratio - 1) < NOTHING or apart_s == 0:
        return ""
    more = "more" if apart_s > 0 else "less"
    return f" The largest part of it is {part}, {quantities.duration(abs(apart_s))} {more}."


def _limit(versus: SideDifference) -> str:
    before, after = versus.bottleneck
    if versus.moved:
        return f"What limits the step moved from {before} to {after}."
    return f"Both are limited by {after}."


def _lacking_memory(first: Side, side: Side) -> str:
    """Say which of two sides has no room in memory."""
    lacking = [each.label for each in (first, side) if not each.point.memory.fits]
    if not lacking:
        return ""
    does = "do not fit" if len(lacking) > 1 else "does not fit"
    return f"{' and '.join(lacking)} {does} in memory."


# ---------------------------------------------------------------- tables


def fields_table(comparison: Comparison) -> Table:
    """Which fields differ."""
    rows = [(field.name, *field.values) for field in comparison.fields]
    return Table(["field", *(side.label for side in comparison.sides)], rows)


def unread_fields(comparison: Comparison) -> list[str]:
    """Sentences on fields that differ and by which no step does."""
    names: dict[str, list[str]] = {}
    for field in comparison.fields:
        if field.reader is not None:
            names.setdefault(field.reader, []).append(field.name)
    return [
        f"{', '.join(fields)}: acts in {reader} only, no step here differs by it."
        for reader, fields in names.items()
    ]


def figures_table(comparison: Comparison) -> Table:
    """The figures of each side; with two of them the change too."""
    sides = comparison.sides
    points = [side.point for side in sides]
    rows: list[tuple[str, ...]] = [
        ("GPUs", *(f"{point.gpus:,}" for point in points)),
        ("global batch", *(f"{point.global_batch:,}" for point in points)),
        ("step", *(quantities.duration(point.step_time_s) for point in points)),
        ("80 % interval", *map(_interval, sides)),
        ("throughput", *map(_throughput, sides)),
        ("compute", *(quantities.duration(point.compute_s) for point in points)),
        ("communication", *(quantities.duration(point.comm_s) for point in points)),
        ("exposed communication", *(quantities.duration(p.exposed_comm_s) for p in points)),
        *_exposed_rows(points),
        *_mixture_rows(points),
        ("sent per GPU", *(quantities.size(point.sent_bytes) for point in points)),
        ("MFU", *map(_utilisation, sides)),
        ("memory per GPU", *map(_memory, sides)),
        ("limited by", *map(_limited_by, points)),
    ]
    return _with_change(comparison, rows, _changes(comparison))


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


def _limited_by(point: SizeResult) -> str:
    """Name the bottleneck; by kinds of parts where it is several links, whose names are long."""
    relief = point.relief
    if relief is None or len(relief.parts) < 2:
        return point.bottleneck
    return ", ".join(relief.parts)


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
    }
    return _with_change(comparison, rows, own)


def _with_change(
    comparison: Comparison, rows: list[tuple[str, ...]], changes: Mapping[str, str]
) -> Table:
    header = ["", *(f">{side.label}" for side in comparison.sides)]
    if len(comparison.sides) != 2:
        return Table(header, rows)
    return Table([*header, ">change"], [(*row, changes.get(row[0], "")) for row in rows])


def _changes(comparison: Comparison) -> Mapping[str, str]:
    """What the column of changes says of two sides."""
    if len(comparison.sides) != 2:
        return {}
    (versus,), (first, other) = comparison.differences, [side.point for side in comparison.sides]
    own = {
        "step": _signed_ratio(versus.step.ratio),
        "compute": _signed_time(other.compute_s - first.compute_s),
        "communication": _signed_time(other.comm_s - first.comm_s),
        "exposed communication": _signed_time(versus.exposed_s),
    }
    if versus.same_samples:
        own["throughput"] = _signed_ratio(versus.throughput.ratio)
    if versus.step.interval is not None:
        low, high = versus.step.interval
        own["80 % interval"] = f"{_signed_ratio(low)} to {_signed_ratio(high)}"
    return own


def _throughput(side: Side) -> str:
    return f"{quantities.count(side.point.samples_per_s)} {quantities.samples_short(side.result)}/s"


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


def _interval(side: Side) -> str:
    ends = side.point.interval_s
    if ends is None:
        return "not known"
    return f"{quantities.duration(ends[0])} to {quantities.duration(ends[1])}"


def _signed_ratio(ratio: float) -> str:
    if abs(ratio - 1) < NOTHING:
        return "0 %"
    return f"{'+' if ratio > 1 else '-'}{_percent(ratio)}"


def _signed_time(time_s: float) -> str:
    if time_s == 0:
        return "0 s"
    return f"{'+' if time_s > 0 else '-'}{quantities.duration(abs(time_s))}"


def what_if_table(comparison: Comparison) -> Table:
    """The classic what-ifs: step, what is saved, and how much of the difference is gone."""
    header = ["with"]
    for side in comparison.sides:
        header += [f">{side.label}", ">saved"]
    shared = any(share is not None for each in comparison.what_ifs for share in each.shares)
    if shared:
        others = comparison.sides[1:]
        of = ">of the difference"
        header += [of] if len(others) == 1 else [f"{of} ({side.label})" for side in others]
    unchanged = ["everything as it is"]
    for side in comparison.sides:
        unchanged += [quantities.duration(side.point.step_time_s), ""]
    rows = [unchanged + [""] * (len(header) - len(unchanged))]
    for imagined in comparison.what_ifs:
        row = [imagined.what]
        for side, step_s in zip(comparison.sides, imagined.steps_s, strict=True):
            row += _cells(step_s, side.point.step_time_s)
        rows.append(row + ([_share(share) for share in imagined.shares[1:]] if shared else []))
    return Table(header, rows)


def _cells(step_s: float | None, now_s: float) -> tuple[str, str]:
    if step_s is None:
        return "failed", ""
    return quantities.duration(step_s), f"{100 * (1 - step_s / now_s):.1f}\N{NO-BREAK SPACE}%"


def _share(share: float | None) -> str:
    return "" if share is None else f"{round(100 * share)}\N{NO-BREAK SPACE}%"


# ---------------------------------------------------------------- terminal


def comparison_lines(comparison: Comparison) -> list[Block]:
    """Arrange a comparison for the terminal: sentences, what differs, figures, what-ifs."""
    blank = Paragraph("")
    blocks: list[Block] = [*paragraphs(sentences(comparison)), blank]
    if len(comparison.sides) > 1:
        nothing = Paragraph("No field differs.")
        blocks += [fields_table(comparison) if comparison.fields else nothing]
        blocks += [*paragraphs(unread_fields(comparison)), blank]
    blocks += [figures_table(comparison), blank, parts_table(comparison)]
    if comparison.what_ifs:
        blocks += [blank, what_if_table(comparison)]
    return [*blocks, blank]
