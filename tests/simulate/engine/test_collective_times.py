"""Vectors of ranks on a network that changes or that others use: as a process for each rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import SimulationError
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine.background import BackgroundJob, Change, Traffic
from perfmodel.simulate.engine.engine import Fidelity, Surroundings, simulate
from perfmodel.simulate.engine.jitter import Jitter, Variation
from perfmodel.simulate.engine.rank_vectors import simulate_ranks
from perfmodel.topology.faults import degrade_links
from perfmodel.topology.model import Topology
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

Maker = Callable[..., Topology]
RANKS = 4
STREAMS = (
    Stream("host", "host"),
    Stream("compute", "compute"),
    Stream("hook", "copy"),
    Stream("comm", "comm"),
)


@pytest.fixture(scope="module")
def topology(switched_topology: Maker) -> Topology:
    return switched_topology([1e9, 2e9, 1e9, 3e9], [1e-6] * RANKS)


def step_plan(name: str, works: list[tuple[str, float, int]]) -> StepPlan:
    """Tasks on streams one after the other; work on the device waits for the one before it."""
    tasks: list[Task] = []
    for number, (stream, seconds, nbytes) in enumerate(works):
        after = (number - 1,) if number and stream != "host" else ()
        work = (
            Collective("all_reduce", nbytes, "dp", f"c{number}")
            if stream == "comm"
            else Compute(seconds)
        )
        kind = "communication" if stream == "comm" else "forward"
        tasks.append(Task(f"t{number}", kind, "ranks", stream, work, after))
    group = Communicator("dp", (range(RANKS),))
    return StepPlan(
        name, (RankClass("ranks", range(RANKS)),), STREAMS, (group,), tuple(tasks), RANKS
    )


WORKS = st.lists(
    st.tuples(
        st.sampled_from(["host", "compute", "compute", "hook", "comm"]),
        st.sampled_from([1e-4, 1e-3, 2.5e-3]),
        st.sampled_from([4, 400_000, 4_000_000]),
    ),
    min_size=2,
    max_size=8,
)
TRAFFIC = st.builds(
    Traffic,
    src=st.sampled_from(["n0/gpu0", "n0/gpu1"]),
    dst=st.sampled_from(["n0/gpu2", "n0/gpu3"]),
    rate_Bps=st.sampled_from([None, 2e8, 5e9]),
    nbytes=st.sampled_from([1e5, 3e6]),
    every_s=st.sampled_from([None, 3e-3, 11e-3]),
    start_s=st.sampled_from([0.0, 1.7e-3]),
)


@given(
    works=WORKS,
    other=WORKS,
    traffic=st.lists(TRAFFIC, max_size=3),
    drops=st.lists(
        st.tuples(st.floats(1e-4, 3e-2), st.integers(0, 7), st.sampled_from([1e8, 7e8])),
        max_size=2,
        unique_by=lambda drop: drop[0],
    ),
    has_job=st.booleans(),
    fidelity=st.sampled_from(["flow", "message"]),
    slowdown=st.sampled_from([1.0, 1.4]),
    seed=st.integers(0, 1000),
)
def test_vectors_among_others_are_a_process_for_each(
    topology: Topology,
    works: list[tuple[str, float, int]],
    other: list[tuple[str, float, int]],
    traffic: list[Traffic],
    drops: list[tuple[float, int, float]],
    has_job: bool,
    fidelity: Fidelity,
    slowdown: float,
    seed: int,
) -> None:
    plan = step_plan("main", works)
    machine = Machine(topology, load_library("plain"))
    changes = [
        Change(at_s, Machine(degrade_links(topology, {arc: to_Bps}, {}), machine.library), "drop")
        for at_s, arc, to_Bps in drops
    ]
    has_work = has_job and any(stream != "comm" for stream, _, _ in other)
    jobs = [BackgroundJob(step_plan("other", other), 1e-3)] if has_work else []
    jitter = (Jitter("gamma", 0.3, "layer", seed),)
    vector = simulate_ranks(
        plan,
        machine,
        steps=3,
        fidelity=fidelity,
        overlap_slowdown=slowdown,
        stretch=Variation(plan, jitter),
        surroundings=Surroundings(changes, traffic, jobs),
    )
    each = one_class_per_rank(plan)
    engine = simulate(
        each,
        machine,
        steps=3,
        fidelity=fidelity,
        overlap_slowdown=slowdown,
        stretch=Variation(each, jitter),
        changes=changes,
        traffic=traffic,
        background_jobs=jobs,
    )
    assert vector.step_ends_s == pytest.approx(engine.step_ends_s, rel=1e-9, abs=1e-15)
    assert vector.counted.wire_bytes == pytest.approx(engine.counted.wire_bytes, rel=1e-6, abs=1.0)
    for name, ends_s in vector.others_step_ends_s.items():
        assert ends_s == pytest.approx(engine.others_step_ends_s[name], rel=1e-9)
    starts = {(m.step, m.name): m.start_s for m in vector.arrivals}
    for meeting in engine.arrivals:
        assert starts[meeting.step, meeting.name] == pytest.approx(meeting.start_s, rel=1e-9)


def test_events_do_not_grow_with_ranks(
    switched_topology: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside traffic, too, the simulation has as many events among 64 ranks as among 8."""
    events: list[int] = []
    step = simpy.Environment.step
    monkeypatch.setattr(simpy.Environment, "step", lambda env: (events.append(1), step(env))[1])
    counts = []
    for ranks in (8, 64):
        machine = Machine(switched_topology([1e9] * ranks, [1e-6] * ranks), load_library("plain"))
        group = Communicator("dp", (range(ranks),))
        meet = Task(
            "meet",
            "communication",
            "ranks",
            "comm",
            Collective("all_reduce", 4_000, "dp", "c"),
            (0,),
        )
        work = Task("work", "forward", "ranks", "compute", Compute(1e-3), (), (1,))
        plan = StepPlan(
            "main", (RankClass("ranks", range(ranks)),), STREAMS, (group,), (work, meet), ranks
        )
        stream = Traffic("n0/gpu0", "n0/gpu1", nbytes=1e5, every_s=5e-3)
        events.clear()
        simulate_ranks(
            plan,
            machine,
            steps=20,
            stretch=Variation(plan, [Jitter("normal", 0.1, "step", 1)]),
            surroundings=Surroundings(traffic=[stream]),
        )
        counts.append(len(events))
    assert counts[1] <= 1.2 * counts[0]


def test_a_collective_that_stalls_is_named(topology: Topology) -> None:
    plan = step_plan("main", [("compute", 1e-3, 0), ("comm", 0.0, 4_000_000)])
    machine = Machine(topology, load_library("plain"))
    dead = Machine(
        degrade_links(topology, dict.fromkeys(range(len(topology.arcs)), 0.0), {}), machine.library
    )
    with pytest.raises(SimulationError, match="stalls"):
        simulate_ranks(
            plan,
            machine,
            stretch=lambda *_: np.ones(RANKS),
            surroundings=Surroundings([Change(2e-3, dead, "cut")]),
        )
