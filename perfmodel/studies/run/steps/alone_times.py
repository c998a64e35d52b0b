"""Time of one collective alone on the network, for strategies whose plans depend on it."""

from __future__ import annotations

from perfmodel.arrays import RankGroup
from perfmodel.library.machine import Machine, make_machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Op,
    RankClass,
    StepPlan,
    Stream,
    Task,
)


def collective_s(
    machine: Machine,
    group: RankGroup,
    timers: dict[str, UncontendedTimer],
    op: Op,
    nbytes: int,
    library: str | None = None,
) -> float:
    """Time of a collective of some ranks; seconds.

    Parameters
    ----------
    machine : Machine
    group : range or tuple of int
        Its ranks.
    timers : dict
        By library, filled when one is needed.
    op : str
    nbytes : int
        As nccl-tests counts it.
    library : str, optional
        Instead of the machine's own.
    """
    own = machine.library.name
    name = library or own
    if name not in timers:
        other = make_machine(machine.topology, load_library(name)) if name != own else machine
        timers[name] = UncontendedTimer(other)
    if name == own and machine.library.in_order:
        return simulated_s(timers[name], group, op, nbytes)
    return timers[name].best(op, nbytes, group)[1]


def simulated_s(timer: UncontendedTimer, group: RankGroup, op: Op, nbytes: int) -> float:
    """Time of a collective by simulation, where the messages of a connection are in order."""
    ranks = tuple(group)
    plan = StepPlan(
        f"one {op}",
        (RankClass("ranks", ranks),),
        (Stream("comm", "comm"),),
        (Communicator("all", (ranks,)),),
        (Task(op, "communication", "ranks", "comm", Collective(op, nbytes, "all", "one")),),
        samples=1,
    )
    return simulate(plan, timer.machine, timer=timer).step_time_s
