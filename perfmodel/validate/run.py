"""Compare a folder of records with predictions: `validate`, its outcome and its JSON.

Recorded training steps beside predictions: ``steps.csv``, a row for each run of a scenario.

Columns: ``scenario`` (a file in the folder, or a name), ``step_s`` and ``peak_GB`` (10^9 bytes, of
one GPU; one of them may be empty), ``id``, ``source`` and ``note``. Every other column is a dotted
field of the scenario, as for ``--set``: ``cluster.nodes``; an empty cell leaves the field as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.calibrate import Profile
from perfmodel.errors import Fault, PerfmodelError, changed_faults, raise_faults
from perfmodel.files import as_json, attributes, collect_faults
from perfmodel.files.csv_rows import RowReader, read_table
from perfmodel.library.corrections import datasheet_interval_s
from perfmodel.memo import grouped, with_progress
from perfmodel.scenario import Scenario, load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.sweep.executor import count_cores, map_unordered
from perfmodel.validate.forecast import (
    Forecast,
    Mode,
    Pair,
    SweepPrediction,
    Task,
    partners,
    predict,
)
from perfmodel.validate.match import Matched, match
from perfmodel.validate.read import find_sweeps, read_sweeps, sweeps_folder
from perfmodel.validate.scores import (
    LARGE,
    DataPoint,
    Score,
    by_band,
    by_sweep,
    even_weights,
    points_of,
)

STEPS = "steps.csv"
SCALES = {"step_s": 1.0, "peak_GB": 1e9}
"""SI units in one of each column that is compared."""
_NOT_FIELDS = ("id", "scenario", "source", "note", *SCALES)


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """What was measured of a run, and the scenario that should predict the same; SI units."""

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
        with collect_faults(faults), changed_faults(partial(_in_row, reader)):
            scenario = _read_scenario(reader, path.parent)
            name = reader.text("id") or f"row {number}"
            steps.append(RecordedStep(name, scenario, measured, reader.text("source")))
    raise_faults(faults)
    return steps


def _in_row(reader: RowReader, fault: Fault) -> Fault:
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


WORTH_IT = 8
"""Sweeps from which on starting processes costs less than they save."""


@dataclass(frozen=True)
class Validation:
    """Predictions of recorded sweeps and steps beside the measurements.

    Parameters
    ----------
    data : str
        Where the records come from, as text.
    predicted : sequence of SweepPrediction
    unmatched : mapping of str to str
        Sweeps and steps without a prediction, and why.
    steps : sequence of StepComparison
    """

    data: str
    predicted: Sequence[SweepPrediction]
    unmatched: Mapping[str, str]
    steps: Sequence[StepComparison] = ()

    @cached_property
    def points(self) -> list[DataPoint]:
        """All sizes of all sweeps in all modes."""
        return points_of(self.predicted)

    @cached_property
    def bands(self) -> dict[Mode, dict[str, Score]]:
        """Scores by mode and band of size, counted sweeps."""
        return by_band(self.points)

    @cached_property
    def coverages(self) -> dict[Mode, float]:
        """Share of measured times inside 80 % intervals by mode; every table weighs the same."""
        points = [
            *as_shipped(self.predicted),
            *(p for p in self.points if p.mode != "datasheet" and p.counted and p.interval_s),
        ]
        return {
            mode: float(np.average([p.inside for p in own], weights=even_weights(own)))
            for mode, own in grouped((p.mode, p) for p in points).items()
        }


def as_shipped(predicted: Sequence[SweepPrediction]) -> list[DataPoint]:
    """Counted datasheet points with the shipped intervals, for sweeps that do not ship."""
    machines = {prediction.sweep.id: prediction.matched for prediction in predicted}
    return [
        replace(
            p,
            interval_s=datasheet_interval_s(
                machines[p.sweep].topology, p.op, p.nbytes, p.predicted_s
            ),
        )
        for p in points_of(predicted)
        if p.mode == "datasheet" and p.counted
    ]


def shipped_folder() -> Path:
    """Folder of the recorded sweeps that ship with perfmodel."""
    return Path(__file__).with_name("data")


def validate(
    data: Path | None = None,
    *,
    profile: Profile | None = None,
    transfer: bool = True,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Predict all sweeps and steps of a folder of records and compare.

    Parameters
    ----------
    data : Path, optional
        Folder with META.csv or ``nccl_sweeps/META.csv``, with ``steps.csv``, or with both; default:
        the sweeps that ship.
    profile : Profile, optional
        A user's own numbers, as one more mode.
    transfer : bool
        Whether to fit profiles of other sweeps of the same hardware.
    processes : int
        More than one only from a program whose main module may be imported again.
    progress : callable, optional
        Called with (done, total) sweeps.

    Raises
    ------
    InputError
        Every fault of every file.
    """
    folder = data or shipped_folder()
    table = folder / STEPS
    steps = read_steps(table) if table.is_file() else []
    home = find_sweeps(folder) if steps else sweeps_folder(folder)
    matched, unmatched = ([], {}) if home is None else match_all(home)
    tasks = prediction_tasks(matched, home or folder, profile, transfer=transfer)
    counts = {"sweep": len(matched) + len(unmatched), "step": len(steps)}
    predicted = pair_outcomes(matched, predict_sweeps(tasks, processes, progress), unmatched)
    compared = {step.id: compare_step(step, profile) for step in steps}
    unmatched |= {name: why for name, why in compared.items() if isinstance(why, str)}
    where = "the records that ship with perfmodel" if data is None else f"folder {data.name}"
    sizes = [f"{n} {noun}{'' if n == 1 else 's'}" for noun, n in counts.items() if n]
    return Validation(
        ", ".join([where, *sizes]),
        predicted,
        unmatched,
        [each for own in compared.values() if not isinstance(own, str) for each in own],
    )


