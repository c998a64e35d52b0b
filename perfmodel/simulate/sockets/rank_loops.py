"""A collective as Gloo runs it: a loop over rounds in one thread of each rank.

For each round in which its rank takes part, the thread tells the senders that it is ready for their
messages, posts its own, which are sent when their receivers are ready, and proceeds. Before it
begins a round it waits until all messages of an earlier one have been sent and received (Gloo's
segmented ring: two rounds before), and before a drained phase until all earlier ones have.

Source: Gloo, ``gloo/allreduce.cc`` and ``gloo/transport/tcp/pair.cc``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import islice, repeat
from typing import Any

import numpy as np

from perfmodel.collectives.schedule import Phase, Round, Schedule
from perfmodel.garbage import no_collections
from perfmodel.library.lowering.edge_routing import edges_between
from perfmodel.library.lowering.lowered import Edges, LoweredCollective
from perfmodel.library.lowering.protocols import protocol_parameters
from perfmodel.library.machine import Machine
from perfmodel.library.model import Protocol
from perfmodel.memo import once
from perfmodel.simulate.sockets.alike_ranks import (
    Folding,
    Pair,
    Route,
    arcs_of,
    fold_pair,
    own_links,
)
from perfmodel.simulate.sockets.core_work import Connection, Link
from perfmodel.topology.templates.spec import PORT_KINDS

EVEN_BYTES = 1024.0
"""Difference of segments up to which all are taken for as long as their mean: Gloo cuts a buffer
into whole elements, so that the last segment is some hundred bytes shorter at most (below 128
ranks). Where collectives meet, these would decide whose message is first, for one rank otherwise
than for the others, and ranks that do the same would not stand for each other: a step would be off
by up to 4.5 %."""


@dataclass(slots=True)
class RankRound:
    """What one rank sends and receives in one round of a collective."""

    number: int
    """Of the round."""
    needs: int
    """How many of the rank's first rounds must be over before it begins."""
    sends: tuple[tuple[int, float], ...]
    """Receiver and bytes."""
    receives: tuple[int, ...]
    """Senders."""


Message = tuple[int, int, float]
"""Sender, receiver and bytes."""


def rank_rounds(
    schedule: Schedule, credits: int, folding: Folding | None = None
) -> tuple[tuple[RankRound, ...], ...]:
    """Return the rounds of each rank, or of the first ranks where they stand for all.

    `credits`: rounds in progress at once in phases whose `lag` is above one.
    """
    ranks = schedule.ranks + schedule.switches
    period = ranks if folding is None else folding.period
    rounds: list[list[RankRound]] = [[] for _ in range(period)]
    shared: dict[Hashable, Any] = {}  # most rounds of a rank send the same: kept once
    for number, (messages, ahead) in enumerate(_rounds(schedule, credits, folding)):
        mine: dict[int, tuple[list[tuple[int, float]], list[int]]] = {}
        for src, dst, nbytes in messages:
            rank = dst % period
            mine.setdefault(src, ([], []))[0].append((dst, nbytes))
            mine.setdefault(rank, ([], []))[1].append((src - dst + rank) % ranks)
        for rank, (sends, receives) in mine.items():
            both = tuple(sends), tuple(receives)
            needs = max(0, len(rounds[rank]) + 1 - ahead)
            rounds[rank].append(RankRound(number, needs, *shared.setdefault(both, both)))
    return tuple(map(tuple, rounds))


def _rounds(
    schedule: Schedule, credits: int, folding: Folding | None
) -> Iterator[tuple[list[Message], int]]:
    """Messages of each round, and how many rounds of a rank may be in progress with it."""
    rounds = schedule.rounds()
    for phase in schedule.phases:
        ahead = credits if phase.lag > 1 else 1
        for at, messages in enumerate(_messages(phase, rounds, folding)):
            yield messages, 1 if phase.drained and at == 0 else ahead


def _messages(
    phase: Phase, rounds: Iterator[Round], folding: Folding | None
) -> Iterator[list[Message]]:
    """Messages of each repeat of a phase: one for each pair, as long as its likes' on average."""
    is_even = (
        not phase.first.any()
        and (phase.active == phase.repeat).all()
        and np.ptp(phase.nbytes) <= EVEN_BYTES
    )
    even = float(phase.nbytes.mean()) if is_even else None
    if folding is None:
        return (_joined(part, even) for part in islice(rounds, phase.repeat))
    likes = folding.likes(phase.nbytes).mean(axis=0).tolist()
    return repeat(
        [
            (*ends, like if even is None else even)
            for ends, like in zip(folding.pairs(phase), likes, strict=True)
        ],
        phase.repeat,
    )


