"""Edges of a collective over real routes: who sends to whom, over which links, how late."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.library.rings import HostRing, local_rings, rail_rings
from perfmodel.library.transport import Path, local_path, nic_path
from perfmodel.topology.model import Topology
from perfmodel.topology.routes import Router

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

HOPS = ("nvlink", "pcie", "network", "memory")
"""Kinds of hop; `Edges.hop` holds positions in this tuple."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Directed edges between ranks with the links they cross.

    Parameters
    ----------
    src, dst : ndarray of int, shape (edges,)
        Ranks of the topology.
    pointers : ndarray of int, shape (edges + 1,)
    arcs : ndarray of int
        Edge e crosses ``arcs[pointers[e]:pointers[e + 1]]``.
    latency_s : ndarray of float, shape (edges,)
        Sum of the links' latencies.
    cap_Bps : ndarray of float, shape (edges,)
    hop : ndarray of int, shape (edges,)
        Position in `HOPS`.
    staged : bool
        Whether any edge rests in host memory.
    """

    src: Ints
    dst: Ints
    pointers: Ints
    arcs: Ints
    latency_s: Floats
    cap_Bps: Floats
    hop: Ints
    staged: bool

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True, slots=True)
class Stop:
    """One rank on a ring, and the NICs by which the ring reaches and leaves its host there."""

    rank: int
    nic_in: str | None = None
    nic_out: str | None = None


@dataclass(frozen=True, slots=True)
class Rings:
    """Parallel rings over a group of ranks.

    Parameters
    ----------
    orders : ndarray of int, shape (rings, ranks)
        Ranks of the topology, each ring in its own order.
    edges : Edges
        Ring after ring: edge (ring, position) goes from that position to the next.
    """

    orders: Ints
    edges: Edges


def rings_over(
    topology: Topology,
    router: Router,
    ranks: range | tuple[int, ...],
    *,
    at_most: int | None = None,
) -> Rings:
    """Lay rings over a group of ranks, `at_most` so many.

    Every host must contribute the same local GPUs for several rings (rails) to be used; an
    irregular group gets a single ring in rank order.
    """
    groups = _by_host(topology, ranks)
    rings = _rings(topology, router, groups)[:at_most]
    finder = PathFinder(topology, router)
    paths = [
        finder.find(stop.rank, after.rank, stop.nic_out, after.nic_in, number)
        for number, ring in enumerate(rings)
        for stop, after in zip(ring, [*ring[1:], ring[0]], strict=True)
    ]
    orders = np.array([[stop.rank for stop in ring] for ring in rings], dtype=np.int64)
    return Rings(orders, pack(topology, orders.ravel(), np.roll(orders, -1, axis=1).ravel(), paths))


def edges_between(topology: Topology, router: Router, src: Ints, dst: Ints) -> Edges:
    """Edges between given pairs of ranks, each by its nearest NICs."""
    finder = PathFinder(topology, router)
    paths = [
        finder.find(int(a), int(b), None, None, number)
        for number, (a, b) in enumerate(zip(src, dst, strict=True))
    ]
    return pack(topology, src, dst, paths)


def edges_of_names(topology: Topology, router: Router, src: list[str], dst: list[str]) -> Edges:
    """Edges between devices of one host by name, a reducing NVSwitch among them."""
    paths = [Path(router.route(a, b), "nvlink") for a, b in zip(src, dst, strict=True)]
    number = {name: rank for rank, name in enumerate(topology.ranks)}
    ends = [np.array([number.get(name, -1) for name in names]) for names in (src, dst)]
    return pack(topology, ends[0], ends[1], paths)


def chosen(edges: Edges, which: list[int]) -> Edges:
    """Some of the edges, in a given order."""
    lengths = np.diff(edges.pointers)[which]
    arcs = [edges.arcs[edges.pointers[i] : edges.pointers[i + 1]] for i in which]
    return Edges(
        src=edges.src[which],
        dst=edges.dst[which],
        pointers=np.concatenate([[0], np.cumsum(lengths)]),
        arcs=np.concatenate(arcs) if arcs else edges.arcs[:0],
        latency_s=edges.latency_s[which],
        cap_Bps=edges.cap_Bps[which],
        hop=edges.hop[which],
        staged=edges.staged,
    )


def joined(parts: list[Edges]) -> Edges:
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


def pack(topology: Topology, src: Ints, dst: Ints, paths: list[Path]) -> Edges:
    """Paths as flat arrays."""
    arcs = np.array([arc for path in paths for arc in path.arcs], dtype=np.int64)
    pointers = np.concatenate([[0], np.cumsum([len(path.arcs) for path in paths])]).astype(np.int64)
    latency_s = topology.arcs.latency_s[arcs]
    return Edges(
        src=np.asarray(src, dtype=np.int64),
        dst=np.asarray(dst, dtype=np.int64),
        pointers=pointers,
        arcs=arcs,
        latency_s=np.add.reduceat(latency_s, pointers[:-1]) if paths else latency_s,
        cap_Bps=np.array([path.cap_Bps for path in paths]),
        hop=np.array([HOPS.index(path.hop) for path in paths], dtype=np.int64),
        staged=any(path.staged for path in paths),
    )


def _by_host(topology: Topology, ranks: range | tuple[int, ...]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for rank in ranks:
        groups.setdefault(rank // topology.gpus_per_host, []).append(rank)
    return list(groups.values())


def _rings(topology: Topology, router: Router, groups: list[list[int]]) -> list[list[Stop]]:
    """Lay each ring through all hosts; even and odd hosts may be passed in opposite ways."""
    size = topology.gpus_per_host
    if len({tuple(rank % size for rank in group) for group in groups}) > 1:
        return [[Stop(rank) for group in groups for rank in group]]
    gpus = [topology.ranks[rank] for rank in groups[0]]
    if len(groups) == 1:
        return [[Stop(groups[0][at]) for at in order] for order in local_rings(router, gpus)]
    names = topology.graph.nodes
    nics = [names[nic]["local"] for nic in serving_nics(router, gpus)]
    return [
        [
            stop
            for index, group in enumerate(groups)
            for stop in _host_stops(group, way[index % 2], f"n{group[0] // size}", nics)
        ]
        for way in rail_rings(router, gpus, serving_nics(router, gpus))
    ]


def _host_stops(group: list[int], way: HostRing, host: str, nics: list[str]) -> list[Stop]:
    last = len(way.order) - 1
    return [
        Stop(
            group[place],
            f"{host}/{nics[way.nic_in or 0]}" if at == 0 else None,
            f"{host}/{nics[way.nic_out or 0]}" if at == last else None,
        )
        for at, place in enumerate(way.order)
    ]


class PathFinder:
    """Finds paths between ranks; a path inside one host is found once for all hosts."""

    def __init__(self, topology: Topology, router: Router) -> None:
        self._topology = topology
        self._router = router
        self._names = topology.graph.nodes
        self._local: dict[tuple[str, str], Path] = {}

    def find(self, src: int, dst: int, nic_out: str | None, nic_in: str | None, flow: int) -> Path:
        """Path from one rank to another, through the given NICs or the nearest ones."""
        topology, router = self._topology, self._router
        here, there = src // topology.gpus_per_host, dst // topology.gpus_per_host
        gpu, peer = topology.ranks[src], topology.ranks[dst]
        if here == there:
            return self._shifted(gpu, peer, here)
        out = nic_out or router.nearest_nics(gpu)[0]
        into = nic_in or router.nearest_nics(peer)[0]
        first, last = self._shifted(gpu, out, here), self._shifted(into, peer, there)
        arcs = first.arcs + router.route(out, into, flow) + last.arcs
        return Path(arcs, "network", staged=first.staged or last.staged)

    def _shifted(self, src: str, dst: str, host: int) -> Path:
        key = (self._names[src]["local"], self._names[dst]["local"])
        if key not in self._local:
            self._local[key] = self._in_first_host(*key)
        path = self._local[key]
        shift = host * self._topology.host_arcs
        if not shift:
            return path
        return Path(tuple(arc + shift for arc in path.arcs), path.hop, path.cap_Bps, path.staged)

    def _in_first_host(self, src: str, dst: str) -> Path:
        a, b = f"n0/{src}", f"n0/{dst}"
        kinds = (self._names[a]["kind"], self._names[b]["kind"])
        if kinds == ("gpu", "gpu"):
            return local_path(self._topology, self._router, a, b)
        if kinds == ("gpu", "nic"):
            return nic_path(self._topology, self._router, a, b, outward=True)
        return nic_path(self._topology, self._router, b, a, outward=False)


def serving_nics(router: Router, gpus: list[str]) -> list[str]:
    """NICs of one host that serve these GPUs: each GPU's nearest, by their number."""
    found = {router.nearest_nics(gpu)[0] for gpu in gpus}
    order = {node: place for place, node in enumerate(router.topology.graph)}
    return sorted(found, key=order.__getitem__)
