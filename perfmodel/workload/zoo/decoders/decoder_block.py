"""The two parts of a decoder's block: attention with grouped queries, and gated feed-forward."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perfmodel.workload.model import FusedKept
from perfmodel.workload.shards.map_calls import column_calls, norm_calls, row_calls
from perfmodel.workload.shards.shard import WHOLE, Shard
from perfmodel.workload.zoo.decoders.decoder_sizes import DecoderShape
from perfmodel.workload.zoo.decoders.rms_norm import NORM_KERNELS, kept_by_norm, norm_weight
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    ADD_PASSES,
    DROPOUT_PASSES,
    FUSED_NORM_PASSES,
    JOIN_PASSES,
    MASK_BYTES,
    Module,
    Parameter,
    join_maps,
    linear,
    names,
    names_reversed,
    numels,
    weight_and_bias,
)
from perfmodel.workload.zoo.stacks.activation_functions import ActivationFunction
from perfmodel.workload.zoo.transformer import attention

ROTARY_PASSES = 17
"""Rotary embedding of queries and keys as single operations, forward: 20 to 22 passes forward and
24 to 27 backward of half precision measured on an A100 (linkedin/Liger-Kernel, benchmark data,
"huggingface"); backward is taken as 5/3 of forward."""
PRODUCT_PASSES = ACTIVATION_PASSES + ADD_PASSES
"""SiLU of the gate, then its product with the other branch."""
NO_FUNCTION = ActivationFunction(passes=0, kernels=0, saved=0)

_REGISTERED = (
    *(f"self_attn.{part}_proj" for part in "qkvo"), "self_attn.q_norm", "self_attn.k_norm",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm",
    "pre_feedforward_layernorm", "post_feedforward_layernorm",
)  # fmt: skip
"""Modules of a block in the order in which Hugging Face registers them."""


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """A block of a model: its path, the tokens of one sample, the model's sizes.

    `shard`: which part of it a rank holds; the sizes are those of the whole.
    """

    prefix: str
    tokens: int
    shape: DecoderShape
    shard: Shard = WHOLE


def registered(block: Iterable[Module]) -> list[Parameter]:
    """Parameters of a dense block in the order in which Hugging Face registers them."""
    parameters = [parameter for part in block for parameter in part.parameters]
    return sorted(parameters, key=lambda parameter: _REGISTERED.index(_module_of(parameter[0])))


def _module_of(parameter: str) -> str:
    """``self_attn.q_proj`` of ``model.layers.0.self_attn.q_proj.weight``."""
    return parameter.split(".", 3)[3].rpartition(".")[0]


def attention_part(place: BlockPlace, window: int | None) -> list[Module]:
    """Normalise, attend, add.

    `window`: tokens that a query sees at most, or None: all before it.
    """
    prefix, s, shape = place.prefix, place.tokens, place.shape
    h, head_size, shard = shape.width, shape.head_size, place.shard
    queries = shape.heads * head_size // shard.tensor
    keys = max(1, shape.kv_heads // shard.tensor) * head_size
    head_norms = [norm_weight(f"{prefix}.self_attn.{part}_norm", head_size) for part in "qk"]
    q_norm, k_norm = head_norms if shape.head_norms else ((), ())
    # Gemma 3 normalises both after its three maps, Qwen 3 each after its own
    late = k_norm + q_norm if shape.branch_norms else ()
    own = () if late else (q_norm, k_norm)
    q_ready, k_ready = own or ((), ())
    maps = [
        projection(place, "self_attn.q_proj", h, queries, norm="input_layernorm",
                   head_norm=q_norm, ready_first=names(q_ready), rotary=True),
        projection(place, "self_attn.k_proj", h, keys, head_norm=k_norm,
                   ready_first=names(k_ready), rotary=True, shared=True),
        projection(place, "self_attn.v_proj", h, keys, ready_first=names(late), shared=True),
    ]  # fmt: skip
    return [
        *(
            [join_maps(maps, f"{prefix}.self_attn.qkv_proj")] if shard.joins_maps else maps
        ),
        attention(f"{prefix}.self_attn", s, shape.heads * head_size, heads=shape.heads,
                  kv_width=shape.kv_heads * head_size, causal=True, window=window,
                  dropout=shape.score_dropout,
                  wide_scores=True, capped_scores=shape.capped, shard=shard,
                  held=0 < shape.rotary_share < 1),  # turned parts and the rest joined anew
        projection(place, "self_attn.o_proj", queries, h, after="post_attention_layernorm",
                   added=True),
    ]  # fmt: skip


def feed_forward_part(
    place: BlockPlace, *, path: str = "mlp", width: int | None = None, normed: bool = True
) -> list[Module]:
    """Normalise, gate and widen, narrow, add.

    `path`: of its maps in the block; `width`: between them, where it is not the model's.
    `normed`: whether it begins with a norm; otherwise it shares its input with another part.
    """
    h, shard = place.shape.width, place.shard
    wide = (width or place.shape.mlp_width) // shard.tensor
    norm = norm_before_mlp(place.shape) if normed else ""
    after = "post_feedforward_layernorm"
    if place.shape.ungated:
        return [
            projection(place, f"{path}.up_proj", h, wide, norm=norm),
            projection(place, f"{path}.down_proj", wide, h, after=after, added=True,
                       activated=True),
        ]  # fmt: skip
    maps = [
        projection(place, f"{path}.gate_proj", h, wide, norm=norm, shares_input=not normed),
        projection(place, f"{path}.up_proj", h, wide, shared=True),
    ]
    return [
        *([join_maps(maps, f"{place.prefix}.{path}.gate_up_proj")] if shard.joins_maps else maps),
        projection(place, f"{path}.down_proj", wide, h, after=after, added=True, gated=True),
    ]  # fmt: skip


def norm_before_mlp(shape: DecoderShape) -> str:
    """Name of the normalisation that the feed-forward part begins with."""
    return "pre_feedforward_layernorm" if shape.branch_norms else "post_attention_layernorm"


def projection(
    place: BlockPlace, name: str, inputs: int, outputs: int, *, norm: str = "", after: str = "",
    head_norm: tuple[Parameter, ...] = (), ready_first: tuple[str, ...] = (), rotary: bool = False,
    added: bool = False, gated: bool = False, shared: bool = False, shares_input: bool = False,
    activated: bool = False,
) -> Module:  # fmt: skip
    """One map of a block, with what stands before and after it.

    It is cut by rows where its result joins the stream, else by columns.

    `inputs`, `outputs`: of the part that a rank holds.
    `norm`: of the input, `after`: of the result where branches are normalised.
    `head_norm`: parameters of a norm of each head of the result.
    `ready_first`: gradients that its backward completes before its own.
    `rotary`: whether positions are turned into the result; `added`: whether it joins the stream.
    `activated`: whether the input is what the activation function of an ungated part put out.
    `gated`: whether the input is the product of two branches; `shared`: kept by another map, too.
    `shares_input`: with another part, which keeps it, too, but gathers it for itself.
    """
    shape, shard = place.shape, place.shard
    s, stream = shard.map_tokens(place.tokens), shard.stream_tokens(place.tokens)
    norm_passes, norm_kernels = NORM_KERNELS[shape.fused_norms]
    function = shape.ungated if activated and shape.ungated else NO_FUNCTION
    bias = _has_bias(shape, name)
    own = weight_and_bias(f"{place.prefix}.{name}", outputs, inputs, bias=bias)
    normed = norm_weight(f"{place.prefix}.{norm}", inputs, bias=shape.layer_norms) if norm else ()
    ends = after and shape.branch_norms
    ended = norm_weight(f"{place.prefix}.{after}", outputs) if ends else ()
    normed_elements = stream * (bool(norm) * inputs + bool(ended) * outputs)
    normed_elements += s * bool(head_norm) * outputs
    count = bool(norm) + bool(ended) + bool(head_norm)
    turns = rotary and shape.rotary_share > 0
    turned, joined = turns * shape.rotary_share * s * outputs, added * stream * outputs
    dropped = shape.dropout * joined
    masks = float(MASK_BYTES * dropped)
    normed_kept = kept_by_norm(normed_elements, shape)
    normed_kept["saved_bytes"] += masks
    kept_input = shard.kept_tokens(place.tokens) * inputs
    calls = (
        row_calls(shard, s * outputs) if added
        else column_calls(shard, s * inputs, first=not shared)
    )  # fmt: skip
    return linear(
        f"{place.prefix}.{name}", s, inputs, outputs, parameters=normed + own + ended + head_norm,
        ready=ready_first + names(ended) + names_reversed(own) + names_reversed(normed),
        vector_elements=float(
            ROTARY_PASSES * turned + ADD_PASSES * joined + DROPOUT_PASSES * dropped
            + (gated * PRODUCT_PASSES + function.passes) * s * inputs
        ),
        norm_elements=float(norm_passes * normed_elements),
        wide_norm=count > 0 and not shape.fused_norms,
        fused_elements=float(
            ACTIVATION_PASSES * turned + JOIN_PASSES * joined
            + (gated * JOIN_PASSES + activated * ACTIVATION_PASSES) * s * inputs
            + FUSED_NORM_PASSES * normed_elements
        ),
        saved_elements=float(kept_input * bool(norm) + (4 * gated + function.narrow) * s * inputs),
        copied_elements=float((shared or shares_input) * kept_input),
        **normed_kept,
        # a norm's input, what products read, and what they put out where a norm follows
        fused_kept=FusedKept(
            float(kept_input * bool(norm) + (3 * gated + 2 * activated) * s * inputs
                  + outputs * (s * bool(head_norm) + stream * bool(ended))),
            float(stream * inputs * bool(norm)), masks,
        ),
        kernels=1 + 5 * turns + added * (1 + shape.dropout) + 2 * gated + function.kernels
        + norm_kernels * count,
        calls=calls + norm_calls(shard, numels(normed + ended + own[1:] * added))
        + norm_calls(shard, numels(head_norm), heads=True),
    )  # fmt: skip


def _has_bias(shape: DecoderShape, name: str) -> bool:
    """Whether a map of a block has a bias; of shared experts none has."""
    if name.endswith(("q_proj", "k_proj", "v_proj")):
        return shape.biased_attention
    if name.endswith("o_proj"):
        return shape.biased_output
    return shape.biased_mlp and name.startswith("mlp.")
