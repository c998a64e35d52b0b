"""Reference execution of a schedule: its rounds as moves between buffers, run on NumPy arrays.

Element k of a chunk is only ever combined with element k of other chunks. A `Window` takes the same
few elements of every chunk: NumPy's result for them equals that within whole buffers, so the whole
buffers of all ranks need not be held.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import GOLDEN, mix
from perfmodel.collectives.schedule import Schedule
from perfmodel.collectives.verify import must_hold
from perfmodel.errors import DataMismatch
from perfmodel.measure import status as rank_status
from perfmodel.measure.job import SUM_COLLECTIVES, MeasurementJob

Array = NDArray[np.integer]

WINDOW_ELEMENTS = 1 << 21
"""Elements of all ranks together in one window: 16 MiB of the widest type, in a few copies."""

MOST_WINDOWS = 32
"""Most windows of one schedule: larger buffers are compared in that many samples of each chunk."""


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


Window = slice
"""Elements from `start` to `stop` of every chunk; chunks that end before it have none."""


def make_moves(schedule: Schedule, window: Window | None = None) -> list[list[Move]]:
    """Make the moves of each round, in the order in which both ends post them; no empty ones.

    A rank's buffer holds its copies of all chunks, or of the window's part of them, in order.
    """
    places = [slice(*ends) for ends in itertools.pairwise(_bounds(schedule, window).tolist())]
    columns = (
        (each.src, each.dst, each.src_chunk, each.dst_chunk, each.reduce)
        for each in schedule.rounds()
    )
    return [
        [
            Move(src, dst, places[read], places[write], bool(reduce))
            for src, dst, read, write, reduce in zip(*(c.tolist() for c in chosen), strict=True)
            if places[read].stop > places[read].start
        ]
        for chosen in columns
    ]


def count_elements(schedule: Schedule) -> int:
    """Elements of a rank's buffer."""
    return int(_bounds(schedule, None)[-1])


