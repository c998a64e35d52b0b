"""A row of a published training table as the model understands it.

A row can be expressed if its model is in the zoo, its batch is stated, it was trained with
PyTorch's DistributedDataParallel (or Horovod's all-reduce of the same gradients) and its machine is
one that `perfmodel.topology.from_text` knows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from perfmodel.errors import InputError
from perfmodel.scenario.strategies.strategy import HorovodStrategy
from perfmodel.topology.from_text.gpu_text import says_nothing
from perfmodel.topology.from_text.match_template import HostText, read_host
from perfmodel.training.ddp.options import FIRST_BUCKET_BYTES, DdpOptions, cap_bytes
from perfmodel.validate.match import MOST_RANKS, one_line
from reports.validation.trainings.rows.errata import correct
from reports.validation.trainings.rows.model_names import NamedModel, read_model
from reports.validation.trainings.rows.software import StatedSoftware, read_software

_ALL_AT_ONCE = 1e15
"""Bucket cap that no model reaches: one all-reduce when backward has ended."""
_STRATEGIES = (
    (
        r"(?:(?:py)?torch )?(?:ddp|distributed ?data ?parallel)(?:,? \(?(?:all-?reduce|nccl)\)?)*$",
        None,
    ),
    (r"(?:nccl |ring )?all-?reduce(?: data parallel)?$", None),
    (r"all-?reduce after backward$", _ALL_AT_ONCE),
    (r"bsp-a2a: allreduce, no overlap$", _ALL_AT_ONCE),
    (r"wfbp-a2a: allreduce with overlap per tensor\b", 1.0),
)
"""Spelling of a strategy, and the bucket cap with which DDP does the same (None: its default): all
gradients at once after backward (no overlap), or every tensor as soon as it is ready."""
_PER_TENSOR = HorovodStrategy.model_validate(
    {"kind": "horovod", "fusion_threshold": "0 B", "cycle_time": "5 ms"}
)
"""Horovod that fuses nothing; up to 0.20 the default of a cycle is 5 ms (horovod/horovod, release
notes of 0.21.0)."""
_PRECISIONS = (
    (r"fp8|float8|int\d|fp4", None),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|half|amp|mixed", "fp16"),
    (r"tf32", "tf32"),
    (r"fp32|float32|single", "fp32"),
)
"""Spelling of a precision, the first that fits; None: not modelled."""
_CHANNELS_LAST = "nvidia_dle"
"""NVIDIA's own convolutional examples run channels last in mixed precision (their README)."""
_OF_THE_JOB = ("gavel", "lambda")
"""Tables whose batch is that of all GPUs together (their companion tables say so)."""
_BOTH_FORMS = {"v100", "p100", "a100", "h100", "h200"}
"""GPUs that are sold with NVLink and without, so that the name alone leaves the links open."""
_PERCENTILES = ("p50_s", "p75_s", "p90_s", "p95_s")
_STEP_TIMES = {"step_time", "iteration_time", "time_per_step", *_PERCENTILES}
_METRICS = {"throughput", "rate", *_STEP_TIMES}
DEFAULT_CAP_MB = 25.0
_GROUPED = "grouped convolutions, which the roofline takes for large matrix products"


class UnsupportedRow(Exception):
    """The row cannot be expressed; the text says why."""


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A row as the model understands it."""

    model: NamedModel
    precision: str
    batch: int
    """Samples of a GPU and step."""
    machine: HostText
    shares: tuple[int, ...]
    """GPUs that each node gives."""
    channels_last: bool
    options: DdpOptions
    software: StatedSoftware
    fused_optimizer: bool = False
    """Whether the optimizer is one of Apex."""
    unlike: str = ""
    """Why compute is not that of the zoo's model; empty: it is."""
    horovod: HorovodStrategy | None = None
    """Of Horovod, where that reduces gradients instead of DDP."""

    @property
    def gpus(self) -> int:
        """GPUs of all nodes together."""
        return sum(self.shares)


