"""What else happens while a plan runs: changes of the machine, background traffic and jobs.

The simulators know no faults: whatever breaks, the machine is another one from then on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import simpy

from perfmodel.errors import SimulationError, TopologyError
from perfmodel.library.machine import Machine
from perfmodel.simulate.network import Network
from perfmodel.training.plan.step_plan import RankClass, StepPlan, Task


@dataclass(frozen=True, slots=True)
class Change:
    """The machine from a time on."""

    at_s: float
    """Seconds since the start of the run."""
    machine: Machine
    """The same ranks and the same numbers of arcs; other bandwidths, latencies, dead arcs."""
    what: str
    """Why, for messages."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Background traffic between two devices: a steady stream, a burst, or many.

    Raises `ValueError`: a rate, a size or a period that is not above zero, or a stream without a
    rate.
    """

    src: str
    dst: str
    """`src` and `dst`: devices by name."""
    rate_Bps: float | None = None
    """Upper limit; needed for a steady stream. Default: limited by the links only."""
    nbytes: float | None = None
    """Size of a burst. Default: a stream that never ends."""
    every_s: float | None = None
    """Time from the start of a burst to that of the next; a burst that lasts longer delays it.
    Default: one burst."""
    start_s: float = 0.0
    """Seconds since the start of the run."""

    def __post_init__(self) -> None:
        if any(x is not None and not x > 0 for x in (self.rate_Bps, self.nbytes, self.every_s)):
            raise ValueError(f"{self}: rate, size and period above zero")
        if self.nbytes is None and (self.rate_Bps is None or self.every_s is not None):
            raise ValueError(f"{self}: a steady stream has a rate and no period")


@dataclass(frozen=True, slots=True)
class BackgroundJob:
    """Another job on the same machine, repeated until the main one has ended."""

    plan: StepPlan
    """Its classes and groups name ranks of the same topology."""
    start_s: float = 0.0
    """When its first step begins; seconds since the start of the run."""
    overlap_slowdown: float | None = None
    """Default: the GPU's."""


class CollectiveArrivals(NamedTuple):
    """When the ranks of one collective arrived."""

    step: int
    name: str
    """Of the collective's task."""
    bucket: int | None
    start_s: float
    """When the last rank arrived; seconds since the start of the run."""
    last: str
    """Class of the last rank."""
    last_rank: int
    """The last rank; the first of its class where a class is simulated as source."""
    waited_s: float
    """How long the ranks that were not last waited, on average."""
    longest_s: float
    """How long the first rank waited."""


def arrivals_of(
    task: Task,
    step: int,
    arrived_s: Mapping[str, float],
    classes: Mapping[str, RankClass],
    start_s: float,
) -> CollectiveArrivals:
    """Return which class reached a collective last, and how long the others waited.

    `arrived_s`: when each class reached it, in that order.
    """
    last = max(arrived_s, key=lambda name: arrived_s[name])
    waits = [(len(classes[name].ranks), start_s - at) for name, at in arrived_s.items()]
    waited_s = sum(n * wait for n, wait in waits) / (sum(n for n, _ in waits) - 1)
    longest_s, rank = max(wait for _, wait in waits), classes[last].ranks[0]
    return CollectiveArrivals(
        step, task.name, task.bucket, start_s, last, rank, waited_s, longest_s
    )


def schedule_changes(
    env: simpy.Environment,
    network: Network,
    changes: Sequence[Change],
    in_progress: Callable[[], Sequence[str]],
    switch_to: Callable[[Machine], None] | None = None,
) -> None:
    """Change the machine of the network at the time of each change.

    `in_progress`: names of the collectives in progress, for the message if one of them loses all
    routes. `switch_to`: lets the network go on on a machine; default: `Network.become`.
    """
    switch = network.become if switch_to is None else switch_to

    def become(change: Change) -> None:
        try:
            switch(change.machine)
        except TopologyError as error:
            names = ", ".join(in_progress()[:8]) or "nothing"
            raise SimulationError(f"{change.what}: {error}; under way: {names}") from error

    network.changes_left = len(changes)
    for change in sorted(changes, key=lambda change: change.at_s):
        event = env.timeout(change.at_s, change)
        event.callbacks.append(lambda event: become(event.value))


def start_traffic(env: simpy.Environment, network: Network, traffic: Sequence[Traffic]) -> None:
    """Start streams and bursts on the network, each at its time."""
    for source in traffic:
        env.process(_send(env, network, source))


def _send(
    env: simpy.Environment, network: Network, source: Traffic
) -> Generator[simpy.Event, Any, None]:
    """Send one stream, or burst after burst over the route at that time."""
    yield env.timeout(source.start_s)
    nbytes = math.inf if source.nbytes is None else source.nbytes
    rate_Bps = math.inf if source.rate_Bps is None else source.rate_Bps
    while True:
        begun_s = env.now
        try:
            route = network.machine.router.route(source.src, source.dst)
        except TopologyError as error:
            raise SimulationError(f"traffic from {source.src} to {source.dst}: {error}") from error
        yield network.stream(route, rate_Bps, nbytes)
        if source.every_s is None:
            return
        yield env.timeout(max(0.0, begun_s + source.every_s - env.now))
