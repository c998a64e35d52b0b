"""Faults of number formats: what a strategy or model has in which precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perfmodel.errors import Fault
from perfmodel.scenario.source_map import SourceMap


def masters_kept(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Refuse optimizers without fp32 copies where a library always has them."""
    compute, strategy = parts.get("compute"), parts.get("strategy")
    if not compute or not strategy or compute.master_weights:
        return
    if getattr(strategy, "keeps_masters", False):
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
    if strategy.kind in ("data_parallel", "parameter_server"):
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
