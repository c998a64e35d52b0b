"""Processes of the user's on links whose shares are known, and what is said of wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.errors import InputError, PerfmodelError, SimulationError
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine import own_processes
from perfmodel.simulate.engine.background import Change, Traffic
from perfmodel.simulate.engine.engine import Fidelity, Run, simulate
from perfmodel.simulate.engine.own_processes import OwnProcess
from perfmodel.topology.faults import degrade_links
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Compute,
    RankClass,
    StepPlan,
    Stream,
    Task,
)
from tests.conftest import switched

BOTH = pytest.mark.parametrize("fidelity", ["flow", "message"])
MACHINE = Machine(switched([1e9] * 4, [0.0] * 4), load_library("plain"))
STREAMS = (Stream("compute", "compute"), Stream("comm", "comm"))


def plan(*, wait_s: float = 0.0, op: Any = "send", nbytes: int = 4_000_000) -> StepPlan:
    """A message of 4 MB from GPU 0 to GPU 1 over links of 1 GB/s: 4 ms."""
    tasks = [Task("work", "forward", "all", "compute", Compute(wait_s))]
    message = Collective(op, nbytes, "pair", "message")
    tasks.append(Task("message", "communication", "all", "comm", message, (0,), bucket=7))
    pair = Communicator("pair", (range(2),))
    return StepPlan("test", (RankClass("all", range(2)),), STREAMS, (pair,), tuple(tasks), 1)


def run(
    *functions: Any, fidelity: Fidelity = "flow", step: StepPlan | None = None, **more: Any
) -> Run:
    processes = [OwnProcess(function) for function in functions]
    return simulate(step or plan(), MACHINE, fidelity=fidelity, processes=processes, **more)


@BOTH
def test_a_send_shares_its_link_with_the_job(fidelity: Fidelity) -> None:
    """Half of the link each: 1 MB takes 2 ms, and the message 1 ms more than its 4."""
    seen = []

    def send(env: Any, network: Any) -> Any:
        yield network.send("n0/gpu0", "n0/gpu1", "1 MB")
        seen.append((env.now, network.now))

    assert run(send, fidelity=fidelity).step_time_s == pytest.approx(5e-3, rel=1e-9)
    assert seen == [(pytest.approx(2e-3), pytest.approx(2e-3))]


@BOTH
def test_a_cap_leaves_the_rest_to_the_job(fidelity: Fidelity) -> None:
    ends_s = []

    def send(env: Any, network: Any) -> Any:
        yield network.send("n0/gpu0", "n0/gpu1", 1e6, cap="0.25 GB/s")
        ends_s.append(env.now)

    assert run(send, fidelity=fidelity).step_time_s == pytest.approx(5e-3, rel=1e-9)
    assert ends_s == [pytest.approx(4e-3)]


@BOTH
@given(
    start=st.floats(0, 5e-3),
    nbytes=st.floats(1e3, 1e7),
    cap=st.sampled_from([None, 1e8, 3e9]),
    src=st.integers(0, 3),
    op=st.sampled_from(["send", "all_reduce"]),
)
@settings(max_examples=15, deadline=None)
def test_a_burst_of_a_process_is_a_burst_of_an_event(
    fidelity: Fidelity, start: float, nbytes: float, cap: float | None, src: int, op: str
) -> None:
    ends = f"n0/gpu{src}", f"n0/gpu{(src + 1) % 4}"

    def send(env: Any, network: Any) -> Any:
        yield env.timeout(start)
        yield network.send(*ends, nbytes, cap=cap)

    step = plan(op=op)
    by_process = run(send, fidelity=fidelity, step=step, steps=2)
    burst = Traffic(*ends, rate_Bps=cap, nbytes=nbytes, start_s=start)
    by_event = simulate(step, MACHINE, fidelity=fidelity, traffic=[burst], steps=2)
    assert by_process.step_ends_s == pytest.approx(by_event.step_ends_s, rel=1e-9)


@BOTH
def test_links_change_and_are_restored(fidelity: Fidelity) -> None:
    """1 ms at 1 GB/s, 2 ms at half of it, the other 2 MB at 1 GB/s again."""

    def slow(env: Any, network: Any) -> Any:
        yield env.timeout(1e-3)
        network.set_link("n0/gpu0 -> n0/nvs", bandwidth="0.5 GB/s")
        assert network.machine.arcs.bandwidth_Bps.min() == 0.5e9
        yield env.timeout(2e-3)
        network.restore()

    assert run(slow, fidelity=fidelity).step_time_s == pytest.approx(5e-3, rel=1e-9)


@BOTH
def test_a_link_of_nothing_waits_until_it_is_restored(fidelity: Fidelity) -> None:
    def stop(env: Any, network: Any) -> Any:
        network.set_link("n0/gpu0 -> n0/nvs", bandwidth=0)
        yield env.timeout(10e-3)
        network.restore("n0/gpu0 -> n0/nvs")

    assert run(stop, fidelity=fidelity).step_time_s == pytest.approx(14e-3, rel=1e-9)


@BOTH
def test_a_latency_is_that_of_what_starts_later(fidelity: Fidelity) -> None:
    def later(env: Any, network: Any) -> Any:
        yield env.timeout(1e-3)
        network.set_link("n0/gpu0 -> n0/nvs", latency="1 ms")

    step = plan(wait_s=2e-3)
    usual = simulate(step, MACHINE, fidelity=fidelity).step_time_s
    assert run(later, fidelity=fidelity, step=step).step_time_s == pytest.approx(usual + 1e-3)


@BOTH
def test_a_change_of_an_event_leaves_what_a_process_changed(fidelity: Fidelity) -> None:
    """The process halves one link; an event then slows another one, and both hold."""
    arcs = {name: at for at, name in enumerate(MACHINE.topology.arcs.names)}
    event = degrade_links(MACHINE.topology, {arcs["n0/gpu2", "n0/nvs"]: 1e8})

    def slow(env: Any, network: Any) -> Any:
        network.set_link("n0/gpu0 -> n0/nvs", bandwidth=0.5e9)
        yield env.timeout(2e-3)
        assert sorted(network.machine.arcs.bandwidth_Bps)[:2] == [1e8, 0.5e9]

    change = Change(1e-3, Machine(event, load_library("plain")), "event")
    assert run(slow, fidelity=fidelity, changes=[change]).step_time_s == pytest.approx(8e-3)


@BOTH
def test_a_scheduler_sees_collectives_begin(fidelity: Fidelity) -> None:
    seen = []

    def watch(env: Any, network: Any) -> Any:
        while True:
            task = yield network.next_collective()
            seen.append((round(env.now, 9), task.name, task.bucket, task.work.nbytes))
            assert network.collectives == ("message (all)",)
            yield env.timeout(4.5e-3)
            assert network.collectives == ()

    run(watch, fidelity=fidelity, step=plan(wait_s=1e-3))
    message = ("message", 7, 4_000_000)
    assert seen == [(1e-3, *message)]
    assert network_graph_names() >= {"n0/gpu0", "n0/nvs"}


def network_graph_names() -> set[str]:
    names: set[str] = set()

    def look(env: Any, network: Any) -> Any:
        names.update(network.graph.nodes)
        yield env.timeout(0)

    run(look)
    return names


@BOTH
def test_processes_without_an_end_end_with_the_run(fidelity: Fidelity) -> None:
    def forever(env: Any, network: Any) -> Any:
        network.send("n0/gpu2", "n0/gpu3", float("inf"), cap=1e6)
        while True:
            yield env.timeout(1e-4)

    assert run(forever, fidelity=fidelity, steps=3).step_ends_s[-1] == pytest.approx(12e-3)


def test_a_process_starts_when_it_is_told_to() -> None:
    times = []

    def look(env: Any, network: Any) -> Any:
        times.append((env.now, network.now))
        yield env.timeout(1e-3)
        times.append((env.now, network.now))

    simulate(plan(), MACHINE, processes=[OwnProcess(look, start_s=2e-3)])
    assert times == [(2e-3, 0.0), (3e-3, pytest.approx(1e-3))]


def test_processes_can_start_processes_and_interrupt_them() -> None:
    seen = []

    def child(env: Any) -> Any:
        try:
            yield env.timeout(1.0)
        except simpy.Interrupt as interrupt:
            seen.append(interrupt.cause)
            return 5

    def parent(env: Any, network: Any) -> Any:
        other = env.process(child(env))
        yield env.timeout(1e-3)
        other.interrupt("enough")
        seen.append((yield other))

    run(parent)
    assert seen == ["enough", 5]


# ---------------------------------------------------------------- wrong ones


def acting(act: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def process(env: Any, network: Any) -> Any:
        yield env.timeout(1e-3)
        act(env, network)

    return process


def of_a_child(env: Any, network: Any) -> Any:
    def child() -> Any:
        yield env.timeout(0)
        raise KeyError("lost")

    env.process(child())
    yield env.timeout(3e-3)


def yields_a_number(env: Any, network: Any) -> Any:
    yield 5


WRONG: dict[str, tuple[Any, str]] = {
    "no generator": (lambda env, network: 3, "processes: found own, which returned an int, 3; all"),
    "None": (lambda env, network: None, "which returned None; allowed: a generator function of"),
    "one argument": (lambda env: None, r"own\(env\), which cannot take \(env, network\)"),
    "no function": (7, "processes: found an int, 7; allowed: a generator function"),
    "no event": (yields_a_number, "process yields_a_number yielded an int, 5; allowed: an event"),
    "an error": (acting(lambda env, network: 1 / 0), "process process raised at 1 ms: ZeroDivis"),
    "an error of a child": (of_a_child, "process child raised at 0 s: KeyError: 'lost'"),
    "no device": (
        acting(lambda env, network: network.send("n0/gpu0", "n0/gpu9", 1)),
        "process process: dst: found 'n0/gpu9' .did you mean",
    ),
    "to itself": (
        acting(lambda env, network: network.send("n0/gpu0", "n0/gpu0", 1)),
        "another device",
    ),
    "no bytes": (acting(lambda env, network: network.send("n0/gpu0", "n0/gpu1", 0)), "nbytes: f"),
    "no unit": (
        acting(lambda env, network: network.send("n0/gpu0", "n0/gpu1", "5")),
        "nbytes: found '5'",
    ),
    "nan": (
        acting(lambda env, network: network.send("n0/gpu0", "n0/gpu1", float("nan"))),
        "found nan",
    ),
    "no rate": (
        acting(lambda env, network: network.send("n0/gpu0", "n0/gpu1", 1, cap=-1)),
        "cap: found -1",
    ),
    "no link": (
        acting(lambda env, network: network.set_link("n0/gpu0", "n0/gpu1", bandwidth=1)),
        "link: found 'n0/gpu0 -- n0/gpu1'; allowed: a link from n0/gpu0 to",
    ),
    "nothing to set": (
        acting(lambda env, network: network.set_link("n0/gpu0")),
        "set_link: found neither",
    ),
    "a negative bandwidth": (
        acting(lambda env, network: network.set_link("n0/gpu0", bandwidth=-1)),
        "bandwidth: fou",
    ),
    "a bandwidth of another unit": (
        acting(lambda env, network: network.set_link("n0/gpu0", bandwidth="3 s")),
        "bandwidth: f",
    ),
    "a cut": (acting(lambda env, network: network.fail("n0/gpu0")), "n0/gpu0 failed: "),
}


@BOTH
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_one_says_what_was_expected_and_what_came(name: str, fidelity: Fidelity) -> None:
    function, text = WRONG[name]
    with pytest.raises(PerfmodelError, match=text):
        run(function, fidelity=fidelity)


def test_the_cause_is_the_error_of_the_process() -> None:
    with pytest.raises(SimulationError) as caught:
        run(acting(lambda env, network: 1 / 0))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_what_a_smaller_machine_does_not_have_ends_a_process_there() -> None:
    def send(env: Any, network: Any) -> Any:
        yield network.send("n7/gpu0", "n0/gpu0", 1)

    small = OwnProcess(send, strict=False)
    assert simulate(plan(), MACHINE, processes=[small]).step_time_s == pytest.approx(4e-3)
    with pytest.raises(SimulationError, match="found 'n7/gpu0'"):
        run(send)


@BOTH
def test_events_without_an_end_are_given_up(
    fidelity: Fidelity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one instant, or while the job waits for a link that nobody restores."""
    monkeypatch.setattr(own_processes, "MOST_IDLE_EVENTS", 1000)

    def spin(env: Any, network: Any) -> Any:
        while True:
            yield env.timeout(0)

    def cut(env: Any, network: Any) -> Any:
        network.set_link("n0/gpu0 -> n0/nvs", bandwidth=0)
        while True:
            yield env.timeout(1e-3)

    for process in (spin, cut):
        with pytest.raises(SimulationError, match="1,000 events of processes, and no task"):
            run(process, fidelity=fidelity)


