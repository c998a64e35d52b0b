"""GPT-2 and GPT-3 with Hugging Face's tensors: the head shares the token embedding."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.workload.model import FusedKept, Workload
from perfmodel.workload.sample import sequence_of
from perfmodel.workload.shards.calls import column_calls, loss_calls, norm_calls, table_calls
from perfmodel.workload.shards.shard import WHOLE, Shard, SharedSizes, check_shard
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
    NORM_PASSES,
    ONE_KERNEL,
    WIDE_BYTES,
    ActivationFunction,
    Module,
    Parameter,
    assemble,
    linear,
    names,
    norm_parameters,
    numels,
)
from perfmodel.workload.zoo.transformer import (
    BlockParameters,
    BlockShape,
    embedding,
    pre_norm_block,
)

VOCABULARY = 50257


@dataclass(frozen=True, slots=True)
class GptShape:
    """Layers, width, heads, longest sequence and vocabulary.

    `mlp_width`: of the feed-forward part, where it is not four times the width.
    `activation`: its function.
    `untied`: whether the head has a weight of its own.
    """

    layers: int
    width: int
    heads: int
    positions: int
    vocabulary: int = VOCABULARY
    mlp_width: int | None = None
    activation: ActivationFunction = ONE_KERNEL
    untied: bool = False

    @property
    def wide(self) -> int:
        """Width of the feed-forward part."""
        return self.mlp_width or 4 * self.width


GPT2 = "Hugging Face GPT2LMHeadModel; Radford et al. 2019, table 2"
GPT3 = "GPT-2's tensors at the sizes of Brown et al. 2020 (arXiv 2005.14165), table 2.1"

MEGATRON = (
    "GPT-2's tensors at the sizes of Narayanan et al. 2021 (arXiv 2104.04473), table 1, and of "
    "Korthikanti et al. 2022 (arXiv 2205.05198), table 3"
)


def _megatron(layers: int, width: int, heads: int) -> GptShape:
    """Sequences of 2,048 tokens; the vocabulary padded to a multiple of 1,024."""
    return GptShape(layers, width, heads, 2048, 51200)


_MEGATRON = {
    "megatron-1.7b": _megatron(24, 2304, 24),
    "megatron-3.6b": _megatron(30, 3072, 32),
    "megatron-7.5b": _megatron(36, 4096, 32),
    "megatron-18.4b": _megatron(40, 6144, 48),
    "megatron-39.1b": _megatron(48, 8192, 64),
    "megatron-76.1b": _megatron(60, 10240, 80),
    "megatron-145.6b": _megatron(80, 12288, 96),
    "megatron-310.1b": _megatron(96, 16384, 128),
    "megatron-529.6b": _megatron(105, 20480, 128),
    "megatron-1008b": _megatron(128, 25600, 160),
    "megatron-22b": _megatron(48, 6144, 64),
    "megatron-175b": _megatron(96, 12288, 96),
}
"""530B and 1T of the second paper are 529.6B and 1008B of the first."""

SHAPES = {
    "gpt2": GptShape(12, 768, 12, 1024),
    "gpt2-medium": GptShape(24, 1024, 16, 1024),
    "gpt2-large": GptShape(36, 1280, 20, 1024),
    "gpt2-xl": GptShape(48, 1600, 25, 1024),
    "gpt3-125m": GptShape(12, 768, 12, 2048),
    "gpt3-350m": GptShape(24, 1024, 16, 2048),
    "gpt3-760m": GptShape(24, 1536, 16, 2048),
    "gpt3-1.3b": GptShape(24, 2048, 16, 2048),
    "gpt3-2.7b": GptShape(32, 2560, 32, 2048),
    "gpt3-6.7b": GptShape(32, 4096, 32, 2048),
    # the paper prints a width of 5140, which 40 heads of 128 cannot have
    "gpt3-13b": GptShape(40, 5120, 40, 2048),
    "gpt3-175b": GptShape(96, 12288, 96, 2048),
    **_MEGATRON,
}


def gpt(
    name: str,
    *,
    dtype: str,
    sequence_length: int,
    shape: GptShape | None = None,
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
    shape, s = shape or SHAPES[name], sequence_length
    h, heads = shape.width, shape.heads
    check_shard(shard, SharedSizes(name, heads, heads, shape.wide, shape.vocabulary, s))
    block = BlockShape(
        s,
        h,
        heads,
        shape.wide,
        causal=True,
        dropout=dropout,
        shard=shard,
        score_dropout=score_dropout,
        activation=shape.activation,
    )
    first_dropout = dropout if embedding_dropout is None else embedding_dropout
    parts = [_embeddings(shape, replace(block, dropout=first_dropout))]
    for number in range(shape.layers):
        parameters = _block_parameters(f"h.{number}", h, shape.wide, shard.tensor)
        parts += pre_norm_block(f"h.{number}", block, parameters)
    parts.append(_head(block, shard.padded(shape.vocabulary), untied=shape.untied))
    return assemble(
        name,
        parts,
        dtype=dtype,
        sample=sequence_of(s),
        source=_source(name),
        input_elements=s,
        output_elements=s * shape.vocabulary,
        shard=shard,
        stream_elements=float(shard.stream_tokens(s) * h),
    )


def _embeddings(shape: GptShape, block: BlockShape) -> Module:
    """Gather rows of both tables, add them, drop some of the sum."""
    shard, h = block.shard, shape.width
    own_vocabulary = shard.padded(shape.vocabulary) // shard.tensor
    rows, own = shard.map_tokens(block.tokens), shard.stream_tokens(block.tokens)
    tables: tuple[Parameter, ...] = (
        ("wte.weight", (own_vocabulary, h)),
        ("wpe.weight", (shape.positions, h)),
    )
    # rows read and written twice, added, dropped out
    gathered = float((2 * ACTIVATION_PASSES + ADD_PASSES) * rows * h)
    gathered += block.dropout * DROPOUT_PASSES * own * h
    return embedding(
        "embeddings",
        tables,
        ("wpe.weight", "wte.weight"),
        vector_elements=gathered,
        fused_elements=float(JOIN_PASSES * rows * h),
        saved_bytes=float(2 * INDEX_BYTES * rows + block.dropout * MASK_BYTES * own * h),
        kernels=3 + block.dropout,
        calls=table_calls(shard, rows * h, whole_first=True),
    )


def _head(block: BlockShape, vocabulary: int, *, untied: bool) -> Module:
    """Last norm, logits and loss of a rank's part of the vocabulary, or of all of it."""
    shard, h = block.shard, block.width
    rows, own = shard.map_tokens(block.tokens), shard.stream_tokens(block.tokens)
    own_vocabulary, norm = vocabulary // shard.tensor, norm_parameters("ln_f", h)
    head: tuple[Parameter, ...] = (("lm_head.weight", (own_vocabulary, h)),) * untied
    scored = rows * (own_vocabulary if shard.parallel_loss else vocabulary)
    return linear(
        "lm_head",
        rows,
        h,
        own_vocabulary,
        parameters=norm + head,
        ready=names(head) + names(norm),
        norm_elements=NORM_PASSES * own * h,
        vector_elements=LOSS_PASSES * scored,
        wide_elements=float(LOSS_PASSES * scored),
        fused_elements=FUSED_NORM_PASSES * own * h + FUSED_LOSS_PASSES * scored,
        saved_elements=float(shard.kept_tokens(block.tokens) * h),
        stream_elements=float(own * h),
        saved_bytes=float(WIDE_BYTES * scored),
        kernels=5,
        fused_kept=FusedKept(float(shard.kept_tokens(block.tokens) * h + scored), float(own * h)),
        calls=column_calls(shard, rows * h)
        + loss_calls(shard, rows, vocabulary)
        + norm_calls(shard, numels(norm)),
    )


def _source(name: str) -> str:
    if name.startswith("megatron"):
        return MEGATRON
    return GPT3 if name.startswith("gpt3") else GPT2


def _block_parameters(prefix: str, h: int, wide: int, ranks: int) -> BlockParameters:
    """Hugging Face's Conv1D keeps its weight as (input, output).

    `ranks`: that share a map; its bias is added to whole results of rows by each.
    """

    def mapped(name: str, inputs: int, outputs: int) -> tuple[Parameter, ...]:
        return (
            (f"{prefix}.{name}.weight", (inputs, outputs)),
            (f"{prefix}.{name}.bias", (outputs,)),
        )

    return BlockParameters(
        first_norm=norm_parameters(f"{prefix}.ln_1", h),
        qkv=mapped("attn.c_attn", h, 3 * h // ranks),
        projection=mapped("attn.c_proj", h // ranks, h),
        second_norm=norm_parameters(f"{prefix}.ln_2", h),
        widen=mapped("mlp.c_fc", h, wide // ranks),
        narrow=mapped("mlp.c_proj", wide // ranks, h),
    )
