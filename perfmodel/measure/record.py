"""The file of a measurement: its rows, and the job, machine and versions behind them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from perfmodel.errors import Fault, InputError
from perfmodel.files import FileModel, read_text, validate_document, write_atomically
from perfmodel.units import (
    LONGEST_MEASURED_S,
    MOST_COUNT,
    MOST_MEASURED_BYTES,
    SHORTEST_MEASURED_S,
)

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
        if times != sorted(times):
            raise ValueError("times that do not fall from min_s to p90_s")
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


def write_measurement(measurement: Measurement, path: Path) -> None:
    """Write a measurement file, whole or not at all."""
    write_atomically(path, json.dumps(measurement.model_dump(), indent=1) + "\n")


def read_measurement(path: Path) -> Measurement:
    """Read a measurement file.

    Raises
    ------
    InputError
        Unreadable, not JSON, or not a measurement; every fault at once.
    """
    try:
        document = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        text, line = "JSON nested too deeply", getattr(error, "lineno", None)
        if isinstance(error, json.JSONDecodeError):
            text = f"no JSON ({error.msg})"
        raise InputError(Fault("file", text, "a measurement file", str(path), line)) from None
    return validate_document(Measurement, document, str(path))


def compute_quantiles(times_s: Sequence[float]) -> dict[str, float]:
    """The fields of a `MeasurementRow` that summarise repeated times; seconds."""
    ordered = sorted(times_s)

    def at(share: float) -> float:
        position = share * (len(ordered) - 1)
        low = int(position)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (position - low)

    shares = {"p10_s": 0.1, "p25_s": 0.25, "median_s": 0.5, "p75_s": 0.75, "p90_s": 0.9}
    return {"min_s": ordered[0]} | {name: at(share) for name, share in shares.items()}


def summarise_times(
    kind: MeasurementKind, nbytes: int, times_s: Sequence[float], setting: str = ""
) -> MeasurementRow:
    """One setting's repeated times, summarised; seconds."""
    fields = {"what": kind, "nbytes": nbytes, "setting": setting, "repeats": len(times_s)}
    return MeasurementRow.model_validate(fields | compute_quantiles(times_s))
