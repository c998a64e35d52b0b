"""BERT with Hugging Face's tensors: the encoder and its pooler, with or without pre-training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Literal

from perfmodel.errors import raise_faults
from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.layer_calls import norm_calls, tensor_call
from perfmodel.workload.model import Buffers, Workload, sequence_of
from perfmodel.workload.shard import (
    WHOLE,
    Shard,
    SharedSizes,
    check_shard,
    shard_faults,
    whole_faults,
)
from perfmodel.workload.zoo.bert_block import POSITIONS, BertShape, block, embeddings
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.deberta import convolved, position_table
from perfmodel.workload.zoo.layers import (
    ACTIVATIONS,
    INDEX_BYTES,
    Module,
    Parameter,
    assemble,
    linear,
    names,
    names_reversed,
    norm_parameters,
    numels,
    rename,
    renamed,
    weight_and_bias,
    with_work,
)
from perfmodel.workload.zoo.published import module_names, published_sizes
from perfmodel.workload.zoo.transformer import vocabulary_head

HEAD_BIAS, TRANSFORM = "cls.predictions.bias", "cls.predictions.transform"
Head = Literal["pooler", "pre-training", "masked"]
"""What stands on the encoder."""


@dataclass(frozen=True, slots=True)
class BertNames:
    """What a family calls BERT's modules, and how it registers them.

    `replaced`: patterns in BERT's names and what stands for them, one after the other.
    `positions_last`: whether the table of positions comes behind the norm of the embeddings.
    `bias_first`: whether the bias of the head comes before the modules in it.
    `head_first`: whether the head comes before the encoder, so that the table of words, which it
        shares, has its name from there.
    """

    replaced: Sequence[Sequence[str]] = ()
    positions_last: bool = False
    bias_first: bool = True
    head_first: bool = False


ENCODER_NAMES = {family: BertNames(**names) for family, names in module_names("encoders").items()}


SHAPES = {name: BertShape(**fields) for name, fields in published_sizes("text")["bert"].items()}


def bert(
    name: str,
    *,
    dtype: str,
    sequence_length: int,
    whole_head: bool = False,
    shape: BertShape | None = None,
    head: Head | None = None,
    shard: Shard = WHOLE,
) -> Workload:
    """Bidirectional encoder; the loss reads the pooled first token.

    `whole_head`: with the heads of pre-training (``BertForPreTraining``), where every position is
    mapped to the vocabulary and enters the loss. Without, pre-training scores the masked positions
    alone, a sixth of them, which is left out.

    `shape`: of a model that is not in the zoo.
    `head`: instead of `whole_head`: the pooler alone, that and the heads of pre-training, or masked
        tokens alone, without a pooler (``BertForMaskedLM``).
    `shard`: which part of it a rank holds.
    """
    shape, s = shape or SHAPES[name], sequence_length
    head = head or ("pre-training" if whole_head else "pooler")
    h, heads, vocabulary = shape.width, shape.heads, shape.vocabulary
    check_shard(
        shard,
        SharedSizes(
            name,
            heads,
            heads,
            shape.wide,
            vocabulary,
            s,
            False,
            context_limit=(
                "" if head == "masked" else "one rank pools the first token, which all attend to"
            ),
        ),
    )
    if shape.relative:
        raise_faults(shard_faults(shard) or whole_faults(shard, name, "its attention is not split"))
    tables = [position_table(shape.relative, h, normed=not shape.apart)] if shape.relative else []
    blocks = [
        block(f"encoder.layer.{number}", s, shape, shard, tables if number == 0 else ())
        for number in range(shape.layers)
    ]
    conv = convolved(s, h, shape.kernel, dropout=shape.dropout) if shape.kernel else []
    first, *rest = blocks
    parts = [embeddings(s, shape, shard), *tables, *first, *conv, *chain.from_iterable(rest)]
    ordered, given = [parts[0], *chain.from_iterable(blocks), *tables, *conv], len(parts)
    if head != "masked":
        # its input is a view of all tokens, which it holds
        pooler = linear(
            "pooler.dense",
            1,
            h,
            h,
            vector_elements=passes_of("activation") * h,
            fused_elements=passes_of("activation") * h,
            saved_elements=float(shard.stream_tokens(s) * h + h),
            kernels=2,
            # all ranks gather the tokens of all, and pool the first; gradients are split
            calls=(tensor_call(shard, "all_gather", s * h, "forward", "before"),)
            * shard.sequence_parallel,
        )
        parts.append(pooler)
    parts += [] if head == "pooler" else _head(s, shape, shard)
    parts += [linear("cls.seq_relationship", 1, h, 2)] if head == "pre-training" else []
    family, ordered = ENCODER_NAMES[shape.names], [*ordered, *parts[given:]]
    parts = [renamed(part, family.replaced) for part in parts]
    buffers = 1 + bool(shape.segments)  # position_ids and token_type_ids
    return assemble(
        name,
        parts,
        dtype=dtype,
        sample=sequence_of(s),
        source="Hugging Face BertModel; Devlin et al. 2018, arXiv 1810.04805",
        input_elements=s,
        output_elements=h if head == "pooler" else s * vocabulary,
        stream_elements=float(shard.stream_tokens(s) * h),
        buffers=(Buffers("int64", buffers, buffers * INDEX_BYTES * shape.positions),),
        registered=_registered([renamed(part, family.replaced) for part in ordered], family),
        shard=shard,
    )


def _registered(parts: list[Module], family: BertNames) -> list[Parameter]:
    """Hugging Face registers the bias of the head itself before the modules in it."""
    parameters = [parameter for part in parts for parameter in part.parameters]
    positions = [part for part in parts[0].parameters if "position" in part[0]]
    if family.positions_last:
        first = [part for part in parts[0].parameters if part not in positions]
        parameters = [*first, *positions, *parameters[len(parts[0].parameters) :]]
    bias = rename(HEAD_BIAS, family.replaced)
    places = [name for name, _ in parameters]
    if bias not in places or not family.bias_first:
        return parameters
    start = places.index(rename(f"{TRANSFORM}.dense.weight", family.replaced))
    parameters.insert(start, parameters.pop(places.index(bias)))
    head_first = [*parameters[start:], parameters[0], *parameters[1:start]]
    return head_first if family.head_first else parameters


def _head(s: int, shape: BertShape, shard: Shard) -> list[Module]:
    """Map, GELU, normalise; the transposed word embedding, whose gradient it shares.

    The embedding's gradient is ready in the embedding's backward.
    """
    prefix, h, function = "cls.predictions", shape.width, shape.activation
    if shape.head_activation is not None:
        function = ACTIVATIONS[shape.head_activation]
    dense = weight_and_bias(f"{prefix}.transform.dense", h, h)
    norm = norm_parameters(f"{prefix}.transform.LayerNorm", h)
    own = shard.stream_tokens(s)
    transform = linear(
        f"{prefix}.transform.dense",
        own,
        h,
        h,
        parameters=dense + norm,
        ready=names(norm) + names_reversed(dense),
        vector_elements=float(function.passes * own * h),
        norm_elements=float(passes_of("norm") * own * h),
        fused_elements=float((passes_of("activation") + passes_of("fused_norm")) * own * h),
        saved_elements=float(function.narrow * own * h),
        stream_elements=float((1 + function.wide) * own * h),
        kernels=2 + function.kernels,
        calls=norm_calls(shard, numels(dense + norm)),
    )
    decoder = vocabulary_head(
        prefix,
        s,
        h,
        shape.vocabulary,
        norm=(),
        tied=True,
        biased=True,
        wide_loss=False,
        shard=shard,
    )
    return [transform, with_work(decoder, name=f"{prefix}.decoder")]


MODELS = {
    name: Buildable(name, partial(bert, name), POSITIONS, longest=POSITIONS) for name in SHAPES
}
"""Models of the zoo, with the sequence that their authors trained with."""
