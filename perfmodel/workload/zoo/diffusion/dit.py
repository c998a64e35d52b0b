"""DiT as diffusers builds it: a transformer over patches, whose norms are set by time and class."""

from __future__ import annotations

from perfmodel.workload.model import Workload
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    ADD_PASSES,
    FUSED_NORM_PASSES,
    INDEX_BYTES,
    JOIN_PASSES,
    NORM_BYTES,
    NORM_PASSES,
    Image,
    Module,
    Parameter,
    assemble,
    convolution,
    linear,
    names_reversed,
    weight_and_bias,
)
from perfmodel.workload.zoo.transformer import attention, embedding

DIT = "DiT-XL-2-256"
WIDTH, LAYERS, HEADS = 1152, 28, 16
"""XL of Peebles and Xie 2022, table 1."""
PATCH, CLASSES, TIME_FEATURES = 2, 1000, 256
LATENT_CHANNELS, SHRUNK, LEARNED = 4, 8, 2
"""Channels of the autoencoder's code, pixels of a side that become one of it, and outputs for each:
the noise and its variance."""
WIDEN, MODULATIONS = 4, 6
"""Inner width of the perceptron; scales, shifts and gates of a block."""
MODULATION_PASSES = 4
"""Scale and shift of a normalised token: two kernels that read and write it."""
GATE_PASSES = 2
FEATURE_KERNELS, DROP_KERNELS = 12, 5
"""Sinusoids of the time and a map with SiLU; a map, and classes left out at random."""


def dit(*, dtype: str, image_size: int) -> Workload:
    """Transformer of Peebles and Xie 2022 (arXiv 2212.09748), which learns to tell the noise."""
    side = max(PATCH, image_size // SHRUNK)
    code = Image(LATENT_CHANNELS, side, side)
    patches, grid = convolution("pos_embed.proj", code, WIDTH, PATCH, stride=PATCH, relu=False)
    tokens, elements = grid.height * grid.width, grid.elements
    parts = [patches]
    for block in range(LAYERS):
        parts += _block(f"transformer_blocks.{block}", tokens)
    first = "transformer_blocks.0.norm1.emb.timestep_embedder"
    # the condition is computed once more, with the embedder of the first block
    parts += [
        _map(f"{first}.linear_1.again", 1, TIME_FEATURES, WIDTH, ()),
        _map(f"{first}.linear_2.again", 1, WIDTH, WIDTH, ()),
        _map("proj_out_1", 1, WIDTH, 2 * WIDTH, weight_and_bias("proj_out_1", 2 * WIDTH, WIDTH)),
        _modulated(
            "proj_out_2", tokens, LEARNED * LATENT_CHANNELS * PATCH**2,
            weight_and_bias("proj_out_2", LEARNED * LATENT_CHANNELS * PATCH**2, WIDTH),
        ),
    ]  # fmt: skip
    return assemble(
        DIT, parts, dtype=dtype, sample=f"image of {image_size} x {image_size}",
        source="diffusers DiTTransformer2DModel; Peebles and Xie 2022, arXiv 2212.09748",
        input_elements=float(code.elements), output_elements=float(LEARNED * code.elements),
        stream_elements=float(elements),
    )  # fmt: skip


def _map(
    name: str, rows: int, inputs: int, outputs: int, parameters: tuple[Parameter, ...],
    kernels: int = 2,
) -> Module:  # fmt: skip
    """A map of the condition, with SiLU."""
    return linear(
        name, rows, inputs, outputs, parameters=parameters, kernels=kernels,
        vector_elements=float(ACTIVATION_PASSES * rows * outputs),
        saved_elements=float(rows * (inputs + outputs)),
    )  # fmt: skip


def _modulated(name: str, tokens: int, outputs: int, parameters: tuple[Parameter, ...]) -> Module:
    """Normalise without parameters, scale and shift as the condition says, and map."""
    elements = tokens * WIDTH
    return linear(
        name, tokens, WIDTH, outputs, parameters=parameters, ready=names_reversed(parameters),
        norm_elements=NORM_PASSES * elements, vector_elements=MODULATION_PASSES * elements,
        fused_elements=FUSED_NORM_PASSES * elements, saved_elements=float(elements),
        stream_elements=2.0 * elements, saved_bytes=float(NORM_BYTES * tokens), kernels=5,
    )  # fmt: skip


def _block(name: str, tokens: int) -> list[Module]:
    """The condition of the block, attention and perceptron, each modulated before, gated after."""
    elements, inner = tokens * WIDTH, WIDEN * WIDTH
    time, place = f"{name}.norm1.emb.timestep_embedder", f"{name}.attn1"
    table = ((f"{name}.norm1.emb.class_embedder.embedding_table.weight", (CLASSES + 1, WIDTH)),)
    set_by = f"{name}.norm1.linear"

    def own(part: str, outputs: int, inputs: int) -> tuple[Parameter, ...]:
        return weight_and_bias(f"{name}.{part}", outputs, inputs)

    def other(letter: str) -> Module:
        return linear(
            f"{place}.to_{letter}", tokens, WIDTH, WIDTH, copied_elements=float(elements),
            parameters=own(f"attn1.to_{letter}", WIDTH, WIDTH),
        )  # fmt: skip

    gated = float((GATE_PASSES + ADD_PASSES) * elements)
    return [
        _map(f"{time}.linear_1", 1, TIME_FEATURES, WIDTH,
             weight_and_bias(f"{time}.linear_1", WIDTH, TIME_FEATURES), FEATURE_KERNELS),
        _map(f"{time}.linear_2", 1, WIDTH, WIDTH,
             weight_and_bias(f"{time}.linear_2", WIDTH, WIDTH), DROP_KERNELS),
        embedding(f"{name}.norm1.emb.class_embedder", table, (table[0][0],), kernels=2,
                  vector_elements=5.0 * WIDTH, saved_bytes=float(INDEX_BYTES)),
        _map(set_by, 1, WIDTH, MODULATIONS * WIDTH,
             weight_and_bias(set_by, MODULATIONS * WIDTH, WIDTH)),
        _modulated(f"{place}.to_q", tokens, WIDTH, own("attn1.to_q", WIDTH, WIDTH)),
        other("k"),
        other("v"),
        attention(f"{place}.attention", tokens, WIDTH, heads=HEADS, causal=False, dropout=False),
        linear(
            f"{place}.to_out.0", tokens, WIDTH, WIDTH, kernels=4,
            parameters=own("attn1.to_out.0", WIDTH, WIDTH),
            vector_elements=gated + ACTIVATION_PASSES * elements,
            fused_elements=float(JOIN_PASSES * elements), saved_elements=float(elements),
        ),
        _modulated(f"{name}.ff.net.0.proj", tokens, inner, own("ff.net.0.proj", inner, WIDTH)),
        linear(
            f"{name}.ff.net.2", tokens, inner, WIDTH, parameters=own("ff.net.2", WIDTH, inner),
            vector_elements=gated + ACTIVATION_PASSES * tokens * inner,
            fused_elements=float(ACTIVATION_PASSES * tokens * inner + JOIN_PASSES * elements),
            saved_elements=float(2 * tokens * inner + elements), kernels=4,
        ),
    ]  # fmt: skip
