"""Ranks as vectors: equal to a process for each rank, and to the theory of the largest of N."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from perfmodel.errors import SimulationError
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.engine.jitter import Jitter, Kind, SlowSteps, Variation
from perfmodel.simulate.engine.rank_vectors import simulate_ranks
from perfmodel.testing.check_plan import check_plan
from perfmodel.topology.model import Topology
from perfmodel.training.plan.split_class import ClassPart, one_class_per_rank, split
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
STREAMS = (
    Stream("host", "host"),
    Stream("compute", "compute"),
    Stream("hook", "copy"),
    Stream("comm", "comm"),
)


@pytest.fixture(scope="module")
def machine(switched_topology: Maker) -> Machine:
    return Machine(switched_topology([1e9, 2e9, 1e9, 3e9], [1e-6] * 4), load_library("plain"))


def barrier_plan(ranks: int, seconds: float = 1.0, pieces: int = 1) -> StepPlan:
    """Work, then a collective of all; the next step's work waits for it."""
    group = Communicator("dp", (range(ranks),))
    work = [
        Task(
            f"w{i}",
            "forward",
            "ranks",
            "compute",
            Compute(seconds),
            after_previous=(pieces,) if i == 0 else (),
        )
        for i in range(pieces)
    ]
    meet = Task(
        "meet",
        "communication",
        "ranks",
        "comm",
        Collective("all_reduce", 4, "dp", "meet"),
        (pieces - 1,),
    )
    return StepPlan(
        "barrier", (RankClass("ranks", range(ranks)),), STREAMS, (group,), (*work, meet), ranks
    )


@st.composite
def plans(draw: st.DrawFn) -> StepPlan:
    """Plans of one or two classes over 4 ranks, with host, device, copies and collectives."""
    cut = draw(st.integers(1, 4))
    names = ["a"] if cut == 4 else ["a", "b"]
    classes = tuple(
        RankClass(name, ranks)
        for name, ranks in zip(names, (range(cut), range(cut, 4)), strict=False)
    )
    tasks: list[Task] = []
    for number in range(draw(st.integers(2, 14))):
        stream = draw(st.sampled_from(["host", "compute", "compute", "hook", "comm"]))
        seconds = draw(st.sampled_from([0.0, 1e-3, 2.5e-3, 7e-3]))
        nbytes = draw(st.sampled_from([4, 400_000, 4_000_000]))
        for name in names if stream == "comm" else [draw(st.sampled_from(names))]:
            earlier = st.integers(0, len(tasks) - 1)
            after = draw(st.lists(earlier, max_size=2, unique=True)) if tasks else []
            work = (
                Collective("all_reduce", nbytes, "dp", f"c{number}")
                if stream == "comm"
                else Compute(seconds)
            )
            if isinstance(work, Collective):  # no copy of it waits for another copy of it
                after = [
                    at
                    for at in after
                    if not (isinstance(w := tasks[at].work, Collective) and w.key == work.key)
                ]
            kind = "communication" if stream == "comm" else "forward"
            tasks.append(Task(f"t{number}", kind, name, stream, work, tuple(after)))
    links = draw(st.lists(st.tuples(st.integers(0, 13), st.integers(0, 13)), max_size=3))
    for first, last in links:
        if first < len(tasks) and last < len(tasks):
            task = tasks[first]
            tasks[first] = Task(
                task.name, task.kind, task.rank_class, task.stream, task.work, task.after, (last,)
            )
    group = Communicator("dp", (range(4),))
    return StepPlan("random", classes, STREAMS, (group,), tuple(tasks), 4)


@given(
    plan=plans(),
    kind=st.sampled_from(["normal", "lognormal", "gamma", "exponential"]),
    per=st.sampled_from(["step", "layer"]),
    cv=st.floats(0.01, 0.9),
    slowdown=st.sampled_from([1.0, 1.3, 2.0]),
    seed=st.integers(0, 1000),
)
def test_a_vector_of_ranks_is_a_process_for_each(
    machine: Machine,
    plan: StepPlan,
    kind: Kind,
    per: Literal["step", "layer"],
    cv: float,
    slowdown: float,
    seed: int,
) -> None:
    check_vector(machine, plan, Jitter(kind, cv, per, seed), slowdown)


