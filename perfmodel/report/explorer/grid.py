"""Everything that the explorer's sliders reach, simulated beforehand; and how good the rest is."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perfmodel.report.explorer.design import Axis, Design, Place, Stop
from perfmodel.scenario import Scenario
from perfmodel.studies.run.result import Result
from perfmodel.studies.sweep import run_sweep, variants

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

TRIES = 20
"""Places drawn at random with one or two sliders moved, and as many with any of them, that are
simulated only to see how good estimates are."""


@dataclass(frozen=True, slots=True)
class InterpolationCheck:
    """A place that is no simulated point, simulated only to measure the error there.

    `moved`: sliders that stand elsewhere than the scenario asks.
    `simulated_s`, `interpolated_s`: step time.
    """

    place: Place
    moved: int
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
    `room_bytes`: memory that fits, below that of every point that does not.
    `failed`: the first message of a point that could not be simulated; "" if there is none.
    """

    design: Design
    rows: tuple[Mapping[str, Any] | None, ...]
    room_bytes: float
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

    A step is its other parts, and communication without what is hidden behind them. The logarithm
    of communication is taken as linear in the logarithm of each axis, exact for a time that goes
    with a power of the setting, such as bytes over bandwidth; other parts as linear, since a hook's
    kernels add to those of layers; what is hidden as linear, and no more than there is. Points that
    were not simulated together count as `Design.weights` says. Ends of the interval keep their
    ratio to the step, samples of a step and memory are powers of the settings.

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
    others: list[tuple[float, float]] = [
        (row["step_time_s"] - row["exposed_comm_s"], weight) for row, weight in around
    ]
    least = min(part for part, _ in others)
    step = max(least, math.fsum(weight * part for part, weight in others)) + exposed
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
    tried = [*draw_places(design, range(1, 3)), *draw_places(design, [len(axes)])]
    rows, failed = simulate_places(
        scenario, axes, [*places, *tried], profile=profile, jobs=jobs, progress=progress
    )
    room = (row["memory_bytes"] for row in rows if row is not None and not row["fits"])
    grid = Grid(
        design=design,
        rows=tuple(rows[: len(places)]),
        room_bytes=min(result.main.memory.room_bytes, *room, math.inf),
        failed=failed,
    )
    return replace(grid, checks=tuple(check_estimates(grid, tried, rows[len(places) :])))


def simulate_places(
    scenario: Scenario,
    axes: Sequence[Axis],
    places: Sequence[Place],
    *,
    profile: Profile | None = None,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Mapping[str, Any] | None], str]:
    """Simulate places, each once; None and the first message where that fails.

    Arguments as of `explore`.
    """
    run = [_without_network(axes, place) for place in places]
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
    failed = next((row["message"] for row in swept.rows if row["status"] != "ok"), "")
    return list(map(by_place.get, run)), failed


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


def draw_places(
    design: Design, moved: Sequence[int], count: int = TRIES, seed: int = 0
) -> Iterator[Place]:
    """Draw places that are estimated, with so many sliders anywhere; each once."""
    axes, drawn = design.axes, dict[Place, None]()
    draw = random.Random(seed)  # noqa: S311  (places to try, the same ones every time)
    for _ in range(50 * count):
        place = [float(at) for at in design.baseline]
        for at in draw.sample(range(len(axes)), min(draw.choice(moved), len(axes))):
            place[at] = draw.choice(axes[at].stops).at
        if len(design.weights(_without_network(axes, tuple(place)))) > 1 and len(drawn) < count:
            drawn[tuple(place)] = None
    return iter(drawn)


def check_estimates(
    grid: Grid, places: Sequence[Place], rows: Sequence[Mapping[str, Any] | None]
) -> Iterator[InterpolationCheck]:
    """Yield estimates of places beside their simulated rows, where both are known."""
    for place, row in zip(places, rows, strict=True):
        guessed = value_at(grid, place, "step_time_s")
        if row is None or guessed is None:
            continue
        yield InterpolationCheck(
            place,
            sum(at != own for at, own in zip(place, grid.baseline, strict=True)),
            row["step_time_s"],
            guessed,
        )
