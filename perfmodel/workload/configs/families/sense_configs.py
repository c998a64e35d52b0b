"""Models of images and sound: ViT, CLIP and Whisper."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Annotated, Any

from pydantic import Field

from perfmodel.workload.configs.config_types import (
    Finding,
    Flag,
    Function,
    HubConfig,
    Layers,
    Nothing,
    Rate,
    Tokens,
    Width,
    Words,
    divides,
    head_of,
    heads_divide,
    is_on,
    raise_findings,
)
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.stacks.activation_functions import ACTIVATIONS
from perfmodel.workload.zoo.stacks.clip import CLIP_BLOCK, ClipShape, clip
from perfmodel.workload.zoo.stacks.image_stack import VIT_BLOCK, ImageShape, vit
from perfmodel.workload.zoo.stacks.stack_block import StackShape
from perfmodel.workload.zoo.stacks.whisper import WhisperShape, whisper, whisper_block

Pixels = Annotated[int, Field(strict=True, gt=0, le=100_000)]


class VitConfig(HubConfig):
    """ViT: a classifier, or the encoder with a pooler."""

    hidden_size: Width = 768
    num_hidden_layers: Layers = 12
    num_attention_heads: Width = 12
    intermediate_size: Width = 3072
    hidden_act: Function = "gelu"
    hidden_dropout_prob: Rate = 0.0
    attention_probs_dropout_prob: Rate = 0.0
    image_size: Pixels = 224
    patch_size: Width = 16
    num_channels: Width = 3
    qkv_bias: Flag = True
    pooler_output_size: Width | None = None
    num_labels: Words | None = None
    id2label: dict[str, Any] | None = None

    @property
    def classes(self) -> int:
        """Labels of the classifier: two, where none are stated."""
        return len(self.id2label) if self.id2label else self.num_labels or 2


def vit_model(name: str, config: VitConfig, family: str) -> Buildable:
    """Return the model of a configuration."""
    head = head_of(config, (family, "ViTModel"))
    raise_findings(_image_findings(config))
    block = StackShape(
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        VIT_BLOCK,
        activation=ACTIVATIONS[config.hidden_act],
        dropout=is_on(config.hidden_dropout_prob),
        score_dropout=is_on(config.attention_probs_dropout_prob),
        biases=(config.qkv_bias,) * 3,
    )
    shape = ImageShape(
        config.num_hidden_layers,
        config.patch_size,
        config.image_size,
        block,
        channels=config.num_channels,
        classes=config.classes if head == family else None,
        pooled=config.pooler_output_size,
    )
    return Buildable(name, partial(vit, name, shape=shape), config.image_size, "image")


class ClipVisionConfig(HubConfig):
    """The stack for images."""

    hidden_size: Width = 768
    intermediate_size: Width = 3072
    num_hidden_layers: Layers = 12
    num_attention_heads: Width = 12
    num_channels: Width = 3
    image_size: Pixels = 224
    patch_size: Width = 32
    hidden_act: Function = "quick_gelu"
    attention_dropout: Rate = 0.0


class ClipTextConfig(HubConfig):
    """The stack for texts."""

    vocab_size: Words = 49408
    hidden_size: Width = 512
    intermediate_size: Width = 2048
    num_hidden_layers: Layers = 12
    num_attention_heads: Width = 8
    max_position_embeddings: Tokens = 77
    hidden_act: Function = "quick_gelu"
    attention_dropout: Rate = 0.0


class ClipConfig(HubConfig):
    """CLIP: both stacks. Older files repeat them as ``text_config_dict``, which goes before."""

    text_config: ClipTextConfig = ClipTextConfig()
    vision_config: ClipVisionConfig = ClipVisionConfig()
    projection_dim: Width = 512


def clip_model(name: str, config: ClipConfig, family: str) -> Buildable:
    """Return the model of a configuration."""
    head_of(config, (family,))
    images, texts = config.vision_config, config.text_config
    text_heads = heads_divide(texts.hidden_size, texts.num_attention_heads, "text_config.")
    raise_findings(chain(_image_findings(images, "vision_config."), text_heads))
    image = ImageShape(
        images.num_hidden_layers,
        images.patch_size,
        images.image_size,
        _clip_block(images, causal=False),
        channels=images.num_channels,
    )
    shape = ClipShape(
        image,
        texts.num_hidden_layers,
        _clip_block(texts, causal=True),
        tokens=texts.max_position_embeddings,
        vocabulary=texts.vocab_size,
        projection=config.projection_dim,
    )
    return Buildable(name, partial(clip, name, shape=shape), images.image_size, "image")


def _clip_block(config: ClipVisionConfig | ClipTextConfig, *, causal: bool) -> StackShape:
    return StackShape(
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        CLIP_BLOCK,
        causal=causal,
        activation=ACTIVATIONS[config.hidden_act],
        score_dropout=is_on(config.attention_dropout),
    )


def _image_findings(config: VitConfig | ClipVisionConfig, section: str = "") -> Iterator[Finding]:
    yield from heads_divide(config.hidden_size, config.num_attention_heads, section)
    field = f"{section}patch_size"
    yield from divides(config.image_size, config.patch_size, field, "the image size")


class WhisperConfig(HubConfig):
    """Whisper."""

    vocab_size: Words = 51865
    num_mel_bins: Width = 80
    encoder_layers: Layers = 4
    encoder_attention_heads: Width = 6
    decoder_layers: Layers = 4
    decoder_attention_heads: Width = 6
    decoder_ffn_dim: Width = 1536
    encoder_ffn_dim: Width = 1536
    encoder_layerdrop: Nothing = 0.0
    decoder_layerdrop: Nothing = 0.0
    activation_function: Function = "gelu"
    d_model: Width = 384
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    activation_dropout: Rate = 0.0
    max_source_positions: Tokens = 1500
    max_target_positions: Tokens = 448
    tie_word_embeddings: Flag = True


def whisper_model(name: str, config: WhisperConfig, family: str) -> Buildable:
    """Return the model of a configuration."""
    head_of(config, (family,))
    raise_findings(
        finding
        for stack in ("encoder", "decoder")
        for finding in divides(
            config.d_model,
            getattr(config, f"{stack}_attention_heads"),
            f"{stack}_attention_heads",
            "d_model",
        )
    )
    rates = {
        "dropout": is_on(config.dropout),
        "inner_dropout": is_on(config.activation_dropout),
        "score_dropout": is_on(config.attention_dropout),
    }
    function = ACTIVATIONS[config.activation_function]
    shape = WhisperShape(
        config.encoder_layers,
        whisper_block(
            config.d_model,
            config.encoder_attention_heads,
            config.encoder_ffn_dim,
            decodes=False,
            activation=function,
            **rates,
        ),
        config.decoder_layers,
        whisper_block(
            config.d_model,
            config.decoder_attention_heads,
            config.decoder_ffn_dim,
            decodes=True,
            activation=function,
            **rates,
        ),
        config.vocab_size,
        config.num_mel_bins,
        config.max_source_positions,
        config.max_target_positions,
        tied=config.tie_word_embeddings,
    )
    longest = config.max_target_positions
    return Buildable(name, partial(whisper, name, shape=shape), longest, longest=longest)
