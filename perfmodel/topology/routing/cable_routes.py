"""Routes of many flows over the cables of a fabric, by a routing from switch to switch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from perfmodel.topology.routing.clos import Ints, hashed
from perfmodel.topology.routing.switch_paths import Bits, SwitchPaths, draw

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
