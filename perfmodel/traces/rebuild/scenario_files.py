"""Write what a trace says as files: a model with its layer times, its machine, a scenario."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.errors import Fault, InputError
from perfmodel.files import write_atomically
from perfmodel.topology.from_text.gpu_text import read_gpu
from perfmodel.topology.model import Gpu
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.traces.model import Gradient, RankTrace
from perfmodel.traces.rebuild.layer_profile import Profile
from perfmodel.traces.rebuild.recorded_machine import LinkFit, fit_links, node_document
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


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a trace was made into.

    `documents`: by file name.
    `caps_bytes`: of each bucket; None: PyTorch's default caps give the same buckets.
    `fit`: of the links; None: one rank, or nothing recorded.
    """

    profile: Profile
    documents: Mapping[str, Mapping[str, Any]]
    comments: Mapping[str, str]
    caps_bytes: tuple[int, ...] | None
    fit: LinkFit | None
    gradients: tuple[Gradient, ...]
    notes: tuple[str, ...]


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
    first = ranks[0]
    _check_strategy(ranks)
    device = load_gpu(gpu or _gpu_name(first))
    gradients = _named(first, model)
    kernel_s = device.kernel_overhead_s
    fastest = 10 * device.memory_Bps * device.memory_efficiency / 2
    copy_Bps = _copy_rate(profile, gradients, kernel_s, device)
    if first.fsdp:  # its copies are in the times of layers, between which they run
        copy_Bps = fastest
    model_document = _model_document(first, profile, gradients, copy_Bps, kernel_s)
    caps = None if first.fsdp else _caps(model_document, profile)
    fit = _fit(first, profile)
    source = f"{'collectives' if first.fsdp else 'all-reduces'} of {first.path.name}"
    machine = node_document(first.world_size, device.name, fit, source)
    notes = list(dict.fromkeys(note for rank in ranks for note in rank.notes))
    samples = batch or first.batch
    if samples is None:
        notes.append("samples of a step are not in the trace: counted as 1 (--batch)")
    scenario = _scenario_document(first, profile, gradients, caps, samples or 1)
    question = f"How long is the step of {first.path.name} on this machine, or on another?"
    return Rebuilt(
        profile,
        {MODEL: model_document, MACHINE: machine, SCENARIO: scenario},
        {
            MODEL: (
                f"Layers of {first.path.name}, in the order of forward, with their measured times."
            ),
            MACHINE: "The machine as recorded: set cluster.node to another one.",
            SCENARIO: question,
        },
        caps,
        fit,
        gradients,
        tuple(notes),
    )


