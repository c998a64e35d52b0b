"""The table that ``perfmodel verify ALGORITHM`` prints: one row per operation and rank count.

Also of a function of the user's, which does what its schedules say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from perfmodel.collectives.algorithms.own import OwnAlgorithm, plan_own
from perfmodel.collectives.catalog import allows, make, operations
from perfmodel.collectives.dependencies import sends_in
from perfmodel.collectives.schedule import Schedule
from perfmodel.collectives.verify import verify
from perfmodel.errors import Fault, InputError, ScheduleError, refuse_if
from perfmodel.memo import with_progress
from perfmodel.own_functions import name_of

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
    algorithm: str | OwnAlgorithm,
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
    algorithm : str or callable
        Name of an algorithm in `perfmodel.collectives.catalog.ALGORITHMS`, or a function of
        (ranks, nbytes) that returns a Schedule.
    ranks : iterable of int
        Those that the algorithm does not allow, which it says by a `ScheduleError`, are left out.
    elements : sequence of int, optional
        Sizes in 4-byte elements. Default: 0, 1, 7, 3N + 1 (not divisible) and 4N.
    orders, seed, dtype
        As for `perfmodel.collectives.verify.verify`.
    progress : callable, optional
        Told (done, of) after each number of ranks.

    Raises
    ------
    InputError
        No such algorithm, what is wrong with a function, or more than `MOST_SENDS` to execute,
        which is found out before any is.
    DataMismatch
        Wrong data; names operation, rank and chunk.
    """
    counts = list(ranks)
    plans = [_plans(algorithm, count, _sizes(count, elements)) for count in counts]
    _check_work(algorithm, counts, plans, orders)
    rows: list[VerifiedRow] = []
    planned = zip(counts, plans, strict=True)
    for count, schedules in with_progress(planned, progress, len(counts)):
        rows += [_row(op, count, sizes, orders, seed, dtype) for op, sizes in schedules.items()]
    return rows


Plan = Callable[[], Schedule]


def _plans(
    algorithm: str | OwnAlgorithm, ranks: int, sizes: Sequence[int]
) -> Mapping[str, Mapping[int, Plan]]:
    """What an algorithm does on some ranks: of each operation the schedules by size in bytes."""
    nbytes = [size * ITEM_BYTES for size in sizes]
    if not isinstance(algorithm, str):
        return _own_plans(algorithm, ranks, nbytes)
    return {
        op: {
            size: partial(make, op, algorithm, ranks, size, itemsize=ITEM_BYTES) for size in nbytes
        }
        for op in operations(algorithm)
        if allows(op, algorithm, ranks) is None
    }


def _own_plans(
    algorithm: OwnAlgorithm, ranks: int, nbytes: Sequence[int]
) -> Mapping[str, Mapping[int, Plan]]:
    plans: dict[str, dict[int, Plan]] = {}
    for size in nbytes:
        try:
            op = plan_own(algorithm, ranks, size).collective
        except ScheduleError:
            continue
        plans.setdefault(op, {})[size] = partial(plan_own, algorithm, ranks, size, op)
    return plans


def _sizes(ranks: int, elements: Sequence[int] | None) -> list[int]:
    return sorted({0, 1, 7, 3 * ranks + 1, 4 * ranks} if elements is None else {*elements})


def _check_work(
    algorithm: str | OwnAlgorithm,
    counts: Sequence[int],
    plans: Sequence[Mapping[str, Mapping[int, Plan]]],
    orders: int,
) -> None:
    """Refuse a table that is empty or would take hours; the largest size counts for all sizes."""
    sends, name = 0, algorithm if isinstance(algorithm, str) else name_of(algorithm)
    ranks = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else ", ".join(map(str, counts))
    refuse_if(not any(plans), "ranks", ranks or "none", f"numbers that {name} allows")
    for count, schedules in zip(counts, plans, strict=True):
        for by_size in schedules.values():
            times = orders * len(by_size)
            sends += times * sends_in(by_size[max(by_size)](), (MOST_SENDS - sends) // times)
            if sends > MOST_SENDS:
                raise InputError(
                    Fault(
                        "ranks",
                        ranks,
                        f"what executes {MOST_SENDS:,} sends at most; {name} reaches that at "
                        f"{count} ranks with {orders} orders of {len(by_size)} sizes each",
                    )
                )


def _row(
    op: str,
    ranks: int,
    plans: Mapping[int, Plan],
    orders: int,
    seed: int,
    dtype: DTypeLike,
) -> VerifiedRow:
    for plan in plans.values():
        schedule = plan()
        verified = verify(schedule, orders=orders, seed=seed, dtype=dtype)
    nbytes = max(plans)
    return VerifiedRow(
        op=op,
        ranks=ranks,
        sizes=tuple(plans),
        sends=verified.sends,
        steps=sum(phase.repeat for phase in schedule.phases),
        bytes_per_rank_over_nbytes=verified.max_bytes_sent / nbytes if nbytes else 0.0,
    )
