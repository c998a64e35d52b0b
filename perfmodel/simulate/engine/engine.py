"""Runs a StepPlan in simulated time. It knows tasks, streams and collectives, and no strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import simpy

from perfmodel.errors import PerfmodelError, SimulationError
from perfmodel.library.machine import Machine
from perfmodel.simulate.engine.background import (
    BackgroundJob,
    Change,
    Traffic,
    let_change,
    let_flow,
)
from perfmodel.simulate.engine.plan_run import PlanRun, Stretch
from perfmodel.simulate.engine.run import Run
from perfmodel.simulate.flow.network import FlowNetwork
from perfmodel.simulate.message.network import MessageNetwork
from perfmodel.simulate.network import FreeNetwork, Network
from perfmodel.simulate.sockets.network import SocketNetwork, goes_by_sockets
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.timeline import Timeline
from perfmodel.training.plan import StepPlan

__all__ = ["Fidelity", "Run", "simulate"]

Fidelity = Literal["flow", "message"]
NETWORKS: Mapping[str, Callable[[simpy.Environment, UncontendedTimer], Network]] = {
    "flow": FlowNetwork,
    "message": MessageNetwork,
    "free": FreeNetwork,
}
AFTER_ALL_ELSE = 2
"""SimPy priority behind NORMAL (1): what is looked at when an instant is over."""


def simulate(
    plan: StepPlan,
    machine: Machine,
    *,
    steps: int = 1,
    fidelity: Fidelity | Literal["free"] = "flow",
    overlap_slowdown: float | None = None,
    estimator: UncontendedTimer | None = None,
    changes: Sequence[Change] = (),
    traffic: Sequence[Traffic] = (),
    beside: Sequence[BackgroundJob | StepPlan] = (),
    stretch: Stretch | None = None,
) -> Run:
    """Run a plan for some steps, one after the other as the plan links them.

    Parameters
    ----------
    plan : StepPlan
    machine : Machine
    steps : int
    fidelity : {"flow", "message", "free"}
        "flow": a few events per collective. "message": every send is an event. "free":
        communication takes no time.
    overlap_slowdown : float, optional
        Factor by which compute is slower while its class communicates; default: the GPU's.
    estimator : UncontendedTimer, optional
        Of the same machine, so that several runs share what it has worked out.
    changes : sequence of Change
        What the machine becomes, and when.
    traffic : sequence of Traffic
        Streams and bursts of somebody else.
    beside : sequence of BackgroundJob or StepPlan
        Jobs that repeat on the same machine until this one has ended.
    stretch : callable, optional
        How much longer a task's work is, by step and index (see `perfmodel.simulate.ranks.jitter`).

    Raises
    ------
    SimulationError
        The plan cannot finish: the message names the tasks that wait, or who is out of reach.
    """
    env = simpy.Environment()
    known = estimator or UncontendedTimer(machine)
    alone = not changes and not traffic
    sockets = alone and goes_by_sockets(machine, fidelity)
    network: Network = SocketNetwork(env, known) if sockets else NETWORKS[fidelity](env, known)
    usual = machine.topology.gpu.overlap_slowdown
    slowdown = usual if overlap_slowdown is None else overlap_slowdown
    main = PlanRun(env, network, plan, steps, slowdown, stretch=stretch)
    others = [_repeated(env, network, one, usual) for one in beside]
    jobs = (main, *others)
    let_change(
        env, network, changes, lambda: [name for job in jobs for name in job.under_way.values()]
    )
    let_flow(env, network, machine, changes, traffic)
    if others or traffic:  # whose events never run out
        for job in jobs:
            _watch(env, job)
    _run(env, main)
    return Run(
        Timeline(tuple(sorted(main.spans, key=lambda span: (span.start_s, span.end_s)))),
        (*main.step_ends_s, *[0.0] * (steps - len(main.step_ends_s))),
        network.counted,
        tuple(main.meetings),
        {job.plan.name: job.completed_s for job in others},
        network.notes,
    )


def _repeated(
    env: simpy.Environment, network: Network, one: BackgroundJob | StepPlan, usual: float
) -> PlanRun:
    job = one if isinstance(one, BackgroundJob) else BackgroundJob(one)
    slowdown = usual if job.overlap_slowdown is None else job.overlap_slowdown
    return PlanRun(env, network, job.plan, None, slowdown, start_s=job.start_s)


def _run(env: simpy.Environment, main: PlanRun) -> None:
    """Run until the plan has ended; SimPy itself would end silently on a deadlock."""
    try:
        env.run(until=main.done)
    except PerfmodelError as error:
        if isinstance(error.__cause__, type(error)):  # SimPy raises a copy, made of its text
            raise error.__cause__ from error.__cause__.__cause__
        raise
    except RuntimeError as error:
        raise SimulationError(main.waiting()) from error


def _watch(env: simpy.Environment, job: PlanRun) -> None:
    """Raise as soon as a job has nothing under way that could make it go on."""

    def check(_: simpy.Event) -> None:
        if job.is_stuck:
            raise SimulationError(job.waiting())

    def look() -> None:
        event = env.event()
        event._ok, event._value = True, None
        event.callbacks.append(check)
        env.schedule(event, priority=AFTER_ALL_ELSE)  # type: ignore[arg-type]

    job.idle = look
    look()
