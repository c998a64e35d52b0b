"""Fidelity "message": every send of a collective is an event. The oracle, up to some hundred ranks.

A send starts when what it depends on has landed, its edge has sent what came before it, and the
edge has a credit. It shares links with every other send on the move and lands `latency` after its
last byte left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import simpy
from numpy.typing import NDArray

from perfmodel.collectives.dependencies import Sends, unrolled
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
    _sends: dict[int, tuple[Carried, Sends]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.machine = self.estimator.machine
        arcs = self.machine.topology.arcs
        self.bytes_on_arc = np.zeros(len(arcs))
        self._wires = Wires(self.env, arcs.bandwidth_Bps.tolist())

    def collective(self, op: str, nbytes: int, groups: tuple[Group, ...], root: int) -> simpy.Event:
        """Start a collective in every group now; the event fires when the last has ended."""
        real = [group for group in groups if len(group) > 1]
        return self._launch([self.estimator.best(op, nbytes, group, root)[0] for group in real])

    def message(self, src: int, dst: int, nbytes: int) -> simpy.Event:
        """Start a point-to-point message now; the event fires when it is delivered."""
        return self._launch([carry_message(self.machine, src, dst, nbytes)])

    def _launch(self, parts: list[Carried]) -> simpy.Event:
        done = self.env.event()
        if not parts:
            return done.succeed()
        running = [len(parts)]

        def ended() -> None:
            running[0] -= 1
            if running[0] == 0:
                done.succeed()

        for part in parts:
            add_traffic(self.bytes_on_arc, part)
            run = _Run(self.env, self._wires, part, self._unrolled(part), ended)
            self.env.timeout(part.launch_s).callbacks.append(run.begin)
        return done

    def _unrolled(self, part: Carried) -> Sends:
        known = self._sends.get(id(part))
        if known is None:
            known = self._sends[id(part)] = (part, unrolled(part.schedule))
        return known[1]


class _Run:
    """One collective, send by send."""

    def __init__(
        self,
        env: simpy.Environment,
        wires: Wires,
        way: Carried,
        sends: Sends,
        ended: Callable[[], None],
    ) -> None:
        self._env, self._wires, self._ended = env, wires, ended
        self._credits = way.credits
        edges = way.edges
        self._routes = [
            tuple(edges.arcs[a:b].tolist())
            for a, b in zip(edges.pointers[:-1], edges.pointers[1:], strict=True)
        ]
        self._caps = way.cap_Bps.tolist()
        self._latency = way.latency_s.tolist()
        self._nbytes = (sends.nbytes * way.wire_factor).tolist()
        self._edge = _edge_of_send(way, sends)
        self._waiting = [len(after) for after in sends.after]
        self._followers: list[list[int]] = [[] for _ in range(len(sends))]
        for index, after in enumerate(sends.after):
            for earlier in after:
                self._followers[earlier].append(index)
        self._queue: list[deque[int]] = [deque() for _ in self._routes]
        for index, edge in enumerate(self._edge):
            self._queue[edge].append(index)
        self._sending = [False] * len(self._routes)
        self._under_way = [0] * len(self._routes)
        self._left = len(sends)

    def begin(self, _: simpy.Event) -> None:
        """Start every edge that can."""
        if not self._left:
            self._ended()
        for edge in range(len(self._queue)):
            self._try(edge)

    def _try(self, edge: int) -> None:
        """Start the next send of an edge if nothing holds it back."""
        queue = self._queue[edge]
        if not queue or self._sending[edge] or self._under_way[edge] >= self._credits:
            return
        index = queue[0]
        if self._waiting[index]:
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
        if not self._left:
            self._ended()


def _edge_of_send(way: Carried, sends: Sends) -> list[int]:
    """For each send, the edge of the phases that it goes over."""
    phase = way.schedule.phases[0] if way.schedule.phases else None
    if phase is None:
        return []
    keys = zip(phase.channel.tolist(), phase.src.tolist(), phase.dst.tolist(), strict=True)
    number = {key: edge for edge, key in enumerate(keys)}
    try:
        return [
            number[key]
            for key in zip(
                sends.channel.tolist(), sends.src.tolist(), sends.dst.tolist(), strict=True
            )
        ]
    except KeyError as missing:
        raise SimulationError(f"a send over {missing} that no phase of the schedule has") from None