def _fit(trace: RankTrace, profile: Profile) -> LinkFit | None:
    """Links at which collectives take as long as recorded; an all-gather's size is all ranks'."""
    ranks, shards, is_split = trace.world_size, trace.shard_ranks, trace.fsdp > 0
    rows = [(call, shards, 1 if is_split else 2, 1) for call in profile.buckets]
    if is_split:
        rows += [(call, shards, 1, shards) for call in profile.gathers]
    if shards < ranks:
        rows += [(call, ranks // shards, 2, 1) for call in profile.averages]
    sizes = [parts * _bucket_bytes(call.elements, call.dtype) for call, _, _, parts in rows]
    times = [call.transfer_s for call, *_ in rows]
    if ranks == 1 or not sizes or not all(sizes) or not all(times):
        return None
    return fit_links([row[1] for row in rows], sizes, times, [row[2] for row in rows])


def write_rebuilt(rebuilt: Rebuilt, folder: Path) -> Path:
    """Write the files and return the path of the scenario."""
    for name in rebuilt.documents:
        write_atomically(folder / name, yaml_text(rebuilt, name))
    return folder / SCENARIO


def yaml_text(rebuilt: Rebuilt, name: str) -> str:
    """One of the files."""
    return dump_yaml(rebuilt.documents[name], rebuilt.comments[name])


def dump_yaml(document: Mapping[str, Any], comment: str) -> str:
    """Write a document below a first line that says what it is."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.default_flow_style = None
    yaml.width = 120
    text = StringIO()
    yaml.dump(dict(document), text)
    return f"# {comment}\n{text.getvalue()}"


def _operations_of(trace: RankTrace) -> frozenset[str]:
    """Collectives of the strategy that a trace shows."""
    if not trace.fsdp:
        return DATA_PARALLEL
    copies = {"all_reduce"} if trace.shard_ranks < trace.world_size else set[str]()
    return SHARDED | copies


def _check_strategy(ranks: Sequence[RankTrace]) -> None:
    first = ranks[0]
    allowed = "a step of DistributedDataParallel, FSDP or of one GPU, for a scenario"
    faults = []
    operations = {call.op for step in first.steps for call in (*step.buckets, *step.others)}
    if others := sorted(operations - _operations_of(first)):
        faults.append(Fault("trace", f"{', '.join(others)} in a step", allowed, str(first.path)))
    if first.passes > 1:
        text = f"{first.passes} forward passes in a step (accumulated gradients)"
        faults.append(Fault("trace", text, allowed, str(first.path)))
    if not all(gradient.elements for gradient in first.gradients):
        text = "neither shapes of gradients nor sizes of messages"
        need = "a trace with record_shapes=True"
        faults.append(Fault("trace", text, need, str(first.path)))
    if first.fsdp and any(gradient.bucket is None for gradient in first.gradients):
        text = "gradients that are in no unit of FSDP"
        need = "a trace with record_shapes=True of a step that reduces all gradients"
        faults.append(Fault("trace", text, need, str(first.path)))
    sizes = {call.group_size or first.world_size for call in first.steps[-1].buckets}
    if parts := sizes - {first.world_size, first.shard_ranks}:
        text = f"gradients reduced among {min(parts)} of {first.world_size} ranks"
        faults.append(Fault("trace", text, allowed, str(first.path)))
    if first.world_size > 1 and not first.steps[-1].buckets:
        text = f"no reduction of gradients in backward, of {first.world_size} ranks"
        faults.append(Fault("trace", text, allowed, str(first.path)))
    if faults:
        raise InputError(faults)


def _gpu_name(trace: RankTrace) -> str:
    if trace.on_cpu:
        return CPU_RANK
    sized = f"{trace.device} {trace.device_GB}GB"
    for text in (trace.device, sized)[:: 1 if "GB" in trace.device else -1]:
        with suppress(InputError):
            return read_gpu(text).name
    text = f"{trace.device!r} in the trace"
    raise InputError(Fault("--gpu", text, "a GPU of the table: --gpu NAME"))


# ---------------------------------------------------------------- model


def _named(trace: RankTrace, model: str | None) -> tuple[Gradient, ...]:
    """Gradients with names: of a model that has the same, or of their layers."""
    if model is not None:
        workload = load_workload(model)
        tensors = [workload.tensors[at] for at in workload.ready_order]
        sizes = [tensor.numel for tensor in tensors]
        own = [gradient.elements for gradient in trace.gradients]
        if sizes != own:
            differ = next(
                (at for at, pair in enumerate(zip(sizes, own, strict=False)) if pair[0] != pair[1]),
                min(len(sizes), len(own)),
            )
            text = f"{model!r}, of {len(sizes)} tensors, other than the trace from number {differ}"
            raise InputError(
                Fault("--model", text, f"a model with the {len(own)} gradients in order")
            )
        return tuple(
            replace(gradient, name=tensor.name, shape=tensor.shape)
            for gradient, tensor in zip(trace.gradients, tensors, strict=True)
        )
    named = list(trace.gradients)
    for layer in trace.layers:
        shapes = [named[at].shape for at in layer.gradients]
        for position, at in enumerate(layer.gradients):
            suffix, bucket = _suffix(shapes, position), named[at].bucket
            unit = trace.units[bucket] if trace.units and bucket is not None else ""
            name = f"{unit}.{layer.name}.{suffix}" if unit else f"{layer.name}.{suffix}"
            named[at] = replace(named[at], name=name)
    return tuple(named)


def _suffix(shapes: Sequence[tuple[int, ...] | None], position: int) -> str:
    shape = shapes[position]
    matrices = [each for each in shapes if each is not None and len(each) > 1]
    vectors = [each for each in shapes if each is not None and len(each) == 1]
    if shape is not None and len(matrices) == 1 and len(shape) > 1:
        return "weight"
    if shape is not None and len(matrices) == 1 and len(vectors) == 1:
        return "bias"
    return f"parameter{position}"


def _bytes(gradient: Gradient) -> int:
    return (gradient.elements or 0) * ITEM_BYTES.get(gradient.dtype or "fp32", 4)


def _bucket_bytes(elements: int | None, dtype: str | None) -> int:
    return (elements or 0) * ITEM_BYTES.get(dtype or "fp32", 4)


def _copy_rate(profile: Profile, gradients: Sequence[Gradient], kernel_s: float, gpu: Gpu) -> float:
    """Rate at which copies into buckets take as long as recorded; the memory's where none were."""
    nbytes = sum(map(_bytes, gradients))
    moving_s = float(profile.copied_in_s.sum()) - kernel_s * len(gradients)
    fastest = gpu.memory_Bps * gpu.memory_efficiency / 2
    return min(nbytes / moving_s, 10 * fastest) if moving_s > 0 else fastest


def _model_document(
    trace: RankTrace,
    profile: Profile,
    gradients: Sequence[Gradient],
    copy_Bps: float,
    kernel_s: float,
) -> dict[str, Any]:
    copies = np.array(
        [
            sum(_bytes(gradients[at]) / copy_Bps + kernel_s for at in layer.gradients)
            for layer in trace.layers
        ]
    )
    distributed = trace.world_size > 1
    reduces = distributed and not trace.fsdp
    backward = without(profile.backward_s, copies) if reduces else profile.backward_s
    tail = profile.tail_s
    if reduces and not trace.views:
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
    buffers = sum(
        _bucket_bytes(call.elements, call.dtype)
        for call in trace.steps[-1].others
        if call.op == "broadcast"
    )
    order = [at for layer in reversed(trace.layers) for at in reversed(layer.gradients)]
    document: dict[str, Any] = {
        "perfmodel": 1,
        "kind": "model",
        "name": trace.path.name.partition(".")[0] or "trace",
        "description": f"from {trace.path.name}, rank {trace.rank} of {trace.world_size}",
        "parameters": [_parameter(gradients[at]) for at in order],
        "layers": layers[::-1],
        "optimizer": _time(max(tail, 0.0)),
        "copy_rate": f"{copy_Bps / 1e9:.9g} GB/s",
    }
    return document | ({"buffers": f"{buffers} B"} if buffers else {})


def _parameter(gradient: Gradient) -> dict[str, Any]:
    size = {"shape": list(gradient.shape)} if gradient.shape else {"numel": gradient.elements}
    dtype = gradient.dtype if gradient.dtype in TRAINABLE else "fp32"
    return {"name": gradient.name, **size, "dtype": dtype}


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
    """Time of copies out of buckets that a plan runs after the last bucket has been reduced."""
    ends = [bucket.end_s for bucket in profile.buckets]
    last = max(ends, default=0.0)
    backward_end_s = last - profile.exposed_s
    position = backward_end_s if profile.exposed_s > 0 else last
    for bucket, end_s in zip(profile.buckets, ends, strict=True):
        members = [g for g in gradients if g.bucket == bucket.index]
        copied = sum(map(_bytes, members)) / copy_Bps + kernel_s * len(members)
        position = max(position, end_s) + copied
    return position - last


def _time(time_s: float) -> str:
    return f"{max(time_s, 0.0) * 1e6:.9g} us"


# ---------------------------------------------------------------- scenario


def _caps(document: Mapping[str, Any], profile: Profile) -> tuple[int, ...] | None:
    """Bytes of each bucket, if PyTorch's default caps would make others."""
    recorded = tuple(_bucket_bytes(b.elements, b.dtype) for b in profile.buckets)
    if not recorded or not all(recorded):
        return None
    import tempfile

    from perfmodel.files import write_json

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
    strategy = _fsdp_section(trace, profile) if trace.fsdp else _ddp_section(trace, caps)
    dtypes = {gradient.dtype for gradient in gradients}
    precision = next((d for d in ("fp32", "bf16", "fp16") if d in dtypes), "fp32")
    compute: dict[str, Any] = {
        "source": "file",
        "times": MODEL,
        "precision": precision,
        "gpu_spread": 0,
        "overlap_slowdown": math.floor(profile.effective_slowdown * 1e6) / 1e6,
    }
    library: dict[str, Any] = {"name": "plain"}
    if trace.on_cpu:
        library |= {"workers": 1 if trace.blocks else 2, "host_step": "0 s"}
    return {
        "perfmodel": 1,
        "model": {"file": MODEL},
        "compute": compute,
        "strategy": strategy,
        "cluster": {"node": MACHINE, "gpus_per_node": trace.world_size},
        "training": {"batch_per_gpu": batch},
        "library": library,
    }


def _ddp_section(trace: RankTrace, caps: tuple[int, ...] | None) -> dict[str, Any]:
    strategy: dict[str, Any] = {"kind": "ddp"}
    if caps is not None:
        strategy["bucket_caps"] = [f"{cap} B" for cap in caps]
    if trace.views:
        strategy["gradient_as_bucket_view"] = True
    broadcasts = any(call.op == "broadcast" for call in trace.steps[-1].others)
    strategy["broadcast_buffers"] = broadcasts
    return strategy


def _fsdp_section(trace: RankTrace, profile: Profile) -> dict[str, Any]:
    """Units by their paths; whether they are gathered again in backward; dtypes that travel."""
    units = [unit for unit in reversed(trace.units) if unit]
    paths = dict.fromkeys(
        ".".join("*" if part.isdecimal() else part for part in unit.split(".")) for unit in units
    )
    strategy: dict[str, Any] = {
        "kind": "fsdp",
        "version": trace.fsdp,
        "wrap": list(paths) if paths else "model",
        "reshard_after_forward": trace.gathers > len(trace.units),
    }
    if trace.shard_ranks < trace.world_size:
        strategy["shard_gpus"] = trace.shard_ranks
    own = next((g.dtype for g in trace.gradients if g.dtype in TRAINABLE), "fp32")
    gathered = next((call.dtype for call in profile.gathers), own)
    reduced = next((call.dtype for call in profile.buckets), gathered)
    if gathered in TRAINABLE and gathered != own:
        strategy["param_dtype"] = gathered
    if reduced in TRAINABLE and reduced != gathered:
        strategy["reduce_dtype"] = reduced
    return strategy
