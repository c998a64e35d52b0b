"""Edges of a collective: who sends to whom, over which links, how late. Flat arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.topology.model import Topology

HOP_KINDS = ("nvlink", "pcie", "network", "memory")
"""Kinds of hop; `Edges.hop` holds positions in this tuple."""


@dataclass(frozen=True, slots=True)
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

    def __len__(self) -> int:
        return len(self.src)


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
) -> Edges:
    """Edges over links of a topology, `lengths` of the `arcs` each, with the links' latencies."""
    pointers = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    latency_s = topology.arcs.latency_s[arcs]
    if len(src):
        latency_s = np.add.reduceat(latency_s, pointers[:-1])
    return Edges(src, dst, pointers, arcs, latency_s, cap_Bps, hop, staged)


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
    )


def merge_edges(parts: list[Edges], places: list[IntArray]) -> Edges:
    """Several sets of edges as one, each edge at its place."""
    return select_edges(join_edges(parts), np.argsort(np.concatenate(places)))
