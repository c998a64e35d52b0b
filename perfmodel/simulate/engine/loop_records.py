"""What a run of a `LoopPlan` leaves behind: updates, their staleness, how busy everybody was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from perfmodel.simulate.network import LinkCounters
from perfmodel.timeline import Span
from perfmodel.training.plan.loop_plan import LoopPlan


class Message(NamedTuple):
    """A message as it went; seconds since the start of the run."""

    worker: int
    iteration: int
    exchange: int
    is_push: bool
    ready_s: float
    """When it was there to be sent."""
    start_s: float
    end_s: float
    """When its last byte arrived."""


class Service(NamedTuple):
    """A push as it was served; seconds since the start of the run."""

    server: int
    worker: int
    exchange: int
    arrived_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class LoopRun:
    """A run of a `LoopPlan`; times in seconds since its start.

    Parameters
    ----------
    plan : LoopPlan
    length_s : float
        When enough updates had been made.
    updates_s : tuple of tuple of float
        Of each worker, when its updates were complete at all servers.
    work_s : tuple of tuple of mapping
        Of each worker and iteration, time on the device by kind.
    waits_s : tuple of tuple of float
        Of each worker and iteration, how long it waited for answers.
    staleness : sequence of (at_s, updates, nbytes)
        Of each gradient as it was applied: how many updates others had made to its parameters
        since the worker read them.
    leads : mapping of int to int
        Answers by the number of iterations that the worker was then ahead of the slowest; empty
        where nobody waits for slower ones.
    services : sequence of Service
    messages : sequence of Message
        Of the tracked workers.
    items : sequence of (worker, iteration, item, start_s, end_s)
        Of the tracked workers.
    counted : LinkCounters
        Bytes over each directed link, whole run.
    """

    plan: LoopPlan
    length_s: float
    updates_s: tuple[tuple[float, ...], ...]
    work_s: tuple[tuple[Mapping[str, float], ...], ...] = field(repr=False)
    waits_s: tuple[tuple[float, ...], ...] = field(repr=False)
    staleness: Sequence[tuple[float, int, float]] = field(repr=False)
    leads: Mapping[int, int]
    services: Sequence[Service] = field(repr=False)
    messages: Sequence[Message] = field(repr=False)
    items: Sequence[tuple[int, int, int, float, float]] = field(repr=False)
    counted: LinkCounters = field(repr=False)

    @property
    def update_times_s(self) -> list[float]:
        """When updates of any worker were complete, in order."""
        return sorted(at for own in self.updates_s for at in own)

    def round_ends_s(self) -> list[float]:
        """When as many updates were complete as there are workers, twice as many and so on."""
        count = len(self.plan.workers)
        return self.update_times_s[count - 1 :: count]

    def spans(self) -> list[Span]:
        """Items and messages of the tracked workers, and services of their pushes."""
        plan, spans = self.plan, list[Span]()
        names = [worker.name for worker in plan.workers]
        for number, iteration, index, start_s, end_s in self.items:
            item = plan.items[plan.workers[number].like][index]
            spans.append(
                Span(
                    item.name,
                    item.kind,
                    names[number],
                    "compute",
                    iteration,
                    start_s,
                    end_s,
                    start_s,
                    micro_batch=item.micro_batch,
                    work_s=end_s - start_s,
                )
            )
        for message in self.messages:
            exchange = plan.exchanges[message.exchange]
            lane, nbytes = ("push", exchange.push_bytes)
            if not message.is_push:
                lane, nbytes = ("pull", exchange.pull_bytes)
            spans.append(
                Span(
                    f"{lane} {exchange.name}",
                    "communication",
                    names[message.worker],
                    lane,
                    message.iteration,
                    message.start_s,
                    message.end_s,
                    message.ready_s,
                    round(nbytes),
                    message.exchange,
                )
            )
        for service in self.services:
            server = plan.servers[service.server].name
            name = f"update {plan.exchanges[service.exchange].name}, {names[service.worker]}"
            spans.append(
                Span(
                    name,
                    "optimizer",
                    server,
                    "compute",
                    0,
                    service.start_s,
                    service.end_s,
                    service.arrived_s,
                    work_s=service.end_s - service.start_s,
                )
            )
        return sorted(spans, key=lambda span: (span.start_s, span.end_s))


@dataclass
class LoopRecords:
    """Gathers what happens in a run."""

    workers: int
    servers: int
    tracked: frozenset[int]
    updates_s: list[list[float]] = field(init=False)
    work_s: list[list[Mapping[str, float]]] = field(init=False)
    waits_s: list[list[float]] = field(init=False)
    staleness: list[tuple[float, int, float]] = field(default_factory=list)
    leads: dict[int, int] = field(default_factory=dict)
    services: list[Service] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    items: list[tuple[int, int, int, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.updates_s = [[] for _ in range(self.workers)]
        self.work_s = [[] for _ in range(self.workers)]
        self.waits_s = [[] for _ in range(self.workers)]

    def add_item(
        self, worker: int, iteration: int, index: int, start_s: float, end_s: float
    ) -> None:
        """Record an item, if its worker is tracked."""
        if worker in self.tracked:
            self.items.append((worker, iteration, index, start_s, end_s))

    def add_iteration(self, worker: int, work_s: Mapping[str, float], waited_s: float) -> None:
        """Record a whole iteration of a worker."""
        self.work_s[worker].append(work_s)
        self.waits_s[worker].append(waited_s)

    def add_message(self, message: Message) -> None:
        """Record a message, if its worker is tracked."""
        if message.worker in self.tracked:
            self.messages.append(message)

    def add_service(
        self,
        server: int,
        worker: int,
        exchange: int,
        arrived_s: float,
        start_s: float,
        end_s: float,
    ) -> None:
        """Record a push that a server serves."""
        self.services.append(Service(server, worker, exchange, arrived_s, start_s, end_s))

    def add_staleness(self, at_s: float, updates: int, nbytes: float) -> None:
        """Record by how many updates a gradient came late."""
        self.staleness.append((at_s, updates, nbytes))

    def add_lead(self, iterations: int) -> None:
        """Record by how many iterations a worker is ahead of the slowest as it goes on."""
        self.leads[iterations] = self.leads.get(iterations, 0) + 1

    def add_update(self, worker: int, at_s: float) -> None:
        """Record that an update of a worker is complete."""
        self.updates_s[worker].append(at_s)

    def run(self, plan: LoopPlan, length_s: float, counted: LinkCounters) -> LoopRun:
        """Return all of it as the result of a run."""
        return LoopRun(
            plan,
            length_s,
            tuple(map(tuple, self.updates_s)),
            tuple(map(tuple, self.work_s)),
            tuple(map(tuple, self.waits_s)),
            self.staleness,
            self.leads,
            self.services,
            self.messages,
            self.items,
            counted,
        )
