"""Decoders of experts: Mixtral, Qwen 2 and 3, DeepSeek-V2 and V3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from pydantic import Field

from perfmodel.workload.configs.config_types import (
    LONGEST_DEFAULT,
    AttentionKind,
    Experts,
    Finding,
    Flag,
    Gate,
    Layers,
    RopeParameters,
    Share,
    Tokens,
    Width,
    Window,
    Words,
    choice_findings,
    head_of,
    raise_findings,
    rotary_share,
)
from perfmodel.workload.configs.families.decoder_configs import (
    DecoderConfig,
    decoder_shape,
)
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.decoders.experts.expert_decoder import expert_decoder
from perfmodel.workload.zoo.decoders.experts.expert_sizes import (
    ExpertShape,
    LatentShape,
    RoutedShape,
)


class RoutedConfig(DecoderConfig):
    """What families of experts share; each says what its experts are."""

    @property
    def routed(self) -> RoutedShape:
        """Experts of a layer."""
        raise NotImplementedError

    @property
    def latent(self) -> LatentShape | None:
        """Attention, where it is latent."""
        return None

    @property
    def plain(self) -> DecoderConfig:
        """What the decoder is without its experts."""
        return self


class MixtralConfig(RoutedConfig):
    """Mixtral: experts in all layers, of the width of the feed-forward part."""

    intermediate_size: Width = 14336
    num_key_value_heads: Width | None = 8
    max_position_embeddings: Tokens = 131072
    hidden_act: Gate = "silu"
    sliding_window: Window | None = None
    num_experts_per_tok: Experts = 2
    num_local_experts: Experts = 8

    @property
    def routed(self) -> RoutedShape:
        """Experts of all layers."""
        return RoutedShape(self.num_local_experts, self.num_experts_per_tok, self.intermediate_size)


class Qwen3MoeConfig(RoutedConfig):
    """Qwen 3: experts in every so-manyth layer, but for those named."""

    vocab_size: Words = 151936
    hidden_size: Width = 2048
    intermediate_size: Width = 6144
    num_hidden_layers: Layers = 24
    num_key_value_heads: Width | None = 4
    max_position_embeddings: Tokens = 32768
    hidden_act: Gate = "silu"
    attention_bias: Flag = False
    use_sliding_window: Flag = False
    sliding_window: Window | None = 4096
    decoder_sparse_step: Layers = 1
    moe_intermediate_size: Width = 768
    num_experts_per_tok: Experts = 8
    num_experts: Experts = 128
    mlp_only_layers: tuple[int, ...] | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Heads are normalised."""
        return {"head_norms": True}

    @property
    def routed(self) -> RoutedShape:
        """Experts, but for layers that have none."""
        return RoutedShape(
            self.num_experts,
            self.num_experts_per_tok,
            self.moe_intermediate_size,
            every=self.decoder_sparse_step,
            dense_layers=self.mlp_only_layers or (),
        )


