"""Everything that the explorer's sliders reach, simulated beforehand; and how good the rest is."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perfmodel.memo import grouped
from perfmodel.report.explorer.design import Axis, Design, Place, Stop
from perfmodel.scenario import Scenario
from perfmodel.studies.run.result import Result
from perfmodel.studies.sweep import run_sweep, variants

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

_RANDOM_CHECKS = 12
_COMBINED_CHECKS = 8
"""Places that are simulated only to check: amid several sliders; with three, and with four or
more sliders moved at once to points that were not simulated together."""


@dataclass(frozen=True, slots=True)
class InterpolationCheck:
    """A place that is no simulated point, simulated only to measure the error there.

    `axis`: key of the only axis along which it lies between points; "several" if along several,
        "combined" if along none: points that were not simulated together.
    `simulated_s`, `interpolated_s`: step time.
    """

    place: Place
    axis: str
    simulated_s: float
    interpolated_s: float

    @property
    def error(self) -> float:
        """How far interpolation is off, as a share of the simulated step time."""
        return abs(self.interpolated_s / self.simulated_s - 1)


@dataclass(frozen=True, slots=True)
class Grid:
    """Simulated points of a design.

    `rows`: columns of `perfmodel.studies.sweep.Swept.table`, one for each point of the design;
        None where the simulation failed.
    `capacity_bytes`: memory of a GPU.
    `failed`: the first message of a point that could not be simulated; "" if there is none.
    """

    design: Design
    rows: tuple[Mapping[str, Any] | None, ...]
    capacity_bytes: float
    checks: tuple[InterpolationCheck, ...] = ()
    failed: str = ""

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The sliders."""
        return self.design.axes

    @property
    def baseline(self) -> Place:
        """The scenario's own setting."""
        return tuple(map(float, self.design.baseline))

    @property
    def worst_error(self) -> float:
        """Largest error of interpolation over all checks; 0 without any."""
        return max((check.error for check in self.checks), default=0.0)


def value_at(grid: Grid, place: Place, column: str) -> float | None:
    """Estimate a column at a place; on a point it is the point's own, to the bit.

    A step is its other parts, and communication without what is hidden behind them. The logarithms
    of other parts and of communication are taken as linear in the logarithm of each axis, exact
    for a time that goes with a power of the setting, such as bytes over bandwidth; what is hidden
    as linear, and no more than there is. Points that were not simulated together count as
    `Design.weights` says. Ends of the interval keep their ratio to the step, samples of a step and
    memory are powers of the settings.

    In seconds, samples, bytes; None where a point around the place has no value.
    """
    rows = [(grid.rows[at], weight) for at, weight in grid.design.weights(place).items()]
    around = [(row, weight) for row, weight in rows if row is not None and row[column] is not None]
    if len(around) < len(rows):
        return None
    if len(around) == 1:
        return float(around[0][0][column])
    if column in {"samples", "memory_bytes"}:
        return _power(around, lambda row: row[column])
    exposed = _exposed(around)
    if column == "exposed_comm_s":
        return exposed
    step = _power(around, lambda row: row["step_time_s"] - row["exposed_comm_s"]) + exposed
    if column == "step_time_s":
        return step
    ratio = _power(around, lambda row: row[column] / row["step_time_s"])
    return step * (min(1.0, ratio) if column == "low_s" else max(1.0, ratio))


Weighted = Sequence[tuple[Mapping[str, Any], float]]


def _exposed(around: Weighted) -> float:
    """Estimate the communication that is not hidden."""
    hidden: list[tuple[float, float]] = [
        (row["comm_s"] - row["exposed_comm_s"], weight) for row, weight in around
    ]
    if all(row["comm_s"] > 0 for row, _ in around):
        comm = _power(around, lambda row: row["comm_s"])
    else:
        comm = max(0.0, math.fsum(weight * row["comm_s"] for row, weight in around))
    mean = math.fsum(weight * part for part, weight in hidden)
    return comm - min(comm, max(mean, min(0.0, *(part for part, _ in hidden))))


def _power(around: Weighted, value: Callable[[Mapping[str, Any]], float]) -> float:
    """Geometric mean by weights."""
    return math.exp(math.fsum(weight * math.log(value(row)) for row, weight in around))


