"""Gloo's all-reduce: a ring of small segments, several to a rank.

Source: Gloo, ``gloo/allreduce.cc`` (ring).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from perfmodel.collectives.patterns import Pattern, assembled, ranges
from perfmodel.collectives.schedule import Ints, Phase, Schedule, checked_ranks
from perfmodel.errors import ScheduleError

SEGMENT_BYTES: Final = 1 << 20
"""Largest segment; ``kMaxSegmentSize`` in Gloo, which PyTorch leaves as it is."""


def segments(
    ranks: int, nbytes: int, *, itemsize: int = 4, segment_bytes: int = SEGMENT_BYTES
) -> tuple[int, int]:
    """Return how many segments Gloo cuts a buffer into, and the bytes of each (the last is short).

    Examples
    --------
    >>> segments(4, 25 * 2**20)
    (28, 936232)
    """
    largest = max(segment_bytes // itemsize, 1) * itemsize
    wanted = max(-(-nbytes // largest), 2 * ranks)
    number = -(-wanted // ranks) * ranks
    return number, -(-nbytes // (number * itemsize)) * itemsize


def ring_all_reduce(
    ranks: int, nbytes: int, *, itemsize: int = 4, segment_bytes: int = SEGMENT_BYTES
) -> Schedule:
    """Sum a buffer around a ring in k segments per rank: reduce-scatter, then all-gather.

    Rank r sends to r - 1. What comes in is sent on k transfers later, so that adding overlaps
    with transfers; the all-gather begins when all of the reduce-scatter is in.
    Steps: 2(N-1)k, with k >= 2 (`segments` / N). Bytes sent per rank: 2(N-1)/N S (exact when
    segments divide evenly). Latency term: 2(N-1)k alpha one by one, 2(N-1) alpha for k = 2 with
    two in flight. Right for large buffers whose sums are made by CPUs. Source: Gloo (see the
    module).

    Parameters
    ----------
    ranks, nbytes, itemsize : int
        As everywhere.
    segment_bytes : int
        Largest segment.

    Raises
    ------
    ScheduleError
        A size that is not whole elements.
    """
    checked_ranks(ranks)
    if nbytes < 0 or itemsize <= 0 or nbytes % itemsize:
        raise ScheduleError(
            f"a buffer of {nbytes} bytes is not a whole number of {itemsize}-byte elements"
        )
    number, each = segments(ranks, nbytes, itemsize=itemsize, segment_bytes=segment_bytes)
    sizes = np.clip(nbytes - np.arange(number) * each, 0, each)
    return assembled(
        [
            _down("reduce-scatter", ranks, sizes, ahead=1, reduces=True),
            _down("all-gather", ranks, sizes, ahead=0, reduces=False),
        ],
        collective="all_reduce",
        algorithm="gloo_ring",
        ranks=ranks,
        nbytes=nbytes,
        itemsize=itemsize,
        chunk_bytes=sizes,
    )


def _down(name: str, ranks: int, sizes: Ints, *, ahead: int, reduces: bool) -> Pattern:
    """Rank r sends to r - 1 all segments but one rank's, beginning with those of r + `ahead`.

    The edges stand in the order of the ring: 0 to N - 1, N - 1 to N - 2 ...
    """
    each = len(sizes) // ranks
    ones, zeros = np.ones(ranks, np.int64), np.zeros(ranks, np.int64)
    src = -np.arange(ranks) % ranks
    dst, begin = (src - 1) % ranks, (src + ahead) % ranks * each
    left_out = sizes.reshape(ranks, each).sum(axis=1)[(src + ahead - 1) % ranks]
    repeat = (ranks - 1) * each
    mean = (sizes.sum() - left_out) / max(repeat, 1)
    active = np.full(ranks, repeat)
    phase = Phase(
        name, src, dst, zeros, mean, repeat, zeros, active,
        lag=each, drained=not reduces, adds=reduces,
    )  # fmt: skip
    return Pattern(
        phase,
        lambda step: ranges(src, dst, zeros, begin + step, ones, sizes, reduces=reduces),
    )
