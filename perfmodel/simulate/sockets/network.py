"""Gloo's network: messages on one connection for each pair of ranks, simulated one by one.

Both fidelities use it for Gloo and some ranks without background traffic, faults or changes of the
machine. In contrast to a fluid it has the ready messages, the order in which everything is written
to the sockets, and what waits for what (see `rank_loops.py` and `core_work.py`). Elsewhere ready
messages are part of a step's latency.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import simpy

from perfmodel.errors import SimulationError
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.simulate.flow.approximation import NOTES, ApproximationNote
from perfmodel.simulate.network import (
    Network,
    UnsuitedNetworkError,
    call_at,
    collective_name,
    count_collective,
)
from perfmodel.simulate.sockets.alike_ranks import fold, fold_pair, messages_of
from perfmodel.simulate.sockets.core_work import Connection, Cores, CoreWork, EventQueue
from perfmodel.simulate.sockets.rank_loops import RankLoops, WiredCollective, Wires

TURN_BYTES, MOST_PIECES = 16384, 16
"""Pieces of a message whose connection shares links with other groups': they take turns. TCP's turn
is a packet or some; one group is ahead of its fair share by a piece for each message in flight."""


EXACTLY_ALIKE = 1e-9
"""Relative difference of latencies that are the same but for rounding."""


@dataclass
class SocketNetwork(Network):
    """The network of Gloo's sockets (see the module and `Network`)."""

    tolerance: float | None = EXACTLY_ALIKE
    """How alike ranks are that stand for each other (see `alike_ranks.fold`); None: none does."""
    most_messages: int | None = None
    """Refuse collectives of more (see `messages_of`)."""
    _nearly: bool = field(default=False, init=False)
    """Whether ranks that are not exactly alike stood for each other."""
    _in_progress: Counter[tuple[bytes, ...]] = field(default_factory=Counter, init=False)
    """Collectives, by the edges over which they send."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sockets = self.machine.topology.sockets
        self._wires = Wires(self.machine, None)
        self._queue = EventQueue(self.env)
        self._core_work = CoreWork(
            self.machine.library, sockets, self._queue, Cores(sockets.cores, sockets.core_speed)
        )

    @property
    def notes(self) -> tuple[ApproximationNote, ...]:
        """Where ranks that are only nearly alike stood for each other."""
        return (NOTES["sockets"],) if self._nearly else ()

    def _launch(self, lowered: LoweredCollective) -> simpy.Event:
        folding = None
        if self.tolerance is not None and (self._wires.folding or not self._in_progress):
            folding = fold(self.machine, lowered, self.tolerance)
            self._nearly |= folding is not None and self.tolerance > EXACTLY_ALIKE
        if self.most_messages is not None and messages_of(lowered, folding) > self.most_messages:
            raise UnsuitedNetworkError(collective_name(lowered))
        if folding is not self._wires.folding:  # all links and connections have to be idle
            if self._in_progress:
                raise UnsuitedNetworkError("collectives that fold each in its own way")
            self._wires = Wires(self.machine, folding)
        count_collective(self._counted, lowered)
        return self._start(self._wires.wire(lowered))

    def occupy(self, work_s: float, ranks: int) -> None:
        """Keep one core of each of some ranks' processes busy for `work_s` from now on."""
        self._core_work.occupy(work_s, ranks)

    def stream(self, _route: tuple[int, ...], _cap_Bps: float, _nbytes: float) -> simpy.Event:
        """Refuse: the engine chooses another network where there is background traffic."""
        raise SimulationError("sockets carry no other traffic")

    def _start(self, wired: WiredCollective) -> simpy.Event:
        done = self.env.event()
        queue, core_work = self._queue, self._core_work
        core_message = self.machine.library.core_message

        def send_ready(receiver: int, sender: int, number: int) -> None:
            backward = wired.pairs[fold_pair(sender, receiver, wired.ranks, len(wired.rounds))][1]

            def write_ready() -> None:
                queue.at(
                    backward.send_ready(queue.now_s),
                    lambda: loops.receive_ready(sender, receiver, number),
                )

            self._send_in_order(backward, [write_ready])

        def send(sender: int, receiver: int, number: int, nbytes: float) -> None:
            forward, _, software_s = wired.pairs[sender, receiver]
            call_s = queue.now_s

            def write() -> None:
                rest_s = software_s - (queue.now_s - call_s)

                def arrive(at_s: float) -> None:
                    core_work.receive(at_s, at_s + rest_s, nbytes, forward.rate_Bps, land)

                self._send(forward, nbytes * wired.lowered.wire_factor, arrive)

            def land() -> None:
                loops.count_message(receiver, number)
                if loops.ended:
                    self._in_progress -= Counter([wired.edges])
                    call_at(self.env, queue.now_s, lambda _: done.succeed())

            core_work.when_free(core_message, write)

        loops = RankLoops(wired.rounds, wired.ranks, send_ready, send)
        if loops.ended:
            return self.env.timeout(wired.lowered.launch_s)
        self._in_progress[wired.edges] += 1
        at_s = self.env.now + wired.lowered.launch_s
        for rank in range(len(wired.rounds)):
            queue.at(at_s, partial(self._call, loops, rank))
        return done

    def _send(self, connection: Connection, nbytes: float, arrive: Callable[[float], None]) -> None:
        """Send a message; call when it is known when all of it arrives.

        Collectives on the same connections follow one another on them. Those of other groups have
        connections of their own, which TCP lets share a link alike: they take turns, piece by
        piece.
        """
        queue, turns = self._queue, min(MOST_PIECES, math.ceil(nbytes / TURN_BYTES))
        pieces = 1 if len(self._in_progress) < 2 else max(1, turns)

        def send_piece() -> None:
            connection.send(queue.now_s, nbytes / pieces)

        def send_last() -> None:
            arrive(connection.send(queue.now_s, nbytes / pieces))

        self._send_in_order(connection, [send_piece] * (pieces - 1) + [send_last])

    def _send_in_order(self, connection: Connection, actions: Sequence[Callable[[], None]]) -> None:
        queue = self._queue
        connection.send_in_order(actions, lambda at_s, act: queue.at(max(queue.now_s, at_s), act))

    def _call(self, loops: RankLoops, rank: int) -> None:
        self._core_work.when_free(self.machine.library.core_call, partial(loops.begin, rank))
