"""How linear layers run in fp8: the library's options, and which GPUs have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from perfmodel.errors import Fault, failed, raise_faults
from perfmodel.files import read_yaml
from perfmodel.topology.model import Gpu

Float8Library = Literal["transformer_engine", "torchao"]

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

    library: Float8Library = "transformer_engine"
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
    `row_multiple`: what the rows of a group are padded to, where each has a kernel of its own;
        `single_kernel_rows`: where one kernel runs all groups.
    `joined`: whether one kernel casts the rows of all groups.
    """

    rate: float = 1.0
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
    raise_faults(recipe_faults(float8, gpu))
    table, row = _table(), _row(float8)
    row = {**row, **(row.get("compiled", {}) if compiled else {})}
    transposes = gpu.generation in table["row_times_column"] or "spared" not in row
    spared = 0 if transposes else row["spared"]
    weight = _pair(row["weight"], spared)
    if float8.gathers_narrow:
        weight = (Cast(), Cast(**row["gathered_weight"]) if transposes else Cast())
    engine, rates = float8.library == "transformer_engine", table["products"][row["product"]]
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
            rate=float(table["grouped_products"][row["product"]]["value"]),
            row_multiple=row["row_multiple"],
            single_kernel_rows=row.get("single_kernel_rows", row["row_multiple"]),
            joined=row.get("joined_with_copies", False) and transposes,
        ),
    )


def takes_experts(float8: Float8) -> bool:
    """Whether products of experts run in fp8, too, and not those of linear layers alone."""
    return bool(_row(float8).get("experts", True))


def operand_bytes(float8: Float8) -> float:
    """Bytes of an element that is multiplied, with its share of a scale where that counts."""
    return float(_row(float8).get("operand_bytes", 1))


def _row(float8: Float8) -> Mapping[str, Any]:
    row: Mapping[str, Any] = _table()["recipes"][float8.library][float8.recipe]
    return row


def recipe_faults(float8: Float8, gpu: Gpu) -> list[Fault]:
    """Return a fault where a GPU with fp8 cannot run a recipe.

    A GPU without fp8 has none here: its precisions tell.
    """
    excluded = {"mxfp8", "nvfp4"} if gpu.name in _table()["without_mxfp8"] else set()
    allowed = [
        name
        for name, row in _table()["recipes"][float8.library].items()
        if name not in excluded and gpu.generation in row["generations"]
    ]
    text = f"{', '.join(map(repr, allowed))} on {gpu.name}"
    if not allowed:
        text = f"another precision on {gpu.name}: of {gpu.generation}, casts to fp8 are not known"
    lacks = "fp8" in gpu.peak_flops and float8.recipe not in allowed
    return failed((lacks, "fp8.recipe", repr(float8.recipe), text))


def recipes_of(library: str) -> tuple[str, ...]:
    """Return the recipes of a library."""
    return tuple(_table()["recipes"][library])


def _pair(entries: list[Mapping[str, Any]], spared: float) -> tuple[Cast, Cast]:
    forward, backward = (_cast(entry, spared) for entry in entries)
    return forward, backward


def _cast(entry: Mapping[str, Any], spared: float) -> Cast:
    return Cast(**{**entry, "bytes": entry["bytes"] - spared}) if entry else Cast()


@cache
def _table() -> Any:
    return read_yaml(Path(__file__).parent / "float8_recipes.yaml")
