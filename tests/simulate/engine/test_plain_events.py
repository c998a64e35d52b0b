"""The engine against a plain loop over events, one for the end of each task."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.engine.task_graph import Work
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

REDUCE_S = 6e-3
"""An all-reduce of 4 MB over 4 GPUs at 1 GB/s."""
KINDS = ("compute", "comm", "host")
Key = tuple[int, int]


@pytest.fixture
def machine(switched_topology: Callable[..., Topology]) -> Machine:
    return Machine(switched_topology([1e9] * 4, [0.0] * 4), load_library("plain"))


def drawn_tasks(rng: np.random.Generator, count: int) -> list[Task]:
    tasks = []
    for index in range(count):
        stream = str(rng.choice(["compute", "compute", "host", "host", "comm"]))
        before = [int(each) for each in rng.integers(0, index, rng.integers(0, 3))] if index else []
        later = [int(each) for each in rng.integers(0, count, rng.integers(0, 2))]
        work = (
            Collective("all_reduce", 4_000_000, "dp", f"r{index}")
            if stream == "comm"
            else Compute(float(rng.choice([0.0, *rng.uniform(1e-4, 5e-3, 3)])))
        )
        tasks.append(
            Task(f"t{index}", "forward", "all", stream, work, tuple(set(before)), tuple(set(later)))
        )
    return tasks


def plain_run(tasks: Sequence[Task], steps: int, slowdown: float) -> dict[Key, tuple[float, float]]:
    """Start and end of each task, straight from the rules."""
    queues = {
        kind: [(s, i) for s in range(steps) for i, task in enumerate(tasks) if task.stream == kind]
        for kind in KINDS
    }
    starts, ends = dict[Key, float](), dict[Key, float]()
    running, now = dict[str, tuple[Key, float]](), 0.0
    while running or any(queues.values()):
        for kind, queue in [*queues.items()] * 2:
            while kind not in running and queue:
                step, index = queue[0]
                waits = [(step, i) for i in tasks[index].after]
                waits += [(step - 1, i) for i in tasks[index].after_previous if step]
                if not all(key in ends for key in waits):
                    break
                work, starts[queue[0]] = tasks[index].work, now
                left_s = work.duration_s if isinstance(work, Compute) else REDUCE_S
                running[kind] = queue.pop(0), left_s
        slower = {
            kind: slowdown if kind == "compute" and "comm" in running else 1.0 for kind in running
        }
        next_s = min(left_s * slower[kind] for kind, (_, left_s) in running.items())
        now += next_s
        for kind, (key, left_s) in list(running.items()):
            left_s -= next_s / slower[kind]  # noqa: PLW2901
            if left_s <= 1e-15:
                ends[key] = now
                del running[kind]
            else:
                running[kind] = key, left_s
    return {key: (starts[key], ends[key]) for key in ends}


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 10**6), st.integers(1, 25), st.integers(1, 3), st.sampled_from([1.0, 1.4]))
def test_tasks_start_and_end_as_in_a_plain_loop(
    machine: Machine, seed: int, count: int, steps: int, slowdown: float
) -> None:
    tasks = drawn_tasks(np.random.default_rng(seed), count)
    streams = tuple(Stream(kind, kind) for kind in KINDS)  # type: ignore[arg-type]
    groups = (Communicator("dp", (range(4),)),)
    plan = StepPlan("drawn", (RankClass("all", range(4)),), streams, groups, tuple(tasks), 4)
    run = simulate(plan, machine, steps=steps, overlap_slowdown=slowdown)
    number = {task.name: index for index, task in enumerate(tasks)}
    found = {(step, number[task.name]): (s, e) for task, step, s, e, *_ in run.executions}
    expected = plain_run(tasks, steps, slowdown)
    assert found.keys() == expected.keys()
    for key, times in expected.items():
        assert found[key] == pytest.approx(times, rel=1e-9, abs=1e-12)


def test_a_step_without_events() -> None:
    """Work in a row is worked off at rates that change in between."""
    work = Work([0.0, 5.0, 0.0], [2.0, 2.0, 1.0])
    assert work.ends_s(1.0, 1.0) == 8.0
    work.go_on(1.0, 6.0, 1.0)  # 1 to 3; waits; 5 to 6 of it
    assert (work.start_s, work.end_s) == ([1.0, 5.0], [3.0])
    assert work.ends_s(6.0, 2.0) == 10.0
    work.go_on(6.0, np.inf, 2.0)
    assert (work.start_s, work.end_s) == ([1.0, 5.0, 8.0], [3.0, 8.0, 10.0])
