"""The network of a library that sends on one connection between two ranks, message by message.

Both fidelities use it for Gloo and some ranks that nothing disturbs. Unlike a fluid it has the
ready messages, the order in which everything is written to the sockets, and what of it waits for
what (see `loops.py` and `wires.py`). Elsewhere ready messages are part of a step's latency.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import simpy

from perfmodel.arrays import RankGroup
from perfmodel.errors import SimulationError
from perfmodel.library.lowering.edge_routing import edges_between
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.lowering.protocols import numbers_of
from perfmodel.library.machine import Machine
from perfmodel.simulate.flow.approximation import ApproximationNote
from perfmodel.simulate.network import LinkCounters, count_collective, nothing_counted
from perfmodel.simulate.sockets.connection import ENDLESS, Connection, Link
from perfmodel.simulate.sockets.cpu_cores import Cores
from perfmodel.simulate.sockets.rank_loops import Loops, Turn, turns_of
from perfmodel.simulate.uncontended import Adapted, UncontendedTimer

MOST_RANKS = 32
"""Ranks up to which fidelity "flow" goes message by message too; above, the cost would show."""
SAME_RATE = 1e-9
PIECE_BYTES = 65536
"""So much a receiver takes in at once (Linux hands TCP on in pieces of 64 KiB at most)."""
LAST_IN_INSTANT = 2
"""SimPy priority after NORMAL (1): everything of an instant is there before anything moves."""


def goes_by_sockets(machine: Machine, fidelity: str) -> bool:
    """Whether a machine's collectives are simulated here."""
    few = len(machine.topology.ranks) <= MOST_RANKS
    return machine.library.in_order and fidelity in {"flow", "message"} and (
        few or fidelity == "message"
    )  # fmt: skip


@dataclass(slots=True)
class _Way:
    """A collective on connections: its turns, and of each pair the connection and its costs."""

    way: LoweredCollective
    turns: tuple[tuple[Turn, ...], ...]
    pairs: dict[tuple[int, int], tuple[Connection, Connection, float]]


