"""When compiled loops pay, and how they are loaded.

Loading takes half a second, and some seconds once on each machine, until the compiled code is in
numba's cache on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.compiled_loops.sends import (
    keep_sent,
    least_tree_end,
    send_over_trees,
    step,
)


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


CHANGES_TO_LOAD = 400
"""Changes of rates that were followed (about a millisecond each) from which on loading pays."""


@dataclass
class Effort:
    """How much work simulations on a machine have done; it decides when compiled loops pay."""

    spent: int = 0
    """Changes of rates that were followed."""

    def expect(self, changes: int) -> None:
        """Load the compiled functions at once where so many changes are to come that they pay."""
        if changes >= CHANGES_TO_LOAD > self.spent:
            self.spend(CHANGES_TO_LOAD - self.spent)

    @property
    def loops(self) -> Loops | None:
        """The compiled loops, where they pay and exist."""
        return load() if self.spent >= CHANGES_TO_LOAD else None

    def spend(self, changes: int = 1) -> None:
        """Count changes of rates; load the compiled functions when they pay."""
        before, self.spent = self.spent, self.spent + changes
        if before < CHANGES_TO_LOAD <= self.spent:
            load()


class Loops(NamedTuple):
    """The compiled functions; arguments are contiguous arrays of int64 and float64."""

    step: Callable[..., int]
    send_over_trees: Callable[..., None]
    keep_sent: Callable[..., float]
    least_tree_end: Callable[..., float]
    fill: Callable[..., None]


@cache
def load() -> Loops | None:
    """Compile the functions, or read them from disk; None where numba is missing.

    Nor are they compiled, in each process anew, where there is no folder that numba may write to
    for its cache, beside these files or in the user's own.
    """
    try:
        from numba import njit  # takes half a second to import

        compile_as: Any = njit(cache=True, error_model="numpy")  # divides by zero as NumPy does
        return Loops(*map(compile_as, (step, send_over_trees, keep_sent, least_tree_end, fill)))
    except (ImportError, RuntimeError):
        return None


def loaded() -> Loops | None:
    """Return the compiled functions if `load` was called, and they could be compiled."""
    return load() if load.cache_info().currsize else None
