"""When compiled loops pay, and how they are loaded.

Loading takes half a second, and some seconds once on each machine, until the compiled code is in
numba's cache on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from perfmodel.compiled_loops.link_loads import fill, heaviest, slowest_cycle
from perfmodel.compiled_loops.sends import (
    keep_sent,
    least_end,
    least_tree_end,
    send_over_trees,
    step,
)

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
