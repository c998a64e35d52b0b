"""Loops over small arrays, compiled by numba: where NumPy spends its time on the calls themselves.

All of them are written a second time with NumPy, by which they are replaced where numba is missing
or not worth loading; the results are the same to 1e-12. None calls another: numba's cache would not
notice that what is called has changed. Loading takes half a second, and some seconds once on each
machine, until the compiled code is in numba's cache on disk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.memo import T


def step_rings(  # noqa: C901, PLR0912  (numba caches a function without those that it calls)
    rows: FloatArray,
    free: FloatArray,
    rings: IntArray,
    begin: int,
    goal: int,
    lag: int,
    credits: int,
    nbytes: FloatArray,
    from_s: FloatArray,
    rate_Bps: FloatArray,
    latency_s: FloatArray,
    until_s: float,
) -> int:
    """Go on in place from step `begin` to `goal`, while all of a step leaves by a time.

    All edges always work, and lie ring after ring. Loops do several edges at a time; those whose
    rates change meanwhile are done one by one.

    Parameters
    ----------
    rows : ndarray of float, shape (depth, edges + 1)
        See `RecurrenceState.delivered`.
    free : ndarray of float, shape (edges,)
    rings : ndarray of int, shape (rings,)
        First edge of each ring.
    begin, goal : int
    lag : int
        Repeats after which a send is sent on.
    credits : int
    nbytes : ndarray of float, shape (edges,)
    from_s : ndarray of float, shape (paces,)
        When each pace begins.
    rate_Bps, latency_s : ndarray of float, shape (paces, edges)
    until_s : float

    Returns
    -------
    int
        The step that was reached.
    """
    depth, edges, paces = len(rows), len(free), len(from_s)
    start, end = np.empty(edges), np.empty(edges)
    pace, over_s = np.zeros(edges, np.int64), np.full(edges, from_s[1] if paces > 1 else np.inf)
    hold_s, flight_s = np.empty(edges), latency_s[0].copy()
    for edge in range(edges):  # as in the first pace
        hold_s[edge] = nbytes[edge] / rate_Bps[0, edge] if nbytes[edge] > 0 else 0.0
    for number in range(begin, goal):
        own, brought = rows[number % depth], rows[(number - lag) % depth]
        credit, late, last_s = rows[(number - credits) % depth], 0, -np.inf
        for edge in range(1, edges):
            start[edge] = max(free[edge], credit[edge], brought[edge - 1])
        for ring in range(len(rings)):
            edge, past = rings[ring], rings[ring + 1] if ring + 1 < len(rings) else edges
            start[edge] = max(free[edge], credit[edge], brought[past - 1])
        for edge in range(edges):
            end[edge] = start[edge] + hold_s[edge]
            late += end[edge] > over_s[edge]
        for edge in range(edges if late else 0):
            if end[edge] > over_s[edge]:
                since_s, unsent, at = start[edge], nbytes[edge], pace[edge]
                while at + 1 < paces and from_s[at + 1] < since_s:
                    at += 1
                while True:
                    over = from_s[at + 1] if at + 1 < paces else np.inf
                    leaves_s = since_s + (unsent / rate_Bps[at, edge] if unsent > 0 else 0.0)
                    if not leaves_s > over:
                        break
                    unsent = max(0.0, unsent - (over - since_s) * rate_Bps[at, edge])
                    since_s = over
                    at += 1
                pace[edge], over_s[edge], end[edge] = at, over, leaves_s
                hold_s[edge] = nbytes[edge] / rate_Bps[at, edge] if nbytes[edge] > 0 else 0.0
                flight_s[edge] = latency_s[at, edge]
        for edge in range(edges):
            last_s = max(last_s, end[edge])
        if last_s > until_s:
            return number
        for edge in range(edges):
            free[edge] = end[edge]
            own[edge] = end[edge] + flight_s[edge]
    return max(begin, goal)


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
    link : ndarray of int32, shape (hops,)
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
        count = np.zeros(links)
        for flow in waiting[:still]:
            for hop in range(pointers[flow], pointers[flow + 1]):
                count[link[hop]] += 1.0
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


CHANGES_TO_LOAD = 400
"""Changes of rates that were followed (about a millisecond each) from which on loading pays."""
CHANGES_TO_COMPILE = 5_000
"""Those from which on compiling pays, where numba's cache on disk has nothing yet."""


def _pays(changes: int) -> bool:
    """Whether so many changes of rates are worth the compiled functions, as they are on disk."""
    return changes >= CHANGES_TO_LOAD and (changes >= CHANGES_TO_COMPILE or _are_on_disk())


@cache
def _are_on_disk() -> bool:
    loops = _dispatchers()
    return loops is None or any(map(is_on_disk, loops))


def is_on_disk(compiled: Any) -> bool:
    """Whether numba compiled a function before, on this machine and for this Python."""
    module = Path(compiled.py_func.__code__.co_filename).stem
    name = (
        f"{module}.*{compiled.__name__}-*.py{sys.version_info.major}{sys.version_info.minor}*.nbi"
    )
    return any(Path(compiled.stats.cache_path).glob(name))


@dataclass
class Effort:
    """How much work simulations on a machine have done; it decides when compiled loops pay."""

    spent: int = 0
    """Changes of rates that were followed."""

    def expect(self, changes: int) -> None:
        """Load the compiled functions at once where so many changes are to come that they pay."""
        if _pays(changes) and changes > self.spent:
            self.spend(changes - self.spent)

    @property
    def loops(self) -> Loops | None:
        """The compiled loops, where they pay or are loaded, and exist."""
        return load() if _pays(self.spent) else loaded()

    def spend(self, changes: int = 1) -> None:
        """Count changes of rates; load the compiled functions when they pay."""
        before, self.spent = self.spent, self.spent + changes
        if _pays(self.spent) and not _pays(before):
            load()


class Loops(NamedTuple):
    """The compiled functions, on contiguous arrays of int64, float64, and int32 of links."""

    step_rings: Callable[..., int]
    send_over_trees: Callable[..., int]
    send_in_runs: Callable[..., int]
    least_tree_end: Callable[..., float]
    fill: Callable[..., None]


@cache
def load() -> Loops | None:
    """Return the functions to be called from now on; None where numba is missing."""
    return _dispatchers()


@cache
def _dispatchers() -> Loops | None:
    """Functions that compile themselves when they are called, or are read from disk.

    Nor are they compiled, in each process anew, where there is no folder that numba may write to
    for its cache, beside these files or in the user's own.
    """
    from perfmodel.collectives.timing.tree_loops import (  # a small run compiles nothing
        least_tree_end,
        send_in_runs,
        send_over_trees,
    )

    try:
        loops = (step_rings, send_over_trees, send_in_runs, least_tree_end, fill)
        return Loops(*map(_compiled, loops))
    except (ImportError, RuntimeError):
        return None


@cache
def _compiled(loop: Callable[..., T]) -> Callable[..., T]:
    from numba import njit  # takes half a second to import

    # It divides by zero as NumPy does. Of numbers that are never nan, the larger is one
    # instruction; nothing else of fastmath, so that results stay the same bits.
    compile_as: Any = njit(cache=True, error_model="numpy", fastmath={"nnan", "nsz"})
    found: Callable[..., T] = compile_as(loop)
    return found


def loaded() -> Loops | None:
    """Return the compiled functions if `load` was called, and they could be compiled."""
    return load() if load.cache_info().currsize else None


def compiled(loop: Callable[..., T]) -> Callable[..., T] | None:
    """Return another loop compiled, where the compiled functions are `loaded`."""
    return None if loaded() is None else _compiled(loop)
