"""A block that normalises layers first: attention, attention to a source, feed-forward.

GPT-NeoX, Phi, OPT, ViT, CLIP and Whisper have it, under names of their own. Normalisations are
layer norms with a bias, each one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.workload.model import FusedKept
from perfmodel.workload.shards.calls import column_calls, norm_calls, row_calls
from perfmodel.workload.shards.shard import WHOLE, Shard
from perfmodel.workload.zoo.decoder_block import NO_FUNCTION, ROTARY_PASSES
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    ADD_PASSES,
    DROPOUT_PASSES,
    FUSED_NORM_PASSES,
    JOIN_PASSES,
    MASK_BYTES,
    NORM_BYTES,
    NORM_PASSES,
    ONE_KERNEL,
    ActivationFunction,
    Module,
    Parameter,
    linear,
    names,
    names_reversed,
    norm_parameters,
    numels,
    weight_and_bias,
)
from perfmodel.workload.zoo.transformer import attention


@dataclass(frozen=True, slots=True)
class AttentionNames:
    """Names of the modules of an attention part, by their path in the block.

    `maps`: of queries, keys and values; or of one map for all three.
    `norm`: of the normalisation before it.
    """

    maps: tuple[str, ...]
    output: str
    norm: str


@dataclass(frozen=True, slots=True)
class BlockNames:
    """Names of a block, and the order in which a family registers its modules.

    `norm`: of that before the feed-forward part; "": it reads what attention reads (Phi).
    `source`: of attention to another stack, where a block has it.
    """

    attention: AttentionNames
    widen: str
    narrow: str
    norm: str
    registered: tuple[str, ...]
    source: AttentionNames | None = None


@dataclass(frozen=True, slots=True)
class StackShape:
    """Sizes of a stack of blocks, and what its family does.

    `dropout`, `inner_dropout`, `score_dropout`: of what joins the stream, of the activation
        function's result, and of scores.
    `biases`: of the maps before attention: of queries, keys and values.
    `output_bias`: of the map after it.
    `wide_scores`: whether softmax is in fp32 in any precision, where attention is not fused.
    `rotary_share`: of a head's elements, which positions turn.
    `parallel`: whether attention and feed-forward part both read what the block begins with.
    `scaled_queries`: whether queries are scaled by an operation of their own (Whisper, OPT).
    `laid_anew`: whether heads are laid out anew before attention (Whisper).
    """

    width: int
    heads: int
    mlp_width: int
    names: BlockNames
    causal: bool = False
    activation: ActivationFunction = ONE_KERNEL
    dropout: bool = False
    inner_dropout: bool = False
    score_dropout: bool = False
    biases: tuple[bool, ...] = (True, True, True)
    output_bias: bool = True
    wide_scores: bool = True
    rotary_share: float = 0.0
    parallel: bool = False
    scaled_queries: bool = False
    laid_anew: bool = False


@dataclass(frozen=True, slots=True)
class StackPlace:
    """A block: its path, the tokens of one sample, its sizes, and which part a rank holds.

    `source`: tokens of the stack that it attends to as well.
    `first`: whether it is the first block, whose maps keep the source for those of all blocks.
    """

    prefix: str
    tokens: int
    shape: StackShape
    shard: Shard = WHOLE
    source: int | None = None
    first: bool = True


def stack_blocks(
    path: str,
    layers: int,
    shape: StackShape,
    tokens: int,
    *,
    source: int | None = None,
    shard: Shard = WHOLE,
) -> tuple[list[Module], list[Parameter]]:
    """All blocks of a stack in the order of forward; their parameters in that of registration.

    `path`: of the list of blocks. `source`: tokens of the stack that they attend to as well.
    """
    parts: list[Module] = []
    parameters: list[Parameter] = []
    for number in range(layers):
        place = StackPlace(f"{path}.{number}", tokens, shape, shard, source, first=number == 0)
        block = _stack_block(place)
        parts += block
        parameters += _registered(place, block)
    return parts, parameters


def _stack_block(place: StackPlace) -> list[Module]:
    """Normalise, attend, add; attend to the source, add; normalise, widen, narrow, add."""
    family = place.shape.names
    parts = _attention_part(place, family.attention, None)
    if family.source is not None and place.source is not None:
        parts += _attention_part(place, family.source, place.source)
    return [*parts, *_feed_forward_part(place)]


def _registered(place: StackPlace, block: list[Module]) -> list[Parameter]:
    """Parameters of a block in the order in which its family registers them."""
    order, start = place.shape.names.registered, len(place.prefix) + 1
    parameters = [parameter for part in block for parameter in part.parameters]
    return sorted(parameters, key=lambda each: order.index(each[0][start:].rpartition(".")[0]))


def _attention_part(place: StackPlace, family: AttentionNames, source: int | None) -> list[Module]:
    shape, shard, s = place.shape, place.shard, place.tokens
    h, inner = shape.width, shape.width // shard.tensor
    keys = s if source is None else source
    if len(family.maps) == 1:
        maps = [
            _normed(
                place,
                family.maps[0],
                3 * inner,
                family.norm,
                bias=shape.biases[0],
                turned=2 * inner,
                first_norm=True,
            )
        ]
    else:
        maps = [
            _normed(
                place,
                family.maps[0],
                inner,
                family.norm,
                bias=shape.biases[0],
                turned=inner,
                first_norm=True,
                moved=shape.scaled_queries + shape.laid_anew,
            ),
            *(
                _of_source(
                    place,
                    name,
                    inner,
                    keys,
                    bias,
                    turned=inner * (name == family.maps[1]),
                    other=source is not None,
                    is_first=name == family.maps[1],
                )
                for name, bias in zip(family.maps[1:], shape.biases[1:], strict=True)
            ),
        ]
    attended = attention(
        f"{place.prefix}.{family.output.rpartition('.')[0]}",
        s,
        h,
        heads=shape.heads,
        causal=shape.causal and source is None,
        keys=keys,
        dropout=shape.score_dropout,
        wide_scores=shape.wide_scores,
        shard=shard,
        # values of one map for all are a part of its result; heads joined or scaled are laid anew
        held=2 * (len(family.maps) == 1) + bool(shape.rotary_share or shape.laid_anew),
    )
    return [*maps, attended, _to_stream(place, family.output, inner, bias=shape.output_bias)]


def _feed_forward_part(place: StackPlace) -> list[Module]:
    shape, wide = place.shape, place.shape.mlp_width // place.shard.tensor
    family = shape.names
    return [
        _normed(
            place,
            family.widen,
            wide,
            family.norm,
            bias=True,
            turned=0,
            first_norm=not shape.parallel,
        ),
        _to_stream(place, family.narrow, wide, bias=True, function=shape.activation),
    ]


def _normed(
    place: StackPlace,
    name: str,
    outputs: int,
    norm: str,
    *,
    bias: bool,
    turned: int,
    first_norm: bool,
    moved: int = 0,
) -> Module:
    """Map after a norm, cut by columns.

    `norm`: "" where its input is that of another map, too.
    `turned`: elements of a token's result that positions turn.
    `first_norm`: whether no other norm keeps the same input.
    `moved`: passes over the result beside, a kernel for every two.
    """
    shape, shard = place.shape, place.shard
    s, own, h = shard.map_tokens(place.tokens), shard.stream_tokens(place.tokens), shape.width
    before = norm_parameters(f"{place.prefix}.{norm}", h) if norm else ()
    kept_input, norms = shard.kept_tokens(place.tokens) * h, float(bool(norm) * own * h)
    weights = weight_and_bias(f"{place.prefix}.{name}", outputs, h, bias=bias)
    rotary = shape.rotary_share * turned * s
    return linear(
        f"{place.prefix}.{name}",
        s,
        h,
        outputs,
        parameters=before + weights,
        ready=names_reversed(weights) + names(before),
        vector_elements=ROTARY_PASSES * rotary + float(moved * ACTIVATION_PASSES * s * outputs),
        norm_elements=NORM_PASSES * norms,
        fused_elements=float(
            FUSED_NORM_PASSES * norms
            + ACTIVATION_PASSES * rotary
            + bool(moved) * ACTIVATION_PASSES * s * outputs
        ),
        saved_elements=float(bool(norm) * kept_input),
        copied_elements=float((not norm) * kept_input),
        stream_elements=first_norm * norms,
        saved_bytes=float(NORM_BYTES * bool(norm) * own),
        kernels=1 + bool(norm) + 10 * (rotary > 0) + moved,
        calls=column_calls(shard, s * h) + norm_calls(shard, numels(before)),
    )


def _of_source(
    place: StackPlace,
    name: str,
    outputs: int,
    tokens: int,
    bias: bool,
    *,
    turned: int,
    other: bool,
    is_first: bool,
) -> Module:
    """Map of keys or values: of the same input as queries, or of the source.

    `other`: whether it is of the source; `is_first`: whether it is the first map of that.
    """
    shape, shard, h = place.shape, place.shard, place.shape.width
    s, kept_input = shard.map_tokens(tokens), shard.kept_tokens(tokens) * h
    keeps = other and is_first and place.first
    rotary = shape.rotary_share * turned * s
    return linear(
        f"{place.prefix}.{name}",
        s,
        h,
        outputs,
        parameters=weight_and_bias(f"{place.prefix}.{name}", outputs, h, bias=bias),
        vector_elements=ROTARY_PASSES * rotary
        + float(shape.laid_anew * ACTIVATION_PASSES * s * outputs),
        fused_elements=ACTIVATION_PASSES * rotary
        + float(shape.laid_anew * ACTIVATION_PASSES * s * outputs),
        saved_elements=float(keeps * kept_input),
        copied_elements=float((not keeps) * kept_input),
        kernels=1 + 5 * (rotary > 0) + shape.laid_anew,
        calls=column_calls(shard, s * h, first=other and is_first),
    )


def _to_stream(
    place: StackPlace,
    name: str,
    inputs: int,
    *,
    bias: bool,
    function: ActivationFunction | None = None,
) -> Module:
    """Map, after an activation function if there is one, dropped out and added; cut by rows."""
    shape, shard, h = place.shape, place.shard, place.shape.width
    s, stream = shard.map_tokens(place.tokens), shard.stream_tokens(place.tokens) * h
    weights = weight_and_bias(f"{place.prefix}.{name}", h, inputs, bias=bias)
    inner, drops = s * inputs, shape.inner_dropout and function is not None
    masks = float(MASK_BYTES * (shape.dropout * stream + drops * inner))
    function = function or NO_FUNCTION
    passes, kernels = function.passes, function.kernels
    module = linear(
        f"{place.prefix}.{name}",
        s,
        inputs,
        h,
        parameters=weights,
        vector_elements=(passes + drops * DROPOUT_PASSES) * inner
        + (shape.dropout * DROPOUT_PASSES + ADD_PASSES) * stream,
        fused_elements=float(bool(passes) * ACTIVATION_PASSES * inner + JOIN_PASSES * stream),
        saved_elements=float((function.narrow + (drops and function.keeps_result)) * inner),
        stream_elements=float(function.wide * inner),
        saved_bytes=masks,
        kernels=2 + shape.dropout + drops + kernels,
        calls=row_calls(shard, s * h) + norm_calls(shard, numels(weights[1:])),
    )
    if kernels <= 1:
        return module
    return replace(
        module, layer=replace(module.layer, fused_kept=FusedKept(2.0 * inner, 0.0, masks))
    )
