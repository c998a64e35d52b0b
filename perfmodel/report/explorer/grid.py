"""Everything that the explorer's sliders reach, simulated beforehand; and how good the rest is."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from perfmodel.report.explorer.axes import Axis, Stop
from perfmodel.scenario import Scenario
from perfmodel.studies.run.result.model import Result
from perfmodel.studies.sweep import run_sweep, variants

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

Place = tuple[float, ...]
"""Position along every axis, among its points; whole where it is one of them."""

_RANDOM_CHECKS = 12


@dataclass(frozen=True, slots=True)
class InterpolationCheck:
    """A place between points, simulated only to measure the error of interpolation there.

    `axis`: key of the only axis along which it lies between points; "several" else.
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
    """Simulated points: the product of all axes, the last axis varying fastest.

    `rows`: columns of `perfmodel.studies.sweep.Swept.table`; None where the simulation failed.
    `samples_per_gpu`: samples of a step per GPU; None where the global batch is fixed.
    `samples`: samples of a step at the size that is asked about.
    `failed`: the first message of a point that could not be simulated; "" if there is none.
    """

    axes: tuple[Axis, ...]
    rows: tuple[Mapping[str, Any] | None, ...]
    samples_per_gpu: float | None
    samples: float
    checks: tuple[InterpolationCheck, ...] = ()
    failed: str = ""

    @property
    def baseline(self) -> Place:
        """The scenario's own setting."""
        return tuple(float(axis.baseline) for axis in self.axes)

    @property
    def worst_error(self) -> float:
        """Largest error of interpolation over all checks; 0 without any."""
        return max((check.error for check in self.checks), default=0.0)

    @property
    def median_error(self) -> float:
        """Median of those errors."""
        return median(check.error for check in self.checks) if self.checks else 0.0


def corners(axes: Sequence[Axis], place: Place) -> Iterator[tuple[int, float]]:
    """Index and weight of the simulated points around a place; one with weight 1 on a point."""
    around: list[tuple[int, float]] = [(0, 1.0)]
    for axis, at in zip(axes, place, strict=True):
        low = min(math.floor(at), len(axis) - 1)
        share = at - low
        around = [
            (index * len(axis) + low + up, weight * (share if up else 1 - share))
            for index, weight in around
            for up in ((0, 1) if share > 0 else (0,))
        ]
    return iter(around)


def value_at(grid: Grid, place: Place, column: str) -> float | None:
    """Interpolate a time of a step; on a point it is the point's own, to the bit.

    The logarithm of a time is taken as linear in the logarithm of each axis: exact for a time that
    goes with a power of the setting, such as bytes over bandwidth. Exposed communication, which may
    be zero, is what the step has beyond its other parts, and both are interpolated that way.

    In seconds; None where a point around the place has no value.
    """
    around = [(grid.rows[index], weight) for index, weight in corners(grid.axes, place)]
    rows = [(row, weight) for row, weight in around if row is not None and row[column] is not None]
    if len(rows) < len(around):
        return None
    if len(rows) == 1:
        return float(rows[0][0][column])
    if column != "exposed_comm_s":
        return _mean([(row[column], weight) for row, weight in rows])
    steps = _mean([(row["step_time_s"], weight) for row, weight in rows])
    others = _mean([(row["step_time_s"] - row[column], weight) for row, weight in rows])
    return max(0.0, steps - others)


def _mean(values: Sequence[tuple[float, float]]) -> float:
    """Geometric mean of times by their weights."""
    return math.exp(sum(weight * math.log(value) for value, weight in values))


def explore(
    scenario: Scenario,
    result: Result,
    axes: tuple[Axis, ...],
    *,
    profile: Profile | None = None,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Grid:
    """Simulate the points of all sliders, and places between them to see how good those are.

    `scenario`: as it was loaded.
    `result`: its answer.
    `axes`: as `axes_of` makes them.
    `jobs`: processes; default: one per physical core.
    `progress`: called with (simulations done, simulations in all).
    """
    places = [tuple(map(float, at)) for at in itertools.product(*(range(len(a)) for a in axes))]
    between = list(_places_between(axes))
    places_to_run = [*places, *between]
    run = [_without_network(axes, place) for place in places_to_run]
    distinct = list(dict.fromkeys(run))
    settings = [_settings(axes, place) for place in distinct]
    together = variants(
        scenario, zip={name: [setting[name] for setting in settings] for name in settings[0]}
    )
    swept = run_sweep(together, jobs=jobs, profile=profile, progress=progress)
    by_place = dict(zip(distinct, swept.rows, strict=True))
    rows = [row if row["status"] == "ok" else None for row in (by_place[place] for place in run)]
    main = result.main
    weak = scenario.training.scaling == "weak"
    grid = Grid(
        axes=axes,
        rows=tuple(rows[: len(places)]),
        samples_per_gpu=main.global_batch / main.gpus if weak else None,
        samples=float(main.global_batch),
        failed=next((row["message"] for row in swept.rows if row["status"] != "ok"), ""),
    )
    return replace(grid, checks=tuple(_check_interpolation(grid, between, rows[len(places) :])))


def _settings(axes: Sequence[Axis], place: Place) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for axis, at in zip(axes, place, strict=True):
        settings |= _stop_at(axis, at).settings
    return settings


def _stop_at(axis: Axis, at: float) -> Stop:
    return next(stop for stop in axis.stops if stop.at == at)


def _without_network(axes: Sequence[Axis], place: Place) -> Place:
    """The same place with the scenario's own network where one node uses none."""
    size = _stop_at(axes[-1], place[-1])
    if size.settings["cluster.nodes"] > 1:
        return place
    return tuple(
        float(axis.baseline) if axis.key in {"bandwidth", "latency"} else at
        for axis, at in zip(axes, place, strict=True)
    )


def _places_between(axes: Sequence[Axis]) -> Iterator[Place]:
    """Places in the middle between points: along each axis, and some amid several."""
    baseline = tuple(float(axis.baseline) for axis in axes)
    middles = [_middles(axis) for axis in axes]
    for number, stops in enumerate(middles):
        for at in stops:
            yield (*baseline[:number], at, *baseline[number + 1 :])
    free = [number for number, stops in enumerate(middles) if stops]
    if len(free) > 1:
        amid = list(itertools.product(*(middles[number] for number in free)))
        draw = random.Random(0)  # noqa: S311  (places to try, the same ones every time)
        for chosen in draw.sample(amid, min(_RANDOM_CHECKS, len(amid))):
            stands = dict(zip(free, chosen, strict=True))
            yield tuple(stands.get(number, at) for number, at in enumerate(baseline))


def _middles(axis: Axis) -> list[float]:
    """The stop nearest to the middle between each two points."""
    middles = []
    for low in range(len(axis) - 1):
        inside = [stop.at for stop in axis.stops if low < stop.at < low + 1]
        if inside:
            middles.append(min(inside, key=lambda at: abs(at - low - 0.5)))
    return middles


def _check_interpolation(
    grid: Grid, places: Sequence[Place], rows: Sequence[Mapping[str, Any] | None]
) -> Iterator[InterpolationCheck]:
    for place, row in zip(places, rows, strict=True):
        guessed = value_at(grid, place, "step_time_s")
        if row is None or guessed is None:
            continue
        off = [a.key for a, at in zip(grid.axes, place, strict=True) if not at.is_integer()]
        yield InterpolationCheck(
            place, off[0] if len(off) == 1 else "several", row["step_time_s"], guessed
        )
