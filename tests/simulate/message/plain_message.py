"""Fidelity "message" in the plainest way: every transfer and delivery is a SimPy event.

An independent oracle for the kernel: it shares no code with it but the schedule's dependencies.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import simpy

from perfmodel.arrays import RankGroup
from perfmodel.collectives.dependencies import Messages, followers, messages, unroll
from perfmodel.errors import SimulationError
from perfmodel.library.lowering.lower import lower_message
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.lowering.rerouting import reroute
from perfmodel.library.machine import Machine
from perfmodel.simulate.network import LinkCounters, count_collective, zero_counters
from perfmodel.simulate.uncontended.timer import UncontendedTimer

LAST_IN_INSTANT = 2
"""SimPy priority after NORMAL (1): everything that starts at one time shares from the start."""


@dataclass(slots=True, eq=False)
class Transfer:
    """Bytes on their way over a route."""

    route: tuple[int, ...]
    cap_Bps: float
    sent: Callable[[], None]
    left_bytes: float
    since_s: float
    rate_Bps: float = 0.0
    version: int = 0


@dataclass
class Wires:
    """All transfers on the move. Rates are solved again only where something changed."""

    env: simpy.Environment
    bandwidth_Bps: Sequence[float]
    in_order: bool = False
    _queues: dict[tuple[int, ...], deque[Transfer]] = field(default_factory=dict)
    _on_arc: dict[int, list[Transfer]] = field(default_factory=dict)
    _touched: list[Transfer] = field(default_factory=list)

    def send(
        self, route: tuple[int, ...], nbytes: float, cap_Bps: float, sent: Callable[[], None]
    ) -> Transfer:
        """Put bytes on a route; `sent` is called when the last of them has left the source."""
        transfer = Transfer(route, cap_Bps, sent, nbytes, self.env.now)
        queue = self._queues.setdefault(route, deque()) if self.in_order else deque()
        queue.append(transfer)
        if len(queue) == 1:
            self._begin(transfer)
        return transfer

    def become(
        self, bandwidth_Bps: Sequence[float], moves: list[tuple[Transfer, tuple[int, ...], float]]
    ) -> None:
        """Change all bandwidths, and the routes and caps of all transfers."""
        self.bandwidth_Bps = bandwidth_Bps
        for transfer, route, cap_Bps in moves:
            for arc in transfer.route:
                self._on_arc[arc].remove(transfer)
            transfer.route, transfer.cap_Bps = route, cap_Bps
            for arc in route:
                self._on_arc.setdefault(arc, []).append(transfer)
            self._later(transfer)

    def _begin(self, transfer: Transfer) -> None:
        route, cap_Bps = transfer.route, transfer.cap_Bps
        transfer.since_s = self.env.now
        alone = True
        for arc in route:
            others = self._on_arc.setdefault(arc, [])
            alone = alone and not others
            others.append(transfer)
        if alone:
            self._set(transfer, min(cap_Bps, *(self.bandwidth_Bps[arc] for arc in route)))
        else:
            self._later(transfer)

    def _later(self, transfer: Transfer) -> None:
        if not self._touched:
            event = self.env.event()
            event._ok, event._value = True, None
            event.callbacks.append(lambda _: self._resolve())
            self.env.schedule(event, priority=LAST_IN_INSTANT)  # type: ignore[arg-type]
        self._touched.append(transfer)

    def _resolve(self) -> None:
        """Solve the connected components of what changed in this instant."""
        touched, self._touched = self._touched, []
        live: dict[int, Transfer] = {}
        arcs = [arc for transfer in touched for arc in transfer.route]
        seen = set(arcs)
        while arcs:
            for transfer in self._on_arc[arcs.pop()]:
                if id(transfer) not in live:
                    live[id(transfer)] = transfer
                    fresh = [arc for arc in transfer.route if arc not in seen]
                    seen.update(fresh)
                    arcs += fresh
        moving = list(live.values())
        routes, caps = [t.route for t in moving], [t.cap_Bps for t in moving]
        rates = max_min_few(self.bandwidth_Bps, routes, caps)
        for transfer, rate in zip(moving, rates, strict=True):
            if rate != transfer.rate_Bps:
                self._set(transfer, rate)  # where it stays 0, no end is in sight

    def _set(self, transfer: Transfer, rate_Bps: float) -> None:
        now = self.env.now
        transfer.left_bytes -= transfer.rate_Bps * (now - transfer.since_s)
        transfer.since_s, transfer.rate_Bps = now, rate_Bps
        transfer.version += 1
        version = transfer.version
        if rate_Bps:
            end = self.env.timeout(max(0.0, transfer.left_bytes) / rate_Bps)
            end.callbacks.append(lambda _: self._finish(transfer, version))

    def _finish(self, transfer: Transfer, version: int) -> None:
        if version != transfer.version:
            return
        transfer.version = -1  # over
        for arc in transfer.route:
            others = self._on_arc[arc]
            others.remove(transfer)
            if others:
                self._later(others[0])
        if self.in_order:
            queue = self._queues[transfer.route]
            queue.popleft()
            if queue:
                self._begin(queue[0])
        transfer.sent()


def max_min_few(
    capacity_Bps: Sequence[float], routes: Sequence[Sequence[int]], caps_Bps: Sequence[float]
) -> list[float]:
    """Share links among some flows; as `max_min_rates`, quicker up to some hundred flows."""
    users: dict[int, list[int]] = {}
    for flow, route in enumerate(routes):
        for arc in route:
            users.setdefault(arc, []).append(flow)
    limit = list(caps_Bps)
    for arc, flows in users.items():
        if len(flows) == 1:  # nobody to share with: as good as a cap
            limit[flows[0]] = min(limit[flows[0]], capacity_Bps[arc])
    links = _SharedLinks(capacity_Bps, users)
    rates = [-1.0] * len(routes)
    for flow in sorted(range(len(routes)), key=limit.__getitem__):
        while rates[flow] < 0:
            share, tight = links.tightest()
            frozen = tight if share < limit[flow] else (flow,)
            for other in frozen:
                if rates[other] < 0:
                    rates[other] = min(share, limit[flow])
                    links.take(routes[other], rates[other])
    return rates


class _SharedLinks:
    """What is left of the links that several flows cross."""

    def __init__(self, capacity_Bps: Sequence[float], users: dict[int, list[int]]) -> None:
        self._users = users
        self._count = {arc: len(flows) for arc, flows in users.items() if len(flows) > 1}
        self._left = {arc: capacity_Bps[arc] for arc in self._count}

    def tightest(self) -> tuple[float, Sequence[int]]:
        """The least fair share on any link, and the flows of that link."""
        share, tight = float("inf"), -1
        for arc, count in self._count.items():
            mine = self._left[arc] / count
            if mine < share:
                share, tight = mine, arc
        return share, self._users.get(tight, ())

    def take(self, route: Sequence[int], rate_Bps: float) -> None:
        """Give a flow its rate on every link of its route."""
        for arc in route:
            if arc in self._count:
                self._left[arc] = max(0.0, self._left[arc] - rate_Bps)
                self._count[arc] -= 1
                if not self._count[arc]:
                    del self._count[arc]


@dataclass
class PlainMessageNetwork:
    """The network at fidelity "message", all in SimPy."""

    env: simpy.Environment
    timer: UncontendedTimer
    machine: Machine = field(init=False)
    counted: LinkCounters = field(init=False)
    _wires: Wires = field(init=False)
    _sends: dict[int, tuple[LoweredCollective, Messages]] = field(default_factory=dict, init=False)
    _runs: list[_Run] = field(default_factory=list, init=False)
    _streams: list[Transfer] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.machine = self.timer.machine
        arcs = self.machine.topology.arcs
        self.counted = zero_counters(len(arcs))
        self._wires = Wires(self.env, arcs.bandwidth_Bps.tolist(), self.machine.library.in_order)

    def collective(
        self, op: str, nbytes: int, groups: tuple[RankGroup, ...], root: int
    ) -> simpy.Event:
        """Start a collective in every group now; the event fires when the last has ended."""
        real = [group for group in groups if len(group) > 1]
        return self.launch([self.timer.best(op, nbytes, group, root)[0] for group in real])

    def message(self, src: int, dst: int, nbytes: int) -> simpy.Event:
        """Start a point-to-point message now; the event fires when it is delivered."""
        return self.launch([lower_message(self.machine, src, dst, nbytes)])

    def launch(self, ways: list[LoweredCollective]) -> simpy.Event:
        """Start collectives now, each as it is carried; the event fires when all have ended."""
        ended = []
        for way in ways:
            now = way if self.machine is self.timer.machine else reroute(way, self.machine)
            count_collective(self.counted, now)
            run = _Run(self.env, self._wires, way, self._unrolled(way))
            run.lay(now)
            self._runs.append(run)
            self.env.timeout(way.launch_s).callbacks.append(run.begin)
            ended.append(run.ended)
        return ended[0] if len(ended) == 1 else self.env.all_of(ended)

    def occupy(self, _work_s: float, _ranks: int) -> None:
        """Hold up nobody: here, messages need no cores."""

    def stream(self, route: tuple[int, ...], cap_Bps: float, nbytes: float) -> simpy.Event:
        """Send somebody else's bytes."""
        ended = self.env.event()
        self._streams.append(self._wires.send(route, nbytes, cap_Bps, ended.succeed))
        return ended

    def become(self, machine: Machine) -> None:
        """From now on the machine is this one."""
        self.machine = machine
        moves = []
        for run in self._runs:
            run.lay(reroute(run.way, machine))
            moves += [
                (transfer, run.routes[edge], run.caps[edge])
                for edge, transfer in run.moving.items()
            ]
        for transfer in self._streams:
            if transfer.version >= 0:
                moves.append((transfer, transfer.route, transfer.cap_Bps))
        self._wires.become(machine.topology.arcs.bandwidth_Bps.tolist(), moves)

    def _unrolled(self, way: LoweredCollective) -> Messages:
        known = self._sends.get(id(way))
        if known is None:
            known = self._sends[id(way)] = (way, messages(unroll(way.schedule)))
        return known[1]


