"""From a job to a measurement: the one function that the command calls."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Sequence

from perfmodel.collectives.schedule import Schedule
from perfmodel.errors import Fault, InputError, MeasurementError, PerfmodelError
from perfmodel.measure.environment import (
    busy_now,
    describe_machine,
    describe_versions,
    load_now,
    other_work,
)
from perfmodel.measure.job import MeasurementJob, devices_or_say, schedules, torch_or_say
from perfmodel.measure.memory_check import room_or_say
from perfmodel.measure.processes import status as at
from perfmodel.measure.record import Measurement, Row

Progress = Callable[[int, int], None]


def measure(job: MeasurementJob, progress: Progress | None = None) -> Measurement | None:
    """Check the data, then time a schedule and the library's own collective for real.

    Parameters
    ----------
    job : MeasurementJob
    progress : callable, optional
        Called with how many of how many repeats are done.

    Returns
    -------
    Measurement or None
        None on the other ranks of a group that somebody else (torchrun) has started.

    Raises
    ------
    InputError, ScheduleError
        The job cannot be done.
    ExecutorUnavailable
        torch or a device is missing.
    DataMismatch
        The data came out wrong; nothing was timed.
    MeasurementError
        A rank died or hung.
    """
    made = list(schedules(job).values())  # a wrong request is said before a missing library
    torch_or_say()
    started = dt.datetime.now(dt.UTC)
    began_s = time.monotonic()
    machine, versions = describe_machine(), describe_versions()
    before = busy_now()
    found = _execute(job, made, progress, machine, versions)
    if found is None:
        return None
    rows, note = found
    late = {"load_after": load_now(), "other_work": other_work(before, int(machine["cores"]))}
    machine |= {name: said for name, said in late.items() if said}
    return Measurement(
        backend=job.backend,
        collective=job.collective,
        algorithm=job.algorithm,
        ranks=job.ranks,
        itemsize=job.itemsize,
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - began_s, 1),
        command=_launcher() + job.command if job.command else "",
        machine=machine,
        versions=versions,
        topology=job.topology,
        hosts=hosts(),
        note=note,
        rows=tuple(rows),
    )


def _execute(
    job: MeasurementJob,
    made: Sequence[Schedule],
    progress: Progress | None,
    machine: dict[str, str],
    versions: dict[str, str],
) -> tuple[list[Row], str] | None:
    if job.backend == "device":
        from perfmodel.measure.gpu.backend import describe_gpu, measure_device

        torch = devices_or_say(job.backend, 1)
        room_or_say(job, made, torch)
        machine |= describe_gpu(torch)
        versions |= {"cuda": str(torch.version.cuda)}
        return measure_device(job, torch, "cuda", progress)
    if job.backend == "nccl":
        from perfmodel.measure.gpu.backend import describe_gpu

        local = int(os.environ.get("LOCAL_WORLD_SIZE", job.ranks))
        torch = devices_or_say(job.backend, local)
        room_or_say(job, made, torch)
        versions |= {"nccl": ".".join(map(str, torch.cuda.nccl.version()))}
        machine |= describe_gpu(torch)
    else:
        room_or_say(job, made)
    if under_torchrun():
        return _in_group(job, progress)
    from perfmodel.measure.processes.launcher import measure_with_processes

    return measure_with_processes(job, progress)


def under_torchrun() -> bool:
    """Whether somebody else has started the ranks, and this process is one of them."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def hosts() -> int | None:
    """How many machines the ranks are on; None where who started them does not say."""
    if not under_torchrun():
        return 1
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    return -(-int(os.environ["WORLD_SIZE"]) // here) if here > 0 else None


def _launcher() -> str:
    """What stands before the command where torchrun starts the ranks."""
    if not under_torchrun() or hosts() is None:
        return ""
    here = os.environ["LOCAL_WORLD_SIZE"]
    return f"torchrun --nnodes {hosts()} --nproc-per-node {here} --no-python "


def _in_group(job: MeasurementJob, progress: Progress | None) -> tuple[list[Row], str] | None:
    """Be one rank of a group that somebody else has started."""
    import torch.distributed as dist

    from perfmodel.measure.processes.launcher import join
    from perfmodel.measure.processes.worker import measure_rank

    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if size != job.ranks:
        raise InputError(Fault("--ranks", str(job.ranks), f"{size}, as WORLD_SIZE says"))
    status = at.new_status(rank, size)
    if progress is not None and rank == 0:
        status.listener = progress
    try:
        join(job, status, None)
        found = measure_rank(job, status, shared_clock=hosts() == 1)
        dist.destroy_process_group()
    except PerfmodelError:
        raise
    except Exception as error:  # noqa: BLE001  (libraries raise what they like)
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise MeasurementError(f"rank {rank} failed while {status}: {lines[0]}") from None
    return found if rank == 0 else None
