"""Plans whose collectives have their links for themselves are not simulated, and end as if."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfmodel.errors import SimulationError
from perfmodel.library.machine import Machine
from perfmodel.simulate.engine import engine
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.engine.outcome import Run
from perfmodel.simulate.flow.approximation import NOTES
from perfmodel.topology.own_graph import topology_of
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Compute,
    RankClass,
    StepPlan,
    Stream,
    Task,
)
from tests.conftest import PLAIN_GPU
from tests.simulate.random_machines import random_library, random_machine
from tests.simulate.reference.test_plan_processes import (
    COMMUNICATORS,
    RANKS,
    assert_same,
    random_plan,
)

STREAMS = (Stream("compute", "compute"), Stream("comm", "comm"), Stream("second comm", "comm"))
BYTES = 4 * 2520 * 100


def simulated(plan: StepPlan, machine: Machine, steps: int = 1, slowdown: float = 1.0) -> Run:
    """Step through everything, event by event."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "can_be_retimed", lambda _: False)
        return simulate(plan, machine, steps=steps, overlap_slowdown=slowdown)


def is_stepped_through(plan: StepPlan, machine: Machine) -> bool:
    """Whether a run steps through a plan's events."""
    begun, make = list[StepPlan](), engine.PlanRun

    def begin(*given: Any, **more: Any) -> engine.PlanRun:
        begun.append(plan)
        return make(*given, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "PlanRun", begin)
        simulate(plan, machine)
    return bool(begun)


def crowded_plan(seed: int, tasks: int, classes: int) -> StepPlan:
    """Collectives of all ranks and of halves, on two streams."""
    plan, rng = random_plan(seed, tasks, classes, simple=True), np.random.default_rng(seed)
    others = {each.name: rng.random(2) < 0.5 for each in plan.tasks}
    moved = [
        replace(
            task,
            stream="second comm" if others[task.name][0] else "comm",
            work=replace(task.work, communicator="halves" if others[task.name][1] else "all"),
        )
        if isinstance(task.work, Collective)
        else task
        for task in plan.tasks
    ]
    return replace(plan, streams=(*plan.streams, STREAMS[2]), tasks=tuple(moved))


@given(
    st.tuples(st.integers(0, 10**6), st.integers(1, 14), st.integers(1, 2)),
    st.booleans(),
    st.integers(1, 3),
    st.sampled_from([1.0, 1.4]),
)
@example((4, 6, 1), False, 1, 1.0)  # edges of a collective that share links with each other
@example((2, 10, 2), True, 3, 1.4)  # classes that wait for each other in three steps
def test_it_is_what_a_simulation_gives(
    drawn: tuple[int, int, int], mesh: bool, steps: int, slowdown: float
) -> None:
    """On any graph, with collectives at the same time."""
    plan, machine = crowded_plan(*drawn), random_machine(drawn[0], RANKS, mesh=mesh)
    found = simulate(plan, machine, steps=steps, overlap_slowdown=slowdown)
    expected = simulated(plan, machine, steps, slowdown)
    assert_same(found, expected)
    assert {*expected.notes} - {*found.notes} <= {NOTES["met"]}
    assert {*found.notes} <= {*expected.notes}
    ours, theirs = (sorted(run.arrivals) for run in (found, expected))
    for own, its in zip(ours, theirs, strict=True):
        assert (own.step, own.name) == (its.step, its.name)
        waits = own.start_s, own.waited_s, own.longest_s
        assert waits == pytest.approx((its.start_s, its.waited_s, its.longest_s), abs=1e-12)


def two_collectives(*, groups: tuple[str, str], after: tuple[int, ...] = ()) -> StepPlan:
    tasks = [
        Task(stream, "communication", "a", stream, Collective("all_reduce", BYTES, group, stream))
        for stream, group in zip(("comm", "second comm"), groups, strict=True)
    ]
    halves = (Communicator("first", (range(3),)), Communicator("second", (range(3, 6),)))
    classes = (RankClass("a", range(RANKS)),)
    last = replace(tasks[1], after=after)
    return StepPlan("two", classes, STREAMS, (*COMMUNICATORS, *halves), (tasks[0], last), 1)


