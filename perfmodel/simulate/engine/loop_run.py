"""Workers that loop and servers that are queues, in simulated time; see `simulate_loops`.

Each worker is a SimPy process that runs its items, iteration after iteration. Messages of one
worker to one server follow each other, as on one connection; those of different pairs share links
max-min fairly. A server serves pushes in the order of their arrival, and answers when the plan's
rule lets the worker go on.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import simpy

from perfmodel.errors import SimulationError, TopologyError
from perfmodel.library.machine import Machine
from perfmodel.memo import once
from perfmodel.simulate.engine.background import Change, Traffic, schedule_changes, start_traffic
from perfmodel.simulate.engine.loop_records import LoopRun, Message, Service
from perfmodel.simulate.flow.stream_network import StreamNetwork
from perfmodel.simulate.network import FreeNetwork, Network, run_until
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.training.plan.step_plan import Exchange, LoopPlan, Worker

Stretch = Callable[[int, int, int], float]
"""Factor on an item's time: by worker, iteration and item."""


def route_of_message(machine: Machine, src: str, dst: str) -> tuple[int, ...]:
    """Links from one device to another.

    Raises `SimulationError`: what was lost lay between them.
    """
    try:
        return tuple(machine.router.route(src, dst))
    except TopologyError as error:
        raise SimulationError(f"no message from {src} to {dst}: {error}") from error


def simulate_loops(
    plan: LoopPlan,
    machine: Machine,
    *,
    rounds: int,
    fidelity: Literal["flow", "reference", "free"] = "flow",
    stretch: Stretch | None = None,
    changes: Sequence[Change] = (),
    traffic: Sequence[Traffic] = (),
    quantum_s: float = 0.0,
    tracked: Sequence[int] = (0,),
) -> LoopRun:
    """Run a plan until its workers have made `rounds` updates each, on average.

    Parameters
    ----------
    plan : LoopPlan
        Placed: its servers have devices.
    machine : Machine
    rounds : int
    fidelity : {"flow", "reference", "free"}
        "reference": each message is a SimPy process. "free": messages take no time.
    stretch : callable, optional
        Factor on an item's time.
    changes : sequence of Change
        What the machine becomes, and when.
    traffic : sequence of Traffic
        Background streams and bursts.
    quantum_s : float
        Rates of messages are solved at most so often; 0: whenever one begins or ends.
    tracked : sequence of int
        Workers whose spans are recorded.

    Raises
    ------
    SimulationError
        Messages that cannot arrive; the text names the workers that wait.
    """
    env = simpy.Environment()
    timer = UncontendedTimer(machine)
    network: Network = FreeNetwork(env, timer)
    if fidelity == "flow":
        network = StreamNetwork(env, timer, quantum_s=quantum_s)
    elif fidelity == "reference":
        from perfmodel.simulate.reference import ReferenceNetwork

        network = ReferenceNetwork(env, timer)
    loops = _Loops(env, network, plan, rounds, stretch, tracked)
    schedule_changes(env, network, changes, loops.waiting)
    start_traffic(env, network, traffic)
    run_until(env, loops.done, loops.describe_deadlock)
    loops.run.length_s, loops.run.counted = env.now, network.counted
    return loops.run


@dataclass(eq=False)
class _Connection:
    """Messages from one device to another, one after the other."""

    loops: _Loops
    src: str
    dst: str
    is_busy: bool = False
    queue: deque[tuple[float, Callable[[float], None]]] = field(default_factory=deque)

    def send(self, nbytes: float, arrive: Callable[[float], None]) -> None:
        """Send bytes once those before have left; `arrive` gets the time at which it began."""
        self.queue.append((nbytes, arrive))
        if not self.is_busy:
            self._begin()

    def _begin(self) -> None:
        self.is_busy = True
        nbytes, arrive = self.queue.popleft()
        env, network, begun_s = self.loops.env, self.loops.network, self.loops.env.now
        route, latency_s = self.loops.route(self.src, self.dst)
        sockets = network.machine.topology.sockets
        between = self.src.partition("/")[0] != self.dst.partition("/")[0]
        cap_Bps = (between and sockets.flow_Bps) or math.inf

        def leave(_: simpy.Event) -> None:
            if latency_s:
                env.timeout(latency_s).callbacks.append(lambda _: arrive(begun_s))
            else:
                arrive(begun_s)
            self.is_busy = False
            if self.queue:
                self._begin()

        sent = network.stream(route, cap_Bps, nbytes)
        assert sent.callbacks is not None  # not processed before this instant is over
        sent.callbacks.append(leave)


