"""Output analysis of simulated steps: warm-up, how many to count, confidence of their mean.

The number of steps under jitter follows from the confidence interval of a mean of independent
samples (Law, Simulation Modeling and Analysis, 5th ed. 2015, section 9.4; warm-up: section 9.5.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

from perfmodel.arrays import Z80
from perfmodel.errors import Fault, raise_faults
from perfmodel.studies.run.resolve.disturbance import Disturbance
from perfmodel.studies.run.steps.step_parts import summed
from perfmodel.training.plan.step_plan import Compute, StepPlan
from perfmodel.units import format_time

WARM_UP = 2
"""Steps before the settled state: the pipeline of host, device and network has filled."""
SETTLED_STEPS = WARM_UP + 1
"""Steps simulated where all later ones are the same: the warm-up and one that is counted."""
MANY_TASKS = 4096
"""Tasks of a plan from which on the second step counts: the host is ahead before the first ends."""
MOST_STEPS = 300
"""Counted steps at most."""
JOB_STEPS = 20
"""Counted steps beside other jobs, whose steps begin and end at other times: fewer where another
job does twice as many meanwhile."""
AFTER_LAST = 3
"""Counted steps after the last moment at which something begins or ends."""
FEWEST_BURSTS = 3
"""Bursts of repeated traffic that the counted steps contain."""
MOST_BURSTS = 100
"""Bursts of one sender in a step; more take minutes to simulate and equal a steady stream."""
MOST_OTHER_STEPS = 200
"""Steps of another job during one step of this one: with `JOB_STEPS` a run then takes seconds."""
FEWEST_RANDOM, MOST_RANDOM = 30, 200
"""Steps with jitter: enough for a nearly normal mean, and few enough to take seconds."""
FEWEST_AT_ALL = 5
"""Counted steps where each takes seconds: with jitter on many ranks, beside far shorter steps."""
MEAN_WITHIN = 0.005
"""Target for the half width of the 80 % interval of the mean step, as a share of the step."""
SHORTEST_STEP_S = 1e-9
"""Of a job that computes nothing; seconds."""
RANK_TASKS, SINGLE_RANK_TASKS = 4e8, 5e5
"""Ranks times tasks times steps that a run with jitter may have, of ranks as vectors and of ranks
with a process each: some seconds."""
OTHER_RANK_TASKS, RANKS_A_TASK = 2.5e7, 128
"""Tasks that other jobs may do meanwhile, times their ranks and 128 more, as which a task counts on
few ranks: about as long."""


def count_needed_steps(
    disturbances: Sequence[Disturbance], step_s: float, plan: StepPlan | None
) -> int:
    """Count the steps that a mean needs, given an undisturbed step of `step_s` seconds.

    `plan`: it and other jobs limit the steps with jitter; None where there is none.
    Raises `InputError`: something happens after more steps than can be simulated.
    """
    jobs = [each.background_job.plan for each in disturbances if each.background_job]
    has_jitter = any(each.jitter for each in disturbances)
    affordable = affordable_steps(plan, step_s, jobs) if plan is not None and has_jitter else 0
    faults = [
        Fault(
            each.origin,
            f"{each.description}: {needed:,} steps of {format_time(step_s)} each",
            f"what happens within {MOST_STEPS} steps, {format_time(MOST_STEPS * step_s)}"
            + (" (without 'every' one burst is counted)" if each.traffic else ""),
        )
        for each in disturbances
        for needed in [_needed_steps(each, step_s, affordable)]
        if needed > MOST_STEPS
    ]
    faults += [
        Fault(
            f"{each.origin}.traffic.every",
            f"{format_time(flow.every_s)}, {step_s / flow.every_s:,.0f} bursts a step",
            f"{format_time(step_s / MOST_BURSTS)} or more, or a steady 'rate'",
        )
        for each in disturbances
        for flow in each.traffic[:1]
        if flow.every_s is not None and step_s / flow.every_s > MOST_BURSTS
    ]
    faults += [
        Fault(
            each.origin,
            f"{each.description}: up to {step_s / other_s:,.0f} of its steps while this job does "
            f"one, which takes {format_time(step_s)}",
            f"at most {MOST_OTHER_STEPS}: a larger batch there, or a smaller one here",
        )
        for each in disturbances
        if each.background_job is not None
        for other_s in [busiest_stream_s(each.background_job.plan)]
        if step_s > MOST_OTHER_STEPS * other_s
    ]
    raise_faults(faults)
    return max((_needed_steps(each, step_s, affordable) for each in disturbances), default=1)


def busiest_stream_s(plan: StepPlan) -> float:
    """Time that the stream with most to compute takes: no step is shorter."""
    sums = summed(
        ((task.rank_class, task.stream), task.work.duration_s)
        for task in plan.tasks
        if isinstance(task.work, Compute)
    )
    workers = {stream.name: stream.workers for stream in plan.streams}
    return max([SHORTEST_STEP_S, *(total / workers[name] for (_, name), total in sums.items())])


def _needed_steps(disturbance: Disturbance, step_s: float, affordable: int) -> int:
    """Count the steps that one disturbance needs: beside a process those that are stated."""
    jitter, job, steps = disturbance.jitter, disturbance.background_job, disturbance.steps
    last_s = max(disturbance.moments_s, default=None)
    return max(
        disturbance.counted,
        0 if jitter is None else min(affordable, jitter_steps(jitter.cv)),
        0 if last_s is None else math.ceil(last_s / step_s) + AFTER_LAST,
        max(steps) + 1 + AFTER_LAST if steps else 0,
        0
        if job is None
        else math.ceil(job.start_s / step_s)
        + max(
            FEWEST_AT_ALL, math.ceil(JOB_STEPS * min(1.0, 2 * busiest_stream_s(job.plan) / step_s))
        ),
        *(
            math.ceil((flow.start_s + FEWEST_BURSTS * flow.every_s) / step_s)
            if flow.every_s is not None
            else math.ceil(flow.start_s / step_s) + JOB_STEPS
            for flow in disturbance.traffic
            if flow.every_s is not None or flow.nbytes is not None
        ),
    )


def jitter_steps(cv: float) -> int:
    """Count the steps after which the mean step under jitter is known within `MEAN_WITHIN`.

    The mean of n independent steps has a relative half width of Z80 cv / sqrt(n), if a step
    varies like the work that jitter applies to, which it does at most.

    `cv`: coefficient of variation of the jitter.
    """
    return max(FEWEST_RANDOM, min(MOST_RANDOM, math.ceil((Z80 * cv / MEAN_WITHIN) ** 2)))


def affordable_steps(plan: StepPlan, step_s: float, jobs: Iterable[StepPlan]) -> int:
    """Count the steps with jitter that are simulated in seconds.

    `plan`: steps of `step_s` seconds.
    `jobs`: other jobs, which do steps of their own meanwhile.
    """
    from perfmodel.simulate.engine.rank_vectors import why_unsuited

    def rank_tasks(job: StepPlan, least: int) -> int:
        return len(job.tasks) * (least + sum(len(each.ranks) for each in job.classes))

    most = RANK_TASKS if why_unsuited(plan) is None else SINGLE_RANK_TASKS
    others = (rank_tasks(job, RANKS_A_TASK) * step_s / busiest_stream_s(job) for job in jobs)
    return max(
        FEWEST_AT_ALL,
        int(1 / max(rank_tasks(plan, 0) / most, sum(others) / OTHER_RANK_TASKS)),
    )


def mean_interval_s(steps_s: Sequence[float]) -> tuple[float, float]:
    """80 % interval of the mean of independent steps (Student's t, by its first correction)."""
    factor = Z80 + (Z80**3 + Z80) / (4 * (len(steps_s) - 1))
    half = factor * stdev(steps_s) / math.sqrt(len(steps_s))
    mean = fmean(steps_s)
    return mean - half, mean + half
