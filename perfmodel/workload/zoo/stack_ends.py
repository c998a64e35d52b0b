"""What stands before and after a stack: tables of tokens and positions, last norm, head."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.workload.model import FusedKept
from perfmodel.workload.shards.calls import column_calls, loss_calls, norm_calls, table_calls
from perfmodel.workload.shards.shard import WHOLE, Shard
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    ADD_PASSES,
    DROPOUT_PASSES,
    ELEMENT_BYTES,
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
    linear,
    names,
    names_reversed,
    norm_parameters,
    numels,
    weight_and_bias,
)
from perfmodel.workload.zoo.transformer import embedding


def token_tables(
    name: str,
    tables: tuple[Parameter, ...],
    tokens: int,
    width: int,
    *,
    dropout: bool,
    indexed: int,
    shard: Shard = WHOLE,
) -> Module:
    """Gather rows of a table of tokens, and add those of a table of positions if there is one.

    `indexed`: tables whose indices are kept (a table of which a slice is added needs none).
    """
    rows, own = shard.map_tokens(tokens), shard.stream_tokens(tokens)
    added = len(tables) > 1
    elements = float((len(tables) * ACTIVATION_PASSES + added * ADD_PASSES) * rows * width)
    return embedding(
        name,
        tables,
        names_reversed(tables),
        vector_elements=elements + dropout * DROPOUT_PASSES * own * width,
        fused_elements=float((JOIN_PASSES if added else ACTIVATION_PASSES) * rows * width),
        saved_bytes=float(indexed * INDEX_BYTES * rows + dropout * MASK_BYTES * own * width),
        kernels=len(tables) + added + dropout,
        calls=table_calls(shard, rows * width, whole_first=added),
    )


def last_norm(
    name: str,
    tokens: int,
    width: int,
    *,
    keeps: bool = True,
    kept_result: bool = False,
    shard: Shard = WHOLE,
) -> Module:
    """Normalise what a stack puts out.

    `keeps`: its input (one row of many keeps a copy, and no more than that).
    `kept_result`: whether its result is kept by nobody else.
    """
    own, parameters = shard.stream_tokens(tokens), norm_parameters(name, width)
    part = embedding(
        name,
        parameters,
        names(parameters),
        vector_elements=float(NORM_PASSES * own * width),
        fused_elements=float(FUSED_NORM_PASSES * own * width),
        stream_elements=float(keeps * own * width),
        saved_elements=float(kept_result * own * width),
        saved_bytes=float(NORM_BYTES * own),
        kernels=1,
        calls=norm_calls(shard, numels(parameters)),
    )
    layer = replace(
        part.layer,
        weight_elements=0.0,
        norm_bytes=float(ELEMENT_BYTES * NORM_PASSES * own * width),
    )
    return replace(part, layer=layer)


def vocabulary_head(
    name: str,
    tokens: int,
    width: int,
    vocabulary: int,
    *,
    norm: tuple[Parameter, ...],
    tied: bool,
    wide_loss: bool,
    shard: Shard,
    biased: bool = False,
) -> Module:
    """Last norm, logits and loss of a rank's part of the vocabulary, or of all of it.

    `tied`: whether the weight is that of the embedding, in whose backward its gradient is ready.
    `biased`: whether there is a bias.
    `wide_loss`: whether logits are cast to fp32 in any precision.
    """
    rows, own = shard.map_tokens(tokens), shard.stream_tokens(tokens)
    padded = shard.padded(vocabulary)
    own_words = padded // shard.tensor
    head = weight_and_bias(name, own_words, width, bias=biased)[tied:]
    scored = rows * (own_words if shard.parallel_loss else padded)
    kept_input = shard.kept_tokens(tokens) * width
    return linear(
        name,
        rows,
        width,
        own_words,
        parameters=norm + head,
        ready=names_reversed(head) + names(norm),
        norm_elements=float(NORM_PASSES * own * width),
        vector_elements=float(LOSS_PASSES * scored),
        wide_elements=float(LOSS_PASSES * scored),
        fused_elements=float(FUSED_NORM_PASSES * own * width + FUSED_LOSS_PASSES * scored),
        saved_elements=float(kept_input),
        stream_elements=float(own * width + (not wide_loss) * scored),
        saved_bytes=float(NORM_BYTES * own + wide_loss * WIDE_BYTES * scored),
        kernels=5,
        fused_kept=FusedKept(float(kept_input + scored), float(own * width)),
        calls=column_calls(shard, rows * width)
        + loss_calls(shard, rows, padded)
        + norm_calls(shard, numels(norm)),
    )
