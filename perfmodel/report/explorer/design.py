"""Which combinations of sliders are simulated, and how others are estimated from those.

All combinations of eight sliders would be tens of thousands. Where they are too many, each setting
is simulated alone, with each setting of every other slider, and in threes with the sliders that
matter to all others. A figure elsewhere is the sum of the effects of all simulated parts of the
combination (a cut high-dimensional model representation, anchored at the scenario's own setting:
Rabitz and Alis, J. Math. Chem. 25, 1999).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

Settings = Mapping[str, Any]
"""Fields of a scenario and their values as written."""

BETWEEN = (0.25, 0.5, 0.75)
"""Where sliders stand between simulated points, as shares of the way on a logarithmic scale."""


@dataclass(frozen=True, slots=True)
class Stop:
    """One position of a slider.

    `at`: position among the simulated points of the axis; whole where it is one of them.
    `short`: what an axis says there, with its unit.
    `value`: bytes, factor or GPUs.
    `detail`: what the slider says beside it, in brackets.
    """

    at: float
    short: str
    value: float
    settings: Settings
    detail: str = ""

    @property
    def label(self) -> str:
        """What the slider says there."""
        return f"{self.short} ({self.detail})" if self.detail else self.short


@dataclass(frozen=True, slots=True)
class Axis:
    """One slider. `baseline` is the number of the point that the scenario itself sets."""

    key: str
    name: str
    stops: tuple[Stop, ...]
    baseline: int

    @property
    def points(self) -> tuple[Stop, ...]:
        """Stops that are simulated."""
        return tuple(stop for stop in self.stops if stop.at.is_integer())

    def __len__(self) -> int:
        return len(self.points)


def inner_points(axis: Axis) -> list[int]:
    """Points that may be left out: neither an end nor the baseline."""
    return [at for at in range(1, len(axis) - 1) if at != axis.baseline]


def drop_point(axis: Axis) -> Axis:
    """Leave out the inner point whose neighbours are nearest to each other."""
    values = [math.log(point.value) for point in axis.points]
    dropped = min(inner_points(axis), key=lambda at: round(values[at + 1] - values[at - 1], 9))
    remaining = [point for at, point in enumerate(axis.points) if at != dropped]
    return replace(
        axis,
        stops=place_stops(remaining, (stop for stop in axis.stops if not stop.at.is_integer())),
        baseline=axis.baseline - 1 if dropped < axis.baseline else axis.baseline,
    )


def place_stops(points: Sequence[Stop], between: Iterable[Stop]) -> tuple[Stop, ...]:
    """Number the points, and place the stops between them by the logarithm of their value."""
    numbered = [replace(point, at=float(number)) for number, point in enumerate(points)]
    placed = [
        replace(
            stop, at=low.at + math.log(stop.value / low.value) / math.log(high.value / low.value)
        )
        for stop in between
        for low, high in pairwise(numbered)
        if low.value < stop.value < high.value
    ]
    return tuple(sorted([*numbered, *placed], key=lambda stop: stop.at))


def stops_with_between(
    values: Sequence[float], stop: Callable[[float, float], Stop]
) -> tuple[Stop, ...]:
    """Make stops at values, which are simulated, and at three places between each two."""
    return place_stops(
        [stop(float(at), value) for at, value in enumerate(values)],
        (
            stop(0.5, low * (high / low) ** share)
            for low, high in pairwise(values)
            for share in BETWEEN
        ),
    )


Place = tuple[float, ...]
"""Position along every axis, among its points; whole where it is one of them."""

Point = tuple[int, ...]
"""Number of a point on every axis: a combination of settings."""

Groups = tuple[tuple[int, ...], ...]
"""Numbers of axes of which all combinations are simulated, the others being at the baseline."""

_HUBS = ("bandwidth", "gpus", "batch")
"""Sliders that change what others do most: the first two that there are go into all threes."""

_FEW_AXES = 4
"""Sliders of which all combinations are simulated, with fewer stops if need be."""

_INNER_POINTS_KEPT = 3
"""Inner points of an interpolated slider that are left out after those of others: at a factor of
four between bandwidths a step is off by up to a quarter, where compute begins to hide all."""


@dataclass(frozen=True)
class Design:
    """Sliders, and the groups of them of which all combinations are simulated."""

    axes: tuple[Axis, ...]
    groups: Groups

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Those combinations, the last axis varying fastest."""
        return tuple(sorted(_points_of(self.axes, self.groups)))

    @cached_property
    def _number(self) -> dict[Point, int]:
        return {point: at for at, point in enumerate(self.points)}

    @property
    def baseline(self) -> Point:
        """The scenario's own setting."""
        return tuple(axis.baseline for axis in self.axes)

    @property
    def is_complete(self) -> bool:
        """Whether every combination is simulated."""
        return len(self.points) == math.prod(map(len, self.axes))

    def weights(self, place: Place) -> dict[int, float]:
        """Numbers of simulated points and their weights, which add up to 1; one on a point."""
        weights: dict[int, float] = {}
        for point, share in corners(place):
            for number, sign in self._parts(point):
                weights[number] = weights.get(number, 0.0) + share * sign
        return {number: weight for number, weight in weights.items() if weight}

    def _parts(self, point: Point) -> Iterator[tuple[int, int]]:
        """Yield the simulated parts of a combination, and how often each counts.

        The effect of a set of sliders is what they do together beyond the effects of its subsets;
        the effects of all simulated subsets are added up.
        """
        if point in self._number:
            yield self._number[point], 1
            return
        baseline = self.baseline
        moved = [at for at, (a, b) in enumerate(zip(point, baseline, strict=True)) if a != b]
        parts = (
            frozenset(part)
            for size in range(len(moved) + 1)
            for part in itertools.combinations(moved, size)
        )
        simulated = [part for part in parts if any(map(part.issubset, self.groups))]
        for part in simulated:
            count = sum((-1) ** (len(other) - len(part)) for other in simulated if part <= other)
            if count:
                corner = (point[at] if at in part else b for at, b in enumerate(baseline))
                yield self._number[tuple(corner)], count


