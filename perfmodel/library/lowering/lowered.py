"""A collective on the links of a machine, before and after a protocol is chosen.

Edges of a collective: who sends to whom, over which links, how late. Flat arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, repeat
from typing import NamedTuple

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, same_for_all, sending_s
from perfmodel.collectives.schedule import Phase, Schedule
from perfmodel.topology.model import Topology

HOP_KINDS = ("nvlink", "pcie", "network", "memory")
"""Kinds of hop; `Edges.hop` holds positions in this tuple."""


@dataclass(frozen=True, slots=True)
class HostCopies:
    """Edges that are copies between GPUs through host memory, which those of a domain share."""

    domain: IntArray
    """NUMA domain of each edge (`Path.domain`); -1 where it is no such copy. Shape (edges,)."""
    together_Bps: float
    """Payload that all of one domain carry together."""


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """Directed edges between ranks with the links they cross."""

    src: IntArray
    dst: IntArray
    """`src` and `dst`: ranks of the topology. Shape (edges,)."""
    pointers: IntArray
    """Shape (edges + 1,)."""
    arcs: IntArray
    """Edge e crosses ``arcs[pointers[e]:pointers[e + 1]]``."""
    latency_s: FloatArray
    """Sum of the links' latencies. Shape (edges,)."""
    cap_Bps: FloatArray
    """Shape (edges,)."""
    hop: IntArray
    """Position in `HOP_KINDS`. Shape (edges,)."""
    staged: bool
    """Whether any edge rests in host memory."""
    copies: HostCopies | None = None
    """Which edges are copies between GPUs through the memory of a host; None: none."""
    _once: dict[Hashable, FloatArray] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.src)

    def once(self, key: Hashable, find: Callable[[], FloatArray]) -> FloatArray:
        """What `find` returns for a key; found once, and shared by collectives of all sizes.

        An array of one value takes the memory of one.
        """
        if key not in self._once:
            values = find()
            if len(values) > 1 and (values == values[0]).all():
                values = same_for_all(values[0], len(values))
            self._once[key] = values
        return self._once[key]


def ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """Concatenate ``arange(start, start + length)`` of each."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def edges_over(
    topology: Topology,
    src: IntArray,
    dst: IntArray,
    lengths: IntArray,
    arcs: IntArray,
    cap_Bps: FloatArray,
    hop: IntArray,
    staged: bool = False,
    copies: HostCopies | None = None,
) -> Edges:
    """Edges over links of a topology, `lengths` of the `arcs` each, with the links' latencies."""
    pointers = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    latency_s = route_latency_s(topology, pointers, arcs)
    return Edges(src, dst, pointers, arcs, latency_s, cap_Bps, hop, staged, copies)


def route_latency_s(topology: Topology, pointers: IntArray, arcs: IntArray) -> FloatArray:
    """Sum of the latencies of the links of each edge, shape (edges,); see `Edges`."""
    latency_s = topology.arcs.latency_s[arcs]
    return np.add.reduceat(latency_s, pointers[:-1]) if len(pointers) > 1 else latency_s


def select_edges(edges: Edges, selection: IntArray) -> Edges:
    """Some of the edges, in a given order."""
    lengths = np.diff(edges.pointers)[selection]
    return Edges(
        src=edges.src[selection],
        dst=edges.dst[selection],
        pointers=np.concatenate([[0], np.cumsum(lengths)]),
        arcs=edges.arcs[ranges(edges.pointers[:-1][selection], lengths)],
        latency_s=edges.latency_s[selection],
        cap_Bps=edges.cap_Bps[selection],
        hop=edges.hop[selection],
        staged=edges.staged,
        copies=None
        if edges.copies is None
        else replace(edges.copies, domain=edges.copies.domain[selection]),
    )


def join_edges(parts: Sequence[Edges]) -> Edges:
    """Several sets of edges as one, in order."""
    sizes = np.cumsum([0, *(len(part.arcs) for part in parts)])
    pointers = [part.pointers[1:] + shift for part, shift in zip(parts, sizes, strict=False)]
    return Edges(
        src=np.concatenate([part.src for part in parts]),
        dst=np.concatenate([part.dst for part in parts]),
        pointers=np.concatenate([[0], *pointers]),
        arcs=np.concatenate([part.arcs for part in parts]),
        latency_s=np.concatenate([part.latency_s for part in parts]),
        cap_Bps=np.concatenate([part.cap_Bps for part in parts]),
        hop=np.concatenate([part.hop for part in parts]),
        staged=any(part.staged for part in parts),
        copies=join_copies(parts),
    )


def join_copies(parts: Sequence[Edges]) -> HostCopies | None:
    """`Edges.copies` of several sets of edges, in order."""
    bounds = [part.copies.together_Bps for part in parts if part.copies is not None]
    if not bounds:
        return None
    domains = [np.full(len(p), -1) if p.copies is None else p.copies.domain for p in parts]
    return HostCopies(np.concatenate(domains), min(bounds))


def merge_edges(parts: list[Edges], places: list[IntArray]) -> Edges:
    """Several sets of edges as one, each edge at its place."""
    return select_edges(join_edges(parts), np.argsort(np.concatenate(places)))


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
        np.add.at(bytes_on_arc, edges.arcs, spread)  # few links of a million, mostly


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
