"""Is the data right? A schedule's result against NumPy's and against the library's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.collectives.schedule import Schedule
from perfmodel.measure.job import SUMS, MeasurementJob
from perfmodel.measure.processes import status as at
from perfmodel.measure.reference import Array, compare, elements, expected, held, numbers_at, places

_PIECE = 1 << 20
"""Elements that are made or compared at once, so that nobody holds a second whole buffer."""


def fill(buffer: Any, job: MeasurementJob, rank: int) -> None:
    """Fill a buffer with a rank's random whole numbers: those that the check expects of it.

    Also what is timed: zeros would draw less power and run faster on a GPU.
    """
    import torch

    for begin in range(0, len(buffer), _PIECE):
        place = slice(begin, min(begin + _PIECE, len(buffer)))
        buffer[place].copy_(torch.from_numpy(numbers_at(job.dtype, job.ranks, rank, place)))


def check_data(
    job: MeasurementJob,
    status: at.Status,
    schedule: Schedule,
    start: Any,
    work: Any,
    call: Callable[[], Any],
) -> None:
    """Run a schedule once on known whole numbers; compare this rank's result bit by bit.

    Every chunk must be what NumPy makes of the same rounds; and where sums are wanted, what this
    rank must hold is also what the library's all_reduce says. Large buffers are compared in
    samples (`moves.windows`).

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
        Names rank, chunk, found and wanted.
    """
    import torch.distributed as dist

    rank, count = status.rank, elements(schedule)
    work[:count].copy_(start[:count])
    status.item(schedule.nbytes, 0, 0)
    call()
    total = None
    if schedule.collective in SUMS:
        total = start[:count].clone()
        status.item(schedule.nbytes, 1, 0)
        status.step(at.LIBRARY)
        dist.all_reduce(total)
    chunks = held(schedule, rank)
    for window, wanted in expected(schedule, job.dtype):
        status.step(at.PREPARE)  # comparing takes its time too
        like, part = wanted[rank], places(schedule, window)
        found = whole_numbers(work, part, like)
        compare(schedule, rank, found, like, window=window)
        if total is not None:
            said = whole_numbers(total, part, like)
            by = "the library's all_reduce"
            compare(schedule, rank, found, said, window=window, chunks=chunks, by=by)


def whole_numbers(tensor: Any, part: list[slice], like: Array) -> Array:
    """A tensor's whole numbers at some places, as an array of the type that NumPy computed with."""
    import torch

    taken = torch.cat([tensor[place] for place in part])
    numbers = taken.double() if taken.is_floating_point() else taken
    array: Array = numbers.cpu().numpy().astype(like.dtype)
    return array
