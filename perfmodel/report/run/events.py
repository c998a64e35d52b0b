"""What events and other jobs cost, and who waits for whom: a section, a figure and sentences."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence

from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    Block,
    Figure,
    Heading,
    Section,
    Table,
    paragraphs,
    section,
    tabulate,
)
from perfmodel.report.common.figures import Drawing, axis_layout, bars, new_figure, time_unit
from perfmodel.report.common.figures import lines as line_trace
from perfmodel.report.common.palette import INK, WORK
from perfmodel.studies.run.result import DisturbanceCost, EventCost, SizeResult, Wait

MOST_WAITS_LISTED = 24
"""Rows of collectives that the page lists, alike ones in one; result.json holds all."""

NAMED_SHARE = 0.5
"""Share of the steps from which on one rank or class is named as the one that others wait for."""

WORTH_SAYING = 1e-3
"""Share of the step from which on waiting is mentioned in a sentence."""

ROUNDING_SHARE_OF_STEP = 1e-9
"""Share of the step below which a cost is the rounding of sums."""


_DEVICE = re.compile(r"\bn(\d+)\b(?:/(nic|gpu|cpu)(\d+))?")
_KINDS = {"nic": "NIC", "gpu": "GPU", "cpu": "CPU"}

_MICRO_BATCH = re.compile(r" of micro-batch \d+")
_NUMBER = re.compile(r"(?<![a-z])\d+\b")


def lead(point: SizeResult, cost: DisturbanceCost) -> str:
    """Say what everything together costs."""
    share = quantities.percent(abs(cost.costs_s) / cost.undisturbed_s)
    change = "longer" if cost.costs_s >= 0 else "shorter"
    without = (
        f"; without any of this it would take {quantities.duration(cost.undisturbed_s)}: "
        f"{share} {change}"
        if _without_rounding(cost.costs_s, cost)
        else ", as long as without any of this"
    )
    mean = f". Mean of {len(cost.steps_s)} steps" if len(cost.steps_s) > 1 else ""
    if cost.mean_interval_s is not None:
        low, high = (quantities.duration(at) for at in cost.mean_interval_s)
        mean += f", 80{chr(160)}% interval of the mean {low} to {high}"
    return f"A step takes {quantities.duration(point.step_time_s)}{without}{mean}."


def waiting(point: SizeResult, cost: DisturbanceCost) -> str:
    """Say who is waited for longest; empty where nobody waits long enough to mention."""
    worst = max(cost.waits, key=lambda wait: wait.waited_s, default=None)
    if worst is None or worst.waited_s < WORTH_SAYING * point.step_time_s:
        return ""
    often = f"often another one ({worst.last} in {quantities.percent(worst.share)} of steps)"
    whom = f"whoever is last, {often}" if worst.share < NAMED_SHARE else worst.last
    return (
        f"The longest wait is before {worst.collective}: the others wait "
        f"{quantities.duration(worst.waited_s)} on average, for {whom}."
    )


def lines(point: SizeResult) -> list[str]:
    """Sentences for the terminal; none where nothing happens."""
    cost = point.disturbance
    if cost is None:
        return []
    sentences = [
        lead(point, cost),
        *(f"  {event.what}: {_cost(event.costs_s, cost)}" for event in cost.events),
        *(
            f"  {job.name}, {quantities.gpus(job.gpus)}: a step takes "
            f"{quantities.duration(job.step_time_s)}, alone {quantities.duration(job.alone_s)}"
            for job in cost.jobs
        ),
        explain_devices(cost),
        waiting(point, cost),
    ]
    return [sentence for sentence in sentences if sentence]


def explain_devices(cost: DisturbanceCost) -> str:
    """Say what the first name of a device in events and waits stands for; empty without any."""
    texts = [event.what for event in cost.events] + [wait.last for wait in cost.waits]
    return explain_device("; ".join(texts))


def explain_device(text: str) -> str:
    """Say what the first name of a device in a text stands for; empty where there is none."""
    match = _DEVICE.search(text)
    if match is None:
        return ""
    host, kind, number = match.groups()
    part = f", {kind}{number} its {_KINDS[kind]} {number}" if kind else ""
    return f"n{host} is host {host}{part}: all are counted from 0."


def _without_rounding(costs_s: float, cost: DisturbanceCost) -> float:
    """A cost, or 0 where it is only rounding."""
    return 0.0 if abs(costs_s) < ROUNDING_SHARE_OF_STEP * cost.undisturbed_s else costs_s


def _cost(costs_s: float, cost: DisturbanceCost) -> str:
    """Write a cost with its sign and as a share."""
    if not _without_rounding(costs_s, cost):
        return "costs nothing"
    sign = "\N{MINUS SIGN}" if costs_s < 0 else "+"
    share = quantities.percent(abs(costs_s) / cost.undisturbed_s)
    return f"{sign}{quantities.duration(abs(costs_s))} a step ({sign}{share})"


def events_section(point: SizeResult) -> Section | None:
    """Build the section of the page; None where nothing happens."""
    cost = point.disturbance
    if cost is None:
        return None
    blocks: list[Block] = [_events(cost), *paragraphs([explain_devices(cost)], "hint")]
    if len(cost.steps_s) > 1:
        figure = Figure(draw_steps(cost), "steps", "Duration of each counted step")
        blocks += [Heading("Step by step"), figure]
    if cost.jobs:
        blocks += [
            Heading("The other jobs"),
            tabulate(
                cost.jobs,
                (
                    ("Job", lambda job: job.name),
                    (">GPUs", lambda job: f"{job.gpus:,}"),
                    (">Step", lambda job: quantities.duration(job.step_time_s)),
                    (">Step alone", lambda job: quantities.duration(job.alone_s)),
                    (
                        ">Slower by",
                        lambda job: quantities.percent_column(job.step_time_s / job.alone_s - 1),
                    ),
                ),
            ),
        ]
    if cost.waits:
        blocks += [Heading("Who waits for whom"), *_waits(point, cost)]
    return section("What happens around it, and what it costs", lead(point, cost), *blocks)


def _events(cost: DisturbanceCost) -> Table:
    count = len(cost.steps_s)

    def costs_s(event: EventCost) -> float:
        return _without_rounding(event.costs_s, cost)

    return tabulate(
        cost.events,
        (
            ("Event", lambda event: event.what),
            (">Costs a step", lambda event: quantities.duration(costs_s(event))),
            (
                ">Share",
                lambda event: quantities.percent_column(costs_s(event) / cost.undisturbed_s),
            ),
            (">Step without it", lambda event: quantities.duration(event.without_s)),
            (">Over all steps", lambda event: quantities.duration(costs_s(event) * count))
            if count > 1
            else None,
        ),
    )


def _waits(point: SizeResult, cost: DisturbanceCost) -> list[Block]:
    waited = [wait for wait in cost.waits if wait.longest_s > 0]
    together, groups, more = len(cost.waits) - len(waited), group_waits(waited), ""
    if len(groups) > MOST_WAITS_LISTED:
        more = f" The longest {MOST_WAITS_LISTED} are listed; result.json holds all of them."
        groups = dict(
            sorted(groups.items(), key=lambda item: -_waited_s(item[1]))[:MOST_WAITS_LISTED]
        )
    if together:
        more += f" Before {together} of {len(cost.waits)} collectives nobody waits."
    said = f"{waiting(point, cost) or 'Nobody waits long for anybody.'}{more}"
    header = (
        "Collective",
        ">Calls",
        "Last to come",
        ">How often",
        ">Others wait, all calls",
        ">First waits at most",
    )
    rows = [_wait_row(name, each) for name, each in groups.items()]
    return [*paragraphs([said], "lead"), *([Table(header, rows)] if rows else [])]


def group_waits(waits: Sequence[Wait]) -> dict[str, list[Wait]]:
    """Join waits that differ in the micro-batch alone, and if many are left, in any number."""
    groups = _grouped(waits, lambda name: _MICRO_BATCH.sub("", name))
    if len(groups) <= MOST_WAITS_LISTED:
        return groups
    return _grouped(waits, lambda name: _NUMBER.sub("...", _MICRO_BATCH.sub("", name)))


def _grouped(waits: Sequence[Wait], shorten: Callable[[str], str]) -> dict[str, list[Wait]]:
    groups: dict[str, list[Wait]] = defaultdict(list)
    for wait in waits:
        groups[shorten(wait.collective)].append(wait)
    return {name if len(own) > 1 else own[0].collective: own for name, own in groups.items()}


def _waited_s(waits: Sequence[Wait]) -> float:
    return sum(wait.waited_s for wait in waits)


def _wait_row(name: str, waits: Sequence[Wait]) -> tuple[str, ...]:
    """Alike collectives as one row; last is who the others wait for longest."""
    by_last: dict[str, list[Wait]] = defaultdict(list)
    for wait in waits:
        by_last[wait.last].append(wait)
    last = max(by_last, key=lambda last: _waited_s(by_last[last]))
    return (
        name,
        f"{len(waits):,}",
        last,
        quantities.percent(sum(wait.share for wait in by_last[last]) / len(waits)),
        quantities.duration(_waited_s(waits)),
        quantities.duration(max(wait.longest_s for wait in waits)),
    )


def draw_steps(cost: DisturbanceCost) -> Drawing:
    """Draw the duration of each counted step, beside that of an undisturbed one."""
    unit, scale = time_unit(max(cost.steps_s))
    numbers = list(range(len(cost.steps_s)))
    hover = [
        f"<b>step {at}</b><br>{quantities.duration(step)}" for at, step in enumerate(cost.steps_s)
    ]
    return new_figure(
        260,
        [
            bars("step", numbers, [step / scale for step in cost.steps_s], WORK["backward"], hover),
            line_trace(
                "undisturbed",
                [-0.5, numbers[-1] + 0.5],
                [cost.undisturbed_s / scale] * 2,
                {"color": INK, "dash": "dot", "width": 1.5},
            ),
        ],
        x=axis_layout("step, counted from the settled state"),
        y=axis_layout(f"time per step ({unit})", rangemode="tozero"),
        bargap=0.25,
    )
