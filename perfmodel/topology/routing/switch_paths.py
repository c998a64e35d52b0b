"""Paths of many flows over routers and cables at once: by dimension, minimal, Valiant's.

A routing is a function of the routers at both ends of flows and of 64 random bits for each. It
returns the routers that they pass, an array of shape (flows,) for each hop; one that repeats the
last is no hop. Routers are counted in the order of the graph's nodes. No path depends on others, so
flows take the same however they are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import Fault, InputError
from perfmodel.topology.routing.clos import Ints, hashed

if TYPE_CHECKING:
    import networkx as nx

Bits = NDArray[np.uint64]
SwitchPaths = Callable[[Ints, Ints, Bits], list[Ints]]


def switch_paths(fabric: nx.Graph[int | str]) -> SwitchPaths | None:
    """The routing that a fabric's graph names; None where its flows are hashed over all cables.

    Raises `InputError`: the graph lacks what the routing goes by.
    """
    facts, routing = fabric.graph, fabric.graph.get("routing")
    if routing not in {"dimension-ordered", "minimal", "valiant"}:
        return None
    if routing != "minimal" and {"dims", "line"} <= facts.keys():
        dims = tuple(facts["dims"])
        ordered = by_dimension(dims, facts["line"])
        return by_way_of_any(ordered, math.prod(dims)) if routing == "valiant" else ordered
    switches = [data for _, data in fabric.nodes(data=True) if data["kind"] == "switch"]
    if routing != "dimension-ordered" and all("group" in data for data in switches):
        return by_groups(fabric, by_others=routing == "valiant")
    grid = "'dims' and 'line' (ring, path or complete) of a grid"
    needed = {"minimal": "a 'group' of every switch", "dimension-ordered": grid}
    allowed = needed.get(routing, f"{grid}, or {needed['minimal']}")
    raise InputError(Fault("fabric.routing", f"{routing!r} without what it goes by", allowed))


# ---------------------------------------------------------------- grids


def by_dimension(dims: tuple[int, ...], line: str) -> SwitchPaths:
    """One dimension after the other, the first first, the shorter way round a ring.

    Half round an even ring, a random bit says which way. No two flows wait for each other in a
    circle: on meshes and hypercubes as such, on rings with two virtual channels. Source: Dally and
    Seitz, "Deadlock-Free Message Routing in Multiprocessor Interconnection Networks", IEEE
    Transactions on Computers C-36(5), 1987.
    """

    def paths(src: Ints, dst: Ints, bits: Bits) -> list[Ints]:
        place = [axis.copy() for axis in np.unravel_index(src, dims)]
        stops = [src]
        for axis, (side, goal) in enumerate(zip(dims, np.unravel_index(dst, dims), strict=True)):
            ahead = goal - place[axis]
            if line == "ring":
                ahead = (ahead + side // 2) % side - side // 2
                coin = (bits >> np.uint64(axis) & np.uint64(1)).astype(bool)
                ahead = np.where(coin & (2 * ahead == -side), -ahead, ahead)
            while ahead.any():
                step = ahead if line == "complete" else np.sign(ahead)
                place[axis] = (place[axis] + step) % side
                ahead = ahead - step
                stops.append(np.ravel_multi_index(tuple(place), dims))
        return stops

    return paths


def by_way_of_any(minimal: SwitchPaths, routers: int) -> SwitchPaths:
    """Minimal to a random router, and minimal from there: no pattern is worse than another.

    A path is at most twice the diameter long. Source: Valiant and Brebner, "Universal Schemes for
    Parallel Communication", STOC 1981.
    """

    def paths(src: Ints, dst: Ints, bits: Bits) -> list[Ints]:
        middle, rest = draw(bits, routers)
        middle = np.where(src == dst, dst, middle)
        return [*minimal(src, middle, rest), *minimal(middle, dst, ~rest)]

    return paths


# ---------------------------------------------------------------- groups of routers


def by_groups(fabric: nx.Graph[int | str], *, by_others: bool) -> SwitchPaths:
    """Return a dragonfly's paths: one global cable, and at most one cable in the group at each end.

    `by_others`: Valiant's routing, over a random third group: two global cables, and at most three
    in groups. Within a group the one cable between two routers is taken. Source: Kim, Dally, Scott
    and Abts, "Technology-Driven, Highly-Scalable Dragonfly Topology", ISCA 2008, section 4.1.
    """
    group, groups, cables = _global_cables(fabric)

    def minimal(src: Ints, dst: Ints, bits: Bits) -> tuple[list[Ints], Bits]:
        far = group[src] != group[dst]
        if not far.any():
            return [src, dst], bits
        leaves, enters, rest = cables(group[src], group[dst], bits)
        return [src, np.where(far, leaves, src), np.where(far, enters, dst), dst], rest

    def paths(src: Ints, dst: Ints, bits: Bits) -> list[Ints]:
        if not by_others or groups < 3:
            return minimal(src, dst, bits)[0]
        ends = group[src], group[dst]
        third, rest = draw(bits, groups - 2)
        for end in np.sort(ends, axis=0):
            third = third + (third >= end)
        leaves, enters, rest = cables(group[src], third, rest)
        near = ends[0] == ends[1]
        middle = np.where(near, src, enters)
        return [src, np.where(near, src, leaves), *minimal(middle, dst, rest)[0]]

    return paths


def _global_cables(fabric: nx.Graph[int | str]) -> tuple[Ints, int, CableOf]:
    """Group of each router, number of groups, and how a cable from group to group is drawn."""
    routers = [name for name, data in fabric.nodes(data=True) if data["kind"] == "switch"]
    number = {name: at for at, name in enumerate(routers)}
    group = np.array([fabric.nodes[name]["group"] for name in routers], dtype=np.int64)
    groups = int(group.max()) + 1
    listed = [
        (number[a], number[b])
        for a, b, data in fabric.edges(data=True)
        if a in number and b in number and group[number[a]] != group[number[b]]
        for _ in range(data.get("cables", 1))
    ]
    ways = 1 if fabric.is_directed() else 2
    ends = np.array(
        [pair for a, b in listed for pair in ((a, b), (b, a))[:ways]], dtype=np.int64
    ).reshape(-1, 2)
    code = group[ends[:, 0]] * groups + group[ends[:, 1]]
    ends = ends[np.argsort(code, kind="stable")]
    count = np.bincount(code, minlength=groups**2)
    start = np.cumsum(count) - count

    def cable(src: Ints, dst: Ints, bits: Bits) -> tuple[Ints, Ints, Bits]:
        pair = src * groups + dst
        drawn, rest = draw(bits, np.maximum(count[pair], 1))
        leaves, enters = ends[np.minimum(start[pair] + drawn, len(ends) - 1)].T
        return leaves, enters, rest

    return group, groups, cable


CableOf = Callable[[Ints, Ints, Bits], tuple[Ints, Ints, Bits]]
"""Routers at both ends of a random cable between two groups, and the bits that are left."""


def draw(bits: Bits, count: Ints | int) -> tuple[Ints, Bits]:
    """Draw a number below `count` for each flow; beside them, the bits that are left."""
    rest, drawn = np.divmod(bits, np.asarray(count).astype(np.uint64))
    return drawn.astype(np.int64), rest


# ---------------------------------------------------------------- over cables

NO_HOP, NO_CABLE = -1, -2
"""In place of an arc."""


class CableRoutes:
    """Routes from port to port: along the switches that a routing names, over their cables.

    Parameters
    ----------
    paths : SwitchPaths
    switch : mapping of str to int
        Number of each switch, as `paths` counts them.
    port : mapping of str to int
        Number of each NIC.
    ends : sequence of (str, str)
        Of the arcs of the fabric.
    first : int
        Number of the first of them.
    """

    def __init__(
        self,
        paths: SwitchPaths,
        switch: Mapping[str, int],
        port: Mapping[str, int],
        ends: Sequence[tuple[str, str]],
        first: int,
    ) -> None:
        self._paths, self._switches = paths, len(switch)
        self._leaf_of, self._into, self._out = np.full((3, len(port)), -1)
        cables: dict[int, list[int]] = {len(switch) ** 2: []}  # behind all pairs
        for arc, (src, dst) in enumerate(ends, start=first):
            if src in switch and dst in switch:
                cables.setdefault(switch[src] * len(switch) + switch[dst], []).append(arc)
            elif dst in switch:
                self._leaf_of[port[src]], self._into[port[src]] = switch[dst], arc
            else:
                self._out[port[dst]] = arc
        self._pairs = np.array(sorted(cables), dtype=np.int64)
        self._count = np.array([len(cables[pair]) for pair in self._pairs.tolist()])
        self._start = np.cumsum(self._count) - self._count
        self._cables = np.array(
            [*(arc for pair in sorted(cables) for arc in cables[pair]), NO_CABLE]
        )

    def rows(self, src: Ints, dst: Ints, flow: Ints) -> Ints:
        """Arcs of many flows from port to port; shape (flows, hops).

        `NO_HOP` stands where a flow stays at a switch, `NO_CABLE` where nothing joins two.
        """
        stops = self._paths(self._leaf_of[src], self._leaf_of[dst], hashed(src, dst, flow))
        bits = hashed(flow, dst, src)  # of parallel cables, apart from those of the path
        hops = [self._into[src]]
        for a, b in pairwise(stops):
            hop, bits = self._cable(a, b, bits)
            hops.append(hop)
        return np.stack([*hops, self._out[dst]], axis=1)

    def _cable(self, src: Ints, dst: Ints, bits: Bits) -> tuple[Ints, Bits]:
        """One of the parallel cables from each switch to another."""
        pair = src * self._switches + dst
        at = np.searchsorted(self._pairs, pair)
        joined = self._pairs[at] == pair
        cable, rest = draw(bits, np.where(joined, self._count[at], 1))
        return np.where(
            src == dst, NO_HOP, np.where(joined, self._cables[self._start[at] + cable], NO_CABLE)
        ), rest
