"""Run a StepPlan in simulated time: tasks, streams and collectives, of whatever strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from operator import itemgetter
from typing import Literal, cast

import simpy

from perfmodel.collectives.timing.compiled_loops import Effort
from perfmodel.errors import SimulationError
from perfmodel.garbage import no_collections
from perfmodel.library.machine import Machine
from perfmodel.memo import T
from perfmodel.simulate.engine.background import (
    BackgroundJob,
    Change,
    Traffic,
    schedule_changes,
    start_traffic,
)
from perfmodel.simulate.engine.outcome import Run
from perfmodel.simulate.engine.own_processes import (
    CollectiveStarts,
    LinkState,
    NetworkView,
    OwnProcess,
    ProcessEnvironment,
    start_process,
)
from perfmodel.simulate.engine.plan_run import PlanRun, Stretch
from perfmodel.simulate.engine.retiming import can_be_retimed
from perfmodel.simulate.engine.step_graph import StepGraph, step_graph
from perfmodel.simulate.engine.uncontended_run import run_uncontended
from perfmodel.simulate.flow.network import FlowNetwork
from perfmodel.simulate.network import (
    Network,
    UnsuitedNetworkError,
    run_until,
    schedule_last,
)
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.training.plan.step_plan import Collective, StepPlan

__all__ = ["Fidelity", "Run", "Surroundings", "simulate"]

Fidelity = Literal["flow", "message", "reference"]
BY_SENDS = frozenset({"message", "reference"})
"""Fidelities at which every send is simulated."""
LATENCIES_WITH_READY = 2
"""Latencies of a send that waits for a ready message."""

MOST_MESSAGES = 20_000
"""Messages up to which "flow" simulates each of a collective on sockets (some tenths of a second):
a short all-reduce among 5,000 alike ranks, 632 on alike hosts of 8, or 71 that all differ."""
NEARLY_ALIKE = 0.1
"""Part of a step by which latencies may differ where not every rank can be simulated."""


NETWORKS = {
    "flow": "perfmodel.simulate.flow.network:FlowNetwork",
    "message": "perfmodel.simulate.message.network:MessageNetwork",
    "reference": "perfmodel.simulate.reference:ReferenceNetwork",
    "sockets": "perfmodel.simulate.sockets.network:SocketNetwork",
    "free": "perfmodel.simulate.network:FreeNetwork",
}
"""Networks by fidelity, and those of sockets and of the what-if; imported when they are used."""


def network_class(name: str) -> Callable[..., Network]:
    """Return the class of one of `NETWORKS`."""
    module, _, kind = NETWORKS[name].partition(":")
    return cast("Callable[..., Network]", getattr(import_module(module), kind))


def uses_sockets(machine: Machine, fidelity: str) -> bool:
    """Whether a machine's collectives are messages on sockets, as far as they can be simulated.

    There a send waits for the receiver's ready message, as with Gloo (two latencies); MPI's eager
    and rendezvous sends, of one latency and of three, are timed by the other networks. So are
    machines whose numbers were fitted with these.
    """
    waits = all(
        protocol.latencies_per_step == LATENCIES_WITH_READY
        for protocol in machine.library.protocols.values()
    )
    return (
        machine.library.in_order
        and waits
        and fidelity in {"flow", "message"}
        and not machine.fitted
    )


def has_shared_cores(machine: Machine) -> bool:
    """Whether there are fewer cores than processes."""
    cores = machine.topology.sockets.cores
    return cores is not None and cores < len(machine.topology.ranks)


def _socket_networks(machine: Machine, fidelity: str) -> list[Callable[..., Network]]:
    """Sockets on which ranks stand for each other, first exactly; then those where none does."""
    make = network_class("sockets")
    if fidelity == "message":
        return [partial(make, tolerance=None)]
    if has_shared_cores(machine):  # for which every message waits; see limits.check_message_size
        return [make]
    limited = partial(make, most_messages=MOST_MESSAGES)
    return [limited, partial(limited, tolerance=None), partial(limited, tolerance=NEARLY_ALIKE)]


def on_network(
    timer: UncontendedTimer,
    fidelity: Fidelity | Literal["free"],
    run: Callable[[Network], T],
    *,
    changes: bool = False,
    environment: Callable[[], simpy.Environment] = simpy.Environment,
) -> T:
    """Run something on the first network that can simulate it, from the start.

    `changes`: whether the machine changes or there is background traffic, which sockets do not
    have.
    `environment`: makes its clock.
    """
    other = network_class(fidelity)
    if uses_sockets(timer.machine, fidelity):
        for make in () if changes else _socket_networks(timer.machine, fidelity):
            with suppress(UnsuitedNetworkError):
                return run(make(environment(), timer))
        other = partial(other, instead_of_sockets=True) if fidelity == "flow" else other
    return run(other(environment(), timer))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What happens beside a plan: changes of the machine, traffic, other jobs, own processes."""

    changes: Sequence[Change] = ()
    traffic: Sequence[Traffic] = ()
    background_jobs: Sequence[BackgroundJob | StepPlan] = ()
    processes: Sequence[OwnProcess] = ()

    def __bool__(self) -> bool:
        return bool(self.changes or self.traffic or self.background_jobs or self.processes)

    @property
    def change_network(self) -> bool:
        """Whether they do what sockets do not have (see `on_network`)."""
        return bool(self.changes or self.traffic or self.processes)

    def start_beside(self, main: PlanRun, network: Network, machine: Machine) -> list[PlanRun]:
        """Start everything at its time beside a plan; return the jobs in progress."""
        links, starts = LinkState(network, machine), CollectiveStarts()
        others = self.start(network, machine, main.names_in_progress, links)
        env = network.env
        if isinstance(env, ProcessEnvironment):
            main.on_collective = starts.announce
            network.changes_left = None  # nobody knows
            env.progress = lambda: len(main.executions)
        for own in self.processes:
            assert isinstance(env, ProcessEnvironment)
            view = NetworkView(env, network, links, starts, main.names_in_progress, own.start_s)
            start_process(env, view, own)
        return others

    def start(
        self,
        network: Network,
        machine: Machine,
        in_progress: Callable[[], Sequence[str]],
        links: LinkState | None = None,
    ) -> list[PlanRun]:
        """Start everything but processes at its time; return the jobs in progress.

        `in_progress`: names of the main plan's collectives in progress.
        `links`: as processes change them.
        """
        env, usual = network.env, machine.topology.gpu.overlap_slowdown
        others = [_start_background_job(env, network, job, usual) for job in self.background_jobs]
        schedule_changes(
            env,
            network,
            self.changes,
            lambda: [*in_progress(), *(n for job in others for n in job.names_in_progress())],
            (links or LinkState(network, machine)).become,
        )
        start_traffic(env, network, self.traffic)
        for job in others:
            _detect_deadlock(env, job)
        return others


