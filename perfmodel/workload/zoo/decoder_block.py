"""The two parts of a decoder's block: attention with grouped queries, and gated feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.errors import refuse_if
from perfmodel.memo import first_applying
from perfmodel.workload.kernels.element_wise import kernels_of, passes_of
from perfmodel.workload.kernels.shapes import WIDE_BYTES
from perfmodel.workload.layer_calls import column_calls, norm_calls, row_calls
from perfmodel.workload.model import ELEMENT_BYTES, Kept, Layer
from perfmodel.workload.shard import WHOLE, Shard
from perfmodel.workload.zoo.decoder_sizes import DecoderShape
from perfmodel.workload.zoo.layers import (
    ACTIVATIONS,
    MASK_BYTES,
    ActivationFunction,
    Module,
    Parameter,
    join_maps,
    linear,
    names,
    names_reversed,
    numels,
    weight_and_bias,
)
from perfmodel.workload.zoo.transformer import attention


def rms_norm_work(shape: DecoderShape) -> tuple[float, int]:
    """Passes and kernels of an RMS normalisation: as single operations, or fused."""
    kernels = 1 if shape.fused_norms else kernels_of("rms_norm")
    return passes_of("norm" if shape.fused_norms else "rms_norm"), kernels


def norm_work(shape: DecoderShape) -> tuple[float, int]:
    """Passes and kernels of a norm of a model."""
    passes, kernels = rms_norm_work(shape)
    means = shape.mean_norms
    return passes + passes_of("mean") * means, kernels + kernels_of("mean") * means


def norm_ready(norm: tuple[Parameter, ...], shape: DecoderShape) -> tuple[str, ...]:
    """Parameters of a normalisation in the order in which their gradients are complete."""
    return names_reversed(norm) if shape.gains_from_one else names(norm)


def kept_by_norm(
    elements: float, rows: float, shape: DecoderShape, logits: float = 0.0, results: float = 0.0
) -> dict[str, Any]:
    """What a normalisation keeps beside its result, and softmax of `logits`.

    In single operations its input in fp32, and, before the gain, its result: in fp32 (Gemma,
    OLMo 2) or as narrow as its input was; as one kernel its input alone. Of each row its scale in
    fp32, and its mean where it is layer normalisation.

    `results`: of the elements, those that a product put out, so that they are narrow in any case.
    """
    rows_of_kept = (
        (shape.mean_norms, (3, 0.0, 0.0)),  # what is squared, scaled, and multiplied by the gain
        (shape.plain_norms, (1, 0.0, 0.0)),
        (shape.fused_norms, (0, elements, 0.0)),
        (shape.scaled_embedding or shape.wide_gains, (2, 0.0, 0.0)),
        (True, (1, elements - results, results)),
    )
    wide, stream, narrow = next(kept for applies, kept in rows_of_kept if applies)
    return {
        "saved_bytes": WIDE_BYTES * (wide * elements + logits + rows * (1 + shape.layer_norms)),
        "stream_elements": float(stream),
        "saved_elements": float(narrow),
    }


def stream_norm(place: BlockPlace, name: str) -> Module:
    """Normalise tokens of the stream, as a layer of its own."""
    shape, rows = place.shape, place.shard.stream_tokens(place.tokens)
    own = weight_and_bias(f"{place.prefix}.{name}", shape.width, bias=False)
    (passes, kernels), elements = norm_work(shape), rows * shape.width
    moved = float(ELEMENT_BYTES * passes * elements)
    layer = Layer(
        f"{place.prefix}.{name}",
        vector_bytes=moved,
        norm_bytes=moved,
        wide_norm=not shape.fused_norms,
        fused_bytes=float(ELEMENT_BYTES * passes_of("fused_norm") * elements),
        fused_kept=Kept(0.0, float(elements)),
        kernels=kernels,
        calls=norm_calls(place.shard, numels(own)),
        **kept_by_norm(elements, rows, shape),
    )
    return Module(layer, own, names(own))


NO_FUNCTION = ActivationFunction(passes=0, kernels=0, saved=0)


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """A block of a model: its path, the tokens of one sample, the model's sizes.

    `shard`: which part of it a rank holds; the sizes are those of the whole.
    """

    prefix: str
    tokens: int
    shape: DecoderShape
    shard: Shard = WHOLE


def shape_of_layer(shape: DecoderShape, number: int) -> DecoderShape:
    """Sizes of one layer, counted from 0."""
    return replace(shape, **shape.by_layer.get(number, {}))


def check_norms(name: str, shape: DecoderShape, shard: Shard) -> None:
    """Raise InputError where ranks would share heads that are normalised all at once."""
    refuse_if(
        shape.wide_head_norms and shard.tensor > 1,
        "tensor",
        str(shard.tensor),
        f"1 for {name!r}, which normalises queries and keys of all heads at once",
    )


def attention_part(place: BlockPlace, window: int | None) -> list[Module]:
    """Normalise, attend, add.

    `window`: tokens that a query sees at most, or None: all before it.
    """
    prefix, s, shape, shard = place.prefix, place.tokens, place.shape, place.shard
    family, queries = shape.block_names, shape.heads * shape.head_size // shard.tensor
    apart = 0 < shape.rotary_share < 1 if shape.turned_apart is None else shape.turned_apart
    attended = attention(
        f"{prefix}.self_attn",
        s,
        shape.heads * shape.head_size,
        heads=shape.heads,
        kv_width=shape.kv_heads * shape.head_size,
        causal=True,
        window=window,
        dropout=shape.score_dropout,
        wide_scores=not shape.sinks,
        capped_scores=shape.capped,
        shard=shard,
        # turned parts and the rest joined anew; values are a part of a joined map's
        held=apart + bool(family.qkv) * (1 + shape.kv_heads / shape.heads),
    )
    if shape.sinks:
        sinks = ((f"{prefix}.self_attn.sinks", (shape.heads // shard.tensor,)),)
        attended = replace(attended, parameters=sinks, ready=names(sinks))
    return [
        *_query_maps(place, queries),
        attended,
        projection(
            place,
            "self_attn.o_proj",
            queries,
            shape.width,
            after=family.after_attention,
            added=True,
            gated=shape.gated_attention,
        ),
    ]


def _query_maps(place: BlockPlace, queries: int) -> list[Module]:
    """Maps of `queries`, keys and values, after the norm of the part."""
    shape, shard, prefix = place.shape, place.shard, place.prefix
    h, head_size, family = shape.width, shape.head_size, shape.block_names
    keys = max(1, shape.kv_heads // shard.tensor) * head_size
    q_norm, k_norm = (
        weight_and_bias(f"{prefix}.self_attn.{part}_norm", width, bias=False)
        if shape.head_norms
        else ()
        for part, width in zip(
            "qk", (queries, keys) if shape.wide_head_norms else (head_size, head_size), strict=True
        )
    )
    # Gemma 3 and GLM 4.5 normalise both after its three maps, Qwen 3 each after its own, Gemma 4
    # queries after theirs, and the rest after all
    late = k_norm + q_norm * (not shape.value_norms)
    late *= shape.branch_norms or shape.late_head_norms
    k_ready = k_norm * (shape.one_map or not late)
    q_ready = q_norm * (shape.value_norms or not late)
    maps = [
        projection(
            place,
            "self_attn.q_proj",
            h,
            queries,
            norm=family.norm,
            begins=True,
            head_norm=q_norm,
            ready_first=names(q_ready),
            rotary=True,
            gate=shape.gated_attention * queries,
        ),
        projection(
            place,
            "self_attn.k_proj",
            h,
            keys,
            head_norm=k_norm,
            bare_norm=shape.value_norms and shape.one_map,
            ready_first=names(k_ready),
            rotary=True,
            shared=True,
        ),
        projection(
            place,
            "self_attn.v_proj",
            h,
            keys,
            bare_norm=shape.value_norms,
            ready_first=names(late),
            shared=True,
        ),
    ]
    if shape.reads_pairs or shape.one_map:
        return maps[: 1 + shape.one_map]
    if family.qkv:
        return [_one_map(maps, f"{prefix}.{family.qkv}")]
    return [join_maps(maps, f"{prefix}.self_attn.qkv_proj")] if shard.joins_maps else maps


def _one_map(maps: Sequence[Module], name: str) -> Module:
    """Maps that have one weight together, and one bias or none."""
    joined, has_bias = join_maps(maps, name), maps[1].parameters[-1][0].endswith("bias")
    _, (_, inputs) = maps[1].parameters[0]
    before = maps[0].parameters[: -1 - has_bias]  # gains of a norm
    own = weight_and_bias(
        name, sum(part.parameters[-1][1][0] for part in maps), inputs, bias=has_bias
    )
    return replace(
        joined, parameters=before + own, ready=names_reversed(own) + names_reversed(before)
    )


def feed_forward_part(
    place: BlockPlace, *, path: str = "mlp", width: int | None = None, normed: bool = True
) -> list[Module]:
    """Normalise, gate and widen, narrow, add.

    `path`: of its maps in the block; `width`: between them, where it is not the model's.
    `normed`: whether it begins with a norm; otherwise it shares its input with another part.
    """
    h, shard, family = place.shape.width, place.shard, place.shape.block_names
    wide = (width or place.shape.mlp_width) // shard.tensor
    norm, after = family.before_mlp if normed else "", family.after_mlp
    if place.shape.ungated:
        paths = f"{path}.up_proj", f"{path}.down_proj"
        up, down = (family.up, family.down) if path == "mlp" else paths
        return [
            projection(place, up, h, wide, norm=norm, begins=normed, shares_input=not normed),
            projection(place, down, wide, h, after=after, added=True, activated=True),
        ]
    maps = [
        projection(
            place, f"{path}.gate_proj", h, wide, norm=norm, begins=normed, shares_input=not normed
        ),
        projection(place, f"{path}.up_proj", h, wide, shared=True),
    ]
    if family.gate_up:
        maps = [_one_map(maps, f"{place.prefix}.{family.gate_up}")]
    elif shard.joins_maps:
        maps = [join_maps(maps, f"{place.prefix}.{path}.gate_up_proj")]
    return [
        *maps,
        projection(place, f"{path}.down_proj", wide, h, after=after, added=True, gated=True),
    ]


def projection(
    place: BlockPlace,
    name: str,
    inputs: int,
    outputs: int,
    *,
    norm: str = "",
    after: str = "",
    head_norm: tuple[Parameter, ...] = (),
    bare_norm: bool = False,
    ready_first: tuple[str, ...] = (),
    rotary: bool = False,
    added: bool = False,
    gated: bool = False,
    shared: bool = False,
    shares_input: bool = False,
    activated: bool = False,
    begins: bool = False,
    gate: int = 0,
) -> Module:
    """One map of a block, with what stands before and after it.

    It is cut by rows where its result joins the stream, else by columns.

    `inputs`, `outputs`: of the part that a rank holds.
    `norm`: of the input, `after`: of the result; "" where there is none.
    `begins`: whether it is the first that keeps its input.
    `head_norm`: parameters of a norm of each head of the result; `bare_norm`: whether
        there is one, or one more, without.
    `ready_first`: gradients that its backward completes before its own.
    `rotary`: whether positions are turned into the result; `added`: whether it joins the stream.
    `activated`: whether the input is what the activation function of an ungated part put out.
    `gated`: whether the input is the product of two branches; `shared`: kept by another map, too.
    `shares_input`: with another part, which keeps it, too, but gathers it for itself.
    `gate`: further outputs, which are neither normalised nor turned.
    """
    shape, shard = place.shape, place.shard
    s, stream = shard.map_tokens(place.tokens), shard.stream_tokens(place.tokens)
    norm_passes, norm_kernels = norm_work(shape)
    function = ACTIVATIONS[shape.ungated] if activated and shape.ungated else NO_FUNCTION
    own = weight_and_bias(
        f"{place.prefix}.{name}", outputs + gate, inputs, bias=_has_bias(shape, name)
    )
    gain = weight_and_bias(f"{place.prefix}.{norm}", inputs, bias=shape.layer_norms)
    normed = gain if norm and not shape.plain_norms else ()
    ended = weight_and_bias(f"{place.prefix}.{after}", outputs, bias=False) if after else ()
    results = (stream * bool(ended) + s * bool(head_norm)) * outputs
    bare, heads = float(bare_norm * s * outputs), s * outputs // shape.head_size
    normed_elements = stream * bool(norm) * inputs + results
    count = bool(norm) + bool(ended) + bool(head_norm) + bare_norm
    turns = rotary and shape.rotary_share > 0
    turned, joined = turns * shape.rotary_share * s * outputs, added * stream * outputs
    masks = float(MASK_BYTES * shape.dropout * joined)
    rows = stream * (bool(norm) + bool(ended)) + s * (
        outputs // numels(head_norm)[0] if head_norm else 0
    )
    kept_input = shard.kept_tokens(place.tokens) * inputs
    normed_kept = kept_by_norm(normed_elements, rows, shape, results=results)
    normed_kept["saved_bytes"] += masks + WIDE_BYTES * (bare + bare_norm * heads)
    normed_kept["saved_elements"] += float(
        kept_input * begins + (4 * gated + function.narrow) * s * inputs
    )
    calls = (
        row_calls(shard, s * outputs)
        if added
        else column_calls(shard, s * inputs, first=not shared)
    )
    return linear(
        f"{place.prefix}.{name}",
        s,
        inputs,
        outputs + gate,
        parameters=normed + own + ended + head_norm,
        ready=ready_first + names(ended) + names_reversed(own) + norm_ready(normed, shape),
        vector_elements=float(
            passes_of("rotary") * turned
            + passes_of("addition") * joined
            + passes_of("dropout") * shape.dropout * joined
            + shape.scaled_branches * passes_of("activation") * joined
            + (gated * passes_of("gate_product") + function.passes) * s * inputs
        ),
        norm_elements=float(norm_passes * (normed_elements + bare)),
        wide_norm=count > 0 and not shape.fused_norms,
        fused_elements=float(
            passes_of("activation") * turned
            + passes_of("fused_addition") * joined
            + (gated * passes_of("fused_addition") + activated * passes_of("activation"))
            * s
            * inputs
            + passes_of("fused_norm") * (normed_elements + bare)
        ),
        copied_elements=float((shared or shares_input) * kept_input),
        **normed_kept,
        # a norm's input, what products read, and what they put out where a norm follows
        fused_kept=Kept(
            float(
                kept_input * begins
                + (3 * gated + 2 * activated) * s * inputs
                + outputs * (s * bool(head_norm) + stream * bool(ended))
            ),
            float(stream * inputs * bool(norm)),
            masks,
        ),
        kernels=1
        + 5 * turns
        + added * (1 + shape.dropout + shape.scaled_branches)
        + 2 * gated
        + function.kernels
        + norm_kernels * count,
        calls=calls
        + norm_calls(shard, numels(normed + ended + own[1:] * added))
        + norm_calls(shard, numels(head_norm), heads=True),
    )


def _has_bias(shape: DecoderShape, name: str) -> bool:
    """Whether a map of a block has a bias; of shared experts none has."""
    return first_applying(
        (name.endswith(("q_proj", "k_proj", "v_proj")), shape.biased_attention),
        (name.endswith("o_proj"), shape.biased_output),
        (True, shape.biased_mlp and name.startswith("mlp.")),
    )