@pytest.mark.parametrize(
    ("groups", "after", "stepped"),
    [
        (("all", "all"), (), True),
        (("all", "all"), (0,), False),
        (("first", "second"), (), False),
        (("all", "second"), (), True),
    ],
)
def test_only_what_meets_is_stepped_through(
    groups: tuple[str, str], after: tuple[int, ...], stepped: bool
) -> None:
    plan = two_collectives(groups=groups, after=after)
    assert is_stepped_through(plan, random_machine(5, RANKS, mesh=True)) is stepped


def trunk(spine_GBps: float, side: int = 2) -> Machine:
    """So many GPUs at 1 GB/s on either side of one link between two switches."""
    graph, rate = nx.Graph(name="trunk"), {"kind": "nvlink", "latency": 0.0}
    graph.add_nodes_from((f"gpu{n}" for n in range(2 * side)), kind="gpu", model="a100-sxm4-80gb")
    graph.add_nodes_from(("left", "right"), kind="switch")
    graph.add_edges_from(
        ((f"gpu{n}", "left" if n < side else "right") for n in range(2 * side)),
        bandwidth=1e9,
        **rate,
    )
    graph.add_edge("left", "right", bandwidth=spine_GBps * 1e9, **rate)
    return Machine(replace(topology_of(graph), gpu=PLAIN_GPU), random_library())


def at_once(op: Any, *groups: tuple[tuple[int, ...], ...]) -> StepPlan:
    """Collectives of some groups each, on streams of their own."""
    names = [f"groups {number}" for number in range(len(groups))]
    tasks = tuple(
        Task(name, "communication", "a", stream, Collective(op, BYTES, name, name))
        for stream, name in zip(("comm", "second comm"), names, strict=False)
    )
    ranks = tuple(sorted(rank for own in groups for group in own for rank in group))
    groups_of = tuple(map(Communicator, names, groups))
    return StepPlan("at once", (RankClass("a", ranks),), STREAMS, groups_of, tasks, 1)


@pytest.mark.parametrize("spine_GBps", [1.9, 2.0])
def test_a_link_that_is_wide_enough_for_both_slows_neither(spine_GBps: float) -> None:
    plan, machine = at_once("send", ((0, 2),), ((1, 3),)), trunk(spine_GBps)
    assert is_stepped_through(plan, machine) is (spine_GBps < 2)
    assert_same(simulate(plan, machine), simulated(plan, machine))


def test_groups_that_share_a_link_take_what_they_take_together() -> None:
    """Two messages of one call, over a link that has 1.25 GB/s."""
    plan, machine = at_once("send", ((0, 2), (1, 3))), trunk(1.25)
    assert not is_stepped_through(plan, machine)
    run = simulate(plan, machine, steps=2)
    assert run.step_time_s > BYTES / 0.625e9
    assert_same(run, simulated(plan, machine, 2))


@pytest.mark.parametrize("spine_GBps", [2.5, 3.0])
def test_all_groups_of_a_collective_load_a_link(spine_GBps: float) -> None:
    """Of unlike sizes, so that each is a part by itself; a third comes from another collective."""
    plan = at_once("all_reduce", ((0, 4), (1, 2, 5)), ((3, 6, 7),))
    machine = trunk(spine_GBps, side=4)
    assert is_stepped_through(plan, machine) is (spine_GBps < 3)
    assert_same(simulate(plan, machine), simulated(plan, machine))


def test_a_plan_that_cannot_finish_says_who_waits() -> None:
    """Two pieces of work that wait for each other."""
    tasks = (
        Task("one", "forward", "a", "compute", Compute(1e-3), (1,)),
        Task("other", "copy", "a", "copy", Compute(1e-3), (0,)),
    )
    streams = (STREAMS[0], Stream("copy", "copy"))
    plan = StepPlan("knot", (RankClass("a", range(RANKS)),), streams, COMMUNICATORS, tasks, 1)
    with pytest.raises(SimulationError, match="'knot' cannot finish"):
        simulate(plan, random_machine(5, RANKS, mesh=True))
