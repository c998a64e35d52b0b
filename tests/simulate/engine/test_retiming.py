"""A run timed again is what simulating it with the other durations gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.library.machine import Machine
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.engine.retiming import Durations, RunOrder, can_be_retimed, works_s
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.training.plan.step_plan import (
    Collective,
    Compute,
    RankClass,
    StepPlan,
    Stream,
    Task,
)
from tests.simulate.random_machines import random_machine
from tests.simulate.reference.test_plan_processes import COMMUNICATORS, PLANS, RANKS, random_plan

SAME = 1e-9


def with_works(plan: StepPlan, works: np.ndarray) -> StepPlan:
    tasks = [
        replace(task, work=Compute(float(work_s))) if isinstance(task.work, Compute) else task
        for task, work_s in zip(plan.tasks, works, strict=True)
    ]
    return replace(plan, tasks=tuple(tasks))


def alone_s(plan: StepPlan, machine: Machine) -> np.ndarray:
    timer, group = UncontendedTimer(machine), range(RANKS)
    works = [task.work for task in plan.tasks]
    return np.array(
        [
            timer.times_s(work.op, work.nbytes, (group,))[0] if isinstance(work, Collective) else 0
            for work in works
        ]
    )


@given(st.fixed_dictionaries(PLANS), st.integers(1, 3), st.sampled_from([1.0, 1.4]))
def test_other_works_links_and_slowdowns_at_once(
    drawn: dict[str, int], steps: int, slowdown: float
) -> None:
    plan, rng = random_plan(**drawn, simple=True), np.random.default_rng(drawn["seed"])
    machine = random_machine(drawn["seed"], RANKS, mesh=True)
    other = random_machine(drawn["seed"] + 1, RANKS, mesh=True)
    run = simulate(plan, machine, steps=steps, overlap_slowdown=slowdown)
    assert can_be_retimed(plan)

    took_s, there_s, own = alone_s(plan, machine), alone_s(plan, other), works_s(plan)
    ones = np.ones(len(own))
    factors = np.divide(there_s, took_s, out=ones.copy(), where=took_s > 0)
    longer = own * rng.uniform(0.2, 3.0, len(own))
    changes = [
        Durations(own, ones, slowdown),
        Durations(longer, ones, slowdown),
        Durations(own, ones, 1.9),
        Durations(longer, factors, 1.2),
    ]
    expected = [
        simulate(with_works(plan, each.work_s), on, steps=steps, overlap_slowdown=each.slowdown)
        for each, on in zip(changes, (machine, machine, machine, other), strict=True)
    ]
    order = RunOrder(plan, run)
    for change, simulated in zip(changes, expected, strict=True):
        found_s = order.retime(change).step_ends_s
        assert found_s == pytest.approx(simulated.step_ends_s, rel=SAME)


@pytest.mark.parametrize("seed", range(12))
def test_compiled_loops_give_the_same_bits(seed: int) -> None:
    pytest.importorskip("numba")
    from tests.collectives.timing.test_compiled_loops import both

    plan = random_plan(seed, 12, 1 + seed % 2, simple=True)
    run = simulate(plan, random_machine(seed, RANKS, mesh=True), overlap_slowdown=1.4)
    works = works_s(plan)
    change = Durations(works * 0.3, np.ones(len(works)), 1.4)
    plain, compiled = both(lambda: RunOrder(plan, run).retime(change))
    assert np.array_equal(plain.step_ends_s, compiled.step_ends_s)
    assert [*plain.together()] == [*compiled.together()]


def test_collectives_that_would_meet_are_named() -> None:
    """Of two streams, with work between them that keeps them apart until it gets shorter."""
    calls = [Collective("all_reduce", nbytes, "all", str(nbytes)) for nbytes in (10**6, 10**5)]
    tasks = (
        Task("first", "communication", "a", "comm", calls[0]),
        Task("work", "forward", "a", "compute", Compute(1.0)),
        Task("second", "communication", "a", "other", calls[1], (1,)),
    )
    streams = (Stream("compute", "compute"), Stream("comm", "comm"), Stream("other", "comm"))
    classes = (RankClass("a", range(RANKS)),)
    plan = StepPlan("two streams", classes, streams, COMMUNICATORS, tasks, 1)
    run = simulate(plan, random_machine(3, RANKS, mesh=True))
    works, ones = works_s(plan), np.ones(3)
    apart, near = (
        RunOrder(plan, run).retime(Durations(works * by, ones, 1.0)) for by in (1.0, 0.0)
    )
    assert not [*apart.together()]
    (pair,) = near.together()
    assert {nbytes for _, nbytes, *_ in pair} == {call.nbytes for call in calls}


def test_work_is_slowed_by_what_came_behind_it_in_the_run() -> None:
    """With a quicker host the collective begins within work that ended before it in the run."""
    tasks = (
        Task("work", "forward", "a", "compute", Compute(1.0)),
        Task("issue", "launch", "a", "host", Compute(2.0)),
        Task(
            "reduce",
            "communication",
            "a",
            "comm",
            Collective("all_reduce", 1e6, "all", "reduce"),
            (1,),
        ),
    )
    streams = (Stream("compute", "compute"), Stream("host", "host"), Stream("comm", "comm"))
    classes = (RankClass("a", range(RANKS)),)
    plan = StepPlan("late collective", classes, streams, COMMUNICATORS, tasks, 1)
    machine, works = random_machine(3, RANKS, mesh=True), works_s(plan)
    run = simulate(plan, machine, overlap_slowdown=1.4)
    quicker = works * (1.0, 0.25, 1.0)
    collective_s, late_s = run.step_ends_s[0] - 2.0, quicker[1]
    changes = [Durations(quicker, np.ones(3), by) for by in (1.4, 1.0)]
    ends_s = [float(RunOrder(plan, run).retime(each).step_ends_s[0]) for each in changes]
    slowed_s = min(collective_s * (1 - 1 / 1.4), (1.0 - late_s) * 0.4)
    assert slowed_s > 0
    assert ends_s == pytest.approx(
        [max(by, late_s + collective_s) for by in (1.0 + slowed_s, 1.0)], rel=SAME
    )
    simulated = simulate(with_works(plan, quicker), machine, overlap_slowdown=1.4)
    assert ends_s[0] == pytest.approx(simulated.step_ends_s[0], rel=SAME)


def test_two_streams_of_compute_are_not_timed_again() -> None:
    """Of work at the same time, how much a collective slows each down is left to simulations."""
    tasks = (
        Task("work", "forward", "a", "compute", Compute(1.0)),
        Task("other work", "forward", "a", "second", Compute(1.0)),
    )
    streams = (Stream("compute", "compute"), Stream("second", "compute"))
    plan = StepPlan("two", (RankClass("a", range(RANKS)),), streams, COMMUNICATORS, tasks, 1)
    assert not can_be_retimed(plan)
    assert can_be_retimed(replace(plan, tasks=tasks[:1]))


@pytest.mark.parametrize("seed", range(40))
def test_semaphores_and_several_workers_are_not_timed_again(seed: int) -> None:
    plan = random_plan(seed, 14, 1)
    waits = any(task.acquires or task.stream in {"copy", "other comm"} for task in plan.tasks)
    assert can_be_retimed(plan) is not waits
