"""Sizes of published models of experts: what their ``config.json`` on huggingface.co states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfmodel.workload.zoo.decoder_sizes import QWEN_SMALL, DecoderShape


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
EXPERT_NAMES = {
    "MixtralForCausalLM": ExpertNames(router_first=True),
    "Qwen2MoeForCausalLM": ExpertNames(router_first=True),
    "OlmoeForCausalLM": ExpertNames(router_first=True),
    "GptOssForCausalLM": ExpertNames(router="router", router_first=True, transposed=True),
    "Llama4ForCausalLM": ExpertNames("feed_forward", "router", transposed=True),
}
"""By Hugging Face's class, where they differ from those of most."""


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A decoder, its experts, and its attention where that is latent."""

    decoder: DecoderShape
    routed: RoutedShape
    latent: LatentShape | None = None


def _deepseek(
    layers: int,
    width: int,
    heads: int,
    mlp_width: int,
    vocabulary: int,
    routed: RoutedShape,
    query_rank: int | None,
) -> ExpertShape:
    # rotary positions are those of 64 elements of a head
    decoder = DecoderShape(layers, width, heads, heads, mlp_width, vocabulary, 4096, head_width=64)
    return ExpertShape(decoder, routed, LatentShape(query_rank, 512))


def _qwen3(layers: int, width: int, heads: int, mlp_width: int, expert_width: int) -> ExpertShape:
    return ExpertShape(
        DecoderShape(
            layers, width, heads, 4, mlp_width, QWEN_SMALL, 4096, head_width=128, head_norms=True
        ),
        RoutedShape(128, 8, expert_width),
    )


_V3_ROUTED = RoutedShape(
    256,
    8,
    2048,
    2048,
    dense_first=3,
    scores="sigmoid",
    wide_router=True,
    score_bias=True,
    groups=8,
    top_groups=4,
)
_KIMI_ROUTED = RoutedShape(
    384, 8, 2048, 2048, dense_first=1, scores="sigmoid", wide_router=True, score_bias=True
)
_V2_ROUTED = RoutedShape(
    160, 6, 1536, 3072, dense_first=1, wide_router=True, groups=8, top_groups=3
)
_LITE_ROUTED = RoutedShape(64, 6, 1408, 2816, dense_first=1, wide_router=True)

MIXTRAL = {
    "mixtral-8x7b": ExpertShape(
        DecoderShape(32, 4096, 32, 8, 14336, 32000, 32768), RoutedShape(8, 2, 14336)
    ),
    "mixtral-8x22b": ExpertShape(
        DecoderShape(56, 6144, 48, 8, 16384, 32000, 65536), RoutedShape(8, 2, 16384)
    ),
    "grok-1": ExpertShape(
        DecoderShape(64, 6144, 48, 8, 32768, 131072, 8192, head_width=128), RoutedShape(8, 2, 32768)
    ),
}
"""mistralai, pre-trained with 32,768 tokens (arXiv 2401.04088) and, presumably, 65,536; xai-org's
Grok-1 as Mixtral's tensors at its sizes: its further norms and its tied head are left out."""
QWEN3_MOE = {
    "qwen3-30b-a3b": _qwen3(48, 2048, 32, 6144, 768),
    "qwen3-235b-a22b": _qwen3(94, 4096, 64, 12288, 1536),
}
QWEN2_MOE = {
    "qwen2-57b-a14b": ExpertShape(
        DecoderShape(28, 3584, 28, 4, 18944, QWEN_SMALL, 4096, biased_attention=True),
        RoutedShape(64, 8, 2560, 20480, shared_gate=True),
    ),
}
"""Qwen; pre-trained with 4,096 tokens before longer ones."""
DEEPSEEK_V2 = {
    "deepseek-v2-lite": _deepseek(27, 2048, 16, 10944, 102400, _LITE_ROUTED, None),
    "deepseek-v2": _deepseek(60, 5120, 128, 12288, 102400, _V2_ROUTED, 1536),
}
DEEPSEEK_V3 = {
    "deepseek-v3": _deepseek(61, 7168, 128, 18432, 129280, _V3_ROUTED, 1536),
    "kimi-k2": _deepseek(61, 7168, 64, 18432, 163840, _KIMI_ROUTED, 1536),
}
"""deepseek-ai, pre-trained with 4,096 tokens, without V3's head for a second token; moonshotai."""


def _llama4(experts: int, every: int) -> ExpertShape:
    return ExpertShape(
        DecoderShape(48, 5120, 40, 8, 16384, 202048, 8192, head_width=128),
        RoutedShape(experts, 1, 8192, 8192, every=every, scores="sigmoid", weighs_input=True),
    )


LLAMA4 = {"llama4-scout": _llama4(16, 1), "llama4-maverick": _llama4(128, 2)}
"""meta-llama: the text models."""


def _gpt_oss(layers: int, experts: int) -> ExpertShape:
    decoder = DecoderShape(
        layers,
        2880,
        64,
        8,
        2880,
        201088,
        4096,
        head_width=64,
        biased_attention=True,
        biased_output=True,
        windows=tuple(None if layer % 2 else 128 for layer in range(layers)),
        sinks=True,
        wide_gains=True,
    )
    return ExpertShape(
        decoder, RoutedShape(experts, 4, 2880, scores="top", biased=True, clamped=True)
    )


GPT_OSS = {"gpt-oss-20b": _gpt_oss(24, 32), "gpt-oss-120b": _gpt_oss(36, 128)}
"""openai, pre-trained with 4,096 tokens before positions were stretched."""

EXPERT_FAMILIES = {
    "MixtralForCausalLM": MIXTRAL,
    "Qwen3MoeForCausalLM": QWEN3_MOE,
    "Qwen2MoeForCausalLM": QWEN2_MOE,
    "DeepseekV2ForCausalLM": DEEPSEEK_V2,
    "DeepseekV3ForCausalLM": DEEPSEEK_V3,
    "Llama4ForCausalLM": LLAMA4,
    "GptOssForCausalLM": GPT_OSS,
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
