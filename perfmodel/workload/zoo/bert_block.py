"""Sizes of BERT and its kin, their embeddings, and a block, which normalises last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.workload.kernels.element_wise import kernels_of, passes_of
from perfmodel.workload.layer_calls import (
    column_calls,
    norm_calls,
    row_calls,
    table_calls,
)
from perfmodel.workload.model import Kept
from perfmodel.workload.shard import (
    Shard,
)
from perfmodel.workload.zoo.deberta import one_map, relative_parts
from perfmodel.workload.zoo.layers import (
    INDEX_BYTES,
    MASK_BYTES,
    NORM_BYTES,
    ONE_KERNEL,
    ActivationFunction,
    Module,
    Parameter,
    join_maps,
    linear,
    names,
    names_reversed,
    norm_parameters,
    numels,
    weight_and_bias,
)
from perfmodel.workload.zoo.transformer import attention, embedding

VOCABULARY, POSITIONS, SEGMENTS = 30522, 512, 2


@dataclass(frozen=True, slots=True)
class BertShape:
    """Layers, width, heads, and what of the rest differs from BERT's.

    `mlp_width`: of the feed-forward part, where it is not four times the width.
    `segments`: rows of the table of segments; 0: there is none (DistilBERT).
    `attention_dropout`: whether what attention adds is dropped out as the rest is.
    `head_activation`: of the head, where that is not of the blocks (RoBERTa).
    `has_positions`: whether embeddings have positions added.
    `relative`: rows of the table of relative positions; 0: there is none (but for DeBERTa).
    `apart`: whether positions have maps of their own, and norms are single operations (its first
        version, which has one map for queries, keys and values, and reads no more rows than
        tokens need).
    `kernel`: of the convolution after its first block; 0: there is none.
    """

    layers: int
    width: int
    heads: int
    mlp_width: int | None = None
    vocabulary: int = VOCABULARY
    positions: int = POSITIONS
    segments: int = SEGMENTS
    activation: ActivationFunction = ONE_KERNEL
    dropout: bool = True
    score_dropout: bool = True
    attention_dropout: bool = True
    head_activation: str | None = None
    has_positions: bool = True
    relative: int = 0
    apart: bool = False
    kernel: int = 0
    names: str = "bert"

    @property
    def wide(self) -> int:
        """Width of the feed-forward part."""
        return self.mlp_width or 4 * self.width

    @property
    def norm(self) -> tuple[float, int, int]:
        """Passes and kernels of a norm, and times its input that it keeps."""
        passes, kernels = (
            passes_of("rms_norm") + passes_of("mean"),
            kernels_of("rms_norm") + kernels_of("mean"),
        )
        return (passes, kernels, 3) if self.apart else (passes_of("norm"), 1, 1)


def embeddings(s: int, shape: BertShape, shard: Shard) -> Module:
    """Rows of all tables, added, normalised and dropped out."""
    prefix, h, own = "embeddings", shape.width, shard.stream_tokens(s)
    rows = {
        "word": shard.words(shape.vocabulary),
        "position": shape.positions * shape.has_positions,
        "token_type": shape.segments,
    }
    tables: tuple[Parameter, ...] = tuple(
        (f"{prefix}.{name}_embeddings.weight", (count, h)) for name, count in rows.items() if count
    )
    norm, number = norm_parameters(f"{prefix}.LayerNorm", h), len(tables)
    passes, kernels, times = shape.norm
    # a gather for each table, an addition for each but the first, then normalisation and dropout
    gathered = number * passes_of("activation") + (number - 1) * passes_of("addition")
    return embedding(
        prefix,
        tables + norm,
        (*norm_ready(norm, shape), *names(tables[1:]), *names(tables[:1])),
        vector_elements=gathered * s * h
        + (passes + shape.dropout * passes_of("dropout")) * own * h,
        fused_elements=float((1 + passes_of("fused_addition")) * s * h),
        stream_elements=float(times * own * h),
        saved_bytes=float(
            number * INDEX_BYTES * s + (NORM_BYTES + shape.dropout * MASK_BYTES * h) * own
        ),
        kernels=2 * number - 1 + kernels + shape.dropout,
        calls=table_calls(shard, s * h, whole_first=True) + norm_calls(shard, numels(norm)),
    )


def block(
    prefix: str, s: int, shape: BertShape, shard: Shard, tables: Sequence[Module]
) -> list[Module]:
    """Attend, add, normalise; widen, GELU, narrow, add, normalise.

    `tables`: of positions, whose gradients it may complete.
    """
    h, function = shape.width, shape.activation
    wide, inner, read = shape.wide // shard.tensor, h // shard.tensor, shard.kept_tokens(s) * h
    maps = [
        linear(
            f"{prefix}.attention.self.{part}",
            s,
            h,
            inner,
            parameters=weight_and_bias(f"{prefix}.attention.self.{part}", inner, h),
            saved_elements=float(read) * (part == "query"),  # one input for all three
            copied_elements=float(read) * (part != "query"),
            calls=column_calls(shard, s * h, first=part == "query"),
        )
        for part in ("query", "key", "value")
    ]
    if shard.joins_maps:
        maps = [join_maps(maps, f"{prefix}.attention.self.query_key_value")]
    if shape.relative:
        maps = one_map(maps, f"{prefix}.attention.self") if shape.apart else maps
        maps += relative_parts(
            f"{prefix}.attention.self",
            s,
            h,
            heads=shape.heads,
            rows=min(shape.relative, 2 * s) if shape.apart else shape.relative,
            apart=shape.apart,
            dropout=shape.dropout,
            ready=tuple(name for part in tables for name in names(part.parameters)) * shape.apart,
        )
    return [
        *maps,
        attention(
            f"{prefix}.attention.self",
            s,
            h,
            heads=shape.heads,
            causal=False,
            dropout=shape.score_dropout,
            shard=shard,
        ),
        _to_stream(
            f"{prefix}.attention.output",
            s,
            inner,
            shape,
            shard,
            keeps_input=False,
            drops=shape.dropout and shape.attention_dropout,
        ),
        linear(
            f"{prefix}.intermediate.dense",
            s,
            h,
            wide,
            parameters=weight_and_bias(f"{prefix}.intermediate.dense", wide, h),
            vector_elements=float(function.passes * s * wide),
            fused_elements=float(passes_of("activation") * s * wide),
            saved_elements=float(read + (function.narrow - 1) * s * wide),
            stream_elements=float(function.wide * s * wide),
            fused_kept=None if function.kernels == 1 else Kept(float(read + s * wide)),
            kernels=1 + function.kernels,
            calls=column_calls(shard, s * h),
        ),
        _to_stream(f"{prefix}.output", s, wide, shape, shard, drops=shape.dropout),
    ]


def norm_ready(norm: tuple[Parameter, ...], shape: BertShape) -> tuple[str, ...]:
    """Parameters of a norm in the order in which their gradients are complete."""
    return names_reversed(norm) if shape.apart else names(norm)


def _to_stream(
    prefix: str,
    s: int,
    inputs: int,
    shape: BertShape,
    shard: Shard,
    *,
    drops: bool,
    keeps_input: bool = True,
) -> Module:
    """Linear map back to the residual stream: dropout, addition, normalisation.

    `drops`: whether some of it is dropped out.
    `keeps_input`: whether it does; attention keeps its own output.
    """
    h = shape.width
    dense = weight_and_bias(f"{prefix}.dense", h, inputs)
    norm = norm_parameters(f"{prefix}.LayerNorm", h)
    stream, (passes, kernels, times) = shard.stream_tokens(s) * h, shape.norm
    return linear(
        f"{prefix}.dense",
        s,
        inputs,
        h,
        parameters=dense + norm,
        ready=norm_ready(norm, shape) + names_reversed(dense),
        vector_elements=(drops * passes_of("dropout") + passes_of("addition")) * stream,
        norm_elements=passes * stream,
        wide_norm=shape.apart,
        fused_elements=float(passes_of("fused_addition") * stream),
        saved_elements=float(keeps_input * s * inputs),
        stream_elements=float(times * stream),
        saved_bytes=float(NORM_BYTES * shard.stream_tokens(s) + drops * MASK_BYTES * stream),
        kernels=2 + kernels + drops,
        calls=row_calls(shard, s * h) + norm_calls(shard, numels(dense[1:] + norm)),
    )