def simulate(
    plan: StepPlan,
    machine: Machine,
    *,
    steps: int = 1,
    fidelity: Fidelity | Literal["free"] = "flow",
    overlap_slowdown: float | None = None,
    timer: UncontendedTimer | None = None,
    changes: Sequence[Change] = (),
    traffic: Sequence[Traffic] = (),
    background_jobs: Sequence[BackgroundJob | StepPlan] = (),
    stretch: Stretch | None = None,
    processes: Sequence[OwnProcess] = (),
    is_crowded: bool = False,
) -> Run:
    """Run a plan for some steps, one after the other as the plan links them.

    Parameters
    ----------
    plan : StepPlan
    machine : Machine
    steps : int
    fidelity : {"flow", "message", "reference", "free"}
        "flow": a few events per collective. "message": every send is an event. "reference": tasks,
        too, in plain SimPy. "free": communication takes no time.
    overlap_slowdown : float, optional
        Factor by which compute is slower while its class communicates; default: the GPU's.
    timer : UncontendedTimer, optional
        Of the same machine, so that several runs share its cache.
    changes : sequence of Change
        What the machine becomes, and when.
    traffic : sequence of Traffic
        Background streams and bursts.
    background_jobs : sequence of BackgroundJob or StepPlan
        Background jobs, repeated on the same machine until this one has ended.
    stretch : callable, optional
        Factor on a task's work, by step and index (see `perfmodel.simulate.engine.jitter`).
    processes : sequence of OwnProcess
        Processes of the user's, which see clock and network.
    is_crowded : bool
        Whether collectives are known to meet, so that it is not tried whether they do.

    Raises
    ------
    InputError
        A process whose function takes other arguments, or is no generator function.
    SimulationError
        The plan cannot finish: the message names the tasks that wait, or ranks without a route. Or
        a process fails, which the message names, or fidelity "reference" cannot simulate it: too
        many sends, lost links, or background jobs.
    """
    timer = timer or UncontendedTimer(machine)
    usual = machine.topology.gpu.overlap_slowdown
    slowdown = usual if overlap_slowdown is None else overlap_slowdown
    surroundings = Surroundings(changes, traffic, background_jobs, processes)
    graph: StepGraph | None = None

    def run(network: Network) -> Run:
        env = network.env
        if fidelity == "reference":
            return _run_reference(network, plan, steps, slowdown, stretch, surroundings)
        main = PlanRun(env, network, plan, steps, slowdown, stretch=stretch)
        others = surroundings.start_beside(main, network, machine)
        if traffic or background_jobs or processes:  # which never run out of events
            _detect_deadlock(env, main)
        run_until(env, main.done, main.describe_deadlock)
        return Run(
            sorted(main.executions, key=itemgetter(3)),
            (*main.step_ends_s, *[0.0] * (steps - len(main.step_ends_s))),
            network,
            tuple(main.arrivals),
            {job.plan.name: job.completed_s for job in others},
            graph,
        )

    expect_changes(timer, plan, steps, surroundings)
    if surroundings:  # whose objects grow without end
        return on_network(
            timer,
            fidelity,
            run,
            changes=surroundings.change_network,
            environment=ProcessEnvironment if processes else simpy.Environment,
        )
    with no_collections():
        varies = stretch is not None or uses_sockets(machine, fidelity)
        if fidelity == "flow" and not (is_crowded or varies) and can_be_retimed(plan):
            graph, network = step_graph(plan, steps), FlowNetwork(simpy.Environment(), timer)
            alone = run_uncontended(plan, graph, network, steps, slowdown)
            if alone is not None:
                return alone
        return on_network(timer, fidelity, run)


