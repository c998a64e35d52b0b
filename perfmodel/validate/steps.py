"""Recorded training steps beside predictions: ``steps.csv``, a row for each run of a scenario.

Columns: ``scenario`` (a file in the folder, or a name), ``step_s`` and ``peak_GB`` (10^9 bytes, of
one GPU; one of them may be empty), ``id``, ``source`` and ``note``. Every other column is a dotted
field of the scenario, as for ``--set``: ``cluster.nodes``; an empty cell leaves the field as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from perfmodel.calibrate import Profile
from perfmodel.errors import Fault, InputError, PerfmodelError
from perfmodel.files.csv_rows import RowReader, read_table
from perfmodel.scenario import Scenario, load_scenario
from perfmodel.studies.run import run_scenario

STEPS = "steps.csv"
SCALES = {"step_s": 1.0, "peak_GB": 1e9}
"""SI units in one of each column that is compared."""
_NOT_FIELDS = ("id", "scenario", "source", "note", *SCALES)


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """What was measured of one run, and the scenario that is to say the same; SI units."""

    id: str
    scenario: Scenario
    measured: Mapping[str, float]
    source: str = ""


@dataclass(frozen=True, slots=True)
class StepComparison:
    """One recorded number of a run beside the predicted one, in the unit that its column names."""

    id: str
    quantity: str
    measured: float
    predicted: float
    interval: tuple[float, float] | None
    source: str = ""

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1.0


def read_steps(path: Path) -> list[RecordedStep]:
    """Read the recorded steps of a table, with their scenarios.

    Raises
    ------
    InputError
        Every fault of every row, and of the scenarios that they name.
    """
    faults: list[Fault] = []
    steps = []
    for number, record in enumerate(read_table(path, faults), start=1):
        reader = RowReader(record, faults)
        measured = {name: value for name in SCALES if (value := reader.number(name)) is not None}
        if not any(reader.text(name) for name in SCALES):
            reader.fault(" or ".join(SCALES), "nothing", "what was measured of the step")
        try:
            scenario = _read_scenario(reader, path.parent)
        except InputError as error:
            faults += [_in_row(fault, reader) for fault in error.faults]
            continue
        steps.append(
            RecordedStep(
                reader.text("id") or f"row {number}", scenario, measured, reader.text("source")
            )
        )
    if faults:
        raise InputError(faults)
    return steps


def _in_row(fault: Fault, reader: RowReader) -> Fault:
    """Name the column and the row of a fault that no file of its own has."""
    if fault.file:
        return fault
    column = fault.field.removeprefix("--set ").replace("SCENARIO", "scenario")
    return replace(fault, field=column, file=reader.record.file, line=reader.record.line)


def _read_scenario(reader: RowReader, folder: Path) -> Scenario:
    """Read the scenario of a row at its main size alone, with the fields that the row replaces."""
    name = reader.text("scenario")
    changes = [
        f"{field}={reader.text(field)}"
        for field in reader.record.cells
        if field not in _NOT_FIELDS and reader.text(field)
    ]
    own = folder / name
    return load_scenario(own if own.is_file() else name, [*changes, "scale=null"])


def compare_step(step: RecordedStep, profile: Profile | None) -> list[StepComparison] | str:
    """Predict one step; a text says why it could not be predicted."""
    try:
        point = run_scenario(step.scenario, profile=profile, with_first=False).main
    except PerfmodelError as error:
        return str(error)
    predicted = {"step_s": point.step_time_s, "peak_GB": point.memory.total_bytes}
    intervals = {"step_s": point.interval_s}
    return [
        StepComparison(
            step.id,
            quantity,
            value,
            predicted[quantity] / SCALES[quantity],
            intervals.get(quantity),
            step.source,
        )
        for quantity, value in step.measured.items()
    ]
