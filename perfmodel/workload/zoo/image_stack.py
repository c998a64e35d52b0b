"""Vision transformers of Hugging Face and torchvision, and CLIP.

Images are cut into patches, before which a token for the class stands. CLIP has a stack for images,
one for texts, and a contrastive loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from perfmodel.errors import refuse_if
from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.kernels.shapes import MatrixProduct
from perfmodel.workload.model import ELEMENT_BYTES, Buffers, Layer, Sample, Workload
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.image_layers import IMAGENET_CLASSES, Image, convolution, image_model
from perfmodel.workload.zoo.layers import (
    ACTIVATIONS,
    INDEX_BYTES,
    MASK_BYTES,
    Module,
    Parameter,
    assemble,
    linear,
    names,
    names_reversed,
    norm_parameters,
    renamed,
    weight_and_bias,
    with_work,
)
from perfmodel.workload.zoo.published import module_names, published_sizes
from perfmodel.workload.zoo.stack_block import (
    BLOCK_NAMES,
    StackShape,
    stack_blocks,
)
from perfmodel.workload.zoo.transformer import embedding, last_norm, token_tables


@dataclass(frozen=True, slots=True)
class ImageShape:
    """Layers, size of a patch and of an image, channels of it, and the sizes of a block.

    `classes`: of the classifier; None: a pooler of `pooled` elements instead (``ViTModel``).
    `names`: of the family. DINOv2's classifier reads the mean of all patches, too, and has no
        pooler; `masked`: whether there is a token for patches left out, which nobody leaves out.
    """

    layers: int
    patch: int
    image: int
    block: StackShape
    channels: int = 3
    classes: int | None = 1000
    pooled: int | None = None
    names: str = "vit"
    masked: bool = False


def _vit(layers: int, width: int, heads: int, patch: int, image: int) -> ImageShape:
    return ImageShape(layers, patch, image, StackShape(width, heads, 4 * width, BLOCK_NAMES["vit"]))


VIT_SHAPES = {name: _vit(**sizes) for name, sizes in published_sizes("images")["vit"].items()}


VIT_B_16 = ImageShape(
    12, 16, 224, StackShape(768, 12, 3072, BLOCK_NAMES["torchvision"], wide_scores=False, held=0.0)
)
"""ViT-B/16 of torchvision."""


def vit_b_16(*, dtype: str, image_size: int) -> Workload:
    """ViT-B/16 of torchvision; `image_size` also sets the length of the position embedding.

    Raises `InputError`: the image size is no multiple of the patch.
    """
    shape, h = VIT_B_16, VIT_B_16.block.width
    tokens, image = image_tokens(shape, image_size), Image(3, image_size, image_size)
    cut, _ = convolution("conv_proj", image, h, shape.patch, stride=shape.patch, relu=False)
    # the class token belongs to the model itself and is registered before all modules
    token: Parameter = ("class_token", (1, 1, h))
    table: tuple[Parameter, ...] = (token, ("encoder.pos_embedding", (1, tokens, h)))
    blocks, _ = stack_blocks("encoder.layers.encoder_layer", shape.layers, shape.block, tokens)
    norm, head = (
        norm_parameters("encoder.ln", h),
        weight_and_bias("heads.head", IMAGENET_CLASSES, h),
    )
    parts = [
        cut,
        class_and_positions(table[1][0], table, tokens, h, dropout=False, indexed=False),
        *(
            _as_torchvision(part, joins_maps=at % len(shape.block.names.layers) == 0)
            for at, part in enumerate(blocks)
        ),
        linear(
            "heads.head",
            1,
            h,
            IMAGENET_CLASSES,
            parameters=norm + head,
            ready=names_reversed(head) + names(norm),
            norm_elements=passes_of("norm") * tokens * h,
            fused_elements=passes_of("fused_norm") * tokens * h,
            saved_elements=float(
                2 * tokens * h
            ),  # its head reads a view of the norm's whole result
            kernels=2,
        ),
    ]
    return image_model(
        "vit-b-16",
        parts,
        dtype=dtype,
        image_size=image_size,
        source="torchvision vit_b_16; Dosovitskiy et al. 2020, arXiv 2010.11929",
        registered=[token, *[each for part in parts for each in part.parameters if each != token]],
    )


def _as_torchvision(part: Module, *, joins_maps: bool) -> Module:
    """Rename a part; the sum of gradients for ``in_proj_bias`` is not counted.

    `joins_maps`: whether this is the map of queries, keys and values, the first part of a block.
    """
    matrix = part.layer.matrix
    if joins_maps and isinstance(matrix, MatrixProduct):
        part = with_work(part, matrix=replace(matrix, has_bias=False))
    return renamed(part, module_names("replaced")["vit-torchvision"])


def vit(name: str, *, dtype: str, image_size: int, shape: ImageShape | None = None) -> Workload:
    """Vision transformer; `image_size` also sets the length of the position embedding.

    Raises `InputError`: the image size is no multiple of the patch.
    """
    shape = shape or VIT_SHAPES[name]
    root, own_pool = f"{shape.names}." * (shape.classes is not None), shape.names == "vit"
    h, tokens = shape.block.width, image_tokens(shape, image_size)
    table: tuple[Parameter, ...] = (
        (f"{root}embeddings.cls_token", (1, 1, h)),
        (f"{root}embeddings.position_embeddings", (1, tokens, h)),
    )
    first = patches(f"{root}embeddings.patch_embeddings.projection", shape, image_size, bias=True)
    joined = class_and_positions(
        f"{root}embeddings", table, tokens, h, dropout=shape.block.dropout, indexed=False
    )
    mask: tuple[Parameter, ...] = ((f"{root}embeddings.mask_token", (1, h)),) * shape.masked
    path = f"{root}layers" if own_pool else f"{root}encoder.layer"
    blocks, ordered = stack_blocks(path, shape.layers, shape.block, tokens)
    norm = last_norm(f"{root}layernorm", tokens, h, kept_result=own_pool)
    heads = [_head(shape, tokens)] if own_pool or shape.classes is not None else []
    return assemble(
        name,
        [first, joined, *blocks, norm, *heads],
        dtype=dtype,
        sample=Sample("image", is_image=True),
        source=SOURCES[shape.names],
        input_elements=float(shape.channels * image_size**2),
        output_elements=shape.classes or h,
        registered=[
            table[0],
            *mask,
            table[1],
            *first.parameters,
            *ordered,
            *norm.parameters,
            *(parameter for head in heads for parameter in head.parameters),
        ],
        stream_elements=float(tokens * h),
    )


SOURCES = {
    "vit": "Hugging Face ViTForImageClassification; Dosovitskiy et al. 2020, arXiv 2010.11929",
    "dinov2": "Hugging Face Dinov2ForImageClassification; Oquab et al. 2023, arXiv 2304.07193",
}


def _head(shape: ImageShape, tokens: int) -> Module:
    """Map the token of the class: to classes, or to as many elements, through tanh."""
    h = shape.block.width
    if shape.names == "dinov2" and shape.classes is not None:
        return linear(
            "classifier",
            1,
            2 * h,
            shape.classes,
            vector_elements=float(tokens * h),
            saved_elements=float(2 * h),
            kernels=3,
        )
    if shape.classes is not None:
        return linear("classifier", 1, h, shape.classes)
    pooled = shape.pooled or h
    return linear(
        "pooler.dense",
        1,
        h,
        pooled,
        vector_elements=passes_of("activation") * pooled,
        saved_elements=float(pooled),
        kernels=2,
    )


def image_tokens(shape: ImageShape, image_size: int) -> int:
    """Patches of an image, and the token of its class.

    Raises `InputError`: the image size is no multiple of the patch.
    """
    refuse_if(
        image_size % shape.patch, "image_size", str(image_size), f"a multiple of {shape.patch}"
    )
    return (image_size // shape.patch) ** 2 + 1


def patches(name: str, shape: ImageShape, image_size: int, *, bias: bool) -> Module:
    """Cut an image into patches and map them; it keeps the image."""
    image = Image(shape.channels, image_size, image_size)
    module, _ = convolution(
        name, image, shape.block.width, shape.patch, stride=shape.patch, relu=False
    )
    own = module.parameters if bias else module.parameters[:1]
    return replace(
        with_work(module, saved_elements=float(image.elements)), parameters=own, ready=names(own)
    )


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
    passes = passes_of("activation") + passes_of("addition") + indexed * passes_of("activation")
    return embedding(
        name,
        table,
        names_reversed(table),
        vector_elements=(passes + dropout * passes_of("dropout")) * tokens * width,
        fused_elements=float(passes_of("fused_addition") * tokens * width),
        saved_bytes=float(dropout * MASK_BYTES * tokens * width),
        kernels=2 + dropout + indexed,
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
    block = StackShape(
        width, heads, 4 * width, BLOCK_NAMES["clip"], activation=ACTIVATIONS["quick_gelu"]
    )
    texts = replace(block, width=text[0], heads=text[1], mlp_width=4 * text[0], causal=True)
    return ClipShape(ImageShape(layers, patch, 224, block), 12, texts, projection=projection)


CLIP_SHAPES = {name: _clip(**sizes) for name, sizes in published_sizes("images")["clip"].items()}


def clip(name: str, *, dtype: str, image_size: int, shape: ClipShape | None = None) -> Workload:
    """Images and as many texts, each of which is compared with all of the batch.

    The comparison, of so many elements for each pair, is left out: it grows with the square of the
    batch, and is nothing beside the stacks.
    Raises `InputError`: the image size is no multiple of the patch.
    """
    shape = shape or CLIP_SHAPES[name]
    image_parts, image_parameters = _images(shape, image_size)
    text_parts, text_parameters = text_stack(shape)
    scale: tuple[Parameter, ...] = (("logit_scale", ()),)
    positions = image_tokens(shape.image, image_size) + shape.tokens
    return assemble(
        name,
        [*image_parts, *text_parts, Module(comparison(shape), scale, names(scale))],
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
    return [
        first,
        joined,
        norm,
        *blocks,
        pooled,
        _projection("visual_projection", h, shape.projection),
    ], [table[0], *first.parameters, table[1], *norm.parameters, *ordered, *pooled.parameters]


def text_stack(shape: ClipShape) -> tuple[list[Module], list[Parameter]]:
    """Parts of the stack for texts, the projection last; parameters of the stack alone."""
    root, h = "text_model", shape.block.width
    tables: tuple[Parameter, ...] = (
        (f"{root}.embeddings.token_embedding.weight", (shape.vocabulary, h)),
        (f"{root}.embeddings.position_embedding.weight", (shape.tokens, h)),
    )
    first = token_tables(f"{root}.embeddings", tables, shape.tokens, h, dropout=False, indexed=1)
    blocks, ordered = stack_blocks(
        f"{root}.encoder.layers", shape.layers, shape.block, shape.tokens
    )
    norm = last_norm(f"{root}.final_layer_norm", shape.tokens, h)
    return [first, *blocks, norm, _projection("text_projection", h, shape.projection)], [
        *tables,
        *ordered,
        *norm.parameters,
    ]


def _projection(name: str, width: int, projection: int) -> Module:
    """Map the one token that stands for an image or a text."""
    own = weight_and_bias(name, projection, width, bias=False)
    return linear(name, 1, width, projection, parameters=own, saved_elements=float(width))


def comparison(shape: ClipShape) -> Layer:
    """Both features divided by their length: squared, summed, the root, a quotient."""
    elements = 2.0 * shape.projection
    return Layer(
        "logit_scale",
        vector_bytes=8 * elements * ELEMENT_BYTES,
        saved_elements=3 * elements,
        kernels=12,
    )


MODELS = {
    "vit-b-16": Buildable("vit-b-16", vit_b_16, 224, "image"),
    **{
        name: Buildable(name, partial(vit, name), s.image, "image")
        for name, s in VIT_SHAPES.items()
    },
    **{
        name: Buildable(name, partial(clip, name), s.image.image, "image")
        for name, s in CLIP_SHAPES.items()
    },
}
"""Models of the zoo, with the image size that their authors trained with."""
