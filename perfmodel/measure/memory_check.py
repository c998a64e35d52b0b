"""Does what is to be measured fit into memory? Said before anything is started."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from perfmodel.collectives.schedule import Schedule
from perfmodel.errors import Fault, InputError
from perfmodel.measure.job import PARTED, SUMS, MeasurementJob
from perfmodel.measure.processes.p2p import most_scratch
from perfmodel.measure.reference import elements, moves
from perfmodel.units import format_bytes

PROCESS_BYTES = 220 << 20
"""What a rank holds beside its buffers: Python, torch and the window being checked.

Own measurement: private memory of a rank on gloo is this and 3.5 times the largest size, alike at
64 and 256 MiB (ring on two ranks: data, buffer, the library's, half of scratch; torch 2.13, CPU).
"""


SIDE_BYTES = 128 << 20
"""What is copied beside a matrix product, on backend device."""


def room_or_say(
    job: MeasurementJob, made: Sequence[Schedule], torch: ModuleType | None = None
) -> None:
    """Make sure that all ranks' buffers fit into the memory that is free.

    Parameters
    ----------
    job : MeasurementJob
    made : sequence of Schedule
        One for each size.
    torch : module, optional
        For backends on devices, to ask them for their memory.

    Raises
    ------
    InputError
        They do not, or not by far enough to start torch as well.
    """
    largest = max(made, key=elements)
    held, count = _held_bytes(job, largest), _ranks_here(job)
    faults = []
    if torch is not None:
        sharing = count if job.backend == "device" else 1
        free = min(_device_bytes(torch, job, device) for device in range(count // sharing))
        extra = 2 * (largest.nbytes + SIDE_BYTES) if job.backend == "device" else 0
        faults += _faults(largest, sharing * held + extra, free, "of the GPU's memory")
    host = 2 * largest.nbytes if job.backend == "device" else 0  # pinned and pageable
    host = count * (held + PROCESS_BYTES) if job.backend == "gloo" else host
    faults += _faults(largest, host, free_memory_bytes(), "of memory")
    if faults:
        raise InputError(faults)


def _faults(largest: Schedule, needed: int, free: int | None, where: str) -> list[Fault]:
    if free is None or needed <= free:
        return []
    found = f"{format_bytes(largest.nbytes)}, which needs {format_bytes(needed)} {where} in all"
    return [Fault("sizes", found, f"sizes that fit into what is free, {format_bytes(free)}")]


def _held_bytes(job: MeasurementJob, schedule: Schedule) -> int:
    """What one rank holds: its data, the buffer it works on, scratch, and copies."""
    buffers = 2
    if job.backend != "device":
        buffers += (job.collective in PARTED) + (job.collective in SUMS)
    return (buffers * elements(schedule) + most_scratch(moves(schedule))) * job.itemsize


def _ranks_here(job: MeasurementJob) -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", job.ranks))


def _device_bytes(torch: ModuleType, job: MeasurementJob, device: int) -> int:
    if job.backend == "device":
        return int(torch.cuda.mem_get_info(device)[0])
    # Asking what is free would leave a context of ours on the devices that ranks will use.
    return int(torch.cuda.get_device_properties(device).total_memory)


def free_memory_bytes() -> int | None:
    """Memory that can be had without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        found = {name: rest.split()[0] for name, _, rest in (line.partition(":") for line in lines)}
        free = int(found["MemAvailable"]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None
    try:  # a container may allow less
        folder = Path("/sys/fs/cgroup")
        most = int((folder / "memory.max").read_text(encoding="utf-8"))
        used = int((folder / "memory.current").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return free
    return max(0, min(free, most - used))
