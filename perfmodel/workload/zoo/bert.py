"""BERT with Hugging Face's tensors: the encoder and its pooler, with or without pre-training."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.workload.model import Buffers, FusedKept, Workload
from perfmodel.workload.shards.calls import LayerCall
from perfmodel.workload.shards.map_calls import (
    column_calls,
    loss_calls,
    norm_calls,
    row_calls,
    table_calls,
)
from perfmodel.workload.shards.shard import WHOLE, Shard
from perfmodel.workload.shards.sizes import SharedSizes, check_shard
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    ADD_PASSES,
    DROPOUT_PASSES,
    FUSED_LOSS_PASSES,
    FUSED_NORM_PASSES,
    INDEX_BYTES,
    JOIN_PASSES,
    LOSS_PASSES,
    MASK_BYTES,
    NORM_BYTES,
    NORM_PASSES,
    WIDE_BYTES,
    Module,
    Parameter,
    assemble,
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
    """Layers, width and heads; the inner width of the feed-forward part is four times the width."""

    layers: int
    width: int
    heads: int


SHAPES = {"bert-base": BertShape(12, 768, 12), "bert-large": BertShape(24, 1024, 16)}
"""Devlin et al. 2018 (arXiv 1810.04805), section 3; uncased vocabulary."""


def bert(
    name: str, *, dtype: str, sequence_length: int, whole_head: bool = False,
    shard: Shard = WHOLE,
) -> Workload:  # fmt: skip
    """Bidirectional encoder; the loss reads the pooled first token.

    `whole_head`: with the heads of pre-training (``BertForPreTraining``), where every position is
    mapped to the vocabulary and enters the loss. Without, pre-training scores the masked positions
    alone, a sixth of them, which is left out.

    `shard`: which part of it a rank holds.
    """
    shape, s = SHAPES[name], sequence_length
    h, heads = shape.width, shape.heads
    limit = "one rank pools the first token, which all attend to"
    check_shard(
        shard, SharedSizes(name, heads, heads, 4 * h, VOCABULARY, s, False, context_limit=limit)
    )
    parts = [_embeddings(s, h, shard)]
    for number in range(shape.layers):
        parts += _block(f"encoder.layer.{number}", s, h, heads, shard)
    pooler = weight_and_bias("pooler.dense", h, h)
    parts.append(
        linear(
            "pooler.dense", 1, h, h, parameters=pooler, vector_elements=ACTIVATION_PASSES * h,
            fused_elements=ACTIVATION_PASSES * h, saved_elements=2.0 * h, kernels=2,
            calls=_pooling_calls(shard, s * h),
        )
    )  # fmt: skip
    if whole_head:
        parts += _head(s, h, shard)
    return assemble(
        name,
        parts,
        dtype=dtype,
        sample=f"sequence of {s} tokens",
        source="Hugging Face BertModel; Devlin et al. 2018, arXiv 1810.04805",
        input_elements=s,
        output_elements=s * VOCABULARY if whole_head else h,
        stream_elements=float(shard.stream_tokens(s) * h),
        buffers=(Buffers("int64", 2, 2 * 8 * POSITIONS),),  # position_ids and token_type_ids
        shard=shard,
    )


def _pooling_calls(shard: Shard, elements: float) -> tuple[LayerCall, ...]:
    """Gather the tokens of all ranks, each of which pools the first; gradients are split."""
    if not shard.sequence_parallel:
        return ()
    return (LayerCall("tensor", "all_gather", elements, shard.tensor, "forward", "before"),)


def _head(s: int, h: int, shard: Shard) -> list[Module]:
    """Map, GELU, normalise; the transposed word embedding, whose gradient it shares; a classifier.

    The embedding's gradient is ready in the embedding's backward.
    """
    prefix = "cls.predictions"
    dense = weight_and_bias(f"{prefix}.transform.dense", h, h)
    norm = norm_parameters(f"{prefix}.transform.LayerNorm", h)
    own_vocabulary = shard.padded(VOCABULARY) // shard.tensor
    bias: tuple[Parameter, ...] = ((f"{prefix}.bias", (own_vocabulary,)),)
    own = shard.stream_tokens(s)
    logits = s * (own_vocabulary if shard.parallel_loss else shard.padded(VOCABULARY))
    transform = linear(
        f"{prefix}.transform.dense", own, h, h, parameters=dense + norm,
        ready=names(norm) + names_reversed(dense),
        vector_elements=float(ACTIVATION_PASSES * own * h),
        norm_elements=float(NORM_PASSES * own * h),
        fused_elements=float((ACTIVATION_PASSES + FUSED_NORM_PASSES) * own * h),
        saved_elements=2.0 * own * h, stream_elements=float(own * h), kernels=3,
        calls=norm_calls(shard, numels(dense + norm)),
    )  # fmt: skip
    decoder = linear(
        f"{prefix}.decoder", s, h, own_vocabulary, parameters=bias, ready=names(bias),
        vector_elements=float(LOSS_PASSES * logits), wide_elements=float(LOSS_PASSES * logits),
        fused_elements=float(FUSED_LOSS_PASSES * logits),
        saved_elements=float(shard.kept_tokens(s) * h), saved_bytes=float(WIDE_BYTES * logits),
        kernels=4,
        calls=column_calls(shard, s * h) + loss_calls(shard, s, shard.padded(VOCABULARY)),
        fused_kept=FusedKept(float(shard.kept_tokens(s) * h + logits)),
    )  # fmt: skip
    relation = weight_and_bias("cls.seq_relationship", 2, h)
    return [transform, decoder, linear("cls.seq_relationship", 1, h, 2, parameters=relation)]


def _embeddings(s: int, h: int, shard: Shard) -> Module:
    prefix, own = "embeddings", shard.stream_tokens(s)
    tables: tuple[Parameter, ...] = (
        (f"{prefix}.word_embeddings.weight", (shard.padded(VOCABULARY) // shard.tensor, h)),
        (f"{prefix}.position_embeddings.weight", (POSITIONS, h)),
        (f"{prefix}.token_type_embeddings.weight", (SEGMENTS, h)),
    )
    norm = norm_parameters(f"{prefix}.LayerNorm", h)
    word, position, segment = names(tables)
    # three gathers, two additions, normalised and dropped out
    elements = float((3 * ACTIVATION_PASSES + 2 * ADD_PASSES) * s * h)
    elements += (NORM_PASSES + DROPOUT_PASSES) * own * h
    return embedding(
        prefix, tables + norm, (*names(norm), position, segment, word),
        vector_elements=elements, fused_elements=float((1 + JOIN_PASSES) * s * h),
        stream_elements=float(own * h),
        saved_bytes=float(3 * INDEX_BYTES * s + (NORM_BYTES + MASK_BYTES * h) * own),
        kernels=7,
        calls=table_calls(shard, s * h, whole_first=True) + norm_calls(shard, numels(norm)),
    )  # fmt: skip


def _block(prefix: str, s: int, h: int, heads: int, shard: Shard) -> list[Module]:
    """Attend, add, normalise; widen, GELU, narrow, add, normalise."""
    wide, inner, read = 4 * h // shard.tensor, h // shard.tensor, shard.kept_tokens(s) * h
    maps = [
        linear(
            f"{prefix}.attention.self.{part}", s, h, inner,
            parameters=weight_and_bias(f"{prefix}.attention.self.{part}", inner, h),
            saved_elements=float(read) * (part == "query"),  # one input for all three
            copied_elements=float(read) * (part != "query"),
            calls=column_calls(shard, s * h, first=part == "query"),
        )
        for part in ("query", "key", "value")
    ]  # fmt: skip
    if shard.joins_maps:
        maps = [join_maps(maps, f"{prefix}.attention.self.query_key_value")]
    widen = linear(
        f"{prefix}.intermediate.dense", s, h, wide,
        parameters=weight_and_bias(f"{prefix}.intermediate.dense", wide, h),
        vector_elements=float(ACTIVATION_PASSES * s * wide),
        fused_elements=float(ACTIVATION_PASSES * s * wide),
        saved_elements=float(read + s * wide), kernels=2, calls=column_calls(shard, s * h),
    )  # fmt: skip
    return [
        *maps,
        attention(f"{prefix}.attention.self", s, h, heads=heads, causal=False, shard=shard),
        _to_stream(f"{prefix}.attention.output", s, inner, h, shard, keeps_input=False),
        widen,
        _to_stream(f"{prefix}.output", s, wide, h, shard),
    ]


def _to_stream(
    prefix: str, s: int, inputs: int, h: int, shard: Shard, *, keeps_input: bool = True
) -> Module:
    """Linear map back to the residual stream: dropout, addition, normalisation.

    `keeps_input`: whether it does; attention keeps its own output.
    """
    dense = weight_and_bias(f"{prefix}.dense", h, inputs)
    norm = norm_parameters(f"{prefix}.LayerNorm", h)
    stream = shard.stream_tokens(s) * h
    return linear(
        f"{prefix}.dense", s, inputs, h, parameters=dense + norm,
        ready=names(norm) + names_reversed(dense),
        vector_elements=(DROPOUT_PASSES + ADD_PASSES) * stream, norm_elements=NORM_PASSES * stream,
        fused_elements=float(JOIN_PASSES * stream),
        saved_elements=float(keeps_input * s * inputs), stream_elements=float(stream),
        saved_bytes=float(NORM_BYTES * shard.stream_tokens(s) + MASK_BYTES * stream), kernels=4,
        calls=row_calls(shard, s * h) + norm_calls(shard, numels(dense[1:] + norm)),
    )  # fmt: skip
