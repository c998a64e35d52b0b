"""Jobs that repeat themselves meet again: their shares are solved once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine.engine import simulate
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
