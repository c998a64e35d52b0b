"""The classic what-ifs: what of a step is whose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from perfmodel.calibrate import Profile
from perfmodel.scenario import Scenario, changed, scenario_digest
from perfmodel.scenario.sections.what_if import WhatIf
from perfmodel.studies.compare.model import Imagined, Side, same_batch, same_samples
from perfmodel.studies.sweep import Variant, run_sweep

CALM: Mapping[str, Any] = {"network_latency": 0.0, "node_latency": 0.0, "launch": 0.0}
"""Nothing that a message waits for but its own bytes."""

LEAST_DIFFERENCE = 1e-6
"""Share of a step below which two steps are alike, and a share of their difference says nothing."""


def classics(sides: Sequence[Side]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Words of each what-if that makes sense for some side, and the fields that say it."""
    points = [side.point for side in sides]
    if any(point.nodes > 1 for point in points):
        fast = {"network_bandwidth": "infinite"}
        yield "an infinitely fast network", fast
        yield "no latency", CALM
        yield "both", {**fast, **CALM}
    elif any(point.gpus > 1 for point in points):
        fast = {"node_bandwidth": "infinite"}
        yield "infinitely fast links between the GPUs", fast
        yield "no latency", CALM
        yield "both", {**fast, **CALM}
    if any(point.gpus > 1 for point in points):
        yield "no communication at all", {"communication": False}
    yield "compute twice as fast", {"compute": 2.0}
    events = [event.kind for side in sides for event in side.scenario.events]
    if "jitter" in events:
        yield "no jitter", {"jitter": False}
    if any(kind != "jitter" for kind in events):
        yield "no events", {"events": False}
    if any(side.scenario.jobs for side in sides):
        yield "no other jobs", {"jobs": False}


def attributed(
    sides: Sequence[Side],
    *,
    profile: Profile | None = None,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Imagined, ...]:
    """Work out each classic on each side.

    Parameters
    ----------
    sides : sequence of Side
    profile : Profile, optional
    jobs : int, optional
        Processes, as for `run_sweep`.
    progress : callable, optional
    """
    rows = list(classics(sides))
    asked = [_imagining(side, fields) for _, fields in rows for side in sides]
    variants = [Variant(at, {}, each, scenario_digest(each)) for at, each in enumerate(asked)]
    swept = run_sweep(variants, jobs=jobs, profile=profile, progress=progress)
    found = []
    for at, (what, fields) in enumerate(rows):
        answers = swept.answers[at * len(sides) : (at + 1) * len(sides)]
        steps_s = tuple(each.step_time_s for each in answers)
        messages = tuple(each.message for each in answers)
        found.append(Imagined(what, fields, steps_s, messages, shares(sides, steps_s)))
    return tuple(found)


def _imagining(side: Side, fields: Mapping[str, Any]) -> Scenario:
    """A side's scenario with a what-if on top of its own."""
    own = side.scenario.what_if or WhatIf()
    values = dict(fields)
    if "compute" in values:
        values["compute"] *= own.compute
    return changed(side.scenario, {f"what_if.{name}": value for name, value in values.items()})


def shares(sides: Sequence[Side], steps_s: Sequence[float | None]) -> tuple[float | None, ...]:
    """Part of the difference between each side and the first that is gone in a what-if.

    None where steps do not compare, as they train different things or different numbers of them.
    """
    first, then = sides[0].point.step_time_s, steps_s[0]

    def share(side: Side, step_s: float | None) -> float | None:
        apart = side.point.step_time_s - first
        alike = same_samples(sides[0], side) and same_batch(sides[0], side)
        if not alike or then is None or step_s is None or abs(apart) <= LEAST_DIFFERENCE * first:
            return None
        return 1.0 - (step_s - then) / apart

    return (None, *(share(*each) for each in list(zip(sides, steps_s, strict=True))[1:]))
