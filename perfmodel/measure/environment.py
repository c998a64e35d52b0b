"""What a measurement was made on: processor, memory, load, versions. No names of hosts or files."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

from perfmodel.units import format_bytes


def describe_machine() -> dict[str, str]:
    """The machine by name: cpu, cores, memory, os, load (1, 5 and 15 minutes, before the run).

    And the priority, `nice`, where it is not the usual one.
    """
    found = {"cpu": _cpu(), "cores": str(_cores()), "os": f"{platform.system()} {_release()}"}
    memory = _memory_bytes()
    if memory is not None:
        found["memory"] = format_bytes(memory)
    nice = _nice()
    if nice:
        found["nice"] = str(nice)
    load = load_now()
    return found | ({"load": load} if load else {})


def _nice() -> int:
    try:
        return os.nice(0)
    except (AttributeError, OSError):
        return 0


def load_now() -> str:
    """Load averages of 1, 5 and 15 minutes; empty where the system keeps none."""
    try:
        return " ".join(f"{value:.2f}" for value in os.getloadavg())
    except (AttributeError, OSError):
        return ""


@dataclass(frozen=True, slots=True)
class Busy:
    """Processor time used since the machine and this process started; seconds."""

    all_s: float
    ours_s: float
    at_s: float


def busy_now() -> Busy | None:
    """How busy the processors have been; None where the system does not say (no /proc)."""
    try:
        user, nice, system = Path("/proc/stat").read_text(encoding="utf-8").split()[1:4]
        ticks = (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    ours = os.times()
    used = ours.user + ours.system + ours.children_user + ours.children_system
    return Busy(ticks, used, time.monotonic())


def other_work(before: Busy | None, cores: int) -> str:
    """Share of the cores that others kept busy since `before`, ended children counted as ours."""
    after = busy_now()
    if before is None or after is None or after.at_s <= before.at_s:
        return ""
    others_s = (after.all_s - before.all_s) - (after.ours_s - before.ours_s)
    share = others_s / ((after.at_s - before.at_s) * cores)
    return f"{100 * min(1.0, max(0.0, share)):.0f} % of the cores"


def describe_versions() -> dict[str, str]:
    """Versions of Python, torch and NumPy; found without importing them."""
    found = {"python": platform.python_version()}
    for name in ("torch", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    """Marketing name of the processor, with family and model, which tell generations apart."""
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


def _cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _release() -> str:
    """Version of the kernel without the builder's own suffix."""
    return platform.release().split("-")[0] + f" {platform.machine()}"


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
