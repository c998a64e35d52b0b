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
    read = read_plan(folder)
    plan = read.plan
    try:
        check_plan(plan)
    except ScheduleError as error:
        raise InputError(
            Fault(
                "trace", str(error), "collectives that all ranks of their group share", str(folder)
            )
        ) from None
    ranks = sum(len(each.ranks) for each in plan.classes)
    if ranks > len(topology.ranks):
        raise InputError(
            Fault(
                "--topology",
                f"{ranks} ranks, on {len(topology.ranks)} GPUs",
                f"a machine of {ranks} GPUs or more",
            )
        )
    machine = make_machine(topology, load_library(library))
    steps = STEPS if any(task.after_previous for task in plan.tasks) else 1
    slowdown = None if read.own else RECORDED
    run = simulate(plan, machine, steps=steps, overlap_slowdown=slowdown)
    return SimulatedTrace(plan, run, run.step_time_s)
