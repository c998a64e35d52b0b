"""Decoders with DeepSeek's experts: DeepSeek-V2 and V3, GLM 4.5."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from perfmodel.workload.configs.config_types import (
    Experts,
    Flag,
    Gate,
    Layers,
    RopeParameters,
    Share,
    Tokens,
    Width,
    Words,
    rotary_share,
)
from perfmodel.workload.configs.families.decoder_configs import DecoderConfig
from perfmodel.workload.configs.families.expert_configs import RoutedConfig
from perfmodel.workload.zoo.decoders.experts.expert_sizes import LatentShape, RoutedShape


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
            self.q_lora_rank,
            self.kv_lora_rank,
            self.qk_nope_head_dim,
            self.qk_rope_head_dim,
            self.v_head_dim,
        )

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
            "head_norms": self.use_qk_norm,
            "late_head_norms": True,
            "biased_output": False,
            "rotary_share": share,
            "turned_apart": True,
        }

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
