"""Gloo's network: messages on one connection for each pair of ranks, simulated one by one.

Both fidelities use it for Gloo and some ranks without background traffic, faults or changes of the
machine. In contrast to a fluid it has the ready messages, the order in which everything is written
to the sockets, and what waits for what (see `rank_loops.py` and `connection.py`). Elsewhere ready
messages are part of a step's latency.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import simpy

from perfmodel.errors import SimulationError
from perfmodel.library.lowering.edge_routing import edges_between
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.lowering.protocols import protocol_parameters
from perfmodel.library.machine import Machine
from perfmodel.library.model import Protocol
from perfmodel.simulate.flow.approximation import NOTES, ApproximationNote
from perfmodel.simulate.network import (
    Network,
    UnsuitedNetworkError,
    call_at,
    collective_name,
    count_collective,
    schedule_last,
)
from perfmodel.simulate.sockets.alike_ranks import (
    Folding,
    Pair,
    fold,
    fold_pair,
    messages_of,
    own_links,
)
from perfmodel.simulate.sockets.connection import Connection, Cores
from perfmodel.simulate.sockets.link import Link
from perfmodel.simulate.sockets.rank_loops import (
    RankLoops,
    RankRound,
    folded_rounds,
    rank_rounds,
)
from perfmodel.topology.templates.spec import PORT_KINDS

PIECE_BYTES = 65536
"""Bytes that a receiver processes at once (Linux delivers TCP in pieces of 64 KiB at most)."""
TURN_BYTES, MOST_PIECES = 16384, 16
"""Pieces of a message whose connection shares links with other groups': they take turns. TCP's turn
is a packet or some; one group is ahead of its fair share by a piece for each message in flight."""


EXACTLY_ALIKE = 1e-9
"""Relative difference of latencies that are the same but for rounding."""


@dataclass(slots=True)
class _Compiled:
    """A collective as rounds of ranks; by (sender, receiver) two connections and the latency."""

    lowered: LoweredCollective
    edges: tuple[bytes, ...]
    """Between which ranks it sends."""
    ranks: int
    rounds: tuple[tuple[RankRound, ...], ...]
    pairs: dict[tuple[int, int], tuple[Connection, Connection, float]]


@dataclass
class SocketNetwork(Network):
    """The network of Gloo's sockets (see the module and `Network`)."""

    tolerance: float | None = EXACTLY_ALIKE
    """How alike ranks are that stand for each other (see `alike_ranks.fold`); None: none does."""
    most_messages: int | None = None
    """Refuse collectives of more (see `messages_of`)."""
    _folding: Folding | None = field(default=None, init=False)
    """Of what is in progress."""
    _nearly: bool = field(default=False, init=False)
    """Whether ranks that are not exactly alike stood for each other."""
    _links: dict[int, Link] = field(default_factory=dict, init=False)
    _connections: dict[tuple[int, ...], Connection] = field(default_factory=dict, init=False)
    _compiled: dict[int, _Compiled] = field(default_factory=dict, init=False)
    _events: list[tuple[float, int, Callable[[], object]]] = field(default_factory=list, init=False)
    _in_progress: Counter[tuple[bytes, ...]] = field(default_factory=Counter, init=False)
    """Collectives, by the edges over which they send."""
    _count: itertools.count[int] = field(default_factory=itertools.count, init=False)
    _wake: simpy.Event | None = field(default=None, init=False)
    _wake_s: float = field(default=0.0, init=False)
    _now_s: float = field(default=0.0, init=False)
    _cores: Cores = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        sockets = self.machine.topology.sockets
        self._cores = Cores(sockets.cores, sockets.core_speed)

    @property
    def notes(self) -> tuple[ApproximationNote, ...]:
        """Where ranks that are only nearly alike stood for each other."""
        return (NOTES["sockets"],) if self._nearly else ()

    def _launch(self, lowered: LoweredCollective) -> simpy.Event:
        folding = None
        if self.tolerance is not None and (self._folding or not self._in_progress):
            folding = fold(self.machine, lowered, self.tolerance)
            self._nearly |= folding is not None and self.tolerance > EXACTLY_ALIKE
        self._check_suits(lowered, folding)
        if folding is not self._folding:
            self._refold(folding)
        count_collective(self._counted, lowered)
        return self._start(self._compile(lowered))

    def _check_suits(self, lowered: LoweredCollective, folding: Folding | None) -> None:
        """Refuse what is too much to simulate message by message."""
        if self.most_messages is not None and messages_of(lowered, folding) > self.most_messages:
            raise UnsuitedNetworkError(collective_name(lowered))

    def _refold(self, folding: Folding | None) -> None:
        """Fold otherwise: nothing is on its way, so that all links and connections are idle."""
        if self._in_progress:
            raise UnsuitedNetworkError("collectives that fold each in its own way")
        self._folding = folding
        for cache in (self._links, self._connections, self._compiled):
            cache.clear()

    def occupy(self, work_s: float, ranks: int) -> None:
        """Keep one core of each of some ranks' processes busy for `work_s` from now on."""
        if self._cores.number is None:
            return

        for _ in range(ranks):
            self._at(self.env.now, partial(self._occupy, work_s))

    def stream(self, _route: tuple[int, ...], _cap_Bps: float, _nbytes: float) -> simpy.Event:
        """Refuse: the engine chooses another network where there is background traffic."""
        raise SimulationError("sockets carry no other traffic")

    def become(self, _machine: Machine) -> None:
        """Refuse: the engine chooses another network where the machine changes."""
        raise SimulationError("sockets do not change")

    # ------------------------------------------------------------ messages

    def _start(self, compiled: _Compiled) -> simpy.Event:
        done = self.env.event()

        def send_ready(receiver: int, sender: int, number: int) -> None:
            pair = fold_pair(sender, receiver, compiled.ranks, len(compiled.rounds))
            _, backward, _ = compiled.pairs[pair]

            def write_ready() -> None:
                at_s = backward.send_ready(self._now_s)
                self._at(at_s, lambda: loops.receive_ready(sender, receiver, number))

            self._send_in_order(backward, [write_ready])

        def send(sender: int, receiver: int, number: int, nbytes: float) -> None:
            forward, _, software_s = compiled.pairs[sender, receiver]
            call_s = self._now_s

            def write() -> None:
                rest_s = software_s - (self._now_s - call_s)

                def arrive(at_s: float) -> None:
                    self._receive(at_s, at_s + rest_s, nbytes, forward.rate_Bps, land)

                self._send(forward, nbytes * compiled.lowered.wire_factor, arrive)

            def land() -> None:
                loops.count_message(receiver, number)
                if loops.ended:
                    self._end(compiled)
                    call_at(self.env, self._now_s, lambda _: done.succeed())

            self._when_free(self.machine.library.core_message, write)

        loops = RankLoops(compiled.rounds, compiled.ranks, send_ready, send)
        if loops.ended:
            return self.env.timeout(compiled.lowered.launch_s)
        self._in_progress[compiled.edges] += 1
        at_s = self.env.now + compiled.lowered.launch_s
        for rank in range(len(compiled.rounds)):
            self._at(at_s, partial(self._call, loops, rank))
        return done

    def _end(self, compiled: _Compiled) -> None:
        self._in_progress[compiled.edges] -= 1
        if not self._in_progress[compiled.edges]:
            del self._in_progress[compiled.edges]

    def _pieces(self, nbytes: float) -> int:
        """Return in how many pieces a message is sent.

        Collectives on the same connections follow one another on them. Those of other groups have
        connections of their own, which TCP lets share a link alike: they take turns, piece by
        piece.
        """
        if len(self._in_progress) < 2:
            return 1
        return max(1, min(MOST_PIECES, math.ceil(nbytes / TURN_BYTES)))

    def _send(self, connection: Connection, nbytes: float, arrive: Callable[[float], None]) -> None:
        """Send a message; call when it is known when all of it arrives."""
        pieces = self._pieces(nbytes)

        def send_piece() -> None:
            connection.send(self._now_s, nbytes / pieces)

        def send_last() -> None:
            arrive(connection.send(self._now_s, nbytes / pieces))

        self._send_in_order(connection, [send_piece] * (pieces - 1) + [send_last])

    def _send_in_order(self, connection: Connection, actions: Sequence[Callable[[], None]]) -> None:
        connection.send_in_order(actions, lambda at_s, act: self._at(max(self._now_s, at_s), act))

    def _call(self, loops: RankLoops, rank: int) -> None:
        self._when_free(self.machine.library.core_call, partial(loops.begin, rank))

    def _when_free(self, work_s: float, action: Callable[[], None]) -> None:
        """Perform an action as soon as a core is free for it."""
        wait_s = self._cores.wait_s(self._now_s, work_s)
        if wait_s > 0:
            self._at(self._now_s + wait_s, action)
        else:
            action()

    def _receive(
        self, at_s: float, idle_s: float, nbytes: float, rate_Bps: float, land: Callable[[], None]
    ) -> None:
        """Process arriving data on a core of the receiver; deliver after the last packet.

        Data before the last packet are processed piece by piece, each in the middle of its arrival.
        An idle machine is done at `idle_s`, wake-up included; a busy one waits for a core instead
        of waking up, so that the later of both counts. What lands at the same time lands in the
        order in which it was written, however it was processed.
        """
        library, cores, order = self.machine.library, self._cores, next(self._count)
        sockets = self.machine.topology.sockets
        if cores.number is None:
            self._at(idle_s, land, order)
            return
        last_bytes = min(nbytes, sockets.frame_bytes or PIECE_BYTES)
        pieces = math.ceil((nbytes - last_bytes) / PIECE_BYTES)
        for piece in range(pieces):
            piece_bytes = (nbytes - last_bytes) / pieces
            before_s = (last_bytes + (pieces - piece - 0.5) * piece_bytes) / rate_Bps
            work_s = self._receiving_s(piece_bytes, rate_Bps)
            self._at(max(self._now_s, at_s - before_s), partial(self._occupy, work_s))
        last_s = library.core_message + self._receiving_s(last_bytes, rate_Bps)

        def process_last() -> None:
            self._at(max(idle_s, cores.done_s(self._now_s, last_s)), land, order)

        self._at(at_s, process_last)

    def _occupy(self, work_s: float) -> None:
        """Keep a core busy from now on, or as soon as one is free."""
        self._cores.wait_s(self._now_s, work_s)

    def _receiving_s(self, nbytes: float, rate_Bps: float) -> float:
        """Return how long arriving data keep a core of speed 1 busy, sending included; seconds.

        One core at most: packets that arrive faster than it processes them are batched.
        """
        library = self.machine.library
        frame = self.machine.topology.sockets.frame_bytes
        if frame and library.core_frame > 0:
            return min(nbytes / frame * library.core_frame, nbytes / rate_Bps * self._cores.speed)
        return 0.0 if library.core_bytes is None else nbytes / library.core_bytes

    def _at(self, time_s: float, action: Callable[[], object], order: int | None = None) -> None:
        """Act at a time; of what happens at the same time, in order (default: of these calls)."""
        order = next(self._count) if order is None else order
        heapq.heappush(self._events, (time_s, order, action))
        if self._wake is None or time_s < self._wake_s:
            self._wait(time_s)

    def _wait(self, time_s: float) -> None:
        delay_s = max(0.0, time_s - self.env.now)
        wake = schedule_last(self.env, self._advance, delay_s)
        self._wake, self._wake_s = wake, time_s

    def _advance(self, event: simpy.Event) -> None:
        """Run to the next event of SimPy."""
        if event is not self._wake:
            return
        self._wake_s = -np.inf  # events that are added meanwhile are seen below
        while self._events and self._events[0][0] <= max(self.env.now, self.env.peek()):
            self._now_s, _, action = heapq.heappop(self._events)
            action()
        self._wake = None
        if self._events:
            self._wait(self._events[0][0])

    # ------------------------------------------------------------ compiling

    def _compile(self, lowered: LoweredCollective) -> _Compiled:
        if id(lowered) not in self._compiled:
            ends = [part for s in lowered.stages for part in (s.edges.src, s.edges.dst)]
            self._compiled[id(lowered)] = _Compiled(
                lowered,
                tuple(part.tobytes() for part in ends),
                lowered.schedule.ranks + lowered.schedule.switches,
                self._rounds(lowered),
                self._pairs(lowered) if self._folding is None else self._folded_pairs(lowered),
            )
        return self._compiled[id(lowered)]

    def _rounds(self, lowered: LoweredCollective) -> tuple[tuple[RankRound, ...], ...]:
        schedule, folding = lowered.schedule, self._folding
        credits = self._protocol(lowered).credits
        period = schedule.ranks if folding is None else folding.period
        key = (
            "turns", schedule.collective, schedule.algorithm, schedule.ranks, schedule.nbytes,
            schedule.root, credits, period,
        )  # fmt: skip
        if folding is None:
            return self.machine.cached(key, lambda: rank_rounds(schedule, credits))
        phases = [phase for stage in lowered.stages for phase in stage.phases]
        return self.machine.cached(key, lambda: folded_rounds(phases, folding, credits))

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

    def _folded_pairs(
        self, lowered: LoweredCollective
    ) -> dict[Pair, tuple[Connection, Connection, float]]:
        """By (sender, receiver) of those that stand for all: as `_pairs`."""
        assert self._folding is not None
        folding, stage = self._folding, lowered.stages[0]
        pairs = {}
        slowest_s = folding.likes(stage.latency_s).max(axis=0).tolist()
        for (src, dst), step_s in zip(folding.pairs(stage.phases[0]), slowest_s, strict=True):
            forward = self._folded_connection(src, dst)
            backward = self._folded_connection(*folding.pair(dst, src))
            software_s = self._software_s(lowered, step_s, forward.latency_s)
            pairs[src, dst] = (forward, backward, software_s)
        return pairs

    def _folded_connection(self, src: int, dst: int) -> Connection:
        assert self._folding is not None
        route = self._folding.routes[src, dst]
        if (src, dst) not in self._connections:
            links = [self._link(arc) for arc in route.arcs]
            queue = self.machine.library.device_queue
            self._connections[src, dst] = Connection(links, route.latency_s, queue, route.own)
        return self._connections[src, dst]

    def _pairs(
        self, lowered: LoweredCollective
    ) -> dict[Pair, tuple[Connection, Connection, float]]:
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

    def _is_between_hosts(self, arc: int) -> bool:
        return self.machine.topology.arcs.kinds[arc] in PORT_KINDS

    def _link(self, arc: int) -> Link:
        """Return a link; shapers are in the network."""
        topology = self.machine.topology
        if arc not in self._links:
            burst_bytes = topology.sockets.burst_bytes if self._is_between_hosts(arc) else 0.0
            self._links[arc] = Link(float(topology.arcs.bandwidth_Bps[arc]), burst_bytes)
        return self._links[arc]
