"""Vision transformers with Hugging Face's tensors: patches of an image, a token for its class."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.errors import Fault, InputError
from perfmodel.workload.model import Workload
from perfmodel.workload.sample import Sample
from perfmodel.workload.zoo.image_layers import Image, convolution
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    ADD_PASSES,
    DROPOUT_PASSES,
    JOIN_PASSES,
    MASK_BYTES,
    Module,
    Parameter,
    assemble,
    linear,
    names_reversed,
    weight_and_bias,
)
from perfmodel.workload.zoo.stack_block import (
    AttentionNames,
    BlockNames,
    StackShape,
    stack_blocks,
)
from perfmodel.workload.zoo.stack_ends import last_norm
from perfmodel.workload.zoo.transformer import embedding

VIT_BLOCK = BlockNames(
    attention=AttentionNames(
        ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        "attention.o_proj",
        "layernorm_before",
    ),
    widen="mlp.fc1",
    narrow="mlp.fc2",
    norm="layernorm_after",
    registered=(
        "attention.q_proj",
        "attention.k_proj",
        "attention.v_proj",
        "attention.o_proj",
        "layernorm_before",
        "layernorm_after",
        "mlp.fc1",
        "mlp.fc2",
    ),
)


@dataclass(frozen=True, slots=True)
class ImageShape:
    """Layers, size of a patch and of an image, channels of it, and the sizes of a block.

    `classes`: of the classifier; None: a pooler of `pooled` elements instead (``ViTModel``).
    """

    layers: int
    patch: int
    image: int
    block: StackShape
    channels: int = 3
    classes: int | None = 1000
    pooled: int | None = None


def _vit(layers: int, width: int, heads: int, patch: int, image: int) -> ImageShape:
    return ImageShape(layers, patch, image, StackShape(width, heads, 4 * width, VIT_BLOCK))


VIT_SHAPES = {
    "vit-base-patch16-224": _vit(12, 768, 12, 16, 224),
    "vit-base-patch32-384": _vit(12, 768, 12, 32, 384),
    "vit-large-patch16-224": _vit(24, 1024, 16, 16, 224),
    "vit-huge-patch14-224": _vit(32, 1280, 16, 14, 224),
}
"""google on huggingface.co, with ImageNet's classes; Dosovitskiy et al. 2020 (arXiv 2010.11929),
table 1. (Of the largest only the model without them is published, as its in21k.)"""


def vit(name: str, *, dtype: str, image_size: int, shape: ImageShape | None = None) -> Workload:
    """Vision transformer; `image_size` also sets the length of the position embedding.

    Raises `InputError`: the image size is no multiple of the patch.
    """
    shape = shape or VIT_SHAPES[name]
    root = "vit." if shape.classes is not None else ""
    h, tokens = shape.block.width, image_tokens(shape, image_size)
    table: tuple[Parameter, ...] = (
        (f"{root}embeddings.cls_token", (1, 1, h)),
        (f"{root}embeddings.position_embeddings", (1, tokens, h)),
    )
    first = patches(f"{root}embeddings.patch_embeddings.projection", shape, image_size, bias=True)
    joined = class_and_positions(
        f"{root}embeddings", table, tokens, h, dropout=shape.block.dropout, indexed=False
    )
    blocks, ordered = stack_blocks(f"{root}layers", shape.layers, shape.block, tokens)
    norm = last_norm(f"{root}layernorm", tokens, h, kept_result=True)
    head = _head(shape)
    return assemble(
        name,
        [first, joined, *blocks, norm, head],
        dtype=dtype,
        sample=Sample("image", is_image=True),
        source="Hugging Face ViTForImageClassification; Dosovitskiy et al. 2020, arXiv 2010.11929",
        input_elements=float(shape.channels * image_size**2),
        output_elements=shape.classes or h,
        registered=[*table, *first.parameters, *ordered, *norm.parameters, *head.parameters],
        stream_elements=float(tokens * h),
    )


def _head(shape: ImageShape) -> Module:
    """Map the token of the class: to classes, or to as many elements, through tanh."""
    h = shape.block.width
    if shape.classes is not None:
        own = weight_and_bias("classifier", shape.classes, h)
        return linear("classifier", 1, h, shape.classes, parameters=own)
    pooled = shape.pooled or h
    return linear(
        "pooler.dense",
        1,
        h,
        pooled,
        parameters=weight_and_bias("pooler.dense", pooled, h),
        vector_elements=ACTIVATION_PASSES * pooled,
        saved_elements=float(pooled),
        kernels=2,
    )


def image_tokens(shape: ImageShape, image_size: int) -> int:
    """Patches of an image, and the token of its class.

    Raises `InputError`: the image size is no multiple of the patch.
    """
    if image_size % shape.patch:
        raise InputError(Fault("image_size", str(image_size), f"a multiple of {shape.patch}"))
    return (image_size // shape.patch) ** 2 + 1


def patches(name: str, shape: ImageShape, image_size: int, *, bias: bool) -> Module:
    """Cut an image into patches and map them; it keeps the image."""
    image = Image(shape.channels, image_size, image_size)
    module, _ = convolution(
        name, image, shape.block.width, shape.patch, stride=shape.patch, relu=False
    )
    layer = replace(module.layer, saved_elements=float(image.elements))
    own = module.parameters if bias else module.parameters[:1]
    return Module(layer, own, tuple(parameter for parameter, _ in own))


def class_and_positions(
    name: str,
    table: tuple[Parameter, ...],
    tokens: int,
    width: int,
    *,
    dropout: bool,
    indexed: bool,
) -> Module:
    """Put the token of the class before the patches, and add positions.

    `indexed`: whether positions are gathered by indices, which are a buffer.
    """
    passes = ACTIVATION_PASSES + ADD_PASSES + indexed * ACTIVATION_PASSES
    return embedding(
        name,
        table,
        names_reversed(table),
        vector_elements=(passes + dropout * DROPOUT_PASSES) * tokens * width,
        fused_elements=float(JOIN_PASSES * tokens * width),
        saved_bytes=float(dropout * MASK_BYTES * tokens * width),
        kernels=2 + dropout + indexed,
    )
