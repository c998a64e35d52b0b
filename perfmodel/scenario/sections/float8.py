"""Section ``compute.fp8``: how linear layers run in fp8, with the names of the libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from perfmodel.files import Count, FileModel
from perfmodel.scenario.sections.base import Index, Name, Switch

RECIPES: Mapping[str, tuple[str, ...]] = {
    "transformer_engine": ("delayed", "current", "blockwise", "mxfp8", "nvfp4"),
    "torchao": ("tensorwise", "rowwise", "rowwise_with_gw_hp", "mxfp8"),
}
"""Recipes of each library."""

OF_LIBRARY: Mapping[str, str] = {
    "reduce_amax": "transformer_engine",
    "amax_history_len": "transformer_engine",
    "tp_only_amax_red": "transformer_engine",
    "fp8_param_gather": "transformer_engine",
    "fp8_dot_product_attention": "transformer_engine",
    "first_last_layers_bf16": "transformer_engine",
    "filter_fqns": "torchao",
    "num_layers_at_start_in_bf16": "transformer_engine",
    "num_layers_at_end_in_bf16": "transformer_engine",
    "enable_fsdp_float8_all_gather": "torchao",
    "precompute_float8_dynamic_scale_for_fsdp": "torchao",
}
"""Fields that one library has."""


class Float8Section(FileModel):
    """Linear layers of repeated blocks in fp8; norms, embedding, head and mostly attention in bf16.

    Fields of Transformer Engine's recipes and of Megatron-Core, or of torchao and torchtitan.
    """

    library: Literal["transformer_engine", "torchao"] = Field(
        default="transformer_engine", description="default: the one that has the recipe"
    )
    recipe: Literal[
        "delayed",
        "current",
        "blockwise",
        "mxfp8",
        "nvfp4",
        "tensorwise",
        "rowwise",
        "rowwise_with_gw_hp",
    ] = Field(
        default="delayed",
        description="of scales; Transformer Engine: 'delayed', 'current', 'blockwise' (Hopper and "
        "newer), 'mxfp8', 'nvfp4' (of 4 bits; both Blackwell); torchao: 'tensorwise', 'rowwise', "
        "'rowwise_with_gw_hp', 'mxfp8'",
    )
    reduce_amax: Switch = Field(
        default=True, description="all GPUs agree on greatest values after each pass (delayed)"
    )
    tp_only_amax_red: Switch = Field(
        default=False,
        description="they agree within tensor-parallel groups only, of one GPU each (delayed)",
    )
    amax_history_len: Count = Field(default=1024, description="steps that are kept (delayed)")
    first_last_layers_bf16: Switch = Field(
        default=False, description="blocks at both ends stay in bf16 (not delayed)"
    )
    num_layers_at_start_in_bf16: Index = 1
    num_layers_at_end_in_bf16: Index = 1
    fp8_param_gather: Switch = Field(
        default=False,
        description="parameters are kept and gathered in fp8 (strategy.kind: megatron)",
    )
    fp8_dot_product_attention: Switch = Field(
        default=False,
        description="attention multiplies in fp8, too (cuDNN on Hopper and Blackwell)",
    )
    filter_fqns: tuple[Name, ...] | None = Field(
        default=None,
        description="parts of names of linear layers that stay in bf16; default: those outside of "
        "repeated blocks, such as the head",
    )
    enable_fsdp_float8_all_gather: Switch = Field(
        default=False,
        description="weights are gathered in fp8 (strategy.kind: fsdp, version 2; tensorwise)",
    )
    precompute_float8_dynamic_scale_for_fsdp: Switch = Field(
        default=False, description="scales of all weights in one all-reduce, after the optimizer"
    )

    @model_validator(mode="before")
    @classmethod
    def _infer_library(cls, data: object) -> object:
        if isinstance(data, Mapping) and "library" not in data and "recipe" in data:
            owner = next((k for k, recipes in RECIPES.items() if data["recipe"] in recipes), None)
            return data if owner is None else {**data, "library": owner}
        return data

    @model_validator(mode="after")
    def _check_recipe(self) -> Float8Section:
        if self.recipe not in RECIPES[self.library]:
            recipes = ", ".join(map(repr, RECIPES[self.library]))
            raise ValueError(f"a recipe of {self.library}: {recipes}")
        for name in self.model_fields_set:
            if OF_LIBRARY.get(name, self.library) != self.library:
                raise ValueError(f"{name!r} with library: {OF_LIBRARY[name]} alone")
        return self

    @model_validator(mode="after")
    def _check_idle(self) -> Float8Section:
        delayed = {"reduce_amax", "tp_only_amax_red", "amax_history_len"}
        ends = {"num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"}
        for name in sorted(self.model_fields_set):
            if name in delayed and self.recipe != "delayed":
                raise ValueError(f"{name!r} with recipe: delayed alone")
            if name in ends and not self.first_last_layers_bf16:
                raise ValueError(f"{name!r} with 'first_last_layers_bf16: true' alone")
        if self.tp_only_amax_red and not self.reduce_amax:
            raise ValueError("'tp_only_amax_red' with 'reduce_amax: true' alone")
        if self.first_last_layers_bf16 and self.recipe == "delayed":
            raise ValueError("'first_last_layers_bf16' with another recipe than delayed alone")
        if self.fp8_param_gather and self.recipe == "mxfp8":
            raise ValueError("'fp8_param_gather' with recipe: delayed, current or blockwise")
        if self.enable_fsdp_float8_all_gather and self.recipe != "tensorwise":
            raise ValueError("'enable_fsdp_float8_all_gather' with recipe: tensorwise alone")
        precomputes = self.precompute_float8_dynamic_scale_for_fsdp
        if precomputes and not self.enable_fsdp_float8_all_gather:
            raise ValueError(
                "'precompute_float8_dynamic_scale_for_fsdp' with "
                "'enable_fsdp_float8_all_gather: true' alone"
            )
        return self
