"""What happens around a plan while it runs: a machine that changes, other traffic, other jobs.

A fault is no word of the simulators: whatever breaks, from then on the machine is another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import simpy

from perfmodel.errors import SimulationError, TopologyError
from perfmodel.library.machine import Machine
from perfmodel.simulate.network import Network
from perfmodel.training.plan import StepPlan


@dataclass(frozen=True, slots=True)
class Change:
    """From `at_s` on the machine is this one.

    Parameters
    ----------
    at_s : float
        Seconds since the start of the run.
    machine : Machine
        The same ranks and the same numbers of arcs; other bandwidths, latencies, dead arcs.
    what : str
        Why, in words for messages.
    """

    at_s: float
    machine: Machine
    what: str


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of somebody else between two devices: a steady stream, a burst, or many.

    Parameters
    ----------
    src, dst : str
        Devices by name.
    rate_Bps : float, optional
        Most that it takes; needed for a steady stream. Default: what the links give.
    nbytes : float, optional
        Size of a burst. Default: a stream that never ends.
    every_s : float, optional
        Time from the start of a burst to that of the next; a burst that lasts longer delays it.
        Default: one burst.
    start_s : float
        Seconds since the start of the run.

    Raises
    ------
    ValueError
        A rate, a size or a period that is not above zero, or a stream without a rate.
    """

    src: str
    dst: str
    rate_Bps: float | None = None
    nbytes: float | None = None
    every_s: float | None = None
    start_s: float = 0.0

    def __post_init__(self) -> None:
        if any(x is not None and not x > 0 for x in (self.rate_Bps, self.nbytes, self.every_s)):
            raise ValueError(f"{self}: rate, size and period above zero")
        if self.nbytes is None and (self.rate_Bps is None or self.every_s is not None):
            raise ValueError(f"{self}: a steady stream has a rate and no period")


@dataclass(frozen=True, slots=True)
class BackgroundJob:
    """Another job on the same machine, repeated until the main one has ended.

    Parameters
    ----------
    plan : StepPlan
        Its classes and groups name ranks of the same topology.
    start_s : float
        When its first step begins; seconds since the start of the run.
    overlap_slowdown : float, optional
        Default: the GPU's.
    """

    plan: StepPlan
    start_s: float = 0.0
    overlap_slowdown: float | None = None


class Meeting(NamedTuple):
    """How the ranks of one collective met.

    Parameters
    ----------
    step : int
    name : str
        Of the collective's task.
    bucket : int, optional
    start_s : float
        When the last one had come; seconds since the start of the run.
    last : str
        Class of the last one.
    last_rank : int
        The last rank; the first of its class where a class moves as one.
    waited_s : float
        How long the ranks that were not last waited, on average.
    longest_s : float
        How long the first one waited.
    """

    step: int
    name: str
    bucket: int | None
    start_s: float
    last: str
    last_rank: int
    waited_s: float
    longest_s: float


def let_change(
    env: simpy.Environment,
    network: Network,
    changes: Sequence[Change],
    under_way: Callable[[], Sequence[str]],
) -> None:
    """Let the network become other machines, each at its time, in the order of time.

    Parameters
    ----------
    under_way : callable
        Names of the collectives on the move, for the message if one of them is cut off.
    """

    def become(change: Change) -> None:
        try:
            network.become(change.machine)
        except TopologyError as error:
            names = ", ".join(under_way()[:8]) or "nothing"
            raise SimulationError(f"{change.what}: {error}; under way: {names}") from error

    network.changes_left = len(changes)
    for change in sorted(changes, key=lambda change: change.at_s):
        event = env.timeout(change.at_s, change)
        event.callbacks.append(lambda event: become(event.value))


def let_flow(
    env: simpy.Environment,
    network: Network,
    machine: Machine,
    changes: Sequence[Change],
    traffic: Sequence[Traffic],
) -> None:
    """Put streams and bursts on the network, each from its time on."""
    later = sorted(changes, key=lambda change: change.at_s)

    def machine_now() -> Machine:
        return next((c.machine for c in reversed(later) if c.at_s <= env.now), machine)

    for one in traffic:
        env.process(_flow(env, network, machine_now, one))


def _flow(
    env: simpy.Environment, network: Network, machine_now: Any, one: Traffic
) -> Generator[simpy.Event, Any, None]:
    """Send one stream, or burst after burst by the route of the moment."""
    yield env.timeout(one.start_s)
    nbytes = math.inf if one.nbytes is None else one.nbytes
    rate_Bps = math.inf if one.rate_Bps is None else one.rate_Bps
    while True:
        begun_s = env.now
        try:
            route = machine_now().router.route(one.src, one.dst)
        except TopologyError as error:
            raise SimulationError(f"traffic from {one.src} to {one.dst}: {error}") from error
        yield network.stream(route, rate_Bps, nbytes)
        if one.every_s is None:
            return
        yield env.timeout(max(0.0, begun_s + one.every_s - env.now))
