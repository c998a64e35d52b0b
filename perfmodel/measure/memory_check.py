"""Check, before a measurement starts, that its buffers fit into memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from perfmodel.collectives.schedule import Schedule
from perfmodel.errors import Fault, InputError
from perfmodel.measure.job import PARTED_COLLECTIVES, SUM_COLLECTIVES, MeasurementJob
from perfmodel.measure.processes.p2p import largest_scratch
from perfmodel.measure.reference import count_elements, make_moves
from perfmodel.units import format_bytes

PROCESS_BYTES = 220 << 20
"""Memory of a rank besides its buffers: Python, torch and the window being checked.

Own measurement: private memory of a rank on gloo is this plus 3.5 times the largest size, both at
64 and at 256 MiB (ring on two ranks: data, work buffer, the library's buffer, half of scratch;
torch 2.13, CPU).
"""

SIDE_BYTES = 128 << 20
"""Size of the copies during a matrix product, on backend device."""


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
    rank_bytes, count = _count_rank_bytes(job, largest), _count_local_ranks(job)
    faults = []
    if torch is not None:
        sharing = count if job.backend == "device" else 1
        free_bytes = min(
            _read_device_bytes(torch, job, device) for device in range(count // sharing)
        )
        extra_bytes = 2 * (largest.nbytes + SIDE_BYTES) if job.backend == "device" else 0
        faults += _find_faults(
            largest, sharing * rank_bytes + extra_bytes, free_bytes, "of the GPU's memory"
        )
    host_bytes = 2 * largest.nbytes if job.backend == "device" else 0  # pinned and pageable
    host_bytes = count * (rank_bytes + PROCESS_BYTES) if job.backend == "gloo" else host_bytes
    faults += _find_faults(largest, host_bytes, free_memory_bytes(), "of memory")
    if faults:
        raise InputError(faults)


def _find_faults(largest: Schedule, needed: int, free: int | None, where: str) -> list[Fault]:
    if free is None or needed <= free:
        return []
    size = f"{format_bytes(largest.nbytes)}, which needs {format_bytes(needed)} {where} in all"
    return [Fault("sizes", size, f"sizes that fit into the free {format_bytes(free)}")]


def _count_rank_bytes(job: MeasurementJob, schedule: Schedule) -> int:
    """Bytes of one rank's data, work buffer, scratch and copies."""
    buffers = 2
    if job.backend != "device":
        buffers += (job.collective in PARTED_COLLECTIVES) + (job.collective in SUM_COLLECTIVES)
    return (
        buffers * count_elements(schedule) + largest_scratch(make_moves(schedule))
    ) * job.itemsize


def _count_local_ranks(job: MeasurementJob) -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", job.ranks))


def _read_device_bytes(torch: ModuleType, job: MeasurementJob, device: int) -> int:
    if job.backend == "device":
        return int(torch.cuda.mem_get_info(device)[0])
    # mem_get_info would create a context of this process on the devices that the ranks will use.
    return int(torch.cuda.get_device_properties(device).total_memory)


def free_memory_bytes() -> int | None:
    """Memory available without swapping; None if the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        fields = {
            name: rest.split()[0] for name, _, rest in (line.partition(":") for line in lines)
        }
        free = int(fields["MemAvailable"]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None
    try:  # a container may allow less
        folder = Path("/sys/fs/cgroup")
        limit = int((folder / "memory.max").read_text(encoding="utf-8"))
        used = int((folder / "memory.current").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return free
    return max(0, min(free, limit - used))