def corners(place: Place) -> Iterator[tuple[Point, float]]:
    """Points around a place and their weights; one with weight 1 on a point."""
    ends = (
        ((low, 1 - share), (low + 1, share)) if share > 0 else ((low, 1.0),)
        for low, share in ((math.floor(at), at - math.floor(at)) for at in place)
    )
    return (
        (tuple(at for at, _ in chosen), math.prod(weight for _, weight in chosen))
        for chosen in itertools.product(*ends)
    )


def _points_of(axes: Sequence[Axis], groups: Groups) -> set[Point]:
    spans = (
        [range(len(axis)) if at in group else (axis.baseline,) for at, axis in enumerate(axes)]
        for group in groups
    )
    return {point for group in spans for point in itertools.product(*group)}


def choose_design(axes: Sequence[Axis], most: int) -> Design:
    """Simulate as much together as `most` combinations allow, with fewer stops if need be.

    That is all sliders; every one with the two that matter to all, and all pairs; or pairs alone.
    """
    keys, numbers = [axis.key for axis in axes], range(len(axes))
    hubs = [keys.index(key) for key in _HUBS if key in keys][:2]
    others = [at for at in numbers if at not in hubs]
    together: Groups = (tuple(numbers),)
    threes = (*((*hubs, at) for at in others), *itertools.combinations(others, 2))
    pairs = tuple(itertools.combinations(numbers, 2)) or together
    alone = tuple((at,) for at in numbers)
    few = len(axes) <= _FEW_AXES or len(_points_of(axes, together)) <= most
    for groups in ([together] if few else []) + [threes, pairs, alone]:
        shortened = _drop_points(axes, groups, most)
        if shortened is not None:
            return Design(shortened, groups)
    return Design(tuple(axes), alone)


def _drop_points(axes: Sequence[Axis], groups: Groups, most: int) -> tuple[Axis, ...] | None:
    """Leave inner points out of the longest axis until there are few enough; None if too many."""

    def length(axis: Axis) -> tuple[int, int]:
        """Return what axes are compared by: inner points that may be dropped, and all points."""
        kept = _INNER_POINTS_KEPT if len(axis.stops) > len(axis) else 0
        return len(inner_points(axis)) - kept, len(axis)

    shortened = list(axes)
    while len(_points_of(shortened, groups)) > most:
        longest = max(filter(inner_points, shortened), key=length, default=None)
        if longest is None:
            return None
        shortened[shortened.index(longest)] = drop_point(longest)
    return tuple(shortened)
