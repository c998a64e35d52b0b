"""Dense decoders: Llama, Mistral, Qwen 2 and 3, Gemma 1 to 3, Nemotron."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from perfmodel.workload.configs.config_types import (
    LONGEST_DEFAULT,
    AttentionKind,
    Finding,
    Flag,
    Function,
    Gate,
    HubConfig,
    Layers,
    Rate,
    RopeParameters,
    Share,
    Tokens,
    Width,
    Window,
    Words,
    divides,
    head_of,
    heads_divide,
    is_on,
    raise_findings,
    rotary_share,
)
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.decoders.decoder_sizes import DecoderShape
from perfmodel.workload.zoo.decoders.llama import llama
from perfmodel.workload.zoo.stacks.activation_functions import ACTIVATIONS


class DecoderConfig(HubConfig):
    """Llama's configuration; other families change its defaults and add to it."""

    vocab_size: Words = 32000
    hidden_size: Width = 4096
    intermediate_size: Width = 11008
    num_hidden_layers: Layers = 32
    num_attention_heads: Width = 32
    num_key_value_heads: Width | None = None
    head_dim: Width | None = None
    max_position_embeddings: Tokens = 2048
    tie_word_embeddings: Flag = False
    attention_dropout: Rate | None = 0.0

    @property
    def changes(self) -> dict[str, Any]:
        """Fields of `DecoderShape` in which the family differs from Llama."""
        return {}

    @property
    def windows(self) -> tuple[int | None, ...] | None:
        """Tokens that a query of each layer sees at most; None: all before it, in all layers.

        `layer_types` says which layers slide; where it is missing, the family does. Qwen's slide
        only if asked for: from a layer on, or all of those with experts.
        """
        window = getattr(self, "sliding_window", None)
        if not window or not getattr(self, "use_sliding_window", True):
            return None
        stated = getattr(self, "layer_types", None)
        slide = (
            map(self.slides, range(self.num_hidden_layers))
            if stated is None
            else (kind == "sliding_attention" for kind in stated)
        )
        windows = tuple(window if each else None for each in slide)
        return windows if any(windows) else None

    def slides(self, _layer: int) -> bool:
        """Whether attention of a layer, counted from 0, slides where the file does not say."""
        return True


class LlamaConfig(DecoderConfig):
    """Llama 1 to 3."""

    hidden_act: Gate = "silu"
    attention_bias: Flag = False
    mlp_bias: Flag = False


class MistralConfig(DecoderConfig):
    """Mistral, whose attention slides in all layers."""

    intermediate_size: Width = 14336
    num_key_value_heads: Width | None = 8
    max_position_embeddings: Tokens = 131072
    hidden_act: Gate = "silu"
    sliding_window: Window | None = 4096


class Qwen2Config(DecoderConfig):
    """Qwen 2 and 2.5, whose attention slides from a layer on, if asked for."""

    vocab_size: Words = 151936
    intermediate_size: Width = 22016
    num_key_value_heads: Width | None = 32
    max_position_embeddings: Tokens = 32768
    hidden_act: Gate = "silu"
    use_sliding_window: Flag = False
    sliding_window: Window | None = 4096
    max_window_layers: int = 28
    layer_types: tuple[AttentionKind, ...] | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Maps of queries, keys and values have a bias."""
        return {"biased_attention": True}

    def slides(self, layer: int) -> bool:
        """Those from a layer on."""
        return layer >= self.max_window_layers


class Qwen3Config(DecoderConfig):
    """Qwen 3, which normalises the queries and keys of each head."""

    vocab_size: Words = 151936
    intermediate_size: Width = 22016
    num_key_value_heads: Width | None = 32
    head_dim: Width | None = 128
    max_position_embeddings: Tokens = 32768
    hidden_act: Gate = "silu"
    attention_bias: Flag = False
    use_sliding_window: Flag = False
    sliding_window: Window | None = 4096
    max_window_layers: int = 28
    layer_types: tuple[AttentionKind, ...] | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Heads are normalised."""
        return {"head_norms": True}

    def slides(self, layer: int) -> bool:
        """Those from a layer on."""
        return layer >= self.max_window_layers


class GemmaConfig(DecoderConfig):
    """Gemma 1."""

    vocab_size: Words = 256000
    hidden_size: Width = 3072
    intermediate_size: Width = 24576
    num_hidden_layers: Layers = 28
    num_attention_heads: Width = 16
    num_key_value_heads: Width | None = 16
    head_dim: Width | None = 256
    max_position_embeddings: Tokens = 8192
    tie_word_embeddings: Flag = True
    hidden_act: Gate | None = "gelu_pytorch_tanh"
    attention_bias: Flag = False

    @property
    def changes(self) -> dict[str, Any]:
        """Embeddings are scaled."""
        return {"scaled_embedding": True}


