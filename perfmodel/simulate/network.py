"""What both network simulators promise the engine, and what they count.

Bytes over each directed link: what they make a link busy with, and what of it is payload.

A network that takes no time: what a step would be if communication were free.

Says by name what keeps sends from ever arriving.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import simpy
from numpy.typing import NDArray

from perfmodel.arrays import RankGroup
from perfmodel.library.lowering.lowered import LoweredCollective, Stage
from perfmodel.library.machine import Machine
from perfmodel.simulate.flow.approximation import ApproximationNote
from perfmodel.simulate.uncontended import UncontendedTimer, add_traffic
from perfmodel.topology.model import Topology

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Routes(Protocol):
    """Which links each edge crosses: those of edge e are ``arcs[pointers[e]:pointers[e + 1]]``."""

    @property
    def arcs(self) -> Ints:
        """Links, edge by edge."""
        ...

    @property
    def pointers(self) -> Ints:
        """Where each edge's links begin; shape (edges + 1,)."""
        ...


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """Bytes over each directed link until now.

    Parameters
    ----------
    wire_bytes : ndarray of float, shape (arcs,)
        Over a link's bandwidth this is how long it is busy: flags and headers of a protocol count,
        and what a link could have carried while staging or a slow protocol held it up.
    payload_bytes : ndarray of float, shape (arcs,)
        What users sent: 2 (N - 1) / N of an all-reduce in a ring of N.
    """

    wire_bytes: Floats
    payload_bytes: Floats


def nothing_counted(arcs: int) -> LinkCounters:
    """Return counts of zero for so many links."""
    return LinkCounters(np.zeros(arcs), np.zeros(arcs))


def both_counted(one: LinkCounters, other: LinkCounters) -> LinkCounters:
    """Return the sum of two counts."""
    return LinkCounters(one.wire_bytes + other.wire_bytes, one.payload_bytes + other.payload_bytes)


def count_collective(counted: LinkCounters, way: LoweredCollective, times: int = 1) -> None:
    """Count a whole collective, or so many like it."""
    add_traffic(counted.wire_bytes, way, times)
    add_traffic(counted.payload_bytes, way, times, payload=True)


def count_stream(counted: LinkCounters, arcs: Ints, nbytes: float) -> None:
    """Count bytes of somebody else, who adds nothing to them, on all links of a route."""
    np.add.at(counted.wire_bytes, arcs, nbytes)
    np.add.at(counted.payload_bytes, arcs, nbytes)


def count_elsewhere(
    counted: LinkCounters, old: Routes, new: Routes, wire_bytes: Floats, wire_share: Floats
) -> None:
    """Count what edges have still to send on the links that will carry it, and not on others.

    Parameters
    ----------
    counted : LinkCounters
    old, new : Routes
        Of the same edges.
    wire_bytes : ndarray of float, shape (edges,)
        Still to be sent.
    wire_share : ndarray of float, shape (edges,)
        Bytes on the wire per byte of payload.
    """
    if np.array_equal(old.arcs, new.arcs):
        return
    for routes, sign in ((old, -1.0), (new, 1.0)):
        crossed = np.diff(routes.pointers)
        np.add.at(counted.wire_bytes, routes.arcs, np.repeat(sign * wire_bytes, crossed))
        payload = np.repeat(sign * wire_bytes / wire_share, crossed)
        np.add.at(counted.payload_bytes, routes.arcs, payload)


class Network(Protocol):
    """A network that carries collectives and messages in simulated time.

    `changes_left` says how often the machine will still change, if that is known.
    """

    changes_left: int | None

    @property
    def counted(self) -> LinkCounters:
        """Bytes over each directed link until now."""
        ...

    @property
    def notes(self) -> tuple[ApproximationNote, ...]:
        """Where what was simulated is an approximation; none where it is exact."""
        ...

    def collective(
        self, op: str, nbytes: int, groups: tuple[RankGroup, ...], root: int
    ) -> simpy.Event:
        """Start a collective in every group now; the event fires when the last has ended."""
        ...

    def message(self, src: int, dst: int, nbytes: int) -> simpy.Event:
        """Start a point-to-point message now; the event fires when it is delivered."""
        ...

    def occupy(self, work_s: float, ranks: int) -> None:
        """Let the processes of some ranks do something on a core each, from now on.

        Whatever the library wants to do on those cores has to wait.
        """
        ...

    def stream(self, route: tuple[int, ...], cap_Bps: float, nbytes: float) -> simpy.Event:
        """Send somebody else's bytes over some arcs from now on, at most at `cap_Bps`.

        They share links max-min fairly with everything else. The event fires when `nbytes` have
        been sent: never, if they are infinite.
        """
        ...

    def become(self, machine: Machine) -> None:
        """From now on the machine is this one: other rates, latencies and dead arcs.

        What is on the move keeps the bytes that it has sent; edges over dead arcs take other
        routes.

        Raises
        ------
        TopologyError
            No route is left between two that have to talk.
        """
        ...