class _Run:
    """One collective, send by send."""

    def __init__(
        self, env: simpy.Environment, wires: Wires, way: LoweredCollective, sends: Messages
    ) -> None:
        self._env, self._wires = env, wires
        self.ended = env.event()
        self.way, self._credits = way, way.credits
        self.moving: dict[int, Transfer] = {}
        self.lay(way)
        self._nbytes = (sends.nbytes * way.wire_factor).tolist()
        self._edge, stage_of = _edges_and_stages(way, sends)
        self._order = StageOrder(sends, stage_of) if len(way.stages) > 1 else None
        self._waiting = [len(after) for after in sends.after]
        self._followers = followers(sends.after)
        self._queue: list[deque[int]] = [deque() for _ in self.routes]
        for index, edge in enumerate(self._edge):
            self._queue[edge].append(index)
        self._sending = [False] * len(self.routes)
        self._under_way = [0] * len(self.routes)
        self._left = len(sends)

    def lay(self, way: LoweredCollective) -> None:
        """Take the links of a way, which may be other ones than before."""
        self.routes: list[tuple[int, ...]] = []
        self.caps: list[float] = []
        self._latency: list[float] = []
        for stage in way.stages:
            edges, ends = stage.edges, stage.edges.pointers
            self.routes += [
                tuple(edges.arcs[a:b].tolist()) for a, b in itertools.pairwise(ends.tolist())
            ]
            self.caps += stage.cap_Bps.tolist()
            self._latency += stage.latency_s.tolist()

    def begin(self, _: simpy.Event) -> None:
        """Start every edge that can."""
        if not self._left:
            self.ended.succeed()
        for edge in range(len(self._queue)):
            self._try(edge)

    def _try(self, edge: int) -> None:
        """Start the next send of an edge if nothing holds it back."""
        queue = self._queue[edge]
        if not queue or self._sending[edge] or self._under_way[edge] >= self._credits:
            return
        index = queue[0]
        if self._waiting[index] or (self._order and not self._order.may_start(index)):
            return
        queue.popleft()
        self._sending[edge] = True
        self._under_way[edge] += 1
        self.moving[edge] = self._wires.send(
            self.routes[edge], self._nbytes[index], self.caps[edge], lambda: self._sent(index)
        )

    def _sent(self, index: int) -> None:
        edge = self._edge[index]
        self._sending[edge] = False
        del self.moving[edge]
        arrival = self._env.timeout(self._latency[edge])
        arrival.callbacks.append(lambda _: self._landed(index))
        self._try(edge)

    def _landed(self, index: int) -> None:
        edge = self._edge[index]
        self._under_way[edge] -= 1
        self._left -= 1
        for follower in self._followers[index]:
            self._waiting[follower] -= 1
            if self._waiting[follower] == 0:
                self._try(self._edge[follower])
        self._try(edge)
        if self._order:
            for other in self._order.landed(index):
                self._try(self._edge[other])
        if not self._left:
            self.ended.succeed()


