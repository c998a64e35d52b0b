"""A run of a `LoopPlan` as it is recorded: updates, their staleness, how busy everybody was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from perfmodel.simulate.network import LinkCounters
from perfmodel.timeline import Span
from perfmodel.training.plan.step_plan import LoopPlan


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


@dataclass
class LoopRun:
    """A run of a `LoopPlan`, which fills it; times in seconds since its start.

    Parameters
    ----------
    plan : LoopPlan
    tracked : frozenset of int
        Workers of which items and messages are recorded.

    Attributes
    ----------
    length_s : float
        When enough updates had been made.
    updates_s : list of list of float
        Of each worker, when its updates were complete at all servers.
    work_s : list of list of mapping
        Of each worker and iteration, time on the device by kind.
    waits_s : list of list of float
        Of each worker and iteration, how long it waited for answers.
    staleness : list of (at_s, updates, nbytes)
        Of each gradient as it was applied: how many updates others had made to its parameters
        since the worker read them.
    leads : counter of int
        Answers by the number of iterations that the worker was then ahead of the slowest; empty
        where nobody waits for slower ones.
    services : list of Service
    messages : list of Message
        Of the tracked workers.
    items : list of (worker, iteration, item, start_s, end_s)
        Of the tracked workers.
    counted : LinkCounters
        Bytes over each directed link, whole run.
    """

    plan: LoopPlan
    tracked: frozenset[int] = field(repr=False)
    length_s: float = field(init=False)
    staleness: list[tuple[float, int, float]] = field(default_factory=list, init=False, repr=False)
    leads: Counter[int] = field(default_factory=Counter, init=False)
    services: list[Service] = field(default_factory=list, init=False, repr=False)
    messages: list[Message] = field(default_factory=list, init=False, repr=False)
    items: list[tuple[int, int, int, float, float]] = field(
        default_factory=list, init=False, repr=False
    )
    counted: LinkCounters = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.updates_s: list[list[float]] = [[] for _ in self.plan.workers]
        self.work_s: list[list[Mapping[str, float]]] = [[] for _ in self.plan.workers]
        self.waits_s: list[list[float]] = [[] for _ in self.plan.workers]

    @property
    def update_times_s(self) -> list[float]:
        """When updates of any worker were complete, in order."""
        return sorted(at for own in self.updates_s for at in own)

    def round_ends_s(self) -> list[float]:
        """When as many updates were complete as there are workers, twice as many and so on."""
        count = len(self.plan.workers)
        return self.update_times_s[count - 1 :: count]

    def spans(self) -> list[Span]:
        """Return the items and messages of the tracked workers, and services of their pushes."""
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
            pushed, pulled = ("push", exchange.push_bytes), ("pull", exchange.pull_bytes)
            lane, nbytes = pushed if message.is_push else pulled
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
        spans += [
            Span(
                f"update {plan.exchanges[service.exchange].name}, {names[service.worker]}",
                "optimizer",
                plan.servers[service.server].name,
                "compute",
                0,
                service.start_s,
                service.end_s,
                service.arrived_s,
                work_s=service.end_s - service.start_s,
            )
            for service in self.services
        ]
        return sorted(spans, key=lambda span: (span.start_s, span.end_s))
