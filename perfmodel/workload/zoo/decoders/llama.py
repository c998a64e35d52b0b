"""Llama, and decoders alike it (Mistral, Qwen, Gemma), with Hugging Face's tensors."""

from __future__ import annotations

from itertools import chain

from perfmodel.workload.model import Workload
from perfmodel.workload.sample import sequence_of
from perfmodel.workload.shards.shard import WHOLE, Shard
from perfmodel.workload.shards.sizes import SharedSizes, check_shard
from perfmodel.workload.zoo.decoders.decoder_block import (
    BlockPlace,
    attention_part,
    check_norms,
    feed_forward_part,
    registered,
    shape_of_layer,
)
from perfmodel.workload.zoo.decoders.decoder_ends import (
    head_and_loss,
    rotary_buffers,
    token_embedding,
)
from perfmodel.workload.zoo.decoders.decoder_sizes import FAMILIES, SHAPES, DecoderShape
from perfmodel.workload.zoo.layers import Module, assemble


def llama(
    name: str,
    *,
    dtype: str,
    sequence_length: int,
    shape: DecoderShape | None = None,
    family: str | None = None,
    shard: Shard = WHOLE,
) -> Workload:
    """Decoder-only transformer with rotary positions, RMS normalisation and gated feed-forward.

    `shape`: of a model that is not in the zoo; `family`: Hugging Face's class of it.
    `shard`: which part of it a rank holds.
    """
    shape, s = shape or SHAPES[name], sequence_length
    check_shard(
        shard,
        SharedSizes(
            name,
            shape.heads,
            shape.kv_heads,
            shape.mlp_width,
            shape.vocabulary,
            s,
            window=any(shape.window_of(layer) for layer in range(shape.layers)),
        ),
    )
    first, last = token_embedding(shape, s, shard), head_and_loss(shape, s, shard)
    check_norms(name, shape, shard)
    blocks = [_block(i, s, shape, shard) for i in range(shape.layers)]
    parameters = [
        *first.parameters,
        *chain.from_iterable(registered(block, shape.block_names.registered) for block in blocks),
        *last.parameters,
    ]
    return assemble(
        name,
        [first, *chain.from_iterable(blocks), last],
        dtype=dtype,
        sample=sequence_of(s),
        source=f"Hugging Face {family or _hugging_face_class(name)}",
        input_elements=s,
        output_elements=s * shape.vocabulary,
        registered=parameters,
        buffers=rotary_buffers(shape),
        notes=(_CAP_NOTE,) * shape.capped,
        shard=shard,
        stream_elements=float(shard.stream_tokens(s) * shape.width),
    )


_CAP_NOTE = "The cap of attention's scores (a tanh) takes no time of its own, fused or not."


def _hugging_face_class(name: str) -> str:
    return next(
        (family for family, models in FAMILIES.items() if name in models), "LlamaForCausalLM"
    )


def _block(number: int, s: int, shape: DecoderShape, shard: Shard) -> list[Module]:
    """Attention part, then feed-forward part."""
    place = BlockPlace(f"model.layers.{number}", s, shape_of_layer(shape, number), shard)
    attended = attention_part(place, shape.window_of(number))
    return [*attended, *feed_forward_part(place, normed=not shape.parallel)]