@pytest.mark.parametrize("cv", [0.1, 0.9])
@pytest.mark.parametrize("slowdown", [1.3, 2.0])
def test_work_beside_many_collectives_is_delayed_by_each(
    machine: Machine, cv: float, slowdown: float
) -> None:
    plan = barrier_plan(4, 3e-3)
    begins, meets = plan.tasks
    tasks = [begins]
    for at in range(14):  # with time between them, as those in a row are one
        call = Collective("all_reduce", 40_000 * (1 + at % 3), "dp", f"c{at}")
        tasks.append(Task(f"h{at}", "copy", "ranks", "hook", Compute(1e-3), (0,)))
        tasks.append(replace(meets, name=call.key, work=call, after=(len(tasks) - 1,)))
    tasks += [Task(f"w{at}", "forward", "ranks", "compute", Compute(0.01), (0,)) for at in (0, 1)]
    tasks.append(replace(meets, after=(len(tasks) - 1,)))
    tasks[0] = replace(begins, after_previous=(len(tasks) - 1,))
    jitter = Jitter("gamma", cv, "layer", 3)
    check_vector(machine, replace(plan, tasks=tuple(tasks)), jitter, slowdown)


def check_vector(machine: Machine, plan: StepPlan, jitter: Jitter, slowdown: float) -> None:
    """Compare ranks as a vector with a process for each."""
    slow = (SlowSteps("a", 1.7, frozenset({1})),)
    vector = simulate_ranks(
        plan, machine, steps=3, overlap_slowdown=slowdown, stretch=Variation(plan, [jitter], slow)
    )
    each = one_class_per_rank(plan)
    check_plan(each)
    first = plan.classes[0].ranks if plan.classes[0].name == "a" else ()
    slow_ranks = tuple(
        SlowSteps(c.name, 1.7, frozenset({1})) for c in each.classes if c.ranks[0] in first
    )
    engine = simulate(
        each,
        machine,
        steps=3,
        overlap_slowdown=slowdown,
        stretch=Variation(each, [jitter], slow_ranks),
    )
    assert vector.step_ends_s == pytest.approx(engine.step_ends_s, rel=1e-9, abs=1e-15)
    assert vector.counted.wire_bytes == pytest.approx(engine.counted.wire_bytes)
    assert vector.counted.payload_bytes == pytest.approx(engine.counted.payload_bytes)
    found = {(m.step, m.name): m for m in vector.arrivals}
    for meeting in engine.arrivals:
        other = found[meeting.step, meeting.name]
        assert other.start_s == pytest.approx(meeting.start_s, rel=1e-9, abs=1e-15)
        assert other.waited_s == pytest.approx(meeting.waited_s, rel=1e-9, abs=1e-12)
        assert other.longest_s == pytest.approx(meeting.longest_s, rel=1e-9, abs=1e-12)


def expected_largest(distribution: stats.rv_frozen, ranks: int) -> float:
    """E[max of N] by integration of 1 - F(x)^N; all of it lies above zero here."""
    value, _ = integrate.quad(
        lambda x: 1.0 - distribution.cdf(x) ** ranks, 0.0, distribution.ppf(1 - 1e-15), limit=200
    )
    return value


def distribution(kind: Kind, cv: float) -> stats.rv_frozen:
    sigma = math.sqrt(math.log1p(cv * cv))
    return {
        "normal": stats.norm(1.0, cv),
        "lognormal": stats.lognorm(sigma, scale=math.exp(-sigma * sigma / 2)),
        "gamma": stats.gamma(1 / cv**2, scale=cv**2),
        "exponential": stats.expon(1 - cv, cv),
    }[kind]


@pytest.mark.parametrize("kind", ["normal", "lognormal", "gamma", "exponential"])
def test_factors_have_mean_one_and_the_variation_asked_for(kind: Kind) -> None:
    cv, count = 0.2, 400_000
    drawn = Jitter(kind, cv, "step", 3).factors(count, 0, 0)
    assert drawn.mean() == pytest.approx(1.0, abs=5 * cv / math.sqrt(count))
    assert drawn.std() == pytest.approx(cv, rel=0.02)
    assert stats.kstest(drawn[:20_000], distribution(kind, cv).cdf).pvalue > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "lognormal", "gamma", "exponential"])
@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_the_step_waits_for_the_slowest(switched_topology: Maker, kind: Kind, ranks: int) -> None:
    """The expected step is the expected largest of N factors, and the exchange."""
    cv, steps = 0.2, 1000
    machine = Machine(switched_topology([1e12] * ranks, [0.0] * ranks), load_library("plain"))
    plan = barrier_plan(ranks)
    run = simulate_ranks(
        plan, machine, steps=steps, stretch=Variation(plan, [Jitter(kind, cv, "step", 7)])
    )
    exchange_s = simulate_ranks(plan, machine).step_time_s - 1.0
    times = np.array(run.step_times_s) - exchange_s
    error = times.std() / math.sqrt(steps)
    assert times.mean() == pytest.approx(
        expected_largest(distribution(kind, cv), ranks), abs=4 * error
    )


