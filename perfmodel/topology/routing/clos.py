"""Structure of a regular fabric (Clos, fat tree), by which routes are computed without search.

Ports are numbered host by host (port p belongs to host ``p // nics``), cables as
`perfmodel.topology.fabric.assemble` numbers them: port p's arcs are ``first + 2 p`` (in) and the
one after it (out of it); then come the trunks, leaf by leaf, and, in a fat tree, those between
aggregation and core switches. Every trunk cable is two arcs, up and down.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import each_of, mix

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tiers:
    """Levels of switches, every switch of one level joined alike to the next.

    Arrays have shape (ports,).
    """

    leaf_of: Ints
    """Leaf switch of each port."""
    place_of: Ints
    """Place of each port among those of its leaf."""
    nics: int
    """Ports of one host."""
    first: int
    """Arc of the first cable."""
    leaves: int
    pod: int
    """Leaves of one pod; all of them in a fabric without core switches."""
    above: int
    """Switches above a leaf, each joined to all leaves of its pod."""
    cables: int
    """Parallel cables between a leaf and each of them."""
    cores: int
    """Core switches above each of those; 0 in a fabric of one pod. Core switch c joins the
    same-numbered switch of every pod."""
    by_place: bool = False
    """Whether a port's place in its leaf chooses the path (no two ports of a leaf that has as many
    uplinks as ports share one), instead of a hash."""

    @property
    def arcs(self) -> int:
        """Arcs of the fabric."""
        pods = -(-self.leaves // max(1, self.pod))
        trunks = self.leaves * self.above * self.cables + pods * self.above * self.cores
        return 2 * (len(self.leaf_of) + trunks)

    @property
    def pods_apart(self) -> bool:
        """Whether no cable joins its pods, as rails without spines above them."""
        return self.leaves > self.pod and not self.cores

    # ------------------------------------------------------------ paths between two ports

    def kinds(self, src: Ints, dst: Ints) -> Ints:
        """How far pairs of ports are apart: 0 one leaf, 1 one pod, 2 two pods."""
        a, b = self.leaf_of[src], self.leaf_of[dst]
        return np.where(a == b, 0, np.where(a // self.pod == b // self.pod, 1, 2))

    def paths(self, kind: int) -> int:
        """Number of equally short paths between ports that are so far apart."""
        return (1, self.above * self.cables**2, self.above * max(1, self.cores))[kind]

    def choose(self, src: Ints, dst: Ints, flow: Ints, kind: int) -> Ints:
        """Number of the path that each flow takes, 0 ... paths - 1."""
        if kind == 0:
            return np.zeros_like(src)
        if not self.by_place:
            return (hashed(src, dst, flow) % np.uint64(self.paths(kind))).astype(np.int64)
        place = self.place_of[src]
        up, rest = place % self.above, place // self.above
        if kind == 2:
            leaf_place = self.leaf_of[src] % self.pod  # place of the leaf in its pod
            return up + self.above * (leaf_place % self.cores)
        cable = rest % self.cables
        return up + self.above * (cable + self.cables * cable)

    def arcs_of(self, src: Ints, dst: Ints, path: Ints, kind: int) -> Ints:
        """Arcs of paths by number; shape (flows, hops) with 2, 4 or 6 hops."""
        into, out = self.first + 2 * src, self.first + 2 * dst + 1
        if kind == 0:
            return np.stack(np.broadcast_arrays(into, out), axis=-1)
        a, b = self.leaf_of[src], self.leaf_of[dst]
        switch, rest = path % self.above, path // self.above
        if kind == 1:
            up = self._trunk(a, switch, rest % self.cables)
            down = self._trunk(b, switch, rest // self.cables) + 1
            return np.stack(np.broadcast_arrays(into, up, down, out), axis=-1)
        up, down = self._trunk(a, switch, 0), self._trunk(b, switch, 0) + 1
        higher = self._core_trunk(a // self.pod, switch, rest)
        lower = self._core_trunk(b // self.pod, switch, rest) + 1
        return np.stack(np.broadcast_arrays(into, up, higher, lower, down, out), axis=-1)

    def _trunk(self, leaf: Ints, switch: Ints, cable: Ints | int) -> Ints:
        start = self.first + 2 * len(self.leaf_of)
        return start + 2 * ((leaf * self.above + switch) * self.cables + cable)

    def _core_trunk(self, pod: Ints, switch: Ints, core: Ints) -> Ints:
        start = self.first + 2 * (len(self.leaf_of) + self.leaves * self.above * self.cables)
        return start + 2 * ((pod * self.above + switch) * self.cores + core)


def places(leaf_of: Ints) -> Ints:
    """Place of each port among the ports of its leaf, in port order."""
    order = np.argsort(leaf_of, kind="stable")
    place_of = np.empty_like(leaf_of)
    _, place_of[order] = each_of(np.bincount(leaf_of))
    return place_of


def hashed(src: Ints, dst: Ints, flow: Ints) -> NDArray[np.uint64]:
    """64 well-mixed bits per flow (SplitMix64, Steele, Lea and Flood, OOPSLA 2014, figure 17)."""
    columns = np.broadcast_arrays(src, dst, flow)
    return mix(*(column.ravel() for column in columns)).reshape(columns[0].shape)
