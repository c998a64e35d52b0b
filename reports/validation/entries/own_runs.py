"""Our own measurements of one GPU, whose predictions stand beside them since before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reports.validation.entries.entry import Prediction, rows_of

FOLDER = Path(__file__).parents[2] / "experiments" / "one_gpu"
STEPS, BATCHES = "steps", "largest_batches"


def own_predictions(
    gpu: str, folder: Path = FOLDER, cases: str = STEPS
) -> tuple[str, list[Prediction]]:
    """Put together what was predicted and measured of a GPU.

    `gpu`: "h100", as the files are named.
    `cases`: "steps", to which the largest batches belong, "optimizers" or "hybrids".
    Returns the version that predicted, and its predictions; none where one of the files is missing.
    """
    steps = _pairs(folder, f"{gpu}_{cases}")
    batches = _pairs(folder, f"{gpu}_{BATCHES}") if cases == STEPS else []
    table = f"one_gpu, {gpu}" + (f" {cases}" if cases != STEPS else "")
    found = []
    for name, predicted, measured in steps:
        if measured["outcome"] == "measured":
            found.append(_of_step(table, name, predicted, measured))
            found.append(_of_memory(table, name, predicted, measured))
    for name, predicted, measured in batches:
        found.append(_of_batch(table, name, predicted, measured))
    versions = {predicted["version"] for _, predicted, _ in steps}
    assert len(versions) <= 1, f"several versions: {versions}"
    return next(iter(versions), ""), found


Cells = Mapping[str, str]


def settings_of(gpu: str, folder: Path = FOLDER) -> list[tuple[str, Cells]]:
    """Return the cells of each measured step by the name of its row."""
    return [(name, measured) for name, _, measured in _pairs(folder, f"{gpu}_{STEPS}")]


def _pairs(folder: Path, name: str) -> list[tuple[str, Cells, Cells]]:
    files = [folder / side / f"{name}.csv" for side in ("predicted", "measured")]
    predicted, measured = map(rows_of, files)
    if not predicted or not measured:
        return []
    shared = [column for column in predicted[0] if column in measured[0]]
    settings = shared[: shared.index("recompute") + 1]
    by_setting = {tuple(row[column] for column in settings): row for row in predicted}
    return [
        (_name(row), by_setting[tuple(row[column] for column in settings)], row) for row in measured
    ]


def _name(cells: Cells) -> str:
    """Every setting of a case in a few words."""
    length = f" of {cells['sequence_length']} tokens" if cells["sequence_length"] else ""
    attention = "" if cells["fused_attention"] == "1" else ", scores materialised"
    channels = ", channels last" if cells["channels_last"] == "1" else ""
    compiled = ", compiled" if cells["compiled"] == "1" else ""
    recompute = ", recomputed" if cells["recompute"] == "full" else ""
    optimizer = f"{cells['optimizer']} {cells['optimizer_kernels']}"
    return (
        f"{cells['model']}, {cells['batch']}{length}, {cells['precision']} on {cells['dtype']},"
        f" {optimizer}{attention}{channels}{compiled}{recompute}"
    )


def _of_step(table: str, name: str, predicted: Cells, measured: Cells) -> Prediction:
    step_s, low_s, high_s = (float(predicted[column]) for column in ("step_s", "low_s", "high_s"))
    measured_s = float(measured["step_s"])
    return Prediction(
        "step", "one GPU", table, name, "step time", "s", step_s, low_s, high_s, measured_s
    )


def _of_memory(table: str, name: str, predicted: Cells, measured: Cells) -> Prediction:
    found, held = (float(cells["allocated_bytes"]) for cells in (predicted, measured))
    ends = (predicted.get(f"allocated_{end}_bytes") for end in ("low", "high"))  # old files: none
    low, high = (float(end) if end else None for end in ends)
    return Prediction(
        "memory", "memory", table, name, "peak allocated", "B", found, low, high, held
    )


def _of_batch(table: str, name: str, predicted: Cells, measured: Cells) -> Prediction:
    found, ran = (float(cells["largest_batch"]) for cells in (predicted, measured))
    return Prediction(
        "memory", "memory", table, name, "largest batch", "samples", found, None, None, ran
    )