def parse_row(cells: Mapping[str, str]) -> TrainingRow:
    """Read a row of a training table.

    Raises
    ------
    UnsupportedRow
        It cannot be expressed.
    """
    cells = correct(cells)
    framework = cells.get("framework", "").lower()
    if "torch" not in framework:
        raise UnsupportedRow(
            f"another framework than PyTorch, with other kernels: {framework[:24]}"
        )
    if cells["metric"] not in _METRICS or not _positive(cells["value"]):
        raise UnsupportedRow(f"no step time or throughput: {cells['metric']!r}")
    shares = shares_of(cells)
    software = read_software(cells)
    model = read_model(cells)
    if model is None:
        raise UnsupportedRow(f"model is not in the zoo: {cells['model'][:40]}")
    options = _options(cells, software, sum(shares))
    options = options.model_copy(update={"accumulate": _accumulate(cells)})
    if model.name.startswith("bert") and _is_nvidias(cells):
        options = options.model_copy(update={"bucket_cap": _ALL_AT_ONCE})
    machine = _machine(cells, shares)
    precision = _precision(cells.get("precision", ""))
    batch = _batch(cells, sum(shares))
    from_nvidia = cells.get("dataset", "").startswith(_CHANNELS_LAST)
    last = from_nvidia and precision == "fp16" and model.name.startswith("resnet")
    unlike = _GROUPED if model.name.startswith("resnext") else cells.get("unlike", "")
    return TrainingRow(
        model,
        precision,
        batch,
        machine,
        shares,
        last,
        options,
        software,
        fused_optimizer=_is_nvidias(cells) and model.name.startswith("bert"),
        unlike=unlike,
        horovod=_PER_TENSOR if "horovod wfbp" in cells.get("sync_mode", "").lower() else None,
    )


def _is_nvidias(cells: Mapping[str, str]) -> bool:
    """Whether it ran NVIDIA's DeepLearningExamples.

    Their BERT has Apex's FusedLAMB, and its all-reduce does not overlap with backward:
    ``run_pretraining.py`` calls Apex' DistributedDataParallel with messages of 250 million
    elements, more than the model has, or reduces one flat buffer after backward
    (``--allreduce_post_accumulation``).
    """
    text = f"{cells.get('dataset', '')}; {cells.get('framework', '')}".lower()
    return _CHANNELS_LAST in text or "deeplearningexamples" in text.replace(" ", "")


def _accumulate(cells: Mapping[str, str]) -> int:
    """Micro-steps of a step, of which the last one communicates."""
    text = cells.get("accumulate") or "1"
    if not re.fullmatch(r"[1-9]\d{0,4}", text):
        raise UnsupportedRow(f"micro-steps of a step are not a number: {text[:24]}")
    return int(text)


def samples_per_s(cells: Mapping[str, str], row: TrainingRow) -> float:
    """Published samples per second of all GPUs together."""
    value, unit = float(cells["value"]), cells.get("unit", "").lower()
    if cells["metric"] in _STEP_TIMES:
        step_s = value / 1e3 if unit == "ms" else value
        return row.batch * row.gpus / step_s
    if cells["metric"] == "rate":  # iterations per second
        return value * row.batch * row.gpus
    each = re.search(r"per[ -]gpu|/gpu", f"{unit} {cells['metric']}".lower())
    return value * row.gpus if each else value


def shares_of(cells: Mapping[str, str]) -> tuple[int, ...]:
    """GPUs of each node.

    Raises
    ------
    UnsupportedRow
        How they are spread is not stated, or nothing is said of what joins them.
    """
    nodes, each = cells.get("nodes") or "1", cells.get("gpus_per_node") or ""
    parts = re.split(r"\+", each or cells.get("gpus_total") or "1")
    if not all(re.fullmatch(r"\d+(?:\.0)?", part) for part in (*parts, nodes)):
        raise UnsupportedRow("how many GPUs each node has is not stated")
    shares, count = tuple(int(float(part)) for part in parts), int(float(nodes))
    if sum(shares) * count > MOST_RANKS:
        raise UnsupportedRow(f"more than {MOST_RANKS:,} GPUs")
    if len(shares) == 1:
        shares *= count
    if not shares or len(shares) != count or not all(shares):
        raise UnsupportedRow("how many GPUs each node has is not stated")
    if "spread over" in cells.get("interconnect", "") and cells.get("gpus_total") not in {"1", ""}:
        raise UnsupportedRow("network is not named")
    return shares


