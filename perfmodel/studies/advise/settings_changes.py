"""Changes of how a scenario trains: buckets, hook, batch, precision, strategy, kernels, degrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.scenario import Scenario
from perfmodel.studies.advise.model import Proposed, Touches
from perfmodel.topology.model import Gpu
from perfmodel.training.strategies import STRATEGIES
from perfmodel.workload.model import Workload

LOSSY = "gradients lose information: compare the loss over a few thousand steps"
COARSER = "gradients are rounded to {bits} for the sum over GPUs"

_HOOKS: Mapping[str, tuple[str, Touches, str]] = {
    "fp16": ("fp16 hook", "rounding", f"{COARSER.format(bits='10 bits')}"),
    "bf16": ("bf16 hook", "rounding", f"{COARSER.format(bits='7 bits')}"),
    "powersgd": ("PowerSGD hook", "training", LOSSY),
}
"""Name, what it touches, and what it costs."""

_NARROWER = {
    "fp32": ("tf32", "bf16", "fp16"),
    "tf32": ("bf16", "fp16"),
    "fp16": ("fp8",),
    "bf16": ("fp8",),
}
"""Precisions of matrix products that are quicker than one."""

_PRECISION_NOTES = {
    "tf32": "products of 10 bits of mantissa",
    "bf16": "products of 7 bits of mantissa (autocast)",
    "fp16": "products of 10 bits of mantissa, with loss scaling (autocast, GradScaler)",
    "fp8": "products in fp8: compare the loss over a few thousand steps",
}

_CHANNELS = frozenset(
    f"NCCL_{side}_{name}" for side in ("MIN", "MAX") for name in ("CTAS", "NCHANNELS", "NRINGS")
)
LEAST_CHANNELS = (16, 32)
"""Numbers that are offered: NCCL's own most are 32 (64 on Blackwell)."""

