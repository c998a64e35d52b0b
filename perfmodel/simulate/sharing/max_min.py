"""Max-min fair sharing of directed links: progressive filling on flat arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from perfmodel.simulate.message import numba_kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Filling = Callable[[Floats, Ints, Ints, Floats], Floats]


def max_min_rates(
    capacity_Bps: Floats,
    pointers: Ints,
    arcs: Ints,
    caps_Bps: Floats | None = None,
    *,
    compiled: bool = False,
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
    compiled : bool
        Whether to do it compiled by numba, which must be installed: the same bits, sooner where it
        is done many times (loading numba takes about a second).

    Returns
    -------
    ndarray of float, shape (flows,)
        Rates in bytes per second; infinite for a flow without links and without a cap. They are
        the same bits in whatever order the flows are given.

    Raises
    ------
    ImportError
        `compiled` without numba.

    Notes
    -----
    A flow's level is the least fair share over its links and its cap. A link whose own share is
    the level of every flow on it is a bottleneck: its flows are frozen at that share. Every pass
    freezes all present bottlenecks at once (they are independent of each other). Source:
    Bertsekas and Gallager, Data Networks, section 6.5.2.
    """
    used, local = np.unique(arcs, return_inverse=True)
    caps = np.full(len(pointers) - 1, np.inf) if caps_Bps is None else caps_Bps.astype(float)
    if compiled:
        fill: Filling = numba_kernel.compiled_filling()
        return fill(capacity_Bps[used].astype(float), pointers, local.astype(np.int64), caps)
    return _filled(capacity_Bps[used].astype(float), pointers, local, caps)


def _filled(left: Floats, pointers: Ints, arcs: Ints, caps: Floats) -> Floats:
    """As `filling.filled`, all flows of a pass at once."""
    flows, links = len(pointers) - 1, len(left)
    rates = np.full(flows, np.inf)
    owner = np.repeat(np.arange(flows), np.diff(pointers))
    open_flow = np.ones(flows, dtype=np.bool_)
    while open_flow.any():
        live = open_flow[owner]
        flow_of, link_of = owner[live], arcs[live]
        count = np.bincount(link_of, minlength=links)
        share = np.divide(left, count, out=np.full(links, np.inf), where=count > 0)
        level = np.where(open_flow, caps, np.inf)
        np.minimum.at(level, flow_of, share[link_of])
        lowest = np.full(links, np.inf)
        np.minimum.at(lowest, link_of, level[flow_of])
        frozen = open_flow & (level >= caps)
        frozen[flow_of[(lowest >= share)[link_of]]] = True
        if not frozen.any():  # flows without links and without caps
            break
        rates[frozen] = level[frozen]
        gone = np.flatnonzero(frozen[flow_of])
        gone = gone[np.argsort(level[flow_of[gone]])]  # not in the order of the flows
        np.subtract.at(left, link_of[gone], level[flow_of[gone]])
        np.maximum(left, 0.0, out=left)
        open_flow &= ~frozen
    return rates
