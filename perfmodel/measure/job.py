"""A measurement job (algorithm, sizes, backend), and the file of its measurement.

The file holds rows, and the job, machine and versions behind them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from perfmodel.errors import (
    ExecutorUnavailable,
    Fault,
    allowed_names,
    check_schedule,
    failed,
    raise_faults,
    require_installed,
)
from perfmodel.files import FileModel, check_rows
from perfmodel.units import (
    LONGEST_MEASURED_S,
    MOST_COUNT,
    MOST_MEASURED_BYTES,
    SHORTEST_MEASURED_S,
    format_bytes,
    format_time,
)

if TYPE_CHECKING:
    from perfmodel.collectives.schedule import Schedule

Backend = Literal["gloo", "nccl", "device"]

Progress = Callable[[int, int], None]
"""Called with how many of how many pieces are done."""

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

SIDE_BYTES = 128 << 20
"""Size of the copies during a matrix product, on backend device."""

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
    raise_faults(_find_faults(job))
    sizes = sorted({measured_size(job, nbytes) for nbytes in job.sizes})
    by_size = {nbytes: make_schedule(job, nbytes) for nbytes in sizes}
    lacking = "a switch that reduces, which no process can replace"
    switched = any(schedule.switches for schedule in by_size.values())
    check_schedule(
        (switched, f"{job.algorithm} needs {lacking}: it can be simulated, but not measured")
    )
    return by_size


def _find_faults(job: MeasurementJob) -> list[Fault]:
    low, high = TIMEOUTS_S
    largest, repeats = max(job.sizes, default=0), job.repeats
    return failed(
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
        (
            not low <= job.timeout_s <= high,
            "--timeout",
            f"{job.timeout_s:g} s",
            f"from {format_time(low)} to {format_time(high)}",
        ),
        (
            not 0 < job.budget_s <= high,
            "--budget",
            f"{job.budget_s:g} s",
            f"above zero, up to {format_time(high)}",
        ),
        (repeats is not None and repeats < 1, "--repeats", str(repeats), "1 or more"),
    )


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


MEASURING = "measuring runs on PyTorch"
"""What needs torch, in messages."""


def require_devices(backend: Backend, needed: int) -> ModuleType:
    """Make sure that there are CUDA devices, and return torch.

    Raises
    ------
    ExecutorUnavailable
        There are fewer than `needed`.
    """
    require_installed("torch", MEASURING)
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


MeasurementKind = Literal[
    "schedule",  # our schedule's rounds, executed send by send
    "library",  # the library's own collective, in the same run
    "copy",
    "reduce",
    "launch",
    "synchronize",
    "host_to_device",
    "device_to_host",
    "peer_copy",
    "blocks_copy",
    "overlap",
]
"""Kinds of measurement."""


Time = Annotated[float, Field(ge=SHORTEST_MEASURED_S, le=LONGEST_MEASURED_S)]
Ranks = Annotated[int, Field(ge=1, le=MOST_COUNT)]


def _check_iso(text: str) -> str:
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("a date and time such as '2026-01-31T12:00:00+00:00'") from None
    return text


class MeasurementRow(FileModel):
    """One setting, measured many times; times in seconds, sizes in bytes.

    `setting` distinguishes rows of one kind and size ("pinned", "gpu0 -> gpu1", "8 blocks").
    """

    what: MeasurementKind
    nbytes: Annotated[int, Field(ge=0, le=MOST_MEASURED_BYTES)]
    setting: str = ""
    repeats: Annotated[int, Field(ge=1)]
    min_s: Time
    p10_s: Time
    p25_s: Time
    median_s: Time
    p75_s: Time
    p90_s: Time

    @model_validator(mode="after")
    def _check_order(self) -> MeasurementRow:
        times = [self.min_s, self.p10_s, self.p25_s, self.median_s, self.p75_s, self.p90_s]
        check_rows((times != sorted(times), "times that do not fall from min_s to p90_s"))
        return self


class Measurement(FileModel):
    """A measurement file.

    `machine` and `versions` are free text by name ("cpu", "cores", "gpu", "load" / "torch",
    "python", "nccl"). `topology` names the template that describes the machine, null if none was
    given; `hosts` counts the machines that the ranks were on, null in files from before it was
    recorded. `command` repeats the run; empty if it was started from Python.
    """

    perfmodel: Literal[1] = 1
    kind: Literal["measurement"] = "measurement"
    backend: Literal["gloo", "nccl", "device"]
    collective: str
    algorithm: str
    ranks: Ranks
    itemsize: Annotated[int, Field(ge=1, le=16)] = 4
    started: Annotated[str, AfterValidator(_check_iso)]
    seconds: Annotated[float, Field(ge=0)]
    command: str
    machine: dict[str, str]
    versions: dict[str, str]
    topology: str | None = None
    hosts: Ranks | None = None
    note: str = ""
    rows: tuple[MeasurementRow, ...]

    def times(self, kind: MeasurementKind, setting: str = "") -> tuple[tuple[int, float], ...]:
        """(nbytes, median seconds) of one kind of row, by size."""
        rows = [r for r in self.rows if r.what == kind and (not setting or r.setting == setting)]
        return tuple(sorted((row.nbytes, row.median_s) for row in rows))


QUANTILES = {
    "min_s": 0.0,
    "p10_s": 0.1,
    "p25_s": 0.25,
    "median_s": 0.5,
    "p75_s": 0.75,
    "p90_s": 0.9,
}
"""Quantiles of repeated times that a `MeasurementRow` has."""


def summarise_times(
    kind: MeasurementKind, nbytes: int, times_s: Sequence[float], setting: str = ""
) -> MeasurementRow:
    """One setting's repeated times, summarised; seconds."""
    fields = {"what": kind, "nbytes": nbytes, "setting": setting, "repeats": len(times_s)}
    quantiles = np.quantile(times_s, list(QUANTILES.values())).tolist()
    return MeasurementRow.model_validate(fields | dict(zip(QUANTILES, quantiles, strict=True)))
