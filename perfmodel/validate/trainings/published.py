"""Published training throughputs beside predictions: of many GPUs, and of one by the roofline.

Rows that the model cannot express are counted by the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from perfmodel.errors import Fault, PerfmodelError
from perfmodel.files.csv_rows import read_table
from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.from_text.describe import find_host
from perfmodel.topology.from_text.match_template import HostText
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.strategy import StepRequest
from perfmodel.validate.sweeps.match import Allocation, build_cluster, one_line
from perfmodel.validate.trainings.model import Case, Dataset
from perfmodel.validate.trainings.parse import TrainingRow, UnsupportedRow, parse_row
from perfmodel.workload import zoo
from perfmodel.workload.roofline import layer_times, step_s

LEFT_OUT = "left_out.csv"
"""Rows of published tables that were not copied: how many, by table and reason."""

_SINCE_TF32 = ("ampere", "ada", "hopper", "blackwell")


def published_datasets(folder: Path, faults: list[Fault]) -> list[Dataset]:
    """Predict what can be expressed of ``training/*.csv``, a dataset per table."""
    datasets = []
    omitted_by_table = _left_out(folder, faults)
    for path in sorted(folder.glob("*.csv")):
        if path.name == LEFT_OUT:
            continue
        rows = [record.cells for record in read_table(path, faults)]
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
    rows = [of_ddp_benchmark(record.cells) for record in read_table(path, faults)]
    return next(iter(_dataset(path.stem, rows, {})), None)


def _dataset(
    name: str, rows: Sequence[Mapping[str, str]], omitted: dict[str, int]
) -> list[Dataset]:
    """Return a dataset, or nothing for an empty table."""
    cases = []
    for row in rows:
        try:
            cases.append(_case(row))
        except UnsupportedRow as reason:
            omitted[str(reason)] = omitted.get(str(reason), 0) + 1
    title = f"Training throughput, {name}"
    return [Dataset(f"training-{name}", title, cases, omitted)] if cases or omitted else []


def _left_out(folder: Path, faults: list[Fault]) -> dict[str, dict[str, int]]:
    """Rows of published tables that were not copied: how many, by table and reason."""
    path = folder / LEFT_OUT
    omitted: dict[str, dict[str, int]] = {}
    for record in read_table(path, faults) if path.is_file() else ():
        cells = record.cells
        omitted.setdefault(cells["table"], {})[cells["reason"]] = int(cells["rows"])
    return omitted


def of_ddp_benchmark(cells: Mapping[str, str]) -> dict[str, str]:
    """Return a row of PyTorch's own DDP benchmark in the columns of the other tables."""
    return dict(cells) | {
        "framework": "PyTorch", "gpu": cells["hardware"], "interconnect": cells["hardware"],
        "sync_mode": cells["mode"], "metric": "p50_s", "value": cells["p50_s"],
        "precision": "FP32",
    }  # fmt: skip


def _case(cells: Mapping[str, str]) -> Case:
    """Predict one row.

    Raises
    ------
    UnsupportedRow
        It cannot be expressed.
    """
    training = parse_row(cells)
    try:
        gpus, step = _step_s(training)
    except PerfmodelError as error:
        raise UnsupportedRow(f"machine or model is not known: {one_line(error, 90)}") from None
    value, samples = float(cells["value"]), training.batch * gpus
    if cells["metric"] == "rate":
        value *= samples  # iterations per second
    elif cells["metric"] in {"p50_s", "step_time"}:
        value = samples / value
    name = (
        f"{training.model}, {cells['gpu']} x {gpus}, batch {training.batch}, {training.precision}"
    )
    source = ", ".join(filter(None, (cells.get("source", ""), cells.get("source_path", ""))))
    return Case(name, value, samples / step, "samples/s", source)


@lru_cache(maxsize=256)
def _topology(machine: HostText, nodes: int) -> Topology:
    return build_cluster(find_host(machine).node, Allocation(nodes, machine.gpus), "")


@lru_cache(maxsize=64)
def _estimator(machine: HostText, nodes: int) -> UncontendedTimer:
    """Timer of a machine, which keeps times: rows of a table differ in batch, not in buckets."""
    return UncontendedTimer(make_machine(_topology(machine, nodes), load_library("nccl")))


@lru_cache(maxsize=512)
def _step_s(training: TrainingRow) -> tuple[int, float]:
    """GPUs, and time of one step; seconds."""
    topology = _topology(training.machine, training.nodes)
    gpu = topology.gpu
    precision = training.precision
    if precision == "fp32" and gpu.generation in _SINCE_TF32 and "tf32" in gpu.peak_flops:
        precision = "tf32"  # NVIDIA's containers, in which these ran, set it
    times = layer_times(
        zoo.build_model(training.model, sequence_length=training.sequence_length),
        gpu,
        batch=training.batch,
        precision=precision,
        optimizer="adam" if training.model.startswith("bert") else "sgd-momentum",
        channels_last=training.channels_last,
        fused_attention=False,
    )
    ranks = len(topology.ranks)
    if ranks == 1:
        return 1, step_s(times)
    timer = _estimator(training.machine, training.nodes)
    request = StepRequest(
        zoo.build_model(training.model, sequence_length=training.sequence_length),
        times,
        ranks,
        training.batch,
        comm_workers=timer.machine.library.workers,
        kernel_s=gpu.kernel_overhead_s,
    )
    plan = ddp_plan(request, DdpOptions(bucket_cap_bytes=training.cap_bytes))
    return ranks, simulate(plan, timer.machine, steps=3, timer=timer).step_time_s


UNSTATED_BATCH = 256
"""Samples per step where a table does not say: large enough to fill the GPU, as they are tuned."""


def single_dataset(path: Path, faults: list[Fault]) -> Dataset | None:
    """Predict the rows of ``single_gpu.csv``; None if there is no such table."""
    if not path.is_file():
        return None
    cases: list[Case] = []
    omitted: dict[str, int] = {}
    for record in read_table(path, faults):
        try:
            cases.append(_single_gpu_case(record.cells))
        except PerfmodelError as error:
            reason = f"model or GPU is not known: {one_line(error, 100)}"
            omitted[reason] = omitted.get(reason, 0) + 1
    if not cases:
        return None
    return Dataset("single-gpu", "Single-GPU training throughput", cases, omitted)


def _single_gpu_case(cells: Mapping[str, str]) -> Case:
    batch = int(cells.get("batch") or UNSTATED_BATCH)
    length = cells.get("sequence_length")
    times = layer_times(
        zoo.build_model(cells["model"], sequence_length=int(length) if length else None),
        load_gpu(cells["gpu"]),
        batch=batch,
        precision=cells["precision"],
        optimizer=cells.get("optimizer") or "sgd-momentum",
        channels_last=cells.get("channels_last") == "1",
        fused_attention=cells.get("fused_attention") != "0",
    )
    name = f"{cells['model']}, {cells['gpu']}, batch {batch}, {cells['precision']}"
    published = float(cells["samples_per_s"])
    return Case(name, published, batch / step_s(times), "samples/s", cells.get("source", ""))
