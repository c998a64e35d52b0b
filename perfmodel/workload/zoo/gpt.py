"""GPT-2 and GPT-3 with Hugging Face's tensors: the head shares the token embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfmodel.workload.model import Workload
from perfmodel.workload.shards.shard import WHOLE, Shard
from perfmodel.workload.zoo.layers import ONE_KERNEL, ActivationFunction
from perfmodel.workload.zoo.stack_block import AttentionNames, BlockNames, StackShape
from perfmodel.workload.zoo.text_decoder import DecoderEnds, TextDecoderShape, text_decoder

GPT_VOCABULARY = 50257


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
    vocabulary: int = GPT_VOCABULARY
    mlp_width: int | None = None
    activation: ActivationFunction = ONE_KERNEL
    untied: bool = False

    @property
    def wide(self) -> int:
        """Width of the feed-forward part."""
        return self.mlp_width or 4 * self.width


GPT2 = "Hugging Face GPT2LMHeadModel; Radford et al. 2019, table 2"
SOURCES = {
    "megatron": "GPT-2's tensors at the sizes of Narayanan et al. 2021 (arXiv 2104.04473), table "
    "1, and of Korthikanti et al. 2022 (arXiv 2205.05198), table 3",
    "gpt3": "GPT-2's tensors at the sizes of Brown et al. 2020 (arXiv 2005.14165), table 2.1",
}
"""Of models whose names begin so; others are Hugging Face's."""
GPT_BLOCK = BlockNames(
    attention=AttentionNames(("attn.c_attn",), "attn.c_proj", "ln_1"),
    widen="mlp.c_fc",
    narrow="mlp.c_proj",
    norm="ln_2",
    registered=("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"),
    layers=("qkv", "attention", "projection", "widen", "narrow"),
    transposed=True,
)
"""Hugging Face's Conv1D keeps its weight as (input, output)."""
GPT_ENDS = DecoderEnds(
    "wte", "h", "ln_f", positions="wpe", first_layer="embeddings", keeps_rows=False
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

GPT_SHAPES = {
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
    shape = shape or GPT_SHAPES[name]
    block = StackShape(
        shape.width,
        shape.heads,
        shape.wide,
        GPT_BLOCK,
        causal=True,
        activation=shape.activation,
        dropout=dropout,
        score_dropout=dropout if score_dropout is None else score_dropout,
        wide_scores=False,
        held=0.0,
    )
    decoder = TextDecoderShape(
        shape.layers,
        shape.vocabulary,
        block,
        GPT_ENDS,
        tied=not shape.untied,
        positions=shape.positions,
        embedding_dropout=dropout if embedding_dropout is None else embedding_dropout,
    )
    source = next((SOURCES[start] for start in SOURCES if name.startswith(start)), GPT2)
    sizes: dict[str, Any] = {"dtype": dtype, "sequence_length": sequence_length, "shard": shard}
    return text_decoder(name, shape=decoder, source=source, **sizes)
