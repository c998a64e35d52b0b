"""Is the data right? A schedule's result against NumPy's and against the library's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perfmodel.collectives.schedule import Schedule
from perfmodel.measure import status as at
from perfmodel.measure.job import Job
from perfmodel.measure.moves import Array, Move, compare, execute, held, starting_data


def check_data(
    job: Job,
    status: at.Status,
    schedule: Schedule,
    rounds: Sequence[Sequence[Move]],
    work: Any,
    call: Callable[[], Any],
) -> None:
    """Run a schedule once on known whole numbers; compare this rank's result bit by bit.

    Every chunk must be what NumPy makes of the same rounds; and where sums are wanted, what this
    rank must hold is also what the library's all_reduce says.

    Parameters
    ----------
    job : Job
    status : Status
    schedule : Schedule
    rounds : sequence of sequences of Move
    work : torch.Tensor
        The buffer that `call` works on; at least as long as the schedule's.
    call : callable
        Executes the schedule.

    Raises
    ------
    DataMismatch
        Names rank, chunk, found and wanted.
    """
    import torch  # noqa: PLC0415  (optional, and slow to import)
    import torch.distributed as dist  # noqa: PLC0415

    rank, count = status.rank, int(schedule.chunk_bytes.sum()) // schedule.itemsize
    wanted = starting_data(job.dtype, job.ranks, count, seed=0)
    mine = torch.from_numpy(wanted[rank].copy()).to(work)
    execute(rounds, wanted)
    work[:count] = mine
    status.item(schedule.nbytes, 0, 0)
    call()
    if status.breaks == ("corrupt", at.CHECK):
        work[count - 1] += 1
    found = whole_numbers(work[:count], wanted[rank])
    compare(schedule, rank, found, wanted[rank])
    if schedule.collective not in {"all_reduce", "reduce", "reduce_scatter"}:
        return
    status.item(schedule.nbytes, 1, 0)
    status.step(at.LIBRARY)
    dist.all_reduce(mine)
    total = whole_numbers(mine, wanted[rank])
    chunks = held(schedule, rank)
    compare(schedule, rank, found, total, chunks=chunks, by="the library's all_reduce")


def whole_numbers(tensor: Any, like: Array) -> Array:
    """A tensor's whole numbers as an array of the type that NumPy computed with."""
    numbers = tensor.double() if tensor.is_floating_point() else tensor
    array: Array = numbers.cpu().numpy().astype(like.dtype)
    return array
