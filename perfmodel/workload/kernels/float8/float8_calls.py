"""Which collectives of layers that run in fp8 send fp8.

Transformer Engine (``module/base.py``, ``grad_output_preprocess``; ``distributed.py``,
``gather_along_first_dim``) casts before it gathers the tokens of a tensor group, and sums travel
wide. Scales of a whole tensor: its fp8 is gathered once, for products that read it along rows and
along columns. Scales of blocks differ between both, so that a result's gradient, which both of its
products read, is gathered twice; an input once in forward, and once more in backward. An input that
an adapter reads, too, is gathered wide (NeMo and Megatron-Bridge,
``return_layernorm_output_gathered``) unless in parts beside products (``tp_comm_overlap``).

torchao casts before the gather where a scale is that of a whole tensor (``Float8ColwiseParallel``,
``Float8RowwiseParallel``; torchtitan's docs/float8.md), and otherwise after it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from perfmodel.workload.kernels.float8.float8_layers import float8_layers
from perfmodel.workload.kernels.float8.recipe import Float8
from perfmodel.workload.model import Layer, Workload

WHOLE_SCALES = ("delayed", "current", "tensorwise")
"""Recipes with one scale of a tensor."""


@lru_cache(maxsize=64)
def narrow_calls(workload: Workload, float8: Float8) -> Workload:
    """Return a workload whose layers in fp8 gather what they multiply in fp8."""
    is_whole = float8.recipe in WHOLE_SCALES
    if float8.library == "torchao" and not is_whole:
        return workload
    narrow = float8_layers(workload, float8) - _adapted(workload)
    layers = tuple(
        _narrow(layer, gradients=is_whole) if place in narrow else layer
        for place, layer in enumerate(workload.layers)
    )
    return replace(workload, layers=layers)


def _adapted(workload: Workload) -> frozenset[int]:
    """Places of layers whose gathered input an adapter reads."""
    if workload.shard.hides == "asynchronous":
        return frozenset()
    names = {layer.name for layer in workload.layers}
    return frozenset(
        place
        for place, layer in enumerate(workload.layers)
        if f"{layer.name}.lora_A" in names and any(call.gathers_input for call in layer.calls)
    )


def _narrow(layer: Layer, *, gradients: bool) -> Layer:
    """`gradients`: whether those of results are gathered in fp8, too."""
    if not (gradients or any(call.gathers_input for call in layer.calls)):
        return layer
    calls = tuple(
        replace(call, dtype="fp8") if (call.group, call.op) == ("tensor", "all_gather") else call
        for call in layer.calls
    )
    return replace(layer, calls=calls)
