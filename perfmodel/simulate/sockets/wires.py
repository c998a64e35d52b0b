"""Collectives as loops of ranks, and the connections between them on the links of a machine."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perfmodel.library.lowering.edge_routing import edges_between
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.lowering.protocols import protocol_parameters
from perfmodel.library.machine import Machine
from perfmodel.library.model import Protocol
from perfmodel.simulate.sockets.alike_ranks import Folding, Pair, own_links
from perfmodel.simulate.sockets.connection import Connection
from perfmodel.simulate.sockets.event_queue import without_collector
from perfmodel.simulate.sockets.link import Link
from perfmodel.simulate.sockets.rank_loops import RankRound, folded_rounds, rank_rounds
from perfmodel.topology.templates.spec import PORT_KINDS

WiredPair = tuple[Connection, Connection, float]
"""Connections forward and backward, and the software's part of a message's latency."""


@dataclass(frozen=True, slots=True)
class WiredCollective:
    """A collective as rounds of ranks, by (sender, receiver) on its connections."""

    lowered: LoweredCollective
    edges: tuple[bytes, ...]
    """Between which ranks it sends."""
    ranks: int
    rounds: tuple[tuple[RankRound, ...], ...]
    pairs: dict[Pair, WiredPair]


@dataclass(slots=True)
class Wires:
    """Links and connections of a machine, made when a collective first needs them."""

    machine: Machine
    folding: Folding | None
    """Which ranks stand for all; None: each for itself."""
    _links: dict[int, Link] = field(default_factory=dict, init=False)
    _connections: dict[tuple[int, ...], Connection] = field(default_factory=dict, init=False)
    _wired: dict[int, WiredCollective] = field(default_factory=dict, init=False)

    def wire(self, lowered: LoweredCollective) -> WiredCollective:
        """Return a collective on its connections."""
        if id(lowered) not in self._wired:
            ends = [part for s in lowered.stages for part in (s.edges.src, s.edges.dst)]
            self._wired[id(lowered)] = WiredCollective(
                lowered,
                tuple(part.tobytes() for part in ends),
                lowered.schedule.ranks + lowered.schedule.switches,
                self._rounds(lowered),
                self._pairs(lowered) if self.folding is None else self._folded_pairs(lowered),
            )
        return self._wired[id(lowered)]

    def _rounds(self, lowered: LoweredCollective) -> tuple[tuple[RankRound, ...], ...]:
        schedule, folding = lowered.schedule, self.folding
        credits = self._protocol(lowered).credits
        period = schedule.ranks if folding is None else folding.period
        key = (
            "turns",
            schedule.collective,
            schedule.algorithm,
            schedule.ranks,
            schedule.nbytes,
            schedule.root,
            credits,
            period,
        )
        phases = [phase for stage in lowered.stages for phase in stage.phases]

        def rounds() -> tuple[tuple[RankRound, ...], ...]:
            with without_collector():
                if folding is None:
                    return rank_rounds(schedule, credits)
                return folded_rounds(phases, folding, credits)

        return self.machine.cached(key, rounds)

    def _protocol(self, lowered: LoweredCollective) -> Protocol:
        schedule = lowered.schedule
        numbers = protocol_parameters(self.machine.library, schedule.collective, schedule.algorithm)
        return numbers[lowered.protocol]

    def _software_s(self, lowered: LoweredCollective, step_s: float, link_s: float) -> float:
        """Return the library's own part of a step's latency."""
        protocol = self._protocol(lowered)
        halved = protocol.credits > lowered.credits  # see `step_latency_s`: two ranks in turn
        step_s *= 2.0 if halved else 1.0
        return max(0.0, step_s - protocol.latencies_per_step * link_s)

    def _folded_pairs(self, lowered: LoweredCollective) -> dict[Pair, WiredPair]:
        """By (sender, receiver) of those that stand for all: as `_pairs`."""
        assert self.folding is not None
        folding, stage = self.folding, lowered.stages[0]
        pairs = {}
        slowest_s = folding.likes(stage.latency_s).max(axis=0).tolist()
        for (src, dst), step_s in zip(folding.pairs(stage.phases[0]), slowest_s, strict=True):
            forward = self._folded_connection(folding, src, dst)
            backward = self._folded_connection(folding, *folding.pair(dst, src))
            software_s = self._software_s(lowered, step_s, forward.latency_s)
            pairs[src, dst] = (forward, backward, software_s)
        return pairs

    def _folded_connection(self, folding: Folding, src: int, dst: int) -> Connection:
        route = folding.routes[src, dst]
        if (src, dst) not in self._connections:
            links = [self._link(arc) for arc in route.arcs]
            queue = self.machine.library.device_queue
            self._connections[src, dst] = Connection(links, route.latency_s, queue, route.own)
        return self._connections[src, dst]

    def _pairs(self, lowered: LoweredCollective) -> dict[Pair, WiredPair]:
        """By (sender, receiver): connections forward and backward, and the software's latency."""
        pairs = {}
        for stage in lowered.stages:
            edges, phase = stage.edges, stage.phases[0]
            for at, (src, dst) in enumerate(
                zip(phase.src.tolist(), phase.dst.tolist(), strict=True)
            ):
                arcs = tuple(edges.arcs[edges.pointers[at] : edges.pointers[at + 1]].tolist())
                link_s = float(edges.latency_s[at])
                forward = self._connection(arcs, link_s)
                ends = int(edges.src[at]), int(edges.dst[at])
                backward = self._backward(*ends)
                software_s = self._software_s(lowered, float(stage.latency_s[at]), link_s)
                pairs[src, dst] = (forward, backward, software_s)
        return pairs

    def _backward(self, src: int, dst: int) -> Connection:
        """Return the connection from the receiver of data to their sender."""
        machine = self.machine

        def route() -> tuple[tuple[int, ...], float]:
            ends = np.array([dst]), np.array([src])
            edge = edges_between(machine.topology, machine.router, *ends)
            return tuple(edge.arcs.tolist()), float(edge.latency_s[0])

        return self._connection(*machine.cached(("back", dst, src), route))

    def _connection(self, arcs: tuple[int, ...], link_s: float) -> Connection:
        if arcs not in self._connections:
            machine = self.machine
            links = [self._link(arc) for arc in arcs]
            own = own_links(machine.topology, arcs)
            queue = machine.library.device_queue
            self._connections[arcs] = Connection(links, link_s, queue, own)
        return self._connections[arcs]

    def _link(self, arc: int) -> Link:
        """Return a link; shapers are in the network."""
        topology = self.machine.topology
        if arc not in self._links:
            between_hosts = topology.arcs.kinds[arc] in PORT_KINDS
            burst_bytes = topology.sockets.burst_bytes if between_hosts else 0.0
            self._links[arc] = Link(float(topology.arcs.bandwidth_Bps[arc]), burst_bytes)
        return self._links[arc]
