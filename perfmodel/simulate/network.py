"""What both network simulators promise the engine, and what they count."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import simpy
from numpy.typing import NDArray

from perfmodel.library.carry import Group


class Network(Protocol):
    """A network that carries collectives and messages in simulated time.

    `bytes_on_arc` grows by the wire bytes that each directed link has carried.
    """

    bytes_on_arc: NDArray[np.float64]

    def collective(self, op: str, nbytes: int, groups: tuple[Group, ...], root: int) -> simpy.Event:
        """Start a collective in every group now; the event fires when the last has ended."""
        ...

    def message(self, src: int, dst: int, nbytes: int) -> simpy.Event:
        """Start a point-to-point message now; the event fires when it is delivered."""
        ...
