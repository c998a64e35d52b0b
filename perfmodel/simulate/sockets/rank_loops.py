"""A collective as Gloo runs it: a loop over rounds in one thread of each rank.

For each round in which its rank takes part, the thread tells the senders that it is ready for their
messages, posts its own, which are sent when their receivers are ready, and proceeds. Before it
begins a round it waits until all messages of an earlier one have been sent and received (Gloo's
segmented ring: two rounds before), and before a drained phase until all earlier ones have.

Source: Gloo, ``gloo/allreduce.cc`` and ``gloo/transport/tcp/pair.cc``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfmodel.collectives.schedule import Phase, Round, Schedule
from perfmodel.garbage import no_collections
from perfmodel.library.lowering.edge_routing import edges_between
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.lowering.protocols import protocol_parameters
from perfmodel.library.machine import Machine
from perfmodel.library.model import Protocol
from perfmodel.memo import once
from perfmodel.simulate.sockets.alike_ranks import Folding, Pair, fold_pair, own_links
from perfmodel.simulate.sockets.core_work import Connection
from perfmodel.simulate.sockets.link import Link
from perfmodel.topology.templates.spec import PORT_KINDS

EVEN_BYTES = 1024.0
"""Difference of segments up to which all are taken for as long as their mean: Gloo cuts a buffer
into whole elements, so that the last segment is some hundred bytes shorter at most (below 128
ranks). Where collectives meet, these would decide whose message is first, for one rank otherwise
than for the others, and ranks that do the same would not stand for each other: a step would be off
by up to 4.5 %."""


@dataclass(slots=True)
class RankRound:
    """One round of one rank."""

    number: int
    """Of the round."""
    needs: int
    """How many of the rank's first rounds must be over before it begins."""
    sends: tuple[tuple[int, float], ...]
    """Receiver and bytes."""
    receives: tuple[int, ...]
    """Senders."""


_Messages = tuple[tuple[tuple[int, float], ...], tuple[int, ...]]
"""What one rank sends and receives in a round."""


def rank_rounds(schedule: Schedule, credits: int) -> tuple[tuple[RankRound, ...], ...]:
    """Return the rounds of each rank.

    `credits`: rounds in progress at once in phases whose `lag` is above one.
    """
    rounds: list[list[RankRound]] = [[] for _ in range(schedule.ranks + schedule.switches)]
    shared: dict[_Messages, _Messages] = {}  # most rounds of a rank send the same: kept once
    for number, (part, ahead, drained, even) in enumerate(_rounds(schedule, credits)):
        mine: dict[int, tuple[list[tuple[int, float]], list[int]]] = {}
        for src, dst, nbytes in _messages(part, even):
            mine.setdefault(src, ([], []))[0].append((dst, nbytes))
            mine.setdefault(dst, ([], []))[1].append(src)
        for rank, (sends, receives) in mine.items():
            messages = (tuple(sends), tuple(receives))
            needs = _needs(len(rounds[rank]), ahead, drained=drained)
            rounds[rank].append(RankRound(number, needs, *shared.setdefault(messages, messages)))
    return tuple(tuple(own) for own in rounds)


def folded_rounds(
    phases: Sequence[Phase], folding: Folding, credits: int
) -> tuple[tuple[RankRound, ...], ...]:
    """Return the rounds of the ranks that stand for all, each message as long as its likes'."""
    rounds: list[list[RankRound]] = [[] for _ in range(folding.period)]
    number = 0
    for phase in phases:
        pairs = folding.pairs(phase)
        sends: list[list[tuple[int, float]]] = [[] for _ in rounds]
        receives: list[list[int]] = [[] for _ in rounds]
        even = _even_bytes(phase)
        mean = folding.likes(phase.nbytes).mean(axis=0).tolist()
        each = mean if even is None else [even] * len(pairs)
        for (src, dst), nbytes in zip(pairs, each, strict=True):
            sends[src].append((dst, nbytes))
            rank = dst % folding.period
            receives[rank].append((src - (dst - rank)) % folding.ranks)
        messages = [(tuple(a), tuple(b)) for a, b in zip(sends, receives, strict=True)]
        for repeat in range(phase.repeat):
            ahead, drained = credits if phase.lag > 1 else 1, phase.drained and repeat == 0
            for rank, mine in enumerate(rounds):
                needs = _needs(len(mine), ahead, drained=drained)
                mine.append(RankRound(number, needs, *messages[rank]))
            number += 1
    return tuple(tuple(own) for own in rounds)


def _needs(before: int, ahead: int, *, drained: bool) -> int:
    """How many of a rank's rounds before one must be over before it begins."""
    return before if drained else max(0, before + 1 - ahead)