class Qwen2MoeConfig(Qwen3MoeConfig):
    """Qwen 1.5 and 2: also an expert that all tokens take, and weigh."""

    intermediate_size: Width = 5632
    num_attention_heads: Width = 16
    num_key_value_heads: Width | None = 16
    max_window_layers: int = 28
    moe_intermediate_size: Width = 1408
    shared_expert_intermediate_size: Width = 5632
    num_experts_per_tok: Experts = 4
    num_experts: Experts = 60
    qkv_bias: Flag = True
    layer_types: tuple[AttentionKind, ...] | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Maps of queries, keys and values may have a bias."""
        return {"biased_attention": self.qkv_bias, "biased_output": False}

    @property
    def routed(self) -> RoutedShape:
        """Also those shared, which a token weighs."""
        shared = self.shared_expert_intermediate_size
        return replace(super().routed, shared_width=shared, shared_gate=True)

    def slides(self, layer: int) -> bool:
        """Every second, up to a layer."""
        return (layer + 1) % 2 > 0 and layer < self.max_window_layers


class DeepseekV3Config(RoutedConfig):
    """DeepSeek-V3 and R1, Kimi K2: latent attention, groups of experts, a bias that balances."""

    vocab_size: Words = 129280
    hidden_size: Width = 7168
    intermediate_size: Width = 18432
    moe_intermediate_size: Width = 2048
    num_hidden_layers: Layers = 61
    num_attention_heads: Width = 128
    num_key_value_heads: Width | None = 128
    max_position_embeddings: Tokens = 4096
    hidden_act: Gate = "silu"
    n_shared_experts: Experts | None = 1
    n_routed_experts: Experts = 256
    kv_lora_rank: Width = 512
    q_lora_rank: Width | None = 1536
    qk_rope_head_dim: Width = 64
    v_head_dim: Width = 128
    qk_nope_head_dim: Width = 128
    n_group: Experts | None = 8
    topk_group: Experts | None = 4
    num_experts_per_tok: Experts = 8
    first_k_dense_replace: int = 3
    attention_bias: Literal[False] = False

    @property
    def latent(self) -> LatentShape:
        """Ranks of its maps, sizes of a head."""
        return LatentShape(
            self.q_lora_rank, self.kv_lora_rank, self.qk_nope_head_dim, self.qk_rope_head_dim,
            self.v_head_dim,
        )  # fmt: skip

    @property
    def plain(self) -> DecoderConfig:
        """Heads have sizes of their own, whatever is stated of plain attention."""
        update = {"head_dim": self.qk_rope_head_dim, "num_key_value_heads": None}
        return self.model_copy(update=update)

    @property
    def routed(self) -> RoutedShape:
        """Groups of experts, of which some are taken."""
        return _grouped(self, self.n_group, self.topk_group)


class DeepseekV2Config(DeepseekV3Config):
    """DeepSeek-V2: softmax instead of a sigmoid, no bias."""

    vocab_size: Words = 102400
    hidden_size: Width = 4096
    intermediate_size: Width = 11008
    moe_intermediate_size: Width = 1407
    num_hidden_layers: Layers = 32
    num_attention_heads: Width = 32
    num_key_value_heads: Width | None = None
    max_position_embeddings: Tokens = 2048
    n_shared_experts: Experts | None = 2
    n_routed_experts: Experts = 64
    n_group: Experts | None = None
    topk_group: Experts | None = None
    topk_method: Literal["greedy", "group_limited_greedy"] = "greedy"
    num_experts_per_tok: Experts = Field()
    first_k_dense_replace: int = 0
    mlp_bias: Literal[False] = False

    @property
    def routed(self) -> RoutedShape:
        """Groups, where these are asked for."""
        limited = self.topk_method == "group_limited_greedy"
        groups = (self.n_group, self.topk_group) if limited else (1, 1)
        return replace(_grouped(self, *groups), scores="softmax", score_bias=False)


class Glm4MoeConfig(RoutedConfig):
    """GLM 4.5 to 4.7: DeepSeek's experts, heads that may be normalised."""

    vocab_size: Words = 151552
    intermediate_size: Width = 10944
    num_hidden_layers: Layers = 46
    num_attention_heads: Width = 96
    num_key_value_heads: Width | None = 8
    max_position_embeddings: Tokens = 131072
    hidden_act: Gate = "silu"
    attention_bias: Flag = False
    moe_intermediate_size: Width = 1408
    num_experts_per_tok: Experts = 8
    n_shared_experts: Experts | None = 1
    n_routed_experts: Experts = 128
    n_group: Experts | None = 1
    topk_group: Experts | None = 1
    first_k_dense_replace: int = 1
    use_qk_norm: Flag = False
    partial_rotary_factor: Share | None = None
    rope_parameters: RopeParameters | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Positions turn half of a head."""
        share = rotary_share(self.rope_parameters, self.partial_rotary_factor, usual=0.5)
        return {
            "head_norms": self.use_qk_norm, "late_head_norms": True, "biased_output": False,
            "rotary_share": share, "turned_apart": True,
        }  # fmt: skip

    @property
    def routed(self) -> RoutedShape:
        """Groups of experts, of which some are taken."""
        return _grouped(self, self.n_group, self.topk_group)


def _grouped(
    config: DeepseekV3Config | Glm4MoeConfig, groups: int | None, top_groups: int | None
) -> RoutedShape:
    """DeepSeek-V3's experts."""
    return RoutedShape(
        config.n_routed_experts,
        config.num_experts_per_tok,
        config.moe_intermediate_size,
        (config.n_shared_experts or 0) * config.moe_intermediate_size,
        dense_first=config.first_k_dense_replace,
        scores="sigmoid",
        wide_router=True,
        score_bias=True,
        groups=groups or 1,
        top_groups=top_groups or 1,
    )


