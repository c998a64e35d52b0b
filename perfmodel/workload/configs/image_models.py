"""Models of images: ViT and its kin, networks of convolutions, CLIP, and those of diffusers."""

from __future__ import annotations

from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

from perfmodel.errors import Fault, failed, raise_faults
from perfmodel.workload.configs.family import (
    Family,
    divides,
    heads_divide,
    is_on,
)
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.convolution_nets import ResNetShape, hub_resnet
from perfmodel.workload.zoo.depthwise_nets import convnext
from perfmodel.workload.zoo.dit import SHRUNK, DitShape, dit
from perfmodel.workload.zoo.image_stack import (
    ClipShape,
    ImageShape,
    clip,
    vit,
)
from perfmodel.workload.zoo.layers import ACTIVATIONS
from perfmodel.workload.zoo.siglip import siglip
from perfmodel.workload.zoo.stack_block import BLOCK_NAMES, StackShape
from perfmodel.workload.zoo.swin import swin
from perfmodel.workload.zoo.unet import UnetShape, unet


def vit_model(name: str, config: SimpleNamespace, family: Family) -> Buildable:
    """Return the model of a configuration of ViT or DINOv2: a classifier, or the encoder alone."""
    raise_faults(_image_faults(config))
    block = StackShape(
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size or config.hidden_size * config.mlp_ratio,
        BLOCK_NAMES[config.names],
        activation=ACTIVATIONS[config.hidden_act],
        dropout=is_on(config.hidden_dropout_prob),
        score_dropout=is_on(config.attention_probs_dropout_prob),
        biases=(config.qkv_bias,) * 3,
        **family.block,
    )
    shape = ImageShape(
        config.num_hidden_layers,
        config.patch_size,
        config.image_size,
        block,
        channels=config.num_channels,
        classes=_classes(config) if config.head == family.name else None,
        pooled=config.pooler_output_size,
        names=config.names,
        masked=config.use_mask_token,
    )
    return Buildable(name, partial(vit, name, shape=shape), config.image_size, "image")


def _classes(config: SimpleNamespace) -> int:
    """Labels of a classifier: two, where none are stated."""
    return len(config.id2label) if config.id2label else config.num_labels or 2


RESNET_PIXELS = 224
"""Side of an image where nobody says it: ResNet's files do not."""


def resnet_model(name: str, config: SimpleNamespace, _family: Family) -> Buildable:
    """Return the model of a configuration of ResNet."""
    raise_faults(_stage_faults(config))
    shape = ResNetShape(
        config.embedding_size,
        config.hidden_sizes,
        config.depths,
        config.layer_type == "bottleneck",
        _classes(config),
    )
    return Buildable(name, partial(hub_resnet, name, shape=shape), RESNET_PIXELS, "image")


def dit_model(name: str, config: SimpleNamespace, _family: Family) -> Buildable:
    """Return the model of a configuration of DiT, of diffusers."""
    heads, channels = config.num_attention_heads, config.in_channels
    shape = DitShape(
        heads * config.attention_head_dim,
        config.num_layers,
        heads,
        config.patch_size,
        config.num_embeds_ada_norm,
        channels,
        config.out_channels or channels,
    )
    make = partial(dit, name=name, shape=shape)
    return Buildable(name, make, config.sample_size * SHRUNK, "image")


def unet_model(name: str, config: SimpleNamespace, _family: Family) -> Buildable:
    """Return the model of a configuration of a U-Net of diffusers that a text guides."""
    channels, down = config.block_out_channels, config.down_block_types
    heads, depths = (
        (value,) * len(channels) if isinstance(value, int) else tuple(value)
        for value in (config.attention_head_dim, config.transformer_layers_per_block)
    )
    mirrored = [kind.replace("Down", "Up") for kind in down[::-1]]
    fields = {
        "down_block_types": down,
        "attention_head_dim": heads,
        "transformer_layers_per_block": depths,
    }
    allowed = f"one value for each of the {len(channels)} block_out_channels"
    added, apart = config.addition_embed_type, [*config.up_block_types] != mirrored
    unsized = added is not None and config.projection_class_embeddings_input_dim is None
    raise_faults(
        [
            *failed(
                *(
                    (len(each) != len(channels), field, f"{len(each)} values", allowed)
                    for field, each in fields.items()
                ),
                (apart, "up_block_types", repr([*config.up_block_types]), f"{mirrored}, as down"),
                (unsized, "projection_class_embeddings_input_dim", "nothing", "a size"),
            ),
            *chain.from_iterable(
                divides(width, by, "attention_head_dim", "the channels of a block")
                for width, by in zip(channels, heads, strict=False)
            ),
        ]
    )
    shape = UnetShape(
        tuple(channels),
        tuple(depth * ("CrossAttn" in kind) for depth, kind in zip(depths, down, strict=True)),
        heads,
        depths[-1],
        config.cross_attention_dim,
        config.layers_per_block,
        added and config.projection_class_embeddings_input_dim,
        config.use_linear_projection,
        config.in_channels,
        config.out_channels,
    )
    make = partial(unet, name=name, shape=shape)
    return Buildable(name, make, (config.sample_size or LATENT_PIXELS) * SHRUNK, "image")


