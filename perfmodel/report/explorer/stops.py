"""Sliders of the what-if explorer: their stops, and which of these are simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    between = [stop for stop in axis.stops if not stop.at.is_integer()]
    return replace(
        axis,
        stops=place_stops(remaining, between),
        baseline=axis.baseline - (dropped < axis.baseline),
    )


def place_stops(points: Sequence[Stop], between: Iterable[Stop]) -> tuple[Stop, ...]:
    """Number the points, and place the stops between them by the logarithm of their value."""
    stops = [replace(point, at=float(number)) for number, point in enumerate(points)]
    for stop in between:
        for low, high in pairwise(stops[: len(points)]):
            if low.value < stop.value < high.value:
                share = math.log(stop.value / low.value) / math.log(high.value / low.value)
                stops.append(replace(stop, at=low.at + share))
    return tuple(sorted(stops, key=lambda stop: stop.at))


def stops_with_between(
    values: Sequence[float], stop: Callable[[float, float], Stop]
) -> tuple[Stop, ...]:
    """Make stops at values, which are simulated, and at three places between each two."""
    points = [stop(float(at), value) for at, value in enumerate(values)]
    between = [
        stop(0.5, low * (high / low) ** share)
        for low, high in pairwise(values)
        for share in BETWEEN
    ]
    return place_stops(points, between)
