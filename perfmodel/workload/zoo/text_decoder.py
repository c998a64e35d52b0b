"""Stacks of text with Hugging Face's tensors.

GPT-2, GPT-3, GPT-NeoX (Pythia), Phi, OPT, Bloom, MPT, Falcon and ModernBERT: blocks of a stack
between ends. The head of GPT shares the token embedding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.layer_calls import norm_calls
from perfmodel.workload.model import Buffers, Workload, sequence_of
from perfmodel.workload.shard import WHOLE, Shard, SharedSizes, check_shard
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.layers import (
    ACTIVATIONS,
    ONE_KERNEL,
    ActivationFunction,
    Module,
    Parameter,
    assemble,
    linear,
    numels,
    weight_and_bias,
)
from perfmodel.workload.zoo.published import module_names, published_sizes
from perfmodel.workload.zoo.stack_block import (
    BLOCK_NAMES,
    StackShape,
    stack_blocks,
)
from perfmodel.workload.zoo.transformer import last_norm, token_tables, vocabulary_head


@dataclass(frozen=True, slots=True)
class DecoderEnds:
    """What a family calls what stands around its blocks.

    `embedding`, `positions`: tables of tokens and of positions ("": rotary ones).
    `embedding_norm`: of embeddings, where these are normalised (Bloom).
    `norm`, `head`: what follows the blocks; `norm_first`: whether the norm is registered before.
    `transform`, `transform_norm`: a map, an activation function and a norm between (ModernBERT).
    `first_layer`: name of the layer that gathers embeddings; "": that of their table.
    `keeps_rows`: whether mean and deviation of each row count among what the last norm keeps.
    """

    embedding: str
    blocks: str
    norm: str
    head: str = "lm_head"
    positions: str = ""
    embedding_norm: str = ""
    transform: str = ""
    transform_norm: str = ""
    norm_first: bool = False
    first_layer: str = ""
    keeps_rows: bool = True


ENDS = {family: DecoderEnds(**names) for family, names in module_names("ends").items()}


@dataclass(frozen=True, slots=True)
class TextDecoderShape:
    """Layers, vocabulary, the sizes of a block, and the row of `ENDS`.

    `tied`: whether the head is the embedding; `biased_head`: whether it has a bias.
    `positions`: rows of the table of positions, where there is one.
    `embedding_dropout`: whether embeddings are dropped out.
    `wide_loss`: whether logits are cast to fp32 in any precision.
    """

    layers: int
    vocabulary: int
    block: StackShape
    ends: str
    tied: bool = False
    biased_head: bool = False
    positions: int = 0
    embedding_dropout: bool = False
    wide_loss: bool = True


def text_decoder(
    name: str,
    *,
    dtype: str,
    sequence_length: int,
    shape: TextDecoderShape,
    source: str,
    shard: Shard = WHOLE,
) -> Workload:
    """Decoder-only transformer trained to predict the next token, or an encoder of masked ones.

    `source`: what its tensors are like. `shard`: which part of it a rank holds.
    """
    s, block, ends = sequence_length, shape.block, ENDS[shape.ends]
    h = block.width
    check_shard(
        shard,
        SharedSizes(
            name,
            block.heads,
            block.pairs,
            block.mlp_width,
            shape.vocabulary,
            s,
            block.causal,
            block.windows is not None,
        ),
    )
    tables: tuple[Parameter, ...] = (
        (f"{ends.embedding}.weight", (shard.words(shape.vocabulary), h)),
        *([(f"{ends.positions}.weight", (shape.positions, h))] if ends.positions else []),
    )
    first = token_tables(
        ends.first_layer or ends.embedding,
        tables,
        s,
        h,
        dropout=shape.embedding_dropout,
        indexed=len(tables),
        shard=shard,
    )
    norms = _norms(ends.embedding_norm, s, block, shard)
    blocks, ordered = stack_blocks(ends.blocks, shape.layers, block, s, shard=shard)
    mapped = _transform(ends, s, block, shard)
    norm = weight_and_bias(ends.transform_norm or ends.norm, h, bias=block.norm_bias)
    last = vocabulary_head(
        ends.head,
        s,
        h,
        shape.vocabulary,
        norm=norm,
        tied=shape.tied,
        biased=shape.biased_head,
        wide_loss=shape.wide_loss,
        keeps_rows=ends.keeps_rows,
        shard=shard,
    )
    rest = [parameter for parameter in last.parameters if parameter not in norm]
    norm = tuple(chain.from_iterable(part.parameters for part in mapped)) + norm
    order = [*norm, *ordered] if ends.norm_first else [*ordered, *norm]
    kinds = len(set(block.windows)) if block.windows else 1  # each turns at a rate of its own
    frequencies = int(h // block.heads * block.rotary_share) // 2
    return assemble(
        name,
        [first, *norms, *blocks, *mapped, last],
        dtype=dtype,
        sample=sequence_of(s),
        source=source,
        input_elements=s,
        output_elements=s * shape.vocabulary,
        registered=[
            *first.parameters,
            *chain.from_iterable(part.parameters for part in norms),
            *order,
            *rest,
        ],
        buffers=((Buffers("fp32", 2 * kinds, 2 * kinds * 4 * frequencies),)) * bool(frequencies),
        shard=shard,
        stream_elements=float(shard.stream_tokens(s) * h),
    )


def _norms(name: str, s: int, block: StackShape, shard: Shard) -> list[Module]:
    """Return a norm of the stream, if it has a name."""
    return [last_norm(name, s, block.width, bias=block.norm_bias, shard=shard)] if name else []


def _transform(ends: DecoderEnds, s: int, block: StackShape, shard: Shard) -> list[Module]:
    """Norm, map and activation function before the norm of the head, if it has these."""
    if not ends.transform:
        return []
    h, own = block.width, shard.stream_tokens(s)
    weight = weight_and_bias(ends.transform, h, h, bias=False)
    mapped = linear(
        ends.transform,
        own,
        h,
        h,
        parameters=weight,
        vector_elements=float(passes_of("activation") * own * h),
        fused_elements=float(passes_of("activation") * own * h),
        saved_elements=float(2 * own * h),
        kernels=2,
        calls=norm_calls(shard, numels(weight)),
    )
    return [*_norms(ends.norm, s, block, shard), mapped]


GPT_VOCABULARY = 50257


def gpt_shape(
    layers: int,
    width: int,
    heads: int,
    positions: int,
    vocabulary: int = GPT_VOCABULARY,
    *,
    mlp_width: int | None = None,
    activation: ActivationFunction = ONE_KERNEL,
    untied: bool = False,
) -> TextDecoderShape:
    """Sizes of a model alike GPT-2.

    `positions`: of the longest sequence.
    `mlp_width`: of the feed-forward part, where it is not four times the width.
    `activation`: its function.
    `untied`: whether the head has a weight of its own.
    """
    return TextDecoderShape(
        layers,
        vocabulary,
        StackShape(
            width,
            heads,
            mlp_width or 4 * width,
            BLOCK_NAMES["gpt"],
            causal=True,
            activation=activation,
            wide_scores=False,
            held=0.0,
        ),
        "gpt",
        tied=not untied,
        positions=positions,
    )


GPT2 = "Hugging Face GPT2LMHeadModel; Radford et al. 2019, table 2"
SOURCES = {
    "megatron": "GPT-2's tensors at the sizes of Narayanan et al. 2021 (arXiv 2104.04473), table "
    "1, and of Korthikanti et al. 2022 (arXiv 2205.05198), table 3",
    "gpt3": "GPT-2's tensors at the sizes of Brown et al. 2020 (arXiv 2005.14165), table 2.1",
}
"""Of models whose names begin so; others are Hugging Face's."""
GPT_ACTIVATIONS = {"gpt2": ACTIVATIONS["gelu_new"], "gpt3": ONE_KERNEL, "megatron": ONE_KERNEL}
"""By family: Hugging Face writes GPT-2's GELU as eight operations; Megatron has one kernel."""
GPT_SHAPES = {
    name: gpt_shape(**fields, activation=activation)
    for family, activation in GPT_ACTIVATIONS.items()
    for name, fields in published_sizes("text")[family].items()
}


