"""Write what a trace says as files: a model with its layer times, its machine, a scenario."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.errors import Fault, InputError, raise_faults
from perfmodel.files import write_atomically, write_json, yaml_text
from perfmodel.memo import applying
from perfmodel.topology.from_text.gpu_text import read_gpu
from perfmodel.topology.model import Gpu
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.traces.model import Call, Gradient, RankTrace
from perfmodel.traces.rebuild.layer_profile import (
    BucketTimes,
    LinkFit,
    Profile,
    fit_links,
    node_document,
)
from perfmodel.training.ddp.buckets import ddp_buckets
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.workload import load_workload
from perfmodel.workload.model import ITEM_BYTES
from perfmodel.workload.readers.csv_tables import TRAINABLE
from perfmodel.workload.readers.parameter_file import read_model

MODEL, MACHINE, SCENARIO = "model.yaml", "machine.yaml", "scenario.yaml"
CPU_RANK = "cpu-process"

DATA_PARALLEL = frozenset({"all_reduce", "broadcast", "barrier"})
"""Collectives of DistributedDataParallel; others split something that a file of layers does not."""

SHARDED = frozenset({"all_gather", "reduce_scatter", "barrier"})
"""Collectives of FSDP that shards over all ranks; over some of them it all-reduces, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A scenario with the times and the machine of a trace.

    `documents`: by file name; `comments`: the first line of each file.
    `fit`: of the links; None: one rank, or nothing recorded.
    """

    documents: Mapping[str, Mapping[str, Any]]
    comments: Mapping[str, str]
    notes: tuple[str, ...]
    fit: LinkFit | None
    gradients: tuple[Gradient, ...]

    def text(self, name: str) -> str:
        """Return the content of one of the files."""
        return yaml_text(dict(self.documents[name]), self.comments[name])

    def write(self, folder: Path) -> Path:
        """Write the files and return the path of the scenario."""
        for name in self.documents:
            write_atomically(folder / name, self.text(name))
        return folder / SCENARIO


def rebuild(
    ranks: Sequence[RankTrace],
    profile: Profile,
    *,
    gpu: str | None = None,
    batch: int | None = None,
    model: str | None = None,
) -> Rebuilt:
    """Make a model file, a machine and a scenario of the traces of one job.

    `gpu`: in the table of GPUs; by default the one that the trace names.
    `batch`: samples per GPU; by default from shapes, or 1.
    `model`: of the zoo, or a file, that names the gradients.
    Raises `InputError`: training that a list of layers cannot hold, or a GPU or model that does not
        fit.
    """
    first, file = ranks[0], ranks[0].path.name
    _check_strategy(first)
    device = load_gpu(gpu or _gpu_name(first))
    gradients = _named_by_layers(first) if model is None else _named_by_model(first, model)
    model_document = _model_document(first, profile, gradients, device)
    caps = None if first.fsdp else _caps(model_document, profile)
    fit = _fit(first, profile)
    notes = list(dict.fromkeys(note for rank in ranks for note in rank.notes))
    samples = batch or first.batch
    notes += applying(
        (samples is None, "samples of a step are not in the trace: counted as 1 (--batch)")
    )
    return Rebuilt(
        documents={
            MODEL: model_document,
            MACHINE: node_document(
                first.world_size,
                device.name,
                fit,
                f"{'collectives' if first.fsdp else 'all-reduces'} of {file}",
            ),
            SCENARIO: _scenario_document(first, profile, gradients, caps, samples or 1),
        },
        comments={
            MODEL: f"Layers of {file}, in the order of forward, with their measured times.",
            MACHINE: "The machine as recorded: set cluster.node to another one.",
            SCENARIO: f"How long is the step of {file} on this machine, or on another?",
        },
        fit=fit,
        gradients=gradients,
        notes=tuple(notes),
    )


def _fit(trace: RankTrace, profile: Profile) -> LinkFit | None:
    """Fit links at which collectives take as long as recorded.

    An all-gather's size is that of all ranks.
    """
    ranks, shards, is_split = trace.world_size, trace.shard_ranks, trace.fsdp > 0
    rows = [
        *((call, shards, 1 if is_split else 2, 1) for call in profile.buckets),
        *((call, shards, 1, shards) for call in profile.gathers if is_split),
        *((call, ranks // shards, 2, 1) for call in profile.averages if shards < ranks),
    ]
    sizes = [parts * _bytes(call) for call, _, _, parts in rows]
    times = [call.transfer_s for call, *_ in rows]
    if ranks == 1 or not sizes or not all(sizes) or not all(times):
        return None
    return fit_links([row[1] for row in rows], sizes, times, [row[2] for row in rows])


def _check_strategy(trace: RankTrace) -> None:
    step, ranks = trace.steps[-1], trace.world_size
    between_shards = {"all_reduce"} if trace.shard_ranks < ranks else set()
    known = SHARDED | between_shards if trace.fsdp else DATA_PARALLEL
    others = {call.op for step in trace.steps for call in (*step.buckets, *step.others)} - known
    parts = {call.group_size or ranks for call in step.buckets} - {ranks, trace.shard_ranks}
    allowed = "a step of DistributedDataParallel, FSDP or of one GPU, for a scenario"
    shapes = "a trace with record_shapes=True"
    problems = (
        (others, f"{', '.join(sorted(others))} in a step", allowed),
        (
            trace.passes > 1,
            f"{trace.passes} forward passes in a step (accumulated gradients)",
            allowed,
        ),
        (
            not all(gradient.elements for gradient in trace.gradients),
            "neither shapes of gradients nor sizes of messages",
            shapes,
        ),
        (
            trace.fsdp and any(gradient.bucket is None for gradient in trace.gradients),
            "gradients that are in no unit of FSDP",
            f"{shapes} of a step that reduces all gradients",
        ),
        (parts, f"gradients reduced among {min(parts, default=0)} of {ranks} ranks", allowed),
        (
            ranks > 1 and not step.buckets,
            f"no reduction of gradients in backward, of {ranks} ranks",
            allowed,
        ),
    )
    raise_faults(
        [Fault("trace", text, need, str(trace.path)) for holds, text, need in problems if holds]
    )


def _gpu_name(trace: RankTrace) -> str:
    if trace.on_cpu:
        return CPU_RANK
    sized = f"{trace.device} {trace.device_GB}GB"
    for text in (trace.device, sized)[:: 1 if "GB" in trace.device else -1]:
        with suppress(InputError):
            return read_gpu(text).name
    raise InputError(
        Fault("--gpu", f"{trace.device!r} in the trace", "a GPU of the table: --gpu NAME")
    )


# ---------------------------------------------------------------- model


def _named_by_model(trace: RankTrace, model: str) -> tuple[Gradient, ...]:
    """Name gradients as a model does that has the same ones."""
    workload = load_workload(model)
    tensors = [workload.tensors[at] for at in workload.ready_order]
    sizes, own = [tensor.numel for tensor in tensors], [each.elements for each in trace.gradients]
    if sizes != own:
        differ = next(
            (at for at, (size, other) in enumerate(zip(sizes, own, strict=False)) if size != other),
            min(len(sizes), len(own)),
        )
        raise InputError(
            Fault(
                "--model",
                f"{model!r}, of {len(sizes)} tensors, other than the trace from number {differ}",
                f"a model with the {len(own)} gradients in order",
            )
        )
    return tuple(
        replace(gradient, name=tensor.name, shape=tensor.shape)
        for gradient, tensor in zip(trace.gradients, tensors, strict=True)
    )


def _named_by_layers(trace: RankTrace) -> tuple[Gradient, ...]:
    """Name gradients after their units and layers."""
    named = list(trace.gradients)
    for layer in trace.layers:
        shapes = [named[at].shape for at in layer.gradients]
        for position, at in enumerate(layer.gradients):
            bucket = named[at].bucket
            unit = trace.units[bucket] if trace.units and bucket is not None else ""
            named[at] = replace(
                named[at], name=f"{unit}.{layer.name}.{_suffix(shapes, position)}".removeprefix(".")
            )
    return tuple(named)


def _suffix(shapes: Sequence[tuple[int, ...] | None], position: int) -> str:
    dimensions = [len(shape) if shape is not None else 0 for shape in shapes]
    own, matrices = dimensions[position], sum(each > 1 for each in dimensions)
    if matrices == 1 and own > 1:
        return "weight"
    is_bias = matrices == 1 and shapes[position] is not None and dimensions.count(1) == 1
    return "bias" if is_bias else f"parameter{position}"


def _bytes(sized: Gradient | Call | BucketTimes) -> int:
    return (sized.elements or 0) * ITEM_BYTES.get(sized.dtype or "fp32", 4)


def _copy_rate(trace: RankTrace, profile: Profile, gpu: Gpu) -> float:
    """Return the rate at which copies into buckets take as long as recorded.

    Where none were, that of the memory. FSDP's copies are in the times of layers, between which
    they run.
    """
    fastest = gpu.memory_Bps * gpu.memory_efficiency / 2
    if trace.fsdp:
        return 10 * gpu.memory_Bps * gpu.memory_efficiency / 2
    nbytes = sum(map(_bytes, trace.gradients))
    moving_s = float(profile.copied_in_s.sum()) - gpu.kernel_overhead_s * len(trace.gradients)
    return min(nbytes / moving_s, 10 * fastest) if moving_s > 0 else fastest


def _model_document(
    trace: RankTrace, profile: Profile, gradients: Sequence[Gradient], gpu: Gpu
) -> dict[str, Any]:
    copy_Bps, kernel_s = _copy_rate(trace, profile, gpu), gpu.kernel_overhead_s
    backward, tail = profile.backward_s, profile.tail_s
    if trace.world_size > 1 and not trace.fsdp:
        copies = [
            sum(_bytes(gradients[at]) / copy_Bps + kernel_s for at in layer.gradients)
            for layer in trace.layers
        ]
        backward = without(backward, np.array(copies))
        if not trace.views:
            tail -= _copied_out(profile, gradients, copy_Bps, kernel_s)
    layers = [
        {
            "name": layer.name,
            "parameters": [gradients[at].name for at in layer.gradients],
            "forward": _time(profile.forward_s[at]),
            "backward": _time(backward[at]),
        }
        for at, layer in enumerate(trace.layers)
    ]
    buffers = sum(map(_bytes, trace.steps[-1].others_of("broadcast")))
    order = [at for layer in reversed(trace.layers) for at in reversed(layer.gradients)]
    return {
        "perfmodel": 1,
        "kind": "model",
        "name": trace.path.name.partition(".")[0] or "trace",
        "description": f"from {trace.path.name}, rank {trace.rank} of {trace.world_size}",
        "parameters": [_parameter(gradients[at]) for at in order],
        "layers": layers[::-1],
        "optimizer": _time(max(tail, 0.0)),
        "copy_rate": f"{copy_Bps / 1e9:.9g} GB/s",
        "device": gpu.name,
        **({"buffers": f"{buffers} B"} if buffers else {}),
    }


def _parameter(gradient: Gradient) -> dict[str, Any]:
    return {
        "name": gradient.name,
        **({"shape": list(gradient.shape)} if gradient.shape else {"numel": gradient.elements}),
        "dtype": gradient.dtype if gradient.dtype in TRAINABLE else "fp32",
    }


def without(times_s: FloatArray, parts_s: FloatArray) -> FloatArray:
    """Take a part of each time away; what one cannot give, the next ones give, so that sums hold.

    Examples
    --------
    >>> without(np.array([1.0, 5.0]), np.array([2.0, 1.0])).tolist()
    [0.0, 3.0]
    """
    owed, rest = 0.0, np.zeros(len(times_s))
    for at, (time_s, part_s) in enumerate(zip(times_s, parts_s, strict=True)):
        owed += float(part_s)
        paid = min(float(time_s), owed)
        rest[at], owed = time_s - paid, owed - paid
    return rest


def _copied_out(
    profile: Profile, gradients: Sequence[Gradient], copy_Bps: float, kernel_s: float
) -> float:
    """Return the time of copies that a plan runs after the last bucket has been reduced."""
    last = max((bucket.end_s for bucket in profile.buckets), default=0.0)
    position = last - profile.exposed_s if profile.exposed_s > 0 else last
    for bucket in profile.buckets:
        members = [g for g in gradients if g.bucket == bucket.index]
        copied = sum(map(_bytes, members)) / copy_Bps + kernel_s * len(members)
        position = max(position, bucket.end_s) + copied
    return position - last


def _time(time_s: float) -> str:
    return f"{max(time_s, 0.0) * 1e6:.9g} us"


# ---------------------------------------------------------------- scenario


def _caps(document: Mapping[str, Any], profile: Profile) -> tuple[int, ...] | None:
    """Return the bytes of each bucket, if PyTorch's default caps would make others."""
    recorded = tuple(map(_bytes, profile.buckets))
    if not recorded or not all(recorded):
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        write_json(path, dict(document))
        workload = read_model(path)
    buckets = ddp_buckets(workload, DdpOptions(), iteration="steady")
    return None if tuple(bucket.nbytes for bucket in buckets) == recorded else recorded


