"""Edges of a collective: who sends to whom, over which links, how late. Flat arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, same_for_all
from perfmodel.topology.model import Topology

HOP_KINDS = ("nvlink", "pcie", "network", "memory")
"""Kinds of hop; `Edges.hop` holds positions in this tuple."""


@dataclass(frozen=True, slots=True)
class HostCopies:
    """Edges that are copies between GPUs through host memory, which those of a host share."""

    host: IntArray
    """Host of each edge; -1 where it is no such copy. Shape (edges,)."""
    together_Bps: float
    """Payload that all of one host carry together."""


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


def with_latencies(topology: Topology, edges: Edges) -> Edges:
    """The same routes on a machine whose links have other latencies."""
    return replace(edges, latency_s=route_latency_s(topology, edges.pointers, edges.arcs))


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
        else replace(edges.copies, host=edges.copies.host[selection]),
    )


def join_edges(parts: list[Edges]) -> Edges:
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


def join_copies(parts: list[Edges]) -> HostCopies | None:
    """`Edges.copies` of several sets of edges, in order."""
    bounds = [part.copies.together_Bps for part in parts if part.copies is not None]
    if not bounds:
        return None
    hosts = [np.full(len(p), -1) if p.copies is None else p.copies.host for p in parts]
    return HostCopies(np.concatenate(hosts), min(bounds))


def merge_edges(parts: list[Edges], places: list[IntArray]) -> Edges:
    """Several sets of edges as one, each edge at its place."""
    return select_edges(join_edges(parts), np.argsort(np.concatenate(places)))
