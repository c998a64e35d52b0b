"""Published steps of a collection: step time with its interval, and peak memory."""

from __future__ import annotations

import csv
from collections.abc import Container, Iterable, Sequence
from functools import partial
from pathlib import Path

from reports.validation.entries.entry import Candidate, Collected, LeftOut, Prediction
from reports.validation.entries.published_runs import (
    Cells,
    NotExpressible,
    as_stated_step,
    with_recipe,
)
from reports.validation.strategies.predicted_step import PredictedStep, predict_step
from reports.validation.strategies.stated_step import gpus_of, passes_of, positive, read_step

OVERFLOW = 1.1
"""Predicted peak over a GPU's memory from which on a run is taken not to fit: twice the median
error of predicted peaks."""
FOLDER, RUNS, MODELS = "strategies", "llm_training.csv", "models.csv"


def steps_in(folder: Path, seen: Container[str] = ()) -> Collected:
    """Find the published steps of a folder.

    `seen`: ids of rows that were looked at before there was a ledger.
    """
    found, path = Collected(), folder / FOLDER / RUNS
    if not path.is_file():
        return found
    models = {cells["model_key"]: cells for cells in _rows(path.with_name(MODELS))}
    predicted: list[PredictedStep] = []
    runs = _rows(path)
    for at, run in enumerate(runs):
        if run["id"] in seen:
            continue
        try:
            stated = with_recipe(run, runs[at + 1 :])
            cells = as_stated_step(stated, models.get(run["model_key"], {}))
        except NotExpressible as error:
            found.left_out.append(LeftOut(run["source"], str(error)))
            continue
        key = (cells["table"], run["id"], "step time")
        work = passes_of(cells) * gpus_of(cells)
        fits = bool(stated["recompute"])
        run_it = partial(_predict_run, run["id"], cells, predicted, fits=fits)
        found.candidates.append(Candidate(frozenset({key}), run_it, work))
    return found


def _rows(path: Path) -> Sequence[Cells]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _predict_run(
    row: str, cells: Cells, predicted: list[PredictedStep], *, fits: bool
) -> Sequence[Prediction] | str:
    """Predict a row; `predicted` are others, of which those of the same setup share simulations."""
    step = predict_fitting(cells, predicted, fits=fits)
    measured_s = positive(cells, "step_s")
    assert measured_s is not None
    low_s, high_s = step.interval() or (None, None)
    group, table = class_of(cells), cells["table"]
    prediction = Prediction(
        "step", group, table, row, "step time", "s", step.step_s, low_s, high_s, measured_s
    )
    predicted.append(step)
    return [prediction]


def predict_fitting(
    cells: Cells, predicted: Iterable[PredictedStep], *, fits: bool
) -> PredictedStep:
    """Predict a row; all blocks are recomputed where it would not fit otherwise.

    `fits`: whether the source states what is recomputed.
    """
    step = predict_step(read_step(cells), predicted)
    if fits or step.memory_bytes("allocated") <= OVERFLOW * step.sized.job.gpu.memory_bytes:
        return step
    return predict_step(read_step({**cells, "recompute": "full"}), predicted)


def class_of(cells: Cells) -> str:
    """Whether a model is split over GPUs; if not, whether there are several."""
    if cells["parallel"]:
        return "split"
    return "one GPU" if gpus_of(cells) == 1 else "sharded"
