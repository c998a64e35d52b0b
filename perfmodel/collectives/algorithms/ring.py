"""Ring algorithms: all-reduce, reduce-scatter and all-gather on one or several rings.

Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", JPDC 69(2), 2009; NCCL 2.30.7 ``src/device/all_reduce.h`` for the order of chunks.

Gloo's all-reduce: a ring of small segments, several to a rank.

Source: Gloo, ``gloo/allreduce.cc`` (ring).

Pipelined chains: broadcast from, and reduce to, one rank in pieces (NCCL's ring broadcast). Data
goes around each ring the way that the ring goes, so that chains use the links of the rings.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from perfmodel.arrays import IntArray
from perfmodel.collectives.patterns import (
    Pattern,
    around,
    concatenate,
    pieces_of,
    pipeline,
    ranges,
)
from perfmodel.collectives.schedule import (
    Phase,
    Schedule,
    check_elements,
    check_ranks,
    split_elements,
)
from perfmodel.errors import check_schedule

Orders = Sequence[Sequence[int]] | IntArray

MOST_PLACES_KEPT: Final = 64
"""Places of rings whose schedules are made once for each size."""


def all_reduce(
    ranks: int, nbytes: int, *, itemsize: int = 4, orders: Orders | None = None
) -> Schedule:
    """Sum a buffer over all ranks: reduce-scatter around the ring, then all-gather.

    Steps: 2(N-1). Bytes sent per rank: 2(N-1)/N S (exact when chunks divide evenly).
    Latency term: 2(N-1) alpha. Right for large buffers: no algorithm sends fewer bytes.
    Source: Patarasuk and Yuan, JPDC 69(2), 2009.

    N is `ranks`, S is `nbytes`, the size of the buffer on every rank; `itemsize`: bytes per
    element. `orders`: one order of all ranks for each parallel ring; the rings share the buffer
    evenly. Default: one ring in rank order.

    Raises `ScheduleError`: an order that is not a permutation, or a size that is not whole
    elements.
    """
    return _ring("all_reduce", ranks, nbytes, itemsize, orders)


def reduce_scatter(
    ranks: int, nbytes: int, *, itemsize: int = 4, orders: Orders | None = None
) -> Schedule:
    """Sum a buffer over all ranks and leave each rank its own part.

    Steps: N-1. Bytes sent per rank: (N-1)/N S, with S the whole buffer. Latency term: (N-1) alpha.
    Right for large buffers. Parameters, return value, errors and source as in `all_reduce`.
    """
    return _ring("reduce_scatter", ranks, nbytes, itemsize, orders)


def all_gather(
    ranks: int, nbytes: int, *, itemsize: int = 4, orders: Orders | None = None
) -> Schedule:
    """Give every rank the parts of all.

    Steps: N-1. Bytes sent per rank: (N-1)/N S, with S the whole result. Latency term: (N-1) alpha.
    Right for large buffers. Parameters, return value, errors and source as in `all_reduce`.
    """
    return _ring("all_gather", ranks, nbytes, itemsize, orders)


def both_ways(ranks: int) -> Orders:
    """Orders of two rings in opposite directions, so that a link works in both of its own."""
    order = list(range(check_ranks(ranks)))
    return [order, order[::-1]]


def bidirectional_all_reduce(ranks: int, nbytes: int, *, itemsize: int = 4) -> Schedule:
    """Sum a buffer over all ranks on two rings in opposite directions, half of it on each.

    Steps: 2(N-1). Bytes sent per rank: 2(N-1)/N S, half of them to either neighbour. Latency
    term: 2(N-1) alpha. Right on neighbour-to-neighbour links that carry both directions at once.
    Source: as for `all_reduce`, twice.
    """
    return _ring("all_reduce", ranks, nbytes, itemsize, both_ways(ranks), "bidirectional_ring")


def bidirectional_reduce_scatter(ranks: int, nbytes: int, *, itemsize: int = 4) -> Schedule:
    """As `reduce_scatter`, on two rings in opposite directions, half of the buffer on each.

    Steps: N-1. Bytes sent per rank: (N-1)/N S. Latency term: (N-1) alpha. Right, and source, as
    for `bidirectional_all_reduce`.
    """
    return _ring("reduce_scatter", ranks, nbytes, itemsize, both_ways(ranks), "bidirectional_ring")


def bidirectional_all_gather(ranks: int, nbytes: int, *, itemsize: int = 4) -> Schedule:
    """As `all_gather`, on two rings in opposite directions, half of the buffer on each.

    Steps: N-1. Bytes sent per rank: (N-1)/N S. Latency term: (N-1) alpha. Right, and source, as
    for `bidirectional_all_reduce`.
    """
    return _ring("all_gather", ranks, nbytes, itemsize, both_ways(ranks), "bidirectional_ring")


def _ring(
    collective: str,
    ranks: int,
    nbytes: int,
    itemsize: int,
    orders: Orders | None,
    algorithm: str = "ring",
) -> Schedule:
    table = checked_orders(check_ranks(ranks), orders)
    if table.size > MOST_PLACES_KEPT:
        return _on_rings(collective, nbytes, itemsize, table, algorithm)
    return _on_few_ranks(collective, nbytes, itemsize, tuple(map(tuple, table.tolist())), algorithm)


@lru_cache(maxsize=128)
def _on_few_ranks(
    collective: str, nbytes: int, itemsize: int, orders: tuple[tuple[int, ...], ...], algorithm: str
) -> Schedule:
    """As `_on_rings`, made once: a fit asks for the same sizes a thousand times."""
    return _on_rings(collective, nbytes, itemsize, np.array(orders, dtype=np.int64), algorithm)


def _on_rings(
    collective: str, nbytes: int, itemsize: int, table: IntArray, algorithm: str
) -> Schedule:
    ranks = table.shape[1]
    sizes = split_elements(nbytes, table.size, itemsize)
    # Position p of a ring ends up with chunk p + 1 after N - 1 steps of reducing, so the rank that
    # owns chunk i of a ring stands at position i - 1; gathering starts from the same place.
    owner = None if collective == "all_reduce" else np.roll(table, 1, axis=1).ravel()
    first = np.arange(table.size).reshape(table.shape)
    kinds = {"all_reduce": (True, False), "reduce_scatter": (True,), "all_gather": (False,)}
    patterns = [
        around(
            "reduce-scatter" if reduces else "all-gather",
            table,
            first,
            1,
            sizes,
            reduces=reduces,
            channels=True,
        )
        for reduces in kinds[collective]
    ]
    return concatenate(patterns, collective, algorithm, ranks, nbytes, itemsize, sizes, owner=owner)


def checked_orders(ranks: int, orders: Orders | None) -> IntArray:
    """Orders of parallel rings as an array of shape (rings, ranks); one in rank order if None.

    Raises `ScheduleError`: an order that does not hold each rank once.
    """
    if orders is None:
        return np.arange(ranks, dtype=np.int64)[None, :]
    table = np.asarray(orders, dtype=np.int64)
    fits = table.ndim == 2 and table.shape[1] == ranks and len(table) > 0
    check_schedule(
        (not fits, f"ring orders of shape {table.shape}; allowed: (rings, {ranks})"),
        (
            fits and (np.sort(table, axis=1) != np.arange(ranks)).any(),
            f"a ring order that does not hold each rank 0 to {ranks - 1} once",
        ),
    )
    return table


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
    fewest = max(-(-nbytes // largest), 2 * ranks)
    number = -(-fewest // ranks) * ranks
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

    Raises `ScheduleError`: a size that is not whole elements.
    """
    check_elements(nbytes, itemsize)
    number, each = segments(
        check_ranks(ranks), nbytes, itemsize=itemsize, segment_bytes=segment_bytes
    )
    sizes = np.clip(nbytes - np.arange(number) * each, 0, each)
    patterns = [
        _down("reduce-scatter", ranks, sizes, ahead=1, reduces=True),
        _down("all-gather", ranks, sizes, ahead=0, reduces=False),
    ]
    return concatenate(patterns, "all_reduce", "gloo_ring", ranks, nbytes, itemsize, sizes)


