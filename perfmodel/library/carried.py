"""A collective as it travels, and the machine that carries it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from perfmodel.collectives.schedule import Floats, Ints, Phase, Schedule
from perfmodel.library.channels import Rings, rings_over
from perfmodel.library.edges import Edges
from perfmodel.library.measured import Measured
from perfmodel.library.model import Library
from perfmodel.library.settings import Settings
from perfmodel.topology.model import Topology
from perfmodel.topology.routes import Router

T = TypeVar("T")

Group = range | tuple[int, ...]

ITEM_BYTES = 4
"""Chunks are cut at 4-byte elements; a size that is not whole elements is rounded up."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive phases of a schedule over the same edges; stages follow one another.

    A rank begins a stage when its sends and receives of the stage before have landed.

    Parameters
    ----------
    phases : tuple of Phase
    edges : Edges
        The links of each edge, in the phases' order.
    latency_s : ndarray of float, shape (edges,)
        Links' latency and the library's own time per step.
    cap_Bps : ndarray of float, shape (edges,)
        Most that an edge may carry (of wire bytes).
    load : ndarray of float, shape (edges,)
        What an edge carries per byte of payload, beside the protocol's `Carried.wire_factor`: the
        phases have it in their bytes.
    """

    phases: tuple[Phase, ...]
    edges: Edges
    latency_s: Floats
    cap_Bps: Floats
    load: Floats


@dataclass(frozen=True, slots=True)
class Carried:
    """One collective as it travels.

    Parameters
    ----------
    schedule : Schedule
        Over positions 0 ... N-1 of the group.
    stages : tuple of Stage
    protocol : str
    launch_s : float
        Time before the first byte moves.
    wire_factor : float
        Bytes on the wire per byte of payload.
    credits : int
    alike : int
        How many such run side by side, over rails like this one, of which only one is laid: then
        `schedule` holds an `alike`-th of the bytes.
    """

    schedule: Schedule
    stages: tuple[Stage, ...]
    protocol: str
    launch_s: float
    wire_factor: float
    credits: int
    alike: int = 1


@dataclass(frozen=True)
class Machine:
    """What executors see: hardware and the library that drives it.

    Parameters
    ----------
    topology : Topology
    library : Library
    channels : int, optional
        Use no more than this many parallel rings.
    settings : Settings
        What the user told the library: its version and environment.
    measured : Measured
        What a profile says: factors on the costs of the library.
    whole : bool
        Whether trees are laid over all rails of large clusters too, and not over one that stands
        for those like it: where rails are, or become, unlike.
    decides_on : Machine, optional
        The machine by whose links NCCL searches its channels; default: this one.
    """

    topology: Topology
    library: Library
    channels: int | None = None
    settings: Settings = field(default_factory=Settings)
    measured: Measured = field(default_factory=Measured)
    whole: bool = False
    decides_on: Machine | None = None
    router: Router = field(init=False)
    _rings: dict[Group, Rings] = field(default_factory=dict, init=False, repr=False)
    _known: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "router", Router(self.topology))

    def rings(self, group: Group) -> Rings:
        """Rings over a group of ranks; laid once."""
        if group not in self._rings:
            self._rings[group] = rings_over(
                self.topology, self.router, group, at_most=self.channels
            )
        return self._rings[group]

    def known(self, key: Hashable, find: Callable[[], T]) -> T:
        """What is found for a key; found once."""
        if key not in self._known:
            self._known[key] = find()
        found: T = self._known[key]
        return found

    def stretched(self, topology: Topology, measured: Measured) -> Machine:
        """The same machine as it was measured.

        Only its links' bandwidths may differ. What the library chose and laid by its own numbers
        stays, and is looked up once for all of them.
        """
        found = replace(self, topology=topology, measured=measured)
        for name in ("_rings", "_known"):
            object.__setattr__(found, name, getattr(self, name))
        return found


Laid = tuple[tuple[tuple[Phase, ...], Edges], ...]
"""Phases and the links of their edges, stage by stage."""


@dataclass(frozen=True, slots=True)
class Way:
    """A schedule and the links of its edges, before any protocol.

    Parameters
    ----------
    schedule : Schedule
    laid : Laid
    alike : int
        As in `Carried`.
    """

    schedule: Schedule
    laid: Laid
    alike: int = 1


def members(group: Group) -> Ints:
    """Ranks of a group as an array."""
    if isinstance(group, range):
        return np.arange(group.start, group.stop, group.step, dtype=np.int64)
    return np.asarray(group, dtype=np.int64)
