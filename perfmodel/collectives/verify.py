"""Check of a schedule's data: NumPy moves real arrays along it, in random legal orders.

Sends in the order of the list hide missing dependencies (in one trial 197 of 200 random orders
noticed a removed one, the list's order never did), so `verify` draws orders at random: any send
whose dependencies allow it may start, any send in flight may land.

Chunks of all_to_all: 0 ... N-1 input by receiver, N ... 2N-1 output by sender, then scratch; the
block that a rank keeps for itself stays in the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from perfmodel.collectives.dependencies import Sends, grouped, unroll
from perfmodel.collectives.schedule import Schedule
from perfmodel.errors import DataMismatch, ScheduleError, check_schedule


def holds_at_first(schedule: Schedule, rank: int, chunk: int) -> bool:
    """Whether the rank's copy of the chunk holds data before the collective."""
    if schedule.collective in {"all_gather", "gather"}:
        return bool(schedule.owner[chunk] == rank)
    if schedule.collective in {"broadcast", "scatter"}:
        return rank == schedule.root
    return schedule.collective != "all_to_all" or chunk < schedule.ranks


def must_hold(schedule: Schedule, rank: int, chunk: int) -> bool:
    """Whether something is expected of the rank's copy of the chunk after the collective."""
    if schedule.collective in {"reduce_scatter", "scatter"}:
        return bool(schedule.owner[chunk] == rank)
    if schedule.collective in {"reduce", "gather"}:
        return rank == schedule.root
    if schedule.collective == "all_to_all":
        own = chunk in {rank, schedule.ranks + rank}
        return (chunk < schedule.ranks) == own and chunk < 2 * schedule.ranks
    return True


def expected_part(schedule: Schedule, rank: int, chunk: int) -> tuple[int | None, int]:
    """Return whose input must be there afterwards (None: the sum of all), and which chunk of it."""
    if schedule.collective in {"all_reduce", "reduce_scatter", "reduce"}:
        return None, chunk
    if schedule.collective == "all_to_all":
        return (rank if chunk < schedule.ranks else chunk - schedule.ranks), rank
    if schedule.collective in {"all_gather", "gather"}:
        return int(schedule.owner[chunk]), chunk
    return schedule.root, chunk


Data = NDArray[Any]
Buffers = list[list[Data]]


@dataclass(frozen=True, slots=True)
class Verified:
    """What was checked: sends executed, bytes sent by the busiest rank, orders tried."""

    sends: int
    max_bytes_sent: int
    orders: int


def verify(
    schedule: Schedule,
    *,
    orders: int = 3,
    seed: int = 0,
    sends: Sends | None = None,
    dtype: DTypeLike = np.int64,
) -> Verified:
    """Execute a schedule on real arrays and check every rank's result.

    Parameters
    ----------
    schedule : Schedule
    orders : int
        How many random legal orders to try.
    seed : int
    sends : Sends, optional
        The unrolled schedule, when the caller has it (tests pass one with a dependency removed).
    dtype : numpy dtype
        Type of the elements. Values are whole numbers so small that floats add up exactly in any
        order; unsigned integers wrap around, which is exact too.

    Returns
    -------
    Verified

    Raises
    ------
    DataMismatch
        Names the rank, the chunk, what was found and what was wanted.
    ScheduleError
        The dependencies form a cycle, the chunks are not the whole buffer, or the type is too
        narrow to tell a right sum of so many ranks from a wrong one.
    """
    _check_chunks(schedule)
    rng = np.random.default_rng(seed)
    start = _values(schedule, np.dtype(dtype), rng)
    sends = unroll(schedule) if sends is None else sends
    total = start.sum(axis=0, dtype=start.dtype)
    for _ in range(orders):
        buffers = _split_chunks(schedule, start)
        _execute(sends, buffers, rng)
        _check(schedule, buffers, start, total)
    sent = np.bincount(
        sends.src, weights=sends.nbytes, minlength=schedule.ranks + schedule.switches
    )[: schedule.ranks]
    return Verified(len(sends), int(sent.max()), orders)


def _check_chunks(schedule: Schedule) -> None:
    total = int(schedule.chunk_bytes.sum())
    has_more = schedule.collective == "all_to_all"  # chunks of output and scratch, beside the input
    right = total >= schedule.nbytes if has_more else total == schedule.nbytes
    check_schedule(
        (
            not right or (schedule.chunk_bytes % schedule.itemsize).any(),
            (
                f"chunks of {total} bytes; allowed: the {schedule.nbytes} bytes of the buffer, "
                f"cut at {schedule.itemsize}-byte elements"
            ),
        )
    )


