"""Published single-GPU training throughputs beside the roofline's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perfmodel.errors import Fault, PerfmodelError
from perfmodel.topology.gpus import load_gpu
from perfmodel.validate.cells import read_table
from perfmodel.validate.matching import short
from perfmodel.validate.trainings import Case, Dataset
from perfmodel.workload import zoo
from perfmodel.workload.roofline import layer_times, step_s

UNSTATED_BATCH = 256
"""Samples per step where a table does not say: large enough to fill the GPU, as they are tuned."""


def single_dataset(path: Path, faults: list[Fault]) -> Dataset | None:
    """Predict the rows of ``single_gpu.csv``; None if there is no such table."""
    if not path.is_file():
        return None
    cases: list[Case] = []
    left: dict[str, int] = {}
    for record in read_table(path, faults):
        try:
            cases.append(_case(record.cells))
        except PerfmodelError as error:
            reason = f"model or GPU is not known: {short(error, 100)}"
            left[reason] = left.get(reason, 0) + 1
    if not cases:
        return None
    return Dataset("single-gpu", "Single-GPU training throughput", cases, left)


def _case(cells: Mapping[str, str]) -> Case:
    batch = int(cells.get("batch") or UNSTATED_BATCH)
    length = cells.get("sequence_length")
    times = layer_times(
        zoo.build(cells["model"], sequence_length=int(length) if length else None),
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
