"""What both network simulators promise the engine, and what they count."""

from __future__ import annotations

from typing import Protocol

import simpy

from perfmodel.library.carry import Group, Machine
from perfmodel.simulate.counted import Counted
from perfmodel.simulate.notes import Note


class Network(Protocol):
    """A network that carries collectives and messages in simulated time.

    `changes_left` says how often the machine will still change, if that is known.
    """

    changes_left: int | None

    @property
    def counted(self) -> Counted:
        """Bytes over each directed link until now."""
        ...

    @property
    def notes(self) -> tuple[Note, ...]:
        """Where what was simulated is an approximation; none where it is exact."""
        ...

    def collective(self, op: str, nbytes: int, groups: tuple[Group, ...], root: int) -> simpy.Event:
        """Start a collective in every group now; the event fires when the last has ended."""
        ...

    def message(self, src: int, dst: int, nbytes: int) -> simpy.Event:
        """Start a point-to-point message now; the event fires when it is delivered."""
        ...

    def occupy(self, work_s: float, ranks: int) -> None:
        """Let the processes of some ranks do something on a core each, from now on.

        Whatever the library wants to do on those cores has to wait.
        """
        ...

    def stream(self, route: tuple[int, ...], cap_Bps: float, nbytes: float) -> simpy.Event:
        """Send somebody else's bytes over some arcs from now on, at most at `cap_Bps`.

        They share links max-min fairly with everything else. The event fires when `nbytes` have
        been sent: never, if they are infinite.
        """
        ...

    def become(self, machine: Machine) -> None:
        """From now on the machine is this one: other rates, latencies and dead arcs.

        What is on the move keeps the bytes that it has sent; edges over dead arcs take other
        routes.

        Raises
        ------
        TopologyError
            No route is left between two that have to talk.
        """
        ...