def _run_reference(
    network: Network,
    plan: StepPlan,
    steps: int,
    slowdown: float,
    stretch: Stretch | None,
    surroundings: Surroundings,
) -> Run:
    from perfmodel.simulate.reference import PlanProcesses

    if surroundings.background_jobs or surroundings.processes:
        beside = "other jobs" if surroundings.background_jobs else "processes of one's own"
        raise UnsuitedNetworkError(f"fidelity 'reference' with {beside}; allowed: 'flow'")
    surroundings.start(network, network.machine, list)
    return PlanProcesses(network, plan, steps, slowdown, stretch).run()


def expect_changes(
    timer: UncontendedTimer, plan: StepPlan, steps: int, surroundings: Surroundings
) -> None:
    """Let compiled loops be loaded at once where collectives of jobs will often meet."""
    collectives = sum(isinstance(task.work, Collective) for task in plan.tasks)
    timer.keep(Effort).expect(steps * collectives * len(surroundings.background_jobs))


def _start_background_job(
    env: simpy.Environment, network: Network, plan: BackgroundJob | StepPlan, usual: float
) -> PlanRun:
    job = plan if isinstance(plan, BackgroundJob) else BackgroundJob(plan)
    return PlanRun(
        env,
        network,
        job.plan,
        None,
        usual if job.overlap_slowdown is None else job.overlap_slowdown,
        start_s=job.start_s,
    )


def _detect_deadlock(env: simpy.Environment, job: PlanRun) -> None:
    """Raise as soon as nothing is in progress that could continue a job that has not ended."""

    def check(_: simpy.Event) -> None:
        if job.is_deadlocked:
            raise SimulationError(job.describe_deadlock())

    job.on_idle = partial(schedule_last, env, check)
    job.on_idle()
