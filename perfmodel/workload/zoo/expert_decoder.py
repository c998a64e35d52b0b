"""Decoders of experts with Hugging Face's tensors: Mixtral, Qwen, DeepSeek, Kimi, Llama 4.

Their attention is that of any decoder, latent or compressed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from perfmodel.errors import raise_faults, refuse_if
from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.layer_calls import (
    column_calls,
    joined_calls,
    norm_calls,
    table_calls,
)
from perfmodel.workload.model import Buffers, Workload, sequence_of
from perfmodel.workload.shard import WHOLE, Shard, SharedSizes, check_shard, whole_faults
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.compressed_attention import (
    NOTE,
    buffers,
    compressed_part,
    mixed_streams,
    stream_weights,
)
from perfmodel.workload.zoo.decoder_block import (
    BlockPlace,
    check_norms,
    feed_forward_part,
    kept_by_norm,
    rms_norm_work,
    shape_of_layer,
)
from perfmodel.workload.zoo.decoder_sizes import (
    EXPERT_NAMES,
    EXPERT_SHAPES,
    USUAL_NAMES,
    CompressedShape,
    ExpertShape,
    LatentShape,
    expert_family,
)
from perfmodel.workload.zoo.expert_settings import ExpertSettings, check_settings
from perfmodel.workload.zoo.latent_attention import latent_attention_part
from perfmodel.workload.zoo.layers import (
    INDEX_BYTES,
    Module,
    assemble,
    in_order,
    linear,
    names,
    numels,
    weight_and_bias,
)
from perfmodel.workload.zoo.llama import (
    block_scaled,
    head_and_loss,
    named,
    rotary_buffers,
    token_embedding,
)
from perfmodel.workload.zoo.mixers import NOTE as SCAN_NOTE
from perfmodel.workload.zoo.mixers import check_mixers, mixers_of, token_part
from perfmodel.workload.zoo.published import read_table
from perfmodel.workload.zoo.routed_part import BIAS, RoutedPlace, routed_part

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
    passes, kernels = rms_norm_work(shape)
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
        vector_elements=passes_of("activation") * (s * h + both + whole * (shard.tensor > 1)),
        norm_elements=float(passes * both),
        wide_norm=not shape.fused_norms,
        fused_elements=float(passes_of("activation") * s * h + passes_of("fused_norm") * both),
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

ORDERS = read_table("module_names")["orders"]
_MAPS = ("gate_proj", "up_proj", "down_proj")


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
    decoder, routed, order = shape.decoder, shape.routed, _module_order(family, shape)
    sizes = SharedSizes(
        name,
        decoder.heads,
        decoder.kv_heads,
        math.gcd(decoder.mlp_width, routed.shared_width),
        decoder.vocabulary,
        s,
        context_limit="keys and values of latent attention differ in size" if shape.latent else "",
        window=any(decoder.window_of(layer) for layer in range(decoder.layers)),
        experts=routed.experts,
    )
    check_shard(shard, sizes)
    check_settings(settings, routed, shard)
    refuse_if(
        shape.latent is not None and shard.tensor > 1 and shard.library == "torch",
        "tensor",
        str(shard.tensor),
        f"1 for {name!r} with library: torch, or library: megatron",
    )
    check_norms(name, decoder, shard)
    check_mixers(name, decoder, shard)
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
    collapse, streams = list[Module](), 1
    if isinstance(shape.latent, CompressedShape):
        mixed, streams = shape.latent, shape.latent.streams
        raise_faults(whole_faults(replace(shard, expert=1), name, "its streams are not split"))
        collapse = [stream_weights("model.hc_head", s, decoder.width, mixed, streams)]
    place = BlockPlace(PREFIX, s, decoder, shard)
    second = (
        [
            joined_tokens(place),
            *_block(place, decoder.layers - 1, shape, family, settings, dtype),
            head_and_loss(decoder, s, shard, name=f"{PREFIX}.shared_head", is_shared=True),
        ]
        if settings.second_token
        else []
    )
    parameters = [
        *first.parameters,
        *chain.from_iterable(in_order(block, order, 3) for block in blocks),
        *last.parameters[:1],
        *chain.from_iterable(part.parameters for part in collapse),
        *last.parameters[1:],
        *chain.from_iterable(part.parameters for part in second),
    ]
    routed_blocks = sum(routed.is_routed(i) for i in range(decoder.layers)) + bool(second)
    return assemble(
        name,
        [first, *chain.from_iterable(blocks), *collapse, last, *second],
        dtype=dtype,
        sample=sequence_of(s),
        source=f"Hugging Face {family}, experts as grouped products",
        input_elements=s,
        output_elements=s * decoder.vocabulary,
        registered=parameters,
        buffers=buffers(mixed, decoder, routed)
        if collapse
        else (
            *rotary_buffers(decoder),
            *(Buffers("fp32", routed_blocks, 4 * routed.experts * routed_blocks),)
            * routed.score_bias,
        ),
        notes=(
            *(f"Attention within chunks of {CHUNK_TOKENS} tokens is counted as full attention.",)
            * (family == "Llama4ForCausalLM" and s > CHUNK_TOKENS),
            *(INDEX_NOTE,)
            * bool(isinstance(shape.latent, LatentShape) and shape.latent.index_heads),
            *(NOTE,) * bool(collapse),
            *(SCAN_NOTE,) * bool(mixers_of(decoder)),
            *(SHARED_NOTE,) * bool(second),
        ),
        routed_share=routed.top_k / routed.experts,
        shard=shard,
        stream_elements=float(streams * shard.stream_tokens(s) * decoder.width),
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
    if isinstance(shape.latent, CompressedShape):
        return _mixing_block(place, number, shape, shape.latent, settings, dtype)
    attention = (
        latent_attention_part(place, shape.latent)
        if shape.latent
        else token_part(place, shape.decoder.window_of(number))
    )
    parts = attention
    if shape.routed.is_routed(number):
        experts = routed_part(RoutedPlace(place, shape.routed, settings, dtype, called))
        parts = block_scaled(place, [*attention, *experts])
    elif place.shape.part != "tokens":
        parts = [*attention, *feed_forward_part(place, path=called.path)]
    return [named(place.shape, part) for part in parts]


def _mixing_block(
    place: BlockPlace,
    number: int,
    shape: ExpertShape,
    mixed: CompressedShape,
    settings: ExpertSettings,
    dtype: str,
) -> list[Module]:
    """Both parts read a sum of streams, and what they put out is mixed into all of them."""
    s, h, called = place.tokens, place.shape.width, EXPERT_NAMES[COMPRESSED]
    before, after = (
        stream_weights(f"{place.prefix}.{name}", s, h, mixed, mixed.streams * (2 + mixed.streams))
        for name in ("attn_hc", "ffn_hc")
    )
    return [
        before,
        *compressed_part(place, mixed, number),
        mixed_streams(f"{place.prefix}.attn_hc", s, h, mixed),
        after,
        *routed_part(RoutedPlace(place, shape.routed, settings, dtype, called)),
        mixed_streams(f"{place.prefix}.ffn_hc", s, h, mixed),
    ]


COMPRESSED = "DeepseekV4ForCausalLM"


def _module_order(family: str, shape: ExpertShape) -> Sequence[str]:
    if shape.decoder.names:
        return shape.decoder.block_names.registered
    called, latent = EXPERT_NAMES.get(family, USUAL_NAMES), shape.latent
    shared = [f"{kind}.{name}" for kind in ("shared_experts", "shared_expert") for name in _MAPS]
    experts = [
        f"experts.{name}{bias}" for name in ("gate_up_proj", "down_proj") for bias in ("", BIAS)
    ]
    routed = (called.router, *experts) if called.router_first else (*experts, called.router)
    return (
        *ORDERS["compressed" if family == COMPRESSED else "latent" if latent else "attention"],
        *(f"{called.path}.{part}" for part in (*_MAPS, *routed, *shared, "shared_expert_gate")),
        "input_layernorm",
        "post_attention_layernorm",
        *(f"{name}.{part}" for name in ("attn_hc", "ffn_hc") for part in ("fn", "base", "scale")),
    )


MODELS = {
    name: Buildable(name, partial(expert_decoder, name), shape.decoder.positions, has_experts=True)
    for name, shape in EXPERT_SHAPES.items()
}
"""Models of the zoo, with the sequence that their authors trained with; none has a longest one."""
