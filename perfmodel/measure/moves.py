"""Rounds of a schedule as moves between buffers, and NumPy's answer to what they leave behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.collectives.conditions import must_hold
from perfmodel.collectives.schedule import Round, Schedule
from perfmodel.errors import DataMismatch

Array = NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Move:
    """One chunk from a rank's buffer to another's: element ranges at both ends.

    With `reduce` it is added to what the receiver has; otherwise it replaces it.
    """

    src: int
    dst: int
    read: slice
    write: slice
    reduce: bool

    @property
    def count(self) -> int:
        """Elements."""
        return int(self.read.stop - self.read.start)


def moves(schedule: Schedule) -> list[list[Move]]:
    """The moves of each round, in the order in which both ends post them; empty ones left out.

    A rank's buffer holds its copies of all chunks one after the other.
    """
    bounds = np.concatenate([[0], np.cumsum(schedule.chunk_bytes)]) // schedule.itemsize
    return [_of_round(part, bounds) for part in schedule.rounds()]


def elements(schedule: Schedule) -> int:
    """Elements of a rank's buffer."""
    return int(schedule.chunk_bytes.sum()) // schedule.itemsize


def _of_round(part: Round, bounds: NDArray[np.int64]) -> list[Move]:
    columns = (part.src, part.dst, part.src_chunk, part.dst_chunk, part.reduce)
    found = []
    for src, dst, read, write, reduce in zip(*(c.tolist() for c in columns), strict=True):
        source = slice(int(bounds[read]), int(bounds[read + 1]))
        target = slice(int(bounds[write]), int(bounds[write + 1]))
        if source.stop > source.start:
            found.append(Move(src, dst, source, target, bool(reduce)))
    return found


def starting_data(dtype: str, ranks: int, count: int, seed: int) -> list[Array]:
    """Random whole numbers for each rank; shape (count,) each.

    Integers use their whole range and wrap around alike everywhere. Floating-point numbers are
    whole and small enough that every partial sum is exact, so that == is the right comparison.
    """
    rng = np.random.default_rng([seed, ranks, count])
    if dtype in {"int32", "int64"}:
        info = np.iinfo(dtype)
        return [rng.integers(info.min, info.max, count, dtype=info.dtype) for _ in range(ranks)]
    # 8 and 11 bits of significand: whole numbers are exact up to 2^8 and 2^11.
    exact = {"bfloat16": 1 << 8, "float16": 1 << 11}.get(dtype, 1 << 24)
    most = max(1, exact // ranks)
    return [rng.integers(-most, most + 1, count, dtype=np.int32) for _ in range(ranks)]


def execute(rounds: Sequence[Sequence[Move]], buffers: list[Array]) -> None:
    """Run rounds on NumPy arrays, in place: what every other executor must reproduce."""
    for part in rounds:
        carried = [buffers[move.src][move.read].copy() for move in part]
        for move, data in zip(part, carried, strict=True):
            if move.reduce:
                buffers[move.dst][move.write] += data
            else:
                buffers[move.dst][move.write] = data


def held(schedule: Schedule, rank: int) -> list[int]:
    """Chunks of which something is expected of a rank at the end."""
    chunks = range(len(schedule.chunk_bytes))
    return [chunk for chunk in chunks if must_hold(schedule, rank, chunk)]


def compare(
    schedule: Schedule,
    rank: int,
    found: Array,
    wanted: Array,
    *,
    chunks: Sequence[int] | None = None,
    by: str = "NumPy",
) -> None:
    """Compare what a rank holds with what it should; bit by bit, chunk after chunk.

    Parameters
    ----------
    schedule : Schedule
    rank : int
    found, wanted : ndarray of int, shape (elements,)
    chunks : sequence of int, optional
        Which chunks; default: all.
    by : str
        Who says what is wanted.

    Raises
    ------
    DataMismatch
        Names rank, chunk, element, found and wanted.
    """
    bounds = np.concatenate([[0], np.cumsum(schedule.chunk_bytes)]) // schedule.itemsize
    for chunk in range(len(schedule.chunk_bytes)) if chunks is None else chunks:
        part = slice(int(bounds[chunk]), int(bounds[chunk + 1]))
        wrong = np.flatnonzero(found[part] != wanted[part])
        if len(wrong):
            at = int(wrong[0])
            raise DataMismatch(
                f"{schedule.algorithm} {schedule.collective} of {schedule.nbytes} bytes on "
                f"{schedule.ranks} ranks: rank {rank}, chunk {chunk}, element {at}: "
                f"found {found[part][at]}, wanted {wanted[part][at]} (by {by})"
            )
