"""A row of a published training table as the model understands it.

A row can be expressed if its model is in the zoo, its batch is stated, it was trained with
PyTorch's DistributedDataParallel (or Horovod's all-reduce of the same gradients) and its machine is
one that `perfmodel.validate.sweeps.match` knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from perfmodel.errors import InputError
from perfmodel.topology.from_text.gpu_text import says_nothing
from perfmodel.topology.from_text.match_template import HostText, read_host
from perfmodel.validate.sweeps.match import one_line

_MODELS = (
    (r"^(?:.*/)?resnet-?_?50(?:[ _-]?v?1\.?5| imagenet)?$", "resnet50", None),
    (r"^(?:.*/)?resnet-?101$", "resnet101", None),
    (r"^(?:.*/)?resnet-?152$", "resnet152", None),
    (r"^(?:.*/)?resnet-?18$", "resnet18", None),
    (r"^vgg-?16$", "vgg16", None),
    (r"^inception-?v3$", "inception-v3", None),
    (r"^bert(?:-base)?$", "bert-base", 128),
)
"""Spelling of a model, its name in the zoo, and the sequence length of that table where it has one:
Phase 1 of BERT's pre-training uses 128 tokens (Devlin et al. 2018)."""

_STRATEGIES = (
    (r"(?:ddp(?: allreduce)?|(?:nccl )?allreduce(?: data parallel)?)$", None),
    (r"bsp-a2a: allreduce, no overlap$", 1e15),
    (r"wfbp-a2a: allreduce with overlap per tensor\b", 1.0),
)
"""Spelling of a strategy, and the bucket cap with which DDP does the same (None: its default): all
gradients at once after backward (no overlap), or every tensor as soon as it is ready."""
_PRECISIONS = {
    "fp32": "fp32", "tf32": "tf32", "fp16": "fp16", "fp16/amp": "fp16", "mixed": "fp16",
    "amp": "fp16", "bf16": "bf16",
}  # fmt: skip
_CHANNELS_LAST = "nvidia_dle"
"""NVIDIA's own convolutional examples run channels last in mixed precision (their README)."""


_OF_THE_JOB = ("gavel", "lambda")
"""Tables whose batch is that of all GPUs together (their companion tables say so)."""
_BOTH_FORMS = {"v100", "p100", "a100", "h100", "h200"}
"""GPUs that are sold with NVLink and without, so that the name alone leaves the links open."""
_METRICS = {"throughput", "rate", "step_time", "p50_s"}


class UnsupportedRow(Exception):
    """The row cannot be expressed; the text says why."""


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A row as the model understands it."""

    model: str
    sequence_length: int | None
    precision: str
    batch: int
    machine: HostText
    nodes: int
    channels_last: bool
    cap_bytes: float | None = None


def parse_row(cells: Mapping[str, str]) -> TrainingRow:
    """Read a row of a training table.

    Raises
    ------
    UnsupportedRow
        It cannot be expressed.
    """
    framework = cells.get("framework", "").lower()
    if "torch" not in framework:
        raise UnsupportedRow(
            f"another framework than PyTorch, with other kernels: {framework[:24]}"
        )
    if cells["metric"] not in _METRICS or not _positive(cells["value"]):
        raise UnsupportedRow(f"no step time or throughput: {cells['metric']!r}")
    cap_bytes = _cap_bytes(cells.get("sync_mode", ""))
    model, length = _model(cells["model"])
    nodes, gpus = layout_of(cells)
    machine = _machine(cells, nodes, gpus)
    precision = _PRECISIONS.get(cells.get("precision", "").lower())
    if precision is None:
        raise UnsupportedRow(f"precision is not modelled: {cells.get('precision', '')[:24]}")
    batch = _batch(cells, gpus * nodes)
    from_nvidia = cells.get("dataset", "").startswith(_CHANNELS_LAST)
    last = from_nvidia and precision == "fp16" and model.startswith("resnet")
    return TrainingRow(model, length, precision, batch, machine, nodes, last, cap_bytes)


def layout_of(cells: Mapping[str, str]) -> tuple[int, int]:
    """Nodes and GPUs of each.

    Raises
    ------
    UnsupportedRow
        Nodes differ, or nothing is said of what joins them.
    """
    nodes, each = cells.get("nodes") or "1", cells.get("gpus_per_node") or ""
    shares = set(re.split(r"\+", each or cells.get("gpus_total") or "1"))
    if len(shares) > 1 or not all(re.fullmatch(r"\d+(?:\.0)?", x) for x in (*shares, nodes)):
        raise UnsupportedRow("not as many GPUs on every node")
    if "spread over" in cells.get("interconnect", "") and cells.get("gpus_total") not in {"1", ""}:
        raise UnsupportedRow("network is not named")
    return int(float(nodes)), int(float(shares.pop()))


def _positive(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False


def _cap_bytes(strategy: str) -> float | None:
    """Bucket cap with which DDP does what a strategy says; None: its default."""
    folded = strategy.lower().strip()
    for pattern, cap in _STRATEGIES:
        if re.match(pattern, folded):
            return cap
    raise UnsupportedRow(f"strategy cannot be expressed: {strategy[:48]}")


def _model(name: str) -> tuple[str, int | None]:
    """Name in the zoo, and sequence length if the table has one of its own."""
    folded = name.lower().strip()
    for pattern, zoo_name, length in _MODELS:
        if re.match(pattern, folded):
            return zoo_name, length
    raise UnsupportedRow(f"model is not in the zoo: {name[:40]}")


def _batch(cells: Mapping[str, str], ranks: int) -> int:
    """Samples of one GPU and step."""
    text, table = cells.get("batch_per_gpu", ""), cells.get("dataset", "")
    if table.startswith("dlperf") and cells["model"].lower().startswith("bert"):
        raise UnsupportedRow(
            "its head scores every position, a third more work than BERT's pre-training"
        )
    if not re.fullmatch(r"\d+(?:\.0)?", text) or not float(text):
        raise UnsupportedRow("batch per GPU is not stated")
    batch = int(float(text)) // (ranks if table.startswith(_OF_THE_JOB) else 1)
    if not batch:
        raise UnsupportedRow("fewer samples than GPUs")
    return batch


def _machine(cells: Mapping[str, str], nodes: int, gpus: int) -> HostText:
    """Read one host from the columns of the GPU and of the interconnect."""
    inside, _, between = cells.get("interconnect", "").partition(";")
    network = between or inside if nodes > 1 else None
    try:
        host = read_host(
            cells["gpu"],
            gpus=gpus,
            intra=f"{cells['gpu']}; {inside}",
            network=network,
            usual_network="infiniband",
        )
    except InputError as error:
        if says_nothing(cells["gpu"]) or not re.search(r"\d", cells["gpu"]):  # "a cloud GPU"
            raise UnsupportedRow("GPU is not named") from None
        raise UnsupportedRow(f"machine or model is not known: {one_line(error, 90)}") from None
    open_form = not host.gpu.form_stated and host.gpu.part.spelled in _BOTH_FORMS
    if gpus > 1 and open_form and not host.intra.stated:
        raise UnsupportedRow("links between the GPUs are not stated")
    return host
