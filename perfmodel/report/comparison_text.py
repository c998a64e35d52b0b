"""Sentences of a comparison; the page and the terminal say the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from string import ascii_uppercase

from perfmodel.memo import first_applying, grouped
from perfmodel.report.common import quantities
from perfmodel.studies.comparison import Change, Comparison, Side, SideDifference
from perfmodel.studies.run.result import SizeResult
from perfmodel.studies.run.steps.reliefs import join_words

LEAST_RELATIVE_CHANGE = 0.0005
"""Changes below this are none."""

_COMPUTE_BOUND_SHARE = 0.9
"""Share of a step from which on it is mostly compute."""

_HEAD_CHARACTERS = 80
"""Characters of labels that head the columns of a table side by side."""


def column_names(sides: Sequence[Side]) -> list[str]:
    """Names of the columns: labels where they have room side by side, else letters."""
    labels = [side.label for side in sides]
    if len(sides) <= 3 and sum(map(len, labels)) <= _HEAD_CHARACTERS:
        return labels
    return [ascii_uppercase[at] if len(sides) <= 26 else f"{at + 1}" for at in range(len(sides))]


def assumptions(comparison: Comparison) -> list[str]:
    """What the numbers rest on; what does not hold for all sides, after names of its columns."""
    labels = (side.label for side in comparison.sides)
    columns = dict(zip(labels, column_names(comparison.sides), strict=True))
    return [
        ": ".join(
            filter(None, [", ".join(columns[each] for each in those), quantities.assumed(line)])
        )
        for those, line in comparison.labelled_assumptions
    ]


def side_names(comparison: Comparison) -> list[str]:
    """Names of the sides in sentences: the label, after the letter of its column if it has one."""
    return [
        side.label if name == side.label else f"{name}, {side.label}"
        for name, side in zip(column_names(comparison.sides), comparison.sides, strict=True)
    ]


def headline(comparison: Comparison) -> str:
    """Name the side that needs the least time per sample, and what that rests on."""
    first = comparison.sides[0]
    if len(comparison.sides) == 1:
        step = quantities.duration(first.point.step_time_s)
        return f"A step takes {step}, limited by {limited_by(first.point)}"
    if not comparison.differences or not all(each.same_samples for each in comparison.differences):
        return title(comparison)
    pairs = zip(comparison.sides[1:], comparison.differences, strict=True)
    fitting = sorted(
        (pair for pair in pairs if pair[0].point.memory.fits), key=lambda p: -p[1].throughput.ratio
    )
    if not first.point.memory.fits:
        fits = f"{fitting[0][0].label} is the quickest that fits" if fitting else "No side fits"
        return f"{fits} in memory"
    quicker = [pair for pair in fitting if pair[1].throughput.ratio > 1 + LEAST_RELATIVE_CHANGE]
    if not quicker:
        return f"{first.label}: nothing else here is quicker"
    sure = [pair for pair in quicker if not pair[1].throughput.within]
    best, versus = (sure or quicker)[0]
    less = change(per_sample(versus), "more time per sample", "less time per sample")
    if not sure:
        return f"Nothing here is surely quicker than {first.label}; {best.label} may be: {less}"
    other = "" if best is quicker[0][0] else f"; {quicker[0][0].label} may be quicker still"
    return f"{best.label} is the quickest: {less} than {first.label}{other}"


def per_sample(versus: SideDifference) -> Change:
    """Return how the time per sample differs: one over the throughput."""
    ends = versus.throughput.interval
    return Change(1 / versus.throughput.ratio, None if ends is None else (1 / ends[1], 1 / ends[0]))


def title(comparison: Comparison) -> str:
    """Name what is compared."""
    first, *rest = (side.label for side in comparison.sides)
    return f"{first} against {join_words(rest)}" if rest else first


def sentences(comparison: Comparison) -> Iterator[str]:
    """Compare each side with the first in one sentence."""
    first, names = comparison.sides[0], side_names(comparison)
    if len(names) == 1:
        return
    if not comparison.differences or names[0] != first.label:
        yield f"{names[0]}: a step takes {quantities.duration(first.point.step_time_s)}."
    for name, side, versus in zip(
        names[1:], comparison.sides[1:], comparison.differences, strict=True
    ):
        lacking = [each.label for each in (first, side) if not each.point.memory.fits]
        does = ("", " does not fit in memory.", " do not fit in memory.")[len(lacking)]
        memory = f" {' and '.join(lacking)}{does}" if lacking else ""
        yield f"{name}: {_difference(first, side, versus)} {_limit(first, side, versus)}{memory}"


def _difference(first: Side, side: Side, versus: SideDifference) -> str:
    before, after = first.point, side.point
    if versus.same_batch or not versus.same_samples:
        now, then = quantities.duration(after.step_time_s), quantities.duration(before.step_time_s)
        unlike = f" Its samples are {quantities.samples(side.result)}."
        return (
            f"a step takes {now}{'' if now == then else f' instead of {then}'}, "
            f"{change(versus.step, 'longer', 'shorter')}.{'' if versus.same_samples else unlike}"
            f"{_largest_part(versus)}"
        )
    now, then = (quantities.duration(1 / point.samples_per_s) for point in (after, before))
    return (
        f"a sample takes {now} instead of {then}, "
        f"{change(per_sample(versus), 'longer', 'shorter')}; steps train {after.global_batch:,} "
        f"instead of {before.global_batch:,}."
    )


LEAST_RATIO_IN_TIMES = 10.0
"""Ratio from which on a change is said in times, not in per cent."""


def change(difference: Change, more: str, less: str) -> str:
    """Say a change of a time with its interval: ``"18 % shorter (15 % to 20 %)"``."""
    if abs(difference.ratio - 1) < LEAST_RELATIVE_CHANGE and difference.interval is None:
        return "no change"
    sentence = _direction(difference.ratio, more, less)
    if difference.interval is None:
        return f"{sentence} (no interval is known)"
    low, high = sorted(difference.interval, key=lambda ratio: abs(ratio - 1))
    if max(abs(low - 1), abs(high - 1)) < LEAST_RELATIVE_CHANGE:
        return sentence
    ends = " to ".join(_direction(ratio, more, less) for ratio in difference.interval)
    if difference.within:
        return f"{sentence}, which is within the interval ({ends})"
    if (low < 1) == (high < 1):
        least, most = map(_percent, (low, high))
        ends = f"{least} to {most}" if least != most else f"{least} at both ends of the interval"
        if difference.ratio >= LEAST_RATIO_IN_TIMES:
            ends = f"{quantities.count(low)} to {quantities.count(high)}"
    return f"{sentence} ({ends})"


def _direction(ratio: float, more: str, less: str) -> str:
    return first_applying(
        (abs(ratio - 1) < LEAST_RELATIVE_CHANGE, "no change"),
        (ratio >= LEAST_RATIO_IN_TIMES, f"{quantities.count(ratio)} times as long"),
        (True, f"{_percent(ratio)} {more if ratio > 1 else less}"),
    )


def _percent(ratio: float) -> str:
    value = 100 * abs(ratio - 1)
    # a throughput that is lost is 100 %, a hundredth of it is not
    digits = 2 if value < 1 else 1 if value < 10 or 99 < value < 100 else 0
    return f"{value:,.{digits}f}\N{NO-BREAK SPACE}%"


def _largest_part(versus: SideDifference) -> str:
    """Name the part of a step that changed most, and one that makes up for it, where it changed."""
    parts_s, longer = versus.parts_s, versus.step.ratio > 1
    least, most = min(parts_s, key=parts_s.__getitem__), max(parts_s, key=parts_s.__getitem__)
    part, other = (most, least) if longer else (least, most)
    if abs(versus.step.ratio - 1) < LEAST_RELATIVE_CHANGE or parts_s[part] == 0:
        return ""
    apart, instead = (quantities.duration(abs(parts_s[name])) for name in (part, other))
    more, less = ("more", "less") if longer else ("less", "more")
    if parts_s[part] * parts_s[other] < 0 and 2 * abs(parts_s[other]) > abs(parts_s[part]):
        return f" In it are {apart} {more} of {part}, and {instead} {less} of {other}."
    return f" Most of that is {part}, {apart} {more}."


def limited_by(point: SizeResult) -> str:
    """Name the bottleneck; where a step is compute but for a little, that first."""
    relief = point.relief
    if relief is None or not mostly_computes(point):
        return point.bottleneck
    return (
        f"compute (without limits of {join_words(relief.parts)} "
        f"{quantities.percent(relief.saves_s / point.step_time_s)} less)"
    )


def mostly_computes(point: SizeResult) -> bool:
    """Whether a step is compute but for a little, or nothing but compute limits it."""
    if point.relief is None:
        return point.limit == "compute"
    return (
        point.compute_s >= _COMPUTE_BOUND_SHARE * point.step_time_s
        and point.relief.saves_s < (1 - _COMPUTE_BOUND_SHARE) * point.step_time_s
    )


def _limit(first: Side, side: Side, versus: SideDifference) -> str:
    if mostly_computes(first.point) and mostly_computes(side.point):
        return "Compute limits both."
    parts = {re.sub(r"\bhost \d+", "host", part) for part in versus.bottleneck}  # hosts are alike
    is_same = len(parts) == 1 and mostly_computes(first.point) is mostly_computes(side.point)
    moves = "stays" if is_same else f"moves from {limited_by(first.point)} to"
    return f"The limit {moves} {limited_by(side.point)}."


def signed_ratio(ratio: float) -> str:
    """Write a ratio as a change: ``"+12 %"``."""
    changed = f"{'+' if ratio > 1 else quantities.MINUS}{_percent(ratio)}"
    return "0 %" if abs(ratio - 1) < LEAST_RELATIVE_CHANGE else changed


def unread_fields(comparison: Comparison) -> list[str]:
    """Sentences on fields that differ and by which no step does."""
    names = grouped(
        (field.reader, field.name) for field in comparison.fields if field.reader is not None
    )
    return [
        f"{', '.join(fields)}: acts in {reader} only, no step here differs by it."
        for reader, fields in names.items()
    ]
