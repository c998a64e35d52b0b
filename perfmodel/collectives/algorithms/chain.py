"""Pipelined chains: broadcast from, and reduce to, one rank in pieces (NCCL's ring broadcast).

Data goes around each ring the way that the ring goes, so that chains use the links of the rings.
"""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import IntArray
from perfmodel.collectives.algorithms.ring import Orders, checked_orders
from perfmodel.collectives.patterns import concatenate, pieces_of, pipeline
from perfmodel.collectives.schedule import Schedule, check_ranks, split_elements

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
    alpha. Right, and source, as for `broadcast`; parameters too. The other ranks' buffers hold
    partial sums afterwards.
    """
    chains = _turned(checked_orders(check_ranks(ranks, root), orders), root, first=1)
    return _pipeline("reduce", chains, nbytes, root, itemsize, piece_bytes)


def _turned(orders: IntArray, root: int, first: int) -> IntArray:
    """Each ring as a chain that begins `first` places after the root."""
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
        sizes.reshape(rings, pieces),
        reduces=np.full(rings * hops, collective == "reduce"),
    )
    return concatenate([pattern], collective, "chain", ranks, nbytes, itemsize, sizes, root=root)
