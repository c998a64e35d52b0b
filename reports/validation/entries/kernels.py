"""Recorded grids of single kernels: products in 16 bits and attention, forward."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from perfmodel.arrays import Z80
from perfmodel.files import read_yaml
from perfmodel.topology.model import Gpu
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload import kernels as package
from reports.kernels.records import Record, kernel_s
from reports.validation.entries.entry import Candidate, Collected, LeftOut, Prediction, rows_of
from reports.validation.entries.published_runs import NotExpressible, readings

FOLDER, GROUP = "strategies", "kernel"
PRODUCTS, ATTENTION = "gemm_grid", "attention_grid"
EVERY = {PRODUCTS: 9, ATTENTION: 4}
"""Of rows of a grid that can be predicted one in so many is: neighbours tell the same."""
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}
SPREAD = Path(package.__file__).with_name("spread.yaml")


def kernels_in(folder: Path, seen: Container[str] = ()) -> Collected:
    """Find the kernels of a folder's grids.

    `seen`: tables ("gemm_grid, GPU, library version") that were looked at before.
    """
    found = Collected()
    for grid, record_of in (PRODUCTS, _product), (ATTENTION, _attention):
        path = folder / FOLDER / f"{grid}.csv"
        tables: dict[str, list[Mapping[str, str]]] = {}
        for cells in rows_of(path):
            name = f"{grid}, {cells['gpu']}, {cells['framework']} {cells['version']}"
            if name not in seen:
                tables.setdefault(name, []).append(cells)
        for name, rows in tables.items():
            _add_table(found, name, rows, EVERY[grid], record_of)
    return found


def _add_table(
    found: Collected,
    name: str,
    rows: Sequence[Mapping[str, str]],
    every: int,
    record_of: Callable[[Mapping[str, str], str], Record],
) -> None:
    records = []
    for cells in rows:
        try:
            records.append((cells["id"], record_of(cells, name)))
        except NotExpressible as error:
            found.left_out.append(LeftOut(name, str(error)))
    for row, record in records[::every]:
        key = (name, row, "time")
        found.candidates.append(
            Candidate(frozenset({key}), partial(predict_kernel, row, record), 0.0)
        )
    if skipped := len(records) - len(records[::every]):
        reason = f"one in {every} is predicted: neighbours of a grid tell the same"
        found.left_out.append(LeftOut(name, reason, skipped))


def predict_kernel(row: str, record: Record) -> Sequence[Prediction]:
    """Predict a kernel, with the spread of its kind as interval."""
    gpu = load_gpu(record.gpu)
    time_s = kernel_s(record, gpu)
    half = Z80 * log_sd(record.kind, gpu)
    return [
        Prediction(
            "kernel",
            GROUP,
            record.table,
            row,
            "time",
            "s",
            time_s,
            time_s * math.exp(-half),
            time_s * math.exp(half),
            float(record.cells["time_us"]) * 1e-6,
        )
    ]


def log_sd(kind: str, gpu: Gpu) -> float:
    """How far logarithms of recorded kernels of a kind lie from predicted ones.

    Of products that of GPUs without measured efficiency, where it is none's own.
    """
    spread: Any = read_yaml(SPREAD)["kinds"][kind]
    unseen = gpu.efficiency_assumed or "matmul_efficiency" in gpu.estimated
    return float(spread["unseen" if unseen and "unseen" in spread else "seen"]["log_sd"])


def _gpu_and_precision(cells: Mapping[str, str]) -> tuple[str, str]:
    known = readings()["gpus"].get(cells["gpu"])
    if known is None:
        raise NotExpressible("GPU is not known")
    precision = PRECISIONS.get(cells["dtype"])
    if precision is None:
        reason = "a layer in 8 bits or less, with its inference library's cast"
        raise NotExpressible(reason)
    return known["gpu"], precision


def _product(cells: Mapping[str, str], table: str) -> Record:
    gpu, precision = _gpu_and_precision(cells)
    shape = {"rows": cells["m"], "columns": cells["n"], "depth": cells["k"]}
    common = {"precision": precision, "time_us": cells["time_us"]}
    return Record(f"product {precision}", gpu, table, shape | common)


def _attention(cells: Mapping[str, str], table: str) -> Record:
    gpu, precision = _gpu_and_precision(cells)
    shape = {
        "tokens": cells["seq_len"],
        "heads": cells["heads"],
        "kv_heads": cells["kv_heads"],
        "head_size": cells["head_dim"],
        "causal": cells["causal"],
        "sequences": cells["batch"],
        "fused": "1",
        "passes": "forward" if cells["pass"] == "fwd" else "both",  # noqa: S105
    }
    common = {"precision": precision, "time_us": cells["time_us"]}
    return Record("attention", gpu, table, shape | common)
