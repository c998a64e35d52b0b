"""DiT as diffusers builds it: a transformer over patches, whose norms are set by time and class."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from perfmodel.workload.kernels.element_wise import kernels_of, passes_of
from perfmodel.workload.model import Buffers, Sample, Workload
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.image_layers import Image, convolution
from perfmodel.workload.zoo.layers import (
    INDEX_BYTES,
    NORM_BYTES,
    Module,
    Parameter,
    assemble,
    linear,
)
from perfmodel.workload.zoo.transformer import attention, embedding

TIME_FEATURES = 256
"""Sinusoids of a time."""


def condition_map(
    name: str,
    inputs: int,
    outputs: int,
    *,
    own: tuple[Parameter, ...] | None = None,
    kernels: int = 2,
) -> Module:
    """One map of the condition of a sample, with SiLU.

    `own`: its parameters, where these are not its own alone.
    """
    return linear(
        name,
        1,
        inputs,
        outputs,
        kernels=kernels,
        parameters=own,
        vector_elements=float(passes_of("activation") * outputs),
        saved_elements=float(inputs + outputs),
    )


def modulated_map(name: str, tokens: int, width: int, outputs: int) -> Module:
    """Normalise without parameters, scale and shift as the condition says, and map."""
    elements = tokens * width
    return linear(
        name,
        tokens,
        width,
        outputs,
        norm_elements=passes_of("norm") * elements,
        vector_elements=passes_of("modulation") * elements,
        fused_elements=passes_of("fused_norm") * elements,
        saved_elements=float(elements),
        stream_elements=2.0 * elements,
        saved_bytes=float(NORM_BYTES * tokens),
        kernels=5,
    )


@dataclass(frozen=True, slots=True)
class DitShape:
    """Width, blocks and heads, side of a patch, classes; channels of a code and of what is told.

    XL of Peebles and Xie 2022, table 1; of each channel the noise and its variance are told.
    """

    width: int = 1152
    layers: int = 28
    heads: int = 16
    patch: int = 2
    classes: int = 1000
    channels: int = 4
    outputs: int = 8


DIT, XL = "DiT-XL-2-256", DitShape()
SHRUNK = 8
"""Pixels of a side that become one of the autoencoder's code."""
WIDTH_FACTOR, MODULATIONS = 4, 6
"""Inner width of the perceptron; scales, shifts and gates of a block."""


def dit(*, dtype: str, image_size: int, name: str = DIT, shape: DitShape = XL) -> Workload:
    """Transformer of Peebles and Xie 2022 (arXiv 2212.09748), which learns to tell the noise."""
    width, patch, side = shape.width, shape.patch, max(shape.patch, image_size // SHRUNK)
    code = Image(shape.channels, side, side)
    patches, grid = convolution("pos_embed.proj", code, width, patch, stride=patch, relu=False)
    tokens, elements = grid.height * grid.width, grid.elements
    blocks = (_block(f"transformer_blocks.{block}", tokens, shape) for block in range(shape.layers))
    first = "transformer_blocks.0.norm1.emb.timestep_embedder"
    parts = [
        patches,
        *chain.from_iterable(blocks),
        # the condition is computed once more, with the embedder of the first block
        condition_map(f"{first}.linear_1.again", TIME_FEATURES, width, own=()),
        condition_map(f"{first}.linear_2.again", width, width, own=()),
        condition_map("proj_out_1", width, 2 * width),
        modulated_map("proj_out_2", tokens, width, shape.outputs * patch**2),
    ]
    return assemble(
        name,
        parts,
        dtype=dtype,
        sample=Sample("image", f"of {image_size} x {image_size}", is_image=True),
        source="diffusers DiTTransformer2DModel; Peebles and Xie 2022, arXiv 2212.09748",
        input_elements=float(code.elements),
        output_elements=float(shape.outputs * side**2),
        stream_elements=float(elements),
        buffers=(Buffers("fp32", 1, 4 * elements),),  # sinusoids of places
    )


def _block(name: str, tokens: int, shape: DitShape) -> list[Module]:
    """The condition of the block, attention and perceptron, each modulated before, gated after."""
    width, elements, inner = shape.width, tokens * shape.width, WIDTH_FACTOR * shape.width
    time, place = f"{name}.norm1.emb.timestep_embedder", f"{name}.attn1"
    table = (
        (f"{name}.norm1.emb.class_embedder.embedding_table.weight", (shape.classes + 1, width)),
    )
    gated = float((passes_of("modulation_gate") + passes_of("addition")) * elements)
    return [
        condition_map(
            f"{time}.linear_1", TIME_FEATURES, width, kernels=kernels_of("time_features")
        ),
        condition_map(f"{time}.linear_2", width, width, kernels=kernels_of("class_map")),
        embedding(
            f"{name}.norm1.emb.class_embedder",
            table,
            (table[0][0],),
            kernels=2,
            vector_elements=5.0 * width,
            saved_bytes=float(INDEX_BYTES),
        ),
        condition_map(f"{name}.norm1.linear", width, MODULATIONS * width),
        modulated_map(f"{place}.to_q", tokens, width, width),
        linear(f"{place}.to_k", tokens, width, width, copied_elements=float(elements)),
        linear(f"{place}.to_v", tokens, width, width, copied_elements=float(elements)),
        attention(
            f"{place}.attention", tokens, width, heads=shape.heads, causal=False, dropout=False
        ),
        linear(
            f"{place}.to_out.0",
            tokens,
            width,
            width,
            kernels=4,
            vector_elements=gated + passes_of("activation") * elements,
            fused_elements=float(passes_of("fused_addition") * elements),
            saved_elements=float(elements),
        ),
        modulated_map(f"{name}.ff.net.0.proj", tokens, width, inner),
        linear(
            f"{name}.ff.net.2",
            tokens,
            inner,
            width,
            vector_elements=gated + passes_of("activation") * tokens * inner,
            fused_elements=float(
                passes_of("activation") * tokens * inner + passes_of("fused_addition") * elements
            ),
            saved_elements=float(2 * tokens * inner + elements),
            kernels=4,
        ),
    ]


MODELS = {DIT: Buildable(DIT, dit, 256, "image")}
"""Models of the zoo, with the image size that their authors trained with."""
