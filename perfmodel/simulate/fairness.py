"""Max-min fair sharing of directed links: progressive filling on flat arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def max_min_rates(
    capacity_Bps: Floats, pointers: Ints, arcs: Ints, caps_Bps: Floats | None = None
) -> Floats:
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
        Rates in bytes per second; infinite for a flow without links and without a cap.

    Notes
    -----
    A flow's level is the least fair share over its links and its cap. A link whose own share is
    the level of every flow on it is a bottleneck: its flows are frozen at that share. Every pass
    freezes all present bottlenecks at once (they are independent of each other). Source:
    Bertsekas and Gallager, Data Networks, section 6.5.2.
    """
    flows = len(pointers) - 1
    rates = np.full(flows, np.inf)
    owner = np.repeat(np.arange(flows), np.diff(pointers))
    used, local = np.unique(arcs, return_inverse=True)
    left = capacity_Bps[used].astype(float)
    caps = np.full(flows, np.inf) if caps_Bps is None else caps_Bps
    open_flow = np.ones(flows, dtype=np.bool_)
    while open_flow.any():
        live = open_flow[owner]
        flow_of, link_of = owner[live], local[live]
        count = np.bincount(link_of, minlength=len(used))
        share = np.divide(left, count, out=np.full(len(used), np.inf), where=count > 0)
        level = np.where(open_flow, caps, np.inf)
        np.minimum.at(level, flow_of, share[link_of])
        lowest = np.full(len(used), np.inf)
        np.minimum.at(lowest, link_of, level[flow_of])
        frozen = open_flow & (level >= caps)
        frozen[flow_of[(lowest >= share)[link_of]]] = True
        if not frozen.any():  # flows without links and without caps
            break
        rates[frozen] = level[frozen]
        gone = frozen[flow_of]
        np.subtract.at(left, link_of[gone], level[flow_of[gone]])
        np.maximum(left, 0.0, out=left)
        open_flow &= ~frozen
    return rates


def staggered_rates(
    capacity_Bps: Floats, pointers: Ints, arcs: Ints, caps_Bps: Floats, duty: Floats
) -> Floats:
    """Rates of flows that send by turns: flow f is at work for a share `duty[f]` of the time.

    While a flow sends, it meets on average the sum of the others' duties on each of its links, so
    its share is capacity / (1 + that sum). With all duties 1 and like flows this is max-min fair
    sharing; it is a mean-field estimate otherwise.

    Parameters
    ----------
    capacity_Bps, pointers, arcs, caps_Bps
        As in `max_min_rates`.
    duty : ndarray of float, shape (flows,)

    Returns
    -------
    ndarray of float, shape (flows,)
    """
    owner = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))
    load = np.bincount(arcs, weights=duty[owner], minlength=len(capacity_Bps))
    share = capacity_Bps[arcs] / (1.0 + np.maximum(0.0, load[arcs] - duty[owner]))
    rates = caps_Bps.astype(float).copy()
    np.minimum.at(rates, owner, share)
    return rates


def max_min_few(
    capacity_Bps: Sequence[float], routes: Sequence[Sequence[int]], caps_Bps: Sequence[float]
) -> list[float]:
    """Share links among some flows; as `max_min_rates`, quicker up to some hundred flows."""
    users: dict[int, list[int]] = {}
    for flow, route in enumerate(routes):
        for arc in route:
            users.setdefault(arc, []).append(flow)
    limit = list(caps_Bps)
    for arc, flows in users.items():
        if len(flows) == 1:  # nobody to share with: as good as a cap
            limit[flows[0]] = min(limit[flows[0]], capacity_Bps[arc])
    links = _SharedLinks(capacity_Bps, users)
    rates = [-1.0] * len(routes)
    for flow in sorted(range(len(routes)), key=limit.__getitem__):
        while rates[flow] < 0:
            share, tight = links.tightest()
            frozen = tight if share < limit[flow] else (flow,)
            for other in frozen:
                if rates[other] < 0:
                    rates[other] = min(share, limit[flow])
                    links.take(routes[other], rates[other])
    return rates


class _SharedLinks:
    """What is left of the links that several flows cross."""

    def __init__(self, capacity_Bps: Sequence[float], users: dict[int, list[int]]) -> None:
        self._users = users
        self._count = {arc: len(flows) for arc, flows in users.items() if len(flows) > 1}
        self._left = {arc: capacity_Bps[arc] for arc in self._count}

    def tightest(self) -> tuple[float, Sequence[int]]:
        """The least fair share on any link, and the flows of that link."""
        share, tight = float("inf"), -1
        for arc, count in self._count.items():
            mine = self._left[arc] / count
            if mine < share:
                share, tight = mine, arc
        return share, self._users.get(tight, ())

    def take(self, route: Sequence[int], rate_Bps: float) -> None:
        """Give a flow its rate on every link of its route."""
        for arc in route:
            if arc in self._count:
                self._left[arc] = max(0.0, self._left[arc] - rate_Bps)
                self._count[arc] -= 1
                if not self._count[arc]:
                    del self._count[arc]
