"""Pipelined chains: broadcast from, and reduce to, one rank in pieces (NCCL's ring broadcast)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from perfmodel.collectives.schedule import (
    Ints,
    Phase,
    Round,
    Schedule,
    checked_ranks,
    split_elements,
)


def broadcast(
    ranks: int,
    nbytes: int,
    *,
    root: int = 0,
    itemsize: int = 4,
    piece_bytes: int = 1 << 20,
    order: Sequence[int] | None = None,
) -> Schedule:
    """Copy the root's buffer to everyone, down a chain, in P pieces.

    Steps: N - 2 + P. Bytes sent per rank: S (the last rank sends none).
    Latency term: (N - 2 + P) alpha. Right for large buffers on a ring of equal links.

    Parameters
    ----------
    ranks, nbytes, root, itemsize : int
        As everywhere.
    piece_bytes : int
        Largest piece; the buffer is cut into equal pieces no larger than this.
    order : sequence of int, optional
        Order of the chain; it is rotated so that the root comes first.
    """
    chain = _from_root(ranks, root, order)
    return _pipeline("broadcast", chain, nbytes, root, itemsize, piece_bytes, reduces=False)


def reduce(
    ranks: int,
    nbytes: int,
    *,
    root: int = 0,
    itemsize: int = 4,
    piece_bytes: int = 1 << 20,
    order: Sequence[int] | None = None,
) -> Schedule:
    """Sum everyone's buffer into the root's, up a chain, in P pieces.

    Steps, bytes, latency and parameters as in `broadcast`. The other ranks' buffers hold
    partial sums afterwards.
    """
    chain = _from_root(ranks, root, order)[::-1]
    return _pipeline("reduce", chain, nbytes, root, itemsize, piece_bytes, reduces=True)


def _from_root(ranks: int, root: int, order: Sequence[int] | None) -> Ints:
    checked_ranks(ranks, root)
    ring = np.arange(ranks) if order is None else np.asarray(order, dtype=np.int64)
    return np.roll(ring, -int(np.flatnonzero(ring == root)[0]))


def _pipeline(
    collective: str,
    chain: Ints,
    nbytes: int,
    root: int,
    itemsize: int,
    piece_bytes: int,
    *,
    reduces: bool,
) -> Schedule:
    ranks, hops = len(chain), len(chain) - 1
    pieces = max(1, math.ceil(nbytes / max(piece_bytes, itemsize)))
    sizes = split_elements(nbytes, pieces, itemsize)
    phase = Phase(
        name=collective,
        src=chain[:-1],
        dst=chain[1:],
        channel=np.zeros(hops, dtype=np.int64),
        nbytes=np.full(hops, nbytes / pieces),
        repeat=hops - 1 + pieces,
        first=np.arange(hops),
        active=np.full(hops, pieces),
    )

    def rounds() -> Iterator[Round]:
        for step in range(phase.repeat if hops else 0):
            hop = np.arange(max(0, step - pieces + 1), min(hops, step + 1))
            yield Round(
                src=chain[hop],
                dst=chain[hop + 1],
                src_chunk=step - hop,
                dst_chunk=step - hop,
                nbytes=sizes[step - hop],
                channel=np.zeros(len(hop), dtype=np.int64),
                reduce=np.full(len(hop), reduces),
            )

    return Schedule(
        collective=collective,
        algorithm="chain",
        ranks=ranks,
        nbytes=nbytes,
        itemsize=itemsize,
        chunk_bytes=sizes,
        owner=np.full(pieces, -1),
        root=root,
        phases=(phase,) if hops else (),
        unroll=rounds,
    )
