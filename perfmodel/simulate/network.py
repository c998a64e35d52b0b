"""What every network model offers the engine, the bytes it counts, and what stalls it.

Also `FreeNetwork`, the what-if in which communication takes no time.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import simpy

from perfmodel.arrays import FloatArray, IntArray, RankGroup
from perfmodel.errors import PerfmodelError, SimulationError
from perfmodel.library.lowering.lowered import (
    Edges,
    LinkBytes,
    LoweredCollective,
    Stage,
    add_traffic,
)
from perfmodel.library.lowering.rerouting import reroute
from perfmodel.library.machine import Machine
from perfmodel.memo import once
from perfmodel.simulate.flow.approximation import ApproximationNote
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.model import Topology

LAST_IN_INSTANT = 2
"""SimPy priority after NORMAL (1): whatever else happens at a time happens before."""


def schedule_last(
    env: simpy.Environment, callback: Callable[[simpy.Event], None], delay_s: float = 0.0
) -> simpy.Event:
    """Call back after `delay_s`, when everything else of that instant has happened."""
    event = env.event()
    event._ok, event._value = True, None
    event.callbacks.append(callback)
    env.schedule(event, LAST_IN_INSTANT, delay_s)  # type: ignore[arg-type]
    return event


def call_at(
    env: simpy.Environment, time_s: float, callback: Callable[[simpy.Event], object]
) -> None:
    """Call back at a time; at once if it has passed."""
    timer = env.timeout(max(0.0, time_s - env.now))
    timer.callbacks.append(callback)  # type: ignore[arg-type]  # its result is ignored


def succeed_at(env: simpy.Environment, event: simpy.Event, time_s: float) -> None:
    """Let an event fire at a time; at once if it has passed."""
    event._ok, event._value = True, None
    env.schedule(event, delay=max(0.0, time_s - env.now))


def run_until(
    env: simpy.Environment, until: simpy.Event | float, describe_deadlock: Callable[[], str]
) -> None:
    """Run until an event or a time; raise on a deadlock, on which SimPy stops silently."""
    try:
        env.run(until=until)
    except PerfmodelError as error:
        if isinstance(error.__cause__, type(error)):  # SimPy raises a copy, made of its text
            raise error.__cause__ from error.__cause__.__cause__
        raise
    except RuntimeError as error:
        raise SimulationError(describe_deadlock()) from error


CollectiveCall = tuple[str, int, tuple[RankGroup, ...], int, int]
"""What `Network.collective` is asked for."""


class UnsuitedNetworkError(SimulationError):
    """Something that this network cannot simulate, or not in reasonable time; others can."""


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """Bytes over each directed link so far.

    Arrays have shape (arcs,).
    """

    wire_bytes: FloatArray
    """Divided by the bandwidth, the time for which a link is busy: includes flags and headers of
    protocols, and what a link could have carried while staging or a slow protocol held it up."""
    payload_bytes: FloatArray
    """Application data: 2 (N - 1) / N of an all-reduce in a ring of N."""


def zero_counters(arcs: int) -> LinkCounters:
    """Return counters of zero for some number of links."""
    return LinkCounters(np.zeros(arcs), np.zeros(arcs))


def sum_counters(a: LinkCounters, b: LinkCounters) -> LinkCounters:
    """Return the sum of two counters."""
    return LinkCounters(a.wire_bytes + b.wire_bytes, a.payload_bytes + b.payload_bytes)


def count_collective(counters: LinkCounters, lowered: LoweredCollective, times: int = 1) -> None:
    """Count a whole collective `times` times."""
    add_traffic(counters.wire_bytes, lowered, times)
    add_traffic(counters.payload_bytes, lowered, times, payload=True)


def count_bytes(counters: LinkCounters, link_bytes: LinkBytes, times: int) -> None:
    """Count a collective of which the bytes on the links that it uses are given, `times` times."""
    counters.wire_bytes[link_bytes.links] += times * link_bytes.wire_bytes
    counters.payload_bytes[link_bytes.links] += times * link_bytes.payload_bytes


def count_stream(counters: LinkCounters, arcs: IntArray, nbytes: float | FloatArray) -> None:
    """Count background traffic, which has no protocol overhead, on arcs that it crosses."""
    np.add.at(counters.wire_bytes, arcs, nbytes)
    np.add.at(counters.payload_bytes, arcs, nbytes)


def move_counts(
    counters: LinkCounters,
    old: Edges,
    new: Edges,
    wire_bytes: FloatArray,
    wire_share: FloatArray,
) -> None:
    """Move the unsent bytes of edges from the links of their old routes to those of the new.

    `old` and `new`: of the same edges. `wire_bytes`: not yet sent; shape (edges,). `wire_share`:
    bytes on the wire per byte of payload; shape (edges,).
    """
    if np.array_equal(old.arcs, new.arcs):
        return
    for edges, sign in ((old, -1.0), (new, 1.0)):
        crossed, moved = np.diff(edges.pointers), sign * wire_bytes
        np.add.at(counters.wire_bytes, edges.arcs, np.repeat(moved, crossed))
        np.add.at(counters.payload_bytes, edges.arcs, np.repeat(moved / wire_share, crossed))


@dataclass
class Network(ABC):
    """A network that carries collectives and messages in simulated time; one to an environment."""

    env: simpy.Environment
    timer: UncontendedTimer
    """Of the machine on which the run begins, whose library chooses algorithms and protocols."""
    changes_left: int | None = None
    """How often the machine will still change, if that is known: then traffic that stalls after the
    last change is an error at once."""
    _rerouted: dict[LoweredCollective, LoweredCollective] = field(default_factory=dict, init=False)
    _rerouted_legs: dict[LoweredCollective, tuple[Stage, ...]] = field(
        default_factory=dict, init=False
    )

    def __post_init__(self) -> None:
        self.machine = self.timer.machine  # as it is now
        self._counted = zero_counters(len(self.machine.topology.arcs))

    @property
    def counted(self) -> LinkCounters:
        """Bytes over each directed link: of collectives begun, and of streams until now."""
        return self._counted

    @property
    def notes(self) -> tuple[ApproximationNote, ...]:
        """Where what was simulated is an approximation; none where it is exact."""
        return ()

    def collective(
        self, op: str, nbytes: int, groups: tuple[RankGroup, ...], root: int, times: int = 1
    ) -> simpy.Event:
        """Start a collective in every group now; the event fires when the last has ended.

        `times`: so many alike, the next when the one before has ended in every group.
        """
        lowered = self.timer.lower(op, nbytes, groups, root)
        if times == 1:
            return self.launch(lowered)
        return self.env.process(self.launch(lowered) for _ in range(times))

    def _now(self, lowered: LoweredCollective) -> LoweredCollective:
        """Return a collective of the machine on which the run began, on the present machine.

        Raises `TopologyError`: two ranks that have to communicate cannot reach each other any more.
        """
        if self.machine is self.timer.machine:
            return lowered
        return once(self._rerouted, lowered, lambda: reroute(lowered, self.machine))

    def _legs_now(self, lowered: LoweredCollective) -> tuple[Stage, ...]:
        """Return the legs of a collective as they run on the present machine.

        `lowered`: on the machine on which the run began.

        Raises `TopologyError`: two ranks that have to communicate cannot reach each other any more.
        """
        legs = self.timer.legs(lowered)
        if self.machine is self.timer.machine:
            return legs
        whole = replace(lowered, stages=legs)
        return once(self._rerouted_legs, lowered, lambda: reroute(whole, self.machine).stages)

    def launch(self, collectives: Sequence[LoweredCollective]) -> simpy.Event:
        """Start lowered collectives now; the event fires when all have ended."""
        ended = [self._launch(lowered) for lowered in collectives]
        return ended[0] if len(ended) == 1 else self.env.all_of(ended)

    @abstractmethod
    def _launch(self, lowered: LoweredCollective) -> simpy.Event:
        """Start one lowered collective; the event fires when it has ended."""

    def occupy(self, work_s: float, ranks: int) -> None:  # noqa: B027  # most need no cores
        """Keep one core of each of some ranks' processes busy for `work_s` from now on.

        What the library has to do on those cores waits; without effect where it needs none.
        """

    @abstractmethod
    def stream(self, route: tuple[int, ...], cap_Bps: float, nbytes: float) -> simpy.Event:
        """Send background traffic over some arcs from now on, at most at `cap_Bps`.

        It shares links max-min fairly with everything else. The event fires when `nbytes` have
        been sent: never, if they are infinite.
        """

    def become(self, machine: Machine) -> None:  # noqa: ARG002  # those that can, override it
        """Go on on this machine: other rates, latencies and dead arcs.

        Transfers in progress keep the bytes that they have sent; edges over dead arcs take other
        routes.

        Raises `TopologyError`: no route is left between two ranks that have to communicate. Raises
        `UnsuitedNetworkError`: this network does not simulate such a change.
        """
        raise UnsuitedNetworkError("this network does not simulate a machine that changes")

    def _note_change(self, machine: Machine) -> None:
        """Replace the machine, of whose changes one less is left."""
        self.machine = machine
        self._rerouted.clear()
        self._rerouted_legs.clear()
        self.changes_left = None if self.changes_left is None else max(0, self.changes_left - 1)


def reroute_stream(machine: Machine, route: Sequence[int]) -> tuple[int, ...]:
    """Return the route of a stream, around dead arcs if it had one."""
    topology = machine.topology
    if topology.dead.isdisjoint(route):
        return tuple(route)
    names = topology.arcs.names
    return tuple(machine.router.route(names[route[0]][0], names[route[-1]][1]))


def stream_edges(routes: Sequence[Sequence[int]], caps_Bps: Sequence[float]) -> Edges:
    """Return an edge without latency for each stream over a route, at most at its rate."""
    zero = np.zeros(len(routes), dtype=np.int64)
    return Edges(
        src=zero,
        dst=zero,
        pointers=np.cumsum([0, *map(len, routes)]),
        arcs=np.array([link for route in routes for link in route], dtype=np.int64),
        latency_s=np.zeros(len(routes)),
        cap_Bps=np.array(caps_Bps, dtype=float),
        hop=zero,
        staged=False,
    )


class FreeNetwork(Network):
    """The network of the what-if "infinitely fast"."""

    def collective(
        self,
        _op: str,
        _nbytes: int,
        _groups: tuple[RankGroup, ...],
        _root: int,
        _times: int = 1,
    ) -> simpy.Event:
        """End a collective as soon as it has begun."""
        return self.env.timeout(0)

    def _launch(self, _lowered: LoweredCollective) -> simpy.Event:
        return self.env.timeout(0)

    def stream(self, _route: tuple[int, ...], _cap_Bps: float, nbytes: float) -> simpy.Event:
        """End a burst at once; a stream without an end never ends."""
        return self.env.event() if math.isinf(nbytes) else self.env.timeout(0)

    def become(self, _machine: Machine) -> None:
        """Stay as quick as before."""


MAX_NAMED = 4
"""Edges that a message names; it counts the others."""


def collective_name(lowered: LoweredCollective) -> str:
    """Return the readable name of a collective."""
    schedule = lowered.schedule
    return f"{schedule.collective} ({schedule.algorithm}, {schedule.nbytes:,} bytes)"


def stalled_text(
    machine: Machine, stalled: Iterable[tuple[LoweredCollective, Sequence[int]]]
) -> str:
    """Name the edges of some collectives that are stalled, and the links that carry nothing.

    Edges are numbered through the stages of their collective.
    """
    parts = []
    for lowered, edges in stalled:
        named = [_edge_text(machine.topology, lowered, edge) for edge in edges[:MAX_NAMED]]
        more = f" and {len(edges) - MAX_NAMED} more" if len(edges) > MAX_NAMED else ""
        parts.append(f"{collective_name(lowered)}: {'; '.join(named)}{more}")
    return f"traffic stalls for ever: {' | '.join(parts)}"


def stage_text(machine: Machine, lowered: LoweredCollective, stage: Stage) -> str:
    """Name those edges of one stage of a collective that cross links of no bandwidth."""
    rates, edges = machine.topology.arcs.bandwidth_Bps, stage.edges
    cut = np.add.reduceat(rates[edges.arcs] == 0, edges.pointers[:-1])
    stalled: list[int] = np.flatnonzero(cut).tolist()
    return stalled_text(machine, [(replace(lowered, stages=(stage,)), stalled)])


def waiting_text(waiting: Iterable[tuple[LoweredCollective, int]]) -> str:
    """Name collectives of which some sends wait for each other."""
    parts = [f"{collective_name(lowered)}: {sends} sends wait" for lowered, sends in waiting]
    return f"collectives that cannot end: {'; '.join(parts)}"


def _edge_text(topology: Topology, lowered: LoweredCollective, edge: int) -> str:
    for stage in lowered.stages:
        if edge < len(stage.edges):
            break
        edge -= len(stage.edges)
    edges, arcs = stage.edges, topology.arcs
    links = edges.arcs[edges.pointers[edge] : edges.pointers[edge + 1]].tolist()
    ends = f"{arcs.names[links[0]][0]} -> {arcs.names[links[-1]][1]}"
    dead = ", ".join(arcs.label(link) for link in links if not arcs.bandwidth_Bps[link])
    return f"{ends}, as {dead or 'its own limit'} carries nothing"
