"""Paths of many flows over routers and cables at once: by dimension, minimal, Valiant's.

A routing is a function of the routers at both ends of flows and of 64 random bits for each. It
returns the routers that they pass, an array of shape (flows,) for each hop; one that repeats the
last is no hop. Routers are counted in the order of the graph's nodes. No path depends on others, so
flows take the same however they are asked for.

Best paths inside one host, in the order in which NCCL prefers them.

Source of the rules: NVIDIA/nccl 2.30.7 ``src/graph/paths.cc`` (ncclTopoSetPaths) and
``src/graph/topo.h``: a better path type wins, then more bandwidth (that of the narrowest link),
then fewer hops. Traffic passes through a NIC never, and through another GPU only over NVLink, at
most once. In a graph of one's own every device forwards, and paths are the shortest.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    """Over one global cable, and at most one cable in each group at its ends.

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
        arc = np.where(joined, self._cables[self._start[at] + cable], NO_CABLE)
        return np.where(src == dst, NO_HOP, arc), rest


PATH_TYPES = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PHB", "SYS", "NET")
"""Path types from best to worst, named as in NCCL.

LOC same device; NVL NVLink, direct or switched; NVB NVLink through one other GPU; C2C chip to chip;
PIX at most one PCIe switch; PXB several; P2C chip to chip and then PCIe; PHB through a CPU's host
bridge, or its memory; SYS between CPUs; NET between hosts.
"""

RANK = {name: rank for rank, name in enumerate(PATH_TYPES)}
_BY_HOST = frozenset({"pcie", "memory", "infiniband", "ethernet"})
"""Kinds of link whose paths have the types of PCIe's."""


@dataclass(frozen=True, slots=True)
class HostArc:
    """One directed link inside a host."""

    index: int
    dst: str
    kind: str
    bandwidth_Bps: float


@dataclass(frozen=True, slots=True)
class Path:
    """One path through a host."""

    type: str
    """One of `PATH_TYPES`."""
    bandwidth_Bps: float
    """Of the narrowest link."""
    arcs: tuple[int, ...]
    """Indices of the links, in order."""

    @property
    def cost(self) -> tuple[int, float, int]:
        """Key by which the better of two paths is the less."""
        return RANK[self.type], -self.bandwidth_Bps, len(self.arcs)


@dataclass(frozen=True, slots=True)
class _Trail:
    """What decides the type of a path that is being extended."""

    nvlinks: int = 0
    c2c: int = 0
    pcie: int = 0
    relays: int = 0
    switches: int = 0
    cpu: bool = False
    between_cpus: bool = False

    def crossing(self, kind: str, src_kind: str, dst_kind: str) -> _Trail:
        return _Trail(
            nvlinks=self.nvlinks + (kind == "nvlink"),
            c2c=self.c2c + (kind == "c2c"),
            pcie=self.pcie + (kind in _BY_HOST),
            relays=self.relays + (src_kind == "gpu" and self.length > 0),
            switches=self.switches + (dst_kind == "pcie_switch"),
            cpu=self.cpu or kind == "memory" or (kind == "pcie" and "cpu" in {src_kind, dst_kind}),
            between_cpus=self.between_cpus or src_kind == dst_kind == "cpu",
        )

    @property
    def length(self) -> int:
        return self.nvlinks + self.c2c + self.pcie + self.between_cpus

    @property
    def type(self) -> str:
        cases = (
            (self.length == 0, "LOC"),
            (self.between_cpus, "SYS"),
            (self.nvlinks == self.length, "NVB" if self.relays else "NVL"),
            (self.c2c == self.length, "C2C"),
            (self.c2c > 0, "P2C"),
            (self.cpu, "PHB"),
            (self.switches <= 1, "PIX"),
        )
        return next((name for applies, name in cases if applies), "PXB")


def best_paths(
    src: str,
    kinds: Mapping[str, str],
    arcs: Mapping[str, Sequence[HostArc]],
    *,
    forwarding: bool = False,
) -> dict[str, Path]:
    """Best path from one device to every other that it reaches.

    `kinds`: kind of each device of the host. `arcs`: links that leave each device. `forwarding`:
    whether any device is passed; then those of the fewest links are best, and of these the widest.
    """
    done: dict[str, Path] = {}
    queue: list[tuple[int, float, int, tuple[int, ...], str, _Trail]] = [
        (0, -float("inf"), 0, (), src, _Trail())
    ]
    while queue:
        _, negative_Bps, hops, arcs_so_far, device, trail = heapq.heappop(queue)
        if device in done:
            continue
        done[device] = Path(trail.type, -negative_Bps, arcs_so_far)
        for arc in arcs.get(device, ()):
            if arc.dst in done or not (
                forwarding or _may_pass(device == src, kinds[device], arc, kinds, trail)
            ):
                continue
            longer = trail.crossing(arc.kind, kinds[device], kinds[arc.dst])
            rank = hops + 1 if forwarding else RANK[longer.type]
            narrowest = max(negative_Bps, -arc.bandwidth_Bps)
            path = (*arcs_so_far, arc.index)
            heapq.heappush(queue, (rank, narrowest, hops + 1, path, arc.dst, longer))
    return done


def _may_pass(
    at_start: bool, kind: str, arc: HostArc, kinds: Mapping[str, str], trail: _Trail
) -> bool:
    if kind == "gpu" and not at_start:  # a relay: over NVLink alone, to another GPU, once
        relayed = trail.nvlinks == trail.length and trail.relays == 0
        return relayed and arc.kind == "nvlink" and kinds[arc.dst] in {"gpu", "nvswitch"}
    return at_start or kind != "nic"
