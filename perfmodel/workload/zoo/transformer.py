"""Layers that transformers share: attention, and the pre-normalised block of GPT and ViT.

Assumption: normalisations and activations run as one kernel each, as PyTorch's own modules do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from perfmodel.workload.kernels.shapes import Attention
from perfmodel.workload.model import Layer
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    ADD_PASSES,
    DROPOUT_PASSES,
    ELEMENT_BYTES,
    FUSED_NORM_PASSES,
    JOIN_PASSES,
    MASK_BYTES,
    NORM_BYTES,
    NORM_PASSES,
    Module,
    Parameter,
    linear,
    names,
    names_reversed,
)


def attention(
    name: str, tokens: int, width: int, *, heads: int, kv_width: int | None = None, causal: bool,
    keys: int | None = None, window: int | None = None, dropout: bool = True,
    wide_scores: bool = False, capped_scores: bool = False, value_width: int | None = None,
    kept_values: int | None = None,
) -> Module:  # fmt: skip
    """Scores, softmax and weighted sum; it has no parameters.

    Multiply-accumulates: tokens x keys x width for the scores and as many for the sum, so
    4 x tokens^2 x width operations forward, causal or not. Kept for backward: query, key, value
    and the output.

    `width`: of the queries of all heads; `kv_width`: of keys and values, if heads share them.
    `keys`: tokens that queries look at, where these are others (cross attention).
    `window`: tokens that a query sees at most, of causal attention.
    `dropout`, `wide_scores`, `capped_scores`: of the scores, where it is not fused (see `Layer`).
    `value_width`: of the result of all heads, where values are not as wide as keys.
    `kept_values`: elements of a token that are kept with its values, where these are part of more.
    """
    kv_width, keys = kv_width or width, keys or tokens
    window = window if window is not None and window < tokens else None
    results = value_width or width
    values = results * kv_width // width
    moved = tokens * (width + results) + keys * (kv_width + values)
    saved = moved + keys * ((kept_values or values) - values)
    layer = Layer(
        name=name,
        matmul_flops=2.0 * tokens * keys * (width + results),
        matmul_bytes=float(ELEMENT_BYTES * moved),
        saved_elements=float(saved),
        kind="attention",
        score_elements=float(heads * tokens * keys),
        score_dropout=dropout,
        wide_scores=wide_scores,
        capped_scores=capped_scores,
        matrix=Attention(
            tokens, heads, kv_width * heads // width, width // heads, causal,
            keys=None if keys == tokens else keys, window=window,
            value_head_size=value_width and value_width // heads,
        ),
        fused_bytes=0.0,
    )  # fmt: skip
    return Module(layer)


def embedding(
    name: str,
    parameters: tuple[Parameter, ...],
    ready: tuple[str, ...],
    *,
    vector_elements: float,
    fused_elements: float | None = None,
    saved_elements: float = 0.0,
    stream_elements: float = 0.0,
    saved_bytes: float = 0.0,
    kernels: int,
) -> Module:
    """Gather rows of tables; backward writes a dense gradient of each table."""
    layer = Layer(
        name=name,
        vector_bytes=ELEMENT_BYTES * vector_elements,
        fused_bytes=None if fused_elements is None else ELEMENT_BYTES * fused_elements,
        weight_elements=float(sum(shape[0] * shape[-1] for _, shape in parameters)),
        saved_elements=saved_elements,
        stream_elements=stream_elements,
        saved_bytes=saved_bytes,
        kernels=kernels,
    )
    return Module(layer, parameters, ready)


Parameters = tuple[Parameter, ...]


class BlockParameters(NamedTuple):
    """Parameters of a pre-normalised block, each in registration order."""

    first_norm: tuple[Parameter, ...]
    qkv: tuple[Parameter, ...]
    projection: tuple[Parameter, ...]
    second_norm: tuple[Parameter, ...]
    widen: tuple[Parameter, ...]
    narrow: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Sizes of a pre-normalised block: tokens of one sample, model width, heads."""

    tokens: int
    width: int
    heads: int
    mlp_width: int
    causal: bool
    dropout: bool


def pre_norm_block(name: str, shape: BlockShape, parameters: BlockParameters) -> list[Module]:
    """Normalise, attend, add; normalise, widen, GELU, narrow, add (GPT-2, ViT).

    Kept for backward, in elements per token of width h with mlp_width 4h and dropout: 16 h and
    two masks, which is the 34 s b h bytes of Korthikanti et al. 2022 (arXiv 2205.05198) in half
    precision, without the scores that fused attention does not keep.
    """
    s, h, wide = shape.tokens, shape.width, shape.mlp_width
    drop_passes = shape.dropout * DROPOUT_PASSES
    after = (drop_passes + ADD_PASSES) * s * h
    mask_bytes = float(shape.dropout * MASK_BYTES * s * h)
    tail_kernels = 2 + shape.dropout

    def normed(part: str, outputs: int, norm: Parameters, own: Parameters) -> Module:
        return linear(
            f"{name}.{part}", s, h, outputs, parameters=norm + own,
            ready=names_reversed(own) + names(norm),
            norm_elements=NORM_PASSES * s * h, fused_elements=FUSED_NORM_PASSES * s * h,
            saved_elements=float(s * h), stream_elements=float(s * h),
            saved_bytes=float(NORM_BYTES * s), kernels=2,
        )  # fmt: skip

    return [
        normed("qkv", 3 * h, parameters.first_norm, parameters.qkv),
        attention(f"{name}.attention", s, h, heads=shape.heads, causal=shape.causal,
                  dropout=shape.dropout),
        linear(
            f"{name}.projection", s, h, h, parameters=parameters.projection,
            vector_elements=after, fused_elements=JOIN_PASSES * s * h, saved_bytes=mask_bytes,
            kernels=tail_kernels,
        ),
        normed("widen", wide, parameters.second_norm, parameters.widen),
        linear(
            f"{name}.narrow", s, wide, h, parameters=parameters.narrow,
            vector_elements=ACTIVATION_PASSES * s * wide + after,
            fused_elements=ACTIVATION_PASSES * s * wide + JOIN_PASSES * s * h,
            saved_elements=2.0 * s * wide, saved_bytes=mask_bytes, kernels=tail_kernels + 1,
        ),
    ]  # fmt: skip
