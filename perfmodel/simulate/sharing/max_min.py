"""Max-min fair sharing of directed links: progressive filling on flat arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.collectives.timing import compiled_loops
from perfmodel.library.lowering.lowered import ranges


def max_min_rates(
    capacity_Bps: FloatArray,
    pointers: IntArray,
    arcs: IntArray,
    caps_Bps: FloatArray | None = None,
) -> FloatArray:
    """Share link capacities among flows, max-min fairly.

    Parameters
    ----------
    capacity_Bps : ndarray of float, shape (links,)
    pointers : ndarray of int, shape (flows + 1,)
        Flow f crosses ``arcs[pointers[f]:pointers[f + 1]]``.
    arcs : ndarray of int
    caps_Bps : ndarray of float, shape (flows,), optional
        Most that each flow can take whatever the links allow.

    Returns
    -------
    ndarray of float, shape (flows,)
        Rates in bytes per second; infinite for a flow without links and without a cap. They are
        the same bits in whatever order the flows are given.

    Notes
    -----
    A flow's level is the least fair share over its links and its cap. A link whose own share is
    the level of every flow on it is a bottleneck: its flows are frozen at that share. Every pass
    freezes all present bottlenecks at once (they are independent of each other). Source:
    Bertsekas and Gallager, Data Networks, section 6.5.2.
    """
    return LinkSharing.of(pointers, arcs).rates(capacity_Bps, caps_Bps)


FEW_HOPS = 16
"""Links per hop from which on it is quicker to sort the hops than to go over all links."""


@dataclass(frozen=True, slots=True)
class LinkSharing:
    """Flows on their links, for which rates are solved several times.

    A hop is a link that a flow crosses. Arrays of hops have shape (hops,).
    """

    used: IntArray
    """Links that some flow crosses, ascending."""
    pointers: IntArray
    link: NDArray[np.int32]
    """Place in `used` of the link of each hop."""

    @classmethod
    def of(cls, pointers: IntArray, arcs: IntArray) -> LinkSharing:
        """Prepare flows; see `max_min_rates`."""
        pointers = np.ascontiguousarray(pointers, dtype=np.int64)
        last = int(arcs.max(initial=-1))
        if last > FEW_HOPS * len(arcs):  # of a large cluster's links few are crossed
            used, link = np.unique(arcs, return_inverse=True)
            return cls(used, pointers, link.astype(np.int32))
        crossed = np.zeros(last + 1, dtype=np.bool_)
        crossed[arcs] = True
        used, place = np.flatnonzero(crossed), np.cumsum(crossed, dtype=np.int32) - 1
        return cls(used, pointers, place[arcs])

    def rates(self, capacity_Bps: FloatArray, caps_Bps: FloatArray | None = None) -> FloatArray:
        """Return the rates of the flows; see `max_min_rates`."""
        flows, links = len(self.pointers) - 1, len(self.used)
        spare_Bps = capacity_Bps[self.used].astype(float)
        caps = np.full(flows, np.inf) if caps_Bps is None else caps_Bps.astype(float)
        rates = np.full(flows, np.inf)
        loops = compiled_loops.loaded()
        if loops is not None and np.isfinite(spare_Bps).all():
            loops.fill(self.pointers, self.link, spare_Bps, caps, rates)
            return rates
        open_flow = np.ones(flows, dtype=np.bool_)
        flow_of = np.repeat(np.arange(flows), np.diff(self.pointers))
        link_of: IntArray = self.link.astype(np.int64)
        while open_flow.any():
            count = np.bincount(link_of, minlength=links)
            share = np.divide(spare_Bps, count, out=np.full(links, np.inf), where=count > 0)
            level = np.where(open_flow, caps, np.inf)
            np.minimum.at(level, flow_of, share[link_of])
            lowest = np.full(links, np.inf)
            np.minimum.at(lowest, link_of, level[flow_of])
            frozen = open_flow & (level >= caps)
            frozen[flow_of[(lowest >= share)[link_of]]] = True
            if not frozen.any():  # flows without links and without caps
                break
            rates[frozen] = level[frozen]
            open_flow &= ~frozen
            if not open_flow.any():
                break
            self._take(spare_Bps, frozen, level)
            live = open_flow[flow_of]
            flow_of, link_of = flow_of[live], link_of[live]
        return rates

    def _take(self, spare_Bps: FloatArray, frozen: NDArray[np.bool_], level: FloatArray) -> None:
        """Take what frozen flows get from the spare capacity of their links."""
        flows = np.flatnonzero(frozen)
        flows = flows[np.argsort(level[flows])]  # independent of the order of the flows
        lengths = self.pointers[flows + 1] - self.pointers[flows]
        hops = ranges(self.pointers[flows], lengths)
        np.subtract.at(spare_Bps, self.link[hops], np.repeat(level[flows], lengths))
        np.maximum(spare_Bps, 0.0, out=spare_Bps)
