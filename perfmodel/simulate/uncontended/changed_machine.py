"""Collectives after the machine has changed, over other routes.

What the library chose at the start stays: when a link slows down or is lost, protocol, algorithm
and rings are as before, and only routes change.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from perfmodel.library.lowering.lower import lower_message
from perfmodel.library.lowering.lowered import LoweredCollective, Stage
from perfmodel.library.lowering.rerouting import reroute
from perfmodel.library.machine import Machine
from perfmodel.simulate.uncontended.timer import UncontendedTimer


@dataclass
class ReroutedCollectives:
    """Collectives lowered on the machine of `timer`, over the routes of the present machine.

    Parameters
    ----------
    timer : UncontendedTimer
        Of the machine on which the run began.
    machine : Machine
        The present one.
    """

    timer: UncontendedTimer
    machine: Machine
    _rerouted: dict[int, tuple[LoweredCollective, LoweredCollective]] = field(default_factory=dict)
    _legs: dict[int, tuple[LoweredCollective, tuple[Stage, ...]]] = field(default_factory=dict)
    _messages: dict[tuple[int, int, int], LoweredCollective] = field(default_factory=dict)

    def message(self, src: int, dst: int, nbytes: int) -> LoweredCollective:
        """Return a point-to-point message lowered on the first machine (see `now`)."""
        key = (src, dst, nbytes)
        if key not in self._messages:
            self._messages[key] = lower_message(self.timer.machine, src, dst, nbytes)
        return self._messages[key]

    def now(self, lowered: LoweredCollective) -> LoweredCollective:
        """Return a collective lowered on the first machine, rerouted on the present one.

        Raises
        ------
        TopologyError
            Two ranks that have to communicate cannot reach each other any more.
        """
        if self.machine is self.timer.machine:
            return lowered
        if (
            id(lowered) not in self._rerouted
        ):  # the entry holds `lowered`, so that its id stays unique
            self._rerouted[id(lowered)] = (lowered, reroute(lowered, self.machine))
        return self._rerouted[id(lowered)][1]

    def legs(self, lowered: LoweredCollective) -> tuple[Stage, ...]:
        """Return the legs of a collective lowered on the first machine, rerouted.

        Raises
        ------
        TopologyError
            Two ranks that have to communicate cannot reach each other any more.
        """
        legs = self.timer.legs(lowered)
        if self.machine is self.timer.machine:
            return legs
        if id(lowered) not in self._legs:
            self._legs[id(lowered)] = (
                lowered,
                reroute(replace(lowered, stages=legs), self.machine).stages,
            )
        return self._legs[id(lowered)][1]

    def become(self, machine: Machine) -> None:
        """Reroute on another machine from now on."""
        self.machine = machine
        self._rerouted.clear()
        self._legs.clear()
