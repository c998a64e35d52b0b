"""Swin with Hugging Face's tensors: attention in windows; patches are joined stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.errors import refuse_if
from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.model import Sample, Workload
from perfmodel.workload.zoo.image_layers import hand_on
from perfmodel.workload.zoo.image_stack import ImageShape, patches
from perfmodel.workload.zoo.layers import (
    NORM_BYTES,
    Module,
    assemble,
    linear,
    names,
    norm_parameters,
    weight_and_bias,
)
from perfmodel.workload.zoo.stack_block import StackShape, stack_blocks
from perfmodel.workload.zoo.transformer import last_norm


def swin(
    name: str,
    *,
    dtype: str,
    image_size: int,
    block: StackShape,
    depths: Sequence[int],
    heads: Sequence[int],
    patch: int,
    channels: int,
    classes: int | None,
) -> Workload:
    """Hierarchical transformer of Liu et al. 2021 (arXiv 2103.14030).

    `block`: of the first stage; each stage is twice as wide as the one before, and joins four
    patches to one. `depths`, `heads`: blocks of each stage, and their heads.
    `classes`: None: there is no classifier.
    Raises `InputError`: sides that do not halve, or are less than a window.
    """
    unit, root = patch << len(depths) - 1, "swin." * (classes is not None)
    refuse_if(
        image_size % unit or image_size // unit < block.local,
        "image_size",
        str(image_size),
        f"a multiple of {unit}, {unit * block.local} or more",
    )
    image = ImageShape(0, patch, image_size, block, channels)
    first = patches(f"{root}embeddings.patch_embeddings.projection", image, image_size, bias=True)
    side, width = image_size // patch, block.width
    parts = [first, last_norm(f"{root}embeddings.norm", side**2, width)]
    registered = [parameter for part in parts for parameter in part.parameters]
    for stage, (depth, count) in enumerate(zip(depths, heads, strict=True)):
        if stage:
            parts += hand_on([_merging(f"{root}encoder.layers.{stage - 1}", side**2, width)], 0)
            side, width = side // 2, 2 * width
            registered += parts[-1].parameters
        shape = replace(block, width=width, heads=count, mlp_width=block.mlp_width << stage)
        blocks, ordered = stack_blocks(
            f"{root}encoder.layers.{stage}.blocks", depth, shape, side**2
        )
        registered += ordered
        size = len(blocks) // depth
        for at in range(0, len(blocks), size):
            parts += hand_on(blocks[at : at + size], side**2 * width)
    last = [last_norm(f"{root}layernorm", side**2, width)]
    last += [linear("classifier", 1, width, classes, saved_elements=width)] if classes else []
    return assemble(
        name,
        [*parts, *last],
        dtype=dtype,
        sample=Sample("image", is_image=True),
        source="Hugging Face SwinForImageClassification; Liu et al. 2021, arXiv 2103.14030",
        input_elements=float(channels * image_size**2),
        output_elements=classes or width,
        registered=[*registered, *(each for part in last for each in part.parameters)],
    )


def _merging(name: str, tokens: int, width: int) -> Module:
    """Join four patches, normalise them, and map them to twice the width."""
    norm = norm_parameters(f"{name}.downsample.norm", 4 * width)
    weight = weight_and_bias(f"{name}.downsample.reduction", 2 * width, 4 * width, bias=False)
    elements = tokens * width
    return linear(
        f"{name}.downsample.reduction",
        tokens // 4,
        4 * width,
        2 * width,
        parameters=weight + norm,
        ready=names(weight) + names(norm),
        vector_elements=passes_of("activation") * elements,
        norm_elements=passes_of("norm") * elements,
        fused_elements=passes_of("fused_norm") * elements,
        saved_elements=float(elements),
        stream_elements=float(elements),
        saved_bytes=float(NORM_BYTES * tokens // 4),
        kernels=3,
    )
