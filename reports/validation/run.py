"""Validate predictions against a folder of records: `validate`, its outcome and its JSON."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from perfmodel.calibrate import Profile
from perfmodel.files import as_json, attributes, write_atomically
from perfmodel.library.corrections import BANDS, Spread
from perfmodel.validate import scores
from perfmodel.validate.forecast import Mode, Pair, SweepPrediction
from perfmodel.validate.read import SUBFOLDER, find_sweeps, sweeps_folder
from perfmodel.validate.run import (
    as_shipped,
    match_all,
    pair_outcomes,
    prediction_tasks,
    shipped_folder,
    sweep_entries,
)
from perfmodel.validate.scores import LARGE, DataPoint, Score, points_of
from reports.validation.predict.run import predict_all
from reports.validation.refit.fitted import Fitted, fitted_on
from reports.validation.score import breakdowns, coverage
from reports.validation.score.strategy_scores import strategies_json
from reports.validation.score.training_scores import trainings_json
from reports.validation.strategies.model import StrategyTable
from reports.validation.strategies.step_tables import STEPS as STRATEGY_STEPS
from reports.validation.trainings.datasets import has_trainings
from reports.validation.trainings.model import Dataset


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
        return as_shipped(self.predicted)

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
            f"reports.validation, mode '{self.honest_mode}', residuals of {sweeps} recorded sweeps "
            f"in {tables} tables ({self.data})"
        )
        return coverage.spread_of(self.points, source)


def write_spread(spread: Spread, path: Path) -> None:
    """Write the spread as YAML, whole or not at all."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width, yaml.default_flow_style = 120, None
    text = io.StringIO()
    text.write(
        "# How far measured times lie from datasheet predictions: factors on the predicted time\n"
        "# that hold 80 %. Made by reports.validation --spread FILE; do not edit by hand.\n"
    )
    yaml.dump(spread.model_dump(mode="json"), text)
    write_atomically(path, text.getvalue())


def records_folder() -> Path:
    """Folder of the published trainings and steps; recorded sweeps ship with perfmodel."""
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

    Parameters and errors are those of `perfmodel.validate.run.validate`, but for these.

    Parameters
    ----------
    data : Path, optional
        May also be a folder with tables of trainings alone (see
        `reports.validation.trainings.datasets.datasets_in`).
    whole : bool
        Whether to predict every published step, and not a sample of those of split models, which
        takes hours instead of minutes.
    """
    root = records_folder() if data is None else _root(data)
    folder = data or shipped_folder()
    has_steps = has_trainings(root) or (root / STRATEGY_STEPS).is_file()
    matched: list[Pair] = []
    unmatched: dict[str, str] = {}
    tasks = []
    if find_sweeps(folder) or not has_steps:
        home = sweeps_folder(folder)
        matched, unmatched = match_all(home)
        tasks = prediction_tasks(matched, home, profile, transfer=transfer)
    count = len(matched) + len(unmatched)
    outcomes, trainings, strategies = predict_all(
        tasks, root, processes, progress, left_out=data is None, whole=whole
    )
    predicted = pair_outcomes(matched, outcomes, unmatched)
    where = "the records that ship with perfmodel" if data is None else f"folder {data.name}"
    return Validation(
        data=f"{where}, {count} sweeps",
        predicted=predicted,
        unmatched=unmatched,
        trainings=trainings,
        strategies=strategies,
        fitted=fitted_on(),
        shipped=data is None,
    )


def _root(folder: Path) -> Path:
    """Folder in which the tables of trainings stand, beside ``nccl_sweeps``."""
    return folder.parent if folder.name == SUBFOLDER else folder


# ---------------------------------------------------------------- as JSON


def to_json(validation: Validation) -> dict[str, Any]:
    """Return the answer of ``reports.validation --json``.

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
        "datasets": [
            *sweep_entries(predicted, validation.points),
            *(dataset.to_json() for dataset in trainings),
        ],
        "by_band": validation.bands,
        "on_common_sweeps": breakdowns.on_common(validation.points),
        "by_machine": breakdowns.by_machine(validation.points),
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
