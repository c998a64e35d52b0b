"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): maps of low rank, rotary heads."""

from __future__ import annotations

from perfmodel.workload.shards.calls import LayerCall, column_calls, norm_calls
from perfmodel.workload.shards.shard import Shard
from perfmodel.workload.zoo.decoder_block import (
    NORM_KERNELS,
    ROTARY_PASSES,
    BlockPlace,
    kept_by_norm,
    projection,
)
from perfmodel.workload.zoo.expert_sizes import LatentShape
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    FUSED_NORM_PASSES,
    Module,
    linear,
    names,
    numels,
    weight_and_bias,
)
from perfmodel.workload.zoo.transformer import attention

JOIN_HEADS_PASSES = 2
"""Parts of a head put beside each other: read and written."""


def latent_attention_part(place: BlockPlace, latent: LatentShape) -> list[Module]:
    """Normalise; queries, and keys and values, through narrow maps; attend; add."""
    shape, shard, prefix = place.shape, place.shard, f"{place.prefix}.self_attn"
    s, heads, rotary = shard.map_tokens(place.tokens), shape.heads // shard.tensor, latent.rotary
    size = latent.plain + rotary
    turned = float(s * rotary * heads)
    joined = float(s * heads * size)
    turn, fused_turn = ROTARY_PASSES * turned + JOIN_HEADS_PASSES * joined, 2 * joined
    if latent.query_rank is None:
        queries = [
            _normed(
                place,
                "q_proj",
                shape.width,
                heads * size,
                norm="input_layernorm",
                by_columns=True,
                vector=turn,
                fused=fused_turn,
            )
        ]
    else:
        queries = [
            _normed(place, "q_a_proj", shape.width, latent.query_rank, norm="input_layernorm"),
            _normed(
                place,
                "q_b_proj",
                latent.query_rank,
                heads * size,
                norm="self_attn.q_a_layernorm",
                by_columns=True,
                vector=turn,
                fused=fused_turn,
            ),
        ]
    return [
        *queries,
        _normed(
            place,
            "kv_a_proj_with_mqa",
            shape.width,
            latent.key_value_rank + rotary,
            shared=True,
            vector=float(ROTARY_PASSES * s * rotary),
            fused=float(ACTIVATION_PASSES * s * rotary),
            calls=_rotary_key_calls(shard, s * rotary),
        ),
        _normed(
            place,
            "kv_b_proj",
            latent.key_value_rank,
            heads * (latent.plain + latent.value),
            norm="self_attn.kv_a_layernorm",
            by_columns=True,
            vector=JOIN_HEADS_PASSES * joined,
            fused=JOIN_HEADS_PASSES * joined,
        ),
        attention(
            prefix,
            place.tokens,
            shape.heads * size,
            heads=shape.heads,
            value_width=shape.heads * latent.value,
            kept_values=shape.heads * (latent.plain + latent.value),
            causal=True,
            dropout=shape.score_dropout,
            wide_scores=True,
            shard=shard,
        ),
        projection(place, "self_attn.o_proj", heads * latent.value, shape.width, added=True),
    ]


def _normed(
    place: BlockPlace,
    name: str,
    inputs: int,
    outputs: int,
    *,
    norm: str = "",
    shared: bool = False,
    by_columns: bool = False,
    vector: float = 0.0,
    fused: float = 0.0,
    calls: tuple[LayerCall, ...] = (),
) -> Module:
    """One map, with the norm before it, and what is done with heads after it.

    Narrow maps are held by each rank of a tensor group, for its own tokens; those from narrow to
    heads are cut by columns (Megatron-Core 0.16, ``multi_latent_attention.py``).
    """
    shape, shard = place.shape, place.shard
    stream = shard.stream_tokens(place.tokens)
    s = shard.map_tokens(place.tokens) if by_columns else stream
    own = weight_and_bias(f"{place.prefix}.self_attn.{name}", outputs, inputs, bias=False)
    normed = weight_and_bias(f"{place.prefix}.{norm}", inputs, bias=False) if norm else ()
    norm_passes, norm_kernels = NORM_KERNELS[shape.fused_norms]
    elements = stream * inputs * bool(norm)
    # all but the block's first norm read what a product put out
    results = elements * norm.startswith("self_attn.")
    saved = kept_by_norm(elements, stream * bool(norm), shape, results=results)
    saved["saved_elements"] += float(elements)
    calls += norm_calls(shard, numels(normed + (() if by_columns else own)))
    if by_columns:
        calls += column_calls(shard, s * inputs)
    return linear(
        f"{place.prefix}.self_attn.{name}",
        s,
        inputs,
        outputs,
        parameters=normed + own,
        ready=names(own) + names(normed),
        vector_elements=vector,
        norm_elements=float(norm_passes * elements),
        wide_norm=bool(norm) and not shape.fused_norms,
        fused_elements=fused + FUSED_NORM_PASSES * elements,
        copied_elements=float(shared * stream * inputs),
        **saved,
        kernels=1 + norm_kernels * bool(norm) + 6 * bool(vector),
        calls=calls,
    )


def _rotary_key_calls(shard: Shard, elements: float) -> tuple[LayerCall, ...]:
    """The one rotary key of all heads is gathered from the ranks that have its tokens."""
    if shard.sequence_ranks == 1:
        return ()
    ranks = shard.tensor
    return (
        LayerCall("tensor", "all_gather", float(elements), ranks, "forward", "after"),
        LayerCall("tensor", "reduce_scatter", float(elements), ranks, "backward", "before"),
    )
