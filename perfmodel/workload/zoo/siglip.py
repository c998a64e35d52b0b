"""SigLIP with Hugging Face's tensors: CLIP without a class token, whose images attention pools."""

from __future__ import annotations

from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.model import Buffers, Sample, Workload
from perfmodel.workload.zoo.image_stack import (
    ClipShape,
    comparison,
    image_tokens,
    patches,
    text_stack,
)
from perfmodel.workload.zoo.layers import (
    INDEX_BYTES,
    NORM_BYTES,
    Module,
    Parameter,
    assemble,
    linear,
    names,
    names_reversed,
    norm_parameters,
    weight_and_bias,
)
from perfmodel.workload.zoo.stack_block import StackShape, stack_blocks
from perfmodel.workload.zoo.transformer import attention, embedding, last_norm


def siglip(name: str, *, dtype: str, image_size: int, shape: ClipShape) -> Workload:
    """Images and as many texts, each compared with all of the batch, which is left out as CLIP's.

    Raises `InputError`: the image size is no multiple of the patch.
    """
    h = shape.block.width
    tokens = image_tokens(shape.image, image_size) - 1
    images, image_parameters = _images(shape, image_size, tokens)
    (*texts, _), text_parameters = text_stack(shape)
    head = linear("text_model.head", 1, h, shape.projection, saved_elements=float(h))
    scale: tuple[Parameter, ...] = (("logit_scale", (1,)), ("logit_bias", (1,)))
    positions = tokens + shape.tokens
    return assemble(
        name,
        [*images, *texts, head, Module(comparison(shape), scale, names_reversed(scale))],
        dtype=dtype,
        sample=Sample("image", "and its text", is_image=True),
        source="Hugging Face SiglipModel; Zhai et al. 2023, arXiv 2303.15343",
        input_elements=float(shape.image.channels * image_size**2 + shape.tokens),
        output_elements=2.0 * shape.projection,
        registered=[*scale, *text_parameters, *head.parameters, *image_parameters],
        buffers=(Buffers("int64", 2, INDEX_BYTES * positions),),  # position_ids of both
    )


def _images(shape: ClipShape, image_size: int, tokens: int) -> tuple[list[Module], list[Parameter]]:
    """Parts of the stack for images, and its parameters."""
    image, root = shape.image, "vision_model"
    h, block = image.block.width, image.block
    first = patches(f"{root}.embeddings.patch_embedding", image, image_size, bias=True)
    table: tuple[Parameter, ...] = ((f"{root}.embeddings.position_embedding.weight", (tokens, h)),)
    placed = embedding(
        f"{root}.embeddings",
        table,
        names(table),
        vector_elements=float((passes_of("activation") + passes_of("addition")) * tokens * h),
        fused_elements=float(passes_of("fused_addition") * tokens * h),
        kernels=2,
    )
    blocks, ordered = stack_blocks(f"{root}.encoder.layers", image.layers, block, tokens)
    norm = last_norm(f"{root}.post_layernorm", tokens, h)
    pooled = _pooled(f"{root}.head", block, tokens)
    rest = [each for part in (norm, *pooled) for each in part.parameters]
    return [first, placed, *blocks, norm, *pooled], [*first.parameters, *table, *ordered, *rest]


def _pooled(root: str, block: StackShape, tokens: int) -> list[Module]:
    """One learned query attends to all tokens; a perceptron follows.

    The map of keys and values keeps the last norm's result, and a copy of its own is laid anew.
    """
    h, wide, place = block.width, block.mlp_width, f"{root}.attention"
    probe: tuple[Parameter, ...] = ((f"{root}.probe", (1, 1, h)),)
    joined: tuple[Parameter, ...] = (
        (f"{place}.in_proj_weight", (3 * h, h)),
        (f"{place}.in_proj_bias", (3 * h,)),
    )
    out, norm = weight_and_bias(f"{place}.out_proj", h, h), norm_parameters(f"{root}.layernorm", h)
    return [
        linear(
            f"{place}.query",
            1,
            h,
            h,
            parameters=probe + joined,
            ready=names_reversed(joined) + names(probe),
            vector_elements=2.0 * passes_of("activation") * h,
            saved_elements=float(h),
            kernels=3,
        ),
        linear(
            f"{place}.key_value",
            tokens,
            h,
            2 * h,
            parameters=(),
            vector_elements=2.0 * passes_of("activation") * tokens * h,
            saved_elements=float(tokens * h),
            kernels=2,
        ),
        attention(place, 1, h, heads=block.heads, causal=False, keys=tokens, dropout=False),
        linear(f"{place}.out_proj", 1, h, h, parameters=out),
        linear(
            f"{root}.mlp.fc1",
            1,
            h,
            wide,
            parameters=norm + weight_and_bias(f"{root}.mlp.fc1", wide, h),
            ready=(f"{root}.mlp.fc1.bias", f"{root}.mlp.fc1.weight", *names(norm)),
            norm_elements=float(passes_of("norm") * h),
            saved_elements=float(h),
            stream_elements=float(h),
            saved_bytes=float(NORM_BYTES),
            kernels=2,
        ),
        linear(
            f"{root}.mlp.fc2",
            1,
            wide,
            h,
            vector_elements=float(block.activation.passes * wide + passes_of("addition") * h),
            saved_elements=float(block.activation.saved * wide),
            kernels=2 + block.activation.kernels,
        ),
    ]
