"""From a job to a measurement: the one function that the command calls."""

from __future__ import annotations

import datetime as dt
import os
import shlex
import time
from collections.abc import Callable

from perfmodel.errors import Fault, InputError, MeasurementError, PerfmodelError
from perfmodel.measure import status as at
from perfmodel.measure.job import Job, devices_or_say, schedules, torch_or_say
from perfmodel.measure.machine import (
    busy_now,
    describe_machine,
    describe_versions,
    load_now,
    other_work,
)
from perfmodel.measure.record import Measurement, Row
from perfmodel.units import format_bytes, parse_bytes

Progress = Callable[[int, int], None]


def measure(job: Job, progress: Progress | None = None) -> Measurement | None:
    """Check the data, then time a schedule and the library's own collective for real.

    Parameters
    ----------
    job : Job
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
    schedules(job)  # a wrong request is said before a missing library
    torch_or_say()
    started = dt.datetime.now(dt.UTC)
    began_s = time.monotonic()
    machine, versions = describe_machine(), describe_versions()
    before = busy_now()
    found = _execute(job, progress, machine, versions)
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
        command=command_of(job),
        machine=machine,
        versions=versions,
        topology=job.topology,
        note=note,
        rows=tuple(rows),
    )


def _execute(
    job: Job, progress: Progress | None, machine: dict[str, str], versions: dict[str, str]
) -> tuple[list[Row], str] | None:
    if job.backend == "device":
        from perfmodel.measure.device import describe_gpu, measure_device  # noqa: PLC0415

        torch = devices_or_say(job.backend, 1)
        machine |= describe_gpu(torch)
        versions |= {"cuda": str(torch.version.cuda)}
        return measure_device(job, torch, "cuda", progress)
    if job.backend == "nccl":
        local = int(os.environ.get("LOCAL_WORLD_SIZE", job.ranks))
        torch = devices_or_say(job.backend, local)
        versions |= {"nccl": ".".join(map(str, torch.cuda.nccl.version()))}
        machine |= {"gpu": torch.cuda.get_device_name(0), "gpus": str(torch.cuda.device_count())}
    if under_torchrun():
        return _in_group(job, progress)
    from perfmodel.measure.team import measure_with_processes  # noqa: PLC0415  (multiprocessing)

    return measure_with_processes(job, progress)


def under_torchrun() -> bool:
    """Whether somebody else has started the ranks, and this process is one of them."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def _in_group(job: Job, progress: Progress | None) -> tuple[list[Row], str] | None:
    """Be one rank of a group that somebody else has started."""
    import torch.distributed as dist  # noqa: PLC0415  (optional, and slow to import)

    from perfmodel.measure.rank import measure_rank, one_machine  # noqa: PLC0415
    from perfmodel.measure.team import join  # noqa: PLC0415  (multiprocessing)

    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if size != job.ranks:
        raise InputError(Fault("--ranks", str(job.ranks), f"{size}, as WORLD_SIZE says"))
    status = at.new_status(rank, size)
    if progress is not None and rank == 0:
        status.listener = progress
    try:
        join(job, status, None)
        found = measure_rank(job, status, shared_clock=one_machine())
        dist.destroy_process_group()
    except PerfmodelError:
        raise
    except Exception as error:  # noqa: BLE001  (libraries raise what they like)
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise MeasurementError(f"rank {rank} failed while {status}: {lines[0]}") from None
    return found if rank == 0 else None


def command_of(job: Job) -> str:
    """The command that would make this measurement again."""
    words = ["perfmodel", "measure", job.algorithm, "--backend", job.backend]
    words += ["--ranks", str(job.ranks), "--collective", job.collective, "--dtype", job.dtype]
    sizes = sorted(job.sizes)
    words += ["-b", _exactly(sizes[0]), "-e", _exactly(sizes[-1])]
    if len(sizes) > 1:
        words += ["-f", f"{sizes[1] / sizes[0]:.9g}"]
    words += ["--repeats", str(job.repeats)] if job.repeats else ["--budget", f"{job.budget_s:g} s"]
    return shlex.join(words)


def _exactly(nbytes: int) -> str:
    short = format_bytes(nbytes)
    return short if parse_bytes(short) == nbytes else f"{nbytes} B"
