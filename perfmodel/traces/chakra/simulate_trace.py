"""Simulate Chakra execution traces on a machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perfmodel.errors import Fault, InputError, ScheduleError
from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.engine.outcome import Run
from perfmodel.testing.check_plan import check_plan
from perfmodel.topology.model import Topology
from perfmodel.traces.chakra.read_plan import read_plan
from perfmodel.training.plan.step_plan import Collective, StepPlan

STEPS = 2
"""The second one is reported, where the trace links a step to the one before."""

RECORDED = 1.0
"""Slowdown of compute beside collectives: times in traces of others contain theirs."""


@dataclass(frozen=True, slots=True)
class SimulatedTrace:
    """A trace on a machine; seconds.

    `step_s`: of one run through the trace.
    """

    plan: StepPlan
    run: Run
    step_s: float

    @property
    def collectives(self) -> int:
        """Collectives and messages of all classes."""
        return len({task.work.key for task in self.plan.tasks if isinstance(task.work, Collective)})


def simulate_trace(folder: Path, topology: Topology, library: str = "nccl") -> SimulatedTrace:
    """Read the traces of all ranks and simulate them.

    Raises `InputError`: traces that do not hold, or another number of ranks than the machine has.
    """
    plan, is_own = read_plan(folder)
    try:
        check_plan(plan)
    except ScheduleError as error:
        allowed = "collectives that all ranks of their group share"
        raise InputError(Fault("trace", str(error), allowed, str(folder))) from None
    ranks = sum(len(each.ranks) for each in plan.classes)
    if ranks > len(topology.ranks):
        text = f"{ranks} ranks, on {len(topology.ranks)} GPUs"
        raise InputError(Fault("--topology", text, f"a machine of {ranks} GPUs or more"))
    run = simulate(
        plan,
        make_machine(topology, load_library(library)),
        steps=STEPS if any(task.after_previous for task in plan.tasks) else 1,
        overlap_slowdown=None if is_own else RECORDED,
    )
    return SimulatedTrace(plan, run, run.step_time_s)
