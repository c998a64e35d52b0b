"""When compiled loops pay, and how they are loaded.

Loading takes half a second, and some seconds once on each machine, until the compiled code is in
numba's cache on disk.

Loops over the loads of links: times of cycles, heaviest paths, fair shares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.compiled_loops.sends import (
    keep_sent,
    least_end,
    least_tree_end,
    send_over_trees,
    step,
)


def slowest_cycle(
    nbytes: FloatArray,
    rate_Bps: FloatArray,
    latency_s: FloatArray,
    active: IntArray,
    channel: IntArray,
    edges: IntArray,
    credits: int,
    repeat: int,
    lag: int,
    is_ring: bool,
) -> float:
    """Estimate the time of a phase (see `simulate.flow.transfers.cycle_s`).

    Parameters
    ----------
    nbytes, rate_Bps, latency_s, active, channel : ndarray, shape (edges,)
    edges : ndarray of int, shape (channels,)
        Edges of each channel.
    credits, repeat, lag : int
    is_ring : bool
        Whether all edges start together, and wait for each other around a ring.
    """
    slowest_s, around_s = 0.0, np.zeros(len(edges))
    for edge in range(len(nbytes)):
        busy_s = nbytes[edge] / rate_Bps[edge] if nbytes[edge] > 0 else 0.0
        step_s = busy_s + latency_s[edge]
        own_s = max(busy_s, step_s / credits) if repeat > 1 else busy_s
        if active[edge] > 0:
            slowest_s = max(slowest_s, own_s * active[edge])
        around_s[channel[edge]] += step_s
    if is_ring:
        for number in range(len(edges)):
            turn_s = around_s[number] / max(edges[number], 1)
            slowest_s = max(slowest_s, repeat * turn_s / lag)
    return slowest_s


def heaviest(
    sources: IntArray,
    order: IntArray,
    own_s: FloatArray,
    gains_s: FloatArray,
    begins_s: FloatArray,
    best: FloatArray,
    rows: FloatArray,
) -> None:
    """Heaviest paths to edges, each after those that come before it (see `path_classes`).

    Parameters
    ----------
    sources : ndarray of int, shape (most, edges)
        Places of edges that come before; padded with the number of edges.
    order : ndarray of int, shape (edges,)
        The edge at each place.
    own_s, begins_s : ndarray of float, shape (edges,)
        By place, as all that follows.
    gains_s : ndarray of float, shape (3, edges)
    best : ndarray of float, shape (5, edges + 1)
        By what a path has gained: nothing, the first gain, the second, the third, the second and
        the third. Its last column is given; the others are filled.
    rows : ndarray of float, shape (5, edges + 1)
        The result, by edge.
    """
    edges, last = len(order), best.shape[1] - 1
    reached = np.empty(5)
    for place in range(edges):
        for row in range(5):
            reached[row] = begins_s[place]
            for column in range(len(sources)):
                reached[row] = max(reached[row], best[row, sources[column, place]])
        first = reached[0] + gains_s[0, place]
        second, third = reached[0] + gains_s[1, place], reached[0] + gains_s[2, place]
        both = max(reached[2] + gains_s[2, place], reached[3] + gains_s[1, place])
        reached[1] = max(reached[1], first)
        reached[4] = max(reached[4], both, second + gains_s[2, place])
        reached[2], reached[3] = max(reached[2], second), max(reached[3], third)
        for row in range(5):
            best[row, place] = reached[row] + own_s[place]
            rows[row, order[place]] = best[row, place]
    for row in range(5):
        rows[row, last] = best[row, last]


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


PAYS = 400
"""Changes of rates that were followed (about a millisecond each) from which on loading pays."""


@dataclass
class Effort:
    """What simulations on a machine have done of what compiled loops are quicker at."""

    spent: int = 0
    """Changes of rates that were followed."""

    def expect(self, changes: int) -> None:
        """Load the compiled functions at once where so many changes are to come that they pay."""
        if changes >= PAYS > self.spent:
            self.spend(PAYS - self.spent)

    @property
    def loops(self) -> Loops | None:
        """The compiled loops, where they pay and exist."""
        return load() if self.spent >= PAYS else None

    def spend(self, changes: int = 1) -> None:
        """Count changes of rates; load the compiled functions when they pay."""
        before, self.spent = self.spent, self.spent + changes
        if before < PAYS <= self.spent:
            load()


class Loops(NamedTuple):
    """The compiled functions; arguments are contiguous arrays of int64 and float64."""

    step: Callable[..., int]
    least_end: Callable[..., float]
    send_over_trees: Callable[..., None]
    keep_sent: Callable[..., float]
    least_tree_end: Callable[..., float]
    slowest_cycle: Callable[..., float]
    fill: Callable[..., None]
    heaviest: Callable[..., None]


@cache
def load() -> Loops | None:
    """Compile the functions, or read them from disk; None where numba is missing.

    Nor are they compiled, in each process anew, where there is no folder that numba may write to
    for its cache, beside these files or in the user's own.
    """
    try:
        from numba import njit  # takes half a second to import

        compile_as = njit(cache=True, error_model="numpy")  # divides by zero as NumPy does
        return Loops(
            compile_as(step),
            compile_as(least_end),
            compile_as(send_over_trees),
            compile_as(keep_sent),
            compile_as(least_tree_end),
            compile_as(slowest_cycle),
            compile_as(fill),
            compile_as(heaviest),
        )
    except (ImportError, RuntimeError):
        return None


def loaded() -> Loops | None:
    """Return the compiled functions if `load` was called, and they could be compiled."""
    return load() if load.cache_info().currsize else None