@dataclass(eq=False)
class _Queue:
    """A server: when it is free, and what it knows of each exchange."""

    free_s: float = 0.0

    def book(self, now_s: float, service_s: float) -> tuple[float, float]:
        """Serve after what arrived before; start and end."""
        start_s = max(now_s, self.free_s)
        self.free_s = start_s + service_s
        return start_s, self.free_s


@dataclass(eq=False)
class _State:
    """One exchange's state at its server, and how far each worker is with it.

    `version`: updates so far. `read`: the version that each worker has. `pushed`: iterations that
    each has pushed. `held`: workers whose answer waits for slower ones.
    """

    version: int
    read: list[int]
    pushed: list[int]
    arrived: int = 0
    held: list[int] = field(default_factory=list)


class _Loops:
    """A plan in progress; `done` fires when enough updates are made."""

    def __init__(
        self,
        env: simpy.Environment,
        network: Network,
        plan: LoopPlan,
        rounds: int,
        stretch: Stretch | None,
        tracked: Sequence[int],
    ) -> None:
        self.env, self.network, self.plan = env, network, plan
        self.done = env.event()
        count = len(plan.workers)
        self.run, self._left = LoopRun(plan, frozenset(tracked)), rounds * count
        self._stretch = stretch
        ranks = network.machine.topology.ranks
        self._ends = [ranks[worker.ranks[0]] for worker in plan.workers]
        self._queues = [_Queue() for _ in plan.servers]
        self._lanes = [_Queue() for _ in plan.workers]
        self._connections: dict[tuple[str, str, int], _Connection] = {}
        self._states = [_State(0, [0] * count, [0] * count) for _ in plan.exchanges]
        self._answered = [[0] * len(plan.exchanges) for _ in plan.workers]
        self._unapplied = [deque[int]() for _ in plan.workers]
        self._waits: list[tuple[int, int, simpy.Event] | None] = [None] * count
        for number, worker in enumerate(plan.workers):
            env.process(self._work(number, worker))

    def waiting(self) -> list[str]:
        """Return the names of the workers that wait for an answer, and for which."""
        return [
            f"{worker.name} for {self.plan.exchanges[wait[0]].name}"
            for worker, wait in zip(self.plan.workers, self._waits, strict=True)
            if wait is not None
        ]

    def describe_deadlock(self) -> str:
        """Name the workers that wait."""
        return f"{self.plan.name!r} cannot go on; waiting: {', '.join(self.waiting()[:8])}"

    def route(self, src: str, dst: str) -> tuple[tuple[int, ...], float]:
        """Links from one device to another as they are now, and their latency; seconds."""
        if isinstance(self.network, FreeNetwork) or src == dst:
            return (), 0.0
        machine = self.network.machine

        def find() -> tuple[tuple[int, ...], float]:
            route = route_of_message(machine, src, dst)
            return route, float(machine.topology.arcs.latency_s[list(route)].sum())

        return machine.cached(("message", src, dst), find)

    # ------------------------------------------------------------ workers

    def _work(self, number: int, worker: Worker) -> Generator[simpy.Event, Any, None]:
        """Run iteration after iteration."""
        env, items = self.env, self.plan.items[worker.like]
        host_s, iteration = worker.start_s, 0
        yield env.timeout(worker.start_s)
        while True:
            waited_s, busy = 0.0, defaultdict[str, float](float)
            self._unapplied[number].append(len(self.plan.exchanges))
            for index, item in enumerate(items):
                for exchange in item.needs:
                    if self._answered[number][exchange] < iteration:
                        began_s, answer = env.now, env.event()
                        self._waits[number] = (exchange, iteration, answer)
                        yield answer
                        waited_s += env.now - began_s
                        host_s = max(host_s, env.now)
                host_s += item.host_s
                factor = 1.0 if self._stretch is None else self._stretch(number, iteration, index)
                work_s = item.duration_s * worker.scale * factor
                start_s = max(env.now, host_s)
                yield env.timeout(start_s + work_s - env.now)
                busy[item.kind] += work_s
                if number in self.run.tracked:
                    self.run.items.append((number, iteration, index, start_s, env.now))
                for exchange in item.sends:
                    self._push(number, iteration, exchange)
            self.run.work_s[number].append(busy)
            self.run.waits_s[number].append(waited_s)
            iteration += 1

    def _push(self, number: int, iteration: int, exchange: int) -> None:
        """Send what a worker has for a server, after its own work on it."""
        spec, ready_s = self.plan.exchanges[exchange], self.env.now
        connection = self._connection(
            self._ends[number], self.plan.servers[spec.server].device, number
        )

        def arrive(begun_s: float) -> None:
            self._note(Message(number, iteration, exchange, True, ready_s, begun_s, self.env.now))
            self._serve(number, exchange, spec)

        self._locally(number, spec.before_s, lambda: connection.send(spec.push_bytes, arrive))

    def _note(self, message: Message) -> None:
        """Record a message, if its worker is tracked."""
        if message.worker in self.run.tracked:
            self.run.messages.append(message)

    def _locally(self, number: int, work_s: float, then: Callable[[], None]) -> None:
        """Go on after a worker's own work on an exchange, which follows that on others."""
        if not work_s:
            then()
            return
        end_s = self._lanes[number].book(self.env.now, work_s)[1]
        self.env.timeout(end_s - self.env.now).callbacks.append(lambda _: then())

    def _connection(self, src: str, dst: str, number: int) -> _Connection:
        return once(self._connections, (src, dst, number), lambda: _Connection(self, src, dst))

    # ------------------------------------------------------------ servers

    def _serve(self, number: int, exchange: int, spec: Exchange) -> None:
        """Serve a push that has arrived, after those before it."""
        service_s = spec.each_s
        if self.plan.together:
            state = self._states[exchange]
            state.arrived += 1
            if state.arrived == len(self.plan.workers):  # its handler goes on with the update
                state.arrived = 0
                service_s += spec.all_s
        start_s, end_s = self._queues[spec.server].book(self.env.now, service_s)
        self.run.services.append(
            Service(spec.server, number, exchange, self.env.now, start_s, end_s)
        )
        self.env.timeout(end_s - self.env.now).callbacks.append(
            lambda _: self._apply(number, exchange, spec)
        )

    def _apply(self, number: int, exchange: int, spec: Exchange) -> None:
        """Count an update, and answer those that may go on."""
        state, plan = self._states[exchange], self.plan
        state.pushed[number] += 1
        self.run.staleness.append(
            (self.env.now, state.version - state.read[number], spec.push_bytes)
        )
        if not plan.together:
            state.version += 1
        state.held.append(number)
        if not plan.together or len(state.held) == len(plan.workers):
            self._answer_those_who_may(exchange, spec, state)
        unapplied = self._unapplied[number]
        unapplied[0] -= 1
        if not unapplied[0]:  # all parts of an update have been applied
            unapplied.popleft()
            self.run.updates_s[number].append(self.env.now)
            self._left -= 1
            if not self._left:
                self.done.succeed()

    def _answer_those_who_may(self, exchange: int, spec: Exchange, state: _State) -> None:
        """Answer the workers that are not too far ahead of the slowest."""
        slack = self.plan.slack
        slowest = 0 if slack is None else min(state.pushed)
        most = math.inf if slack is None else slowest + slack
        free = [other for other in state.held if state.pushed[other] <= most]
        state.held = [other for other in state.held if state.pushed[other] > most]
        if free and self.plan.together:
            state.version += 1
        for other in free:
            state.read[other] = state.version  # its own update is none that it has missed
            if slack is not None:
                self.run.leads[state.pushed[other] - slowest] += 1
            self._answer(other, exchange, spec)

    def _answer(self, number: int, exchange: int, spec: Exchange) -> None:
        """Send a worker what it waits for."""
        iteration, ready_s = self._states[exchange].pushed[number], self.env.now
        connection = self._connection(
            self.plan.servers[spec.server].device, self._ends[number], number
        )

        def have() -> None:
            self._answered[number][exchange] = iteration
            wait = self._waits[number]
            if wait is not None and wait[0] == exchange and wait[1] <= iteration:
                self._waits[number] = None
                wait[2].succeed()

        def arrive(begun_s: float) -> None:
            self._note(
                Message(number, iteration - 1, exchange, False, ready_s, begun_s, self.env.now)
            )
            self._locally(number, spec.after_s, have)

        connection.send(spec.pull_bytes, arrive)
