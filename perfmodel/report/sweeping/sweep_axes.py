"""Which field of a sweep is drawn along the axis, and which make lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfmodel.errors import UnitError
from perfmodel.report.sweeping.text import Pair
from perfmodel.studies.sweep.run import format_value
from perfmodel.units import parse_bandwidth, parse_bytes, parse_time

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
