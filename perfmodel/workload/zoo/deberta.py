"""What DeBERTa has beside BERT: scores of relative positions, and a convolution of words.

Scores of words with positions are sums of two products of all heads, from whose results those of
each pair are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.kernels.shapes import MatrixProduct
from perfmodel.workload.model import ELEMENT_BYTES, Layer
from perfmodel.workload.zoo.image_layers import Image
from perfmodel.workload.zoo.layers import (
    INDEX_BYTES,
    MASK_BYTES,
    Module,
    Parameter,
    join_maps,
    linear,
    more_work,
    names,
    names_reversed,
    norm_parameters,
    weight_and_bias,
    with_work,
)
from perfmodel.workload.zoo.transformer import last_norm
from perfmodel.workload.zoo.whisper import sound_convolution

TERMS = 2
"""Words to positions, and positions to words."""


def position_table(rows: int, width: int, *, normed: bool) -> Module:
    """Rows for how far a key is from a query, normalised in the second version.

    Gradients are complete after the first block's, or, in the first version, those of its maps of
    positions.
    """
    table: tuple[Parameter, ...] = (("encoder.rel_embeddings.weight", (rows, width)),)
    norm = norm_parameters("encoder.LayerNorm", width) if normed else ()
    return Module(
        Layer("encoder.rel_embeddings", weight_elements=float(rows * width)),
        table + norm,
        names(table + norm) * normed,
    )


def one_map(maps: Sequence[Module], prefix: str) -> list[Module]:
    """Join maps of queries, keys and values to one weight; keys have no bias."""
    joined, ((_, (width, _)), *_) = join_maps(maps, f"{prefix}.in_proj"), maps[0].parameters
    own: tuple[Parameter, ...] = (
        (f"{prefix}.q_bias", (width,)),
        (f"{prefix}.v_bias", (width,)),
        (f"{prefix}.in_proj.weight", (3 * width, width)),
    )
    return [replace(joined, parameters=own, ready=names((own[1], own[0], own[2])))]


def relative_parts(
    prefix: str,
    s: int,
    width: int,
    *,
    heads: int,
    rows: int,
    apart: bool,
    dropout: bool,
    ready: tuple[str, ...] = (),
) -> list[Module]:
    """Map so many rows of positions, once for all samples, and score words with them.

    `apart`: whether these maps are not those of queries and keys (the first version).
    `ready`: gradients that its backward completes after its own.
    """
    own = weight_and_bias(f"{prefix}.pos_proj", width, width, bias=False)
    own += weight_and_bias(f"{prefix}.pos_q_proj", width, width)
    own *= apart
    maps = linear(
        f"{prefix}.positions",
        rows,
        width,
        TERMS * width,
        parameters=own,
        ready=names_reversed(own) + ready,
        kernels=TERMS + 2 * dropout,
    )
    product = MatrixProduct(s, rows, width // heads, TERMS * heads, of_activations=True)
    scores, copied = float(heads * s * s), float(TERMS * rows * width)
    passes = TERMS * (2 * passes_of("activation") + passes_of("addition")) + passes_of("addition")
    moved = ELEMENT_BYTES * (passes * scores + passes_of("activation") * (3 * s * width + copied))
    return [
        with_work(
            maps,
            matrix=MatrixProduct(rows, TERMS * width, width, shared=True),
            once_bytes=float((2 * TERMS + dropout) * rows * width),
        ),
        Module(
            Layer(
                f"{prefix}.relative_scores",
                matmul_flops=product.flops,
                matmul_bytes=float(ELEMENT_BYTES * product.elements),
                vector_bytes=moved,
                fused_bytes=float(ELEMENT_BYTES * (TERMS + 1) * scores),
                # rows of positions for each sample, results, of which some are gathered, keys
                # over a scale; and which scores are masked
                saved_elements=copied + TERMS * heads * s * rows + s * width,
                saved_bytes=float(s * s),
                once_bytes=float(TERMS * INDEX_BYTES * s * s),
                kernels=20,
                matrix=product,
            )
        ),
    ]


def convolved(s: int, width: int, kernel: int, *, dropout: bool) -> list[Module]:
    """Convolve what the embeddings put out, add it to the first block's result, normalise."""
    words, moved = (
        Image(width, 1, s),
        (passes_of("addition") + dropout * passes_of("dropout")) * s * width,
    )
    part, _ = sound_convolution(
        "encoder.conv.conv",
        words,
        width,
        stride=1,
        kernel=kernel,
        padding=kernel // 2,
        input_elements=0,
    )
    part = with_work(part, saved_bytes=float(MASK_BYTES * dropout * s * width))
    return [
        more_work(part, vector_bytes=ELEMENT_BYTES * moved, kernels=3 + dropout),
        last_norm("encoder.conv.LayerNorm", s, width),
    ]
