"""Which layers of a model run in fp8.

How linear layers run in fp8: the library's options, and which GPUs have them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Literal

from perfmodel.errors import Fault, allowed_names, failed, raise_faults, refuse_if
from perfmodel.files import read_yaml
from perfmodel.topology.model import Gpu
from perfmodel.workload.kernels.shapes import GroupedProduct, MatrixProduct, Scan
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
    raise_faults(
        failed(
            *(
                (
                    names and not any(part in name for name in names.values()),
                    f"fp8.filter_fqns.{position}",
                    repr(part),
                    f"part of a name, such as {example}",
                )
                for position, part in enumerate(float8.filter_fqns or ())
            ),
            (
                wide and wide >= len(blocks),
                "fp8.num_layers_at_start_in_bf16",
                f"{wide} at both ends",
                f"fewer than {len(blocks)} blocks in bf16",
            ),
        )
    )
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
    experts = _row(float8).get("experts", True)  # theirs too, and not linear layers alone
    return {
        place: layer.name
        for place, layer in enumerate(workload.layers)
        if layer.kind == "linear"
        and layer.matmul_flops
        and not isinstance(layer.matrix, Scan)
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


WIDE_PRECISION = "bf16"
"""Of all that does not run in fp8: attention, normalisations, embedding and head."""


def wide_precision(precision: str) -> str:
    """Precision of what a compute precision leaves out of fp8; itself where there is no fp8."""
    return WIDE_PRECISION if precision == "fp8" else precision


@dataclass(frozen=True, slots=True)
class Float8:
    """Options of Transformer Engine and Megatron-Core, or of torchao, under their own names.

    `recipe`: "delayed", "current", "blockwise", "mxfp8" (Transformer Engine); "tensorwise",
        "rowwise", "rowwise_with_gw_hp" (torchao).
    `filter_fqns`: parts of the names of linear layers that stay in bf16. None: those outside of
        repeated blocks.
    `start_in_bf16`, `end_in_bf16`: blocks at each end that stay in bf16.
    `wide_blocks`: names of such blocks, which a part of a pipeline knows its own by.
    `reduce_amax`: whether greatest values are agreed upon among all ranks (delayed scaling).
    `amax_history_len`: steps of which these are kept.
    `fp8_param_gather`: parameters are kept, and gathered, in fp8 (Megatron-Core).
    `attention`: whether it multiplies in fp8, too (``fp8_dot_product_attention``).
    `enable_fsdp_float8_all_gather`: each rank casts its shard of a weight, and fp8 is gathered.
    `precompute_float8_dynamic_scale_for_fsdp`: scales of all weights are agreed upon together,
        after the optimizer; otherwise each weight's own before its gather.
    """

    library: Literal["transformer_engine", "torchao"] = "transformer_engine"
    recipe: str = "delayed"
    filter_fqns: tuple[str, ...] | None = None
    start_in_bf16: int = 0
    end_in_bf16: int = 0
    wide_blocks: frozenset[str] = frozenset()
    reduce_amax: bool = True
    amax_history_len: int = 1024
    fp8_param_gather: bool = False
    attention: bool = False
    enable_fsdp_float8_all_gather: bool = False
    precompute_float8_dynamic_scale_for_fsdp: bool = False

    @property
    def agrees(self) -> bool:
        """Whether each pass of a micro-batch ends with an all-reduce of greatest values."""
        return self.recipe == "delayed" and self.reduce_amax

    @property
    def gathers_narrow(self) -> bool:
        """Whether weights are gathered in fp8."""
        return self.fp8_param_gather or self.enable_fsdp_float8_all_gather


@dataclass(frozen=True, slots=True)
class Cast:
    """Kernels that cast a tensor.

    `reads`: of the tensor in its own dtype.
    `bytes`: per element, beside these.
    """

    kernels: int = 0
    reads: int = 0
    bytes: float = 0.0

    def nbytes(self, elements: float, item_bytes: int) -> float:
        """Bytes of a tensor's cast that move."""
        return elements * (self.reads * item_bytes + self.bytes)