def _scenario_document(
    trace: RankTrace,
    profile: Profile,
    gradients: Sequence[Gradient],
    caps: tuple[int, ...] | None,
    batch: int,
) -> dict[str, Any]:
    dtypes = {gradient.dtype for gradient in gradients}
    return {
        "perfmodel": 1,
        "model": {"file": MODEL},
        "compute": {
            "source": "file",
            "times": MODEL,
            "precision": next((d for d in ("fp32", "bf16", "fp16") if d in dtypes), "fp32"),
            "gpu_spread": 0,
            "overlap_slowdown": math.floor(profile.effective_slowdown * 1e6) / 1e6,
        },
        "strategy": _fsdp_section(trace, profile) if trace.fsdp else _ddp_section(trace, caps),
        "cluster": {"node": MACHINE, "gpus_per_node": trace.world_size},
        "training": {"batch_per_gpu": batch},
        "library": {
            "name": "plain",
            **({"workers": 1 if trace.blocks else 2, "host_step": "0 s"} if trace.on_cpu else {}),
        },
    }


def _ddp_section(trace: RankTrace, caps: tuple[int, ...] | None) -> dict[str, Any]:
    return {
        "kind": "ddp",
        **({} if caps is None else {"bucket_caps": [f"{cap} B" for cap in caps]}),
        **({"gradient_as_bucket_view": True} if trace.views else {}),
        "broadcast_buffers": bool(trace.steps[-1].others_of("broadcast")),
    }


def _fsdp_section(trace: RankTrace, profile: Profile) -> dict[str, Any]:
    """Write units by their paths, whether they are gathered again, and dtypes that travel."""
    paths = dict.fromkeys(
        ".".join("*" if part.isdecimal() else part for part in unit.split("."))
        for unit in reversed(trace.units)
        if unit
    )
    own = next((g.dtype for g in trace.gradients if g.dtype in TRAINABLE), "fp32")
    gathered = next((call.dtype for call in profile.gathers), own)
    reduced = next((call.dtype for call in profile.buckets), gathered)
    stated = {
        "shard_gpus": (trace.shard_ranks, trace.shard_ranks < trace.world_size),
        "param_dtype": (gathered, gathered in TRAINABLE and gathered != own),
        "reduce_dtype": (reduced, reduced in TRAINABLE and reduced != gathered),
    }
    return {
        "kind": "fsdp",
        "version": trace.fsdp,
        "wrap": list(paths) if paths else "model",
        "reshard_after_forward": trace.gathers > len(trace.units),
        **{name: value for name, (value, holds) in stated.items() if holds},
    }
