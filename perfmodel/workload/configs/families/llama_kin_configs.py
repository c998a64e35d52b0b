"""Decoders that differ from Llama by little: Phi 3, GLM, OLMo, Granite, SmolLM, Seed, Ernie ..."""

from __future__ import annotations

from typing import Any, Literal

from perfmodel.workload.configs.config_types import (
    AttentionKind,
    Flag,
    Function,
    Gate,
    Layers,
    Nothing,
    Rate,
    RopeParameters,
    Share,
    Tokens,
    Width,
    Window,
    Words,
    is_on,
    rotary_share,
)
from perfmodel.workload.configs.families.decoder_configs import DecoderConfig, LlamaConfig
from perfmodel.workload.zoo.decoders.decoder_names import (
    COHERE_NAMES,
    GLM4_NAMES,
    GLM_NAMES,
    OLMO2_NAMES,
    PHI3_NAMES,
    STARCODER_NAMES,
)
from perfmodel.workload.zoo.stacks.activation_functions import ACTIVATIONS


class Phi3Config(DecoderConfig):
    """Phi 3 and 4: one map for queries, keys and values, and one for the gate and its branch."""

    vocab_size: Words = 32064
    hidden_size: Width = 3072
    intermediate_size: Width = 8192
    max_position_embeddings: Tokens = 4096
    hidden_act: Gate = "silu"
    resid_pdrop: Rate = 0.0
    sliding_window: Window | None = None
    partial_rotary_factor: Share | None = None
    rope_parameters: RopeParameters | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """The rest of a head is joined even where positions turn all of it."""
        return {
            "names": PHI3_NAMES,
            "rotary_share": rotary_share(
                self.rope_parameters, self.partial_rotary_factor, usual=1.0
            ),
            "turned_apart": True,
            "dropout": is_on(self.resid_pdrop),
            "embedding_dropout": False,
        }


class GlmConfig(DecoderConfig):
    """GLM 4 of 2024, of which positions turn half of a head."""

    vocab_size: Words = 151552
    intermediate_size: Width = 13696
    num_hidden_layers: Layers = 40
    num_key_value_heads: Width | None = 2
    head_dim: Width | None = 128
    max_position_embeddings: Tokens = 131072
    hidden_act: Gate = "silu"
    attention_bias: Flag = True
    partial_rotary_factor: Share | None = None
    rope_parameters: RopeParameters | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """The map after attention has no bias."""
        share = rotary_share(self.rope_parameters, self.partial_rotary_factor, usual=0.5)
        return {
            "names": GLM_NAMES,
            "biased_output": False,
            "rotary_share": share,
            "turned_apart": True,
        }


class Glm4Config(GlmConfig):
    """GLM 4 of 2025, which normalises what joins the stream, too."""

    @property
    def changes(self) -> dict[str, Any]:
        """As its forerunner's, with two more norms."""
        return {**super().changes, "names": GLM4_NAMES}


class GraniteConfig(LlamaConfig):
    """Granite 3, whose embeddings, branches and logits are multiplied by a number each."""

    @property
    def changes(self) -> dict[str, Any]:
        """Products with a number keep nothing."""
        return {"scaled_branches": True}


class SmolLM3Config(LlamaConfig):
    """SmolLM 3, of which every fourth layer has no positions."""

    vocab_size: Words = 128256
    hidden_size: Width = 2048
    num_hidden_layers: Layers = 36
    num_attention_heads: Width = 16
    num_key_value_heads: Width | None = 4
    max_position_embeddings: Tokens = 32768
    tie_word_embeddings: Flag = True
    use_sliding_window: Flag = False
    sliding_window: Window | None = None
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: Layers = 4
    layer_types: tuple[AttentionKind, ...] | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Layers without positions."""
        layers = range(self.num_hidden_layers)
        return {"unturned": frozenset(layer for layer in layers if not self.turns(layer))}

    def turns(self, layer: int) -> bool:
        """Whether a layer has positions."""
        if self.no_rope_layers is not None:
            return bool(self.no_rope_layers[layer])
        return (layer + 1) % self.no_rope_layer_interval != 0

    def slides(self, layer: int) -> bool:
        """Those without positions."""
        return not self.turns(layer)


class SeedOssConfig(DecoderConfig):
    """Seed-OSS, which drops out what joins the stream."""

    vocab_size: Words = 155136
    intermediate_size: Width = 27648
    num_hidden_layers: Layers = 64
    num_attention_heads: Width = 80
    num_key_value_heads: Width | None = 8
    head_dim: Width | None = 128
    max_position_embeddings: Tokens = 524288
    hidden_act: Gate = "silu"
    attention_bias: Flag = True
    attention_out_bias: Flag = False
    attention_dropout: Rate | None = 0.1
    residual_dropout: Rate = 0.1
    mlp_bias: Flag = False

    @property
    def changes(self) -> dict[str, Any]:
        """The map after attention has a bias of its own will."""
        return {
            "biased_output": self.attention_out_bias,
            "dropout": is_on(self.residual_dropout),
            "embedding_dropout": False,
        }


class Ernie45Config(DecoderConfig):
    """ERNIE 4.5, the dense one."""

    vocab_size: Words = 103424
    hidden_size: Width = 1024
    intermediate_size: Width = 3072
    num_hidden_layers: Layers = 18
    num_attention_heads: Width = 16
    num_key_value_heads: Width | None = 2
    head_dim: Width | None = 128
    max_position_embeddings: Tokens = 131072
    tie_word_embeddings: Flag = True
    hidden_act: Gate = "silu"
    use_bias: Flag | None = False

    @property
    def changes(self) -> dict[str, Any]:
        """All maps have a bias, or none; scores are not dropped out, whatever the file states."""
        fields = ("biased_attention", "biased_output", "biased_mlp")
        return {"score_dropout": False, **dict.fromkeys(fields, bool(self.use_bias))}


class CohereConfig(DecoderConfig):
    """Cohere's Command R, whose two parts read one norm; R+ with norms of its heads is left."""

    vocab_size: Words = 256000
    hidden_size: Width = 8192
    intermediate_size: Width = 22528
    num_hidden_layers: Layers = 40
    num_attention_heads: Width = 64
    max_position_embeddings: Tokens = 8192
    tie_word_embeddings: Flag = True
    hidden_act: Gate = "silu"
    attention_bias: Flag = False
    head_dim: None = None
    use_qk_norm: Literal[False] = False

    @property
    def changes(self) -> dict[str, Any]:
        """Norms subtract the mean, and have no bias; that logits are scaled takes no time here."""
        return {"names": COHERE_NAMES, "mean_norms": True, "parallel": True}