def explore(
    scenario: Scenario,
    result: Result,
    design: Design,
    *,
    profile: Profile | None = None,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Grid:
    """Simulate the points of all sliders, and places between them to see how good those are.

    `scenario`: as it was loaded.
    `result`: its answer.
    `design`: as `design_of` makes it.
    `jobs`: processes; default: one per physical core.
    `progress`: called with (simulations done, simulations in all).
    """
    axes = design.axes
    places: list[Place] = [tuple(map(float, point)) for point in design.points]
    checked = [*_places_between(axes), *_places_combined(design)]
    run = [_without_network(axes, place) for place in [*places, *checked]]
    distinct = list(dict.fromkeys(run))
    settings = [
        dict(
            field
            for axis, at in zip(axes, place, strict=True)
            for field in _stop_at(axis, at).settings.items()
        )
        for place in distinct
    ]
    fields = {name: [setting[name] for setting in settings] for name in settings[0]}
    swept = run_sweep(variants(scenario, zip=fields), jobs=jobs, profile=profile, progress=progress)
    by_place = {
        place: {**row, "samples": row["samples_per_s"] * row["step_time_s"]}
        for place, row in zip(distinct, swept.rows, strict=True)
        if row["status"] == "ok"
    }
    rows = [by_place.get(place) for place in run]
    grid = Grid(
        design=design,
        rows=tuple(rows[: len(places)]),
        capacity_bytes=result.main.memory.capacity_bytes,
        failed=next((row["message"] for row in swept.rows if row["status"] != "ok"), ""),
    )
    return replace(grid, checks=tuple(_check_interpolation(grid, checked, rows[len(places) :])))


def _stop_at(axis: Axis, at: float) -> Stop:
    return next(stop for stop in axis.stops if stop.at == at)


def _without_network(axes: Sequence[Axis], place: Place) -> Place:
    """Return a place at which the network has the scenario's own settings, if it has one node.

    One node uses no network, so all settings of it give the same step.
    """
    if _stop_at(axes[-1], place[-1]).settings.get("cluster.nodes") != 1:
        return place
    return tuple(
        float(axis.baseline) if axis.key in {"bandwidth", "latency"} else at
        for axis, at in zip(axes, place, strict=True)
    )


def _places_between(axes: Sequence[Axis]) -> Iterator[Place]:
    """Places in the middle between points: along each axis, and some amid several."""
    baseline = tuple(float(axis.baseline) for axis in axes)
    middles = list(map(_middles, axes))
    for number, stops in enumerate(middles):
        for at in stops:
            yield (*baseline[:number], at, *baseline[number + 1 :])
    if len(list(filter(None, middles))) > 1:
        stands = (stops or [at] for stops, at in zip(middles, baseline, strict=True))
        amid = list(itertools.product(*stands))
        draw = random.Random(0)  # noqa: S311  (places to try, the same ones every time)
        yield from draw.sample(amid, min(_RANDOM_CHECKS, len(amid)))


def _places_combined(design: Design) -> Iterator[Place]:
    """Some combinations of points that are not simulated: of three sliders moved, and of more."""
    count = 0 if design.is_complete else len(design.axes)
    draw = random.Random(1)  # noqa: S311  (places to try, the same ones every time)
    for least, most in ((3, 3), (4, 5)):
        if count < least:
            return
        places: dict[Place, None] = {}
        for _ in range(50 * _COMBINED_CHECKS):
            point = list(design.baseline)
            for at in draw.sample(range(count), draw.randint(least, min(most, count))):
                point[at] = draw.randrange(len(design.axes[at]))
            if not design.has(tuple(point)) and len(places) < _COMBINED_CHECKS:
                places[tuple(map(float, point))] = None
        yield from places


def _middles(axis: Axis) -> list[float]:
    """The stop nearest to the middle between each two points."""
    between = grouped((math.floor(stop.at), stop.at) for stop in axis.stops if stop.at % 1)
    return [min(inside, key=lambda at: abs(at % 1 - 0.5)) for inside in between.values()]


def _check_interpolation(
    grid: Grid, places: Sequence[Place], rows: Sequence[Mapping[str, Any] | None]
) -> Iterator[InterpolationCheck]:
    for place, row in zip(places, rows, strict=True):
        guessed = value_at(grid, place, "step_time_s")
        if row is None or guessed is None:
            continue
        off = [a.key for a, at in zip(grid.axes, place, strict=True) if not at.is_integer()]
        kind = "several" if len(off) > 1 else "".join(off) or "combined"
        yield InterpolationCheck(place, kind, row["step_time_s"], guessed)
