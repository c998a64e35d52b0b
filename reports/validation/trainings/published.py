"""Published training throughputs beside predictions: of many GPUs, and of one by the roofline.

Rows that the model cannot express are counted by the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from perfmodel.errors import Fault, PerfmodelError
from perfmodel.files.csv_rows import read_table
from perfmodel.studies.run.evidence import make_setting, network_between
from perfmodel.studies.run.result import Uncertainty
from perfmodel.studies.run.steps.uncertainty import chance_of_gpus, ratio_interval, step_interval
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.validate.match import one_line
from perfmodel.workload import zoo
from perfmodel.workload.compute_spread import measured_factors, spread_of
from perfmodel.workload.model import scale_times
from perfmodel.workload.roofline import layer_times, step_s
from reports.validation.trainings.model import Dataset, Measure, Pair, TrainingRun
from reports.validation.trainings.rows.model_names import build_named
from reports.validation.trainings.rows.parse import UnsupportedRow, in_common_columns, parse_row
from reports.validation.trainings.series import ONE_GPU, ParsedRow, base_of, network_of
from reports.validation.trainings.step_times import (
    compute_precision,
    step_uncertainties,
    topology_of,
    training_step_s,
)

LEFT_OUT = "left_out.csv"
"""Rows of published tables that were not copied: how many, by table and reason."""
SINGLE = "single-gpu"
FITTED = (SINGLE, "nvidia_dle")
"""Tables to whose throughputs of one GPU the roofline's constant was fitted
(``workload/kernel_constants.yaml``); those of NVIDIA's ResNet-50 stand in both."""
NO_SMALLER_RUN = "no smaller run of the same model, GPU, kind of host, batch and precision"
NO_SINGLE_RUN = "no run of one GPU to scale compute to"


def published_datasets(folder: Path, faults: list[Fault]) -> list[Dataset]:
    """Predict what can be expressed of ``training/*.csv``, a dataset per table."""
    datasets = []
    omitted_by_table = _left_out(folder, faults)
    for path in sorted(folder.glob("*.csv")):
        if path.name == LEFT_OUT:
            continue
        rows = [in_common_columns(record.cells) for record in read_table(path, faults)]
        omitted = omitted_by_table.pop(path.stem, {})
        if rows and not {"model", "metric", "value", "gpu"} <= set(rows[0]):
            reason = "a table of another shape: what it holds no scenario can express"
            datasets.append(_empty(path.stem, omitted | {reason: len(rows)}))
        else:
            datasets += _dataset(path.stem, rows, omitted)
    return datasets + [
        _empty(name, omitted) for name, omitted in omitted_by_table.items() if omitted
    ]


def _empty(name: str, omitted: dict[str, int]) -> Dataset:
    return Dataset(f"training-{name}", f"Training throughput, {name}", (), omitted)


def ddp_benchmark_dataset(path: Path, faults: list[Fault]) -> Dataset | None:
    """Predict PyTorch's own DDP benchmark, in its own columns; None if there is nothing in it."""
    rows = [in_common_columns(record.cells) for record in read_table(path, faults)]
    return next(iter(_dataset(path.stem, rows, {})), None)


def _dataset(
    name: str, rows: Sequence[Mapping[str, str]], omitted: dict[str, int]
) -> list[Dataset]:
    """Return a dataset, or nothing for an empty table."""
    parsed: list[ParsedRow] = []
    for cells in rows:
        try:
            parsed.append(_checked(cells))
        except UnsupportedRow as reason:
            omitted[str(reason)] = omitted.get(str(reason), 0) + 1
    runs = [_run(parsed, at) for at in range(len(parsed))]
    if not runs and not omitted:
        return []
    title = f"Training throughput, {name}"
    cases = [run.case for run in runs if not run.unlike]
    fitted = name in FITTED
    return [Dataset(f"training-{name}", title, cases, omitted, runs, _not_scaled(runs), fitted)]


def _left_out(folder: Path, faults: list[Fault]) -> dict[str, dict[str, int]]:
    """Rows of published tables that were not copied: how many, by table and reason."""
    path = folder / LEFT_OUT
    omitted: dict[str, dict[str, int]] = {}
    for record in read_table(path, faults) if path.is_file() else ():
        cells = record.cells
        omitted.setdefault(cells["table"], {})[cells["reason"]] = int(cells["rows"])
    return omitted


def _checked(cells: Mapping[str, str]) -> ParsedRow:
    """Read a row and step it once.

    Raises
    ------
    UnsupportedRow
        It cannot be expressed.
    """
    row = parse_row(cells)
    try:
        training_step_s(row)
    except PerfmodelError as error:
        raise UnsupportedRow(f"machine or model is not known: {one_line(error, 90)}") from None
    return ParsedRow(cells, row)


