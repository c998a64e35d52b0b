"""What events and other jobs cost: step times without each of them, and waits in collectives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from statistics import fmean

from perfmodel.simulate.engine.background import BackgroundJob, CollectiveArrivals
from perfmodel.simulate.engine.engine import simulate
from perfmodel.studies.run.resolve.disturbance import Disturbance
from perfmodel.studies.run.result.model import (
    BackgroundJobStep,
    DisturbanceCost,
    EventCost,
    Wait,
)
from perfmodel.studies.run.steps.output_analysis import SETTLED, WARM_UP, mean_interval_s
from perfmodel.studies.run.steps.simulate_step import simulate_steps, timer_of
from perfmodel.studies.run.steps.sized_job import ReportedRun, SizedJob
from perfmodel.training.plan.step_plan import StepPlan

ROUNDING_S = 1e-12
"""Waits below this are rounding errors of sums."""


def simulate_costs(sized: SizedJob, reported: ReportedRun) -> DisturbanceCost:
    """Simulate the job without each of its disturbances, and find who waits for whom."""
    undisturbed_s = _simulate_with(reported, ())
    costs = []
    for disturbance in sized.disturbances:
        rest = tuple(other for other in sized.disturbances if other is not disturbance)
        without_s = _simulate_with(reported, rest) if rest else undisturbed_s
        costs.append(EventCost(disturbance.description, without_s, reported.step_s - without_s))
    is_random = any(each.jitter for each in sized.disturbances)
    jobs = [each.background_job for each in sized.disturbances if each.background_job]
    return DisturbanceCost(
        steps_s=reported.steps_s,
        undisturbed_s=undisturbed_s,
        mean_interval_s=mean_interval_s(reported.steps_s) if is_random else None,
        events=tuple(costs),
        waits=_find_waits(sized, reported, by_rank=is_random),
        jobs=tuple(_simulate_other_job(sized, reported, job) for job in jobs),
    )


def _simulate_with(reported: ReportedRun, disturbances: tuple[Disturbance, ...]) -> float:
    """Mean step with some of the disturbances, over the same steps; seconds."""
    if any(each.varies for each in disturbances):
        return reported.simulate_again(disturbances)
    return simulate_steps(reported.setup, disturbances, SETTLED)[1].step_time_s


def _simulate_other_job(
    sized: SizedJob, reported: ReportedRun, job: BackgroundJob
) -> BackgroundJobStep:
    """Step time of another job while the main one's steps were counted, and alone."""
    ends = reported.run.others_step_ends_s[job.plan.name]
    from_s = reported.run.step_ends_s[WARM_UP - 1]
    times_s = [b - a for a, b in itertools.pairwise(ends) if a >= from_s]
    alone = simulate(
        job.plan,
        sized.ensemble.likely,
        steps=SETTLED,
        overlap_slowdown=job.overlap_slowdown,
        timer=timer_of(reported.setup, ()),
    )
    gpus = sum(len(each.ranks) for each in job.plan.classes)
    step_s = fmean(times_s) if times_s else alone.step_time_s
    return BackgroundJobStep(job.plan.name, gpus, step_s, alone.step_time_s)


# ---------------------------------------------------------------- waits in collectives


def _find_waits(sized: SizedJob, reported: ReportedRun, *, by_rank: bool) -> tuple[Wait, ...]:
    """Find who came last to each collective, over the counted steps.

    `by_rank`: whether the last one is named as a rank of its class rather than as the class.
    """
    ranks = sized.ensemble.likely.topology.ranks
    usual = [each.name for each in sized.plan_for(None).classes]
    class_names = _name_classes(reported.plan, usual)

    def name_last(meeting: CollectiveArrivals) -> str:
        return ranks[meeting.last_rank] if by_rank else class_names[meeting.last]

    meetings_of: dict[str, list[CollectiveArrivals]] = {}
    for meeting in reported.run.arrivals:
        if meeting.step in reported.counted_steps:
            meetings_of.setdefault(meeting.name, []).append(meeting)
    return tuple(_wait_of(name, each, name_last) for name, each in meetings_of.items())


def _name_classes(plan: StepPlan, usual: Collection[str]) -> dict[str, str]:
    """Name rank classes; undisturbed ranks of the only class (`usual`) by their number of GPUs.

    Of several, as of the stages of a pipeline, each keeps its name, or nobody knew which is meant.
    """
    return {
        each.name: f"the other {len(each.ranks):,} GPUs"
        if list(usual) == [each.name] and len(each.ranks) > 1
        else each.name
        for each in plan.classes
    }


def _wait_of(
    name: str,
    arrivals: Sequence[CollectiveArrivals],
    name_last: Callable[[CollectiveArrivals], str],
) -> Wait:
    counts: dict[str, int] = {}
    for meeting in arrivals:
        if meeting.longest_s > ROUNDING_S:
            last = name_last(meeting)
            counts[last] = counts.get(last, 0) + 1
    most_often = max(counts, key=lambda last: counts[last], default="")
    return Wait(
        collective=name,
        bucket=arrivals[0].bucket,
        last=most_often,
        share=counts.get(most_often, 0) / len(arrivals),
        waited_s=_round_to_zero(fmean([meeting.waited_s for meeting in arrivals])),
        longest_s=_round_to_zero(max(meeting.longest_s for meeting in arrivals)),
    )


def _round_to_zero(wait_s: float) -> float:
    return wait_s if wait_s > ROUNDING_S else 0.0