def _positive(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


def _options(cells: Mapping[str, str], software: StatedSoftware, gpus: int) -> DdpOptions:
    """What DDP was called with."""
    strategy = cells.get("sync_mode", "")
    folded = strategy.lower().strip()
    if folded == "no ddp" and gpus == 1:
        return DdpOptions()
    cap = next((cap for pattern, cap in _STRATEGIES if re.match(pattern, folded)), -1.0)
    if cap is not None and cap < 0:
        raise UnsupportedRow(f"strategy cannot be expressed: {strategy[:48]}")
    stated = cells.get("bucket_cap_mb", "")
    if cap is not None or not _positive(stated):
        return DdpOptions(bucket_cap=cap)
    cap_mb = float(stated)
    if software.keeps_first_bucket:
        small = min(FIRST_BUCKET_BYTES, cap_bytes(cap_mb))
        return DdpOptions(bucket_cap=cap_bytes(cap_mb), first_bucket=small)
    # a table that lists the default states it, and does not call DDP with it
    default = cap_mb == DEFAULT_CAP_MB
    return DdpOptions(bucket_cap=None if default else cap_bytes(cap_mb))


def _precision(text: str) -> str:
    for pattern, precision in _PRECISIONS:
        if re.search(pattern, text.lower()):
            if precision is None:
                break
            return precision
    raise UnsupportedRow(f"precision is not modelled: {text[:24]}")


def _batch(cells: Mapping[str, str], ranks: int) -> int:
    """Samples of one GPU and step."""
    text, table = cells.get("batch_per_gpu", ""), cells.get("dataset", "")
    if not re.fullmatch(r"\d+(?:\.0)?", text) or not float(text):
        raise UnsupportedRow("batch per GPU is not stated")
    batch = int(float(text)) // (ranks if table.startswith(_OF_THE_JOB) else 1)
    if not batch:
        raise UnsupportedRow("fewer samples than GPUs")
    return batch


def _machine(cells: Mapping[str, str], shares: tuple[int, ...]) -> HostText:
    """Read one host from the columns of the GPU and of the interconnect."""
    inside, _, between = cells.get("interconnect", "").partition(";")
    network = between or inside if len(shares) > 1 else None
    try:
        host = _read_host(cells["gpu"], max(shares), inside, network, cells.get("framework", ""))
    except InputError as error:
        if says_nothing(cells["gpu"]) or not re.search(r"\d", cells["gpu"]):  # "a cloud GPU"
            raise UnsupportedRow("GPU is not named") from None
        raise UnsupportedRow(f"machine or model is not known: {one_line(error, 90)}") from None
    open_form = not host.gpu.form_stated and host.gpu.part.spelled in _BOTH_FORMS
    if max(shares) > 1 and open_form and not host.intra.stated:
        raise UnsupportedRow("links between the GPUs are not stated")
    return host


@lru_cache(maxsize=512)
def _read_host(gpu: str, gpus: int, inside: str, network: str | None, framework: str) -> HostText:
    """Rows of a table differ in batch and size, and seldom in their machine."""
    return read_host(
        gpu,
        gpus=gpus,
        intra=f"{gpu}; {inside}",
        network=network,
        usual_network="infiniband",
        remarks=framework,
    )


# ---------------------------------------------------------------- tables in columns of their own


def in_common_columns(cells: Mapping[str, str]) -> dict[str, str]:
    """Return a row of PyTorch's own DDP benchmark in the columns of the other tables.

    Its time is the median, or the lowest percentile that is there.
    """
    if "metric" in cells or "hardware" not in cells:
        return dict(cells)
    metric = next((name for name in _PERCENTILES if cells.get(name)), _PERCENTILES[0])
    return dict(cells) | {
        "framework": cells.get("framework") or "PyTorch",
        "gpu": cells["hardware"],
        "interconnect": cells["hardware"],
        "sync_mode": cells.get("mode", "ddp"),
        "metric": metric,
        "value": cells.get(metric, ""),
        "precision": cells.get("precision") or "FP32",
        "dataset": cells.get("run", ""),
    }