def _run(parsed: Sequence[ParsedRow], at: int) -> TrainingRun:
    """Predict one row, and how it scales against the smallest run of its series."""
    own, base = parsed[at], base_of(parsed, at)
    row, cells = own.row, own.cells
    samples = row.batch * row.gpus
    scaled, intervals = None, _intervals(own, base)
    if base is not None and base.row.gpus == 1:
        measured_s = base.row.batch / base.throughput
        factor = measured_s / training_step_s(base.row)
        scaled = samples / training_step_s(row, factor)
        parts = step_uncertainties(row, factor, measured_factors())
        low_s, high_s = step_interval(training_step_s(row, factor), parts)
        intervals["scaled"] = samples / high_s, samples / low_s
    topology = topology_of(row)
    return TrainingRun(
        model=row.model.text,
        gpu=cells["gpu"],
        nodes=len(row.shares),
        gpus=row.gpus,
        batch=row.batch,
        precision=compute_precision(row, topology.gpu),
        network=network_of(topology, cells, row),
        published=own.throughput,
        predicted=_predicted(own),
        source=", ".join(filter(None, (cells.get("source", ""), cells.get("source_path", "")))),
        base_gpus=None if base is None else base.row.gpus,
        base=None if base is None else (base.throughput, _predicted(base)),
        scaled=scaled,
        intervals=intervals,
        unlike=row.unlike,
        setting=make_setting(
            build_named(row.model),
            topology.gpu,
            compute_precision(row, topology.gpu),
            ("horovod" if row.horovod else "ddp",),
            network_between(topology, len(row.shares)),
            row.gpus,
            row.batch,
        ),
    )


def _intervals(own: ParsedRow, base: ParsedRow | None) -> dict[Measure, Pair]:
    """80 % intervals of throughput and of scaling efficiency."""
    row, samples = own.row, own.row.batch * own.row.gpus
    step_s, parts = training_step_s(row), step_uncertainties(row)
    low_s, high_s = step_interval(step_s, parts)
    measure: Measure = "one_gpu" if row.gpus == 1 else "many_gpus"
    intervals: dict[Measure, Pair] = {measure: (samples / high_s, samples / low_s)}
    if base is not None:
        other = base.row
        ends = ratio_interval((training_step_s(other), step_uncertainties(other)), (step_s, parts))
        batches = row.batch / other.batch
        intervals["efficiency"] = ends[0] * batches, ends[1] * batches
    return intervals


def _predicted(parsed: ParsedRow) -> float:
    """Predicted samples per second of all GPUs together."""
    row = parsed.row
    return row.batch * row.gpus / training_step_s(row)


def _not_scaled(runs: Sequence[TrainingRun]) -> dict[str, int]:
    """Why runs of several GPUs have no scaling efficiency, or no scaled throughput."""
    several = [run for run in runs if run.gpus > 1]
    counts = {
        NO_SMALLER_RUN: sum(run.base is None for run in several),
        NO_SINGLE_RUN: sum(run.base is not None and run.scaled is None for run in several),
    }
    for run in runs:
        if run.unlike:
            reason = f"only throughput with compute scaled is compared: {run.unlike}"
            counts[reason] = counts.get(reason, 0) + 1
    return {reason: count for reason, count in counts.items() if count}


UNSTATED_BATCH = 256
"""Samples per step where a table does not say: large enough to fill the GPU, as they are tuned."""


def single_dataset(path: Path, faults: list[Fault]) -> Dataset | None:
    """Predict the rows of ``single_gpu.csv``; None if there is no such table."""
    if not path.is_file():
        return None
    runs: list[TrainingRun] = []
    omitted: dict[str, int] = {}
    for record in read_table(path, faults):
        try:
            runs.append(single_gpu_run(record.cells))
        except PerfmodelError as error:
            reason = f"model or GPU is not known: {one_line(error, 100)}"
            omitted[reason] = omitted.get(reason, 0) + 1
    if not runs:
        return None
    cases = [run.case for run in runs]
    title = "Single-GPU training throughput"
    return Dataset(SINGLE, title, cases, omitted, runs, fitted=SINGLE in FITTED)


def single_gpu_run(cells: Mapping[str, str]) -> TrainingRun:
    """Predict a row of ``single_gpu.csv``."""
    batch = int(cells.get("batch") or UNSTATED_BATCH)
    length, gpu = cells.get("sequence_length"), load_gpu(cells["gpu"])
    workload = zoo.build_model(
        cells["model"],
        dtype=cells.get("dtype") or "fp32",
        sequence_length=int(length) if length else None,
    )
    times = layer_times(
        workload,
        gpu,
        batch=batch,
        precision=cells["precision"],
        optimizer=cells.get("optimizer") or "sgd-momentum",
        channels_last=cells.get("channels_last") == "1",
        fused_attention=cells.get("fused_attention") != "0",
    )
    setting = make_setting(workload, gpu, cells["precision"], (), "", 1, batch)
    step = step_s(times)
    quick_s, slow_s = (step_s(scale_times(times, factor)) for factor in times.spread)
    compute = Uncertainty("compute", quick_s, slow_s)
    chance = chance_of_gpus(step, compute, times.spread, (1, gpu.name), spread_of(gpu))
    low_s, high_s = step_interval(step, (compute, *chance))
    return TrainingRun(
        model=cells["model"],
        gpu=cells["gpu"],
        nodes=1,
        gpus=1,
        batch=batch,
        precision=cells["precision"],
        network=ONE_GPU,
        published=float(cells["samples_per_s"]),
        predicted=batch / step,
        intervals={"one_gpu": (batch / high_s, batch / low_s)},
        source=cells.get("source", ""),
        setting=setting,
    )