@dataclass
class SocketNetwork:
    """The network of `sockets` (see the module); one to an environment."""

    env: simpy.Environment
    estimator: UncontendedTimer
    changes_left: int | None = None
    notes: tuple[ApproximationNote, ...] = ()
    counted: LinkCounters = field(init=False)
    _adapted: Adapted = field(init=False)
    _links: dict[int, Link] = field(default_factory=dict, init=False)
    _connections: dict[tuple[int, ...], Connection] = field(default_factory=dict, init=False)
    _ways: dict[int, _Way] = field(default_factory=dict, init=False)
    _events: list[tuple[float, int, Callable[[], object]]] = field(default_factory=list, init=False)
    _count: itertools.count[int] = field(default_factory=itertools.count, init=False)
    _wake: simpy.Event | None = field(default=None, init=False)
    _wake_s: float = field(default=0.0, init=False)
    _now_s: float = field(default=0.0, init=False)
    _cores: Cores = field(init=False)

    def __post_init__(self) -> None:
        self._adapted = Adapted(self.estimator, self.estimator.machine)
        self.counted = nothing_counted(len(self.estimator.machine.topology.arcs))
        sockets = self.estimator.machine.topology.sockets
        self._cores = Cores(sockets.cores, sockets.core_speed)

    def collective(
        self, op: str, nbytes: int, groups: tuple[RankGroup, ...], root: int
    ) -> simpy.Event:
        """Start a collective in every group now; the event fires when the last has ended."""
        return self.launch(self.estimator.ways(op, nbytes, groups, root))

    def message(self, src: int, dst: int, nbytes: int) -> simpy.Event:
        """Start a point-to-point message now; the event fires when it is delivered."""
        return self.launch([self._adapted.message(src, dst, nbytes)])

    def launch(self, ways: list[LoweredCollective]) -> simpy.Event:
        """Start collectives now, each as it is carried; the event fires when all have ended."""
        ended = []
        for way in ways:
            count_collective(self.counted, way)
            ended.append(self._start(self._laid(way)))
        return ended[0] if len(ended) == 1 else self.env.all_of(ended)

    def occupy(self, work_s: float, ranks: int) -> None:
        """Let the processes of some ranks do something on a core each, from now on."""
        if self._cores.number is None:
            return

        for _ in range(ranks):
            self._at(self.env.now, partial(self._occupy, work_s))

    def stream(self, _route: tuple[int, ...], _cap_Bps: float, _nbytes: float) -> simpy.Event:
        """Refuse: the engine takes another network where others use the links."""
        raise SimulationError("sockets carry no other traffic")

    def become(self, _machine: Machine) -> None:
        """Refuse: the engine takes another network where links change."""
        raise SimulationError("sockets do not change")

    # ------------------------------------------------------------ collectives on their way

    def _start(self, laid: _Way) -> simpy.Event:
        done = self.env.event()

        def say_ready(receiver: int, sender: int, number: int) -> None:
            _, back, _ = laid.pairs[sender, receiver]
            at_s = back.word(self._now_s)
            self._at(at_s, lambda: loops.is_ready(sender, receiver, number))

        def send(sender: int, receiver: int, number: int, nbytes: float) -> None:
            there, _, software_s = laid.pairs[sender, receiver]
            asked_s = self._now_s

            def write() -> None:
                at_s = there.data(self._now_s, nbytes * laid.way.wire_factor)
                idle_s = at_s + software_s - (self._now_s - asked_s)
                self._receive(at_s, idle_s, nbytes, there.rate_Bps, land)

            def land() -> None:
                loops.landed(receiver, number)
                if loops.ended:
                    self._end(done)

            self._when_free(self.estimator.machine.library.core_message, write)

        loops = Loops(laid.turns, say_ready, send)
        if loops.ended:
            return self.env.timeout(laid.way.launch_s)
        at_s = self.env.now + laid.way.launch_s
        for rank in range(len(laid.turns)):
            self._at(at_s, partial(self._call, loops, rank))
        return done

    def _call(self, loops: Loops, rank: int) -> None:
        self._when_free(self.estimator.machine.library.core_call, partial(loops.begin, rank))

    def _when_free(self, work_s: float, what: Callable[[], None]) -> None:
        """Do something as soon as there is a core for it."""
        wait_s = self._cores.wait_s(self._now_s, work_s)
        if wait_s > 0:
            self._at(self._now_s + wait_s, what)
        else:
            what()

    def _receive(
        self, at_s: float, idle_s: float, nbytes: float, rate_Bps: float, land: Callable[[], None]
    ) -> None:
        """Let the receiver's core take data in as they come, the last packet at a time.

        What comes before it is taken in piece by piece, each in the middle of its arrival. An idle
        machine is through at `idle_s`. What it spends on waking up is hidden behind what a busy one
        waits for, so that the later of both counts.
        """
        library, cores = self.estimator.machine.library, self._cores
        sockets = self.estimator.machine.topology.sockets
        if cores.number is None:
            self._at(idle_s, land)
            return
        last_bytes = min(nbytes, sockets.frame_bytes or PIECE_BYTES)
        pieces = math.ceil((nbytes - last_bytes) / PIECE_BYTES)
        for piece in range(pieces):
            piece_bytes = (nbytes - last_bytes) / pieces
            before_s = (last_bytes + (pieces - piece - 0.5) * piece_bytes) / rate_Bps
            work_s = self._receiving_s(piece_bytes, rate_Bps)
            self._at(max(self._now_s, at_s - before_s), partial(self._occupy, work_s))
        last_s = library.core_message + self._receiving_s(last_bytes, rate_Bps)
        self._at(at_s, lambda: self._at(max(idle_s, cores.done_s(self._now_s, last_s)), land))

    def _occupy(self, work_s: float) -> None:
        """Keep a core busy from now on, or as soon as there is one."""
        self._cores.wait_s(self._now_s, work_s)

    def _receiving_s(self, nbytes: float, rate_Bps: float) -> float:
        """How long data that come in keep a core of speed 1 busy, with all that it takes to send.

        One core at most: packets that come more quickly than it takes them in are taken together.
        """
        library = self.estimator.machine.library
        frame = self.estimator.machine.topology.sockets.frame_bytes
        if frame and library.core_frame > 0:
            return min(nbytes / frame * library.core_frame, nbytes / rate_Bps * self._cores.speed)
        return 0.0 if library.core_bytes is None else nbytes / library.core_bytes

    def _end(self, done: simpy.Event) -> None:
        timer = self.env.timeout(max(0.0, self._now_s - self.env.now))
        timer.callbacks.append(lambda _: _succeed(done))

    def _at(self, time_s: float, what: Callable[[], object]) -> None:
        heapq.heappush(self._events, (time_s, next(self._count), what))
        if self._wake is None or time_s < self._wake_s:
            self._wait(time_s)

    def _wait(self, time_s: float) -> None:
        wake = self.env.event()
        wake._ok, wake._value = True, None
        wake.callbacks.append(self._advance)
        delay_s = max(0.0, time_s - self.env.now)
        self.env.schedule(wake, LAST_IN_INSTANT, delay_s)  # type: ignore[arg-type]
        self._wake, self._wake_s = wake, time_s

    def _advance(self, event: simpy.Event) -> None:
        """Run on to the next event that SimPy has."""
        if event is not self._wake:
            return
        self._wake_s = -np.inf  # what is put down meanwhile is looked at below
        while self._events and self._events[0][0] <= max(self.env.now, self.env.peek()):
            self._now_s, _, what = heapq.heappop(self._events)
            what()
        self._wake = None
        if self._events:
            self._wait(self._events[0][0])

    # ------------------------------------------------------------ laying

    def _laid(self, way: LoweredCollective) -> _Way:
        if id(way) not in self._ways:
            machine, schedule = self.estimator.machine, way.schedule
            numbers = numbers_of(machine.library, schedule.collective, schedule.algorithm)
            credits = numbers[way.protocol].credits
            key = (
                "turns", schedule.collective, schedule.algorithm, schedule.ranks, schedule.nbytes,
                schedule.root, credits,
            )  # fmt: skip
            turns = machine.known(key, lambda: turns_of(schedule, credits))
            self._ways[id(way)] = _Way(way, turns, self._pairs(way))
        return self._ways[id(way)]

    def _pairs(
        self, way: LoweredCollective
    ) -> dict[tuple[int, int], tuple[Connection, Connection, float]]:
        """Of each sender and receiver: the connection there, that back, and the software's time."""
        machine = self.estimator.machine
        numbers = numbers_of(machine.library, way.schedule.collective, way.schedule.algorithm)
        protocol = numbers[way.protocol]
        halved = protocol.credits > way.credits  # see `costs.step_latency_s`: two ranks in turn
        found = {}
        for stage in way.stages:
            edges, phase = stage.edges, stage.phases[0]
            for at, (src, dst) in enumerate(
                zip(phase.src.tolist(), phase.dst.tolist(), strict=True)
            ):
                arcs = tuple(edges.arcs[edges.pointers[at] : edges.pointers[at + 1]].tolist())
                link_s = float(edges.latency_s[at])
                there = self._connection(arcs, link_s)
                ends = int(edges.src[at]), int(edges.dst[at])
                back = self._back(*ends)
                step_s = float(stage.latency_s[at]) * (2.0 if halved else 1.0)
                software_s = max(0.0, step_s - protocol.latencies_per_step * link_s)
                found[src, dst] = (there, back, software_s)
        return found

    def _back(self, src: int, dst: int) -> Connection:
        """The connection from the receiver of some data to their sender."""
        machine = self.estimator.machine

        def laid() -> tuple[tuple[int, ...], float]:
            ends = np.array([dst]), np.array([src])
            edge = edges_between(machine.topology, machine.router, *ends)
            return tuple(edge.arcs.tolist()), float(edge.latency_s[0])

        return self._connection(*machine.known(("back", dst, src), laid))

    def _connection(self, arcs: tuple[int, ...], link_s: float) -> Connection:
        if arcs not in self._connections:
            machine = self.estimator.machine
            rates = machine.topology.arcs.bandwidth_Bps[list(arcs)]
            slowest = float(rates.min())
            links = [
                self._link(arc, float(rate), rate <= slowest * (1 + SAME_RATE))
                for arc, rate in zip(arcs, rates, strict=True)
                if rate < ENDLESS * slowest
            ]
            self._connections[arcs] = Connection(links, link_s, machine.library.device_queue)
        return self._connections[arcs]

    def _link(self, arc: int, rate_Bps: float, slowest: bool) -> Link:
        sockets = self.estimator.machine.topology.sockets
        if arc not in self._links:
            self._links[arc] = Link(rate_Bps, sockets.burst_bytes if slowest else 0.0)
        return self._links[arc]


def _succeed(event: simpy.Event) -> None:
    event.succeed()