def make_windows(schedule: Schedule) -> list[Window]:
    """Make windows that cover every chunk, or sample it from its first to its last element.

    At most `MOST_WINDOWS`, of about `WINDOW_ELEMENTS` each.
    """
    longest = int(np.diff(_bounds(schedule, None)).max())
    width = max(1, WINDOW_ELEMENTS // (schedule.ranks * len(schedule.chunk_bytes)))
    begins: Sequence[int] = (
        np.linspace(0, longest - width, MOST_WINDOWS).astype(int).tolist()
        if longest > width * MOST_WINDOWS
        else range(0, max(longest, 1), width)
    )
    return [Window(begin, min(begin + width, longest)) for begin in begins]


def covers_all_elements(schedule: Schedule) -> bool:
    """Tell whether the windows of `make_windows` cover every chunk."""
    return all(a.stop >= b.start for a, b in itertools.pairwise(make_windows(schedule)))


def describe_sampling(schedules: Sequence[Schedule]) -> str:
    """Describe which sizes were compared in samples; empty if none."""
    sampled = [schedule.nbytes for schedule in schedules if not covers_all_elements(schedule)]
    samples = f"data were compared in {MOST_WINDOWS} samples of each chunk."
    return f"From {min(sampled)} bytes {samples}" if sampled else ""


def window_slices(schedule: Schedule, window: Window) -> list[slice]:
    """The window's part of each chunk, as slices of a rank's buffer."""
    ends, sizes = _bounds(schedule, None), np.diff(_bounds(schedule, window))
    begins = np.minimum(ends[:-1] + window.start, ends[1:])
    return [slice(int(begin), int(begin + size)) for begin, size in zip(begins, sizes, strict=True)]


def _bounds(schedule: Schedule, window: Window | None) -> NDArray[np.int64]:
    """First element of each chunk, and the end of the last; shape (chunks + 1,)."""
    ends = np.concatenate([[0], np.cumsum(schedule.chunk_bytes)]) // schedule.itemsize
    if window is None:
        return ends.astype(np.int64)
    sizes = np.clip(np.diff(ends), window.start, window.stop) - window.start
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


# ---------------------------------------------------------------- numbers to move


def make_numbers(dtype: str, ranks: int, rank: int, place: slice) -> Array:
    """Make a rank's whole numbers in a slice of its buffer, the same in every process.

    Integers use their whole range and wrap around in the same way everywhere. Floating-point
    numbers are whole and so small that every partial sum is exact, so they are compared with ==.
    """
    index = np.arange(place.start, place.stop, dtype=np.uint64)
    mixed = mix((index + (np.uint64(rank) << np.uint64(48))) * GOLDEN)
    if dtype in {"int32", "int64"}:
        return mixed.astype(dtype)
    # 8 and 11 bits of significand: whole numbers are exact up to 2^8 and 2^11.
    most = max(1, {"bfloat16": 1 << 8, "float16": 1 << 11}.get(dtype, 1 << 24) // ranks)
    return (mixed % np.uint64(2 * most + 1)).astype(np.int32) - np.int32(most)


def make_starting_data(schedule: Schedule, dtype: str, window: Window) -> list[Array]:
    """Make every rank's numbers in a window before the first round."""
    at = window_slices(schedule, window)
    return [
        np.concatenate([make_numbers(dtype, schedule.ranks, rank, place) for place in at])
        for rank in range(schedule.ranks)
    ]


def compute_expected(schedule: Schedule, dtype: str) -> Iterator[tuple[Window, list[Array]]]:
    """Compute by NumPy every rank's numbers after the last round, window by window."""
    for window in make_windows(schedule):
        data = make_starting_data(schedule, dtype, window)
        execute_moves(make_moves(schedule, window), data)
        yield window, data


def execute_moves(rounds: Sequence[Sequence[Move]], buffers: list[Array]) -> None:
    """Run rounds on NumPy arrays, in place: the reference for all other executors."""
    for moves in rounds:
        copies = [buffers[move.src][move.read].copy() for move in moves]
        for move, data in zip(moves, copies, strict=True):
            if move.reduce:
                buffers[move.dst][move.write] += data
            else:
                buffers[move.dst][move.write] = data


# ---------------------------------------------------------------- compared


def compare(
    schedule: Schedule,
    rank: int,
    actual: Array,
    expected: Array,
    *,
    window: Window | None = None,
    chunks: Sequence[int] | None = None,
    source: str = "NumPy",
) -> None:
    """Compare a rank's numbers with the expected ones, bit by bit, chunk by chunk.

    Parameters
    ----------
    schedule : Schedule
    rank : int
    actual, expected : ndarray of int, shape (elements of the window,)
    window : Window, optional
        Which elements these are; default: all.
    chunks : sequence of int, optional
        Which chunks; default: all.
    source : str
        Origin of the expected numbers.

    Raises
    ------
    DataMismatch
        Names rank, chunk, element, the number found and the number expected.
    """
    bounds, first = _bounds(schedule, window), window.start if window else 0
    for chunk in range(len(schedule.chunk_bytes)) if chunks is None else chunks:
        place = slice(int(bounds[chunk]), int(bounds[chunk + 1]))
        wrong = np.flatnonzero(actual[place] != expected[place])
        if len(wrong):
            index = int(wrong[0])
            raise DataMismatch(
                f"{schedule.algorithm} {schedule.collective} of {schedule.nbytes} bytes on "
                f"{schedule.ranks} ranks: rank {rank}, chunk {chunk}, element {first + index}: "
                f"found {actual[place][index]}, wanted {expected[place][index]} (by {source})"
            )


_PIECE_ELEMENTS = 1 << 20
"""Elements made or compared at once, so that no second whole buffer is needed."""


def fill(buffer: Any, job: MeasurementJob, rank: int) -> None:
    """Fill a buffer with a rank's random whole numbers, which the check and the timing use.

    Zeros would draw less power and run faster on a GPU.
    """
    import torch

    for begin in range(0, len(buffer), _PIECE_ELEMENTS):
        place = slice(begin, min(begin + _PIECE_ELEMENTS, len(buffer)))
        buffer[place].copy_(torch.from_numpy(make_numbers(job.dtype, job.ranks, rank, place)))


def check_result(
    job: MeasurementJob,
    status: rank_status.Status,
    schedule: Schedule,
    start: Any,
    work: Any,
    call: Callable[[], Any],
) -> None:
    """Run a schedule once on known whole numbers; compare this rank's result bit by bit.

    Every chunk must equal NumPy's result of the same rounds. For collectives that sum, the chunks
    that this rank must hold are also compared with the library's all_reduce. Large buffers are
    compared in samples (`make_windows`).

    Parameters
    ----------
    job : MeasurementJob
    status : Status
    schedule : Schedule
    start : torch.Tensor
        This rank's numbers, as `fill` makes them; at least as long as the schedule's.
    work : torch.Tensor
        The buffer that `call` works on; as long.
    call : callable
        Executes the schedule.

    Raises
    ------
    DataMismatch
        Names rank, chunk, the number found and the number expected.
    """
    import torch.distributed as dist

    rank, count = status.rank, count_elements(schedule)
    work[:count].copy_(start[:count])
    status.item(schedule.nbytes, 0, 0)
    call()
    total = None
    if schedule.collective in SUM_COLLECTIVES:
        total = start[:count].clone()
        status.item(schedule.nbytes, 1, 0)
        status.step(rank_status.LIBRARY)
        dist.all_reduce(total)
    chunks = [c for c in range(len(schedule.chunk_bytes)) if must_hold(schedule, rank, c)]
    for window, numbers in compute_expected(schedule, job.dtype):
        status.step(rank_status.PREPARE)  # comparing takes its time too
        expected, slices = numbers[rank], window_slices(schedule, window)
        actual = read_whole_numbers(work, slices, expected)
        compare(schedule, rank, actual, expected, window=window)
        if total is not None:
            compare(
                schedule,
                rank,
                actual,
                read_whole_numbers(total, slices, expected),
                window=window,
                chunks=chunks,
                source="the library's all_reduce",
            )


def read_whole_numbers(tensor: Any, slices: list[slice], like: Array) -> Array:
    """A tensor's whole numbers in some slices, as an array of the type of `like`."""
    import torch

    elements = torch.cat([tensor[place] for place in slices])
    numbers = elements.double() if elements.is_floating_point() else elements
    return np.asarray(numbers.cpu().numpy().astype(like.dtype))
