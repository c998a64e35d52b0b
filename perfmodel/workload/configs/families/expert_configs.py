"""Decoders of experts, and what all of their families share; those with DeepSeek's stand apart."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal

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
    Window,
    Words,
    choice_findings,
    head_of,
    raise_findings,
)
from perfmodel.workload.configs.families.decoder_configs import DecoderConfig, decoder_shape
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
    @abstractmethod
    def routed(self) -> RoutedShape:
        """Experts of a layer."""

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
            self.num_local_experts,
            self.num_experts_per_tok,
            self.intermediate_size,
            scores="top",
            biased=True,
            clamped=True,
        )

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