def _down(name: str, ranks: int, sizes: IntArray, *, ahead: int, reduces: bool) -> Pattern:
    """Rank r sends to r - 1 all segments but one rank's, beginning with those of r + `ahead`.

    The edges stand in the order of the ring: 0 to N - 1, N - 1 to N - 2 ...
    """
    each = len(sizes) // ranks
    ones, zeros = np.ones(ranks, np.int64), np.zeros(ranks, np.int64)
    src = -np.arange(ranks) % ranks
    dst, begin = (src - 1) % ranks, (src + ahead) % ranks * each
    left_out = sizes.reshape(ranks, each).sum(axis=1)[(src + ahead - 1) % ranks]
    repeat = (ranks - 1) * each
    return Pattern(
        Phase(
            name,
            src,
            dst,
            zeros,
            (sizes.sum() - left_out) / max(repeat, 1),
            repeat,
            zeros,
            np.full(ranks, repeat),
            lag=each,
            drained=not reduces,
            adds=reduces,
        ),
        lambda step: ranges(src, dst, zeros, begin + step, ones, sizes, reduces=reduces),
    )


PIECE_BYTES = 1 << 19
"""Default size of a piece; 512 KiB, one step of NCCL's Simple protocol: BROADCAST_SLICESTEPS and
REDUCE_SLICESTEPS are 1 (NVIDIA/nccl 2.30.7 ``src/include/device.h``)."""


