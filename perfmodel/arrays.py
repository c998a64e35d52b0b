"""What all of the package shares: types of arrays and of groups of ranks, and a few numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
"""Indices: ranks, edges, arcs, chunks; or whole bytes."""

FloatArray = NDArray[np.float64]
"""Quantities: seconds, bytes, bytes per second."""

KEPT_BITS = 40
"""Significant bits of a random number or a table that answers rest on."""

Z80 = 1.2815515655446004
"""Half width of the middle 80 % of a normal distribution, in standard deviations."""

RankGroup = range | tuple[int, ...]
"""Ranks of the topology that take part in a collective, in their order; hashable, a cache key."""


def rank_array(group: RankGroup) -> IntArray:
    """Ranks of a group as an array."""
    if isinstance(group, range):
        return np.arange(group.start, group.stop, group.step, dtype=np.int64)
    return np.asarray(group, dtype=np.int64)


def same_for_all(value: np.float64 | np.int64, count: int) -> NDArray[Any]:
    """`count` times the same value, which takes the memory of one; read-only."""
    return np.broadcast_to(value, count)


def sending_s(nbytes: FloatArray, rate_Bps: FloatArray) -> FloatArray:
    """Time to send bytes at a rate, element by element; seconds.

    Zero where there is nothing to send, also over a dead link; infinite where a dead link, of rate
    0, has something to carry.
    """
    times_s = np.where(nbytes > 0, np.inf, 0.0) + np.zeros(np.shape(rate_Bps))
    return np.divide(nbytes, rate_Bps, out=times_s, where=np.asarray(rate_Bps) > 0)


def round_bits(values: FloatArray) -> FloatArray:
    """Round to `KEPT_BITS` significant bits: what processors differ in is gone.

    Powers, exponentials and logarithms differ in the last of 53 bits between processors, by the
    vector units for which NumPy has versions of its own.
    """
    mantissa, exponent = np.frexp(values)
    rounded: FloatArray = np.ldexp(np.rint(np.ldexp(mantissa, KEPT_BITS)), exponent - KEPT_BITS)
    return rounded