_STRATEGIES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("DDP", {"kind": "ddp"}),
    ("ZeRO stage 1", {"kind": "zero", "stage": 1}),
    ("ZeRO stage 2", {"kind": "zero", "stage": 2}),
    ("FSDP", {"kind": "fsdp"}),
    ("Megatron's distributed optimizer", {"kind": "megatron", "use_distributed_optimizer": True}),
)


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Kernels that may run otherwise: a field of ``compute``, its value, and what it costs."""

    text: str
    field: str
    value: Any = True
    note: str = ""
    is_plural: bool = False
    takes_article: bool = False


_KERNELS = (
    _Kernels("channels-last layout", "channels_last", takes_article=True),
    _Kernels("torch.compile", "compiled", note="compiling takes minutes at the start"),
    _Kernels("CUDA graphs", "cuda_graphs", note="shapes have to stay the same", is_plural=True),
    _Kernels("fused optimizer", "optimizer_kernels", "fused", takes_article=True),
    _Kernels("fused attention", "fused_attention"),
)

_SCHEDULES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("interleaved pipeline, 2 chunks", {"schedule": "interleaved", "chunks": 2}),
    ("zero-bubble pipeline (ZB-H1)", {"schedule": "zb_h1"}),
)


def list_settings(
    scenario: Scenario, workload: Workload, gpu: Gpu, gpus: int
) -> Iterator[Proposed]:
    """List what could be set otherwise; whether it can and whether it fits is seen later."""
    predicted = scenario.compute.source == "roofline"
    if gpus > 1:
        yield from _channels(scenario)
        yield from _hooks(scenario, workload)
        yield from _strategies(scenario)
    if predicted:
        yield from _batches(scenario)
        yield from _recomputation(scenario)
    if predicted and scenario.compute.measured_step is None:
        yield from _precisions(scenario, gpu)
        yield from _kernels(scenario)
    yield from _degrees(scenario)


def _channels(scenario: Scenario) -> Iterator[Proposed]:
    """More channels of NCCL than it chooses, which carry small messages of many NICs."""
    library = scenario.library
    if library.name != "nccl" or library.channels is not None or set(library.env) & _CHANNELS:
        return
    for least in LEAST_CHANNELS:
        fields = {"library.env": {**library.env, "NCCL_MIN_CTAS": str(least)}}
        note = "multiprocessors that kernels of communication take from others"
        text = f"at least {least} channels of NCCL"
        yield Proposed(text, fields, "channels", "nothing", note, is_plural=True)


def _hooks(scenario: Scenario, workload: Workload) -> Iterator[Proposed]:
    """Gradients that travel narrower, by the own field of each strategy."""
    own = scenario.strategy
    if all(tensor.dtype != "fp32" for tensor in workload.tensors):
        narrower: tuple[str, ...] = ("powersgd",)
    else:
        narrower = ("fp16", "bf16", "powersgd")
    if own.kind == "ddp" and own.mixed_precision is None:
        for hook in narrower:
            if own.hook.kind != hook:
                text, touches, note = _HOOKS[hook]
                section = {"kind": "powersgd", "rank": 4} if hook == "powersgd" else hook
                fields = {"strategy.hook": section}
                yield Proposed(text, fields, "hook", touches, note, takes_article=True)
    field = {"fsdp": "reduce_dtype", "zero": "communication_data_type"}.get(own.kind)
    if field is not None and "bf16" in narrower and getattr(own, field) is None:
        note = COARSER.format(bits="7 bits")
        fields = {f"strategy.{field}": "bf16"}
        yield Proposed("gradients in bf16", fields, "hook", "rounding", note, is_plural=True)


def _strategies(scenario: Scenario) -> Iterator[Proposed]:
    own = scenario.strategy
    if STRATEGIES[own.kind].loops is not None:
        note = "another algorithm than with servers: updates are synchronous"
        yield Proposed("DDP", {"strategy": {"kind": "ddp"}}, "strategy", "training", note)
        return
    for text, section in _STRATEGIES:
        differing = {name for name in section if getattr(own, name, None) != section[name]}
        if not differing:
            continue
        if own.kind == "local_sgd" or (own.kind == "ddp" and own.joined_gpus):
            continue  # another algorithm
        if section["kind"] == own.kind:  # its other settings stay
            fields = {f"strategy.{name}": section[name] for name in differing}
            yield Proposed(text, fields, "strategy")
            continue
        more = {"accumulate": own.accumulate} if own.accumulate > 1 else {}
        yield Proposed(text, {"strategy": {**section, **more}}, "strategy")


def _batches(scenario: Scenario) -> Iterator[Proposed]:
    """Larger micro-batches of the same batch, larger batches, and more micro-steps."""
    training, count = scenario.training, scenario.accumulate
    can_accumulate = "accumulate" in type(scenario.strategy).model_fields
    per_gpu = training.batch_per_gpu
    if can_accumulate and count % 2 == 0:
        fields: dict[str, Any] = {"strategy.accumulate": count // 2}
        if per_gpu is not None:
            fields["training.batch_per_gpu"] = 2 * per_gpu
        text = f"larger micro-batches ({count // 2} a step)"
        yield Proposed(text, fields, "batch", is_plural=True)
    if training.global_batch is not None:
        twice = {"training.global_batch": 2 * training.global_batch}
        note = "twice the batch: learning rate and epochs have to follow"
        yield Proposed("twice the global batch", twice, "batch", "training", note)
        return
    assert per_gpu is not None
    for factor in (2, 4):
        note = f"{factor} times the batch: learning rate and epochs have to follow"
        batch = {"training.batch_per_gpu": factor * per_gpu}
        yield Proposed(f"batch {factor * per_gpu:,} per GPU", batch, "batch", "training", note)
        if can_accumulate:
            yield Proposed(
                f"{factor * count} micro-batches a step",
                {"strategy.accumulate": factor * count},
                "batch",
                "training",
                note,
                is_plural=True,
            )
    if scenario.compute.recompute == "full":
        return
    recomputed: dict[str, Any] = {
        "training.batch_per_gpu": 2 * per_gpu,
        "compute.recompute": "full",
    }
    note = "2 times the batch: learning rate and epochs have to follow"
    text = f"batch {2 * per_gpu:,} per GPU with full recomputation"
    yield Proposed(text, recomputed, "batch", "training", note)


def _recomputation(scenario: Scenario) -> Iterator[Proposed]:
    own = scenario.compute.recompute
    for kind in ("none", "selective"):
        if own not in (kind, "none"):
            text = "no recomputation" if kind == "none" else "selective recomputation"
            yield Proposed(text, {"compute.recompute": kind}, "recomputation")
    if scenario.compute.offload_activations != "none":
        fields = {"compute.offload_activations": "none"}
        yield Proposed("no offloading of activations", fields, "recomputation")


def _precisions(scenario: Scenario, gpu: Gpu) -> Iterator[Proposed]:
    for precision in _NARROWER.get(scenario.compute.precision, ()):
        if precision not in gpu.peak_flops:
            continue
        touches = "training" if precision == "fp8" else "rounding"
        note = _PRECISION_NOTES[precision]
        fields = {"compute.precision": precision}
        yield Proposed(f"{precision} arithmetic", fields, "precision", touches, note)  # type: ignore[arg-type]


def _kernels(scenario: Scenario) -> Iterator[Proposed]:
    for each in _KERNELS:
        own = getattr(scenario.compute, each.field)
        if not own or (each.field == "optimizer_kernels" and own != each.value):
            yield Proposed(
                each.text,
                {f"compute.{each.field}": each.value},
                each.field,
                note=each.note,
                is_plural=each.is_plural,
                takes_article=each.takes_article,
            )


def _degrees(scenario: Scenario) -> Iterator[Proposed]:
    """Degrees of a model that is split over GPUs, and the schedule of its pipeline."""
    parallel = scenario.parallel
    weak = scenario.training.scaling == "weak"
    note = "the global batch changes with the data-parallel ranks" if weak else ""
    if parallel.tensor > 1:
        half = parallel.tensor // 2
        fields: dict[str, Any] = {"parallel.tensor": half}
        if half == 1:
            fields = {"parallel": _without_tensor(scenario)}
        touches = "training" if weak else "nothing"
        yield Proposed(f"tensor degree {half}", fields, "tensor degree", touches, note)  # type: ignore[arg-type]
        if not parallel.sequence_parallel:
            fields = {"parallel.sequence_parallel": True}
            yield Proposed("sequence parallelism", fields, "sequence parallelism")
    if parallel.pipeline.stages > 1 and parallel.pipeline.schedule == "1f1b":
        for text, section in _SCHEDULES:
            whole = {"stages": parallel.pipeline.stages, **section}
            yield Proposed(text, {"parallel.pipeline": whole}, "schedule")


def _without_tensor(scenario: Scenario) -> dict[str, Any]:
    """Return the section as written, without what only a tensor group has."""
    written = scenario.origin.content.get("parallel") or {}
    of_tensors = {"tensor", "sequence_parallel", "overlap", "parallel_loss"}
    return {name: value for name, value in written.items() if name not in of_tensors}
