"""Check of the data: a schedule's result against NumPy's and against the library's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.collectives.schedule import Schedule
from perfmodel.measure.job import SUM_COLLECTIVES, MeasurementJob
from perfmodel.measure.processes import status as rank_status
from perfmodel.measure.reference import (
    Array,
    compare,
    compute_expected,
    count_elements,
    expected_chunks,
    make_numbers,
    window_slices,
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
    chunks = expected_chunks(schedule, rank)
    for window, numbers in compute_expected(schedule, job.dtype):
        status.step(rank_status.PREPARE)  # comparing takes its time too
        expected, slices = numbers[rank], window_slices(schedule, window)
        actual = read_whole_numbers(work, slices, expected)
        compare(schedule, rank, actual, expected, window=window)
        if total is not None:
            from_library = read_whole_numbers(total, slices, expected)
            source = "the library's all_reduce"
            compare(
                schedule, rank, actual, from_library, window=window, chunks=chunks, source=source
            )


def read_whole_numbers(tensor: Any, slices: list[slice], like: Array) -> Array:
    """A tensor's whole numbers in some slices, as an array of the type of `like`."""
    import torch

    elements = torch.cat([tensor[place] for place in slices])
    numbers = elements.double() if elements.is_floating_point() else elements
    array: Array = numbers.cpu().numpy().astype(like.dtype)
    return array
