"""CLIP with Hugging Face's tensors: a stack for images, one for texts, and a contrastive loss."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.workload.model import Buffers, Layer, Workload
from perfmodel.workload.sample import Sample
from perfmodel.workload.zoo.image_stack import (
    ImageShape,
    class_and_positions,
    image_tokens,
    patches,
)
from perfmodel.workload.zoo.layers import (
    ACTIVATIONS,
    ELEMENT_BYTES,
    INDEX_BYTES,
    Module,
    Parameter,
    assemble,
    linear,
    names,
    weight_and_bias,
)
from perfmodel.workload.zoo.stack_block import (
    AttentionNames,
    BlockNames,
    StackShape,
    stack_blocks,
)
from perfmodel.workload.zoo.transformer import last_norm, token_tables

CLIP_BLOCK = BlockNames(
    attention=AttentionNames(
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "self_attn.out_proj",
        "layer_norm1",
    ),
    widen="mlp.fc1",
    narrow="mlp.fc2",
    norm="layer_norm2",
    registered=(
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.q_proj",
        "self_attn.out_proj",
        "layer_norm1",
        "mlp.fc1",
        "mlp.fc2",
        "layer_norm2",
    ),
)


@dataclass(frozen=True, slots=True)
class ClipShape:
    """Both stacks, and what they are mapped to.

    `layers`, `block`, `tokens`, `vocabulary`: of the stack for texts.
    `projection`: elements that an image and a text are compared by.
    """

    image: ImageShape
    layers: int
    block: StackShape
    tokens: int = 77
    vocabulary: int = 49408
    projection: int = 512


def _clip(
    layers: int, width: int, heads: int, patch: int, text: tuple[int, int], projection: int
) -> ClipShape:
    quick = ACTIVATIONS["quick_gelu"]
    block = StackShape(width, heads, 4 * width, CLIP_BLOCK, activation=quick)
    texts = replace(block, width=text[0], heads=text[1], mlp_width=4 * text[0], causal=True)
    return ClipShape(ImageShape(layers, patch, 224, block), 12, texts, projection=projection)


CLIP_SHAPES = {
    "clip-vit-base-patch32": _clip(12, 768, 12, 32, (512, 8), 512),
    "clip-vit-base-patch16": _clip(12, 768, 12, 16, (512, 8), 512),
    "clip-vit-large-patch14": _clip(24, 1024, 16, 14, (768, 12), 768),
}
"""openai on huggingface.co; Radford et al. 2021 (arXiv 2103.00020), table 20."""


def clip(name: str, *, dtype: str, image_size: int, shape: ClipShape | None = None) -> Workload:
    """Images and as many texts, each of which is compared with all of the batch.

    The comparison, of so many elements for each pair, is left out: it grows with the square of the
    batch, and is nothing beside the stacks.
    Raises `InputError`: the image size is no multiple of the patch.
    """
    shape = shape or CLIP_SHAPES[name]
    image_parts, image_parameters = _images(shape, image_size)
    text_parts, text_parameters = _texts(shape)
    scale: tuple[Parameter, ...] = (("logit_scale", ()),)
    positions = image_tokens(shape.image, image_size) + shape.tokens
    return assemble(
        name,
        [*image_parts, *text_parts, Module(_comparison(shape), scale, names(scale))],
        dtype=dtype,
        sample=Sample("image", "and its text", is_image=True),
        source="Hugging Face CLIPModel; Radford et al. 2021, arXiv 2103.00020",
        input_elements=float(shape.image.channels * image_size**2 + shape.tokens),
        output_elements=2.0 * shape.projection,
        registered=[
            *scale,
            *text_parameters,
            *image_parameters,
            *image_parts[-1].parameters,
            *text_parts[-1].parameters,
        ],
        buffers=(Buffers("int64", 2, INDEX_BYTES * positions),),  # position_ids of both
    )


def _images(shape: ClipShape, image_size: int) -> tuple[list[Module], list[Parameter]]:
    """Parts of the stack for images, the projection last; parameters of the stack alone."""
    image, root = shape.image, "vision_model"
    h, tokens = image.block.width, image_tokens(image, image_size)
    table: tuple[Parameter, ...] = (
        (f"{root}.embeddings.class_embedding", (h,)),
        (f"{root}.embeddings.position_embedding.weight", (tokens, h)),
    )
    first = patches(f"{root}.embeddings.patch_embedding", image, image_size, bias=False)
    joined = class_and_positions(
        f"{root}.embeddings", table, tokens, h, dropout=False, indexed=True
    )
    norm = last_norm(f"{root}.pre_layrnorm", tokens, h)  # spelt like this
    blocks, ordered = stack_blocks(f"{root}.encoder.layers", image.layers, image.block, tokens)
    pooled = last_norm(f"{root}.post_layernorm", 1, h)
    stack = [
        table[0],
        *first.parameters,
        table[1],
        *norm.parameters,
        *ordered,
        *pooled.parameters,
    ]
    projection = _projection("visual_projection", h, shape.projection)
    return [first, joined, norm, *blocks, pooled, projection], stack


def _texts(shape: ClipShape) -> tuple[list[Module], list[Parameter]]:
    """Parts of the stack for texts, the projection last; parameters of the stack alone."""
    root, h = "text_model", shape.block.width
    tables: tuple[Parameter, ...] = (
        (f"{root}.embeddings.token_embedding.weight", (shape.vocabulary, h)),
        (f"{root}.embeddings.position_embedding.weight", (shape.tokens, h)),
    )
    first = token_tables(f"{root}.embeddings", tables, shape.tokens, h, dropout=False, indexed=1)
    path = f"{root}.encoder.layers"
    blocks, ordered = stack_blocks(path, shape.layers, shape.block, shape.tokens)
    norm = last_norm(f"{root}.final_layer_norm", shape.tokens, h)
    stack = [*tables, *ordered, *norm.parameters]
    projection = _projection("text_projection", h, shape.projection)
    return [first, *blocks, norm, projection], stack


def _projection(name: str, width: int, projection: int) -> Module:
    """Map the one token that stands for an image or a text."""
    own = weight_and_bias(name, projection, width, bias=False)
    return linear(name, 1, width, projection, parameters=own, saved_elements=float(width))


def _comparison(shape: ClipShape) -> Layer:
    """Both features divided by their length: squared, summed, the root, a quotient."""
    elements = 2.0 * shape.projection
    return Layer(
        "logit_scale",
        vector_bytes=8 * elements * ELEMENT_BYTES,
        saved_elements=3 * elements,
        kernels=12,
    )