def _rounds(schedule: Schedule, credits: int) -> Iterator[tuple[Round, int, bool, float | None]]:
    """Rounds, how many may be in progress, whether earlier ones must be over, and bytes if even."""
    rounds = schedule.rounds()
    for phase in schedule.phases:
        even = _even_bytes(phase)
        for repeat in range(phase.repeat):
            part = next(rounds, None)
            if part is None:
                return
            ahead = credits if phase.lag > 1 else 1
            yield part, ahead, phase.drained and repeat == 0, even


def _even_bytes(phase: Phase) -> float | None:
    """Return the bytes of each message of a phase; None where they differ by more than a few."""
    if (phase.first != 0).any() or (phase.active != phase.repeat).any():
        return None
    return float(phase.nbytes.mean()) if np.ptp(phase.nbytes) <= EVEN_BYTES else None


def _messages(part: Round, even: float | None) -> Iterator[tuple[int, int, float]]:
    """Sender, receiver and bytes of each message: one message a round for each pair."""
    nbytes = np.asarray(part.nbytes, float) if even is None else np.full(len(part.src), even)
    total: dict[tuple[int, int], float] = {}
    for src, dst, each in zip(part.src.tolist(), part.dst.tolist(), nbytes.tolist(), strict=True):
        total[src, dst] = total.get((src, dst), 0.0) + each
    return ((src, dst, nbytes) for (src, dst), nbytes in total.items())


SendReady = Callable[[int, int, int], None]
Send = Callable[[int, int, int, float], None]


@dataclass(slots=True)
class RankLoops:
    """The loops of one collective in progress."""

    rounds: tuple[tuple[RankRound, ...], ...]
    """By rank; of the first ranks, where they stand for all."""
    ranks: int
    """All of them."""
    send_ready: SendReady
    send: Send
    """`send_ready` and `send`: send a ready message (receiver, sender, round) or data (sender,
    receiver, round, bytes); call `receive_ready` and `count_message` when they arrive."""
    _begun: list[int] = field(init=False)
    _over: list[int] = field(init=False)
    _messages_left: list[list[int]] = field(init=False)
    _index_of: list[dict[int, int]] = field(init=False)
    _posted: dict[tuple[int, int, int], float] = field(default_factory=dict)
    _running: int = field(init=False)

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
            return WiredCollective(
                lowered,
                tuple(part.tobytes() for part in ends),
                lowered.schedule.ranks + lowered.schedule.switches,
                self._rounds(lowered),
                self._pairs(lowered) if self.folding is None else self._folded_pairs(lowered),
            )

        return once(self._wired, lowered, make)

    def _rounds(self, lowered: LoweredCollective) -> tuple[tuple[RankRound, ...], ...]:
        schedule, folding, credits = lowered.schedule, self.folding, self._protocol(lowered).credits
        kind = schedule.collective, schedule.algorithm, schedule.root
        sizes = schedule.ranks, schedule.nbytes, credits, folding and folding.period

        def rounds() -> tuple[tuple[RankRound, ...], ...]:
            with no_collections():
                if folding is None:
                    return rank_rounds(schedule, credits)
                phases = [phase for stage in lowered.stages for phase in stage.phases]
                return folded_rounds(phases, folding, credits)

        return self.machine.cached(("rounds of ranks", kind, sizes), rounds)

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
        return self._connect((src, dst), route.arcs, route.latency_s, route.own)

    def _pairs(self, lowered: LoweredCollective) -> dict[Pair, WiredPair]:
        """By (sender, receiver): connections forward and backward, and the software's latency."""
        pairs = {}
        for stage in lowered.stages:
            edges, ends = stage.edges, (stage.phases[0].src.tolist(), stage.phases[0].dst.tolist())
            for at, pair in enumerate(zip(*ends, strict=True)):
                arcs = tuple(edges.arcs[edges.pointers[at] : edges.pointers[at + 1]].tolist())
                link_s = float(edges.latency_s[at])
                forward = self._connection(arcs, link_s)
                backward = self._backward(int(edges.src[at]), int(edges.dst[at]))
                software_s = self._software_s(lowered, float(stage.latency_s[at]), link_s)
                pairs[pair] = (forward, backward, software_s)
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
        return self._connect(arcs, arcs, link_s, own_links(self.machine.topology, arcs))

    def _connect(
        self, key: tuple[int, ...], arcs: tuple[int, ...], link_s: float, own: int
    ) -> Connection:
        """Return the connection of a key over some links, of which so many are the sender's."""
        queue_bytes = self.machine.library.device_queue
        return once(
            self._connections,
            key,
            lambda: Connection([self._link(arc) for arc in arcs], link_s, queue_bytes, own),
        )

    def _link(self, arc: int) -> Link:
        """Return a link; shapers are in the network."""
        topology = self.machine.topology
        between_hosts = topology.arcs.kinds[arc] in PORT_KINDS
        burst_bytes = topology.sockets.burst_bytes if between_hosts else 0.0
        rate_Bps = float(topology.arcs.bandwidth_Bps[arc])
        return once(self._links, arc, lambda: Link(rate_Bps, burst_bytes))
