"""What a library chose on one machine, as it goes on when the machine has become another.

A running library does not choose again when a link slows down or is lost: it keeps protocol,
algorithm and rings, and only the routes change.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from perfmodel.library.carry import Carried, Machine, Stage, carry_message
from perfmodel.library.moved import moved
from perfmodel.simulate.estimate import Estimator


@dataclass
class Adapted:
    """Collectives as a library carries them that chose on the machine of `estimator`.

    Parameters
    ----------
    estimator : Estimator
        Of the machine on which the run began.
    machine : Machine
        What it is now.
    """

    estimator: Estimator
    machine: Machine
    _moved: dict[int, tuple[Carried, Carried]] = field(default_factory=dict)
    _legs: dict[int, tuple[Carried, tuple[Stage, ...]]] = field(default_factory=dict)
    _messages: dict[tuple[int, int, int], Carried] = field(default_factory=dict)

    def message(self, src: int, dst: int, nbytes: int) -> Carried:
        """Return the way of a point-to-point message on the first machine (see `now`)."""
        key = (src, dst, nbytes)
        if key not in self._messages:
            self._messages[key] = carry_message(self.estimator.machine, src, dst, nbytes)
        return self._messages[key]

    def now(self, way: Carried) -> Carried:
        """Return a way of the first machine as it is on the present one.

        Raises
        ------
        TopologyError
            Two that have to talk cannot reach each other any more.
        """
        if self.machine is self.estimator.machine:
            return way
        if id(way) not in self._moved:  # which keeps `way` alive, and its id its own
            self._moved[id(way)] = (way, moved(way, self.machine))
        return self._moved[id(way)][1]

    def legs(self, way: Carried) -> tuple[Stage, ...]:
        """Return the legs of a way of the first machine (`Estimator.legs`), as they are now.

        Raises
        ------
        TopologyError
            Two that have to talk cannot reach each other any more.
        """
        legs = self.estimator.legs(way)
        if self.machine is self.estimator.machine:
            return legs
        if id(way) not in self._legs:
            self._legs[id(way)] = (way, moved(replace(way, stages=legs), self.machine).stages)
        return self._legs[id(way)][1]

    def become(self, machine: Machine) -> None:
        """Go on on another machine."""
        self.machine = machine
        self._moved.clear()
        self._legs.clear()
