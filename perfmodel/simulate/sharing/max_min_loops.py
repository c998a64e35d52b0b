"""Progressive filling in loops: `max_min.max_min_rates` as it runs compiled, the same bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray, IntArray


def fill_in_loops(
    spare_Bps: FloatArray, pointers: IntArray, arcs: IntArray, caps_Bps: FloatArray
) -> FloatArray:
    """Return the max-min fair rates of flows; parameters as in `max_min.max_min_rates`.

    `spare_Bps` holds the capacities and is overwritten.
    """
    rates = np.full(len(caps_Bps), np.inf)
    users = np.zeros(len(spare_Bps), np.int64)
    for arc in arcs:
        users[arc] += 1
    level = np.empty(len(caps_Bps))
    open_flows = np.arange(len(caps_Bps))
    while len(open_flows) > 0:
        frozen = find_frozen(
            spare_Bps / np.maximum(users, 1), open_flows, pointers, arcs, caps_Bps, level
        )
        if not frozen.any():  # flows without links and without caps
            break
        flows = open_flows[frozen]
        for place in np.argsort(level[flows]):  # independent of the order of the flows
            flow = flows[place]
            rates[flow] = level[flow]
            for arc in arcs[pointers[flow] : pointers[flow + 1]]:
                spare_Bps[arc] -= level[flow]
                users[arc] -= 1
        spare_Bps = np.maximum(spare_Bps, 0.0)
        open_flows = open_flows[~frozen]
    return rates


def find_frozen(
    share_Bps: FloatArray,
    open_flows: IntArray,
    pointers: IntArray,
    arcs: IntArray,
    caps_Bps: FloatArray,
    level: FloatArray,
) -> NDArray[np.bool_]:
    """Write the `level` of the open flows, and return which of them are frozen at it."""
    lowest = np.full(len(share_Bps), np.inf)
    for flow in open_flows:
        mine = arcs[pointers[flow] : pointers[flow + 1]]
        level[flow] = caps_Bps[flow]
        for arc in mine:
            level[flow] = min(level[flow], share_Bps[arc])
        for arc in mine:
            lowest[arc] = min(lowest[arc], level[flow])
    frozen = np.zeros(len(open_flows), np.bool_)
    for place, flow in enumerate(open_flows):
        frozen[place] = level[flow] >= caps_Bps[flow]
        for arc in arcs[pointers[flow] : pointers[flow + 1]]:
            frozen[place] |= lowest[arc] >= share_Bps[arc]
    return frozen
