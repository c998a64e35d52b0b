"""The engine and the rank vectors against the reference, on random plans; streams by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from perfmodel.errors import SimulationError
from perfmodel.simulate.engine.background import BackgroundJob, Change, Traffic
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.engine.jitter import Jitter, Variation
from perfmodel.simulate.engine.outcome import Run
from perfmodel.simulate.engine.rank_vectors import simulate_ranks, why_unsuited
from perfmodel.testing.check_plan import check_plan
from perfmodel.topology.faults import degrade_links
from perfmodel.training.plan.split_class import one_class_per_rank
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Compute,
    RankClass,
    StepPlan,
    Stream,
    Task,
)
from tests.simulate.random_machines import random_machine

SAME = 1e-9
STREAMS = (
    Stream("host", "host"),
    Stream("compute", "compute"),
    Stream("copy", "copy", workers=2),
    Stream("comm", "comm"),
    Stream("other comm", "comm", workers=2),
)
RANKS = 6
HALVES = (range(3), range(3, 6))
COMMUNICATORS = (Communicator("all", (range(RANKS),)), Communicator("halves", HALVES))


EVEN = 4 * 2520
"""Bytes that 3 or 6 ranks, and channels of theirs, cut into equal chunks."""


def random_plan(seed: int, tasks: int, classes: int, *, simple: bool = False) -> StepPlan:
    """Work, copies and collectives on streams of one class or two, with waits of all kinds.

    `simple`: without semaphores, streams of several workers, and collectives at the same time.
    """
    rng = np.random.default_rng(seed)
    names, ranks = (("a",), HALVES[:1]) if classes == 1 else (("a", "b"), (range(4), range(4, 6)))
    ranks = (range(RANKS),) if classes == 1 else ranks
    streams = [each for each in STREAMS if each.workers == 1 or not simple]
    plan: list[Task] = []
    for number in range(tasks):
        stream = str(rng.choice([each.name for each in streams]))
        communicates, first = stream.endswith("comm"), len(plan)
        held = "held" if stream == "copy" and rng.random() < 0.5 else None  # who of two, is no law
        work: Collective | Compute = Compute(float(rng.choice([0.0, *rng.uniform(1e-5, 2e-3, 3)])))
        if communicates:
            group = "all" if simple else str(rng.choice(["all", "halves"]))
            op: Any = str(rng.choice(["all_reduce", "reduce_scatter", "all_gather", "send_recv"]))
            work = Collective(op, EVEN * int(rng.integers(1, 400)), group, f"c{number}")
        for name in names if communicates else [str(rng.choice(names))]:
            after = {int(rng.integers(first)) for _ in range(rng.integers(3)) if first}
            later = {int(rng.integers(tasks)) for _ in range(rng.integers(2))}
            task = Task(f"t{number}", "forward", name, stream, work, (*after,), (*later,))
            plan.append(replace(task, acquires=held, releases=held))
    count = len(plan)
    plan = [
        replace(task, after_previous=tuple(at % count for at in task.after_previous))
        for task in plan
    ]
    rank_classes = tuple(RankClass(*each) for each in zip(names, ranks, strict=True))
    semaphores = () if simple else (("held", 1),)
    return StepPlan("random", rank_classes, STREAMS, COMMUNICATORS, tuple(plan), 1, semaphores)


def times(run: Run) -> dict[tuple[str, str, int], tuple[float, ...]]:
    """Start, end and readiness of each task."""
    return {(task.name, task.rank_class, step): numbers for task, step, *numbers in run.executions}


def assert_same(found: Run, expected: Run) -> None:
    ours, theirs = times(found), times(expected)
    assert ours.keys() == theirs.keys()
    for key, numbers in theirs.items():
        assert ours[key] == pytest.approx(numbers, rel=SAME, abs=1e-12), key
    assert found.step_ends_s == pytest.approx(expected.step_ends_s, rel=SAME)
    for kind in ("wire_bytes", "payload_bytes"):
        counted = getattr(expected.counted, kind)
        assert getattr(found.counted, kind) == pytest.approx(counted, rel=SAME)


PLANS = {
    "seed": st.integers(0, 10**6),
    "tasks": st.integers(1, 14),
    "classes": st.integers(1, 2),
}


@pytest.mark.slow
@given(st.fixed_dictionaries(PLANS), st.integers(1, 3), st.sampled_from([1.0, 1.4]))
def test_the_engine_is_the_reference_send_by_send(
    drawn: dict[str, int], steps: int, slowdown: float
) -> None:
    """On any graph, with collectives that share links, semaphores and streams of two workers."""
    plan = random_plan(**drawn)
    check_plan(plan)
    machine = random_machine(drawn["seed"], RANKS)
    expected, found = (
        simulate(plan, machine, steps=steps, overlap_slowdown=slowdown, fidelity=fidelity)
        for fidelity in ("reference", "message")
    )
    assert_same(found, expected)
    assert len(found.arrivals) == len(expected.arrivals)


@pytest.mark.slow
@given(st.fixed_dictionaries(PLANS), st.integers(1, 3), st.sampled_from([1.0, 1.4]))
@example({"seed": 6815, "tasks": 2, "classes": 2}, 2, 1.0)  # nothing but hosts that wait for nobody
def test_flow_is_the_reference_with_a_collective_at_a_time_and_links_of_their_own(
    drawn: dict[str, int], steps: int, slowdown: float
) -> None:
    plan = random_plan(**drawn, simple=True)
    machine = random_machine(drawn["seed"], RANKS, mesh=True)
    expected, found = (
        simulate(plan, machine, steps=steps, overlap_slowdown=slowdown, fidelity=fidelity)
        for fidelity in ("reference", "flow")
    )
    assert_same(found, expected)


@pytest.mark.slow
@given(
    st.fixed_dictionaries(PLANS),
    st.sampled_from(["step", "layer"]),
    st.floats(0.01, 0.9),
    st.sampled_from([1.0, 1.4]),
)
def test_a_vector_of_ranks_is_a_process_of_the_reference_for_each(
    drawn: dict[str, int], per: Any, cv: float, slowdown: float
) -> None:
    plan = random_plan(**drawn, simple=True)
    assume(why_unsuited(plan) is None)
    machine = random_machine(drawn["seed"], RANKS)
    jitters, single = [Jitter("lognormal", cv, per, drawn["seed"])], one_class_per_rank(plan)
    how: Any = {"steps": 2, "overlap_slowdown": slowdown}
    found = simulate_ranks(
        plan, machine, fidelity="message", stretch=Variation(plan, jitters, ()), **how
    )
    expected = simulate(
        single, machine, fidelity="reference", stretch=Variation(single, jitters, ()), **how
    )
    assert found.step_ends_s == pytest.approx(expected.step_ends_s, rel=SAME)


def two_buckets() -> StepPlan:
    """A backward pass in two pieces, and a bucket that is ready after each."""
    buckets = [Collective("all_reduce", nbytes, "all", str(nbytes)) for nbytes in (10**6, 10**4)]
    tasks = (
        Task("last layers", "backward", "a", "compute", Compute(1e-3)),
        Task("first layers", "backward", "a", "compute", Compute(1e-3)),
        Task("second bucket", "communication", "a", "comm", buckets[0], (1,)),
        Task("first bucket", "communication", "a", "comm", buckets[1], (0,)),
    )
    return StepPlan("two", (RankClass("a", range(RANKS)),), STREAMS, COMMUNICATORS, tasks, 1)


def test_a_bucket_that_is_ready_waits_for_those_before_it() -> None:
    run = simulate(two_buckets(), random_machine(1, RANKS), fidelity="reference")
    second, first = (times(run)[name, "a", 0] for name in ("second bucket", "first bucket"))
    assert first[2] == 1e-3  # ready
    assert second[0] == 2e-3
    assert first[0] == second[1]


@pytest.mark.slow
@given(st.integers(0, 10**6), st.floats(1e-5, 2e-3), st.floats(0.05, 3.0))
def test_links_that_change_and_other_traffic(seed: int, at_s: float, by: float) -> None:
    plan, machine = random_plan(seed, 10, 1), random_machine(seed, RANKS)
    rates = machine.topology.arcs.bandwidth_Bps
    slower = degrade_links(machine.topology, {arc: by * rates[arc] for arc in (0, 3)})
    changes = (Change(at_s, replace(machine, topology=slower), "two links"),)
    traffic = (
        Traffic("n0/gpu0", "n0/gpu1", rate_Bps=2e9),
        Traffic("n0/gpu2", "n0/gpu3", nbytes=1e6, every_s=4e-4, start_s=at_s),
    )
    expected, found = (
        simulate(plan, machine, fidelity=fidelity, changes=changes, traffic=traffic)
        for fidelity in ("reference", "message")
    )
    assert times(found).keys() == times(expected).keys()
    for key, numbers in times(expected).items():
        assert times(found)[key] == pytest.approx(numbers, rel=SAME, abs=1e-12)


def test_what_it_does_not_simulate_is_refused_by_name() -> None:
    plan, machine = two_buckets(), random_machine(1, RANKS)
    with pytest.raises(SimulationError, match="'reference' with other jobs"):
        simulate(plan, machine, fidelity="reference", background_jobs=[BackgroundJob(plan)])
    with pytest.raises(SimulationError, match="ranks of class 'a' differ"):
        simulate(plan, machine, fidelity="reference", stretch=lambda *_: np.arange(1.0, RANKS + 1))
    cores = replace(machine.topology, sockets=replace(machine.topology.sockets, cores=2))
    crowded = replace(random_machine(1, RANKS, in_order=True), topology=cores)
    with pytest.raises(SimulationError, match="ranks that share cores"):
        simulate(plan, crowded, fidelity="reference")


def test_tasks_that_wait_for_ever_are_named() -> None:
    plan = two_buckets()
    first = replace(plan.tasks[0], acquires="held")
    stuck = replace(plan, tasks=(first, *plan.tasks[1:]), semaphores=(("held", 1),))
    with pytest.raises(
        SimulationError, match=r"'two' cannot finish; waiting: last layers \(step 1"
    ):
        simulate(stuck, random_machine(1, RANKS), steps=2, fidelity="reference")
