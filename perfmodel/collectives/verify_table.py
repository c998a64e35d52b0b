"""The table that ``perfmodel verify ALGORITHM`` prints: one row per operation and rank count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from perfmodel.collectives.catalog import allows, make, operations
from perfmodel.collectives.dependencies import sends_in
from perfmodel.collectives.verify import verify
from perfmodel.errors import Fault, InputError

ITEM_BYTES = 4

MOST_SENDS = 5_000_000
"""Sends that one table may execute: two minutes or so."""


@dataclass(frozen=True, slots=True)
class VerifiedRow:
    """What was checked of one operation on one number of ranks."""

    op: str
    ranks: int
    sizes: tuple[int, ...]
    """Buffer sizes that were tried; bytes."""
    sends: int
    """Sends executed per order, of the largest size."""
    steps: int
    """Rounds of the largest size."""
    bytes_per_rank_over_nbytes: float
    """Bytes sent by the busiest rank per byte of the buffer, of the largest size."""


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
        No such algorithm, or more than `MOST_SENDS` to execute, which is found out before any is.
    DataMismatch
        Wrong data; names operation, rank and chunk.
    """
    counts = list(ranks)
    _check_work(algorithm, counts, elements, orders)
    rows: list[VerifiedRow] = []
    for done, count in enumerate(counts, 1):
        sizes = _sizes(count, elements)
        allowed = _allowed(algorithm, count)
        rows += [_row(op, algorithm, count, sizes, orders, seed, dtype) for op in allowed]
        if progress is not None:
            progress(done, len(counts))
    return rows


def _sizes(ranks: int, elements: Sequence[int] | None) -> list[int]:
    return sorted({0, 1, 7, 3 * ranks + 1, 4 * ranks} if elements is None else {*elements})


def _allowed(algorithm: str, ranks: int) -> list[str]:
    return [op for op in operations(algorithm) if allows(op, algorithm, ranks) is None]


def _check_work(
    algorithm: str, counts: Sequence[int], elements: Sequence[int] | None, orders: int
) -> None:
    """Refuse a table that would take hours; the largest size counts for all sizes."""
    sends = 0
    for count in counts:
        sizes = _sizes(count, elements)
        times = orders * len(sizes)
        for op in _allowed(algorithm, count):
            largest = make(op, algorithm, count, sizes[-1] * ITEM_BYTES, itemsize=ITEM_BYTES)
            sends += times * sends_in(largest, most=(MOST_SENDS - sends) // times)
            if sends > MOST_SENDS:
                ranks = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{count}"
                allowed = (
                    f"what executes {MOST_SENDS:,} sends at most; {algorithm} reaches that at "
                    f"{count} ranks with {orders} orders of {len(sizes)} sizes each"
                )
                raise InputError(Fault("ranks", ranks, allowed))


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
        verified = verify(schedule, orders=orders, seed=seed, dtype=dtype)
    nbytes = elements[-1] * ITEM_BYTES
    return VerifiedRow(
        op=op,
        ranks=ranks,
        sizes=tuple(size * ITEM_BYTES for size in elements),
        sends=verified.sends,
        steps=sum(phase.repeat for phase in schedule.phases),
        bytes_per_rank_over_nbytes=verified.max_bytes_sent / nbytes if nbytes else 0.0,
    )
