"""Run several scenarios and compare each with the first: fields, step times, intervals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from perfmodel.memo import with_progress
from perfmodel.scenario import Scenario, change_scenario
from perfmodel.scenario.sections.variants import WhatIf
from perfmodel.scenario.source_map import format_value
from perfmodel.studies.comparison import (
    Change,
    Comparison,
    Field,
    Side,
    SideDifference,
    WhatIfResult,
    same_batch,
    same_samples,
)
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result import Interval, SizeResult
from perfmodel.studies.run.steps.reliefs import COMMUNICATION, LATENCY
from perfmodel.studies.run.steps.uncertainty import step_ratio_interval, with_chance
from perfmodel.studies.sweep import run_sweep
from perfmodel.studies.sweep.run import Progress
from perfmodel.studies.sweep.variants import make_variant, without_curve

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

READERS: Mapping[str, str] = {
    "sweep": "`perfmodel sweep`",
    "plan": "`perfmodel plan`",
    "scale": "the scaling curve of `perfmodel run`",
}
"""What reads the sections by which no step at the main size differs."""

DEFAULT = "default"


def list_differing_fields(scenarios: Sequence[Scenario]) -> tuple[Field, ...]:
    """List the fields whose meaning differs, with the values as written in each scenario.

    Two ways to write one value ("25 MiB", "25600 KiB") are no difference. Nor is a section of
    `READERS` that some of the scenarios do not have: they do not ask its question.
    """
    unasked = {name for name in READERS for each in scenarios if getattr(each, name) is None}
    documents = [
        dict(_flatten(each.model_dump(mode="json", exclude=unasked))) for each in scenarios
    ]
    fields: dict[str, Field] = {}
    for name in dict.fromkeys(name for document in documents for name in document):
        if len({json.dumps(each.get(name), sort_keys=True) for each in documents}) == 1:
            continue
        shortest = min((_find_written(scenario, name)[0] for scenario in scenarios), key=len)
        values = tuple(format_value(_find_written(each, shortest)[1]) for each in scenarios)
        if len(set(values)) > 1:  # else it follows from another field
            fields.setdefault(
                shortest, Field(shortest, values, READERS.get(shortest.partition(".")[0]))
            )
    return tuple(fields.values())


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Values by dotted name; lists are values, but for the long ones of a plan."""
    if name.startswith("plan.") and isinstance(value, list):
        value = dict(enumerate(value)) if isinstance(next(iter(value), 0), Mapping) else value
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _flatten(part, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _find_written(scenario: Scenario, name: str) -> tuple[str, Any]:
    """Find a field, or the short form of a section that contains it, in the scenario's file."""
    section: Any = scenario.origin.content
    parts = name.split(".")
    for depth, part in enumerate(parts):
        if isinstance(section, list):
            section = {str(at): member for at, member in enumerate(section)}
        if not isinstance(section, Mapping):
            return ".".join(parts[:depth]), section
        if part not in section:
            return name, DEFAULT
        section = section[part]
    return name, section


def compare(
    scenarios: Mapping[str, Scenario],
    *,
    profile: Profile | None = None,
    attribute: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare scenarios at their main sizes, all with the first.

    Parameters
    ----------
    scenarios : mapping of str to Scenario
        By label.
    profile : Profile, optional
        Measured numbers instead of datasheets', for all of them.
    attribute : bool
        Whether to simulate the common what-ifs, too (see `attribute_step`).
    jobs : int, optional
        Processes for them; default: one per physical core.
    progress : callable, optional
        Called with (runs done, runs in all).

    Raises
    ------
    InputError
        A name that does not resolve or a size that does not fit.
    """
    sides = []
    for label, scenario in with_progress(scenarios.items(), progress, len(scenarios)):
        at_main_size = without_curve(scenario)
        result = run_scenario(at_main_size, profile=profile)
        if result.search is not None:  # a what-if is of the layout that was chosen
            at_main_size = change_scenario(at_main_size, result.search.winner.changes)
        sides.append(Side(label, at_main_size, result))
    return Comparison(
        sides=tuple(sides),
        fields=list_differing_fields(list(scenarios.values())),
        differences=tuple(compare_with_first(sides[0], side) for side in sides[1:]),
        what_ifs=attribute_step(sides, profile=profile, jobs=jobs, progress=progress)
        if attribute
        else (),
    )


def compare_with_first(first: Side, other: Side) -> SideDifference:
    """Compare one side with the first."""
    a, b = first.point, other.point
    return SideDifference(
        label=other.label,
        step=Change(b.step_time_s / a.step_time_s, ratio_interval_of(a, b)),
        throughput=gain_of(a, b),
        exposed_s=b.exposed_comm_s - a.exposed_comm_s,
        parts_s={
            n: b.breakdown_s.get(n, 0.0) - a.breakdown_s.get(n, 0.0)
            for n in dict.fromkeys([*a.breakdown_s, *b.breakdown_s])
        },
        bottleneck=(a.bottleneck, b.bottleneck),
        same_samples=same_samples(first, other),
        same_batch=same_batch(first, other),
    )


def gain_of(base: SizeResult, point: SizeResult) -> Change:
    """Samples per second of one over those of the other, with the interval of the ratio."""
    ends, batch = ratio_interval_of(base, point), point.global_batch / base.global_batch
    return Change(
        point.samples_per_s / base.samples_per_s,
        None if ends is None else (batch / ends[1], batch / ends[0]),
    )


def ratio_interval_of(a: SizeResult, b: SizeResult) -> Interval | None:
    """Return the 80 % interval of the ratio of two steps, the second over the first.

    None where one of them has no interval. Where neither has one but for chance, the interval is
    that of chance.
    """
    if a.uncertainties is None and b.uncertainties is None:
        chances = [with_chance((), each.disturbance) for each in (a, b)]
        if any(chances):
            a, b = (
                replace(each, uncertainties=own) for each, own in zip((a, b), chances, strict=True)
            )
    return step_ratio_interval(b, a)


# ---------------------------------------------------------------- attribution

LEAST_DIFFERENCE = 1e-6
"""Share of a step below which the difference of two steps is rounding and has no parts."""


def list_what_ifs(sides: Sequence[Side]) -> list[tuple[str, Mapping[str, Any]]]:
    """List what-ifs that change some side: a description and the fields of ``what_if``."""
    points, kinds = (
        [side.point for side in sides],
        [e.kind for s in sides for e in s.scenario.events],
    )
    several = any(point.gpus > 1 for point in points)
    rows: tuple[tuple[bool, str, Mapping[str, Any]], ...] = (
        (several, COMMUNICATION.text, COMMUNICATION.what_if),
        (True, "compute twice as fast", {"compute": 2.0}),
        ("jitter" in kinds, "no jitter", {"jitter": False}),
        (any(kind != "jitter" for kind in kinds), "no events", {"events": False}),
        (any(side.scenario.jobs for side in sides), "no other jobs", {"jobs": False}),
    )
    return [
        *(_list_fast_links(points) if several else {}).items(),
        *((what, fields) for holds, what, fields in rows if holds),
    ]


def _list_fast_links(points: Sequence[SizeResult]) -> dict[str, Mapping[str, Any]]:
    """List what-ifs of links and latency, and what relieves the bottleneck of each size."""
    inside: Mapping[str, Any] = {"node_bandwidth": "infinite"}
    network: Mapping[str, Any] = {"network_bandwidth": "infinite"}
    links, every = {"infinitely fast links between the GPUs": inside}, inside
    if any(point.nodes > 1 for point in points):
        every = {**network, **inside}
        links = {
            "an infinitely fast network, hosts as they are": network,
            "infinitely fast links inside the hosts": inside,
            "infinitely fast links everywhere": every,
        }
    for relief in (point.relief for point in points if point.relief is not None):
        listed = (*links.values(), LATENCY.what_if, COMMUNICATION.what_if)
        if relief.what_if and relief.what_if not in listed:
            links[relief.what] = dict(relief.what_if)
    return links | {
        LATENCY.text: LATENCY.what_if,
        f"infinitely fast links and {LATENCY.text}": {**every, **LATENCY.what_if},
    }


def attribute_step(
    sides: Sequence[Side],
    *,
    profile: Profile | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> tuple[WhatIfResult, ...]:
    """Simulate each what-if on each side.

    `jobs`: processes, as for `run_sweep`.
    """
    what_ifs = list_what_ifs(sides)
    asked = [(side, fields) for _, fields in what_ifs for side in sides]
    variants = [
        make_variant(side.scenario, at, _on_top(side.scenario, fields))
        for at, (side, fields) in enumerate(asked)
    ]
    answers = iter(run_sweep(variants, jobs=jobs, profile=profile, progress=progress).answers)
    results = []
    for description, fields in what_ifs:
        own = list(islice(answers, len(sides)))
        steps_s = tuple(answer.step_time_s for answer in own)
        messages, shares = tuple(answer.message for answer in own), _removed_shares(sides, steps_s)
        results.append(WhatIfResult(description, fields, steps_s, messages, shares))
    return tuple(results)


def _on_top(scenario: Scenario, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that add a what-if to a scenario, on top of its own."""
    own = (scenario.what_if or WhatIf()).compute
    values = {**fields, "compute": fields["compute"] * own} if "compute" in fields else fields
    return {f"what_if.{name}": value for name, value in values.items()}


def _removed_shares(
    sides: Sequence[Side], steps_s: Sequence[float | None]
) -> tuple[float | None, ...]:
    """Return the share of the difference between each side and the first that a what-if removes.

    None where steps cannot be compared: other samples, or another number of them.
    """
    first, first_s = sides[0], steps_s[0]

    def removed_share(side: Side, step_s: float | None) -> float | None:
        base_s = first.point.step_time_s
        difference_s = side.point.step_time_s - base_s
        comparable = same_samples(first, side) and same_batch(first, side)
        is_rounding = abs(difference_s) <= LEAST_DIFFERENCE * base_s
        if not comparable or first_s is None or step_s is None or is_rounding:
            return None
        return 1.0 - (step_s - first_s) / difference_s

    return (None, *map(removed_share, sides[1:], steps_s[1:]))
