"""Rounds of a schedule as moves between buffers, and NumPy's answer to what they leave behind.

A schedule moves chunks as they are, so element k of a chunk only ever meets element k of others. A
`Window` takes the same few elements out of every chunk: what NumPy makes of them is what it would
make of them within whole buffers, and nobody has to hold the whole buffers of all ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.collectives.schedule import Round, Schedule
from perfmodel.collectives.verify import must_hold
from perfmodel.errors import DataMismatch

Array = NDArray[np.integer]

WINDOW_ELEMENTS = 1 << 21
"""Elements of all ranks together in one window: 16 MiB of the widest type, at a few copies."""

MOST_WINDOWS = 32
"""Of one schedule. Larger buffers are compared in so many samples of each chunk, not whole."""


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


@dataclass(frozen=True, slots=True)
class Window:
    """Elements `begin` to `end` of every chunk; chunks that end before it have none."""

    begin: int
    end: int


def moves(schedule: Schedule, window: Window | None = None) -> list[list[Move]]:
    """The moves of each round, in the order in which both ends post them; empty ones left out.

    A rank's buffer holds its copies of all chunks, or of the window's part of them, one after the
    other.
    """
    bounds = _bounds(schedule, window)
    return [_of_round(part, bounds) for part in schedule.rounds()]


def elements(schedule: Schedule) -> int:
    """Elements of a rank's buffer."""
    return int(_bounds(schedule, None)[-1])


def windows(schedule: Schedule) -> list[Window]:
    """Windows that cover every chunk; or samples from its first to its last element.

    At most `MOST_WINDOWS`, of about `WINDOW_ELEMENTS` each.
    """
    longest = int(np.diff(_bounds(schedule, None)).max())
    width = max(1, WINDOW_ELEMENTS // (schedule.ranks * len(schedule.chunk_bytes)))
    if longest <= width * MOST_WINDOWS:
        return [Window(at, min(at + width, longest)) for at in range(0, max(longest, 1), width)]
    begins = np.linspace(0, longest - width, MOST_WINDOWS).astype(int).tolist()
    return [Window(at, at + width) for at in begins]


def whole(schedule: Schedule) -> bool:
    """Whether `windows` leave nothing out."""
    found = windows(schedule)
    return all(a.end >= b.begin for a, b in itertools.pairwise(found))


def sampling_note(made: Sequence[Schedule]) -> str:
    """Which sizes were too large to compare whole; empty if none."""
    sampled = [schedule.nbytes for schedule in made if not whole(schedule)]
    if not sampled:
        return ""
    return f"From {min(sampled)} bytes data were compared in {MOST_WINDOWS} samples of each chunk."


def places(schedule: Schedule, window: Window) -> list[slice]:
    """Where the window's part of each chunk stands in a rank's buffer."""
    ends = _bounds(schedule, None)
    sizes = np.diff(_bounds(schedule, window))
    begins = np.minimum(ends[:-1] + window.begin, ends[1:])
    return [slice(int(at), int(at + size)) for at, size in zip(begins, sizes, strict=True)]


def _bounds(schedule: Schedule, window: Window | None) -> NDArray[np.int64]:
    """First element of each chunk, and the end of the last; shape (chunks + 1,)."""
    ends = np.concatenate([[0], np.cumsum(schedule.chunk_bytes)]) // schedule.itemsize
    if window is None:
        return ends.astype(np.int64)
    sizes = np.clip(np.diff(ends), window.begin, window.end) - window.begin
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _of_round(part: Round, bounds: NDArray[np.int64]) -> list[Move]:
    columns = (part.src, part.dst, part.src_chunk, part.dst_chunk, part.reduce)
    found = []
    for src, dst, read, write, reduce in zip(*(c.tolist() for c in columns), strict=True):
        source = slice(int(bounds[read]), int(bounds[read + 1]))
        target = slice(int(bounds[write]), int(bounds[write + 1]))
        if source.stop > source.start:
            found.append(Move(src, dst, source, target, bool(reduce)))
    return found


# ---------------------------------------------------------------- numbers to move


def numbers_at(dtype: str, ranks: int, rank: int, place: slice) -> Array:
    """A rank's whole numbers at a place of its buffer; every rank can say those of every other.

    Integers use their whole range and wrap around alike everywhere. Floating-point numbers are
    whole and small enough that every partial sum is exact, so that == is the right comparison.
    """
    count = np.arange(place.start, place.stop, dtype=np.uint64)
    mixed = _mixed(count + (np.uint64(rank) << np.uint64(48)))
    if dtype in {"int32", "int64"}:
        return mixed.astype(dtype)
    # 8 and 11 bits of significand: whole numbers are exact up to 2^8 and 2^11.
    exact = {"bfloat16": 1 << 8, "float16": 1 << 11}.get(dtype, 1 << 24)
    most = max(1, exact // ranks)
    return (mixed % np.uint64(2 * most + 1)).astype(np.int32) - np.int32(most)


def _mixed(count: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Random bits of a counter: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014, figure 16)."""
    bits = (count + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = bits ^ (bits >> np.uint64(31))
    return mixed


def starting_data(schedule: Schedule, dtype: str, window: Window) -> list[Array]:
    """Every rank's numbers in a window, before the first round."""
    at = places(schedule, window)
    return [
        np.concatenate([numbers_at(dtype, schedule.ranks, rank, place) for place in at])
        for rank in range(schedule.ranks)
    ]


def expected(schedule: Schedule, dtype: str) -> Iterator[tuple[Window, list[Array]]]:
    """What NumPy makes of the rounds, window after window: the numbers of every rank."""
    for window in windows(schedule):
        data = starting_data(schedule, dtype, window)
        execute(moves(schedule, window), data)
        yield window, data


def execute(rounds: Sequence[Sequence[Move]], buffers: list[Array]) -> None:
    """Run rounds on NumPy arrays, in place: what every other executor must reproduce."""
    for part in rounds:
        carried = [buffers[move.src][move.read].copy() for move in part]
        for move, data in zip(part, carried, strict=True):
            if move.reduce:
                buffers[move.dst][move.write] += data
            else:
                buffers[move.dst][move.write] = data


# ---------------------------------------------------------------- compared


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
    window: Window | None = None,
    chunks: Sequence[int] | None = None,
    by: str = "NumPy",
) -> None:
    """Compare what a rank holds with what it should; bit by bit, chunk after chunk.

    Parameters
    ----------
    schedule : Schedule
    rank : int
    found, wanted : ndarray of int, shape (elements of the window,)
    window : Window, optional
        Which elements these are; default: all.
    chunks : sequence of int, optional
        Which chunks; default: all.
    by : str
        Who says what is wanted.

    Raises
    ------
    DataMismatch
        Names rank, chunk, element, found and wanted.
    """
    bounds, first = _bounds(schedule, window), window.begin if window else 0
    for chunk in range(len(schedule.chunk_bytes)) if chunks is None else chunks:
        part = slice(int(bounds[chunk]), int(bounds[chunk + 1]))
        wrong = np.flatnonzero(found[part] != wanted[part])
        if len(wrong):
            at = int(wrong[0])
            raise DataMismatch(
                f"{schedule.algorithm} {schedule.collective} of {schedule.nbytes} bytes on "
                f"{schedule.ranks} ranks: rank {rank}, chunk {chunk}, element {first + at}: "
                f"found {found[part][at]}, wanted {wanted[part][at]} (by {by})"
            )
