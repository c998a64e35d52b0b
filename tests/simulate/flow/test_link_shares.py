"""Jobs that repeat themselves meet again: their shares are solved once, and what follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import perfmodel as pm
from perfmodel.collectives.timing.compiled_loops import Effort
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.flow import transfers
from perfmodel.simulate.flow.alike_collectives import SharesMet
from perfmodel.simulate.uncontended import UncontendedTimer
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

STREAMS = (Stream("compute", "compute"), Stream("comm", "comm"))


def plan(name: str, nbytes: int, work_s: float) -> StepPlan:
    """Work, then two all-reduces, over and over."""
    tasks = [Task("work", "forward", "all", "compute", Compute(work_s), (), (2,))]
    for number in (1, 2):
        work = Collective("all_reduce", number * nbytes, "dp", f"{name} {number}")
        tasks.append(Task(f"reduce {number}", "communication", "all", "comm", work, (number - 1,)))
    ranks = range(4)
    dp = (Communicator("dp", (ranks,)),)
    return StepPlan(name, (RankClass("all", ranks),), STREAMS, dp, tuple(tasks), 4)


def test_shares_are_solved_once_for_all_steps_and_simulations(
    switched_topology: Callable[..., Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(switched_topology([1e9] * 4, [1e-6] * 4), load_library("plain"))
    timer = UncontendedTimer(machine)
    mine, theirs = plan("mine", 4_000_000, 0.011), plan("theirs", 3_000_000, 0.017)

    def solved(steps: int, own: UncontendedTimer) -> tuple[int, tuple[float, ...]]:
        run = simulate(mine, machine, steps=steps, timer=own, background_jobs=[theirs])
        return own.keep(SharesMet).solved, run.step_ends_s

    many, ends_s = solved(12, timer)
    assert 0 < many <= 4  # pairs of two all-reduces each, in whatever order they began
    assert solved(12, timer) == (many, pytest.approx(ends_s, rel=1e-12))
    with monkeypatch.context() as patch:
        patch.setattr(SharesMet, "of", lambda _, solve, *jobs: solve(*jobs))
        assert solved(12, UncontendedTimer(machine))[1] == ends_s


def test_legs_that_meet_alike_are_followed_once(
    switched_topology: Callable[..., Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step collectives of two streams meet as in the step before; another job at any time."""
    machine = Machine(switched_topology([1e9] * 4, [1e-6] * 4), load_library("plain"))
    whole, theirs = plan("mine", 4_000_000, 0.011), plan("theirs", 3_000_000, 0.017)
    gather = Collective("all_gather", 20_000_000, "dp", "beside")
    beside = Task("beside", "communication", "all", "other", gather, (0,))
    work = replace(whole.tasks[0], after_previous=(2, 3))
    streams, tasks = (*STREAMS, Stream("other", "comm")), (work, *whole.tasks[1:], beside)
    whole = replace(whole, streams=streams, tasks=tasks)

    def followed(steps: int, *others: StepPlan) -> tuple[int, tuple[float, ...]]:
        timer = UncontendedTimer(machine)
        run = simulate(whole, machine, steps=steps, timer=timer, background_jobs=others)
        return timer.keep(Effort).spent, run.step_ends_s

    few, many, crowded = followed(10), followed(40), followed(40, theirs)
    assert 0 < many[0] < 1.5 * few[0]
    monkeypatch.setattr(transfers, "MOST_KEPT", 0)
    each = followed(40)
    assert each[0] > 5 * many[0]
    assert many[1] == pytest.approx(each[1], rel=1e-12)
    assert crowded[1] == pytest.approx(followed(40, theirs)[1], rel=1e-11)


def test_later_legs_of_broadcasts_share_links_as_their_messages_do() -> None:
    """Each rank sends out its share of the parameters, while others do, over 1, 2 and 4 edges."""
    step_s = [
        pm.run(
            {
                "perfmodel": 1,
                "model": {"name": "resnet18", "image_size": 64},
                "compute": {"source": "roofline", "precision": "fp32"},
                "strategy": {"kind": "zero_redundancy"},
                "cluster": {"node": "cpu-loopback", "nodes": 1, "fabric": None},
                "training": {"batch_per_gpu": 4},
                "library": {"name": "gloo"},
                "profile": "epyc-2-cores-gloo-2-ranks",
                "scale": {"gpus": [8]},
            },
            fidelity=fidelity,
        ).main.step_time_s
        for fidelity in ("flow", "message")
    ]
    assert step_s[0] == pytest.approx(step_s[1], rel=0.01)


def test_legs_that_are_forgotten_do_not_hold_each_other() -> None:
    """Nothing would free them but a search for cycles, which comes late."""
    unused: Any = None
    known, begun = transfers.KnownProgress(), transfers.Progress(unused, unused)
    after = transfers.Progress(unused, unused, 1, begun)
    begun._after["a change"] = after, np.zeros(1)
    known.begun[unused] = begun
    known.keep(1)
    assert list(known.begun.values()) == [begun]
    known.keep(transfers.MOST_KEPT)
    assert not known.begun
    assert not begun._after
    assert begun.kept == after.kept == 0
