"""A collective is its sends; a send waits for its turn, then holds the links of its path.

Rounds and dependencies are those of the schedule; paths, latencies, credits and the costs of
protocols those of the lowering, which is the same at all fidelities.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import inf
from typing import Any

import simpy

from perfmodel.arrays import FloatArray
from perfmodel.collectives.dependencies import messages, messages_in, unroll
from perfmodel.library.lowering.lowered import Edge, LoweredCollective, Path, paths_of
from perfmodel.library.machine import Machine
from perfmodel.simulate.engine.background import CollectiveArrivals, arrivals_of
from perfmodel.simulate.engine.outcome import Run, TaskExecution
from perfmodel.simulate.engine.task_graph import class_factor, participants_of
from perfmodel.simulate.network import (
    LinkCounters,
    Network,
    UnsuitedNetworkError,
    run_until,
    schedule_last,
)
from perfmodel.simulate.uncontended import root_in
from perfmodel.training.plan.step_plan import Collective, StepPlan, Stream, Task

Process = Generator[simpy.Event, Any, Any]
"""What a SimPy process does."""


@dataclass(slots=True, eq=False)
class Flow:
    """What a process sends over a path; infinitely many bytes where traffic never ends."""

    path: Path
    left_bytes: float
    sender: Any = None
    rate_Bps: float = 0.0
    since_s: float = 0.0


@dataclass(eq=False)
class SharedLinks:
    """All links of a machine: their bandwidths, what they have carried, who holds them."""

    env: simpy.Environment
    bandwidth_Bps: FloatArray
    counted: LinkCounters
    _flows: dict[Flow, None] = field(default_factory=dict)
    _changed: set[int] = field(default_factory=set)

    def carry(self, flow: Flow) -> Process:
        """Hold the links of a flow until its last byte has left."""
        flow.sender, flow.since_s = self.env.active_process, self.env.now
        flow.rate_Bps = 0.0 if flow.path.links else flow.path.cap_Bps
        self._flows[flow] = None
        self._share_anew(flow.path.links)
        while flow.left_bytes > 0.0:
            ends = flow.rate_Bps > 0.0 and flow.left_bytes < inf
            left_s = flow.left_bytes / flow.rate_Bps if ends else inf
            try:
                yield self.env.timeout(left_s) if ends else self.env.event()
                break
            except simpy.Interrupt as interrupt:  # by `_share`: another rate from now on
                self._count(flow, flow.rate_Bps * (self.env.now - flow.since_s))
                flow.rate_Bps = interrupt.cause or 0.0
        self._count(flow, flow.left_bytes)
        del self._flows[flow]
        self._share_anew(flow.path.links)

    def become(self, bandwidth_Bps: FloatArray) -> None:
        """Share other bandwidths from now on."""
        self.count_until_now()
        self.bandwidth_Bps = bandwidth_Bps
        self._share_anew(range(len(bandwidth_Bps)))

    def count_until_now(self) -> None:
        """Count the bytes that are on their way."""
        for flow in self._flows:
            if flow.rate_Bps:
                self._count(flow, flow.rate_Bps * (self.env.now - flow.since_s))

    def _count(self, flow: Flow, nbytes: float) -> None:
        flow.since_s, flow.left_bytes = self.env.now, flow.left_bytes - nbytes
        for link in flow.path.links:
            self.counted.wire_bytes[link] += nbytes
            self.counted.payload_bytes[link] += nbytes / flow.path.wire_share

    def _share_anew(self, links: Iterable[int]) -> None:
        """Share some links once everything else of this instant has happened."""
        if not self._changed:
            schedule_last(self.env, self._share)
        self._changed.update(links)

    def _share(self, _event: simpy.Event) -> None:
        links, self._changed = self._changed, set()
        for flow, rate_Bps in max_min_rates(self.bandwidth_Bps, self._sharing(links)).items():
            if rate_Bps != flow.rate_Bps:
                flow.sender.interrupt(rate_Bps)

    def _sharing(self, links: set[int]) -> list[Flow]:
        """Return the flows over some links, those that share other links with them, and so on."""
        while True:
            flows = [flow for flow in self._flows if not links.isdisjoint(flow.path.links)]
            reached = links.union(*(flow.path.links for flow in flows))
            if reached == links:
                return flows
            links = reached


def max_min_rates(bandwidth_Bps: FloatArray, flows: Iterable[Flow]) -> dict[Flow, float]:
    """Share links max-min fairly; bytes per second.

    All rates rise together. A flow stops at its cap, or when a link that it crosses is full; the
    others go on (Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2).
    """
    rising, rates_Bps = dict.fromkeys(flows), dict[Flow, float]()
    crossings = Counter(link for flow in rising for link in flow.path.links)
    spare_Bps = {link: float(bandwidth_Bps[link]) for link in crossings}
    while rising:
        share_Bps, full = min((spare_Bps[link] / n, link) for link, n in crossings.items())
        capped = [flow for flow in rising if flow.path.cap_Bps <= share_Bps]
        for flow in capped or [flow for flow in rising if full in flow.path.links]:
            del rising[flow]
            rates_Bps[flow] = min(share_Bps, flow.path.cap_Bps)
            for link in flow.path.links:
                spare_Bps[link] = max(0.0, spare_Bps[link] - rates_Bps[flow])
                crossings[link] -= 1
        crossings += Counter()  # without links that nobody crosses any more
    return rates_Bps


MOST_SENDS = 200_000
"""Sends that take about a minute at 0.3 ms each; 0.04 ms where few meet, 3 ms where 4,000 do."""


@dataclass(slots=True, eq=False)
class Send:
    """A message over an edge, which sends one at a time, and has so many credits."""

    path: Path
    nbytes: int
    turns: simpy.Resource
    credits: simpy.Resource
    landed: simpy.Event
    after: list[simpy.Event]


@dataclass
class ReferenceNetwork(Network):
    """The network at fidelity "reference" (see the module and `Network`)."""

    sends: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._links = SharedLinks(self.env, self.machine.topology.arcs.bandwidth_Bps, self._counted)
        cores = self.machine.topology.sockets.cores
        if self.machine.library.in_order and cores and cores < len(self.machine.topology.ranks):
            raise UnsuitedNetworkError("fidelity 'reference' has no ranks that share cores")
        self._connections: dict[tuple[int, ...], simpy.Resource] = defaultdict(
            partial(simpy.Resource, self.env, 1 if self.machine.library.in_order else sys.maxsize)
        )

    def _launch(self, lowered: LoweredCollective) -> simpy.Event:
        self._refuse_many(messages_in(lowered.schedule))
        return self.env.process(self._collective(lowered))

    def _collective(self, lowered: LoweredCollective) -> Process:
        """Begin all sends at once; each waits for its turn. It ends when all have landed."""
        yield self.env.timeout(lowered.launch_s)
        sends = sends_of(self.env, lowered)
        for send in sends:
            self.env.process(self._send(send))
        for send in sends:
            yield send.landed

    def _send(self, send: Send) -> Process:
        """Send when all that it waits for is there; arrive a latency later."""
        with send.turns.request() as turn:
            yield turn
            for event in send.after:  # noqa: UP028  # a list takes no values of events
                yield event
            yield (credit := send.credits.request())
            with self._connections[send.path.links].request() as connection:
                yield connection
                yield from self._links.carry(Flow(send.path, send.nbytes * send.path.wire_share))
        yield self.env.timeout(send.path.latency_s)
        send.credits.release(credit)
        send.landed.succeed()

    def stream(self, route: tuple[int, ...], cap_Bps: float, nbytes: float) -> simpy.Event:
        """Send background traffic, or a message between a worker and a server, from now on."""
        self._refuse_many(1)
        return self.env.process(self._links.carry(Flow(Path(route, cap_Bps, 0.0), nbytes)))

    def become(self, machine: Machine) -> None:
        """Go on with other bandwidths; other paths and latencies are not simulated."""
        before, now = self.machine.topology, machine.topology
        if before.dead != now.dead or (before.arcs.latency_s != now.arcs.latency_s).any():
            raise UnsuitedNetworkError("fidelity 'reference' with links that are lost or get late")
        self._note_change(machine)
        self._links.become(now.arcs.bandwidth_Bps)

    @property
    def counted(self) -> LinkCounters:
        """Bytes that each directed link has carried until now."""
        self._links.count_until_now()
        return self._counted

    def _refuse_many(self, sends: int) -> None:
        self.sends += sends
        if self.sends > MOST_SENDS:
            request = f"{self.sends:,} sends with fidelity 'reference'"
            raise UnsuitedNetworkError(f"{request}; allowed: at most {MOST_SENDS:,}, or 'message'")


def sends_of(env: simpy.Environment, lowered: LoweredCollective) -> list[Send]:
    """List the sends of a collective, round after round, with what each waits for.

    That is: those that wrote or read its chunks; in later stages all of its rank in those before.
    """
    unrolled, paths = messages(unroll(lowered.schedule)), paths_of(lowered)
    repeats = [sum(phase.repeat for phase in stage.phases) for stage in lowered.stages]
    stage_of = [stage for stage, count in enumerate(repeats) for _ in range(count)]
    stages = [stage_of[number] for number in unrolled.round.tolist()]
    ends = (column.tolist() for column in (unrolled.channel, unrolled.src, unrolled.dst))
    edges: list[Edge] = list(zip(stages, *ends, strict=True))
    turns = {edge: simpy.Resource(env) for edge in paths}
    credits = {edge: simpy.Resource(env, lowered.credits) for edge in paths}
    landed = [env.event() for _ in edges]
    of_rank = defaultdict[tuple[int, int], list[tuple[int, simpy.Event]]](list)
    for (stage, channel, src, dst), event in zip(edges, landed, strict=True):
        of_rank[channel, src].append((stage, event))
        of_rank[channel, dst].append((stage, event))

    @cache
    def landed_before(stage: int, channel: int, rank: int) -> simpy.Event:
        return env.all_of([event for at, event in of_rank[channel, rank] if at < stage])

    sends = list[Send]()
    for number, (edge, nbytes) in enumerate(zip(edges, unrolled.nbytes.tolist(), strict=True)):
        after = [landed[before] for before in unrolled.after[number]]
        after.append(landed_before(*edge[:3]))
        sends.append(Send(paths[edge], nbytes, turns[edge], credits[edge], landed[number], after))
    return sends


@dataclass(eq=False)
class PlanProcesses:
    """A plan that runs for some steps; `stretch`: factor on a task's work, by step and index."""

    network: Network
    plan: StepPlan
    steps: int
    slowdown: float
    stretch: Callable[[int, int], Any] | None = None

    def __post_init__(self) -> None:
        env = self.env = self.network.env
        self.participants = participants_of(self.plan)
        self.classes = {each.name: each for each in self.plan.classes}
        self.groups = {each.name: each.groups for each in self.plan.communicators}
        self.semaphores = {
            (each.name, name): simpy.Container(env, init=capacity)
            for each in self.plan.classes
            for name, capacity in self.plan.semaphores
        }
        self.ended: dict[tuple[int, int], Any] = defaultdict(env.event)
        self.arrived: dict[Any, Any] = defaultdict(env.event)  # by collective and class
        self.collectives = dict[Any, simpy.Process]()
        self.communicating = Counter[str]()  # collectives in progress, by class
        self.turned: dict[str, simpy.Event] = defaultdict(env.event)  # a class, to another pace
        self.executions, self.arrivals = list[TaskExecution](), list[CollectiveArrivals]()
        self.step_ends_s = [0.0] * self.steps

    def run(self) -> Run:
        """Run the streams of all classes until every task of every step has ended."""
        for rank_class in self.plan.classes:
            for stream in self.plan.streams:
                self.env.process(self.stream(rank_class.name, stream))
        tasks = [(step, at) for step in range(self.steps) for at in range(len(self.plan.tasks))]
        run_until(self.env, self.env.all_of([self.ended[task] for task in tasks]), self.deadlock)
        return Run(self.executions, tuple(self.step_ends_s), self.network, tuple(self.arrivals))

    def stream(self, rank_class: str, stream: Stream) -> Process:
        """Start tasks in plan order, as many at a time as the stream has workers."""
        own, workers = (rank_class, stream.name), simpy.Resource(self.env, stream.workers)
        queue = [(at, t) for at, t in enumerate(self.plan.tasks) if (t.rank_class, t.stream) == own]
        for step in range(self.steps):
            for index, task in queue:
                yield (worker := workers.request())
                before = [self.ended[step, each] for each in task.after]
                before += [self.ended[step - 1, each] for each in task.after_previous if step]
                for event in before:  # noqa: UP028  # a list takes no values of events
                    yield event
                if task.acquires:
                    yield self.semaphores[rank_class, task.acquires].get(1)
                ready_s = max([float(event.value) for event in before], default=0.0)
                self.env.process(self.task(step, index, ready_s, stream, worker))

    def task(self, step: int, index: int, ready_s: float, stream: Stream, worker: Any) -> Process:
        """Work or communicate; then free the stream, and let go on what waits for it."""
        task, start_s, factor = self.plan.tasks[index], self.env.now, 1.0
        if isinstance(task.work, Collective):
            start_s = yield from self.collective(step, task, task.work)
        else:
            factor = class_factor(task, self.stretch(step, index)) if self.stretch else 1.0
            yield from self.compute(
                task.rank_class,
                task.work.duration_s * factor,
                self.slowdown if stream.kind == "compute" else 1.0,
            )
        self.executions.append((task, step, start_s, self.env.now, ready_s, factor))
        if stream.kind != "host":
            self.step_ends_s[step] = self.env.now
        worker.resource.release(worker)
        if task.releases:
            self.semaphores[task.rank_class, task.releases].put(1)
        self.ended[step, index].succeed(self.env.now)

    def compute(self, rank_class: str, work_s: float, slowdown: float) -> Process:
        """Work, more slowly while a collective of the class is in progress."""
        while True:
            factor, since_s = slowdown if self.communicating[rank_class] else 1.0, self.env.now
            end = self.env.timeout(work_s * factor)
            yield end | self.turned[rank_class]
            if end.processed:
                return
            work_s = max(0.0, work_s - (self.env.now - since_s) / factor)

    def collective(self, step: int, task: Task, work: Collective) -> Process:
        """Arrive, and wait until all is over; return when it began."""
        key = step, work.key, self.participants[work.communicator][task.rank_class]
        if key not in self.collectives:
            self.collectives[key] = self.env.process(self.communicate(key, task, work))
        self.arrived[key, task.rank_class].succeed(self.env.now)
        return (yield self.collectives[key])

    def communicate(self, key: Any, task: Task, work: Collective) -> Process:
        """Start a collective when all of its classes have arrived; return when that was."""
        step, _, (classes, groups) = key
        for name in classes:
            yield self.arrived[key, name]
        start_s = self.env.now
        root = root_in(groups[0], self.groups[work.communicator], work.root)
        if len(classes) > 1:
            arrived_s = {each: float(self.arrived[key, each].value) for each in classes}
            self.arrivals.append(arrivals_of(task, step, arrived_s, self.classes, start_s))
        self.turn(classes, +1)
        yield self.network.collective(work.op, work.nbytes, groups, root, work.times)
        self.turn(classes, -1)
        return start_s

    def turn(self, classes: Sequence[str], collectives: int) -> None:
        """Note that a collective of some classes begins or ends."""
        for name in classes:
            self.communicating[name] += collectives
            self.turned.pop(name, self.env.event()).succeed()

    def deadlock(self) -> str:
        """Name the tasks that wait."""
        waiting = [node for node, event in self.ended.items() if not event.triggered]
        names = [f"{self.plan.tasks[index].name} (step {step})" for step, index in waiting[:8]]
        return f"the plan {self.plan.name!r} cannot finish; waiting: {', '.join(names)}"