class Gemma2Config(DecoderConfig):
    """Gemma 2, whose attention slides in every second layer."""

    vocab_size: Words = 256000
    hidden_size: Width = 2304
    intermediate_size: Width = 9216
    num_hidden_layers: Layers = 26
    num_attention_heads: Width = 8
    num_key_value_heads: Width | None = 4
    head_dim: Width | None = 256
    max_position_embeddings: Tokens = 8192
    tie_word_embeddings: Flag = True
    hidden_activation: Gate | None = "gelu_pytorch_tanh"
    attention_bias: Flag = False
    sliding_window: Window | None = 4096
    layer_types: tuple[AttentionKind, ...] | None = None
    final_logit_softcapping: float | None = 30.0
    attn_logit_softcapping: float | None = 50.0

    @property
    def changes(self) -> dict[str, Any]:
        """Branches are normalised before and after; scores and logits may pass a tanh."""
        return {
            "scaled_embedding": True,
            "branch_norms": True,
            "capped": self.attn_logit_softcapping is not None,
            "capped_logits": self.final_logit_softcapping is not None,
        }

    def slides(self, layer: int) -> bool:
        """Every second."""
        return (layer + 1) % 2 > 0


class Gemma3Config(Gemma2Config):
    """The text model of Gemma 3, whose attention slides in five of six layers."""

    vocab_size: Words = 262208
    hidden_size: Width = 2304
    intermediate_size: Width = 9216
    num_hidden_layers: Layers = 26
    num_attention_heads: Width = 8
    num_key_value_heads: Width | None = 4
    head_dim: Width | None = 256
    max_position_embeddings: Tokens = 131072
    tie_word_embeddings: Flag = True
    hidden_activation: Gate | None = "gelu_pytorch_tanh"
    attention_bias: Flag = False
    sliding_window: Window | None = 4096
    sliding_window_pattern: Layers = 6
    layer_types: tuple[AttentionKind, ...] | None = None
    final_logit_softcapping: float | None = None
    attn_logit_softcapping: float | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Heads are normalised, too."""
        return {**super().changes, "head_norms": True, "own_rotaries": True}

    def slides(self, layer: int) -> bool:
        """All but each so-manyth."""
        return (layer + 1) % self.sliding_window_pattern > 0


class NemotronConfig(DecoderConfig):
    """Nemotron, with layer normalisation, two maps and a squared ReLU."""

    vocab_size: Words = 256000
    hidden_size: Width = 6144
    intermediate_size: Width = 24576
    num_attention_heads: Width = 48
    max_position_embeddings: Tokens = 4096
    hidden_act: Function = "relu2"
    attention_bias: Flag = False
    mlp_bias: Flag = False
    partial_rotary_factor: Share | None = None
    rope_parameters: RopeParameters | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Norms are one kernel, the feed-forward part has two maps, some of a head turns."""
        share = rotary_share(self.rope_parameters, self.partial_rotary_factor, usual=0.5)
        return {
            "fused_norms": True,
            "layer_norms": True,
            "gains_from_one": True,
            "ungated": ACTIVATIONS[self.hidden_act],
            "rotary_share": share,
            "turned_apart": True,
        }


def head_findings(config: DecoderConfig) -> Iterator[Finding]:
    """Find heads that do not divide, and lists of layers that are too long or too short."""
    heads = config.num_attention_heads
    if config.head_dim is None:
        yield from heads_divide(config.hidden_size, heads)
    if config.num_key_value_heads is not None:
        pairs = config.num_key_value_heads
        yield from divides(heads, pairs, "num_key_value_heads", "the heads of queries")
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and len(kinds) != config.num_hidden_layers:
        allowed = f"one kind for each of the {config.num_hidden_layers} layers"
        yield "layer_types", f"{len(kinds)} kinds", allowed


def decoder_shape(config: DecoderConfig) -> DecoderShape:
    """Sizes of the decoder that a configuration describes.

    Raises `InputError`: heads that do not divide.
    """
    raise_findings(head_findings(config))
    biased = bool(getattr(config, "attention_bias", False))
    shape = DecoderShape(
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads or config.num_attention_heads,
        config.intermediate_size,
        config.vocab_size,
        config.max_position_embeddings,
        head_width=config.head_dim,
        tied=config.tie_word_embeddings,
        biased_attention=biased,
        biased_output=biased,
        biased_mlp=bool(getattr(config, "mlp_bias", False)),
        windows=config.windows,
        score_dropout=is_on(config.attention_dropout or 0.0),
    )
    return replace(shape, **config.changes)


def decoder_model(name: str, config: DecoderConfig, family: str) -> Buildable:
    """Return the model of a configuration.

    `family`: Hugging Face's class.
    """
    head_of(config, (family,))
    shape = decoder_shape(config)
    make = partial(llama, name, shape=shape, family=family)
    return Buildable(name, make, min(shape.positions, LONGEST_DEFAULT))
