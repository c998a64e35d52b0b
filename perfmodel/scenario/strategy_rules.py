"""Mistakes of a strategy beside other sections: what it cannot have, or chooses itself."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from perfmodel.scenario.sections.base import Row
from perfmodel.scenario.source_map import SourceMap
from perfmodel.scenario.strategies.servers import ParameterServerStrategy
from perfmodel.scenario.strategies.strategy import AutoStrategy

OF_WHOLE_MODELS = ("data_parallel", "parameter_server")
"""Kinds of strategies whose workers hold whole models by nature, in no fp8 that anybody knows, and
whose collectives run beside no layers."""
UPDATING_WHOLE_TENSORS = ("data_parallel", "ddp", "horovod", "local_sgd", "priority")
"""Kinds of strategies of which each rank updates whole tensors, all of them."""


def _kind(parts: SimpleNamespace) -> str:
    return f"strategy.kind: {parts.strategy.kind}"


def _short(value: object) -> str:
    return repr(value) if isinstance(value, str | int | bool) else "a section"


def one_node_only(parts: SimpleNamespace, _: SourceMap) -> Iterable[Row]:
    """Refuse several nodes under a strategy that drives the GPUs of one."""
    nodes = parts.cluster.nodes
    return [
        (
            nodes > 1 and parts.strategy.kind == "data_parallel",
            "cluster.nodes",
            nodes,
            f"1 with {_kind(parts)}, which drives the GPUs of one node",
        )
    ]


def compute_suits(parts: SimpleNamespace, _: SourceMap) -> Iterable[Row]:
    """Refuse what a strategy cannot have of computing.

    That is a slowdown where no collective runs beside layers; recomputed blocks of several units,
    which are gathered again, as no plan has them; optimizers without fp32 copies where a library
    always has these; and 16-bit parameters that layers would not multiply in.
    """
    compute, strategy, kind = parts.compute, parts.strategy, _kind(parts)
    slowdown = compute.overlap_slowdown
    mixed = getattr(strategy, "mixed_precision", None)
    dtype = getattr(mixed or strategy, "param_dtype", None)
    wide = "bf16" if compute.precision == "fp8" else compute.precision
    of_parts = (strategy.kind == "fsdp" and strategy.version == 2 and not strategy.offload) or (
        strategy.kind == "zero" and not strategy.offloads
    )
    of_tensors = strategy.kind == "megatron" and not strategy.use_distributed_optimizer
    return [
        (
            slowdown is not None and strategy.kind in ("onebit", *OF_WHOLE_MODELS),
            "compute.overlap_slowdown",
            f"{slowdown or 0:g}",
            f"nothing with {kind}, where no collective runs beside layers",
        ),
        (
            # where parts of a block are wrapped; `fully_shard` keeps what forward in it gathers
            getattr(strategy, "version", 2) == 1
            and strategy.wrap not in ("block", "model")
            and compute.recompute not in ("none", "selective"),
            "strategy.wrap",
            "'layer'",
            "'block', or version 2: with compute.recompute units in a block are gathered again",
        ),
        (
            getattr(strategy, "wrap", None) == "auto" and not compute.compiled,
            "strategy.wrap",
            "'auto'",
            "another way; or compute.compiled: true, as the compiler chooses what is gathered",
        ),
        (
            getattr(strategy, "offload_optimizer", None) is not None
            and compute.optimizer not in ("adam", "adamw"),
            "compute.optimizer",
            repr(compute.optimizer),
            "'adam' or 'adamw' with strategy.offload_optimizer, as DeepSpeedCPUAdam is",
        ),
        (
            compute.optimizer in ("adafactor", "muon", "soap", "shampoo")
            and not (
                parts.parallel.is_plain
                and (
                    strategy.kind in UPDATING_WHOLE_TENSORS
                    or of_tensors
                    or (of_parts and compute.optimizer == "muon")
                )
            )
            # each rank's part of a matrix by itself, as TensorParallelMuon's default has it
            and not (of_tensors and compute.optimizer == "muon"),
            "compute.optimizer",
            f"{compute.optimizer!r}, which updates whole matrices",
            f"an optimizer of elements with {kind}, or with parallel, where ranks have parts"
            + "; or 'muon' with version: 2 and no offload" * (strategy.kind == "fsdp")
            + "; or 'muon' without use_distributed_optimizer" * (strategy.kind == "megatron")
            + "; or 'muon' without offload, of which no plan has its gathers"
            * (strategy.kind == "zero"),
        ),
        (
            getattr(strategy, "stage", 1) == 3
            and compute.optimizer == "muon"
            and strategy.reduce_scatter,
            "strategy.reduce_scatter",
            "true",
            "false with stage 3 and compute.optimizer 'muon': DeepSpeed stops at both together",
        ),
        (
            "ns_method" in strategy.model_fields_set and compute.optimizer != "muon",
            "strategy.ns_method",
            repr(getattr(strategy, "ns_method", None)),
            "nothing without compute.optimizer 'muon', whose products it chooses",
        ),
        (
            getattr(strategy, "layer_wise_distributed_optimizer", False)
            and parts.parallel.expert > 1,
            "strategy.layer_wise_distributed_optimizer",
            "true",
            "false with parallel.expert, whose tensors are dealt out to other ranks",
        ),
        (
            (
                getattr(getattr(strategy, "ddp", strategy), "distributed_optimizer", False)
                or getattr(strategy, "layer_wise_distributed_optimizer", False)
            )
            and compute.optimizer not in ("muon", "soap", "shampoo"),
            "compute.optimizer",
            repr(compute.optimizer),
            (
                "'muon', 'soap' or 'shampoo' with strategy.distributed_optimizer: true, or "
                "Megatron's layer_wise_distributed_optimizer: true"
            ),
        ),
        (
            strategy.kind in ("megatron", "onebit", "zero") and not compute.master_weights,
            "compute.master_weights",
            "false",
            f"true with {kind}, whose optimizer keeps fp32 copies",
        ),
        (
            dtype in ("bf16", "fp16") and dtype != wide,
            f"strategy.{'' if mixed is None else 'mixed_precision.'}param_dtype",
            f"'{dtype}' with compute.precision: {compute.precision}",
            f"'{wide}' or nothing; or compute.precision: {dtype}",
        ),
    ]


# ---------------------------------------------------------------- models that are split


def tensor_fields_act(parts: SimpleNamespace, _: SourceMap) -> Iterable[Row]:
    """Refuse what is stated of tensor parallelism where there is none, and none is searched."""
    is_searched, parallel = isinstance(parts.strategy, AutoStrategy), parts.parallel
    allowed = "nothing with parallel.tensor: 1; it needs 2 or more"
    return [
        (not is_searched, f"parallel.{name}", _short(getattr(parallel, name)), allowed)
        for name in parallel.idle_fields
    ]


def splits_models(parts: SimpleNamespace, _: SourceMap) -> Iterable[Row]:
    """Refuse to split a model under a strategy whose ranks are whole replicas by nature."""
    parallel, strategy = parts.parallel, parts.strategy
    local_steps = getattr(strategy, "local_steps", 1)
    return [
        (
            strategy.kind in OF_WHOLE_MODELS and not parallel.is_plain,
            "parallel",
            "a model that is split",
            f"nothing with {_kind(parts)}, whose workers hold whole models",
        ),
        (
            parallel.pipeline.stages > 1 and local_steps > 1,
            "strategy.local_steps",
            local_steps,
            "1 with parallel.pipeline.stages above 1, whose micro-batches are of one step",
        ),
        (
            parallel.expert > 1
            and parallel.tables is None
            and strategy.kind not in ("fsdp", "megatron"),
            "parallel.expert",
            parallel.expert,
            (
                "1, or strategy.kind: megatron or fsdp, which reduce experts among those that hold "
                "them"
            ),
        ),
        (
            parallel.tables is not None and strategy.kind != "ddp",
            "parallel.tables",
            repr(parallel.tables),
            f"nothing with {_kind(parts)}: TorchRec has DDP around what it does not share out",
        ),
        (
            parallel.tables == "remote" and getattr(strategy, "join", False),
            "strategy.join",
            "true",
            "false with parallel.tables: remote: a GPU without inputs asks for no rows",
        ),
        (
            parallel.expert > 1 and getattr(strategy, "wrap", None) == "auto",
            "strategy.wrap",
            "'auto'",
            "another way with parallel.expert, whose experts are gathered by themselves",
        ),
        (
            parallel.pipeline.one_process and strategy.kind != "ddp",
            "parallel.pipeline.schedule",
            "'sequential'",
            "one of a pipeline, or strategy.kind: ddp, around a module on several GPUs",
        ),
    ]


def splits_times(parts: SimpleNamespace, _: SourceMap) -> Iterable[Row]:
    """Refuse to split a model whose times were measured whole."""
    is_split, compute = not parts.parallel.is_plain, parts.compute
    return [
        (
            is_split and compute.source == "file",
            "compute.source",
            "'file'",
            "'roofline' with parallel: a file has the times of whole layers",
        ),
        (
            is_split and compute.measured_step is not None,
            "compute.measured_step",
            "a step",
            "nothing with parallel: it is a step of the whole model on one GPU",
        ),
    ]


# ---------------------------------------------------------------- servers, and auto


def servers_fit(parts: SimpleNamespace, _: SourceMap) -> Iterable[Row]:
    """Find what a strategy whose workers loop on their own cannot have."""
    strategy, kind = parts.strategy, _kind(parts)
    if not isinstance(strategy, ParameterServerStrategy):
        return []
    library, kernels = parts.library, getattr(parts.compute, "optimizer_kernels", "foreach")
    states_library = library is not None and library != type(library)()
    nodes = getattr(parts.cluster, "nodes", None)
    return [
        (
            parts.jobs,
            "jobs",
            f"{len(parts.jobs or ())} jobs",
            f"nothing with {kind}: collectives beside its messages are not simulated",
        ),
        (
            kernels != "foreach",
            "compute.optimizer_kernels",
            repr(kernels),
            f"nothing with {kind}, whose servers run the optimizer in one pass",
        ),
        (
            states_library and not strategy.local_reduce,
            "library",
            repr(getattr(library, "name", None)),
            f"nothing with {kind}, unless local_reduce: messages need no collective library",
        ),
        (
            parts.fidelity == "message",
            "fidelity",
            "'message'",
            f"'flow' with {kind}, which has messages only",
        ),
        (
            nodes and strategy.placement == "colocated" and (strategy.servers or 1) > nodes,
            "strategy.servers",
            strategy.servers,
            f"at most {nodes}, the nodes of this cluster, with placement: colocated",
        ),
    ]


def auto_chooses(parts: SimpleNamespace, _: SourceMap) -> Iterable[Row]:
    """Refuse fields that strategy ``auto`` chooses itself, and those without meaning beside it."""
    strategy, kind = parts.strategy, _kind(parts)
    if not isinstance(strategy, AutoStrategy):
        return []
    listed = ("context", "expert", "pipeline", "sequence_parallel", "tensor")
    chosen = [("parallel", name) for name in listed] + [("compute", "recompute")]
    stated = [
        (f"{section}.{name}", name, getattr(getattr(parts, section), name))
        for section, name in chosen
        if name in getattr(getattr(parts, section), "model_fields_set", ())
    ]
    return [
        *(
            (
                True,
                field,
                _short(value),
                f"nothing with {kind}: strategy.{name} lists what it chooses from",
            )
            for field, name, value in stated
        ),
        (
            parts.scale is not None,
            "scale",
            "sizes",
            f"nothing with {kind}: the best differs from size to size",
        ),
        *(
            (
                section.accumulate > 1,
                "strategy.sharding",
                f"accumulate {section.accumulate}",
                f"nothing with {kind}: micro-batches follow from the batch",
            )
            for section in strategy.sharding
        ),
    ]


# ---------------------------------------------------------------- fp8


def float8_fits(parts: SimpleNamespace, _: SourceMap) -> Iterable[Row]:
    """Find what a strategy, a model or a split of it cannot have of fp8, or of its gathers."""
    compute, strategy, section = parts.compute, parts.strategy, parts.compute.fp8
    in_fp8 = compute.precision == "fp8"
    experts: Any = getattr(parts.model, "experts", None)
    rows: list[Row] = [
        (
            in_fp8 and getattr(parts.model, "dtype", None) == "fp16",
            "model.dtype",
            "'fp16'",
            "'bf16' or 'fp32' with compute.precision: fp8, whose other layers are bf16",
        ),
        (
            getattr(experts, "router_padding", False)
            and not (in_fp8 and experts.implementation == "per-expert"),
            "model.experts.router_padding",
            "true",
            "false; or implementation: per-expert in compute.precision: fp8, whose copy it spares",
        ),
        (
            getattr(experts, "implementation", "") == "fused"
            and not (in_fp8 and getattr(section, "recipe", "") in ("mxfp8", "nvfp4")),
            "model.experts.implementation",
            "'fused'",
            "'grouped' or 'per-expert'; or compute.fp8.recipe: mxfp8 or nvfp4, to which it casts",
        ),
    ]
    if strategy is None:
        return rows
    kind, agrees = _kind(parts), section is None or section.agrees
    rows += [
        (
            in_fp8 and strategy.kind in OF_WHOLE_MODELS,
            "compute.precision",
            "'fp8'",
            f"another precision with {kind}, of which nobody's fp8 is known",
        ),
        (
            in_fp8 and agrees and getattr(strategy, "join", False),
            "compute.fp8.reduce_amax",
            "true",
            f"false with {kind} and join: a GPU without inputs takes part in no such all-reduce",
        ),
    ]
    if section is None:
        return rows
    return [
        *rows,
        (
            section.fp8_param_gather and not getattr(strategy, "use_distributed_optimizer", False),
            "compute.fp8.fp8_param_gather",
            "true",
            "false, or strategy.kind: megatron with use_distributed_optimizer: true",
        ),
        (
            section.enable_fsdp_float8_all_gather and getattr(strategy, "version", 1) == 1,
            "compute.fp8.enable_fsdp_float8_all_gather",
            "true",
            "false, or strategy.kind: fsdp with version: 2",
        ),
        (
            section.tp_only_amax_red and getattr(parts.parallel, "tensor", 1) > 1,
            "compute.fp8.tp_only_amax_red",
            "true",
            "false with parallel.tensor above 1: all-reduces within it are not planned",
        ),
    ]