class OlmoeConfig(RoutedConfig):
    """OLMoE, which normalises queries and keys of all heads at once."""

    vocab_size: Words = 50304
    hidden_size: Width = 2048
    intermediate_size: Width = 2048
    num_hidden_layers: Layers = 16
    num_attention_heads: Width = 16
    max_position_embeddings: Tokens = 4096
    hidden_act: Gate = "silu"
    attention_bias: Flag = False
    head_dim: None = None
    clip_qkv: None = None
    num_experts_per_tok: Experts = 8
    num_experts: Experts = 64

    @property
    def changes(self) -> dict[str, Any]:
        """Norms of all heads."""
        return {"head_norms": True, "wide_head_norms": True}

    @property
    def routed(self) -> RoutedShape:
        """Experts of all layers."""
        return RoutedShape(self.num_experts, self.num_experts_per_tok, self.intermediate_size)


class GptOssConfig(RoutedConfig):
    """gpt-oss: sinks of scores, windows in every second layer, clamped gates, biases."""

    vocab_size: Words = 201088
    hidden_size: Width = 2880
    intermediate_size: Width = 2880
    num_hidden_layers: Layers = 36
    num_attention_heads: Width = 64
    num_key_value_heads: Width | None = 8
    head_dim: Width | None = 64
    max_position_embeddings: Tokens = 131072
    hidden_act: Literal["silu"] = "silu"
    attention_bias: Flag = True
    sliding_window: Window | None = 128
    layer_types: tuple[AttentionKind, ...] | None = None
    num_experts_per_tok: Experts = 4
    num_local_experts: Experts = 128

    @property
    def changes(self) -> dict[str, Any]:
        """A parameter of each head; norms multiply in fp32."""
        return {"sinks": True, "wide_gains": True}

    @property
    def routed(self) -> RoutedShape:
        """Experts of all layers."""
        return RoutedShape(
            self.num_local_experts, self.num_experts_per_tok, self.intermediate_size,
            scores="top", biased=True, clamped=True,
        )  # fmt: skip

    def slides(self, layer: int) -> bool:
        """Every second, from the first on."""
        return layer % 2 == 0


class Llama4Config(RoutedConfig):
    """The text model of Llama 4: experts in each so-manyth layer, and one that all tokens take."""

    vocab_size: Words = 202048
    hidden_size: Width = 5120
    intermediate_size: Width = 8192
    intermediate_size_mlp: Width = 16384
    num_hidden_layers: Layers = 48
    num_attention_heads: Width = 40
    num_key_value_heads: Width | None = 8
    head_dim: Width | None = 128
    max_position_embeddings: Tokens = 131072
    hidden_act: Gate = "silu"
    attention_bias: Flag = False
    num_experts_per_tok: Experts = 1
    num_local_experts: Experts = 16
    moe_layers: tuple[int, ...] | None = None
    interleave_moe_layer_step: Layers = 1
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: Layers = 4

    @property
    def plain(self) -> DecoderConfig:
        """Dense layers have a width of their own."""
        return self.model_copy(update={"intermediate_size": self.intermediate_size_mlp})

    @property
    def changes(self) -> dict[str, Any]:
        """Layers without positions; norms of heads have no parameters."""
        turned = self.no_rope_layers or [
            (layer + 1) % self.no_rope_layer_interval for layer in range(self.num_hidden_layers)
        ]
        layers = range(self.num_hidden_layers)
        return {"unturned": frozenset(layer for layer in layers if not turned[layer])}

    @property
    def routed(self) -> RoutedShape:
        """Experts of each so-manyth layer, or of those named."""
        width, layers = self.intermediate_size, range(self.num_hidden_layers)
        named = self.moe_layers
        return RoutedShape(
            self.num_local_experts,
            self.num_experts_per_tok,
            width,
            width,
            every=self.interleave_moe_layer_step if named is None else 1,
            dense_layers=tuple(layer for layer in layers if named and layer not in named),
            scores="sigmoid",
            weighs_input=True,
        )


def expert_model(name: str, config: RoutedConfig, family: str) -> Buildable:
    """Return the model of a configuration.

    `family`: Hugging Face's class.
    """
    head_of(config, (family,))
    raise_findings(_findings(config))
    shape = ExpertShape(decoder_shape(config.plain), config.routed, config.latent)
    make = partial(expert_decoder, name, shape=shape, family=family)
    default = min(shape.decoder.positions, LONGEST_DEFAULT)
    return Buildable(name, make, default, has_experts=True)


def _findings(config: RoutedConfig) -> Iterator[Finding]:
    dense, layers = getattr(config, "first_k_dense_replace", 0), config.num_hidden_layers
    if not 0 <= dense < layers:
        yield "first_k_dense_replace", str(dense), f"0 to {layers - 1}: the last layer has experts"
    yield from choice_findings(config.routed, "num_experts_per_tok", "n_group", "topk_group")