class Cohere2Config(CohereConfig):
    """Command R7B and A: attention slides in three of four layers, the others have no positions."""

    sliding_window: Window | None = 4096
    sliding_window_pattern: Layers = 4
    layer_types: tuple[AttentionKind, ...] | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Positions turn where attention slides."""
        kinds = self.layer_types or [
            "sliding_attention" if self.slides(layer) else "full_attention"
            for layer in range(self.num_hidden_layers)
        ]
        full = (layer for layer, kind in enumerate(kinds) if kind == "full_attention")
        turning = self.sliding_window is not None
        unturned = frozenset(full) if turning else frozenset(range(self.num_hidden_layers))
        return {**super().changes, "unturned": unturned}

    def slides(self, layer: int) -> bool:
        """All but each so-manyth."""
        return (layer + 1) % self.sliding_window_pattern > 0


class OlmoConfig(DecoderConfig):
    """OLMo 1, whose norms have no parameters; those that clip queries, keys and values are left."""

    vocab_size: Words = 50304
    hidden_act: Gate = "silu"
    attention_bias: Flag = False
    clip_qkv: None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Norms are layer normalisation, one kernel each."""
        return {"fused_norms": True, "layer_norms": True, "plain_norms": True}


class Olmo2Config(DecoderConfig):
    """OLMo 2, which normalises what a part adds, and queries and keys of all heads at once."""

    vocab_size: Words = 50304
    hidden_act: Gate = "silu"
    attention_bias: Flag = False

    @property
    def changes(self) -> dict[str, Any]:
        """No part begins with a norm."""
        return {
            "names": OLMO2_NAMES,
            "head_norms": True,
            "wide_head_norms": True,
            "wide_gains": True,
        }


class Olmo3Config(Olmo2Config):
    """OLMo 3, whose attention slides in three of four layers."""

    sliding_window: Window | None = 4096
    layer_types: tuple[AttentionKind, ...] | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Sliding and full attention have frequencies of their own."""
        return {**super().changes, "own_rotaries": True}

    def slides(self, layer: int) -> bool:
        """All but every fourth."""
        return (layer + 1) % 4 != 0


class Starcoder2Config(DecoderConfig):
    """StarCoder 2, with layer normalisation and two maps."""

    vocab_size: Words = 49152
    hidden_size: Width = 3072
    intermediate_size: Width = 12288
    num_hidden_layers: Layers = 30
    num_attention_heads: Width = 24
    num_key_value_heads: Width | None = 2
    max_position_embeddings: Tokens = 4096
    tie_word_embeddings: Flag = True
    hidden_act: Function = "gelu_pytorch_tanh"
    sliding_window: Window | None = None
    residual_dropout: Rate = 0.0
    embedding_dropout: Rate = 0.0
    use_bias: Flag = True

    @property
    def changes(self) -> dict[str, Any]:
        """All maps have a bias, or none."""
        return {
            "names": STARCODER_NAMES,
            "fused_norms": True,
            "layer_norms": True,
            "ungated": ACTIVATIONS[self.hidden_act],
            "dropout": is_on(self.residual_dropout),
            "embedding_dropout": is_on(self.embedding_dropout),
            **dict.fromkeys(("biased_attention", "biased_output", "biased_mlp"), self.use_bias),
        }


class StableLmConfig(DecoderConfig):
    """StableLM 2, with layer normalisation, of which positions turn a quarter of a head."""

    vocab_size: Words = 50304
    hidden_size: Width = 2560
    intermediate_size: Width = 6912
    num_key_value_heads: Width | None = 32
    max_position_embeddings: Tokens = 4096
    hidden_act: Gate = "silu"
    head_dim: None = None
    use_qkv_bias: Flag = False
    qk_layernorm: Literal[False] = False
    use_parallel_residual: Literal[False] = False
    hidden_dropout: Nothing = 0.0
    partial_rotary_factor: Share | None = None
    rope_parameters: RopeParameters | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Norms are one kernel each."""
        share = rotary_share(self.rope_parameters, self.partial_rotary_factor, usual=0.25)
        return {
            "fused_norms": True,
            "layer_norms": True,
            "biased_attention": self.use_qkv_bias,
            "rotary_share": share,
            "turned_apart": True,
        }