def match_all(home: Path) -> tuple[list[Pair], dict[str, str]]:
    """Match all sweeps of a folder; the second part says why some could not be."""
    outcomes = [(sweep, match(sweep, home)) for sweep in read_sweeps(home)]
    return [(sweep, found) for sweep, found in outcomes if isinstance(found, Matched)], {
        sweep.id: found for sweep, found in outcomes if isinstance(found, str)
    }


def prediction_tasks(
    matched: Sequence[Pair], home: Path, profile: Profile | None, *, transfer: bool
) -> list[Task]:
    """Say what is predicted of each sweep: with others of its folder, and those that ship."""
    available = {pair[0].id: (pair, home) for pair in matched}
    shipped = sweeps_folder(shipped_folder())
    if transfer and matched and home != shipped:
        available = {pair[0].id: (pair, shipped) for pair in match_all(shipped)[0]} | available
    candidates = [pair for pair, _ in available.values()]
    return [
        Task(
            (sweep, home),
            profile,
            tuple((other, available[other.id][1]) for other, _ in partners(sweep, own, candidates))
            if transfer
            else None,
        )
        for sweep, own in matched
    ]


def predict_sweeps(
    tasks: Sequence[Task], processes: int, progress: Callable[[int, int], None] | None
) -> list[Forecast | str]:
    """Predict sweeps in several processes, the longest first; outcomes in the order of `tasks`."""
    calls = [(at, tasks[at]) for at in sorted(range(len(tasks)), key=lambda at: -tasks[at].work)]
    jobs = processes if len(tasks) >= WORTH_IT else 1
    answers = map_unordered(_predict_at, calls, jobs=jobs, threads=count_cores())
    outcomes = dict(with_progress(answers, progress, len(tasks)))
    return [outcomes[at] for at in range(len(tasks))]


def _predict_at(at: int, task: Task) -> tuple[int, Forecast | str]:
    return at, predict(task)


def pair_outcomes(
    matched: Sequence[Pair], outcomes: Sequence[Forecast | str], unmatched: dict[str, str]
) -> list[SweepPrediction]:
    """Pair sweeps with their predictions; those that have none go to `unmatched`."""
    pairs = list(zip(matched, outcomes, strict=True))
    unmatched |= {sweep.id: why for (sweep, _), why in pairs if isinstance(why, str)}
    return [SweepPrediction(*own, found) for own, found in pairs if not isinstance(found, str)]


# ---------------------------------------------------------------- as JSON


def to_json(validation: Validation) -> dict[str, Any]:
    """Return the answer of ``perfmodel validate --json``.

    ``median_abs_error`` and ``p90_abs_error`` are those of datasheet predictions from 256 KiB on of
    the sweeps that count, every table weighing the same; without sweeps, those of step times.
    """
    times = [abs(step.error) for step in validation.steps if step.quantity == "step_s"]
    median, p90 = np.quantile(times, [0.5, 0.9]).tolist() if times else (None, None)
    main = validation.bands.get("datasheet", {}).get(LARGE)
    if main is not None:
        median, p90 = main.median_abs_error, main.p90_abs_error
    document = {
        "data": validation.data,
        "median_abs_error": median,
        "p90_abs_error": p90,
        "datasets": sweep_entries(validation.predicted, validation.points),
        "by_band": validation.bands,
        "coverage": validation.coverages,
        "unmatched": validation.unmatched,
        "not_counted": {p.sweep.id: p.why_not for p in validation.predicted if not p.counted},
        "steps": [
            attributes(step, "id quantity measured predicted interval error source")
            for step in validation.steps
        ],
    }
    return dict(as_json(document, "validation"))


def sweep_entries(
    predicted: Sequence[SweepPrediction], points: Sequence[DataPoint]
) -> list[dict[str, Any]]:
    """Describe each predicted sweep in each mode, for JSON."""
    scored = by_sweep(points)
    return [
        {
            "id": prediction.sweep.id,
            "mode": mode,
            **attributes(bands["all"], "points median_abs_error p90_abs_error"),
            "bands": {band: score for band, score in bands.items() if band != "all"},
            "machine": prediction.matched.topology.name,
            "counted": prediction.counted,
            "assumptions": [*prediction.matched.assumptions, *prediction.sweep.notes],
            "note": prediction.forecast.times[mode].note,
        }
        for prediction in predicted
        for mode, bands in scored.get(prediction.sweep.id, {}).items()
    ]