class StageOrder:
    """A rank begins a stage when its sends and receives of the stage before have landed."""

    def __init__(self, sends: Messages, stage_of: list[int]) -> None:
        self._stage = stage_of
        self._ends = list(
            zip(
                zip(sends.channel.tolist(), sends.src.tolist(), strict=True),
                zip(sends.channel.tolist(), sends.dst.tolist(), strict=True),
                strict=True,
            )
        )
        self._left: dict[tuple[int, int], dict[int, int]] = {}
        self._mine: dict[tuple[int, int], list[int]] = {}
        for index, (src, dst) in enumerate(self._ends):
            self._mine.setdefault(src, []).append(index)
            for end in (src, dst):
                left = self._left.setdefault(end, {})
                left[stage_of[index]] = left.get(stage_of[index], 0) + 1

    def may_start(self, index: int) -> bool:
        """Whether the sender has finished all earlier stages."""
        left = self._left[self._ends[index][0]]
        return not left or min(left) >= self._stage[index]

    def landed(self, index: int) -> list[int]:
        """Count a delivery; return the sends that it may have set free."""
        freed: list[int] = []
        for end in self._ends[index]:
            left, stage = self._left[end], self._stage[index]
            left[stage] -= 1
            if not left[stage]:
                del left[stage]
                freed += self._mine.get(end, [])
        return freed


def _edges_and_stages(way: LoweredCollective, sends: Messages) -> tuple[list[int], list[int]]:
    """For each send, its edge (numbered through all stages) and its stage."""
    number: dict[tuple[int, int, int, int], int] = {}
    stage_of_round: list[int] = []
    for stage, part in enumerate(way.stages):
        phase = part.phases[0]
        keys = zip(phase.channel.tolist(), phase.src.tolist(), phase.dst.tolist(), strict=True)
        for key in keys:
            number[stage, *key] = len(number)
        stage_of_round += [stage] * sum(p.repeat for p in part.phases)
    stages = [stage_of_round[r] for r in sends.round.tolist()]
    ends = zip(sends.channel.tolist(), sends.src.tolist(), sends.dst.tolist(), strict=True)
    try:
        return [number[stage, *key] for stage, key in zip(stages, ends, strict=True)], stages
    except KeyError as missing:
        raise SimulationError(f"a send over {missing} that no phase of the schedule has") from None
