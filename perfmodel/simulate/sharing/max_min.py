"""Max-min fair sharing of directed links: progressive filling on flat arrays."""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import FloatArray, IntArray


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
    used, arcs = np.unique(arcs, return_inverse=True)
    spare_Bps = capacity_Bps[used].astype(float)
    caps = np.full(len(pointers) - 1, np.inf) if caps_Bps is None else caps_Bps.astype(float)
    flows, links = len(pointers) - 1, len(spare_Bps)
    rates = np.full(flows, np.inf)
    owner = np.repeat(np.arange(flows), np.diff(pointers))
    open_flow = np.ones(flows, dtype=np.bool_)
    while open_flow.any():
        live = open_flow[owner]
        flow_of, link_of = owner[live], arcs[live]
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
        hops = np.flatnonzero(frozen[flow_of])
        hops = hops[np.argsort(level[flow_of[hops]])]  # independent of the order of the flows
        np.subtract.at(spare_Bps, link_of[hops], level[flow_of[hops]])
        np.maximum(spare_Bps, 0.0, out=spare_Bps)
        open_flow &= ~frozen
    return rates
