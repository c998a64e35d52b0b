"""BERT with Hugging Face's tensors: the encoder and its pooler, with or without pre-training."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.workload.model import Buffers, FusedKept, Workload
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
    linear,
    names,
    names_reversed,
    norm_parameters,
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
    name: str, *, dtype: str, sequence_length: int, whole_head: bool = False
) -> Workload:  # fmt: skip
    """Bidirectional encoder; the loss reads the pooled first token.

    `whole_head`: with the heads of pre-training (``BertForPreTraining``), where every position is
    mapped to the vocabulary and enters the loss. Without, pre-training scores the masked positions
    alone, a sixth of them, which is left out.
    """
    shape, s = SHAPES[name], sequence_length
    h = shape.width
    parts = [_embeddings(s, h)]
    for number in range(shape.layers):
        parts += _block(f"encoder.layer.{number}", s, h, shape.heads)
    pooler = weight_and_bias("pooler.dense", h, h)
    parts.append(
        linear(
            "pooler.dense", 1, h, h, parameters=pooler, vector_elements=ACTIVATION_PASSES * h,
            fused_elements=ACTIVATION_PASSES * h, saved_elements=2.0 * h, kernels=2,
        )
    )  # fmt: skip
    if whole_head:
        parts += _head(s, h)
    return assemble(
        name,
        parts,
        dtype=dtype,
        sample=f"sequence of {s} tokens",
        source="Hugging Face BertModel; Devlin et al. 2018, arXiv 1810.04805",
        input_elements=s,
        output_elements=s * VOCABULARY if whole_head else h,
        buffers=(Buffers("int64", 2, 2 * 8 * POSITIONS),),  # position_ids and token_type_ids
    )


def _head(s: int, h: int) -> list[Module]:
    """Map, GELU, normalise; the transposed word embedding, whose gradient it shares; a classifier.

    The embedding's gradient is ready in the embedding's backward.
    """
    prefix = "cls.predictions"
    dense = weight_and_bias(f"{prefix}.transform.dense", h, h)
    norm = norm_parameters(f"{prefix}.transform.LayerNorm", h)
    bias: tuple[Parameter, ...] = ((f"{prefix}.bias", (VOCABULARY,)),)
    logits = s * VOCABULARY
    transform = linear(
        f"{prefix}.transform.dense", s, h, h, parameters=dense + norm,
        ready=names(norm) + names_reversed(dense),
        vector_elements=float(ACTIVATION_PASSES * s * h), norm_elements=float(NORM_PASSES * s * h),
        fused_elements=float((ACTIVATION_PASSES + FUSED_NORM_PASSES) * s * h),
        saved_elements=2.0 * s * h, stream_elements=float(s * h), kernels=3,
    )  # fmt: skip
    decoder = linear(
        f"{prefix}.decoder", s, h, VOCABULARY, parameters=bias, ready=names(bias),
        vector_elements=float(LOSS_PASSES * logits), wide_elements=float(LOSS_PASSES * logits),
        fused_elements=float(FUSED_LOSS_PASSES * logits),
        saved_elements=float(s * h), saved_bytes=float(WIDE_BYTES * logits), kernels=4,
        fused_kept=FusedKept(float(s * h + logits)),
    )  # fmt: skip
    relation = weight_and_bias("cls.seq_relationship", 2, h)
    return [transform, decoder, linear("cls.seq_relationship", 1, h, 2, parameters=relation)]


def _embeddings(s: int, h: int) -> Module:
    prefix = "embeddings"
    tables: tuple[Parameter, ...] = (
        (f"{prefix}.word_embeddings.weight", (VOCABULARY, h)),
        (f"{prefix}.position_embeddings.weight", (POSITIONS, h)),
        (f"{prefix}.token_type_embeddings.weight", (SEGMENTS, h)),
    )
    norm = norm_parameters(f"{prefix}.LayerNorm", h)
    word, position, segment = names(tables)
    # three gathers, two additions, normalised and dropped out
    passes = 3 * ACTIVATION_PASSES + 2 * ADD_PASSES + NORM_PASSES + DROPOUT_PASSES
    return embedding(
        prefix, tables + norm, (*names(norm), position, segment, word),
        vector_elements=passes * s * h, fused_elements=float((1 + JOIN_PASSES) * s * h),
        stream_elements=float(s * h),
        saved_bytes=float((3 * INDEX_BYTES + NORM_BYTES + MASK_BYTES * h) * s),
        kernels=7,
    )  # fmt: skip


def _block(prefix: str, s: int, h: int, heads: int) -> list[Module]:
    """Attend, add, normalise; widen, GELU, narrow, add, normalise."""
    wide = 4 * h
    query, key, value = (
        linear(
            f"{prefix}.attention.self.{part}", s, h, h,
            parameters=weight_and_bias(f"{prefix}.attention.self.{part}", h, h),
            saved_elements=float(s * h) * (part == "query"),  # one input for all three
            copied_elements=float(s * h) * (part != "query"),
        )
        for part in ("query", "key", "value")
    )  # fmt: skip
    widen = linear(
        f"{prefix}.intermediate.dense", s, h, wide,
        parameters=weight_and_bias(f"{prefix}.intermediate.dense", wide, h),
        vector_elements=float(ACTIVATION_PASSES * s * wide),
        fused_elements=float(ACTIVATION_PASSES * s * wide),
        saved_elements=float(s * h + s * wide), kernels=2,
    )  # fmt: skip
    return [
        query,
        key,
        value,
        attention(f"{prefix}.attention.self", s, h, heads=heads, causal=False),
        _to_stream(f"{prefix}.attention.output", s, h, h),
        widen,
        _to_stream(f"{prefix}.output", s, wide, h),
    ]


def _to_stream(prefix: str, s: int, inputs: int, h: int) -> Module:
    """Linear map back to the residual stream: dropout, addition, normalisation."""
    dense = weight_and_bias(f"{prefix}.dense", h, inputs)
    norm = norm_parameters(f"{prefix}.LayerNorm", h)
    input_kept = s * inputs * (inputs != h)  # attention keeps its own output
    return linear(
        f"{prefix}.dense", s, inputs, h, parameters=dense + norm,
        ready=names(norm) + names_reversed(dense),
        vector_elements=(DROPOUT_PASSES + ADD_PASSES) * s * h, norm_elements=NORM_PASSES * s * h,
        fused_elements=float(JOIN_PASSES * s * h),
        saved_elements=float(input_kept), stream_elements=float(s * h),
        saved_bytes=float((NORM_BYTES + MASK_BYTES * h) * s), kernels=4,
    )  # fmt: skip
