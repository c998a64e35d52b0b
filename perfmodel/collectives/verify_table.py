"""The table that ``perfmodel verify ALGORITHM`` prints: one row per operation and rank count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from perfmodel.collectives.catalog import allows, make, operations
from perfmodel.collectives.verify import verify

ITEM_BYTES = 4


@dataclass(frozen=True, slots=True)
class VerifiedRow:
    """What was checked of one operation on one number of ranks.

    Parameters
    ----------
    op : str
    ranks : int
    sizes : tuple of int
        Buffer sizes that were tried; bytes.
    sends : int
        Sends executed per order, of the largest size.
    steps : int
        Rounds of the largest size.
    bytes_per_rank_over_nbytes : float
        Bytes sent by the busiest rank per byte of the buffer, of the largest size.
    """

    op: str
    ranks: int
    sizes: tuple[int, ...]
    sends: int
    steps: int
    bytes_per_rank_over_nbytes: float


def verify_table(
    algorithm: str,
    ranks: Iterable[int],
    *,
    elements: Sequence[int] | None = None,
    orders: int = 3,
    seed: int = 0,
    dtype: DTypeLike = np.int64,
    progress: Callable[[int, int], None] | None = None,
) -> list[VerifiedRow]:
    """Check the data of all operations of an algorithm on several numbers of ranks.

    Parameters
    ----------
    algorithm : str
        Name of an algorithm in `perfmodel.collectives.catalog.ALGORITHMS`.
    ranks : iterable of int
        Those that the algorithm does not allow are left out.
    elements : sequence of int, optional
        Sizes in 4-byte elements. Default: 0, 1, 7, 3N + 1 (not divisible) and 4N.
    orders, seed, dtype
        As for `perfmodel.collectives.verify.verify`.
    progress : callable, optional
        Told (done, of) after each number of ranks.

    Raises
    ------
    InputError
        No such algorithm.
    DataMismatch
        Wrong data; names operation, rank and chunk.
    """
    ops, counts = operations(algorithm), list(ranks)
    rows: list[VerifiedRow] = []
    for done, count in enumerate(counts, 1):
        sizes = sorted({0, 1, 7, 3 * count + 1, 4 * count} if elements is None else {*elements})
        allowed = [op for op in ops if allows(op, algorithm, count) is None]
        rows += [_row(op, algorithm, count, sizes, orders, seed, dtype) for op in allowed]
        if progress is not None:
            progress(done, len(counts))
    return rows


def _row(
    op: str,
    algorithm: str,
    ranks: int,
    elements: Sequence[int],
    orders: int,
    seed: int,
    dtype: DTypeLike,
) -> VerifiedRow:
    for size in elements:
        schedule = make(op, algorithm, ranks, size * ITEM_BYTES, itemsize=ITEM_BYTES)
        found = verify(schedule, orders=orders, seed=seed, dtype=dtype)
    nbytes = elements[-1] * ITEM_BYTES
    return VerifiedRow(
        op=op,
        ranks=ranks,
        sizes=tuple(size * ITEM_BYTES for size in elements),
        sends=found.sends,
        steps=sum(phase.repeat for phase in schedule.phases),
        bytes_per_rank_over_nbytes=found.max_bytes_sent / nbytes if nbytes else 0.0,
    )