def _joined(part: Round, even: float | None) -> list[Message]:
    """Messages of a round, one for each pair of ranks; `even`: bytes of all chunks if alike."""
    total: dict[Pair, float] = {}
    for src, dst, nbytes in zip(
        part.src.tolist(), part.dst.tolist(), part.nbytes.tolist(), strict=True
    ):
        total[src, dst] = total.get((src, dst), 0.0) + (nbytes if even is None else even)
    return [(src, dst, nbytes) for (src, dst), nbytes in total.items()]


@dataclass
class RankLoops:
    """The loops of one collective in progress."""

    rounds: tuple[tuple[RankRound, ...], ...]
    """By rank; of the first ranks, where they stand for all."""
    ranks: int
    """All of them."""
    send_ready: Callable[[int, int, int], None]
    send: Callable[[int, int, int, float], None]
    """`send_ready` and `send`: send a ready message (receiver, sender, round) or data (sender,
    receiver, round, bytes); call `receive_ready` and `count_message` when they arrive."""
    _posted: dict[tuple[int, int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._begun = [0] * len(self.rounds)
        self._over = [0] * len(self.rounds)
        self._messages_left = [
            [len(t.sends) + len(t.receives) for t in mine] for mine in self.rounds
        ]
        self._index_of = [{t.number: i for i, t in enumerate(mine)} for mine in self.rounds]
        self._running = sum(bool(mine) for mine in self.rounds)

    @property
    def ended(self) -> bool:
        """Whether all ranks have ended their loops."""
        return self._running == 0

    def receive_ready(self, sender: int, receiver: int, number: int) -> None:
        """Receive a ready message: data that its sender has posted may be sent."""
        self._match(sender, receiver, number, -1.0)

    def _match(self, sender: int, receiver: int, number: int, nbytes: float) -> None:
        """Send once both sides have posted: bytes from the sender, -1 from the receiver."""
        sender, receiver = fold_pair(sender, receiver, self.ranks, len(self.rounds))
        other = self._posted.pop((sender, receiver, number), None)
        if other is None:
            self._posted[sender, receiver, number] = nbytes
            return
        self.send(sender, receiver, number, max(nbytes, other))
        self.count_message(sender, number)

    def count_message(self, rank: int, number: int) -> None:
        """Count one more message of a round as sent or received."""
        rank %= len(self.rounds)
        messages_left = self._messages_left[rank]
        messages_left[self._index_of[rank][number]] -= 1
        over = self._over[rank]
        while over < len(messages_left) and messages_left[over] == 0 and over < self._begun[rank]:
            over += 1
        if over > self._over[rank]:
            self._over[rank] = over
            if over == len(messages_left):
                self._running -= 1
            else:
                self.begin(rank)

    def begin(self, rank: int) -> None:
        """Begin the rounds of a rank that wait for nothing (any more)."""
        mine = self.rounds[rank]
        while self._begun[rank] < len(mine):
            round_ = mine[self._begun[rank]]
            if round_.needs > self._over[rank]:
                return
            self._begun[rank] += 1
            for src in round_.receives:
                self.send_ready(rank, src, round_.number)
            for dst, nbytes in round_.sends:
                self._match(rank, dst, round_.number, nbytes)


WiredPair = tuple[Connection, Connection, float]
"""Connections forward and backward, and the software's part of a message's latency."""

KeyedRoutes = tuple[Pair, float, tuple[tuple[int, ...], Route], tuple[tuple[int, ...], Route]]
"""A pair, the latency of its step in seconds, and its routes forward and backward, each with the
key of its connection."""


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
    _wired: dict[LoweredCollective, WiredCollective] = field(default_factory=dict, init=False)

    def wire(self, lowered: LoweredCollective) -> WiredCollective:
        """Return a collective on its connections."""

        def make() -> WiredCollective:
            ends = [part for s in lowered.stages for part in (s.edges.src, s.edges.dst)]
            routes = self._own_routes if self.folding is None else self._folded_routes
            return WiredCollective(
                lowered,
                tuple(part.tobytes() for part in ends),
                lowered.schedule.ranks + lowered.schedule.switches,
                self._rounds(lowered),
                {
                    pair: self._wire_pair(lowered, step_s, forward, backward)
                    for pair, step_s, forward, backward in routes(lowered)
                },
            )

        return once(self._wired, lowered, make)

    def _rounds(self, lowered: LoweredCollective) -> tuple[tuple[RankRound, ...], ...]:
        schedule, folding, credits = lowered.schedule, self.folding, self._protocol(lowered).credits
        kind = schedule.collective, schedule.algorithm, schedule.root
        sizes = schedule.ranks, schedule.nbytes, credits, folding and folding.period

        def rounds() -> tuple[tuple[RankRound, ...], ...]:
            with no_collections():
                return rank_rounds(schedule, credits, folding)

        return self.machine.cached(("rounds of ranks", kind, sizes), rounds)

    def _protocol(self, lowered: LoweredCollective) -> Protocol:
        schedule = lowered.schedule
        numbers = protocol_parameters(self.machine.library, schedule.collective, schedule.algorithm)
        return numbers[lowered.protocol]

    def _wire_pair(
        self,
        lowered: LoweredCollective,
        step_s: float,
        forward: tuple[tuple[int, ...], Route],
        backward: tuple[tuple[int, ...], Route],
    ) -> WiredPair:
        """Connect two ranks; of a step's latency, the library has what is not the links'."""
        protocol, link_s = self._protocol(lowered), forward[1].latency_s
        # With fewer credits than the protocol has, two ranks go in turn (see `step_latency_s`).
        whole_s = step_s * (2.0 if protocol.credits > lowered.credits else 1.0)
        software_s = max(0.0, whole_s - protocol.latencies_per_step * link_s)
        return self._connect(*forward), self._connect(*backward), software_s

    def _folded_routes(self, lowered: LoweredCollective) -> Iterator[KeyedRoutes]:
        """Yield the routes between those that stand for all, which have a connection a pair."""
        assert self.folding is not None
        folding, stage = self.folding, lowered.stages[0]
        slowest_s = folding.likes(stage.latency_s).max(axis=0).tolist()
        for pair, step_s in zip(folding.pairs(stage.phases[0]), slowest_s, strict=True):
            back = folding.pair(*pair[::-1])
            yield pair, step_s, (pair, folding.routes[pair]), (back, folding.routes[back])

    def _own_routes(self, lowered: LoweredCollective) -> Iterator[KeyedRoutes]:
        """Yield the routes between all pairs of ranks; a connection is known by its links."""
        for stage in lowered.stages:
            edges, phase = stage.edges, stage.phases[0]
            for at, pair in enumerate(zip(phase.src.tolist(), phase.dst.tolist(), strict=True)):
                forward = self._route(edges, at)
                backward = self._backward(int(edges.src[at]), int(edges.dst[at]))
                step_s = float(stage.latency_s[at])
                yield pair, step_s, (forward.arcs, forward), (backward.arcs, backward)

    def _backward(self, src: int, dst: int) -> Route:
        """Return the route from the receiver of data to their sender."""
        topology, ends = self.machine.topology, (np.array([dst]), np.array([src]))
        return self.machine.cached(
            ("back", dst, src),
            lambda: self._route(edges_between(topology, self.machine.router, *ends), 0),
        )

    def _route(self, edges: Edges, edge: int) -> Route:
        arcs = tuple(arcs_of(edges, edge))
        return Route(arcs, own_links(self.machine.topology, arcs), float(edges.latency_s[edge]))

    def _connect(self, key: tuple[int, ...], route: Route) -> Connection:
        """Return the connection of a key over the links of a route."""
        return once(
            self._connections,
            key,
            lambda: Connection(
                [self._link(arc) for arc in route.arcs],
                route.latency_s,
                self.machine.library.device_queue,
                route.own,
            ),
        )

    def _link(self, arc: int) -> Link:
        """Return a link; shapers are in the network."""
        topology = self.machine.topology
        between_hosts = topology.arcs.kinds[arc] in PORT_KINDS
        burst_bytes = topology.sockets.burst_bytes if between_hosts else 0.0
        rate_Bps = float(topology.arcs.bandwidth_Bps[arc])
        return once(self._links, arc, lambda: Link(rate_Bps, burst_bytes))