LATENT_PIXELS = 64
"""Side of a code where nobody says it: that of pictures of 512 pixels."""


def convnext_model(name: str, config: SimpleNamespace, _family: Family) -> Buildable:
    """Return the model of a configuration of ConvNeXt."""
    raise_faults(_stage_faults(config))
    make = partial(
        convnext,
        name,
        widths=config.hidden_sizes,
        blocks=config.depths,
        patch=config.patch_size,
        classes=_classes(config),
        hub=True,
    )
    return Buildable(name, make, config.image_size, "image")


def swin_model(name: str, config: SimpleNamespace, family: Family) -> Buildable:
    """Return the model of a configuration of Swin: a classifier, or the encoder alone."""
    depths, heads, width = config.depths, config.num_heads, config.embed_dim
    raise_faults(
        [
            *failed(
                (
                    len(heads) != len(depths) or not depths,
                    "num_heads",
                    f"{len(heads)} values",
                    f"one value for each of the {len(depths)} depths",
                )
            ),
            *chain.from_iterable(
                divides(width << stage, by, "num_heads", "the width of its stage")
                for stage, by in enumerate(heads)
            ),
        ]
    )
    block = StackShape(
        width,
        heads[0],
        int(config.mlp_ratio * width),
        BLOCK_NAMES["swin"],
        activation=ACTIVATIONS[config.hidden_act],
        dropout=is_on(config.hidden_dropout_prob),
        score_dropout=is_on(config.attention_probs_dropout_prob),
        biases=(config.qkv_bias,) * 3,
        local=config.window_size,
        branch_dropped=is_on(config.drop_path_rate),
    )
    make = partial(
        swin,
        name,
        block=block,
        depths=depths,
        heads=heads,
        patch=config.patch_size,
        channels=config.num_channels,
        classes=_classes(config) if config.head == family.name else None,
    )
    return Buildable(name, make, config.image_size, "image")


def _stage_faults(config: SimpleNamespace) -> list[Fault]:
    """Return a fault where not all stages have a width and a depth."""
    widths, depths = len(config.hidden_sizes), len(config.depths)
    return failed(
        (
            widths != depths or not widths,
            "depths",
            f"{depths} values",
            f"one value for each of the {widths} hidden_sizes",
        )
    )


def clip_model(name: str, config: SimpleNamespace, family: Family) -> Buildable:
    """Return the model of a configuration of CLIP or SigLIP: both of its stacks."""
    images, texts = config.vision_config, config.text_config
    is_clip, width = family.name == "CLIPModel", images.hidden_size
    projection = config.projection_dim if is_clip else texts.projection_size or texts.hidden_size
    apart = failed(
        (
            not is_clip and projection != width,
            "text_config.projection_size",
            str(projection),
            f"{width}, the width of images",
        )
    )
    text_heads = heads_divide(texts.hidden_size, texts.num_attention_heads, "text_config.")
    raise_faults([*_image_faults(images, "vision_config."), *text_heads, *apart])
    image_block, text_block = (
        StackShape(
            part.hidden_size,
            part.num_attention_heads,
            part.intermediate_size,
            BLOCK_NAMES["clip" if is_clip else "siglip"],
            causal=is_clip and part is texts,
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
        projection=projection,
    )
    return Buildable(
        name, partial(clip if is_clip else siglip, name, shape=shape), images.image_size, "image"
    )


def _image_faults(config: Any, section: str = "") -> list[Fault]:
    """Return faults of heads and patches that do not divide.

    `section`: of the file, with a point after it.
    """
    return [
        *heads_divide(config.hidden_size, config.num_attention_heads, section),
        *divides(config.image_size, config.patch_size, f"{section}patch_size", "the image size"),
    ]
