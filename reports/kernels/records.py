"""Recorded kernels and steps, and what the model says of each."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import perfmodel
from perfmodel.topology.model import Gpu
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload.kernels.attention import fused_attention_s, unfused_products_s
from perfmodel.workload.kernels.device import Device, make_device
from perfmodel.workload.kernels.kernel_constants import KernelConstants, kernel_constants
from perfmodel.workload.kernels.memory_bound import norm_s
from perfmodel.workload.kernels.products import product_s
from perfmodel.workload.kernels.shapes import Attention, MatrixProduct
from perfmodel.workload.model import ITEM_BYTES, Workload
from perfmodel.workload.roofline import layer_times, step_s
from perfmodel.workload.zoo import bert, build_model, gpt, llama
from perfmodel.workload.zoo.layers import DROPOUT_PASSES

DATA = Path(perfmodel.__file__).parent / "validate/data"


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
        Record("attention" if cells["fused"] == "1" else "unfused attention", cells["gpu"],
               cells["source"].split(",")[0], cells)
        for cells in read("attention")
    ]  # fmt: skip


def memory_records() -> list[Record]:
    """Kernels that memory limits, by kind."""
    return [
        Record(cells["kind"], cells["gpu"], cells["source"].split(",")[0], cells)
        for cells in read("memory_bound")
    ]


def step_records() -> list[Record]:
    """Whole steps: of the published table, and of this folder's."""
    published = [
        Record("", cells["gpu"], cells["source"].split(",")[0].split(" (")[0], cells)
        for cells in read("single_gpu", "")
        if "llm-foundry" not in cells["source"]
    ]
    others = [Record("", cells["gpu"], cells["table"], cells) for cells in read("steps")]
    return [replace(record, kind=_step_kind(record.cells)) for record in (*published, *others)]


def _step_kind(cells: Mapping[str, str]) -> str:
    convolutional = cells["model"].startswith(("resnet", "vgg", "inception", "alexnet"))
    network = "convolutional" if convolutional else "transformer"
    return f"step {network} {cells['precision']}"


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
        device, constants=constants, tile_edge=product.tile_edge * ratio,
        prologue=product.prologue_bytes / device.item_bytes * ratio,
    )  # fmt: skip


def _attention_s(cells: Mapping[str, str], device: Device) -> float:
    shape = Attention(
        int(cells["tokens"]), int(cells["heads"]), int(cells["kv_heads"]), int(cells["head_size"]),
        cells["causal"] == "1", int(cells["sequences"]),
    )  # fmt: skip
    backward = cells["passes"] == "both"
    if cells["fused"] == "1":
        forward_s = fused_attention_s(shape, device)
        return forward_s + backward * fused_attention_s(shape, device, backward=True)
    scores = shape.sequences * shape.heads * shape.tokens**2
    # the benchmark has no dropout, and a mask only where attention is causal
    passes = device.constants.attention.unfused_passes - DROPOUT_PASSES - 2 * (not shape.causal)
    traffic_s = passes * device.item_bytes * scores / device.memory_Bps
    total_s = unfused_products_s(shape, device) + traffic_s
    if backward:
        total_s += unfused_products_s(shape, device, backward=True)
        total_s += traffic_s * device.constants.elementwise_backward
    return total_s


def samples_per_s(record: Record, constants: KernelConstants | None = None) -> float:
    """Predicted throughput of a step."""
    cells = record.cells
    batch = int(float(cells["batch"] or 256))
    with patch(
        "perfmodel.workload.kernels.device.kernel_constants",
        lambda: constants or kernel_constants(),
    ):
        times = layer_times(
            _workload(cells),
            load_gpu(record.gpu),
            batch=batch,
            precision=cells["precision"],
            optimizer=cells.get("optimizer") or "sgd-momentum",
            channels_last=cells.get("channels_last") == "1",
            fused_attention=cells.get("fused_attention") != "0",
            compiled=cells.get("compiled") == "1",
        )
    return batch / step_s(times)


def _workload(cells: Mapping[str, str]) -> Workload:
    length = int(cells["sequence_length"]) if cells.get("sequence_length") else None
    family = cells.get("family")
    if not family:
        return build_model(cells["model"], sequence_length=length)
    layers, width, heads, kv, mlp, vocabulary = (
        int(cells[name])
        for name in ("layers", "width", "heads", "kv_heads", "mlp_width", "vocabulary")
    )
    length = length or 0
    if family == "bert":
        with patch.dict(bert.SHAPES, {"recorded": bert.BertShape(layers, width, heads)}):
            return bert.bert("recorded", dtype="fp32", sequence_length=length)
    if family == "gpt":
        with patch.dict(gpt.SHAPES, {"recorded": gpt.GptShape(layers, width, heads, length)}):
            return gpt.gpt("recorded", dtype="fp32", sequence_length=length)
    shape = llama.LlamaShape(layers, width, heads, kv, mlp, vocabulary, length)
    with patch.dict(llama.SHAPES, {"recorded": shape}):
        return llama.llama("recorded", dtype="fp32", sequence_length=length)


def gpus(records: Sequence[Record]) -> list[str]:
    """GPUs of records, sorted."""
    return sorted({record.gpu for record in records})