@BOTH
def test_a_job_that_waits_for_ever_is_named(fidelity: Fidelity) -> None:
    def cut(env: Any, network: Any) -> Any:
        network.set_link("n0/gpu0 -> n0/nvs", bandwidth=0)
        yield env.timeout(1e-3)

    with pytest.raises(SimulationError, match=r"message|stalls"):
        run(cut, fidelity=fidelity)


def test_a_fault_is_one_of_the_input() -> None:
    with pytest.raises(InputError):
        run(None)


def test_a_plan_runs_on_a_machine_without_a_scenario() -> None:
    """``pm.simulate``: a message of 4 MB at 1 GB/s."""
    run_ = pm.simulate(plan(), MACHINE.topology, library="plain", steps=2)
    assert run_.step_times_s == pytest.approx((4e-3, 4e-3))
    seen = []

    def watch(env: Any, network: Any) -> Any:
        seen.append((yield network.next_collective()).name)

    pm.simulate(plan(), MACHINE, fidelity="message", processes=[watch])
    assert seen == ["message"]


def test_what_is_no_plan_or_machine_is_a_fault() -> None:
    with pytest.raises(PerfmodelError, match=r"plan: found None(.|\n)*machine: found a str, 'dgx'"):
        pm.simulate(None, "dgx")
    with pytest.raises(PerfmodelError, match=r"found rank 1; allowed: 0 to 0, the GPUs"):
        pm.simulate(plan(), pm.topology("dgx-a100", gpus_per_node=1))
    wrong = replace(plan().tasks[0], stream="cuda")
    with pytest.raises(PerfmodelError, match="stream 'cuda'"):
        pm.simulate(replace(plan(), tasks=(wrong,)), MACHINE)
