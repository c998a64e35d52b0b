"""The engine: streams are queues, dependencies hold, steps link up, deadlocks have names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfmodel.errors import SimulationError
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.engine.outcome import Run
from perfmodel.topology.model import Topology
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Compute,
    RankClass,
    StepPlan,
    Stream,
    Task,
)

Maker = Callable[..., Topology]
STREAMS = (Stream("compute", "compute"), Stream("comm", "comm"), Stream("host", "host"))


def work(
    name: str,
    seconds: float,
    *,
    after: tuple[int, ...] = (),
    before: tuple[int, ...] = (),
    where: tuple[str, str] = ("all", "compute"),
    acquires: str | None = None,
    releases: str | None = None,
) -> Task:
    return Task(
        name,
        "forward",
        *where,
        Compute(seconds),
        after,
        before,
        acquires=acquires,
        releases=releases,
    )


def reduce_(name: str, *, after: tuple[int, ...] = (), where: str = "all") -> Task:
    """All-reduce of 4 MB over 4 GPUs at 1 GB/s: 6 ms."""
    return Task(
        name, "communication", where, "comm", Collective("all_reduce", 4_000_000, "dp", name), after
    )


def plan(*tasks: Task, streams: tuple[Stream, ...] = STREAMS, **extra: object) -> StepPlan:
    classes = extra.pop("classes", (RankClass("all", range(4)),))
    groups = extra.pop("communicators", (Communicator("dp", (range(4),)),))
    return StepPlan("test", classes, streams, groups, tasks, 4, **extra)  # type: ignore[arg-type]


@pytest.fixture
def machine(switched_topology: Maker) -> Machine:
    return Machine(switched_topology([1e9] * 4, [0.0] * 4), load_library("plain"))


def spans(run: Run) -> dict[tuple[str, int], tuple[float, float]]:
    return {
        (s.name, s.step): (round(s.start_s * 1e3, 6), round(s.end_s * 1e3, 6))
        for s in run.timeline.spans
    }


def test_streams_are_queues_and_overlap(machine: Machine) -> None:
    run = simulate(
        plan(
            work("a", 2e-3),
            reduce_("r0", after=(0,)),
            work("b", 2e-3),
            reduce_("r1", after=(2,)),
            work("end", 1e-3, after=(1, 3)),
        ),
        machine,
    )
    assert spans(run) == {
        ("a", 0): (0, 2),
        ("r0", 0): (2, 8),
        ("b", 0): (2, 4),
        ("r1", 0): (8, 14),  # ready at 4, but the stream is FIFO
        ("end", 0): (14, 15),
    }
    ready = {s.name: s.ready_s for s in run.timeline.spans}
    assert ready["r1"] == pytest.approx(4e-3)
    assert run.step_time_s == pytest.approx(15e-3)


def test_a_queue_keeps_plan_order_even_when_a_later_task_is_ready(machine: Machine) -> None:
    run = simulate(
        plan(
            work("slow", 5e-3, where=("all", "host")), work("x", 1e-3, after=(0,)), work("y", 1e-3)
        ),
        machine,
    )
    assert spans(run)["y", 0] == (6, 7)


def test_two_workers_run_two_collectives_at_once(machine: Machine) -> None:
    two = (STREAMS[0], Stream("comm", "comm", workers=2))
    run = simulate(plan(reduce_("r0"), reduce_("r1"), streams=two), machine)
    assert spans(run) == {("r0", 0): (0, 12), ("r1", 0): (0, 12)}


@pytest.mark.parametrize("fidelity", ["flow", "message"])
def test_compute_slows_down_while_communicating(machine: Machine, fidelity: str) -> None:
    """10 ms of work beside 6 ms of communication at 1.5: 4 ms of it done, 6 ms remain."""
    run = simulate(
        plan(reduce_("r"), work("w", 10e-3)), machine, fidelity=fidelity, overlap_slowdown=1.5
    )  # type: ignore[arg-type]
    assert spans(run)["w", 0] == (0, 12)
    assert {s.name: s.work_s for s in run.timeline.spans} == {"r": 0.0, "w": 10e-3}


def test_the_host_is_not_slowed_down(machine: Machine) -> None:
    host = work("h", 10e-3, where=("all", "host"))
    run = simulate(plan(reduce_("r"), host), machine, overlap_slowdown=2.0)
    assert spans(run)["h", 0] == (0, 10)


def test_steps_follow_each_other_as_linked(machine: Machine) -> None:
    """The host runs ahead; the device waits for the previous optimizer."""
    run = simulate(
        plan(
            work("issue", 1e-3, where=("all", "host")),
            work("forward", 4e-3, after=(0,), before=(2,)),
            work("optimizer", 1e-3, after=(1,)),
        ),
        machine,
        steps=3,
    )
    assert spans(run)["issue", 2] == (2, 3)
    assert spans(run)["forward", 0] == (1, 5)
    assert run.step_ends_s == pytest.approx((6e-3, 11e-3, 16e-3))
    assert run.step_time_s == pytest.approx(5e-3)


def test_a_collective_waits_for_every_class(machine: Machine) -> None:
    classes = (RankClass("zero", range(1)), RankClass("rest", range(1, 4)))
    tasks = (
        work("a", 1e-3, where=("zero", "compute")),
        work("b", 5e-3, where=("rest", "compute")),
        reduce_("r", after=(0,), where="zero"),
        reduce_("r", after=(1,), where="rest"),
    )
    run = simulate(plan(*tasks, classes=classes), machine)
    found = [(s.rank_class, s.start_s, s.ready_s) for s in run.timeline.spans if s.name == "r"]
    assert sorted(found) == [
        ("rest", pytest.approx(5e-3), pytest.approx(5e-3)),
        ("zero", pytest.approx(5e-3), pytest.approx(1e-3)),
    ]


def test_a_message_needs_both_ends(machine: Machine) -> None:
    classes = (RankClass("zero", range(1)), RankClass("rest", range(1, 4)))
    message = Collective("send", 2_000_000, "pair", "m")
    tasks = (
        work("a", 3e-3, where=("rest", "compute")),
        Task("send", "communication", "zero", "comm", message),
        Task("receive", "communication", "rest", "comm", message, (0,)),
        work("b", 1e-3, where=("rest", "compute"), after=(2,)),
    )
    pair = (Communicator("pair", ((0, 1),)),)
    run = simulate(plan(*tasks, classes=classes, communicators=pair), machine)
    assert spans(run)["b", 0] == (5, 6)


def test_a_semaphore_bounds_what_is_in_flight(machine: Machine) -> None:
    """At most one gathered unit: the second gather waits for the first to be freed."""
    tasks = (
        work("gather0", 1e-3, where=("all", "host"), acquires="gathered"),
        work("gather1", 1e-3, where=("all", "host"), acquires="gathered"),
        work("use0", 5e-3, after=(0,), releases="gathered"),
        work("use1", 5e-3, after=(1,), releases="gathered"),
    )
    run = simulate(plan(*tasks, semaphores=(("gathered", 1),)), machine)
    assert spans(run)["gather1", 0] == (6, 7)
    two = simulate(plan(*tasks, semaphores=(("gathered", 2),)), machine)
    assert spans(two)["gather1", 0] == (1, 2)


def test_a_deadlock_names_the_tasks_that_wait(machine: Machine) -> None:
    tasks = (
        work("first", 1e-3, acquires="one"),
        work("second", 1e-3, acquires="one"),
    )
    with pytest.raises(SimulationError, match=r"cannot finish; waiting: second \(step 0\)"):
        simulate(plan(*tasks, semaphores=(("one", 1),)), machine)


def test_two_runs_are_the_same_bits(machine: Machine) -> None:
    step = plan(work("a", 2e-3), reduce_("r0", after=(0,)), work("b", 2e-3), reduce_("r1"))
    assert simulate(step, machine).timeline == simulate(step, machine).timeline


def test_two_workers_do_not_overtake_at_the_head_of_the_queue(machine: Machine) -> None:
    """The second all-reduce is ready first, but starts only after the first has started."""
    two = (STREAMS[0], Stream("comm", "comm", workers=2))
    tasks = (work("a", 5e-3), reduce_("r0", after=(0,)), reduce_("r1"))
    run = simulate(plan(*tasks, streams=two), machine)
    assert spans(run)["r1", 0][0] == 5


def test_groups_without_the_root_begin_at_their_own_rank_of_its_place(machine: Machine) -> None:
    """Classes that share no group start by themselves: the plan's root is in one of them only."""
    classes = (RankClass("low", range(2)), RankClass("high", range(2, 4)))
    copy = Collective("broadcast", 2_000_000, "pairs", "c", root=1)
    pairs = (Communicator("pairs", ((0, 1), (2, 3))),)
    tasks = [Task("copy", "communication", name, "comm", copy) for name in ("low", "high")]
    run = simulate(plan(*tasks, classes=classes, communicators=pairs), machine)
    topology = machine.topology
    busy = [
        name for name, sent in zip(topology.arcs.names, run.counted.wire_bytes, strict=True) if sent
    ]
    assert {src for src, _ in busy} & set(topology.ranks) == {topology.ranks[1], topology.ranks[3]}