def gpt(
    name: str,
    *,
    dtype: str,
    sequence_length: int,
    shape: TextDecoderShape | None = None,
    dropout: bool = True,
    embedding_dropout: bool | None = None,
    score_dropout: bool | None = None,
    shard: Shard = WHOLE,
) -> Workload:
    """Decoder-only transformer trained to predict the next token.

    `shape`: of a model that is not in the zoo.
    `dropout`: of what joins the stream; of embeddings and scores, too, unless stated.
    `shard`: which part of it a rank holds.
    """
    shape = shape or GPT_SHAPES[name]
    drops_scores = dropout if score_dropout is None else score_dropout
    shape = replace(
        shape,
        block=replace(shape.block, dropout=dropout, score_dropout=drops_scores),
        embedding_dropout=dropout if embedding_dropout is None else embedding_dropout,
    )
    source = next((SOURCES[start] for start in SOURCES if name.startswith(start)), GPT2)
    sizes: dict[str, Any] = {"dtype": dtype, "sequence_length": sequence_length, "shard": shard}
    return text_decoder(name, shape=shape, source=source, **sizes)


MODELS = {
    name: Buildable(name, partial(gpt, name), shape.positions, longest=shape.positions)
    for name, shape in GPT_SHAPES.items()
}
"""Models of the zoo, with the sequence that their authors trained with."""
