"""Recorded kernels and steps, and what the model says of each."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

from perfmodel.topology.model import Gpu
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload.kernels.device import Device, KernelConstants, make_device
from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.kernels.kernel_times import (
    fused_attention_s,
    norm_s,
    product_s,
    unfused_products_s,
)
from perfmodel.workload.kernels.shapes import Attention, MatrixProduct
from perfmodel.workload.model import ITEM_BYTES
from perfmodel.workload.roofline import layer_times, step_s
from perfmodel.workload.zoo import bert

DATA = Path(__file__).parents[1] / "validation" / "data"


@dataclass(frozen=True)
class Record:
    """One row: its kind, its GPU and table, and the columns."""

    kind: str
    gpu: str
    table: str
    cells: Mapping[str, str]


def read(name: str, folder: str = "kernels") -> Iterator[Mapping[str, str]]:
    """Rows of a table."""
    with (DATA / folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def product_records() -> list[Record]:
    """Matrix products, by precision: "product fp32"."""
    return [
        Record(f"product {cells['precision']}", cells["gpu"], cells["source"].split(",")[0], cells)
        for cells in read("products")
    ]


def attention_records() -> list[Record]:
    """Attention, fused and not."""
    return [
        Record(
            "attention" if cells["fused"] == "1" else "unfused attention",
            cells["gpu"],
            cells["source"].split(",")[0],
            cells,
        )
        for cells in read("attention")
    ]


def memory_records() -> list[Record]:
    """Kernels that memory limits, by kind."""
    return [
        Record(cells["kind"], cells["gpu"], cells["source"].split(",")[0], cells)
        for cells in read("memory_bound")
    ]


def bert_records() -> list[Record]:
    """Whole steps of BERTs that are not in the zoo."""
    return [Record("", cells["gpu"], cells["table"], cells) for cells in read("steps")]


def kernel_s(record: Record, gpu: Gpu, constants: KernelConstants | None = None) -> float:
    """Predicted time of a kernel; seconds."""
    cells = record.cells
    if record.kind.startswith("product"):
        shape = MatrixProduct(int(cells["rows"]), int(cells["columns"]), int(cells["depth"]))
        return product_s(shape, _device(gpu, cells["precision"], constants))
    if "attention" in record.kind:
        return _attention_s(cells, _device(gpu, cells["precision"], constants))
    item, nbytes = int(cells["item_bytes"]), float(cells["bytes"])
    device = _device(gpu, "fp32", constants)
    if record.kind == "norm":
        return device.ramp_s + norm_s(nbytes, item, device, backward=cells["passes"] == "backward")
    return device.ramp_s + nbytes / device.memory_Bps


def _device(gpu: Gpu, precision: str, constants: KernelConstants | None) -> Device:
    device = make_device(gpu, precision, ITEM_BYTES[precision])
    if constants is None:
        return device
    ratio = device.tile_edge / device.constants.product.tile_edge
    product = constants.product
    return replace(
        device,
        constants=constants,
        tile_edge=product.tile_edge * ratio,
        prologue=product.prologue_bytes / device.item_bytes * ratio,
    )


def _attention_s(cells: Mapping[str, str], device: Device) -> float:
    shape = Attention(
        int(cells["tokens"]),
        int(cells["heads"]),
        int(cells["kv_heads"]),
        int(cells["head_size"]),
        cells["causal"] == "1",
        int(cells["sequences"]),
    )
    backward = cells["passes"] == "both"
    if cells["fused"] == "1":
        forward_s = fused_attention_s(shape, device)
        return forward_s + backward * fused_attention_s(shape, device, backward=True)
    scores = shape.sequences * shape.heads * shape.tokens**2
    # the benchmark has no dropout, and a mask only where attention is causal
    passes = (
        device.constants.attention.unfused_passes - passes_of("dropout") - 2 * (not shape.causal)
    )
    traffic_s = passes * device.item_bytes * scores / device.memory_Bps
    total_s = unfused_products_s(shape, device) + traffic_s
    if backward:
        total_s += unfused_products_s(shape, device, backward=True)
        total_s += traffic_s * device.constants.elementwise_backward
    return total_s


def bert_samples_per_s(record: Record) -> float:
    """Predicted throughput of a step of a BERT."""
    cells, batch = record.cells, int(record.cells["batch"])
    shape = bert.BertShape(*(int(cells[name]) for name in ("layers", "width", "heads")))
    with patch.dict(bert.SHAPES, {"recorded": shape}):
        workload = bert.bert(
            "recorded", dtype="fp32", sequence_length=int(cells["sequence_length"])
        )
    times = layer_times(
        workload,
        load_gpu(record.gpu),
        batch=batch,
        precision=cells["precision"],
        optimizer=cells["optimizer"],
        optimizer_kernels="fused",
        fused_attention=cells["fused_attention"] == "1",
        compiled=cells["compiled"] == "1",
    )
    return batch / step_s(times)


def gpus(records: Sequence[Record]) -> list[str]:
    """GPUs of records, sorted."""
    return sorted({record.gpu for record in records})
