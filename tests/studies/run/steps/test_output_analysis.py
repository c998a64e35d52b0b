"""Numbers of steps to count, against the confidence interval of a mean.

A mean of n independent samples with standard deviation s has an interval of half width
z s / sqrt(n) (Law, Simulation Modeling and Analysis, 5th ed. 2015, eq. 4.12 and section 9.4).
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from scipy import stats

from perfmodel.errors import InputError
from perfmodel.simulate.engine.background import BackgroundJob, Traffic
from perfmodel.simulate.engine.jitter import Jitter
from perfmodel.studies.run.resolve.disturbance import Disturbance, LinkFault
from perfmodel.studies.run.steps.output_analysis import (
    MEAN_WITHIN,
    busiest_stream_s,
    count_needed_steps,
    jitter_steps,
    mean_interval_s,
)
from perfmodel.training.plan.step_plan import Compute, RankClass, StepPlan, Stream, Task


def plan_of(ranks: int, tasks: int = 1) -> StepPlan:
    task = Task("forward", "forward", "all", "compute", Compute(1.0))
    classes = (RankClass("all", range(ranks)),)
    return StepPlan("plan", classes, (Stream("compute", "compute"),), (), (task,) * tasks, 1)


def half_width(cv: float, steps: int) -> float:
    """Of the 80 % interval of a mean step, as a share of the step."""
    return NormalDist().inv_cdf(0.9) * cv / math.sqrt(steps)


@pytest.mark.parametrize("cv", [0.025, 0.03, 0.0377, 0.04, 0.05])
def test_jitter_needs_the_fewest_steps_that_meet_the_target(cv: float) -> None:
    steps = jitter_steps(cv)
    assert half_width(cv, steps) <= MEAN_WITHIN < half_width(cv, steps - 1)


def test_the_mean_of_that_many_random_steps_is_as_near_as_promised() -> None:
    """In 80 % of repetitions the mean is within the target of the true one."""
    cv = 0.04
    steps = jitter_steps(cv)
    means = np.random.default_rng(1).normal(1.0, cv, (20_000, steps)).mean(axis=1)
    assert np.mean(np.abs(means - 1.0) <= MEAN_WITHIN) == pytest.approx(0.8, abs=0.015)


def test_little_and_much_jitter_have_bounds() -> None:
    """30 samples make a mean nearly normal; 200 steps take seconds."""
    assert jitter_steps(0.001) == 30
    assert jitter_steps(0.5) == 200


def test_many_ranks_and_tasks_have_fewer_steps() -> None:
    """4e8 tasks of ranks are some seconds."""
    jitter = Disturbance("jitter", "", jitter=Jitter("normal", 0.05, "step", 0))
    assert count_needed_steps([jitter], 1.0, plan_of(100_000, 100)) == 40
    assert count_needed_steps([jitter], 1.0, plan_of(100_000, 1000)) == 5


@pytest.mark.parametrize(("jobs", "steps"), [(1, 106), (2, 62), (4, 31), (80, 5)])
def test_jitter_beside_jobs_of_many_tasks_has_fewer_steps(jobs: int, steps: int) -> None:
    """Each does ten steps of 50 tasks meanwhile, on 272 ranks; 2.5e7 are some seconds."""
    task = Task("forward", "forward", "all", "compute", Compute(0.002))
    job = BackgroundJob(replace(plan_of(272), tasks=(task,) * 50))
    jitter = Disturbance("jitter", "", jitter=Jitter("normal", 0.04, "step", 0))
    beside = [Disturbance("job", "", background_job=job)] * jobs
    assert count_needed_steps([jitter, *beside], 1.0, plan_of(2)) == steps


@pytest.mark.parametrize(
    ("disturbance", "steps"),
    [
        (Disturbance("always slower", "", (0,), 2.0), 1),
        (Disturbance("slow steps", "", (0,), 2.0, steps=frozenset({1, 4})), 4 + 1 + 3),
        (Disturbance("jitter", "", jitter=Jitter("normal", 0.04, "step", 0)), 106),
        (Disturbance("fault", "", faults=(LinkFault(2.0, 6.5),)), 7 + 3),
        (Disturbance("bursts", "", traffic=(Traffic("a", "b", None, 1.0, 2.0, 1.0),)), 7),
        (Disturbance("burst", "", traffic=(Traffic("a", "b", None, 1.0, None, 0.0),)), 20),
        (Disturbance("stream", "", traffic=(Traffic("a", "b", 1.0),)), 1),
        (Disturbance("job", "", background_job=BackgroundJob(plan_of(1), 2.5)), 3 + 20),
    ],
    ids=lambda case: case.description if isinstance(case, Disturbance) else "",
)
def test_each_kind_of_disturbance_needs_its_steps(disturbance: Disturbance, steps: int) -> None:
    """Of 1 s: until the last moment and 3 more, 3 bursts, or 20 beside another job."""
    assert count_needed_steps([disturbance], 1.0, plan_of(2)) == steps
    slow = Disturbance("always slower", "", (0,), 2.0)
    assert count_needed_steps([slow, disturbance], 1.0, plan_of(2)) == steps


@pytest.mark.parametrize(("other_s", "steps"), [(1.0, 20), (0.5, 20), (0.3, 12), (0.1, 5)])
def test_far_shorter_steps_of_another_job_need_fewer(other_s: float, steps: int) -> None:
    """It does 40 of its steps meanwhile, or this job does 20, and 5 at least."""
    task = Task("forward", "forward", "all", "compute", Compute(other_s))
    job = BackgroundJob(replace(plan_of(1), tasks=(task,)))
    assert count_needed_steps([Disturbance("job", "", background_job=job)], 1.0, None) == steps


def test_events_that_come_too_late_are_refused() -> None:
    last, late = (Disturbance("a fault", "events.0", faults=(LinkFault(at),)) for at in (297, 298))
    assert count_needed_steps([last], 1.0, plan_of(2)) == 300
    with pytest.raises(InputError, match=r"events\.0: found a fault: 301 steps"):
        count_needed_steps([late], 1.0, plan_of(2))


def test_the_interval_of_a_mean_is_students() -> None:
    steps_s = np.random.default_rng(2).normal(1.0, 0.1, 30).tolist()
    error = statistics.stdev(steps_s) / math.sqrt(30)
    exact = stats.t.interval(0.8, 29, loc=statistics.fmean(steps_s), scale=error)
    assert mean_interval_s(steps_s) == pytest.approx(exact, abs=0.002 * error)


def test_a_job_that_computes_nothing_has_a_shortest_step() -> None:
    assert 0 < busiest_stream_s(plan_of(1, 0)) < 1e-6


def test_another_job_with_far_shorter_steps_is_refused() -> None:
    """Its 3 tasks of a second follow each other, so that no step of it is below 3 s."""
    job = BackgroundJob(plan_of(1, 3))
    allowed = Disturbance("job b on 2 nodes", "jobs.0", background_job=job)
    assert count_needed_steps([allowed], 600.0, plan_of(2)) == 5
    with pytest.raises(InputError, match=r"jobs\.0: .*b on 2 nodes: up to 201 of its"):
        count_needed_steps([allowed], 603.0, plan_of(2))
