"""The machine of a measurement: CPU, memory, load, versions; no names of hosts or files."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

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
