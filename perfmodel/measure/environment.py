"""The machine of a measurement: CPU, memory, load, versions; no names of hosts or files."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from perfmodel.collectives.schedule import Schedule
from perfmodel.errors import Fault, InputError
from perfmodel.measure.job import PARTED_COLLECTIVES, SUM_COLLECTIVES, MeasurementJob
from perfmodel.measure.p2p import largest_scratch
from perfmodel.measure.reference import count_elements, make_moves
from perfmodel.units import format_bytes


def describe_machine() -> dict[str, str]:
    """Describe cpu, cores, memory, os, load before the run (1, 5 and 15 minutes), and `nice`.

    `nice`, the priority, is left out if it is zero.
    """
    machine = {
        "cpu": _read_cpu_name(),
        "cores": str(_count_cores()),
        "os": f"{platform.system()} {_read_release()}",
    }
    memory = _read_memory_bytes()
    if memory is not None:
        machine["memory"] = format_bytes(memory)
    nice = _read_nice()
    if nice:
        machine["nice"] = str(nice)
    load = read_load()
    return machine | ({"load": load} if load else {})


def _read_nice() -> int:
    try:
        return os.nice(0)
    except (AttributeError, OSError):
        return 0


def read_load() -> str:
    """Load averages of 1, 5 and 15 minutes; empty if the system has none."""
    try:
        return " ".join(f"{value:.2f}" for value in os.getloadavg())
    except (AttributeError, OSError):
        return ""


@dataclass(frozen=True, slots=True)
class CpuTime:
    """CPU time used by the whole machine and by this process, and when it was read; seconds."""

    all_s: float
    own_s: float
    read_at_s: float


def read_cpu_time() -> CpuTime | None:
    """Read the CPU time used so far; None if the system does not report it (no /proc)."""
    try:
        user, nice, system = Path("/proc/stat").read_text(encoding="utf-8").split()[1:4]
        ticks = (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    ours = os.times()
    used = ours.user + ours.system + ours.children_user + ours.children_system
    return CpuTime(ticks, used, time.monotonic())


def describe_other_load(before: CpuTime | None, cores: int) -> str:
    """Share of the cores that other processes used since `before`; empty if not known."""
    after = read_cpu_time()
    if before is None or after is None or after.read_at_s <= before.read_at_s:
        return ""
    others_s = (after.all_s - before.all_s) - (after.own_s - before.own_s)
    share = others_s / ((after.read_at_s - before.read_at_s) * cores)
    return f"{100 * min(1.0, max(0.0, share)):.0f} % of the cores"


def describe_versions() -> dict[str, str]:
    """Versions of Python, torch and NumPy, without importing them."""
    versions = {"python": platform.python_version()}
    for name in ("torch", "numpy"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _read_cpu_name() -> str:
    """Marketing name of the CPU, with family and model, which distinguish generations."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    pairs = [line.split(":", 1) for line in lines if ":" in line]
    fields = {name.strip(): value.strip() for name, value in pairs}
    name = fields.get("model name", platform.machine())
    if "cpu family" in fields and "model" in fields:
        name += f" (family {fields['cpu family']}, model {fields['model']})"
    return name


def _count_cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _read_release() -> str:
    """Version of the kernel without the distributor's suffix."""
    return platform.release().split("-")[0] + f" {platform.machine()}"


def _read_memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


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
