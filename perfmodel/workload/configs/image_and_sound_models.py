"""Models of images and sound: ViT, CLIP and Whisper."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

from perfmodel.errors import Fault, raise_faults
from perfmodel.workload.configs.family import (
    Family,
    divides,
    heads_divide,
    is_on,
)
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.image_stack import (
    ClipShape,
    ImageShape,
    clip,
    vit,
)
from perfmodel.workload.zoo.layers import ACTIVATIONS
from perfmodel.workload.zoo.stack_block import BLOCK_NAMES, StackShape
from perfmodel.workload.zoo.whisper import WHISPER_BLOCK, WhisperShape, whisper


def vit_model(name: str, config: SimpleNamespace, family: Family) -> Buildable:
    """Return the model of a configuration of ViT: a classifier, or the encoder with a pooler."""
    raise_faults(_image_faults(config))
    block = StackShape(
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        BLOCK_NAMES["vit"],
        activation=ACTIVATIONS[config.hidden_act],
        dropout=is_on(config.hidden_dropout_prob),
        score_dropout=is_on(config.attention_probs_dropout_prob),
        biases=(config.qkv_bias,) * 3,
    )
    # a classifier has two labels, where none are stated
    classes = len(config.id2label) if config.id2label else config.num_labels or 2
    shape = ImageShape(
        config.num_hidden_layers,
        config.patch_size,
        config.image_size,
        block,
        channels=config.num_channels,
        classes=classes if config.head == family.name else None,
        pooled=config.pooler_output_size,
    )
    return Buildable(name, partial(vit, name, shape=shape), config.image_size, "image")


def clip_model(name: str, config: SimpleNamespace, _family: Family) -> Buildable:
    """Return the model of a configuration of CLIP: both of its stacks."""
    images, texts = config.vision_config, config.text_config
    text_heads = heads_divide(texts.hidden_size, texts.num_attention_heads, "text_config.")
    raise_faults([*_image_faults(images, "vision_config."), *text_heads])
    image_block, text_block = (
        StackShape(
            part.hidden_size,
            part.num_attention_heads,
            part.intermediate_size,
            BLOCK_NAMES["clip"],
            causal=part is texts,
            activation=ACTIVATIONS[part.hidden_act],
            score_dropout=is_on(part.attention_dropout),
        )
        for part in (images, texts)
    )
    shape = ClipShape(
        ImageShape(
            images.num_hidden_layers,
            images.patch_size,
            images.image_size,
            image_block,
            channels=images.num_channels,
        ),
        texts.num_hidden_layers,
        text_block,
        tokens=texts.max_position_embeddings,
        vocabulary=texts.vocab_size,
        projection=config.projection_dim,
    )
    return Buildable(name, partial(clip, name, shape=shape), images.image_size, "image")


def _image_faults(config: Any, section: str = "") -> list[Fault]:
    """Return faults of heads and patches that do not divide.

    `section`: of the file, with a point after it.
    """
    return [
        *heads_divide(config.hidden_size, config.num_attention_heads, section),
        *divides(config.image_size, config.patch_size, f"{section}patch_size", "the image size"),
    ]


def whisper_model(name: str, config: SimpleNamespace, _family: Family) -> Buildable:
    """Return the model of a configuration of Whisper."""
    raise_faults(
        chain.from_iterable(
            divides(config.d_model, getattr(config, field), field, "d_model")
            for field in ("encoder_attention_heads", "decoder_attention_heads")
        )
    )
    encoder = replace(
        WHISPER_BLOCK,
        width=config.d_model,
        heads=config.encoder_attention_heads,
        mlp_width=config.encoder_ffn_dim,
        activation=ACTIVATIONS[config.activation_function],
        dropout=is_on(config.dropout),
        inner_dropout=is_on(config.activation_dropout),
        score_dropout=is_on(config.attention_dropout),
    )
    shape = WhisperShape(
        config.encoder_layers,
        encoder,
        config.decoder_layers,
        replace(
            encoder,
            heads=config.decoder_attention_heads,
            mlp_width=config.decoder_ffn_dim,
            names=BLOCK_NAMES["whisper-decoder"],
            causal=True,
        ),
        config.vocab_size,
        config.num_mel_bins,
        config.max_source_positions,
        config.max_target_positions,
        tied=config.tie_word_embeddings,
    )
    longest = config.max_target_positions
    return Buildable(name, partial(whisper, name, shape=shape), longest, longest=longest)
