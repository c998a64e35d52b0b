"""What sets decoders of experts apart: their experts, how tokens find them, latent attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from perfmodel.workload.zoo.decoder_sizes import DecoderShape
from perfmodel.workload.zoo.published import module_names, published_sizes


@dataclass(frozen=True, slots=True)
class RoutedShape:
    """Experts of a layer, and how a token finds its own.

    `experts`, `top_k`: how many there are, and how many a token takes.
    `width`: of one of them; `shared_width`: of those that every token takes, together.
    `dense_first`: layers before the first with experts; `every`: of the others, each so-manyth,
        but for `dense_layers`.
    `scores`: what becomes of the router's logits ("top": softmax of those chosen);
        `wide_router`: whether its product is in fp32.
    `score_bias`: whether a buffer balances the loads (DeepSeek-V3).
    `groups`, `top_groups`: where a token's experts come from so many of the groups of experts.
    `shared_gate`: whether each token weighs what the shared experts say (Qwen 2).
    `weighs_input`: whether a score weighs what an expert reads, not what it says (Llama 4).
    `biased`: whether router and experts have biases; `clamped`: whether the gate and what it gates
        are clamped, and the latter has one added (gpt-oss).
    """

    experts: int
    top_k: int
    width: int
    shared_width: int = 0
    dense_first: int = 0
    every: int = 1
    dense_layers: tuple[int, ...] = ()
    scores: Literal["softmax", "sigmoid", "top"] = "softmax"
    wide_router: bool = False
    score_bias: bool = False
    groups: int = 1
    top_groups: int = 1
    shared_gate: bool = False
    weighs_input: bool = False
    biased: bool = False
    clamped: bool = False

    def is_routed(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has experts."""
        if layer in self.dense_layers:
            return False
        return layer >= self.dense_first and (layer + 1) % self.every == 0


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Multi-head latent attention: ranks of its maps, sizes of a head.

    `query_rank`: None, where queries have one map.
    `plain`, `rotary`: of a query and a key, without and with positions; `value`: of a value.
    """

    query_rank: int | None
    key_value_rank: int
    plain: int = 128
    rotary: int = 64
    value: int = 128


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Names of a family's experts, and the order in which it registers them.

    `path`, `router`: of the part in a block, and of the router in the part.
    `router_first`: whether the router is registered before the experts.
    `transposed`: whether a weight's inputs stand before its outputs.
    """

    path: str = "mlp"
    router: str = "gate"
    router_first: bool = False
    transposed: bool = False


USUAL_NAMES = ExpertNames()
EXPERT_NAMES = {family: ExpertNames(**names) for family, names in module_names("experts").items()}
"""By Hugging Face's class, where they differ from those of most."""


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A decoder, its experts, and its attention where that is latent."""

    decoder: DecoderShape
    routed: RoutedShape
    latent: LatentShape | None = None


def _shape(parts: Mapping[str, dict[str, Any]]) -> ExpertShape:
    """Return the sizes that the table states part by part."""
    latent = LatentShape(**parts["latent"]) if "latent" in parts else None
    return ExpertShape(DecoderShape(**parts["decoder"]), RoutedShape(**parts["routed"]), latent)


EXPERT_FAMILIES = {
    family: {name: _shape(parts) for name, parts in models.items()}
    for family, models in published_sizes("experts").items()
}
"""Hugging Face's class, and the sizes of its models."""
EXPERT_SHAPES = {
    name: shape for family in EXPERT_FAMILIES.values() for name, shape in family.items()
}


def expert_family(name: str) -> str:
    """Hugging Face's class of a model; Mixtral's, where it is none of the zoo."""
    return next(
        (family for family, models in EXPERT_FAMILIES.items() if name in models),
        "MixtralForCausalLM",
    )
