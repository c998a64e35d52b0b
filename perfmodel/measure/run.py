"""Run a measurement job: check, execute on its backend, record."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Sequence

from perfmodel.collectives.schedule import Schedule
from perfmodel.errors import Fault, InputError, MeasurementError, PerfmodelError
from perfmodel.files import attributes
from perfmodel.measure import status as rank_status
from perfmodel.measure.environment import (
    describe_machine,
    describe_other_load,
    describe_versions,
    read_cpu_time,
    read_load,
    require_memory,
)
from perfmodel.measure.job import MeasurementJob, make_schedules, require_devices, require_torch
from perfmodel.measure.record import Measurement, MeasurementRow

Progress = Callable[[int, int], None]


def measure(job: MeasurementJob, progress: Progress | None = None) -> Measurement | None:
    """Check the data, then time a schedule and the library's own collective for real.

    Parameters
    ----------
    job : MeasurementJob
    progress : callable, optional
        Called with the number of repeats done and their total.

    Returns
    -------
    Measurement or None
        None on all ranks but 0 of a group that torchrun has started.

    Raises
    ------
    InputError, ScheduleError
        The job is not valid.
    ExecutorUnavailable
        torch or a device is missing.
    DataMismatch
        The result is wrong; nothing was timed.
    MeasurementError
        A rank died or hung.
    """
    schedules = list(make_schedules(job).values())  # an invalid job is reported first
    require_torch()
    started, start_s = dt.datetime.now(dt.UTC), time.monotonic()
    machine, versions, cpu_before = describe_machine(), describe_versions(), read_cpu_time()
    outcome = _run_backend(job, schedules, progress, machine, versions)
    if outcome is None:
        return None
    rows, note = outcome
    other_work = describe_other_load(cpu_before, int(machine["cores"]))
    after = {"load_after": read_load(), "other_work": other_work}
    return Measurement(
        **attributes(job, "backend collective algorithm ranks itemsize topology"),
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - start_s, 1),
        command=_torchrun_command() + job.command if job.command else "",
        machine=machine | {name: text for name, text in after.items() if text},
        versions=versions,
        hosts=count_hosts(),
        note=note,
        rows=tuple(rows),
    )


def _run_backend(
    job: MeasurementJob,
    schedules: Sequence[Schedule],
    progress: Progress | None,
    machine: dict[str, str],
    versions: dict[str, str],
) -> tuple[list[MeasurementRow], str] | None:
    if job.backend == "gloo":
        require_memory(job, schedules)
    else:
        from perfmodel.measure.gpu_backend import describe_gpu, measure_device

        on_device = job.backend == "device"
        needed = 1 if on_device else int(os.environ.get("LOCAL_WORLD_SIZE", job.ranks))
        torch = require_devices(job.backend, needed)
        require_memory(job, schedules, torch)
        machine |= describe_gpu(torch)
        if on_device:
            versions |= {"cuda": str(torch.version.cuda)}
            return measure_device(job, torch, "cuda", progress)
        versions |= {"nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    if under_torchrun():
        return _run_as_group_member(job, progress)
    from perfmodel.measure.launcher import run_processes

    return run_processes(job, progress)


def under_torchrun() -> bool:
    """Whether torchrun, or another launcher, has started this process as one of the ranks."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def count_hosts() -> int | None:
    """Number of machines that the ranks are on; None if the launcher does not state it."""
    if not under_torchrun():
        return 1
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    return -(-int(os.environ["WORLD_SIZE"]) // local_ranks) if local_ranks > 0 else None


def _torchrun_command() -> str:
    """The launcher's part of the command line; empty without torchrun."""
    if not under_torchrun() or count_hosts() is None:
        return ""
    local_ranks = os.environ["LOCAL_WORLD_SIZE"]
    return f"torchrun --nnodes {count_hosts()} --nproc-per-node {local_ranks} --no-python "


def _run_as_group_member(
    job: MeasurementJob, progress: Progress | None
) -> tuple[list[MeasurementRow], str] | None:
    """Run this process's rank of a group that torchrun has started."""
    import torch.distributed as dist

    from perfmodel.measure.launcher import join_group
    from perfmodel.measure.worker import measure_rank

    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if size != job.ranks:
        raise InputError(Fault("--ranks", str(job.ranks), f"{size}, as WORLD_SIZE says"))
    status = rank_status.make_private_status(rank, size)
    if progress is not None and rank == 0:
        status.listener = progress
    try:
        join_group(job, status, None)
        outcome = measure_rank(job, status, shared_clock=count_hosts() == 1)
        dist.destroy_process_group()
    except PerfmodelError:
        raise
    except Exception as error:  # noqa: BLE001  (libraries raise exceptions of any type)
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise MeasurementError(f"rank {rank} failed while {status}: {lines[0]}") from None
    return outcome if rank == 0 else None
