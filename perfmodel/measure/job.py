"""What is to be measured, and whether it can be: algorithm, sizes, backend."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from perfmodel.errors import ExecutorUnavailable, Fault, InputError, ScheduleError, allowed_names
from perfmodel.units import format_bytes, format_time

if TYPE_CHECKING:
    from perfmodel.collectives.schedule import Schedule


Backend = Literal["gloo", "nccl", "device"]

ITEM_BYTES = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8,
}  # fmt: skip
"""Data types that both NumPy's check and the libraries can add, and their bytes per element."""

SUMS = frozenset({"all_reduce", "reduce", "reduce_scatter"})
"""Collectives whose result the library's all_reduce knows too."""

PARTED = frozenset({"reduce_scatter", "all_gather", "all_to_all", "scatter", "gather"})
"""Collectives that deal in one part per rank; the library wants those parts alike."""


TIMEOUTS_S = (0.1, 7 * 86400.0)
"""Shortest and longest time-out: a stalled scheduler is no hang, and nobody waits for weeks."""

LARGEST_BYTES = 1 << 50
"""Far beyond any memory, and far below where whole numbers of 64 bits would overflow."""


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
        Bytes, as nccl-tests counts them; each is measured as `size_measured` says.
    dtype : str
        A key of `ITEM_BYTES`.
    budget_s : float
        Time to spend on repeats, all sizes together; seconds.
    repeats : int, optional
        How often each size is repeated; default: as the budget allows.
    timeout_s : float
        A run in which no rank advances for this long is ended; seconds.
    topology : str, optional
        Name of the template that describes this machine.
    command : str
        The command line that asks for this job, to be recorded; empty: asked from Python.
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


def size_measured(job: MeasurementJob, nbytes: int) -> int:
    """The size that stands for `nbytes`: whole elements, and like parts where there are parts.

    Rounded down, but never to nothing.
    """
    unit = job.itemsize * (job.ranks if job.collective in PARTED else 1)
    return max(1, nbytes // unit) * unit


def schedules(job: MeasurementJob) -> dict[int, Schedule]:
    """The schedule of each size, by bytes.

    Raises
    ------
    InputError
        Unknown algorithm, collective or data type, or no size.
    ScheduleError
        An algorithm that needs switches that reduce.
    """
    faults = list(_faults(job))
    if faults:
        raise InputError(faults)
    sizes = sorted({size_measured(job, nbytes) for nbytes in job.sizes})
    made = {nbytes: make_schedule(job, nbytes) for nbytes in sizes}
    if any(schedule.switches for schedule in made.values()):
        raise ScheduleError(
            f"{job.algorithm} needs a switch that reduces, which no process can stand in for: "
            "it can be simulated, but not measured"
        )
    return made


def _faults(job: MeasurementJob) -> Iterator[Fault]:
    if job.dtype not in ITEM_BYTES:
        yield Fault("--dtype", repr(job.dtype), allowed_names(ITEM_BYTES, job.dtype))
    if job.ranks < 2:
        yield Fault("--ranks", str(job.ranks), "2 or more")
    if not job.sizes:
        yield Fault("sizes", "none", "at least one")
    elif max(job.sizes) > LARGEST_BYTES:
        yield Fault("sizes", format_bytes(max(job.sizes)), f"up to {format_bytes(LARGEST_BYTES)}")
    low, high = TIMEOUTS_S
    if not low <= job.timeout_s <= high:
        allowed = f"from {format_time(low)} to {format_time(high)}"
        yield Fault("--timeout", f"{job.timeout_s:g} s", allowed)
    if not 0 < job.budget_s <= high:
        yield Fault("--budget", f"{job.budget_s:g} s", f"above zero, up to {format_time(high)}")
    if job.repeats is not None and job.repeats < 1:
        yield Fault("--repeats", str(job.repeats), "1 or more")


def make_schedule(job: MeasurementJob, nbytes: int) -> Schedule:
    """The schedule of one size, its elements those of the job.

    Raises
    ------
    InputError
        There is no such algorithm for this collective.
    ScheduleError
        It does not allow this number of ranks.
    """
    from perfmodel.collectives import catalog

    made = catalog.make(job.collective, job.algorithm, job.ranks, nbytes, itemsize=job.itemsize)
    return replace(made, itemsize=job.itemsize)  # a plain send counts bytes


def torch_or_say() -> None:
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


def devices_or_say(backend: Backend, needed: int) -> ModuleType:
    """Make sure that there are CUDA devices, and return torch.

    Raises
    ------
    ExecutorUnavailable
        There are fewer than `needed`.
    """
    torch_or_say()
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found == 0:
        raise ExecutorUnavailable(
            f"no CUDA device for backend {backend} (torch {torch.__version__}); "
            "on a machine without GPUs measure with --backend gloo"
        )
    if found < needed:
        raise ExecutorUnavailable(
            f"backend {backend} needs a CUDA device for each of {needed} ranks, found {found}; "
            "--backend device runs several ranks on one"
        )
    module: ModuleType = torch
    return module
