"""What events and other jobs cost, and who waits for whom: a section, a figure and sentences."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    Block,
    Figure,
    Heading,
    Section,
    Table,
    paragraphs,
    section,
)
from perfmodel.report.common.figures import axis_layout, new_figure, time_unit
from perfmodel.report.common.palette import INK, WORK
from perfmodel.studies.run.result.model import DisturbanceCost, SizeResult, Wait

if TYPE_CHECKING:
    import plotly.graph_objects as go


LISTED = 24
"""Rows of collectives that the page lists, alike ones in one; result.json holds all."""

MOSTLY = 0.5
"""Share of the steps from which on one rank or class is named as the one that others wait for."""

WORTH_SAYING = 1e-3
"""Share of the step from which on waiting is mentioned in a sentence."""

NOTHING = 1e-9
"""Share of the step below which a cost is the rounding of sums."""


_DEVICE = re.compile(r"\bn(\d+)\b(?:/(nic|gpu|cpu)(\d+))?")
_KINDS = {"nic": "NIC", "gpu": "GPU", "cpu": "CPU"}

_MICRO_BATCH = re.compile(r" of micro-batch \d+")
_NUMBER = re.compile(r"(?<![a-z])\d+\b")


def lead(point: SizeResult, cost: DisturbanceCost) -> str:
    """Say what everything together costs."""
    share = quantities.percent(abs(cost.costs_s) / cost.undisturbed_s)
    change = "longer" if cost.costs_s >= 0 else "shorter"
    takes = f"A step takes {quantities.duration(point.step_time_s)}"
    sentence = (
        f"{takes}; without any of this it would take {quantities.duration(cost.undisturbed_s)}: "
        f"{share} {change}"
        if _without_rounding(cost.costs_s, cost)
        else f"{takes}, as long as without any of this"
    )
    count = len(cost.steps_s)
    if count > 1:
        sentence += f". Mean of {count} steps"
    if cost.mean_interval_s is not None:
        low, high = (quantities.duration(at) for at in cost.mean_interval_s)
        sentence += f", 80{chr(160)}% interval of the mean {low} to {high}"
    return f"{sentence}."


def waiting(point: SizeResult, cost: DisturbanceCost) -> str:
    """Say who is waited for longest; empty where nobody waits long enough to mention."""
    worst = max(cost.waits, key=lambda wait: wait.waited_s, default=None)
    if worst is None or worst.waited_s < WORTH_SAYING * point.step_time_s:
        return ""
    whom = worst.last
    if worst.share < MOSTLY:
        often = quantities.percent(worst.share)
        whom = f"whoever is last, often another one ({worst.last} in {often} of steps)"
    return (
        f"The longest wait is before {worst.collective}: the others wait "
        f"{quantities.duration(worst.waited_s)} on average, for {whom}."
    )


def lines(point: SizeResult) -> list[str]:
    """Sentences for the terminal; none where nothing happens."""
    cost = point.disturbance
    if cost is None:
        return []
    sentences = [lead(point, cost)]
    sentences += [f"  {event.what}: {_cost(event.costs_s, cost)}" for event in cost.events]
    sentences += [
        f"  {job.name}, {quantities.gpus(job.gpus)}: a step takes "
        f"{quantities.duration(job.step_time_s)}, alone {quantities.duration(job.alone_s)}"
        for job in cost.jobs
    ]
    sentences += [explained] if (explained := explain_devices(cost)) else []
    return [*sentences, *([sentence] if (sentence := waiting(point, cost)) else [])]


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
    return 0.0 if abs(costs_s) < NOTHING * cost.undisturbed_s else costs_s


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
        blocks += [Heading("The other jobs"), _jobs(cost)]
    if cost.waits:
        blocks += [Heading("Who waits for whom"), *_waits(point, cost)]
    return section("What happens around it, and what it costs", lead(point, cost), *blocks)


def _events(cost: DisturbanceCost) -> Table:
    count = len(cost.steps_s)
    header = ["Event", ">Costs a step", ">Share", ">Step without it", ">Over all steps"]
    rows = []
    for event in cost.events:
        costs_s = _without_rounding(event.costs_s, cost)
        rows.append(
            [
                event.what,
                quantities.duration(costs_s),
                quantities.percent_column(costs_s / cost.undisturbed_s),
                quantities.duration(event.without_s),
                quantities.duration(costs_s * count),
            ]
        )
    columns = 5 if count > 1 else 4
    return Table(header[:columns], [row[:columns] for row in rows])


def _jobs(cost: DisturbanceCost) -> Table:
    rows = [
        [
            job.name,
            f"{job.gpus:,}",
            quantities.duration(job.step_time_s),
            quantities.duration(job.alone_s),
            quantities.percent_column(job.step_time_s / job.alone_s - 1),
        ]
        for job in cost.jobs
    ]
    return Table(("Job", ">GPUs", ">Step", ">Step alone", ">Slower by"), rows)


def _waits(point: SizeResult, cost: DisturbanceCost) -> list[Block]:
    sentence = waiting(point, cost) or "Nobody waits long for anybody."
    waited = [wait for wait in cost.waits if wait.longest_s > 0]
    together = len(cost.waits) - len(waited)
    groups = group_waits(waited)
    if len(groups) > LISTED:
        sentence += f" The longest {LISTED} are listed; result.json holds all of them."
        groups = dict(sorted(groups.items(), key=lambda item: -_waited_s(item[1]))[:LISTED])
    if together:
        sentence += f" Before {together} of {len(cost.waits)} collectives nobody waits."
    header = (
        "Collective",
        ">Calls",
        "Last to come",
        ">How often",
        ">Others wait, all calls",
        ">First waits at most",
    )
    rows = [_wait_row(name, each) for name, each in groups.items()]
    return [*paragraphs([sentence], "lead"), *([Table(header, rows)] if rows else [])]


def group_waits(waits: Sequence[Wait]) -> dict[str, list[Wait]]:
    """Join waits that differ in the micro-batch alone, and if many are left, in any number."""
    groups = _grouped(waits, lambda name: _MICRO_BATCH.sub("", name))
    if len(groups) <= LISTED:
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


def draw_steps(cost: DisturbanceCost) -> go.Figure:
    """Draw the duration of each counted step, beside that of an undisturbed one."""
    unit, scale = time_unit(max(cost.steps_s))
    numbers = list(range(len(cost.steps_s)))
    figure = new_figure(260, bargap=0.25)
    figure.add_bar(
        x=numbers,
        y=[step / scale for step in cost.steps_s],
        name="step",
        marker={"color": WORK["backward"]},
        hoverinfo="text",
        hovertext=[
            f"<b>step {at}</b><br>{quantities.duration(step)}"
            for at, step in enumerate(cost.steps_s)
        ],
    )
    figure.add_scatter(
        x=[-0.5, numbers[-1] + 0.5],
        y=[cost.undisturbed_s / scale] * 2,
        name="undisturbed",
        mode="lines",
        line={"color": INK, "dash": "dot", "width": 1.5},
        hoverinfo="skip",
    )
    figure.update_xaxes(axis_layout("step, counted from the settled state"))
    figure.update_yaxes(axis_layout(f"time per step ({unit})", rangemode="tozero"))
    return figure
