"""Fidelity "message": every send of a collective is an event. The oracle, up to some hundred ranks.

A send starts when what it depends on has landed, its edge has sent what came before it, and the
edge has a credit. It shares links with every other send on the move and lands `latency` after its
last byte left.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import simpy
from numpy.typing import NDArray

from perfmodel.collectives.dependencies import Messages, followers, messages, unrolled
from perfmodel.errors import SimulationError
from perfmodel.library.carry import Carried, Group, Machine, carry_message
from perfmodel.simulate.estimate import Estimator, add_traffic
from perfmodel.simulate.wires import Wires


@dataclass
class MessageNetwork:
    """The network at fidelity "message" (see the module)."""

    env: simpy.Environment
    estimator: Estimator
    machine: Machine = field(init=False)
    bytes_on_arc: NDArray[np.float64] = field(init=False)
    _wires: Wires = field(init=False)
    _sends: dict[int, tuple[Carried, Messages]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.machine = self.estimator.machine
        arcs = self.machine.topology.arcs
        self.bytes_on_arc = np.zeros(len(arcs))
        self._wires = Wires(self.env, arcs.bandwidth_Bps.tolist())

    def collective(self, op: str, nbytes: int, groups: tuple[Group, ...], root: int) -> simpy.Event:
        """Start a collective in every group now; the event fires when the last has ended."""
        real = [group for group in groups if len(group) > 1]
        return self.launch([self.estimator.best(op, nbytes, group, root)[0] for group in real])

    def message(self, src: int, dst: int, nbytes: int) -> simpy.Event:
        """Start a point-to-point message now; the event fires when it is delivered."""
        return self.launch([carry_message(self.machine, src, dst, nbytes)])

    def launch(self, ways: list[Carried]) -> simpy.Event:
        """Start collectives now, each as it is carried; the event fires when all have ended."""
        ended = []
        for way in ways:
            add_traffic(self.bytes_on_arc, way)
            run = _Run(self.env, self._wires, way, self._unrolled(way))
            self.env.timeout(way.launch_s).callbacks.append(run.begin)
            ended.append(run.ended)
        return ended[0] if len(ended) == 1 else self.env.all_of(ended)

    def _unrolled(self, way: Carried) -> Messages:
        known = self._sends.get(id(way))
        if known is None:
            known = self._sends[id(way)] = (way, messages(unrolled(way.schedule)))
        return known[1]


class _Run:
    """One collective, send by send."""

    def __init__(self, env: simpy.Environment, wires: Wires, way: Carried, sends: Messages) -> None:
        self._env, self._wires = env, wires
        self.ended = env.event()
        self._credits = way.credits
        self._routes: list[tuple[int, ...]] = []
        self._caps: list[float] = []
        self._latency: list[float] = []
        for stage in way.stages:
            edges, ends = stage.edges, stage.edges.pointers
            self._routes += [
                tuple(edges.arcs[a:b].tolist()) for a, b in itertools.pairwise(ends.tolist())
            ]
            self._caps += stage.cap_Bps.tolist()
            self._latency += stage.latency_s.tolist()
        self._nbytes = (sends.nbytes * way.wire_factor).tolist()
        self._edge, stage_of = _edges_and_stages(way, sends)
        self._order = StageOrder(sends, stage_of) if len(way.stages) > 1 else None
        self._waiting = [len(after) for after in sends.after]
        self._followers = followers(sends.after)
        self._queue: list[deque[int]] = [deque() for _ in self._routes]
        for index, edge in enumerate(self._edge):
            self._queue[edge].append(index)
        self._sending = [False] * len(self._routes)
        self._under_way = [0] * len(self._routes)
        self._left = len(sends)

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
        self._wires.send(
            self._routes[edge], self._nbytes[index], self._caps[edge], lambda: self._sent(index)
        )

    def _sent(self, index: int) -> None:
        edge = self._edge[index]
        self._sending[edge] = False
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


def _edges_and_stages(way: Carried, sends: Messages) -> tuple[list[int], list[int]]:
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
