"""Types that all of the package shares: arrays of indices and of numbers, and groups of ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
"""Indices: ranks, edges, arcs, chunks; or whole bytes."""

FloatArray = NDArray[np.float64]
"""Quantities: seconds, bytes, bytes per second."""

RankGroup = range | tuple[int, ...]
"""Ranks of the topology that take part in a collective, in their order; hashable, a cache key."""


def rank_array(group: RankGroup) -> IntArray:
    """Ranks of a group as an array."""
    if isinstance(group, range):
        return np.arange(group.start, group.stop, group.step, dtype=np.int64)
    return np.asarray(group, dtype=np.int64)
