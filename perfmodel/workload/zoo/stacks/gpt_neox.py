"""GPT-NeoX (Pythia) with Hugging Face's tensors: rotary positions, two branches side by side."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.workload.model import Buffers, Workload
from perfmodel.workload.shards.shard import WHOLE, Shard
from perfmodel.workload.shards.sizes import SharedSizes, check_shard
from perfmodel.workload.zoo.layers import Parameter, assemble, norm_parameters
from perfmodel.workload.zoo.stacks.stack_block import (
    AttentionNames,
    BlockNames,
    StackShape,
    stack_blocks,
)
from perfmodel.workload.zoo.stacks.stack_ends import token_tables, vocabulary_head

NEOX_BLOCK = BlockNames(
    attention=AttentionNames(
        ("attention.query_key_value",), "attention.dense", "input_layernorm"
    ),
    widen="mlp.dense_h_to_4h",
    narrow="mlp.dense_4h_to_h",
    norm="post_attention_layernorm",
    registered=(
        "input_layernorm", "post_attention_layernorm", "attention.query_key_value",
        "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NeoxShape:
    """Layers, vocabulary, whether the head is the embedding, and the sizes of a block."""

    layers: int
    vocabulary: int
    block: StackShape
    tied: bool = False


def gpt_neox(
    name: str, *, dtype: str, sequence_length: int, shape: NeoxShape, shard: Shard = WHOLE
) -> Workload:
    """Decoder-only transformer trained to predict the next token.

    `shard`: which part of it a rank holds.
    """
    s, block = sequence_length, shape.block
    h = block.width
    check_shard(
        shard, SharedSizes(name, block.heads, block.heads, block.mlp_width, shape.vocabulary, s)
    )
    own_words = shard.padded(shape.vocabulary) // shard.tensor
    table: tuple[Parameter, ...] = (("gpt_neox.embed_in.weight", (own_words, h)),)
    first = token_tables(
        "gpt_neox.embed_in", table, s, h, dropout=block.dropout, indexed=1, shard=shard
    )
    blocks, ordered = stack_blocks("gpt_neox.layers", shape.layers, block, s, shard=shard)
    last = vocabulary_head(
        "lm_head", s, h, shape.vocabulary, norm=norm_parameters("gpt_neox.final_layer_norm", h),
        tied=shape.tied, wide_loss=True, shard=shard,
    )  # fmt: skip
    frequencies = int(h // block.heads * block.rotary_share) // 2
    return assemble(
        name,
        [first, *blocks, last],
        dtype=dtype,
        sample=f"sequence of {s} tokens",
        source="Hugging Face GPTNeoXForCausalLM; Black et al. 2022, arXiv 2204.06745",
        input_elements=s,
        output_elements=s * shape.vocabulary,
        registered=[*first.parameters, *ordered, *last.parameters],
        buffers=(Buffers("fp32", 2, 2 * 4 * frequencies),),
        shard=shard,
        stream_elements=float(shard.stream_tokens(s) * h),
    )
