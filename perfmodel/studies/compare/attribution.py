"""Attribution: how much of a step, and of a difference, each of the common what-ifs removes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.scenario import Scenario, change_scenario, scenario_digest
from perfmodel.scenario.sections.variants import WhatIf
from perfmodel.studies.compare.model import Side, WhatIfResult, same_batch, same_samples
from perfmodel.studies.run.result.model import SizeResult
from perfmodel.studies.sweep import Variant, run_sweep

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

NO_LATENCY: Mapping[str, Any] = {"network_latency": 0.0, "node_latency": 0.0, "launch": 0.0}
"""A message takes only the time of its bytes."""

SILENT: Mapping[str, Any] = {"communication": False}

LEAST_DIFFERENCE = 1e-6
"""Share of a step below which the difference of two steps is rounding and has no parts."""


def list_what_ifs(sides: Sequence[Side]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """List what-ifs that change some side: a description and the fields of ``what_if``."""
    points = [side.point for side in sides]
    if any(point.gpus > 1 for point in points):
        yield from _list_fast_links(points)
        yield "no communication at all", SILENT
    yield "compute twice as fast", {"compute": 2.0}
    events = [event.kind for side in sides for event in side.scenario.events]
    if "jitter" in events:
        yield "no jitter", {"jitter": False}
    if any(kind != "jitter" for kind in events):
        yield "no events", {"events": False}
    if any(side.scenario.jobs for side in sides):
        yield "no other jobs", {"jobs": False}


def _list_fast_links(points: Sequence[SizeResult]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """List what-ifs of links and latency, and what relieves the bottleneck of each size."""
    inside: Mapping[str, Any] = {"node_bandwidth": "infinite"}
    links: dict[str, Mapping[str, Any]] = {"infinitely fast links between the GPUs": inside}
    every = inside
    if any(point.nodes > 1 for point in points):
        network = {"network_bandwidth": "infinite"}
        every = {**network, **inside}
        links = {
            "an infinitely fast network, hosts as they are": network,
            "infinitely fast links inside the hosts": inside,
            "infinitely fast links everywhere": every,
        }
    reliefs = [point.relief for point in points if point.relief is not None]
    for relief in reliefs:
        if relief.what_if and relief.what_if not in (*links.values(), NO_LATENCY, SILENT):
            links[relief.what] = dict(relief.what_if)
    yield from links.items()
    yield "no latency", NO_LATENCY
    yield "infinitely fast links and no latency", {**every, **NO_LATENCY}


def attribute_step(
    sides: Sequence[Side],
    *,
    profile: Profile | None = None,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[WhatIfResult, ...]:
    """Simulate each what-if on each side.

    `jobs`: processes, as for `run_sweep`.
    """
    what_ifs = list(list_what_ifs(sides))
    scenarios = [_add_what_if(side, fields) for _, fields in what_ifs for side in sides]
    variants = [Variant(at, {}, each, scenario_digest(each)) for at, each in enumerate(scenarios)]
    swept = run_sweep(variants, jobs=jobs, profile=profile, progress=progress)
    results = []
    for at, (description, fields) in enumerate(what_ifs):
        answers = swept.answers[at * len(sides) : (at + 1) * len(sides)]
        steps_s = tuple(answer.step_time_s for answer in answers)
        messages = tuple(answer.message for answer in answers)
        shares = _removed_shares(sides, steps_s)
        results.append(WhatIfResult(description, fields, steps_s, messages, shares))
    return tuple(results)


def _add_what_if(side: Side, fields: Mapping[str, Any]) -> Scenario:
    """Add a what-if to a side's scenario, on top of its own."""
    own = side.scenario.what_if or WhatIf()
    values = dict(fields)
    if "compute" in values:
        values["compute"] *= own.compute
    return change_scenario(
        side.scenario, {f"what_if.{name}": value for name, value in values.items()}
    )


def _removed_shares(
    sides: Sequence[Side], steps_s: Sequence[float | None]
) -> tuple[float | None, ...]:
    """Share of the difference between each side and the first that a what-if removes.

    None where steps cannot be compared: other samples, or another number of them.
    """
    first, first_s = sides[0], steps_s[0]

    def removed_share(side: Side, step_s: float | None) -> float | None:
        base_s = first.point.step_time_s
        difference_s = side.point.step_time_s - base_s
        comparable = same_samples(first, side) and same_batch(first, side)
        if not comparable or first_s is None or step_s is None:
            return None
        if abs(difference_s) <= LEAST_DIFFERENCE * base_s:
            return None
        return 1.0 - (step_s - first_s) / difference_s

    return (None, *map(removed_share, sides[1:], steps_s[1:]))
