"""A collective on the links of a machine, before and after a protocol is chosen."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.arrays import FloatArray
from perfmodel.collectives.schedule import Phase, Schedule
from perfmodel.library.lowering.edges import Edges

ITEM_BYTES = 4
"""Chunks are cut at 4-byte elements; a size that is not whole elements is rounded up."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive phases of a schedule over the same edges; stages follow one another.

    A rank begins a stage when its sends and receives of the stage before have landed.

    Arrays have shape (edges,).
    """

    phases: tuple[Phase, ...]
    edges: Edges
    """The links of each edge, in the phases' order."""
    latency_s: FloatArray
    """Links' latency and the library's own time per step."""
    cap_Bps: FloatArray
    """Most that an edge may carry (of wire bytes)."""
    load: FloatArray
    """What an edge carries per byte of payload, beside `LoweredCollective.wire_factor`; it is in
    the bytes of the phases."""


@dataclass(frozen=True, slots=True)
class LoweredCollective:
    """One collective on links, with all that its protocol adds."""

    schedule: Schedule
    """Over positions 0 ... N-1 of the group."""
    stages: tuple[Stage, ...]
    protocol: str
    launch_s: float
    """Time that none of its links sees, before the first byte moves."""
    wire_factor: float
    """Bytes on the wire per byte of payload."""
    credits: int
    uneven_s: float = 0.0
    """Part of `launch_s` that grows with the bytes: channels run unevenly, and blocks copy."""


Laid = tuple[tuple[tuple[Phase, ...], Edges], ...]
"""Phases and the links of their edges, stage by stage."""


@dataclass(frozen=True, slots=True)
class LaidSchedule:
    """A schedule and the links of its edges, before any protocol."""

    schedule: Schedule
    laid: Laid
    shared: bool = False
    """Whether machines alike lay the very same schedule (`Machine.recent`)."""
