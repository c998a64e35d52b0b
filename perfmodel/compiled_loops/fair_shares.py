"""Rates of flows that share links max-min fairly."""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import FloatArray, IntArray


def fill(  # noqa: C901, PLR0912  (numba caches a function without those that it calls)
    pointers: IntArray,
    link: IntArray,
    spare_Bps: FloatArray,
    caps_Bps: FloatArray,
    rates_Bps: FloatArray,
) -> None:
    """Share links max-min fairly (see `sharing.max_min`), in place.

    Parameters
    ----------
    pointers : ndarray of int, shape (flows + 1,)
    link : ndarray of int, shape (hops,)
        Flow f crosses the links ``link[pointers[f]:pointers[f + 1]]``.
    spare_Bps : ndarray of float, shape (links,)
        Capacities, all finite; what is left of them afterwards.
    caps_Bps : ndarray of float, shape (flows,)
    rates_Bps : ndarray of float, shape (flows,)
        Infinite; rates afterwards.
    """
    flows, links = len(pointers) - 1, len(spare_Bps)
    waiting, still = np.arange(flows), flows
    level, is_frozen = np.empty(flows), np.zeros(flows, np.bool_)
    share, lowest = np.empty(links), np.empty(links)
    while still > 0:
        count = np.zeros(links, np.int64)
        for flow in waiting[:still]:
            for hop in range(pointers[flow], pointers[flow + 1]):
                count[link[hop]] += 1
        for number in range(links):
            share[number] = spare_Bps[number] / count[number] if count[number] else np.inf
            lowest[number] = np.inf
        for flow in waiting[:still]:
            level[flow] = caps_Bps[flow]
            for hop in range(pointers[flow], pointers[flow + 1]):
                level[flow] = min(level[flow], share[link[hop]])
            for hop in range(pointers[flow], pointers[flow + 1]):
                lowest[link[hop]] = min(lowest[link[hop]], level[flow])
        frozen = np.empty(still, np.int64)
        freezing = staying = 0
        for flow in waiting[:still]:
            is_frozen[flow] = level[flow] >= caps_Bps[flow]
            for hop in range(pointers[flow], pointers[flow + 1]):
                if lowest[link[hop]] >= share[link[hop]]:
                    is_frozen[flow] = True
            if is_frozen[flow]:
                frozen[freezing] = flow
                freezing += 1
            else:
                waiting[staying] = flow
                staying += 1
        if freezing == 0:  # flows without links and without caps
            return
        still = staying
        order = np.argsort(level[frozen[:freezing]])  # independent of the order of the flows
        for place in order:
            flow = frozen[place]
            rates_Bps[flow] = level[flow]
            for hop in range(pointers[flow], pointers[flow + 1]):
                spare_Bps[link[hop]] -= level[flow]
        for number in range(links):
            spare_Bps[number] = max(spare_Bps[number], 0.0)
