"""Which layers of a model run in fp8."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from perfmodel.errors import failed, raise_faults, refuse_if
from perfmodel.workload.kernels.float8_recipe import Float8, takes_experts
from perfmodel.workload.kernels.shapes import GroupedProduct, MatrixProduct
from perfmodel.workload.memory.blocks import block_of
from perfmodel.workload.model import Layer, Workload

SIDE_MULTIPLE = 16
"""Both sides of a weight have to be multiples of it (``torch._scaled_mm``, and
``assert_dim_for_fp8_exec`` in Transformer Engine): other layers stay in bf16."""

WIDE_MAPS = (".lora_A", ".lora_B", ".gate", ".router")
"""Ends of the names of maps that stay in bf16: of adapters (Transformer Engine and Megatron), and
routers (Megatron-Core's ``router_gating_linear``; torchtitan's quantisation filters
``router.gate``)."""


@lru_cache(maxsize=64)
def float8_layers(workload: Workload, float8: Float8) -> frozenset[int]:
    """Return the places of linear layers that run in fp8.

    A head that is tied to the embedding has no weight of its own, and stays in bf16. A part of a
    pipeline that holds embedding or head alone has none.

    Raises `InputError`: names that no layer has, more blocks than there are.
    """
    names = _linear_names(workload, float8)
    example = names[min(names)] if names else ""
    blocks, wide = _blocks(names), float8.start_in_bf16 + float8.end_in_bf16
    checks = [
        (
            names and not any(part in name for name in names.values()),
            f"fp8.filter_fqns.{position}",
            repr(part),
            f"part of a name, such as {example}",
        )
        for position, part in enumerate(float8.filter_fqns or ())
    ]
    too_many = (
        wide and wide >= len(blocks),
        "fp8.num_layers_at_start_in_bf16",
        f"{wide} at both ends",
        f"fewer than {len(blocks)} blocks in bf16",
    )
    raise_faults(failed(*checks, too_many))
    wide_blocks = float8.wide_blocks.union(_ends(blocks, float8))
    return frozenset(
        place
        for place, name in names.items()
        if _is_narrow(name, float8, wide_blocks) and _fits(workload, place)
    )


def name_wide_blocks(workload: Workload, float8: Float8) -> Float8:
    """Return options that name the blocks at both ends of a model which stay in bf16.

    Megatron-Core counts them over all layers, whatever part of them a stage of a pipeline has
    (``get_fp8_context`` in ``fp8_utils.py``: ``layer_no`` of ``num_layers``). More of them than
    there are stay counts, for `float8_layers` to refuse.
    """
    blocks = _blocks(_linear_names(workload, float8))
    if not 0 < float8.start_in_bf16 + float8.end_in_bf16 < len(blocks):
        return float8
    return replace(
        float8, start_in_bf16=0, end_in_bf16=0, wide_blocks=frozenset(_ends(blocks, float8))
    )


def _ends(blocks: Sequence[str], float8: Float8) -> tuple[str, ...]:
    return (*blocks[: float8.start_in_bf16], *blocks[len(blocks) - float8.end_in_bf16 :])


def _linear_names(workload: Workload, float8: Float8) -> dict[int, str]:
    """Names of the linear layers that a recipe takes, by place."""
    experts = takes_experts(float8)
    return {
        place: layer.name
        for place, layer in enumerate(workload.layers)
        if layer.kind == "linear"
        and layer.matmul_flops
        and (experts or not isinstance(layer.matrix, GroupedProduct))
    }


def _blocks(names: Mapping[int, str]) -> list[str]:
    """Repeated blocks in the order of forward."""
    return list(dict.fromkeys(filter(None, map(block_of, names.values()))))


def check_float8(workload: Workload, float8: Float8) -> None:
    """Raise `InputError` for a model of which no layer runs in fp8, and as `float8_layers`."""
    refuse_if(
        not float8_layers(workload, float8),
        "precision",
        f"'fp8' for {workload.name!r}",
        "bf16, or a model with linear layers in repeated blocks, of multiples of 16",
    )


def _is_narrow(name: str, float8: Float8, wide_blocks: Collection[str]) -> bool:
    block = block_of(name)
    if name.endswith(WIDE_MAPS) or block in wide_blocks:
        return False
    if float8.filter_fqns is None:
        return block is not None
    return not any(part in name for part in float8.filter_fqns)


def weight_of(workload: Workload, layer: Layer) -> int | None:
    """The matrix that a linear layer multiplies with: its largest; None where it has none.

    Those of experts are one tensor.
    """
    return max(
        [index for index in layer.tensors if len(workload.tensors[index].shape) >= 2],
        key=lambda index: workload.tensors[index].numel,
        default=None,
    )


def _fits(workload: Workload, place: int) -> bool:
    layer = workload.layers[place]
    index = weight_of(workload, layer)
    sides = () if index is None else workload.tensors[index].shape[-2:]
    kinds = (MatrixProduct, GroupedProduct)
    if layer.gradients < 2 and isinstance(layer.matrix, kinds):  # a frozen weight
        sides = (layer.matrix.columns, layer.matrix.depth)
    return bool(sides) and all(side % SIDE_MULTIPLE == 0 for side in sides)


def float8_weights(workload: Workload, float8: Float8 | None) -> frozenset[int]:
    """Tensors that fp8 products multiply with; none without fp8."""
    if float8 is None:
        return frozenset()
    weights = (
        weight_of(workload, workload.layers[place]) for place in float8_layers(workload, float8)
    )
    return frozenset(index for index in weights if index is not None)


def gathered_weights(workload: Workload, float8: Float8 | None) -> frozenset[int]:
    """Tensors that are gathered in fp8, of those that fp8 products multiply with."""
    return float8_weights(workload, float8 if float8 and float8.gathers_narrow else None)


def shares_input(layer: Layer) -> bool:
    """Whether a layer before it has the same input (queries, keys and values; gate and up)."""
    return layer.copied_elements > 0


def float8_modules(workload: Workload, float8: Float8) -> int:
    """Products as Transformer Engine has them: layers with one input are one, experts are many."""
    layers = (workload.layers[place] for place in float8_layers(workload, float8))
    return sum(
        layer.matrix.groups if isinstance(layer.matrix, GroupedProduct) else 1
        for layer in layers
        if not shares_input(layer)
    )


WHOLE_SCALES = ("delayed", "current", "tensorwise")
"""Recipes with one scale of a tensor."""


@lru_cache(maxsize=64)
def narrow_calls(workload: Workload, float8: Float8) -> Workload:
    """Return a workload whose layers in fp8 gather what they multiply in fp8."""
    is_whole = float8.recipe in WHOLE_SCALES
    if float8.library == "torchao" and not is_whole:
        return workload
    narrow = float8_layers(workload, float8) - _adapted(workload)
    return replace(
        workload,
        layers=tuple(
            _narrow(layer, gradients=is_whole) if place in narrow else layer
            for place, layer in enumerate(workload.layers)
        ),
    )


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
