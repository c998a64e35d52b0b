"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): narrow maps, and rotary heads."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.layer_calls import (
    LayerCall,
    column_calls,
    norm_calls,
    tensor_call,
)
from perfmodel.workload.model import Kept
from perfmodel.workload.zoo.decoder_block import BlockPlace, kept_by_norm, projection, rms_norm_work
from perfmodel.workload.zoo.decoder_sizes import (
    LatentShape,
)
from perfmodel.workload.zoo.layers import (
    Module,
    linear,
    names,
    norm_parameters,
    numels,
    weight_and_bias,
    with_work,
)
from perfmodel.workload.zoo.transformer import attention


def latent_attention_part(place: BlockPlace, latent: LatentShape) -> list[Module]:
    """Return the modules of multi-head latent attention.

    The input is normalised, mapped to queries and to keys and values through narrow maps, attended
    and added back.
    """
    shape, shard, prefix = place.shape, place.shard, f"{place.prefix}.self_attn"
    s, heads, rotary = shard.map_tokens(place.tokens), shape.heads // shard.tensor, latent.rotary
    size = latent.plain + rotary
    turned = float(s * rotary * heads)
    joined = float(s * heads * size)
    turn, fused_turn = passes_of("rotary") * turned + passes_of("joined_heads") * joined, 2 * joined
    first, narrow = "input_layernorm", latent.query_rank
    return [
        *([normed_map(place, "q_a_proj", shape.width, narrow, norm=first)] if narrow else []),
        normed_map(
            place,
            "q_b_proj" if narrow else "q_proj",
            narrow or shape.width,
            heads * size,
            norm="self_attn.q_a_layernorm" if narrow else first,
            by_columns=True,
            vector=turn,
            fused=fused_turn,
        ),
        normed_map(
            place,
            "kv_a_proj_with_mqa",
            shape.width,
            latent.key_value_rank + rotary,
            shared=True,
            vector=float(passes_of("rotary") * s * rotary),
            fused=float(passes_of("activation") * s * rotary),
            # the one rotary key of all heads is gathered from the ranks that have its tokens
            calls=(
                tensor_call(shard, "all_gather", s * rotary, "forward"),
                tensor_call(shard, "reduce_scatter", s * rotary, "backward", "before"),
            )
            * shard.sequence_parallel,
        ),
        normed_map(
            place,
            "kv_b_proj",
            latent.key_value_rank,
            heads * (latent.plain + latent.value),
            norm="self_attn.kv_a_layernorm",
            by_columns=True,
            vector=passes_of("joined_heads") * joined,
            fused=passes_of("joined_heads") * joined,
        ),
        *_indexer(place, latent),
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


def _indexer(place: BlockPlace, latent: LatentShape) -> list[Module]:
    """Maps of queries, keys and weights, and scores of all pairs; it has no backward.

    Each rank of a tensor group runs all of it, as what it chooses holds for all heads.
    """
    if not latent.index_heads or latent.query_rank is None:
        return []
    s, h, heads, size = place.tokens, place.shape.width, latent.index_heads, latent.index_size
    root, pairs = f"{place.prefix}.self_attn.indexer", float(s * s)
    turned = float(latent.rotary * passes_of("rotary") + size * passes_of("joined_heads")) * s
    key = weight_and_bias(f"{root}.wk", size, h, bias=False) + norm_parameters(
        f"{root}.k_norm", size
    )
    maps = [
        linear(
            f"{root}.{name}",
            s,
            inputs,
            outputs,
            parameters=own or weight_and_bias(f"{root}.{name}", outputs, inputs, bias=False),
            vector_elements=elements,
            kernels=kernels,
        )
        for name, inputs, outputs, own, elements, kernels in (
            ("wq_b", latent.query_rank, heads * size, (), turned * heads, 8),
            ("wk", h, size, key, turned + passes_of("norm") * s * size, 9),
            ("weights_proj", h, heads, (), float(passes_of("activation") * s * heads), 3),
        )
    ]
    products = [
        with_work(
            linear(
                f"{root}.{name}", rows, depth, s, parameters=(), vector_elements=more, kernels=many
            ),
            weight_elements=0.0,
        )
        for name, rows, depth, more, many in (
            ("scores", s * heads, size, passes_of("index_scores") * heads * pairs, 3),
            ("choice", s, heads, passes_of("index_choice") * pairs, 7),
        )
    ]
    return [replace(with_work(part, gradients=0), ready=()) for part in [*maps, *products]]


def normed_map(
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
    norm_passes, norm_kernels = rms_norm_work(shape)
    elements = stream * inputs * bool(norm)
    # the norms inside of attention read the result of a product, the block's first one does not
    results = elements * norm.startswith("self_attn.")
    saved = kept_by_norm(elements, stream * bool(norm), shape, results=results)
    saved["saved_elements"] += float(elements)
    calls += norm_calls(shard, numels(normed if by_columns else normed + own))
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
        fused_elements=fused + passes_of("fused_norm") * elements,
        copied_elements=float(shared * stream * inputs),
        **saved,
        fused_kept=Kept(float(elements + results), float(elements - results)),
        kernels=1 + norm_kernels * bool(norm) + 6 * bool(vector),
        calls=calls + (column_calls(shard, s * inputs) if by_columns else ()),
    )
