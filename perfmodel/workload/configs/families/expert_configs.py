"""Decoders of experts: Mixtral, Qwen 2 and 3, DeepSeek-V2 and V3."""

from __future__ import annotations

from collections.abc import Iterator
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
    Tokens,
    Width,
    Words,
    choice_findings,
    head_of,
    raise_findings,
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


class MixtralConfig(DecoderConfig):
    """Mixtral: experts in all layers, of the width of the feed-forward part."""

    intermediate_size: Width = 14336
    num_key_value_heads: Width | None = 8
    max_position_embeddings: Tokens = 131072
    hidden_act: Gate = "silu"
    sliding_window: Tokens | None = None
    num_experts_per_tok: Experts = 2
    num_local_experts: Experts = 8


class Qwen3MoeConfig(DecoderConfig):
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
    sliding_window: Tokens | None = 4096
    decoder_sparse_step: Layers = 1
    moe_intermediate_size: Width = 768
    num_experts_per_tok: Experts = 8
    num_experts: Experts = 128
    mlp_only_layers: tuple[int, ...] | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Heads are normalised."""
        return {"head_norms": True}


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

    def slides(self, layer: int) -> bool:
        """Every second, up to a layer."""
        return (layer + 1) % 2 > 0 and layer < self.max_window_layers


class DeepseekV3Config(DecoderConfig):
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


ExpertConfig = MixtralConfig | Qwen3MoeConfig | DeepseekV3Config


def expert_model(name: str, config: ExpertConfig, family: str) -> Buildable:
    """Return the model of a configuration.

    `family`: Hugging Face's class.
    """
    head_of(config, (family,))
    routed = _routed(config)
    raise_findings(_findings(config, routed))
    latent = None
    if isinstance(config, DeepseekV3Config):
        # heads have sizes of their own, whatever is stated of plain attention
        plain = {"head_dim": config.qk_rope_head_dim, "num_key_value_heads": None}
        config = config.model_copy(update=plain)
        latent = LatentShape(
            config.q_lora_rank, config.kv_lora_rank, config.qk_nope_head_dim,
            config.qk_rope_head_dim, config.v_head_dim,
        )  # fmt: skip
    decoder = decoder_shape(config)
    shape = ExpertShape(decoder, routed, latent)
    make = partial(expert_decoder, name, shape=shape, family=family)
    default = min(decoder.positions, LONGEST_DEFAULT)
    return Buildable(name, make, default, has_experts=True)


def _routed(config: ExpertConfig) -> RoutedShape:
    if isinstance(config, MixtralConfig):
        return RoutedShape(
            config.num_local_experts, config.num_experts_per_tok, config.intermediate_size
        )
    if isinstance(config, Qwen3MoeConfig):
        shares = isinstance(config, Qwen2MoeConfig)
        return RoutedShape(
            config.num_experts,
            config.num_experts_per_tok,
            config.moe_intermediate_size,
            getattr(config, "shared_expert_intermediate_size", 0),
            every=config.decoder_sparse_step,
            dense_layers=config.mlp_only_layers or (),
            shared_gate=shares,
        )
    grouped = getattr(config, "topk_method", "group_limited_greedy") == "group_limited_greedy"
    sigmoid = not isinstance(config, DeepseekV2Config)
    return RoutedShape(
        config.n_routed_experts,
        config.num_experts_per_tok,
        config.moe_intermediate_size,
        (config.n_shared_experts or 0) * config.moe_intermediate_size,
        dense_first=config.first_k_dense_replace,
        scores="sigmoid" if sigmoid else "softmax",
        wide_router=True,
        score_bias=sigmoid,
        groups=(config.n_group or 1) if grouped else 1,
        top_groups=(config.topk_group or 1) if grouped else 1,
    )


def _findings(config: ExpertConfig, routed: RoutedShape) -> Iterator[Finding]:
    if isinstance(config, DeepseekV3Config):
        dense, layers = config.first_k_dense_replace, config.num_hidden_layers
        if not 0 <= dense < layers:
            allowed = f"0 to {layers - 1}: the last layer has experts"
            yield "first_k_dense_replace", str(dense), allowed
    yield from choice_findings(routed, "num_experts_per_tok", "n_group", "topk_group")
