"""Layers that transformers share: attention, and the pre-normalised block of GPT and ViT.

Assumption: normalisations and activations run as one kernel each, as PyTorch's own modules do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from perfmodel.workload.kernels.shapes import Attention
from perfmodel.workload.model import FusedKept, Layer
from perfmodel.workload.shards.calls import (
    LayerCall,
    attention_calls,
    column_calls,
    norm_calls,
    row_calls,
)
from perfmodel.workload.shards.shard import WHOLE, Shard, is_balanced
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
    ONE_KERNEL,
    ActivationFunction,
    Module,
    Parameter,
    linear,
    names,
    names_reversed,
    numels,
)


def attention(
    name: str,
    tokens: int,
    width: int,
    *,
    heads: int,
    kv_width: int | None = None,
    causal: bool,
    keys: int | None = None,
    window: int | None = None,
    dropout: bool = True,
    wide_scores: bool = False,
    capped_scores: bool = False,
    value_width: int | None = None,
    kept_values: int | None = None,
    held: float = 0.0,
    shard: Shard = WHOLE,
) -> Module:
    """Scores, softmax and weighted sum; it has no parameters.

    Multiply-accumulates: tokens x keys x width for the scores and as many for the sum, so
    4 x tokens^2 x width operations forward, causal or not. Kept for backward: query, key, value
    and the output.

    `width`: of the queries of all heads; `kv_width`: of keys and values, if heads share them.
    `keys`: tokens that queries look at, where these are others (cross attention).
    `window`: tokens that a query sees at most, of causal attention.
    `dropout`, `wide_scores`, `capped_scores`: of the scores, where it is not fused (see `Layer`).
    `shard`: which part of it a rank runs; the sizes are those of the whole.
    `value_width`: of the result of all heads, where values are not as wide as keys.
    `kept_values`: elements of a token that are kept with its values, where these are part of more.
    `held`: times the queries' elements that are held beside where it is fused (see `Layer`).
    """
    kv_width, keys = kv_width or width, keys or tokens
    if not shard.is_whole:
        return _shared_attention(
            name,
            replace(
                _attended(shard, tokens, keys, width, heads, kv_width, causal, window),
                value_head_size=value_width and value_width // heads,
            ),
            shard,
            (dropout, wide_scores, capped_scores),
            kept_value=kept_values and kept_values // heads,
            held=held,
        )
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
        held_elements=float(held * tokens * width),
        kind="attention",
        score_elements=float(heads * tokens * keys),
        score_dropout=dropout,
        wide_scores=wide_scores,
        capped_scores=capped_scores,
        matrix=Attention(
            tokens,
            heads,
            kv_width * heads // width,
            width // heads,
            causal,
            keys=None if keys == tokens else keys,
            window=window,
            value_head_size=value_width and value_width // heads,
        ),
        fused_bytes=0.0,
    )
    return Module(layer)


def _attended(
    shard: Shard,
    tokens: int,
    keys: int,
    width: int,
    heads: int,
    kv_width: int,
    causal: bool,
    window: int | None,
) -> Attention:
    """What one rank attends to: its heads, and its tokens or, after an all-to-all, all of them."""
    size, c = width // heads, shard.context
    ranks = shard.tensor * (c if shard.context_kind == "ulysses" else 1)
    own, own_pairs = heads // ranks, max(1, kv_width // size // ranks)
    window = window if window is not None and window < keys else None
    crossed = None if keys == tokens else keys
    if c == 1 or shard.context_kind == "ulysses":
        return Attention(tokens, own, own_pairs, size, causal, keys=crossed, window=window)
    in_blocks = shard.context_kind == "ring" or shard.library == "torch"
    return Attention(
        tokens // c,
        own,
        own_pairs,
        size,
        causal,
        keys=keys,
        window=window,
        blocks=c if in_blocks else 1,
        last=causal and not is_balanced(shard, causal=causal),
    )


def _shared_attention(
    name: str,
    attended: Attention,
    shard: Shard,
    scores: tuple[bool, bool, bool],
    kept_value: int | None = None,
    held: float = 0.0,
) -> Module:
    """Attention of one rank.

    It keeps queries, keys, values and result of its own tokens. Results of blocks of keys are added
    up, scaled, each in a kernel.

    `kept_value`: elements that are kept with a head's value, where that is part of more.
    """
    size, split = attended.head_size, shard.context_kind != "ulysses" and shard.context > 1
    queries = attended.tokens * attended.heads * size
    pairs = attended.all_keys // (shard.context if split else 1) * attended.kv_heads * size
    moved = (queries + pairs) * (size + attended.value_size) // size
    more = pairs // size * ((kept_value or attended.value_size) - attended.value_size)
    merged = float(ELEMENT_BYTES * ADD_PASSES * (attended.blocks - 1) * queries)
    dropout, wide_scores, capped_scores = scores
    layer = Layer(
        name=name,
        matmul_flops=attended.flops,
        matmul_bytes=float(ELEMENT_BYTES * moved),
        vector_bytes=merged,
        fused_bytes=merged,
        saved_elements=float(moved + more),
        held_elements=float(held * queries),
        kind="attention",
        kernels=2 * attended.blocks - 1,
        fused_kernels=2 * attended.blocks - 1,
        score_elements=float(attended.heads * attended.tokens * attended.all_keys),
        score_dropout=dropout,
        wide_scores=wide_scores,
        capped_scores=capped_scores,
        matrix=attended,
        calls=attention_calls(shard, queries, pairs),
    )
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
    calls: tuple[LayerCall, ...] = (),
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
        calls=calls,
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
    """Sizes of a pre-normalised block: tokens of one sample, model width, heads.

    `dropout`: of what is added to the stream; `score_dropout`: of scores, where that differs.
    `shard`: which part of it a rank holds; the sizes are those of the whole.
    """

    tokens: int
    width: int
    heads: int
    mlp_width: int
    causal: bool
    dropout: bool
    shard: Shard = WHOLE
    score_dropout: bool | None = None
    activation: ActivationFunction = ONE_KERNEL


def pre_norm_block(name: str, shape: BlockShape, parameters: BlockParameters) -> list[Module]:
    """Normalise, attend, add; normalise, widen, GELU, narrow, add (GPT-2, ViT).

    Kept for backward, in elements per token of width h with mlp_width 4h and dropout: 16 h and
    two masks, which is the 34 s b h bytes of Korthikanti et al. 2022 (arXiv 2205.05198) in half
    precision, without the scores that fused attention does not keep.
    """
    s, h, shard = shape.tokens, shape.width, shape.shard
    t, own, rows = shard.tensor, shard.stream_tokens(s), shard.map_tokens(s)
    wide, stream, result = shape.mlp_width // t, own * h, rows * h
    drop_passes = shape.dropout * DROPOUT_PASSES
    after = (drop_passes + ADD_PASSES) * stream
    mask_bytes = float(shape.dropout * MASK_BYTES * stream)
    tail_kernels, function = 2 + shape.dropout, shape.activation
    score_dropout = shape.dropout if shape.score_dropout is None else shape.score_dropout
    own_kept = None if function.kernels == 1 else FusedKept(2.0 * rows * wide, 0.0, mask_bytes)

    def normed(part: str, outputs: int, norm: Parameters, own_map: Parameters) -> Module:
        return linear(
            f"{name}.{part}",
            rows,
            h,
            outputs,
            parameters=norm + own_map,
            ready=names_reversed(own_map) + names(norm),
            norm_elements=NORM_PASSES * stream,
            fused_elements=FUSED_NORM_PASSES * stream,
            saved_elements=float(shard.kept_tokens(s) * h),
            stream_elements=float(stream),
            saved_bytes=float(NORM_BYTES * own),
            kernels=2,
            calls=column_calls(shard, result) + norm_calls(shard, numels(norm)),
        )

    return [
        normed("qkv", 3 * h // t, parameters.first_norm, parameters.qkv),
        attention(
            f"{name}.attention",
            s,
            h,
            heads=shape.heads,
            causal=shape.causal,
            dropout=score_dropout,
            shard=shard,
        ),
        linear(
            f"{name}.projection",
            rows,
            h // t,
            h,
            parameters=parameters.projection,
            vector_elements=after,
            fused_elements=JOIN_PASSES * stream,
            saved_bytes=mask_bytes,
            kernels=tail_kernels,
            calls=_row_calls(shard, result, parameters.projection),
        ),
        normed("widen", wide, parameters.second_norm, parameters.widen),
        linear(
            f"{name}.narrow",
            rows,
            wide,
            h,
            parameters=parameters.narrow,
            vector_elements=function.passes * rows * wide + after,
            fused_elements=ACTIVATION_PASSES * rows * wide + JOIN_PASSES * stream,
            saved_elements=float(function.narrow * rows * wide),
            stream_elements=float(function.wide * rows * wide),
            saved_bytes=mask_bytes,
            fused_kept=own_kept,
            kernels=tail_kernels + function.kernels,
            calls=_row_calls(shard, result, parameters.narrow),
        ),
    ]


def _row_calls(shard: Shard, elements: float, parameters: Parameters) -> tuple[LayerCall, ...]:
    """Calls of a map cut by rows, whose bias is added to the tokens of each rank."""
    return row_calls(shard, elements) + norm_calls(shard, numels(parameters[1:]))
