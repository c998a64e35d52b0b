"""Validate predictions against a folder of records: `validate`, its outcome and its JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from perfmodel.calibrate import Profile
from perfmodel.files import as_json, attributes
from perfmodel.library.corrections import BANDS, Spread
from perfmodel.validate.predict.forecast import Mode, Pair, SweepPrediction, partners
from perfmodel.validate.predict.run import Placed, PredictionTask, match_all, predict_sweeps
from perfmodel.validate.score import coverage, scores
from perfmodel.validate.score.points import DataPoint, points_of
from perfmodel.validate.score.scores import LARGE, Score
from perfmodel.validate.score.strategy_scores import strategies_json
from perfmodel.validate.score.training_scores import trainings_json
from perfmodel.validate.strategies.model import StrategyTable
from perfmodel.validate.strategies.step_tables import STEPS as STRATEGY_STEPS
from perfmodel.validate.sweeps.match import Matched
from perfmodel.validate.sweeps.read import (
    SUBFOLDER,
    Fitted,
    Sweep,
    fitted_on,
    has_sweeps,
    read_sweeps,
    sweeps_folder,
)
from perfmodel.validate.trainings.datasets import has_trainings
from perfmodel.validate.trainings.model import Dataset


@dataclass(frozen=True)
class Validation:
    """Predictions of every recorded sweep and training beside the measurements.

    Parameters
    ----------
    data : str
        Where the records come from, as text.
    predicted : sequence of SweepPrediction
    unmatched : mapping of str to str
        Sweeps without a prediction, and why.
    trainings : sequence of Dataset
        Published trainings and step times.
    strategies : sequence of StrategyTable
        Published steps of sharded and other strategies: time and memory.
    fitted : sequence of Fitted
        Which sweeps the shipped constants were fitted on.
    shipped : bool
        Whether these are the records that ship, on which the shipped spread of residuals rests.
    """

    data: str
    predicted: Sequence[SweepPrediction]
    unmatched: Mapping[str, str]
    trainings: Sequence[Dataset] = ()
    strategies: Sequence[StrategyTable] = ()
    fitted: Sequence[Fitted] = field(default=())
    shipped: bool = True

    @cached_property
    def points(self) -> list[DataPoint]:
        """All sizes of all sweeps in all modes."""
        return points_of(self.predicted)

    @cached_property
    def bands(self) -> dict[Mode, dict[str, Score]]:
        """Scores by mode and band of size, counted sweeps."""
        return scores.by_band(self.points)

    @cached_property
    def judged(self) -> list[DataPoint]:
        """Datasheet points with intervals made without their own sweep."""
        if self.shipped:
            return coverage.judged(self.points)
        return coverage.as_shipped(self.predicted)

    @cached_property
    def coverages(self) -> dict[str, dict[str, coverage.Coverage]]:
        """Coverage of 80 % intervals by mode and band."""
        by_mode: dict[str, dict[str, coverage.Coverage]] = {}
        own: dict[str, list[DataPoint]] = {coverage.judged_mode(self.points): self.judged}
        for mode in ("transferred", "calibrated"):
            own[mode] = [p for p in self.points if p.mode == mode and p.counted]
        for mode, points in own.items():
            for band in ("all", *(band for band, _ in BANDS), LARGE):
                share = coverage.coverage(points if band == "all" else scores.in_band(points, band))
                if share is not None:
                    by_mode.setdefault(mode, {})[band] = share
        return by_mode

    @property
    def honest_mode(self) -> Mode:
        """Mode of the headline: constants that were not fitted to the machines predicted."""
        return "left out" if "left out" in self.bands else "datasheet"

    def spread(self) -> Spread:
        """Table of residual spread for datasheet intervals."""
        sweeps, tables = len({p.sweep for p in self.judged}), len({p.table for p in self.judged})
        source = (
            f"perfmodel validate, mode '{self.honest_mode}', residuals of {sweeps} recorded sweeps "
            f"in {tables} tables ({self.data})"
        )
        return coverage.spread_of(self.points, source)


def shipped_folder() -> Path:
    """Folder of the records that ship with perfmodel."""
    return Path(__file__).with_name("data")


def validate(
    data: Path | None = None,
    *,
    profile: Profile | None = None,
    transfer: bool = True,
    whole: bool = False,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Predict all sweeps and trainings of a folder of records and compare.

    Parameters
    ----------
    data : Path, optional
        Folder with ``nccl_sweeps/META.csv`` or META.csv itself, or with tables of trainings alone
        (see `perfmodel.validate.trainings.datasets.datasets_in`); default: what ships.
    profile : Profile, optional
        A user's own numbers, as one more mode.
    transfer : bool
        Whether to fit profiles of other sweeps of the same hardware.
    whole : bool
        Whether to predict every published step, and not a sample of those of split models, which
        takes hours instead of minutes.
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
    has_steps = has_trainings(folder) or (folder / STRATEGY_STEPS).is_file()
    if not has_sweeps(folder) and has_steps:
        sweeps, home = [], folder
    else:
        sweeps, home = read_sweeps(folder), sweeps_folder(folder)
    matched, unmatched = match_all(sweeps, home)
    available = {pair[0].id: (pair, home) for pair in matched}
    if transfer and data is not None and sweeps:
        shipped = sweeps_folder(shipped_folder())
        pairs, _ = match_all(read_sweeps(shipped), shipped)
        available = {pair[0].id: (pair, shipped) for pair in pairs} | available
    tasks = [
        PredictionTask(
            (sweep, home),
            profile,
            _others(sweep, own, available) if transfer else None,
            left_out=data is None,
        )
        for sweep, own in matched
    ]
    outcomes, trainings, strategies = predict_sweeps(
        tasks, _root(folder), processes, progress, whole=whole
    )
    predicted = []
    for (sweep, own), outcome in zip(matched, outcomes, strict=True):
        if isinstance(outcome, str):
            unmatched[sweep.id] = outcome
        else:
            predicted.append(SweepPrediction(sweep, own, outcome))
    return Validation(
        data=_describe(data, sweeps),
        predicted=predicted,
        unmatched=unmatched,
        trainings=trainings,
        strategies=strategies,
        fitted=fitted_on(),
        shipped=data is None,
    )


def _others(
    sweep: Sweep, own: Matched, available: Mapping[str, tuple[Pair, Path]]
) -> tuple[Placed, ...]:
    """Other sweeps of the same hardware, and where their files lie."""
    pairs = partners(sweep, own, [pair for pair, _ in available.values()])
    return tuple((other, available[other.id][1]) for other, _ in pairs)


def _root(folder: Path) -> Path:
    """Folder in which the tables of trainings stand, beside ``nccl_sweeps``."""
    return folder.parent if folder.name == SUBFOLDER else folder


def _describe(data: Path | None, sweeps: Sequence[Sweep]) -> str:
    where = "the records that ship with perfmodel" if data is None else f"folder {data.name}"
    return f"{where}, {len(sweeps)} sweeps"


# ---------------------------------------------------------------- as JSON


def to_json(validation: Validation) -> dict[str, Any]:
    """Return the answer of ``perfmodel validate --json``.

    ``median_abs_error`` and ``p90_abs_error`` are those from 256 KiB on of the sweeps that count,
    every table weighing the same, with constants fitted without the family of machines (mode "left
    out"; of other data those shipped, "datasheet"); without sweeps, those of all trainings.
    """
    predicted, trainings = validation.predicted, validation.trainings
    main: Score | Dataset | None = validation.bands.get(validation.honest_mode, {}).get(LARGE)
    if not predicted and not validation.unmatched:
        main = Dataset("all", "", [case for dataset in trainings for case in dataset.cases])
    document = {
        "data": validation.data,
        "median_abs_error": main.median_abs_error if main else None,
        "p90_abs_error": main.p90_abs_error if main else None,
        "datasets": [*_sweep_entries(validation), *(dataset.to_json() for dataset in trainings)],
        "by_band": validation.bands,
        "on_common_sweeps": scores.on_common(validation.points),
        "by_machine": scores.by_machine(validation.points),
        "headline_mode": validation.honest_mode,
        "coverage": validation.coverages,
        "interval_probability": coverage.PROBABILITY,
        "unmatched": validation.unmatched,
        "not_counted": {p.sweep.id: p.why_not for p in predicted if not p.counted},
        "fitted_on": [attributes(fitted, "constants sweeps") for fitted in validation.fitted],
        "trainings": trainings_json(trainings),
        "strategies": strategies_json(validation.strategies),
    }
    return dict(as_json(document, "validation"))


def _sweep_entries(validation: Validation) -> list[dict[str, Any]]:
    by_sweep = scores.by_sweep(validation.points)
    return [
        {
            "id": prediction.sweep.id,
            "mode": mode,
            **attributes(bands["all"], "points median_abs_error p90_abs_error"),
            "bands": {band: score for band, score in bands.items() if band != "all"},
            "machine": prediction.matched.topology.name,
            "counted": prediction.counted,
            "assumptions": [*prediction.matched.assumptions, *prediction.sweep.notes],
            "note": prediction.times[mode].note,
        }
        for prediction in validation.predicted
        for mode, bands in by_sweep.get(prediction.sweep.id, {}).items()
    ]