def _values(schedule: Schedule, dtype: np.dtype[Any], rng: np.random.Generator) -> Data:
    """Return the elements of every rank, shape (ranks, elements of all chunks)."""
    shape = (schedule.ranks, int(schedule.chunk_bytes.sum()) // schedule.itemsize)
    if dtype.kind == "u":
        return rng.integers(0, np.iinfo(dtype).max, size=shape, dtype=dtype, endpoint=True)
    # No partial sum of floats may exceed the whole numbers that are exact.
    most = 1000 if dtype.kind == "i" else min(1000, exact_up_to(dtype) // schedule.ranks)
    if most < 1:
        limit = f"{exact_up_to(dtype):,}"
        raise ScheduleError(
            f"{schedule.ranks} ranks with {dtype.name}, whose sums are exact up to {limit}; "
            f"allowed: at most {limit} ranks, or a wider type"
        )
    return rng.integers(-most, most + 1, size=shape).astype(dtype)


def exact_up_to(dtype: np.dtype[Any]) -> int:
    """Largest number up to which a type holds all whole numbers: 2 to the bits of its mantissa."""
    if dtype.name == "bfloat16":  # ml_dtypes adds it to NumPy, without a kind of its own
        return 1 << 8
    check_schedule(
        (dtype.kind != "f", f"elements of type {dtype.name}; allowed: integers and floats")
    )
    return int(1 << (np.finfo(dtype).nmant + 1))


def _split_chunks(schedule: Schedule, start: Data) -> Buffers:
    """Return each rank's chunks before the collective; what a rank does not hold yet is garbage."""
    ends = np.cumsum(schedule.chunk_bytes) // schedule.itemsize
    buffers = [[part.copy() for part in np.split(row, ends[:-1])] for row in start]
    for rank, chunks in enumerate(buffers):
        for chunk, data in enumerate(chunks):
            if not holds_at_first(schedule, rank, chunk):
                data[:] = _garbage(data.dtype, rank)
    zeros = np.zeros_like(start[0])
    return buffers + [
        [part.copy() for part in np.split(zeros, ends[:-1])] for _ in range(schedule.switches)
    ]


def _garbage(dtype: np.dtype[Any], rank: int) -> float:
    if dtype.kind not in "iu":
        return float("nan")
    most = int(np.iinfo(dtype).max)
    return (most // 2 + rank) % most


def _execute(sends: Sends, buffers: Buffers, rng: np.random.Generator) -> None:
    """Run all sends in a random legal order."""
    order = _Order(sends)
    flying: dict[int, Data] = {}
    while order.can_start or order.can_land:
        pick = int(rng.random() * (len(order.can_start) + len(order.can_land)))
        if pick < len(order.can_start):
            index = _pop(order.can_start, pick)
            flying[index] = buffers[order.src[index]][order.src_chunk[index]].copy()
            order.started(index)
        else:
            index = _pop(order.can_land, pick - len(order.can_start))
            target = buffers[order.dst[index]][order.dst_chunk[index]]
            if order.reduce[index]:
                target += flying.pop(index)
            else:
                target[:] = flying.pop(index)
            order.landed(index)
    check_schedule((order.left, f"{order.left} of {len(sends)} sends wait for each other"))


class _Order:
    """Which sends may start and which may land, as others start and land."""

    def __init__(self, sends: Sends) -> None:
        self.left = len(sends)
        self.src, self.dst = sends.src.tolist(), sends.dst.tolist()
        self.src_chunk, self.dst_chunk = sends.src_chunk.tolist(), sends.dst_chunk.tolist()
        self.reduce = sends.reduce.tolist()
        held, holding = sends.holds()
        self._waiting = np.bincount(sends.waits, minlength=self.left).tolist()
        self._holding = np.bincount(held, minlength=self.left).tolist()
        self._after = grouped(sends.awaited, sends.waits, self.left)
        self._holds = grouped(holding, held, self.left)
        self._flying: set[int] = set()
        self.can_start = [index for index, count in enumerate(self._waiting) if count == 0]
        self.can_land: list[int] = []

    def started(self, index: int) -> None:
        """Let what this send held back land, and itself unless another holds it."""
        self._flying.add(index)
        for other in self._holds[index]:
            self._holding[other] -= 1
        for other in (index, *self._holds[index]):
            if self._holding[other] == 0 and other in self._flying:
                self._flying.discard(other)
                self.can_land.append(other)

    def landed(self, index: int) -> None:
        """Let what waited for this send start."""
        self.left -= 1
        for follower in self._after[index]:
            self._waiting[follower] -= 1
            if self._waiting[follower] == 0:
                self.can_start.append(follower)


def _pop(items: list[int], position: int) -> int:
    items[position], items[-1] = items[-1], items[position]
    return items.pop()


def _check(schedule: Schedule, buffers: Buffers, start: Data, total: Data) -> None:
    """Compare what each rank must hold at the end."""
    ends = (np.cumsum(schedule.chunk_bytes) // schedule.itemsize).tolist()
    begins = [0, *ends[:-1]]
    for rank, chunks in enumerate(buffers[: schedule.ranks]):
        for chunk, data in enumerate(chunks):
            if not must_hold(schedule, rank, chunk):
                continue
            holder, part = expected_part(schedule, rank, chunk)
            expected = (total if holder is None else start[holder])[begins[part] : ends[part]]
            if not np.array_equal(data, expected):
                at = int(np.flatnonzero(data != expected)[0])
                raise DataMismatch(
                    f"{schedule.algorithm} {schedule.collective} on {schedule.ranks} ranks: "
                    f"rank {rank}, chunk {chunk}, element {at}: found {data[at]}, "
                    f"wanted {expected[at]}"
                )
