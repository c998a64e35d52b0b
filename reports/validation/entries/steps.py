"""Published steps: step time with its interval, and peak memory.

Those of a collection, rows that say everything themselves, and throughputs of one GPU.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from reports.validation.entries.entry import Candidate, Collected, LeftOut, Prediction, rows_of
from reports.validation.entries.published_runs import (
    Cells,
    NotExpressible,
    as_stated_step,
    with_recipe,
)
from reports.validation.strategies.predicted_step import GB, PredictedStep, predict_step
from reports.validation.strategies.stated_step import gpus_of, passes_of, positive, read_step
from reports.validation.trainings.published import single_gpu_run

OVERFLOW = 1.1
"""Predicted peak over a GPU's memory from which on a run is taken not to fit: twice the median
error of predicted peaks."""
FOLDER, RUNS, MODELS = "strategies", "llm_training.csv", "models.csv"
STATED, ONE_GPU = "stated_steps.csv", "one_gpu.csv"
"""Rows in the columns of `strategy_steps.csv` and of `single_gpu.csv`, with their table."""
STEP_TIME = "step time"
NOT_OF_A_STEP = frozenset({"id", "date"})


def steps_in(folder: Path, seen: Container[str] = ()) -> Collected:
    """Find the published steps of a folder.

    `seen`: ids of rows that were looked at before there was a ledger.
    """
    found, predicted = Collected(), list[PredictedStep]()
    for row, cells, fits in (*_collected(folder / FOLDER, seen, found), *_stated(folder / FOLDER)):
        if cells["step_s"]:
            key, run = (
                (cells["table"], row, STEP_TIME),
                partial(_predict_run, row, cells, predicted, fits=fits),
            )
            work = passes_of(cells) * gpus_of(cells)
            found.candidates.append(Candidate(frozenset({key}), run, work))
        if cells["peak_GB"]:
            key = cells["table"], row, _peak_of(cells)
            found.candidates.append(Candidate(frozenset({key}), partial(_predict_peak, row, cells)))
    for cells in rows_of(folder / FOLDER / ONE_GPU):
        key = cells["table"], cells["model"], STEP_TIME
        found.candidates.append(Candidate(frozenset({key}), partial(_predict_one_gpu, cells)))
    return found


def _collected(
    folder: Path, seen: Container[str], found: Collected
) -> Iterator[tuple[str, Cells, bool]]:
    """Read the rows of a collection, and whether they fit as they are stated.

    Those that no scenario can express are put into `found`.
    """
    models = {cells["model_key"]: cells for cells in rows_of(folder / MODELS)}
    runs = list(rows_of(folder / RUNS))
    for at, run in enumerate(runs):
        if run["id"] in seen:
            continue
        try:
            stated = with_recipe(run, runs[at + 1 :])
            cells = as_stated_step(stated, models.get(run["model_key"], {}))
            yield run["id"], cells, bool(stated["recompute"])
        except NotExpressible as error:
            found.left_out.append(LeftOut(run["source"], str(error)))


def _stated(folder: Path) -> Iterator[tuple[str, Cells, bool]]:
    for row in rows_of(folder / STATED):
        yield row["id"], {name: row[name] for name in row if name not in NOT_OF_A_STEP}, True


def _peak_of(cells: Cells) -> str:
    return f"peak {cells['memory_kind']}"


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
        "step", group, table, row, STEP_TIME, "s", step.step_s, low_s, high_s, measured_s
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


def _predict_peak(row: str, cells: Cells) -> Sequence[Prediction]:
    """Predict the peak of a row, of which nothing is simulated."""
    ends = predict_step(read_step(cells)).memory_with_ends(cells["memory_kind"])
    measured, of = GB * float(cells["peak_GB"]), ("memory", "memory", cells["table"], row)
    return [Prediction(*of, _peak_of(cells), "B", *ends, measured)]


def _predict_one_gpu(cells: Cells) -> Sequence[Prediction]:
    run = single_gpu_run(cells)
    rates = run.predicted, *reversed(run.intervals["one_gpu"]), run.published
    of = "step", "one GPU", cells["table"], cells["model"], STEP_TIME, "s"
    step_s, low_s, high_s, measured_s = (run.batch / rate for rate in rates)
    return [Prediction(*of, step_s, low_s, high_s, measured_s)]


def class_of(cells: Cells) -> str:
    """Whether a model is split over GPUs; if not, whether there are several."""
    if cells["parallel"]:
        return "split"
    return "one GPU" if gpus_of(cells) == 1 else "sharded"
