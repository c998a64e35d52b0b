"""Faults of a strategy beside other sections: what it cannot have, or chooses itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perfmodel.errors import Fault
from perfmodel.scenario.source_map import SourceMap
from perfmodel.scenario.strategies.servers import ParameterServerStrategy
from perfmodel.scenario.strategies.strategy import AutoStrategy


def one_node_only(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Refuse several nodes under a strategy that drives the GPUs of one."""
    cluster, strategy = parts.get("cluster"), parts.get("strategy")
    if cluster and cluster.nodes > 1 and strategy and strategy.one_node_only:
        allowed = f"1 with strategy.kind: {strategy.kind}, which drives the GPUs of one node"
        yield origin.fault("cluster.nodes", str(cluster.nodes), allowed)


def overlap_exists(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Refuse a slowdown by collectives where none runs beside layers."""
    compute, strategy = parts.get("compute"), parts.get("strategy")
    if not compute or not strategy or compute.overlap_slowdown is None or strategy.overlaps:
        return
    allowed = f"nothing with strategy.kind: {strategy.kind}, where no collective runs beside layers"
    yield origin.fault("compute.overlap_slowdown", f"{compute.overlap_slowdown:g}", allowed)


def recompute_within_units(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Refuse recomputed blocks of several units that are gathered again, which no plan has."""
    compute, strategy = parts.get("compute"), parts.get("strategy")
    if not compute or not getattr(strategy, "regathers_recomputed", False):
        return
    if compute.recompute not in ("none", "selective"):
        allowed = (
            "'block', or version 2: with compute.recompute units in a block are gathered again"
        )
        yield origin.fault("strategy.wrap", "'layer'", allowed)


def tensor_fields_act(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Refuse what is stated of tensor parallelism where there is none, and none is searched."""
    parallel, strategy = parts.get("parallel"), parts.get("strategy")
    if parallel is None or isinstance(strategy, AutoStrategy):
        return
    for name in parallel.idle_fields:
        allowed = "nothing with parallel.tensor: 1; it needs 2 or more"
        yield origin.fault(f"parallel.{name}", _short(getattr(parallel, name)), allowed)


def mixes(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Refuse to split a model under a strategy whose ranks are whole replicas by nature."""
    parallel, strategy = parts.get("parallel"), parts.get("strategy")
    if parallel is None or parallel.is_plain:
        return
    if strategy is not None and strategy.has_whole_models:
        allowed = f"nothing with strategy.kind: {strategy.kind}, whose workers hold whole models"
        yield origin.fault("parallel", "a model that is split", allowed)
    local_steps = getattr(strategy, "local_steps", 1)
    if parallel.pipeline.stages > 1 and local_steps > 1:
        allowed = "1 with parallel.pipeline.stages above 1, whose micro-batches are of one step"
        yield origin.fault("strategy.local_steps", str(local_steps), allowed)
    if strategy is not None and parallel.expert > 1 and not strategy.reduces_experts:
        allowed = (
            "1, or strategy.kind: megatron or fsdp, which reduce experts among those that hold them"
        )
        yield origin.fault("parallel.expert", str(parallel.expert), allowed)
    if strategy is not None and parallel.pipeline.one_process and not strategy.wraps_modules:
        allowed = "one of a pipeline, or strategy.kind: ddp, around a module on several GPUs"
        yield origin.fault("parallel.pipeline.schedule", "'sequential'", allowed)
    compute = parts.get("compute")
    if compute is not None and compute.source == "file":
        allowed = "'roofline' with parallel: a file has the times of whole layers"
        yield origin.fault("compute.source", "'file'", allowed)
    if compute is not None and compute.measured_step is not None:
        allowed = "nothing with parallel: it is a step of the whole model on one GPU"
        yield origin.fault("compute.measured_step", "a step", allowed)


def servers_fit(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Find what a strategy whose workers loop on their own cannot have."""
    strategy, cluster = parts.get("strategy"), parts.get("cluster")
    if not isinstance(strategy, ParameterServerStrategy):
        return
    kind = f"strategy.kind: {strategy.kind}"
    if parts.get("jobs"):
        allowed = f"nothing with {kind}: collectives beside its messages are not simulated"
        yield origin.fault("jobs", f"{len(parts['jobs'])} jobs", allowed)
    compute = parts.get("compute")
    if compute and compute.optimizer_kernels != "foreach":
        allowed = f"nothing with {kind}, whose servers run the optimizer in one pass"
        yield origin.fault("compute.optimizer_kernels", repr(compute.optimizer_kernels), allowed)
    library = parts.get("library")
    if library and not strategy.local_reduce and library != type(library)():
        allowed = f"nothing with {kind}, unless local_reduce: messages need no collective library"
        yield origin.fault("library", repr(library.name), allowed)
    if parts.get("fidelity") == "message":
        yield origin.fault("fidelity", "'message'", f"'flow' with {kind}, which has messages only")
    colocated = strategy.placement == "colocated"
    if cluster and colocated and (strategy.servers or 1) > cluster.nodes:
        allowed = f"at most {cluster.nodes}, the nodes of this cluster, with placement: colocated"
        yield origin.fault("strategy.servers", str(strategy.servers), allowed)


def auto_chooses(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Refuse beside ``auto`` what it chooses itself, or what it has no meaning for."""
    strategy, training = parts.get("strategy"), parts.get("training")
    if not isinstance(strategy, AutoStrategy):
        return
    kind = f"strategy.kind: {strategy.kind}"
    if training is not None and training.global_batch is None:
        allowed = f"training.global_batch with {kind}, which chooses micro-batches"
        yield origin.fault("training.batch_per_gpu", str(training.batch_per_gpu), allowed)
    parallel, compute = parts.get("parallel"), parts.get("compute")
    written = set() if parallel is None else parallel.model_fields_set
    for name in sorted(written & {"tensor", "sequence_parallel", "context", "expert", "pipeline"}):
        allowed = f"nothing with {kind}: strategy.{name} lists what it chooses from"
        yield origin.fault(f"parallel.{name}", _short(getattr(parallel, name)), allowed)
    if compute is not None and "recompute" in compute.model_fields_set:
        allowed = f"nothing with {kind}: strategy.recompute lists what it chooses from"
        yield origin.fault("compute.recompute", _short(compute.recompute), allowed)
    if parts.get("scale") is not None:
        allowed = f"nothing with {kind}: the best differs from size to size"
        yield origin.fault("scale", "sizes", allowed)
    for section in strategy.sharding:
        if section.accumulate > 1:
            allowed = f"nothing with {kind}: micro-batches follow from training.global_batch"
            yield origin.fault("strategy.sharding", f"accumulate {section.accumulate}", allowed)


def _short(value: object) -> str:
    return repr(value) if isinstance(value, str | int | bool) else "a section"


def masters_kept(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Refuse optimizers without fp32 copies where a library always has them."""
    compute, strategy = parts.get("compute"), parts.get("strategy")
    if not compute or not strategy or compute.master_weights:
        return
    if strategy.keeps_masters:
        allowed = f"true with strategy.kind: {strategy.kind}, whose optimizer keeps fp32 copies"
        yield origin.fault("compute.master_weights", "false", allowed)


def computes_in_param_dtype(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Layers whose parameters are gathered in, or cast to 16 bits multiply them in these."""
    compute, strategy = parts.get("compute"), parts.get("strategy")
    mixed, field = getattr(strategy, "mixed_precision", None), "strategy.param_dtype"
    dtype = getattr(strategy, "param_dtype", None)
    if mixed is not None:
        dtype, field = mixed.param_dtype, "strategy.mixed_precision.param_dtype"
    precision = compute.precision if compute else None
    wide = "bf16" if precision == "fp8" else precision
    if compute and dtype in ("bf16", "fp16") and dtype != wide:
        combination = f"'{dtype}' with compute.precision: {precision}"
        allowed = f"'{wide}' or nothing; or compute.precision: {dtype}"
        yield origin.fault(field, combination, allowed)


def float8_fits(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Find what a strategy or model cannot have of fp8."""
    compute, strategy, model = (parts.get(name) for name in ("compute", "strategy", "model"))
    if compute is None or compute.precision != "fp8":
        return
    if model is not None and model.dtype == "fp16":
        allowed = "'bf16' or 'fp32' with compute.precision: fp8, whose other layers are bf16"
        yield origin.fault("model.dtype", "'fp16'", allowed)
    if strategy is None:
        return
    kind = f"strategy.kind: {strategy.kind}"
    if strategy.has_whole_models:
        allowed = f"another precision with {kind}, of which nobody's fp8 is known"
        yield origin.fault("compute.precision", "'fp8'", allowed)
    section = compute.fp8
    agrees = section is None or (section.recipe == "delayed" and section.reduce_amax)
    if agrees and getattr(strategy, "join", False):
        allowed = (
            f"false with {kind} and join: a GPU without inputs takes part in no such all-reduce"
        )
        yield origin.fault("compute.fp8.reduce_amax", "true", allowed)


def float8_gathers_fit(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Find gathers of fp8 that a strategy does not have, and what a split model leaves out."""
    section, strategy = getattr(parts.get("compute"), "fp8", None), parts.get("strategy")
    if section is None or strategy is None:
        return
    if section.fp8_param_gather and not getattr(strategy, "use_distributed_optimizer", False):
        allowed = "false, or strategy.kind: megatron with use_distributed_optimizer: true"
        yield origin.fault("compute.fp8.fp8_param_gather", "true", allowed)
    is_fsdp2 = strategy.kind == "fsdp" and strategy.version == 2
    if section.enable_fsdp_float8_all_gather and not is_fsdp2:
        allowed = "false, or strategy.kind: fsdp with version: 2"
        yield origin.fault("compute.fp8.enable_fsdp_float8_all_gather", "true", allowed)
    parallel = parts.get("parallel")
    if parallel is None:
        return
    if section.tp_only_amax_red and parallel.tensor > 1:
        allowed = "false with parallel.tensor above 1: all-reduces within it are not planned"
        yield origin.fault("compute.fp8.tp_only_amax_red", "true", allowed)