@dataclass
class FreeNetwork:
    """The network of the what-if "infinitely fast"."""

    env: simpy.Environment
    estimator: UncontendedTimer
    changes_left: int | None = None
    notes: tuple[ApproximationNote, ...] = ()
    counted: LinkCounters = field(init=False)

    def __post_init__(self) -> None:
        self.counted = nothing_counted(len(self.estimator.machine.topology.arcs))

    def collective(
        self, _op: str, _nbytes: int, _groups: tuple[RankGroup, ...], _root: int
    ) -> simpy.Event:
        """End a collective as soon as it has begun."""
        return self.env.timeout(0)

    def message(self, _src: int, _dst: int, _nbytes: int) -> simpy.Event:
        """Deliver a message as soon as it was sent."""
        return self.env.timeout(0)

    def occupy(self, _work_s: float, _ranks: int) -> None:
        """Hold up nobody: here, messages need no cores."""

    def stream(self, _route: tuple[int, ...], _cap_Bps: float, nbytes: float) -> simpy.Event:
        """End a burst at once; a stream without an end never ends."""
        return self.env.event() if math.isinf(nbytes) else self.env.timeout(0)

    def become(self, _machine: Machine) -> None:
        """Stay as quick as before."""


SHOWN = 4
"""So many edges are named; the others are counted."""


def name_of(way: LoweredCollective) -> str:
    """Readable name of a collective."""
    schedule = way.schedule
    return f"{schedule.collective} ({schedule.algorithm}, {schedule.nbytes:,} bytes)"


def standing_text(
    machine: Machine, standing: Iterable[tuple[LoweredCollective, Sequence[int]]]
) -> str:
    """Name the edges of some collectives that stand still, and the links that carry nothing.

    Edges are numbered through the stages of their collective.
    """
    parts = []
    for way, edges in standing:
        named = [_edge_text(machine.topology, way, edge) for edge in edges[:SHOWN]]
        more = f" and {len(edges) - SHOWN} more" if len(edges) > SHOWN else ""
        parts.append(f"{name_of(way)}: {'; '.join(named)}{more}")
    return f"traffic stands still for ever: {' | '.join(parts)}"


def stage_text(machine: Machine, way: LoweredCollective, stage: Stage) -> str:
    """Name the edges of one stage of a collective over links that carry nothing."""
    rates, edges = machine.topology.arcs.bandwidth_Bps, stage.edges
    cut = np.add.reduceat(rates[edges.arcs] == 0, edges.pointers[:-1])
    found: list[int] = np.flatnonzero(cut).tolist()
    return standing_text(machine, [(replace(way, stages=(stage,)), found)])


def waiting_text(waiting: Iterable[tuple[LoweredCollective, int]]) -> str:
    """Name collectives of which some sends wait for each other."""
    parts = [f"{name_of(way)}: {left} sends wait" for way, left in waiting]
    return f"collectives that cannot end: {'; '.join(parts)}"


def _edge_text(topology: Topology, way: LoweredCollective, edge: int) -> str:
    for stage in way.stages:
        if edge < len(stage.edges):
            break
        edge -= len(stage.edges)
    edges, arcs = stage.edges, topology.arcs
    links = edges.arcs[edges.pointers[edge] : edges.pointers[edge + 1]].tolist()
    ends = f"{arcs.names[links[0]][0]} -> {arcs.names[links[-1]][1]}"
    dead = ", ".join(arcs.label(link) for link in links if not arcs.bandwidth_Bps[link])
    return f"{ends}, as {dead or 'its own limit'} carries nothing"
