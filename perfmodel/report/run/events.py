"""What events and other jobs cost, and who waits for whom: a section, a figure and sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfmodel.memo import grouped
from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    Block,
    Figure,
    Heading,
    Section,
    Table,
    join_applying,
    paragraphs,
    section,
    tabulate,
)
from perfmodel.report.common.figures import Drawing, axis_layout, bars, new_figure, time_unit
from perfmodel.report.common.figures import lines as line_trace
from perfmodel.report.common.palette import INK, WORK
from perfmodel.studies.run.result import DisturbanceCost, SizeResult, Wait

MOST_WAITS_LISTED = 24
"""Rows of collectives that the page lists, alike ones in one; result.json holds all."""

NAMED_SHARE = 0.5
"""Share of the steps from which on one rank or class is named as the one that others wait for."""

WORTH_SAYING = 1e-3
"""Share of the step from which on waiting is mentioned in a sentence."""


_DEVICE = re.compile(r"\bn(\d+)\b(?:/(nic|gpu|cpu)(\d+))?")
_KINDS = {"nic": "NIC", "gpu": "GPU", "cpu": "CPU"}

_MICRO_BATCH = re.compile(r" of micro-batch \d+")
_NUMBER = re.compile(r"(?<![a-z])\d+\b")


def lead(point: SizeResult, cost: DisturbanceCost) -> str:
    """Say what everything together costs."""
    costs = _without_rounding(cost.costs_s, cost)
    low, high = map(quantities.duration, cost.mean_interval_s or (0.0, 0.0))
    return join_applying(
        (True, f"A step takes {quantities.duration(point.step_time_s)}"),
        (not costs, ", as long as without any of this"),
        (
            costs,
            (
                f"; without any of this it would take {quantities.duration(cost.undisturbed_s)}: "
                f"{quantities.percent(abs(costs) / cost.undisturbed_s)} "
                f"{'longer' if costs >= 0 else 'shorter'}"
            ),
        ),
        (len(cost.steps_s) > 1, f". Mean of {len(cost.steps_s)} steps"),
        (cost.mean_interval_s, f", 80{chr(160)}% interval of the mean {low} to {high}"),
        (True, "."),
        by="",
    )


def waiting(point: SizeResult, cost: DisturbanceCost) -> str:
    """Say who is waited for longest; empty where nobody waits long enough to mention."""
    worst = max(cost.waits, key=lambda wait: wait.waited_s, default=None)
    if worst is None or worst.waited_s < WORTH_SAYING * point.step_time_s:
        return ""
    others = (
        f"whoever is last, often another one ({worst.last} in {quantities.percent(worst.share)} of "
        "steps)"
    )
    return (
        f"The longest wait is before {worst.collective}: the others wait "
        f"{quantities.duration(worst.waited_s)} on average, for "
        f"{others if worst.share < NAMED_SHARE else worst.last}."
    )


def lines(point: SizeResult) -> list[str]:
    """Sentences for the terminal; none where nothing happens."""
    cost = point.disturbance
    if cost is None:
        return []
    return [
        sentence
        for sentence in (
            lead(point, cost),
            *(f"  {event.what}: {_cost(event.costs_s, cost)}" for event in cost.events),
            *(
                f"  {job.name}, {quantities.gpus(job.gpus)}: a step takes "
                f"{quantities.duration(job.step_time_s)}, alone {quantities.duration(job.alone_s)}"
                for job in cost.jobs
            ),
            explain_devices(cost),
            waiting(point, cost),
        )
        if sentence
    ]


def explain_devices(cost: DisturbanceCost) -> str:
    """Say what the first name of a device in events and waits stands for; empty without any."""
    whats, lasts = (event.what for event in cost.events), (wait.last for wait in cost.waits)
    return explain_device("; ".join([*whats, *lasts]))


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
    return 0.0 if abs(costs_s) < quantities.ROUNDING_SHARE * cost.undisturbed_s else costs_s


def _cost(costs_s: float, cost: DisturbanceCost) -> str:
    """Write a cost with its sign and as a share."""
    if not _without_rounding(costs_s, cost):
        return "costs nothing"
    return (
        f"{quantities.signed(costs_s, quantities.duration)} a step "
        f"({quantities.signed(costs_s / cost.undisturbed_s, quantities.percent)})"
    )


def events_section(point: SizeResult) -> Section | None:
    """Build the section of the page; None where nothing happens."""
    cost = point.disturbance
    if cost is None:
        return None
    return section(
        "What happens around it, and what it costs",
        lead(point, cost),
        _events(cost),
        *paragraphs([explain_devices(cost)], "hint"),
        *(
            [
                Heading("Step by step"),
                Figure(draw_steps(cost), "steps", "Duration of each counted step"),
            ]
            if len(cost.steps_s) > 1
            else []
        ),
        *(
            [
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
                            lambda job: quantities.percent_column(
                                job.step_time_s / job.alone_s - 1
                            ),
                        ),
                    ),
                ),
            ]
            if cost.jobs
            else []
        ),
        *([Heading("Who waits for whom"), *_waits(point, cost)] if cost.waits else []),
    )


def _events(cost: DisturbanceCost) -> Table:
    count = len(cost.steps_s)
    return tabulate(
        ((event, _without_rounding(event.costs_s, cost)) for event in cost.events),
        (
            ("Event", lambda row: row[0].what),
            (">Costs a step", lambda row: quantities.duration(row[1])),
            (">Share", lambda row: quantities.percent_column(row[1] / cost.undisturbed_s)),
            (">Step without it", lambda row: quantities.duration(row[0].without_s)),
            (">Over all steps", lambda row: quantities.duration(row[1] * count))
            if count > 1
            else None,
        ),
    )


def _waits(point: SizeResult, cost: DisturbanceCost) -> list[Block]:
    waited = [wait for wait in cost.waits if wait.longest_s > 0]
    together, groups = len(cost.waits) - len(waited), group_waits(waited)
    longest = sorted(groups.items(), key=lambda row: -_waited_s(row[1]))[:MOST_WAITS_LISTED]
    shown = longest if len(groups) > MOST_WAITS_LISTED else groups.items()
    said = join_applying(
        (True, waiting(point, cost) or "Nobody waits long for anybody."),
        (
            len(groups) > MOST_WAITS_LISTED,
            f"The longest {MOST_WAITS_LISTED} are listed; result.json holds all of them.",
        ),
        (together, f"Before {together} of {len(cost.waits)} collectives nobody waits."),
    )
    table = tabulate(
        ((name, waits, *_last_to_come(waits)) for name, waits in shown),
        (
            ("Collective", lambda row: row[0]),
            (">Calls", lambda row: f"{len(row[1]):,}"),
            ("Last to come", lambda row: row[2]),
            (">How often", lambda row: quantities.percent(row[3])),
            (">Others wait, all calls", lambda row: quantities.duration(_waited_s(row[1]))),
            (
                ">First waits at most",
                lambda row: quantities.duration(max(wait.longest_s for wait in row[1])),
            ),
        ),
    )
    return [*paragraphs([said], "lead"), *([table] if table.rows else [])]


def group_waits(waits: Sequence[Wait]) -> dict[str, list[Wait]]:
    """Join waits that differ in the micro-batch alone, and if many are left, in any number."""
    named = [(_MICRO_BATCH.sub("", wait.collective), wait) for wait in waits]
    groups = grouped(named)
    if len(groups) > MOST_WAITS_LISTED:
        groups = grouped((_NUMBER.sub("...", name), wait) for name, wait in named)
    return {name if len(own) > 1 else own[0].collective: own for name, own in groups.items()}


def _waited_s(waits: Sequence[Wait]) -> float:
    return sum(wait.waited_s for wait in waits)


def _last_to_come(waits: Sequence[Wait]) -> tuple[str, float]:
    """Who the others wait for longest in alike collectives, and in which share of steps."""
    by_last = grouped((wait.last, wait) for wait in waits)
    last = max(by_last, key=lambda last: _waited_s(by_last[last]))
    return last, sum(wait.share for wait in by_last[last]) / len(waits)


def draw_steps(cost: DisturbanceCost) -> Drawing:
    """Draw the duration of each counted step, beside that of an undisturbed one."""
    unit, scale = time_unit(max(cost.steps_s))
    numbers = list(range(len(cost.steps_s)))
    return new_figure(
        260,
        [
            bars(
                "step",
                numbers,
                [step_s / scale for step_s in cost.steps_s],
                WORK["backward"],
                [
                    f"<b>step {at}</b><br>{quantities.duration(step_s)}"
                    for at, step_s in enumerate(cost.steps_s)
                ],
            ),
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