def test_exponential_jitter_costs_a_harmonic_number(switched_topology: Maker) -> None:
    """E[max of N exponentials] = H_N: 1 + 1/2 + ... + 1/N."""
    ranks, steps = 16, 2000
    machine = Machine(switched_topology([1e15] * ranks, [0.0] * ranks), load_library("plain"))
    plan = barrier_plan(ranks)
    run = simulate_ranks(
        plan, machine, steps=steps, stretch=Variation(plan, [Jitter("exponential", 1.0, "step", 1)])
    )
    harmonic = sum(1 / n for n in range(1, ranks + 1))
    error = math.sqrt(sum(1 / n**2 for n in range(1, ranks + 1)) / steps)
    assert np.mean(run.step_times_s) == pytest.approx(harmonic, abs=4 * error)


def test_jitter_per_layer_averages_out_within_a_step(switched_topology: Maker) -> None:
    """The mean of 25 normal factors has a fifth of the variation of one."""
    ranks, pieces, cv, steps = 32, 25, 0.3, 300
    machine = Machine(switched_topology([1e15] * ranks, [0.0] * ranks), load_library("plain"))
    plan = barrier_plan(ranks, 1 / pieces, pieces)
    run = simulate_ranks(
        plan, machine, steps=steps, stretch=Variation(plan, [Jitter("normal", cv, "layer", 5)])
    )
    times = np.array(run.step_times_s)
    wanted = expected_largest(stats.norm(1.0, cv / math.sqrt(pieces)), ranks)
    assert times.mean() == pytest.approx(wanted, abs=4 * times.std() / math.sqrt(steps))


def test_the_same_seed_gives_the_same_bits_whatever_the_order() -> None:
    plan = barrier_plan(8, pieces=5)
    first = Variation(plan, [Jitter("gamma", 0.1, "layer", 9)])
    second = Variation(plan, [Jitter("gamma", 0.1, "layer", 9)])
    asked = [(step, index) for step in range(3) for index in range(5)]
    forth = {at: first(*at) for at in asked}
    back = {at: second(*at) for at in reversed(asked)}
    assert all(np.array_equal(forth[at], back[at]) for at in asked)
    other = Variation(plan, [Jitter("gamma", 0.1, "layer", 10)])
    assert not np.array_equal(other(0, 0), first(0, 0))
    parts = split(plan, "ranks", [ClassPart("odd", (3, 6))])
    alone = Variation(parts, [Jitter("gamma", 0.1, "layer", 9)])
    odd = [i for i, task in enumerate(parts.tasks) if task.rank_class == "odd"]
    assert np.array_equal(alone(2, odd[4]), np.asarray(first(2, 4))[[3, 6]])


def test_a_hundred_thousand_ranks_are_vectors() -> None:
    """Clocks and waits have the sizes that they should; no process per rank could do this."""
    plan = barrier_plan(100_000, 1e-3, pieces=3)
    one = one_rank_machine()
    run = simulate_ranks(
        plan,
        one,
        steps=1,
        stretch=Variation(plan, [Jitter("normal", 0.1, "layer", 0)]),
        fidelity="free",
    )
    (meeting,) = run.arrivals
    assert meeting.longest_s > meeting.waited_s > 0
    wanted = expected_largest(stats.norm(3e-3, 1e-4 * math.sqrt(3)), 100_000)
    assert run.step_time_s == pytest.approx(wanted, rel=0.03)


def one_rank_machine() -> Machine:
    from perfmodel.topology.templates.build import build_topology

    return Machine(build_topology("dgx-a100"), load_library("plain"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"streams": (*STREAMS[:3], Stream("comm", "comm", workers=2))}, "several workers"),
        ({"semaphores": (("one", 1),)}, "semaphores"),
        ({"communicators": (Communicator("dp", (range(2), range(2, 4))),)}, "not all ranks meet"),
    ],
)
def test_what_a_vector_cannot_do_is_refused_with_the_reason(
    machine: Machine, change: dict[str, object], reason: str
) -> None:
    from dataclasses import replace

    with pytest.raises(SimulationError, match=reason):
        simulate_ranks(replace(barrier_plan(4), **change), machine)  # type: ignore[arg-type]


def test_messages_between_ranks_are_refused(machine: Machine) -> None:
    task = Task("send", "communication", "ranks", "comm", Collective("send", 4, "pair", "m"))
    pair = (Communicator("pair", ((0, 1),)),)
    plan = StepPlan("p2p", (RankClass("ranks", range(4)),), STREAMS, pair, (task,), 4)
    with pytest.raises(SimulationError, match="not all ranks meet"):
        simulate_ranks(plan, machine)