def broadcast(
    ranks: int,
    nbytes: int,
    *,
    root: int = 0,
    itemsize: int = 4,
    piece_bytes: int = PIECE_BYTES,
    orders: Orders | None = None,
) -> Schedule:
    """Copy the root's buffer to everyone, down a chain, in P pieces.

    Steps: N - 2 + P. Bytes sent per rank: S (the last rank sends none).
    Latency term: (N - 2 + P) alpha. Right for large buffers on a ring of equal links. Source:
    NVIDIA/nccl 2.30.7 ``src/device/broadcast.h``.

    Each ring's share is cut into equal pieces of `piece_bytes` at most. `orders`: one order of all
    ranks for each parallel ring, as in `ring`; each chain starts at the root.
    """
    chains = _turned(checked_orders(check_ranks(ranks, root), orders), root, first=0)
    return _pipeline("broadcast", chains, nbytes, root, itemsize, piece_bytes)


def reduce(
    ranks: int,
    nbytes: int,
    *,
    root: int = 0,
    itemsize: int = 4,
    piece_bytes: int = PIECE_BYTES,
    orders: Orders | None = None,
) -> Schedule:
    """Sum everyone's buffer into the root's, down a chain that ends there, in P pieces.

    Steps: N - 2 + P. Bytes sent per rank: S (the root sends none). Latency term: (N - 2 + P)
    alpha. When it is right, parameters and source are those of `broadcast`. The other ranks'
    buffers hold partial sums afterwards.
    """
    chains = _turned(checked_orders(check_ranks(ranks, root), orders), root, first=1)
    return _pipeline("reduce", chains, nbytes, root, itemsize, piece_bytes)


def _turned(orders: IntArray, root: int, first: int) -> IntArray:
    """Return each ring as a chain that begins `first` places after the root."""
    at = np.argmax(orders == root, axis=1) + first
    places = (at[:, None] + np.arange(orders.shape[1])) % orders.shape[1]
    return np.take_along_axis(orders, places, axis=1)


def _pipeline(
    collective: str, chains: IntArray, nbytes: int, root: int, itemsize: int, piece_bytes: int
) -> Schedule:
    rings, ranks = chains.shape
    hops = ranks - 1
    pieces = pieces_of(nbytes, rings, piece_bytes, itemsize)
    sizes = split_elements(nbytes, rings * pieces, itemsize)
    pattern = pipeline(
        collective,
        chains[:, :-1].ravel(),
        chains[:, 1:].ravel(),
        np.repeat(np.arange(rings), hops),
        np.tile(np.arange(hops), rings),
        sizes.reshape(rings, pieces, 1),
        reduces=np.full(rings * hops, collective == "reduce"),
    )
    return concatenate([pattern], collective, "chain", ranks, nbytes, itemsize, sizes, root=root)
