"""Text models of families that also see images: Qwen-VL, Ministral 3."""

from __future__ import annotations

from perfmodel.workload.configs.config_types import (
    Experts,
    Flag,
    Layers,
    Tokens,
    Width,
    Window,
    Words,
)
from perfmodel.workload.configs.families.decoder_configs import (
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)
from perfmodel.workload.configs.families.expert_configs import Qwen3MoeConfig


class Qwen2VLTextConfig(Qwen2Config):
    """The text model of Qwen2-VL and Qwen2.5-VL: Qwen 2's, positions of three kinds."""

    vocab_size: Words = 152064
    hidden_size: Width = 8192
    intermediate_size: Width = 29568
    num_hidden_layers: Layers = 80
    num_attention_heads: Width = 64
    num_key_value_heads: Width | None = 8
    max_window_layers: int = 80


class Qwen3VLTextConfig(Qwen3Config):
    """The text model of Qwen3-VL: Qwen 3's."""

    max_position_embeddings: Tokens = 128000


class Qwen3VLMoeTextConfig(Qwen3MoeConfig):
    """The text model of Qwen3-VL with experts: Qwen 3's."""

    intermediate_size: Width = 5632
    num_attention_heads: Width = 16
    num_key_value_heads: Width | None = 16
    head_dim: Width | None = 128
    max_position_embeddings: Tokens = 128000
    tie_word_embeddings: Flag = True
    sliding_window: Window | None = None
    moe_intermediate_size: Width = 1408
    num_experts_per_tok: Experts = 4
    num_experts: Experts = 60


class Ministral3Config(MistralConfig):
    """Ministral 3: Mistral's, without a window."""

    vocab_size: Words = 131072
    num_hidden_layers: Layers = 34
    head_dim: Width | None = 128
    max_position_embeddings: Tokens = 262144
    sliding_window: Window | None = None
