"""Sentences and tables of a comparison; the page and the terminal say the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perfmodel.report.common import quantities
from perfmodel.studies.compare.model import Change, Comparison, Imagined, Side, Versus

Table = tuple[list[str], list[tuple[str, ...]]]
"""Headers (``>`` before those of numbers) and rows."""

NOTHING = 0.0005
"""Changes below this are none."""


def title(found: Comparison) -> str:
    """Name what is compared."""
    return " against ".join(side.label for side in found.sides)


def sentences(found: Comparison) -> Iterator[str]:
    """Say of each side how it stands to the first."""
    first = found.sides[0]
    for side, versus in zip(found.sides[1:], found.versus, strict=True):
        said = (_headline(first, side, versus), _limit(versus), _room(first, side))
        yield f"{side.label}: {' '.join(part for part in said if part)}"
    if not found.versus:
        yield f"{first.label}: a step takes {quantities.duration(first.point.step_time_s)}."


def _headline(first: Side, side: Side, versus: Versus) -> str:
    before, after = first.point, side.point
    if versus.same_batch or not versus.same_samples:
        both = f"{quantities.duration(after.step_time_s)} instead of {quantities.duration(before.step_time_s)}"
        said = f"a step takes {both}, {change(versus.step, 'longer', 'shorter')}"
        unlike = "" if versus.same_samples else " The samples are different things."
        return f"{said}.{unlike}{_mostly(versus)}"
    unit = quantities.samples_short(side.result)
    both = f"{quantities.count(after.samples_per_s)} instead of {quantities.count(before.samples_per_s)}"
    return f"{both} {unit}/s, {change(versus.throughput, 'more', 'fewer')}; steps differ in size."


def change(one: Change, more: str, less: str) -> str:
    """Say a change with its interval: ``"18 % shorter (15 % to 20 %)"``."""
    if abs(one.ratio - 1) < NOTHING and one.interval is None:
        return "no change"
    said = "no change" if abs(one.ratio - 1) < NOTHING else f"{_by(one.ratio, more, less)}"
    if one.interval is None:
        return f"{said} (no interval is known)"
    low, high = sorted(one.interval, key=lambda ratio: abs(ratio - 1))
    if max(abs(low - 1), abs(high - 1)) < NOTHING:
        return said
    ends = f"{_by(one.interval[0], more, less)} to {_by(one.interval[1], more, less)}"
    if one.within:
        return f"{said}, which is within the interval ({ends})"
    if (low < 1) == (high < 1):
        ends = f"{_percent(low)} to {_percent(high)}"
        if _percent(low) == _percent(high):
            ends = f"{_percent(low)} at both ends of the interval"
    return f"{said} ({ends})"


def _by(ratio: float, more: str, less: str) -> str:
    if abs(ratio - 1) < NOTHING:
        return "no change"
    return f"{_percent(ratio)} {more if ratio > 1 else less}"


def _percent(ratio: float) -> str:
    value = 100 * abs(ratio - 1)
    digits = 0 if value >= 10 else 1 if value >= 1 else 2
    return f"{value:,.{digits}f}\N{NO-BREAK SPACE}%"


def _mostly(versus: Versus) -> str:
    """Name the part of a step that changed most, where it changed at all."""
    part = max(versus.parts_s, key=lambda name: abs(versus.parts_s[name]))
    apart_s = versus.parts_s[part]
    if abs(versus.step.ratio - 1) < NOTHING or apart_s == 0:
        return ""
    more = "more" if apart_s > 0 else "less"
    return f" The largest part of it is {part}, {quantities.duration(abs(apart_s))} {more}."


def _limit(versus: Versus) -> str:
    before, after = versus.bottleneck
    if versus.moved:
        return f"What limits the step moved from {before} to {after}."
    return f"Both are limited by {after}."


def _room(first: Side, side: Side) -> str:
    """Say which of two sides has no room in memory."""
    lacking = [each.label for each in (first, side) if not each.point.memory.fits]
    if not lacking:
        return ""
    does = "do not fit" if len(lacking) > 1 else "does not fit"
    return f"{' and '.join(lacking)} {does} in memory."


# ---------------------------------------------------------------- tables


def fields(found: Comparison) -> Table:
    """Which fields differ."""
    return ["field", *(side.label for side in found.sides)], [
        (field.name, *field.values) for field in found.fields
    ]


def figures(found: Comparison) -> Table:
    """The figures of each side; with two of them the change too."""
    sides = found.sides
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
        ("memory per GPU", *map(_memory, sides)),
        ("limited by", *(point.bottleneck for point in points)),
    ]
    return _with_change(found, rows, _changes(found))


def step_parts(found: Comparison) -> Table:
    """Where the step of each side goes; with two sides the change too."""
    rows: list[tuple[str, ...]] = [
        (name, *(quantities.duration(s.point.breakdown_s.get(name, 0.0)) for s in found.sides))
        for name in parts(found)
    ]
    own = {name: _more(time_s) for one in found.versus for name, time_s in one.parts_s.items()}
    return _with_change(found, rows, own)


def _with_change(found: Comparison, rows: list[tuple[str, ...]], own: Mapping[str, str]) -> Table:
    headers = ["", *(f">{side.label}" for side in found.sides)]
    if len(found.sides) != 2:
        return headers, rows
    return [*headers, ">change"], [(*row, own.get(row[0], "")) for row in rows]


def _changes(found: Comparison) -> Mapping[str, str]:
    """What the column of changes says of two sides."""
    if len(found.sides) != 2:
        return {}
    (one,), (first, other) = found.versus, [side.point for side in found.sides]
    own = {
        "step": _signed(one.step.ratio),
        "compute": _more(other.compute_s - first.compute_s),
        "communication": _more(other.comm_s - first.comm_s),
        "exposed communication": _more(one.exposed_s),
    }
    if one.same_samples:
        own["throughput"] = _signed(one.throughput.ratio)
    if one.step.interval is not None:
        low, high = one.step.interval
        own["80 % interval"] = f"{_signed(low)} to {_signed(high)}"
    return own


def _throughput(side: Side) -> str:
    return f"{quantities.count(side.point.samples_per_s)} {quantities.samples_short(side.result)}/s"


def _memory(side: Side) -> str:
    memory = side.point.memory
    return quantities.size(memory.total_bytes) + ("" if memory.fits else " (does not fit)")


def parts(found: Comparison) -> list[str]:
    """Parts of a step that matter on some side, in their usual order."""
    names = dict.fromkeys(name for side in found.sides for name in side.point.breakdown_s)
    return [
        name
        for name in names
        if any(
            side.point.breakdown_s.get(name, 0.0) > 1e-4 * side.point.step_time_s
            for side in found.sides
        )
    ]


def _interval(side: Side) -> str:
    ends = side.point.interval_s
    if ends is None:
        return "not known"
    return f"{quantities.duration(ends[0])} to {quantities.duration(ends[1])}"


def _signed(ratio: float) -> str:
    if abs(ratio - 1) < NOTHING:
        return "0 %"
    return f"{'+' if ratio > 1 else '-'}{_percent(ratio)}"


def _more(time_s: float) -> str:
    if time_s == 0:
        return "0 s"
    return f"{'+' if time_s > 0 else '-'}{quantities.duration(abs(time_s))}"


def imagined(found: Comparison) -> Table:
    """The classic what-ifs: step, what is saved, and how much of the difference is gone."""
    headers = ["with"]
    for side in found.sides:
        headers += [f">{side.label}", ">saved"]
    shared = any(share is not None for one in found.imagined for share in one.shares)
    if shared:
        others = found.sides[1:]
        of = ">of the difference"
        headers += [of] if len(others) == 1 else [f"{of} ({side.label})" for side in others]
    now = ("everything as it is", *(
        cell for side in found.sides for cell in (quantities.duration(side.point.step_time_s), "")
    ))  # fmt: skip
    empty = ("",) * (len(found.sides) - 1) if shared else ()
    rows: list[tuple[str, ...]] = [(*now, *empty)]
    for one in found.imagined:
        cells = tuple(cell for at in range(len(found.sides)) for cell in _cells(found, one, at))
        shares = tuple(_share(share) for share in one.shares[1:]) if shared else ()
        rows.append((one.what, *cells, *shares))
    return headers, rows


def _cells(found: Comparison, one: Imagined, at: int) -> tuple[str, str]:
    step_s, now_s = one.steps_s[at], found.sides[at].point.step_time_s
    if step_s is None:
        return "failed", ""
    return quantities.duration(step_s), f"{100 * (1 - step_s / now_s):.1f}\N{NO-BREAK SPACE}%"


def _share(share: float | None) -> str:
    return "" if share is None else f"{round(100 * share)}\N{NO-BREAK SPACE}%"
