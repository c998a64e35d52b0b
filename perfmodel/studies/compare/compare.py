"""Scenarios side by side: run each, then say what differs and by how much.

Which fields of scenarios differ, and how they are written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from perfmodel.calibrate import Profile
from perfmodel.scenario import Scenario
from perfmodel.studies.compare.attribution import attributed
from perfmodel.studies.compare.model import (
    Change,
    Comparison,
    Ends,
    Field,
    Side,
    Versus,
    same_batch,
    same_samples,
)
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result import SizeResult
from perfmodel.studies.sweep.variants import of_last_size

NOT_COMPARED = frozenset({"sweep", "plan"})
"""Sections that `run` does not read."""

DEFAULT = "default"


def differing(scenarios: Sequence[Scenario]) -> tuple[Field, ...]:
    """Return the fields whose meaning differs, with the values as written in each scenario.

    Two ways to write one value ("25 MiB", "25600 KiB") are no difference.
    """
    asked = [each.model_dump(mode="json", exclude=set(NOT_COMPARED)) for each in scenarios]
    leaves = [dict(_leaves(each)) for each in asked]
    names = dict.fromkeys(name for each in leaves for name in each)
    found: dict[str, Field] = {}
    for name in names:
        if len({json.dumps(each.get(name), sort_keys=True) for each in leaves}) > 1:
            places = [_written(scenario, name) for scenario in scenarios]
            where = min((place for place, _ in places), key=len)
            values = tuple(_value(scenario, where) for scenario in scenarios)
            if len(set(values)) > 1:  # else it follows from a field that is written
                found.setdefault(where, Field(where, values))
    return tuple(found.values())


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Values by dotted name; lists are values."""
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _leaves(part, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _written(scenario: Scenario, name: str) -> tuple[str, Any]:
    """Where a field is written: itself, or a word that stands for its section; and the value."""
    here: Any = scenario.origin.content
    parts = name.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(here, Mapping):
            return ".".join(parts[:depth]), here
        if part not in here:
            return name, DEFAULT
        here = here[part]
    return name, here


def _value(scenario: Scenario, name: str) -> str:
    value = _written(scenario, name)[1]
    return value if isinstance(value, str) else json.dumps(value)


Progress = Callable[[int, int], None]


def compare(
    scenarios: Mapping[str, Scenario] | Sequence[Scenario],
    *,
    profile: Profile | None = None,
    attribute: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare scenarios at the sizes that they ask about, all with the first.

    Parameters
    ----------
    scenarios : mapping of str to Scenario, or sequence of Scenario
        By label; default: their names.
    profile : Profile, optional
        Measured numbers instead of datasheets', for all of them.
    attribute : bool
        Whether to work out the classic what-ifs, too.
    jobs : int, optional
        Processes for them; default: one per physical core.
    progress : callable, optional
        Called with (runs done, runs in all).

    Raises
    ------
    InputError
        A name that does not resolve or a size that does not fit.
    """
    named = scenarios if isinstance(scenarios, Mapping) else _named(scenarios)
    sides = []
    for done, (label, scenario) in enumerate(named.items(), 1):
        asked = of_last_size(scenario)
        sides.append(Side(label, asked, run_scenario(asked, profile=profile)))
        if progress is not None:
            progress(done, len(named))
    return Comparison(
        sides=tuple(sides),
        fields=differing([side.scenario for side in sides]),
        versus=tuple(against(sides[0], side) for side in sides[1:]),
        imagined=attributed(sides, profile=profile, jobs=jobs, progress=progress)
        if attribute
        else (),
    )


def _named(scenarios: Sequence[Scenario]) -> dict[str, Scenario]:
    """Scenarios by name, those of one name by number too."""
    names = [scenario.name for scenario in scenarios]
    return {
        name if names.count(name) == 1 else f"{name} ({at})": scenario
        for at, (name, scenario) in enumerate(zip(names, scenarios, strict=True), 1)
    }


def against(first: Side, other: Side) -> Versus:
    """Compare one side with the first."""
    a, b = first.point, other.point
    step = Change(b.step_time_s / a.step_time_s, ratio_interval(a, b))
    batch = b.global_batch / a.global_batch
    faster = None
    if step.interval is not None:
        faster = batch / step.interval[1], batch / step.interval[0]
    names = dict.fromkeys([*a.breakdown_s, *b.breakdown_s])
    return Versus(
        label=other.label,
        step=step,
        throughput=Change(b.samples_per_s / a.samples_per_s, faster),
        exposed_s=b.exposed_comm_s - a.exposed_comm_s,
        parts_s={n: b.breakdown_s.get(n, 0.0) - a.breakdown_s.get(n, 0.0) for n in names},
        bottleneck=(a.bottleneck, b.bottleneck),
        same_samples=same_samples(first, other),
        same_batch=same_batch(first, other),
    )


def ratio_interval(a: SizeResult, b: SizeResult) -> Ends | None:
    """80 % interval of the ratio of two steps.

    Predictions of one model err together, so the quick end of one is compared with the quick end
    of the other, and the slow with the slow. Means of random steps err each by themselves. A step
    without communication has no error of it.
    """
    ratio = b.step_time_s / a.step_time_s
    if a.interval_s is not None or b.interval_s is not None:
        ends = [_ends(point) for point in (a, b)]
        if None in ends:
            return None
        (low_a, high_a), (low_b, high_b) = (each or (0.0, 0.0) for each in ends)
        found = (ratio, low_b / low_a, high_b / high_a)
        return min(found), max(found)
    random = [None if p.disturbance is None else p.disturbance.mean_interval_s for p in (a, b)]
    if all(each is None for each in random):
        return None
    steady = [(p.step_time_s, p.step_time_s) for p in (a, b)]
    (low_a, high_a), (low_b, high_b) = (r or s for r, s in zip(random, steady, strict=True))
    # Relative half widths of independent errors add as squares.
    wide = ((high_a - low_a) / 2 / a.step_time_s, (high_b - low_b) / 2 / b.step_time_s)
    half = ratio * (wide[0] ** 2 + wide[1] ** 2) ** 0.5
    return ratio - half, ratio + half


def _ends(point: SizeResult) -> Ends | None:
    if point.interval_s is None and point.comm_s == 0:
        return point.step_time_s, point.step_time_s
    return point.interval_s
