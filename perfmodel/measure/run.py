"""Run a measurement job: check, execute on its backend, record.

What is recorded of the machine is CPU, memory, load and versions; no names of hosts or files.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

from perfmodel.collectives.schedule import Schedule
from perfmodel.errors import (
    Fault,
    MeasurementError,
    PerfmodelError,
    raise_faults,
    refuse_if,
    require_installed,
)
from perfmodel.files import attributes
from perfmodel.measure import status as rank_status
from perfmodel.measure.job import (
    MEASURING,
    PARTED_COLLECTIVES,
    SIDE_BYTES,
    SUM_COLLECTIVES,
    Measurement,
    MeasurementJob,
    MeasurementRow,
    Progress,
    make_schedules,
    require_devices,
)
from perfmodel.measure.reference import count_elements, make_moves
from perfmodel.measure.worker import largest_scratch
from perfmodel.memo import T
from perfmodel.units import format_bytes


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
    require_installed("torch", MEASURING)
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
    """Tell whether torchrun, or another launcher, has started this process as one of the ranks."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def count_hosts() -> int | None:
    """Number of machines that the ranks are on; None if the launcher does not state it."""
    if not under_torchrun():
        return 1
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    return -(-int(os.environ["WORLD_SIZE"]) // local_ranks) if local_ranks > 0 else None


def _torchrun_command() -> str:
    """Return the launcher's part of the command line; empty without torchrun."""
    hosts, local_ranks = count_hosts(), os.environ.get("LOCAL_WORLD_SIZE")
    command = f"torchrun --nnodes {hosts} --nproc-per-node {local_ranks} --no-python "
    return command if under_torchrun() and hosts is not None else ""


def _run_as_group_member(
    job: MeasurementJob, progress: Progress | None
) -> tuple[list[MeasurementRow], str] | None:
    """Run this process's rank of a group that torchrun has started."""
    import torch.distributed as dist

    from perfmodel.measure.launcher import join_group
    from perfmodel.measure.worker import measure_rank

    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    refuse_if(size != job.ranks, "--ranks", str(job.ranks), f"{size}, as WORLD_SIZE says")
    status = rank_status.make_private_status(rank, size)
    status.listener = progress if rank == 0 else None
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


def _ask(read: Callable[[], T], default: T) -> T:
    """Return what a system reports, or a default where it has no such number or file."""
    try:
        return read()
    except (AttributeError, ImportError, IndexError, OSError, ValueError):
        return default


def describe_machine() -> dict[str, str]:
    """Describe cpu, cores, memory, os, load before the run (1, 5 and 15 minutes), and `nice`.

    `nice`, the priority, is left out if it is zero.
    """
    memory = _ask(lambda: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), 0)
    release = platform.release().split("-")[0]  # without the distributor's suffix
    texts = {
        "cpu": _read_cpu_name(),
        "cores": str(_ask(lambda: len(os.sched_getaffinity(0)), os.cpu_count() or 1)),
        "os": f"{platform.system()} {release} {platform.machine()}",
        "memory": format_bytes(memory) if memory else "",
        "nice": str(_ask(lambda: os.nice(0), 0) or ""),
        "load": read_load(),
    }
    return {name: text for name, text in texts.items() if text}


def read_load() -> str:
    """Read load averages of 1, 5 and 15 minutes; empty if the system has none."""
    averages: tuple[float, ...] = _ask(lambda: os.getloadavg(), ())  # noqa: PLW0108 (may lack it)
    return " ".join(f"{value:.2f}" for value in averages)


CpuTime = tuple[float, float]
"""CPU time used by all other processes of the machine, and when it was read; seconds."""


def read_cpu_time() -> CpuTime | None:
    """Read the CPU time used so far; None if the system does not report it (no /proc)."""
    stat = _ask(partial(Path("/proc/stat").read_text, encoding="utf-8"), "")
    used = sum(map(int, stat.split()[1:4]))  # user, nice, system
    all_s = _ask(lambda: used / os.sysconf("SC_CLK_TCK"), 0.0)
    return (all_s - sum(os.times()[:4]), time.monotonic()) if all_s else None


def describe_other_load(before: CpuTime | None, cores: int) -> str:
    """Share of the cores that other processes used since `before`; empty if not known."""
    after = None if before is None else read_cpu_time()
    if before is None or after is None or after[1] <= before[1]:
        return ""
    share = (after[0] - before[0]) / ((after[1] - before[1]) * cores)
    return f"{100 * min(1.0, max(0.0, share)):.0f} % of the cores"


