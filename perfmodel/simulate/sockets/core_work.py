"""What the processes of a machine do on their cores: begin rounds, send, and receive."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from perfmodel.library.model import CommLibrary
from perfmodel.simulate.sockets.connection import Cores
from perfmodel.simulate.sockets.event_queue import EventQueue
from perfmodel.topology.model import Sockets

PIECE_BYTES = 65536
"""Bytes that a receiver processes at once (Linux delivers TCP in pieces of 64 KiB at most)."""


@dataclass(frozen=True, slots=True)
class CoreWork:
    """Work on the cores that all processes of a machine share, first come first served."""

    library: CommLibrary
    sockets: Sockets
    queue: EventQueue
    cores: Cores

    def occupy(self, work_s: float, ranks: int) -> None:
        """Keep one core of each of some ranks' processes busy for `work_s` from now on."""
        if self.cores.number is None:
            return
        for _ in range(ranks):
            self.queue.at(self.queue.env.now, partial(self._occupy, work_s))

    def when_free(self, work_s: float, action: Callable[[], None]) -> None:
        """Perform an action as soon as a core is free for it."""
        wait_s = self.cores.wait_s(self.queue.now_s, work_s)
        if wait_s > 0:
            self.queue.at(self.queue.now_s + wait_s, action)
        else:
            action()

    def receive(
        self, at_s: float, idle_s: float, nbytes: float, rate_Bps: float, land: Callable[[], None]
    ) -> None:
        """Process arriving data on a core of the receiver; deliver after the last packet.

        Data before the last packet are processed piece by piece, each in the middle of its arrival.
        An idle machine is done at `idle_s`, wake-up included; a busy one waits for a core instead
        of waking up, so that the later of both counts. What lands at the same time lands in the
        order in which it was written, however it was processed.
        """
        queue, cores, order = self.queue, self.cores, self.queue.next_order()
        if cores.number is None:
            queue.at(idle_s, land, order)
            return
        last_bytes = min(nbytes, self.sockets.frame_bytes or PIECE_BYTES)
        pieces = math.ceil((nbytes - last_bytes) / PIECE_BYTES)
        if pieces:
            piece_bytes = (nbytes - last_bytes) / pieces
            occupy = partial(self._occupy, self._receiving_s(piece_bytes, rate_Bps))
        for piece in range(pieces):
            before_s = (last_bytes + (pieces - piece - 0.5) * piece_bytes) / rate_Bps
            queue.at(max(queue.now_s, at_s - before_s), occupy)
        last_s = self.library.core_message + self._receiving_s(last_bytes, rate_Bps)

        def process_last() -> None:
            queue.at(max(idle_s, cores.done_s(queue.now_s, last_s)), land, order)

        queue.at(at_s, process_last)

    def _occupy(self, work_s: float) -> None:
        """Keep a core busy from now on, or as soon as one is free."""
        self.cores.wait_s(self.queue.now_s, work_s)

    def _receiving_s(self, nbytes: float, rate_Bps: float) -> float:
        """Return how long arriving data keep a core of speed 1 busy, sending included; seconds.

        One core at most: packets that arrive faster than it processes them are batched.
        """
        library, frame = self.library, self.sockets.frame_bytes
        if frame and library.core_frame > 0:
            return min(nbytes / frame * library.core_frame, nbytes / rate_Bps * self.cores.speed)
        return 0.0 if library.core_bytes is None else nbytes / library.core_bytes
