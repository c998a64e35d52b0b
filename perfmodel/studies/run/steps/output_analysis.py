"""How many steps have to be simulated so that their mean says something, and what they say."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean, stdev

from perfmodel.errors import Fault, InputError
from perfmodel.simulate.engine.background import Meeting
from perfmodel.studies.run.resolve.events import Disturbance
from perfmodel.studies.run.result import Wait
from perfmodel.topology.model import Topology
from perfmodel.training.plan import StepPlan
from perfmodel.units import format_time

WARM_UP = 2
"""Steps before the settled state: the pipeline of host, device and network has filled."""
SETTLED = WARM_UP + 1
"""Steps simulated where all are alike from then on."""
MOST_STEPS = 300
WITH_JOBS = 20
"""Counted steps beside other jobs, whose steps begin and end at other times."""
AFTER_LAST = 3
"""Counted steps after the last thing that happens at a time of its own."""
BURSTS = 3
"""Bursts of traffic that the counted steps hold, if it repeats."""
MOST_BURSTS = 100
"""Bursts of one sender in a step; more of them cost minutes and are as good as a steady stream."""
FEWEST_RANDOM, MOST_RANDOM = 30, 200
FEWEST_AT_ALL = 5
"""Steps with jitter where ranks are so many that each step costs seconds."""
Z80 = 1.2815515655446004
"""Half of an 80 % interval of a normal distribution, in standard deviations."""
MEAN_WITHIN = 0.005
"""Share of the step within which its mean under jitter should be known."""
NO_TIME_S = 1e-12
"""Waits below this are the rounding of sums."""
RANK_TASKS = 4e8
"""Ranks times tasks times steps that a run with jitter may have: about half a minute."""


def counted_steps(active: Sequence[Disturbance], step_s: float, plan: StepPlan) -> int:
    """Steps to count, given an undisturbed step of `step_s` seconds.

    Raises
    ------
    InputError
        Something happens too late to get there step by step.
    """
    faults = [
        Fault(
            one.place,
            f"{one.what}: {needed:,} steps of {format_time(step_s)} each",
            f"what happens within {MOST_STEPS} steps, {format_time(MOST_STEPS * step_s)}"
            + (" (without 'every' one burst is counted)" if one.traffic else ""),
        )
        for one in active
        for needed in [_needed(one, step_s, plan)]
        if needed > MOST_STEPS
    ]
    faults += [
        Fault(
            f"{one.place}.traffic.every",
            f"{format_time(flow.every_s)}, {step_s / flow.every_s:,.0f} bursts a step",
            f"{format_time(step_s / MOST_BURSTS)} or more, or a steady 'rate'",
        )
        for one in active
        for flow in one.traffic[:1]
        if flow.every_s is not None and step_s / flow.every_s > MOST_BURSTS
    ]
    if faults:
        raise InputError(faults)
    return max((_needed(one, step_s, plan) for one in active), default=1)


def _needed(one: Disturbance, step_s: float, plan: StepPlan) -> int:
    needed = [1]
    if one.jitter is not None:
        wanted = math.ceil((Z80 * one.jitter.cv / MEAN_WITHIN) ** 2)
        pieces = len(plan.tasks) * sum(len(each.ranks) for each in plan.classes)
        affordable = max(FEWEST_AT_ALL, int(RANK_TASKS / pieces))
        needed.append(min(affordable, max(FEWEST_RANDOM, min(MOST_RANDOM, wanted))))
    if one.moments_s:
        needed.append(math.ceil(max(one.moments_s) / step_s) + AFTER_LAST)
    if one.steps:
        needed.append(max(one.steps) + 1 + AFTER_LAST)
    for flow in one.traffic:
        if flow.every_s is not None:
            needed.append(math.ceil((flow.start_s + BURSTS * flow.every_s) / step_s))
        elif flow.nbytes is not None:
            needed.append(math.ceil(flow.start_s / step_s) + WITH_JOBS)
    if one.beside is not None:
        needed.append(math.ceil(one.beside.start_s / step_s) + WITH_JOBS)
    return max(needed)


def mean_interval_s(steps_s: Sequence[float]) -> tuple[float, float]:
    """80 % interval of the mean of independent steps (Student's t, by its first correction)."""
    free = len(steps_s) - 1
    factor = Z80 + (Z80**3 + Z80) / (4 * free)
    half = factor * stdev(steps_s) / math.sqrt(len(steps_s))
    mean = fmean(steps_s)
    return mean - half, mean + half


def waits(
    meetings: Sequence[Meeting],
    plan: StepPlan,
    topology: Topology,
    counted: range,
    single: bool,
    usual: Collection[str] = (),
) -> tuple[Wait, ...]:
    """Who came last to each collective, over the counted steps.

    Parameters
    ----------
    single : bool
        Whether the last one is a rank of its class rather than the class.
    usual : collection of str
        Classes of the ranks that nothing is odd about.
    """
    names = {
        each.name: f"the other {len(each.ranks):,} GPUs"
        if each.name in usual and len(each.ranks) > 1
        else each.name
        for each in plan.classes
    }
    by_name: dict[str, list[Meeting]] = {}
    for meeting in meetings:
        if meeting.step in counted:
            by_name.setdefault(meeting.name, []).append(meeting)
    return tuple(_wait(name, all_, names, topology, single) for name, all_ in by_name.items())


def _wait(
    name: str,
    meetings: Sequence[Meeting],
    names: Mapping[str, str],
    topology: Topology,
    single: bool,
) -> Wait:
    lasts: dict[str, int] = {}
    for meeting in meetings:
        if meeting.longest_s > NO_TIME_S:
            last = topology.ranks[meeting.last_rank] if single else names[meeting.last]
            lasts[last] = lasts.get(last, 0) + 1
    most = max(lasts, key=lambda last: lasts[last], default="")
    return Wait(
        collective=name,
        bucket=meetings[0].bucket,
        last=most,
        share=lasts.get(most, 0) / len(meetings),
        waited_s=_unless_rounding(fmean([meeting.waited_s for meeting in meetings])),
        longest_s=_unless_rounding(max(meeting.longest_s for meeting in meetings)),
    )


def _unless_rounding(wait_s: float) -> float:
    return wait_s if wait_s > NO_TIME_S else 0.0
