"""A network that takes no time: what a step would be if communication were free."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import simpy

from perfmodel.library.carry import Group, Machine
from perfmodel.simulate.counted import Counted, nothing_counted
from perfmodel.simulate.estimate import Estimator
from perfmodel.simulate.notes import Note


@dataclass
class FreeNetwork:
    """The network of the what-if "infinitely fast"."""

    env: simpy.Environment
    estimator: Estimator
    changes_left: int | None = None
    notes: tuple[Note, ...] = ()
    counted: Counted = field(init=False)

    def __post_init__(self) -> None:
        self.counted = nothing_counted(len(self.estimator.machine.topology.arcs))

    def collective(
        self, _op: str, _nbytes: int, _groups: tuple[Group, ...], _root: int
    ) -> simpy.Event:
        """End a collective as soon as it has begun."""
        return self.env.timeout(0)

    def message(self, _src: int, _dst: int, _nbytes: int) -> simpy.Event:
        """Deliver a message as soon as it was sent."""
        return self.env.timeout(0)

    def occupy(self, _work_s: float, _ranks: int) -> None:
        """Hold up nobody: here, messages need no cores."""

    def stream(self, _route: tuple[int, ...], _cap_Bps: float, nbytes: float) -> simpy.Event:
        """End a burst at once; a stream without an end never ends."""
        return self.env.event() if math.isinf(nbytes) else self.env.timeout(0)

    def become(self, _machine: Machine) -> None:
        """Stay as quick as before."""
