"""Progressive filling in loops: `fairness.max_min_rates` as it runs compiled, the same bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def filled(left_Bps: Floats, pointers: Ints, arcs: Ints, caps_Bps: Floats) -> Floats:
    """Return the max-min fair rates of flows; parameters as in `fairness.max_min_rates`.

    `left_Bps`, the capacities, is used up.
    """
    rates = np.full(len(caps_Bps), np.inf)
    users = np.zeros(len(left_Bps), np.int64)
    for arc in arcs:
        users[arc] += 1
    level = np.empty(len(caps_Bps))
    still = np.arange(len(caps_Bps))
    while len(still) > 0:
        frozen = stopped(left_Bps / np.maximum(users, 1), still, pointers, arcs, caps_Bps, level)
        if not frozen.any():  # flows without links and without caps
            break
        gone = still[frozen]
        for place in np.argsort(level[gone]):  # so that it does not depend on the flows' order
            flow = gone[place]
            rates[flow] = level[flow]
            for arc in arcs[pointers[flow] : pointers[flow + 1]]:
                left_Bps[arc] -= level[flow]
                users[arc] -= 1
        left_Bps = np.maximum(left_Bps, 0.0)
        still = still[~frozen]
    return rates


def stopped(
    share_Bps: Floats, still: Ints, pointers: Ints, arcs: Ints, caps_Bps: Floats, level: Floats
) -> NDArray[np.bool_]:
    """Find the `level` of the flows that are still open, and which of them it holds for good."""
    lowest = np.full(len(share_Bps), np.inf)
    for flow in still:
        mine = arcs[pointers[flow] : pointers[flow + 1]]
        level[flow] = caps_Bps[flow]
        for arc in mine:
            level[flow] = min(level[flow], share_Bps[arc])
        for arc in mine:
            lowest[arc] = min(lowest[arc], level[flow])
    frozen = np.zeros(len(still), np.bool_)
    for place, flow in enumerate(still):
        frozen[place] = level[flow] >= caps_Bps[flow]
        for arc in arcs[pointers[flow] : pointers[flow + 1]]:
            frozen[place] |= lowest[arc] >= share_Bps[arc]
    return frozen
