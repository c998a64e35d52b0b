"""Decoders of experts with Hugging Face's tensors: Mixtral, Qwen, DeepSeek, Kimi, Llama 4.

Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) has maps of low rank and rotary heads.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import chain

from perfmodel.errors import refuse_if
from perfmodel.workload.layer_calls import (
    LayerCall,
    column_calls,
    joined_calls,
    norm_calls,
    table_calls,
)
from perfmodel.workload.model import Buffers, Kept, Workload, sequence_of
from perfmodel.workload.shard import WHOLE, Shard, SharedSizes, check_shard
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.decoder_block import (
    NORM_KERNELS,
    ROTARY_PASSES,
    BlockPlace,
    attention_part,
    check_norms,
    feed_forward_part,
    kept_by_norm,
    projection,
    shape_of_layer,
)
from perfmodel.workload.zoo.decoder_sizes import (
    EXPERT_NAMES,
    EXPERT_SHAPES,
    USUAL_NAMES,
    ExpertShape,
    LatentShape,
    expert_family,
)
from perfmodel.workload.zoo.expert_settings import ExpertSettings, check_settings
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    FUSED_NORM_PASSES,
    INDEX_BYTES,
    NORM_PASSES,
    Module,
    assemble,
    in_order,
    linear,
    names,
    norm_parameters,
    numels,
    weight_and_bias,
    with_work,
)
from perfmodel.workload.zoo.llama import (
    head_and_loss,
    rotary_buffers,
    token_embedding,
)
from perfmodel.workload.zoo.routed_part import BIAS, RoutedPlace, routed_part
from perfmodel.workload.zoo.transformer import attention

PREFIX = "model.layers.mtp"
"""Without a number, as no stage of a pipeline is dealt this block: it follows the head."""

SHARED_NOTE = (
    "The block that predicts a second token follows the head, on the last stage of a pipeline; the "
    "table that it shares with the embedding is not held there a second time."
)


def joined_tokens(place: BlockPlace) -> Module:
    """Gather embeddings, normalise both streams, put them beside each other, and map them."""
    shape, shard = place.shape, place.shard
    s, rows = shard.stream_tokens(place.tokens), shard.map_tokens(place.tokens)
    h, both = shape.width, 2 * s * shape.width
    columns, whole = h // shard.tensor, float(rows * h)
    norms = weight_and_bias(f"{PREFIX}.enorm", h, bias=False) + weight_and_bias(
        f"{PREFIX}.hnorm", h, bias=False
    )
    own = weight_and_bias(f"{PREFIX}.eh_proj", columns, 2 * h, bias=False)
    passes, kernels = NORM_KERNELS[shape.fused_norms]
    saved = kept_by_norm(both, 2 * s, shape)
    saved["saved_elements"] += float(2 * shard.kept_tokens(place.tokens) * h)  # the product's
    saved["saved_bytes"] += float(INDEX_BYTES * s)
    return linear(
        f"{PREFIX}.eh_proj",
        rows,
        2 * h,
        columns,
        parameters=norms + own,
        ready=names(own) + names(norms),
        # ranks' columns are put beside each other after the gather
        vector_elements=ACTIVATION_PASSES * (s * h + both + whole * (shard.tensor > 1)),
        norm_elements=float(passes * both),
        wide_norm=not shape.fused_norms,
        fused_elements=float(ACTIVATION_PASSES * s * h + FUSED_NORM_PASSES * both),
        kernels=3 + 2 * kernels + (shard.tensor > 1),
        **saved,
        calls=(
            *table_calls(shard, whole, whole_first=False),
            *column_calls(shard, 2 * whole),
            *joined_calls(shard, whole),
            *norm_calls(shard, numels(norms)),
        ),
    )


INDEX_NOTE = (
    "Attention to the keys that an indexer chooses is counted as full attention, as transformers "
    "runs it, which masks the others; nothing trains the indexer there."
)
CHUNK_TOKENS = 8192
"""Tokens within which most layers of Llama 4 attend."""

_ATTENTION = (
    "self_attn.sinks",
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    "self_attn.q_norm",
    "self_attn.k_norm",
)
_LATENT = (
    "self_attn.q_proj",
    "self_attn.q_a_proj",
    "self_attn.q_a_layernorm",
    "self_attn.q_b_proj",
    "self_attn.kv_a_proj_with_mqa",
    "self_attn.kv_a_layernorm",
    "self_attn.kv_b_proj",
    "self_attn.o_proj",
    *(f"self_attn.indexer.{part}" for part in ("wq_b", "wk", "k_norm", "weights_proj")),
)
_MAPS = ("gate_proj", "up_proj", "down_proj")
_NORMS = ("input_layernorm", "post_attention_layernorm")


def expert_decoder(
    name: str,
    *,
    dtype: str,
    sequence_length: int,
    shape: ExpertShape | None = None,
    family: str | None = None,
    settings: ExpertSettings | None = None,
    shard: Shard = WHOLE,
) -> Workload:
    """Decoder-only transformer whose feed-forward parts are experts.

    `shape`, `family`: of a model that is not in the zoo; `family` is Hugging Face's class.
    `settings`: how experts are run; as `ExpertSettings` has it if not given.
    `shard`: which part of it a rank holds.
    Raises `InputError`: settings and shares that the model's experts cannot have.
    """
    shape, s = shape or EXPERT_SHAPES[name], sequence_length
    family, settings = family or expert_family(name), settings or ExpertSettings()
    decoder, routed, order = shape.decoder, shape.routed, _module_order(family, shape.latent)
    sizes = SharedSizes(
        name,
        decoder.heads,
        decoder.kv_heads,
        math.gcd(decoder.mlp_width, routed.shared_width),
        decoder.vocabulary,
        s,
        context_limit="keys and values of latent attention differ in size" if shape.latent else "",
        experts=routed.experts,
    )
    check_shard(shard, sizes)
    check_settings(settings, routed, shard)
    splits = shape.latent is not None and shard.tensor > 1 and shard.library == "torch"
    refuse_if(
        splits,
        "tensor",
        str(shard.tensor),
        f"1 for {name!r} with library: torch, or library: megatron",
    )
    check_norms(name, decoder, shard)
    blocks = [
        _block(
            BlockPlace(f"model.layers.{i}", s, shape_of_layer(decoder, i), shard),
            i,
            shape,
            family,
            settings,
            dtype,
        )
        for i in range(decoder.layers)
    ]
    first, last = token_embedding(decoder, s, shard), head_and_loss(decoder, s, shard)
    second = list[Module]()
    if settings.second_token:
        place = BlockPlace(PREFIX, s, decoder, shard)
        second = [
            joined_tokens(place),
            *_block(place, decoder.layers - 1, shape, family, settings, dtype),
            head_and_loss(decoder, s, shard, name=f"{PREFIX}.shared_head", is_shared=True),
        ]
    parameters = [
        *first.parameters,
        *chain.from_iterable(in_order(block, order, 3) for block in blocks),
        *last.parameters,
        *chain.from_iterable(part.parameters for part in second),
    ]
    routed_blocks = sum(routed.is_routed(i) for i in range(decoder.layers)) + bool(second)
    chunked = family == "Llama4ForCausalLM" and s > CHUNK_TOKENS
    return assemble(
        name,
        [first, *chain.from_iterable(blocks), last, *second],
        dtype=dtype,
        sample=sequence_of(s),
        source=f"Hugging Face {family}, experts as grouped products",
        input_elements=s,
        output_elements=s * decoder.vocabulary,
        registered=parameters,
        buffers=(
            *rotary_buffers(decoder),
            *(Buffers("fp32", routed_blocks, 4 * routed.experts * routed_blocks),)
            * routed.score_bias,
        ),
        notes=(
            *(f"Attention within chunks of {CHUNK_TOKENS} tokens is counted as full attention.",)
            * chunked,
            *(INDEX_NOTE,) * bool(shape.latent and shape.latent.index_heads),
            *(SHARED_NOTE,) * bool(second),
        ),
        routed_share=routed.top_k / routed.experts,
        shard=shard,
        stream_elements=float(shard.stream_tokens(s) * decoder.width),
    )


def _block(
    place: BlockPlace,
    number: int,
    shape: ExpertShape,
    family: str,
    settings: ExpertSettings,
    dtype: str,
) -> list[Module]:
    """Attention part, then experts or a dense feed-forward part."""
    called = EXPERT_NAMES.get(family, USUAL_NAMES)
    attention = (
        latent_attention_part(place, shape.latent)
        if shape.latent
        else attention_part(place, shape.decoder.window_of(number))
    )
    if not shape.routed.is_routed(number):
        return [*attention, *feed_forward_part(place, path=called.path)]
    return [*attention, *routed_part(RoutedPlace(place, shape.routed, settings, dtype, called))]


def _module_order(family: str, latent: LatentShape | None) -> tuple[str, ...]:
    called = EXPERT_NAMES.get(family, USUAL_NAMES)
    shared = [f"{kind}.{name}" for kind in ("shared_experts", "shared_expert") for name in _MAPS]
    experts = [
        f"experts.{name}{bias}" for name in ("gate_up_proj", "down_proj") for bias in ("", BIAS)
    ]
    routed = (called.router, *experts) if called.router_first else (*experts, called.router)
    return (
        *(_LATENT if latent else _ATTENTION),
        *(f"{called.path}.{part}" for part in (*_MAPS, *routed, *shared, "shared_expert_gate")),
        *_NORMS,
    )


JOIN_HEADS_PASSES = 2
"""Parts of a head put beside each other: read and written."""


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


INDEX_PASSES, TOPK_PASSES = 4.0, 7.0
"""Over scores of all heads: scaled, clipped at zero (read and written); over their sum: masked (3),
the greatest found (2), and a mask of these and of the future made and joined (2), in bytes."""


def _indexer(place: BlockPlace, latent: LatentShape) -> list[Module]:
    """Maps of queries, keys and weights, and scores of all pairs; it has no backward.

    Each rank of a tensor group runs all of it, as what it chooses holds for all heads.
    """
    if not latent.index_heads or latent.query_rank is None:
        return []
    s, h, heads, size = place.tokens, place.shape.width, latent.index_heads, latent.index_size
    root, pairs = f"{place.prefix}.self_attn.indexer", float(s * s)
    turned = float(latent.rotary * ROTARY_PASSES + size * JOIN_HEADS_PASSES) * s
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
            ("wk", h, size, key, turned + NORM_PASSES * s * size, 9),
            ("weights_proj", h, heads, (), float(ACTIVATION_PASSES * s * heads), 3),
        )
    ]
    products = [
        linear(f"{root}.{name}", rows, depth, s, parameters=(), vector_elements=more, kernels=many)
        for name, rows, depth, more, many in (
            ("scores", s * heads, size, INDEX_PASSES * heads * pairs, 3),
            ("choice", s, heads, TOPK_PASSES * pairs, 7),
        )
    ]
    products = [with_work(part, weight_elements=0.0) for part in products]
    return [replace(with_work(part, gradients=0), ready=()) for part in [*maps, *products]]


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
    # the norms inside of attention read the result of a product, the block's first one does not
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
        fused_kept=Kept(float(elements + results), float(elements - results)),
        kernels=1 + norm_kernels * bool(norm) + 6 * bool(vector),
        calls=calls,
    )


def _rotary_key_calls(shard: Shard, elements: float) -> tuple[LayerCall, ...]:
    """The one rotary key of all heads is gathered from the ranks that have its tokens."""
    if shard.sequence_ranks == 1:
        return ()
    return (
        LayerCall("tensor", "all_gather", float(elements), shard.tensor, "forward", "after"),
        LayerCall("tensor", "reduce_scatter", float(elements), shard.tensor, "backward", "before"),
    )


MODELS = {
    name: Buildable(name, partial(expert_decoder, name), shape.decoder.positions, has_experts=True)
    for name, shape in EXPERT_SHAPES.items()
}
"""Models of the zoo, with the sequence that their authors trained with; none has a longest one."""