def describe_versions() -> dict[str, str]:
    """Versions of Python, torch and NumPy, without importing them."""
    installed = {
        name: _ask(partial(importlib.metadata.version, name), None) for name in ("torch", "numpy")
    }
    return {"python": platform.python_version()} | {n: v for n, v in installed.items() if v}


def _read_cpu_name() -> str:
    """Read the marketing name of the CPU, with family and model, which distinguish generations."""
    text = _ask(lambda: Path("/proc/cpuinfo").read_text(encoding="utf-8"), "")
    if not text:
        return platform.processor() or platform.machine()
    pairs = [line.split(":", 1) for line in text.splitlines() if ":" in line]
    fields = {name.strip(): value.strip() for name, value in pairs}
    name = fields.get("model name", platform.machine())
    if "cpu family" in fields and "model" in fields:
        name += f" (family {fields['cpu family']}, model {fields['model']})"
    return name


PROCESS_BYTES = 220 << 20
"""Memory of a rank besides its buffers: Python, torch and the window being checked.

Own measurement: private memory of a rank on gloo is this plus 3.5 times the largest size, both at
64 and at 256 MiB (ring on two ranks: data, work buffer, the library's buffer, half of scratch;
torch 2.13, CPU).
"""


def require_memory(
    job: MeasurementJob, schedules: Sequence[Schedule], torch: ModuleType | None = None
) -> None:
    """Raise unless the buffers of all ranks fit into free memory.

    Parameters
    ----------
    job : MeasurementJob
    schedules : sequence of Schedule
        One for each size.
    torch : module, optional
        For backends on devices, to query their memory.

    Raises
    ------
    InputError
        They do not fit together with torch itself.
    """
    largest = max(schedules, key=count_elements)
    size, on_device = largest.nbytes, job.backend == "device"
    rank_bytes = _count_rank_bytes(job, largest)
    count = int(os.environ.get("LOCAL_WORLD_SIZE", job.ranks))
    # On device there are copies in pinned and in pageable memory.
    host_bytes = {"gloo": count * (rank_bytes + PROCESS_BYTES), "device": 2 * size, "nccl": 0}
    needs = [(host_bytes[job.backend], free_memory_bytes(), "of memory")]
    if torch is not None:
        sharing, extra_bytes = (count, 2 * (size + SIDE_BYTES)) if on_device else (1, 0)
        free = min(_read_device_bytes(torch, job, device) for device in range(count // sharing))
        needs.insert(0, (sharing * rank_bytes + extra_bytes, free, "of the GPU's memory"))
    raise_faults(
        Fault(
            "sizes",
            f"{format_bytes(size)}, which needs {format_bytes(needed)} {where} in all",
            f"sizes that fit into the free {format_bytes(free)}",
        )
        for needed, free, where in needs
        if free is not None and needed > free
    )


def _count_rank_bytes(job: MeasurementJob, schedule: Schedule) -> int:
    """Count the bytes of one rank's data, work buffer, scratch and copies."""
    copies = (job.collective in PARTED_COLLECTIVES) + (job.collective in SUM_COLLECTIVES)
    buffers = 2 + (copies if job.backend != "device" else 0)
    return job.itemsize * (
        buffers * count_elements(schedule) + largest_scratch(make_moves(schedule))
    )


def _read_device_bytes(torch: ModuleType, job: MeasurementJob, device: int) -> int:
    if job.backend == "device":
        return int(torch.cuda.mem_get_info(device)[0])
    # mem_get_info would create a context of this process on the devices that the ranks will use.
    return int(torch.cuda.get_device_properties(device).total_memory)


def free_memory_bytes() -> int | None:
    """Memory available without swapping; None if the system does not report it."""

    def number(file: str, word: str | None = None) -> int:
        """Read the number behind a word of a file, or its first one."""
        words = Path(file).read_text(encoding="utf-8").split()
        return int(words[0 if word is None else words.index(word) + 1])

    def left_of_container() -> int:
        return number("/sys/fs/cgroup/memory.max") - number("/sys/fs/cgroup/memory.current")

    free = _ask(lambda: number("/proc/meminfo", "MemAvailable:") * 1024, None)
    return None if free is None else max(0, min(free, _ask(left_of_container, free)))
