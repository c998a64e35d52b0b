"""A collective on the links of a machine, before and after a protocol is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import NamedTuple

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, sending_s
from perfmodel.collectives.schedule import Phase, Schedule
from perfmodel.library.lowering.edges import Edges

ITEM_BYTES = 4
"""Chunks are cut at 4-byte elements; a size that is not whole elements is rounded up."""


@dataclass(frozen=True, slots=True, eq=False)
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


@dataclass(frozen=True, slots=True, eq=False)
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


@dataclass(frozen=True, slots=True)
class Path:
    """The links of one edge, in order, and what it may carry over them."""

    links: tuple[int, ...]
    cap_Bps: float
    latency_s: float
    wire_share: float = 1.0
    """Bytes on the wire per byte of payload."""


Edge = tuple[int, int, int, int]
"""Of a collective: stage, channel, sender, receiver."""


def paths_of(lowered: LoweredCollective) -> dict[Edge, Path]:
    """Return the path of each edge of a collective, in each of its stages."""
    paths = dict[Edge, Path]()
    for number, stage in enumerate(lowered.stages):
        phase, hops = stage.phases[0], pairwise(stage.edges.pointers.tolist())
        links = [tuple(stage.edges.arcs[begin:end].tolist()) for begin, end in hops]
        columns = stage.cap_Bps, stage.latency_s, lowered.wire_factor * stage.load
        each = map(Path, links, *(column.tolist() for column in columns))
        ends = (column.tolist() for column in (phase.channel, phase.src, phase.dst))
        paths |= dict(zip(zip(repeat(number), *ends, strict=False), each, strict=False))
    return paths


Laid = tuple[tuple[tuple[Phase, ...], Edges], ...]
"""Phases and the links of their edges, stage by stage."""


@dataclass(frozen=True, slots=True)
class LaidSchedule:
    """A schedule and the links of its edges, before any protocol."""

    schedule: Schedule
    laid: Laid
    shared: bool = False
    """Whether machines alike lay the very same schedule (`Machine.recent`)."""


Crossings = tuple[float, IntArray, IntArray]
"""Load of some edges, links that they use, and how often they cross each."""


class LinkBytes(NamedTuple):
    """Bytes of a collective on the links that it uses, all others having none.

    Arrays have shape (links used,).
    """

    links: IntArray
    wire_bytes: FloatArray
    payload_bytes: FloatArray


def stage_bytes(lowered: LoweredCollective, stage: Stage) -> FloatArray:
    """Wire bytes of each edge in a whole stage; shape (edges,)."""
    payload = sum((p.nbytes * p.active for p in stage.phases), np.zeros(len(stage.edges)))
    return payload * lowered.wire_factor


def add_traffic(
    bytes_on_arc: FloatArray, lowered: LoweredCollective, times: int = 1, *, payload: bool = False
) -> None:
    """Add `times` the bytes of a collective on each link: on the wire, or of payload."""
    for stage in lowered.stages:
        edges, nbytes = stage.edges, times * stage_bytes(lowered, stage)
        if payload:
            nbytes /= lowered.wire_factor * stage.load
        spread = np.repeat(nbytes, np.diff(edges.pointers))
        bytes_on_arc += np.bincount(edges.arcs, weights=spread, minlength=len(bytes_on_arc))


def link_times_s(capacity_Bps: FloatArray, lowered: LoweredCollective) -> FloatArray:
    """Time in which each link carries the bytes of a collective; seconds, shape (links,)."""
    nbytes = np.zeros(len(capacity_Bps))
    add_traffic(nbytes, lowered)
    return sending_s(nbytes, capacity_Bps)


def alike_bytes(lowered: LoweredCollective) -> float | None:
    """Payload of every edge of a collective on so many that it is kept once; None of others."""
    phases, stages = lowered.schedule.phases, lowered.stages
    if len(phases) != 1 or len(stages) != 1 or len(phases[0].nbytes) != len(stages[0].edges):
        return None
    nbytes, active = phases[0].nbytes, phases[0].active
    equal = nbytes.strides == active.strides == (0,) and len(nbytes) > 0
    return float(nbytes[0] * active[0]) if equal else None


def count_crossings(stage: Stage) -> list[Crossings]:
    """How often edges of a stage cross each link, those of one load together."""
    lengths, arcs = np.diff(stage.edges.pointers), stage.edges.arcs
    loads = stage.load[:1] if stage.load.strides == (0,) else np.unique(stage.load)
    if len(loads) == 1:
        return [(float(loads[0]), *_counted(arcs))]
    return [
        (load, *_counted(arcs[np.repeat(stage.load == load, lengths)])) for load in loads.tolist()
    ]


def _counted(arcs: IntArray) -> tuple[IntArray, IntArray]:
    times = np.bincount(arcs)
    used = np.flatnonzero(times)
    return used, times[used]
