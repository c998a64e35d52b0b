"""A measurement job: algorithm, sizes, backend, and checks that it can be run."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from perfmodel.errors import ExecutorUnavailable, Fault, InputError, ScheduleError, allowed_names
from perfmodel.units import format_bytes, format_time

if TYPE_CHECKING:
    from perfmodel.collectives.schedule import Schedule


Backend = Literal["gloo", "nccl", "device"]

ITEM_BYTES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int32": 4,
    "int64": 8,
}
"""Bytes per element of the data types that both NumPy's check and the libraries can add."""

SUM_COLLECTIVES = frozenset({"all_reduce", "reduce", "reduce_scatter"})
"""Collectives whose result can be compared with the library's all_reduce."""

PARTED_COLLECTIVES = frozenset({"reduce_scatter", "all_gather", "all_to_all", "scatter", "gather"})
"""Collectives of one part per rank; the library requires parts of equal size."""

TIMEOUTS_S = (0.1, 7 * 86400.0)
"""Shortest and longest time-out; shorter ones would take a stalled scheduler for a hang."""

LARGEST_BYTES = 1 << 50
"""Larger than any memory, and small enough that integers of 64 bits do not overflow."""


@dataclass(frozen=True, slots=True)
class MeasurementJob:
    """One measurement to be made.

    Parameters
    ----------
    backend : str
        "gloo" or "nccl" (processes), "device" (streams on one GPU).
    algorithm, collective : str
    ranks : int
    sizes : tuple of int
        Bytes, as nccl-tests counts them; each is measured as `measured_size` says.
    dtype : str
        A key of `ITEM_BYTES`.
    budget_s : float
        Time for all repeats of all sizes; seconds.
    repeats : int, optional
        Repeats of each size; default: as many as the budget allows.
    timeout_s : float
        A run in which no rank advances for this long is killed; seconds.
    topology : str, optional
        Name of the template that describes this machine.
    command : str
        The command line of this job, to be recorded; empty if it was made from Python.
    """

    backend: Backend
    algorithm: str
    collective: str
    ranks: int
    sizes: tuple[int, ...]
    dtype: str = "float32"
    budget_s: float = 30.0
    repeats: int | None = None
    timeout_s: float = 60.0
    topology: str | None = None
    command: str = ""

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return ITEM_BYTES[self.dtype]


def measured_size(job: MeasurementJob, nbytes: int) -> int:
    """Round a size down to whole elements and equal parts, but not to zero; bytes."""
    unit = job.itemsize * (job.ranks if job.collective in PARTED_COLLECTIVES else 1)
    return max(1, nbytes // unit) * unit


def make_schedules(job: MeasurementJob) -> dict[int, Schedule]:
    """Make the schedule of each size, by bytes.

    Raises
    ------
    InputError
        Unknown algorithm, collective or data type, or no size.
    ScheduleError
        An algorithm that needs switches that reduce.
    """
    if faults := _find_faults(job):
        raise InputError(faults)
    sizes = sorted({measured_size(job, nbytes) for nbytes in job.sizes})
    by_size = {nbytes: make_schedule(job, nbytes) for nbytes in sizes}
    if any(schedule.switches for schedule in by_size.values()):
        raise ScheduleError(
            f"{job.algorithm} needs a switch that reduces, which no process can replace: "
            "it can be simulated, but not measured"
        )
    return by_size


def _find_faults(job: MeasurementJob) -> list[Fault]:
    low, high = TIMEOUTS_S
    largest, repeats = max(job.sizes, default=0), job.repeats
    is_long = not low <= job.timeout_s <= high
    least_to_most = f"from {format_time(low)} to {format_time(high)}"
    is_spent, up_to = not 0 < job.budget_s <= high, f"above zero, up to {format_time(high)}"
    problems = (
        (
            job.dtype not in ITEM_BYTES,
            "--dtype",
            repr(job.dtype),
            allowed_names(ITEM_BYTES, job.dtype),
        ),
        (job.ranks < 2, "--ranks", str(job.ranks), "2 or more"),
        (not job.sizes, "sizes", "none", "at least one"),
        (
            largest > LARGEST_BYTES,
            "sizes",
            format_bytes(largest),
            f"up to {format_bytes(LARGEST_BYTES)}",
        ),
        (is_long, "--timeout", f"{job.timeout_s:g} s", least_to_most),
        (is_spent, "--budget", f"{job.budget_s:g} s", up_to),
        (repeats is not None and repeats < 1, "--repeats", str(repeats), "1 or more"),
    )
    return [Fault(field, found, allowed) for holds, field, found, allowed in problems if holds]


def make_schedule(job: MeasurementJob, nbytes: int) -> Schedule:
    """Make the schedule of one size, with the job's bytes per element.

    Raises
    ------
    InputError
        There is no such algorithm for this collective.
    ScheduleError
        It does not allow this number of ranks.
    """
    from perfmodel.collectives import catalog

    schedule = catalog.make(job.collective, job.algorithm, job.ranks, nbytes, itemsize=job.itemsize)
    return replace(schedule, itemsize=job.itemsize)  # a plain send counts bytes


def require_torch() -> None:
    """Make sure that torch can be imported, without importing it.

    Raises
    ------
    ExecutorUnavailable
        It is not installed; says how to get it.
    """
    if importlib.util.find_spec("torch") is None:
        raise ExecutorUnavailable(
            "measuring runs on PyTorch, which is not installed: pip install 'perfmodel[torch]'"
        )


def require_devices(backend: Backend, needed: int) -> ModuleType:
    """Make sure that there are CUDA devices, and return torch.

    Raises
    ------
    ExecutorUnavailable
        There are fewer than `needed`.
    """
    require_torch()
    import torch

    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if available == 0:
        raise ExecutorUnavailable(
            f"no CUDA device for backend {backend} (torch {torch.__version__}); "
            "on a machine without GPUs measure with --backend gloo"
        )
    if available < needed:
        raise ExecutorUnavailable(
            f"backend {backend} needs a CUDA device for each of {needed} ranks, found {available}; "
            "--backend device runs several ranks on one"
        )
    return torch