@dataclass(frozen=True, slots=True)
class GroupedCasts:
    """How rows of experts are cast and multiplied.

    `rate`: of one kernel of all groups, over that of a plain product of the recipe.
    `fused_rate`: of one that is fused with the activation; 0 where there is none.
    `row_multiple`: what the rows of a group are padded to, where each has a kernel of its own;
        `single_kernel_rows`: where one kernel runs all groups.
    `joined`: whether one kernel casts the rows of all groups.
    """

    rate: float = 1.0
    fused_rate: float = 0.0
    row_multiple: int = 16
    single_kernel_rows: int = 16
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Casts:
    """Casts of a linear layer on one GPU: of forward and of backward.

    `weights_once`: whether weights are cast in the first micro-batch of a step only.
    `inputs_once`: whether layers with one input cast it once.
    `copies`: bytes of fp8 that are kept per element of a weight.
    `rate`: of products over that of tensorwise ones, as a fraction.
    `rescale`: of what a gradient product puts out, which then runs as a tensorwise one.
    `wide_weight_gradient`: whether the gradient of the weight is a bf16 product.
    `operand_bytes`: of an element that is multiplied, with its share of a scale.
    `grouped`: how products of experts run.
    """

    input: tuple[Cast, Cast]
    weight: tuple[Cast, Cast]
    gradient: Cast
    weights_once: bool
    inputs_once: bool
    copies: float
    rate: float
    rescale: Cast = Cast()
    wide_weight_gradient: bool = False
    operand_bytes: float = 1.0
    grouped: GroupedCasts = GroupedCasts()


def float8_casts(float8: Float8, gpu: Gpu, *, compiled: bool) -> Casts:
    """Look up the casts of a recipe on a GPU.

    Raises `InputError`: a GPU without it.
    """
    refuse_if(
        "fp8" not in gpu.peak_flops,
        "precision",
        "'fp8'",
        f"{allowed_names(gpu.peak_flops)}, which {gpu.name} has",
    )
    raise_faults(recipe_faults(float8, gpu))
    table, row = _table(), _row(float8)
    row = {**row, **(row.get("compiled", {}) if compiled else {})}
    transposes = gpu.generation in table["row_times_column"] or "spared" not in row
    spared = 0 if transposes else row["spared"]
    weight = _pair(row["weight"], spared)
    if float8.gathers_narrow:
        weight = (Cast(), Cast(**row["gathered_weight"]) if transposes else Cast())
    engine, rates = float8.library == "transformer_engine", table["products"][row["product"]]
    grouped = table["grouped_products"][row["product"]]
    return Casts(
        input=_pair(row["input"], spared),
        weight=weight,
        gradient=_cast(row["gradient"], spared),
        weights_once=engine,
        inputs_once=engine or compiled,
        copies=(1 + transposes) * operand_bytes(float8) if engine else 0,
        rate=float(rates.get(gpu.name, rates[gpu.generation])),
        rescale=Cast(**row.get("rescale", {})),
        wide_weight_gradient=row.get("wide_weight_gradient", False),
        operand_bytes=operand_bytes(float8),
        grouped=GroupedCasts(
            rate=float(grouped["value"]),
            fused_rate=grouped.get("fused", {}).get(gpu.generation, 0.0),
            row_multiple=row["row_multiple"],
            single_kernel_rows=row.get("single_kernel_rows", row["row_multiple"]),
            joined=row.get("joined_with_copies", False) and transposes,
        ),
    )


def operand_bytes(float8: Float8) -> float:
    """Bytes of an element that is multiplied, with its share of a scale where that counts."""
    return float(_row(float8).get("operand_bytes", 1))


def _row(float8: Float8) -> Mapping[str, Any]:
    row: Mapping[str, Any] = _table()["recipes"][float8.library][float8.recipe]
    return row


def recipe_faults(float8: Float8, gpu: Gpu) -> list[Fault]:
    """Return a fault where a GPU with fp8 cannot run a recipe.

    A GPU without fp8 has none here: `float8_casts` tells.
    """
    excluded = {"mxfp8", "nvfp4"} if gpu.name in _table()["without_mxfp8"] else set()
    allowed = [
        name
        for name, row in _table()["recipes"][float8.library].items()
        if name not in excluded and gpu.generation in row["generations"]
    ]
    text = (
        f"{', '.join(map(repr, allowed))} on {gpu.name}"
        if allowed
        else f"another precision on {gpu.name}: of {gpu.generation}, casts to fp8 are not known"
    )
    lacks = "fp8" in gpu.peak_flops and float8.recipe not in allowed
    return failed((lacks, "fp8.recipe", repr(float8.recipe), text))


def _pair(entries: list[Mapping[str, Any]], spared: float) -> tuple[Cast, Cast]:
    forward, backward = (_cast(entry, spared) for entry in entries)
    return forward, backward


def _cast(entry: Mapping[str, Any], spared: float) -> Cast:
    return Cast(**{**entry, "bytes": entry["bytes"] - spared}) if entry else Cast()


_table = cache(partial(read_yaml, Path(__file__).with_name("float8_recipes.yaml")))
