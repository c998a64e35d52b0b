"""A block that normalises first or last: attention, attention to a source, feed-forward.

GPT-NeoX, Phi, OPT, ViT, CLIP and Whisper have it, under names of their own. Normalisations are
layer norms with a bias, each one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.layer_calls import column_calls, norm_calls, row_calls
from perfmodel.workload.model import Buffers, Kept
from perfmodel.workload.shard import WHOLE, Shard
from perfmodel.workload.zoo.decoder_block import NO_FUNCTION
from perfmodel.workload.zoo.layers import (
    INDEX_BYTES,
    MASK_BYTES,
    NORM_BYTES,
    ONE_KERNEL,
    ActivationFunction,
    Module,
    Parameter,
    in_order,
    linear,
    names,
    names_reversed,
    numels,
    weight_and_bias,
    with_work,
)
from perfmodel.workload.zoo.published import module_names
from perfmodel.workload.zoo.transformer import attention


@dataclass(frozen=True, slots=True)
class AttentionNames:
    """Names of the modules of an attention part, by their path in the block.

    `maps`: of queries, keys and values; or of one map for all three.
    `norm`: of the normalisation before it.
    """

    maps: Sequence[str]
    output: str
    norm: str


@dataclass(frozen=True, slots=True)
class BlockNames:
    """Names of a block, and the order in which a family registers its modules.

    `norm`: of that before the feed-forward part; "": it reads what attention reads (Phi).
    `early_norm`: whether that norm is run before attention, beside the one before it (Falcon).
    `source`: of attention to another stack, where a block has it.
    `layers`: of its layers, where these are not called as its modules are.
    `scales`: of gains of what attention and the feed-forward part add to the stream (DINOv2).
    `transposed`: whether a weight's inputs stand before its outputs (GPT-2).
    """

    attention: AttentionNames
    widen: str
    narrow: str
    norm: str
    registered: Sequence[str]
    source: AttentionNames | None = None
    layers: Sequence[str] = ()
    scales: Sequence[str] = ("", "")
    transposed: bool = False
    early_norm: bool = False


def _block_names(
    attention: Sequence[Any], source: Sequence[Any] | None = None, **names: Any
) -> BlockNames:
    """Return the names that the table states; of an attention part: maps, output and norm."""
    crossed = AttentionNames(*source) if source else None
    return BlockNames(AttentionNames(*attention), source=crossed, **names)


BLOCK_NAMES = {family: _block_names(**names) for family, names in module_names("blocks").items()}


@dataclass(frozen=True, slots=True)
class StackShape:
    """Sizes of a stack of blocks, and what its family does.

    `dropout`, `inner_dropout`, `score_dropout`: of what joins the stream, of the activation
        function's result, and of scores.
    `kv_heads`: of keys and values in one map for all, where heads share them; `spread`: whether
        these are copied for each head before attention (Falcon 40B).
    `biases`: of the maps before attention: of queries, keys and values.
    `output_bias`, `mlp_bias`, `norm_bias`: of the map after it, of those of the feed-forward part,
        and of norms.
    `wide_scores`: whether softmax is in fp32 in any precision, where attention is not fused.
    `rotary_share`: of a head's elements, which positions turn.
    `late_norms`: whether a part's norm is of its sum with the stream, not of what it reads (BART).
    `bare_first`: whether the first block's attention reads the stream without a norm (ModernBERT).
    `gated`: whether a half of what the first map of the feed-forward part puts out gates the other.
    `windows`: tokens that a query of each block sees at most; None: all, in all blocks.
    `local`: side of the windows into which an image is cut before attention, each with a bias for
        every place of a key beside a query (Swin); 0: there are none.
    `branch_dropped`: whether what attention adds is scaled or left out for whole samples.
    `parallel`: whether attention and feed-forward part both read what the block begins with.
    `scaled_queries`: whether queries are scaled by an operation of their own (Whisper, OPT).
    `laid_anew`: whether heads are laid out anew before attention (Whisper).
    `held`: times the queries' elements that fused attention holds; None: values of one map for all
        are a part of its result, and heads that are joined anew are a copy.
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
    mlp_bias: bool = True
    norm_bias: bool = True
    wide_scores: bool = True
    rotary_share: float = 0.0
    late_norms: bool = False
    bare_first: bool = False
    gated: bool = False
    windows: tuple[int | None, ...] | None = None
    local: int = 0
    branch_dropped: bool = False
    parallel: bool = False
    scaled_queries: bool = False
    laid_anew: bool = False
    held: float | None = None
    kv_heads: int | None = None
    spread: bool = False

    @property
    def pairs(self) -> int:
        """Heads of keys and values that the maps put out."""
        return self.kv_heads or self.heads


@dataclass(frozen=True, slots=True)
class StackPlace:
    """A block: its path, the tokens of one sample, its sizes, and which part a rank holds.

    `source`: tokens of the other stack that this one attends to; None: it attends to itself alone.
    `window`: tokens that a query sees at most.
    `first`: whether it is the first block. Its maps keep the source for those of all blocks.
    `rolled`: whether an image is rolled before it is cut into windows (every second block).
    """

    prefix: str
    tokens: int
    shape: StackShape
    shard: Shard = WHOLE
    source: int | None = None
    first: bool = True
    window: int | None = None
    rolled: bool = False


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
    places = [
        StackPlace(
            f"{path}.{number}",
            tokens,
            shape,
            shard,
            source,
            number == 0,
            window,
            rolled=number % 2 > 0 and tokens > shape.local**2 > 0,
        )
        for number, window in zip(range(layers), shape.windows or [None] * layers, strict=True)
    ]
    blocks, start = [_stack_block(place) for place in places], path.count(".") + 2
    return [*chain.from_iterable(blocks)], [
        *chain.from_iterable(in_order(block, shape.names.registered, start) for block in blocks)
    ]


def _stack_block(place: StackPlace) -> list[Module]:
    """Normalise, attend, add; attend to the source, add; normalise, widen, narrow, add."""
    shape, family = place.shape, place.shape.names
    parts = _attention_part(place, family.attention, None)
    if family.source is not None and place.source is not None:
        parts += _attention_part(place, family.source, place.source)
    wide, begins = shape.mlp_width // place.shard.tensor, not shape.parallel
    parts += [
        _column_map(
            place,
            family.widen,
            (1 + shape.gated) * wide,
            bias=shape.mlp_bias,
            norm=family.norm,
            keeps=bool(family.norm),
            begins=begins,
        ),
        _to_stream(
            place,
            family.narrow,
            wide,
            bias=shape.mlp_bias,
            norm=family.norm,
            scale=family.scales[1],
            function=shape.activation,
        ),
    ]
    if family.early_norm:  # gradients of both norms come last
        (first, *rest, widen, narrow), norm = parts, parts[-2].parameters[:2]
        ready = (*first.ready[:-2], *names(norm), *first.ready[-2:])
        first = replace(first, parameters=norm + first.parameters, ready=ready)
        own = widen.parameters[2:]
        parts = [first, *rest, replace(widen, parameters=own, ready=names_reversed(own)), narrow]
    if not family.layers:
        return parts
    return [
        with_work(part, name=f"{place.prefix}.{name}")
        for part, name in zip(parts, family.layers, strict=True)
    ]


def _attention_part(place: StackPlace, family: AttentionNames, source: int | None) -> list[Module]:
    shape, inner = place.shape, place.shape.width // place.shard.tensor
    first, *others = family.maps
    windows, tokens = 1, place.tokens
    if shape.local:  # images are filled up to whole windows
        tokens, windows = shape.local**2, (-(-math.isqrt(tokens) // shape.local)) ** 2
        place = replace(place, tokens=tokens * windows)
    joins, size = not others, shape.width // shape.heads
    pair = max(1, shape.pairs // place.shard.tensor) * size
    queries = _column_map(
        place,
        first,
        inner + 2 * joins * pair,
        bias=shape.biases[0],
        norm="" if place.first and shape.bare_first else family.norm,
        keeps=True,
        begins=True,
        turned=inner + joins * (inner if shape.spread else pair),
        turn_kernels=10,
        # into windows and out of them
        moved=shape.scaled_queries
        + shape.laid_anew
        + 2 * (bool(shape.local) + place.rolled + shape.branch_dropped),
    )
    pairs = [
        _column_map(
            place,
            name,
            inner,
            bias=bias,
            tokens=source,
            keeps=source is not None and number == 0 and place.first,
            turned=inner * (number == 0),
            moved=int(shape.laid_anew),
            is_first=source is not None and number == 0,
        )
        for number, (name, bias) in enumerate(zip(others, shape.biases[1:], strict=False))
    ]
    attended = attention(
        f"{place.prefix}.{family.output.rpartition('.')[0]}",
        tokens,
        windows * shape.width,
        heads=windows * shape.heads,
        kv_width=windows * size * (shape.heads if shape.spread else shape.pairs),
        causal=shape.causal and source is None,
        keys=source,
        window=place.window,
        dropout=shape.score_dropout,
        wide_scores=shape.wide_scores,
        shard=place.shard,
        held=2 * joins + bool(shape.rotary_share or shape.laid_anew)
        if shape.held is None
        else shape.held,
    )
    if shape.local:
        attended = _biased(attended, shape, windows * place.rolled)
    output = _to_stream(
        place,
        family.output,
        inner,
        bias=shape.output_bias,
        norm=family.norm,
        scale=shape.names.scales[0],
    )
    return [queries, *pairs, attended, output]


def _biased(attended: Module, shape: StackShape, masked: int) -> Module:
    """Add a bias to scores, from a table of places, whose rows are found by a buffer.

    `masked`: windows that have a mask of their own, too, where ends of an image meet.
    """
    pairs, name = shape.local**4, f"{attended.layer.name}.relative_position_bias"
    rows = (2 * shape.local - 1) ** 2
    table: tuple[Parameter, ...] = ((f"{name}.relative_position_bias_table", (rows, shape.heads)),)
    return replace(
        with_work(
            attended,
            bias_elements=float((not masked) * shape.heads * pairs),
            held_elements=float(masked * shape.heads * pairs),
        ),
        parameters=table,
        ready=names(table),
        buffers=(Buffers("int64", 1, INDEX_BYTES * pairs),),
    )


def _weights(
    place: StackPlace, name: str, outputs: int, inputs: int, *, bias: bool
) -> tuple[Parameter, ...]:
    own = weight_and_bias(f"{place.prefix}.{name}", outputs, inputs, bias=bias)
    return ((own[0][0], (inputs, outputs)), *own[1:]) if place.shape.names.transposed else own


def _column_map(
    place: StackPlace,
    name: str,
    outputs: int,
    *,
    bias: bool,
    tokens: int | None = None,
    norm: str = "",
    keeps: bool = False,
    begins: bool = False,
    turned: int = 0,
    turn_kernels: int = 5,
    moved: int = 0,
    is_first: bool = True,
) -> Module:
    """Map cut by columns, after a norm, or of the same input as another map.

    `tokens`: of its input, where these are of the source.
    `norm`: "" where its input is that of another map, too.
    `keeps`: whether it keeps its input; otherwise autocast keeps a copy of it.
    `begins`: whether no other norm keeps the same input.
    `turned`: elements of a token's result that positions turn, by `turn_kernels`.
    `moved`: passes over the result beside, a kernel for every two.
    `is_first`: whether it is the first map of its input.
    """
    shape, shard, h = place.shape, place.shard, place.shape.width
    tokens = place.tokens if tokens is None else tokens
    s, own = shard.map_tokens(tokens), shard.stream_tokens(tokens)
    kept_input = shard.kept_tokens(tokens) * h
    norm = "" if shape.late_norms else norm
    before = weight_and_bias(f"{place.prefix}.{norm}", h, bias=shape.norm_bias) if norm else ()
    weights = _weights(place, name, outputs, h, bias=bias)
    norms, rotary = float(bool(norm) * own * h), shape.rotary_share * turned * s
    return linear(
        f"{place.prefix}.{name}",
        s,
        h,
        outputs,
        parameters=before + weights,
        ready=names_reversed(weights) + names(before),
        vector_elements=passes_of("rotary") * rotary
        + float(moved * passes_of("activation") * s * outputs),
        norm_elements=passes_of("norm") * norms,
        fused_elements=passes_of("fused_norm") * norms
        + passes_of("activation") * (rotary + float(bool(moved) * s * outputs)),
        saved_elements=float(keeps * kept_input),
        copied_elements=float((not keeps) * kept_input),
        stream_elements=begins * norms,
        saved_bytes=float(NORM_BYTES * bool(norm) * own),
        kernels=1 + bool(norm) + turn_kernels * (rotary > 0) + moved,
        calls=column_calls(shard, s * h, first=is_first) + norm_calls(shard, numels(before)),
    )


def _to_stream(
    place: StackPlace,
    name: str,
    inputs: int,
    *,
    bias: bool,
    norm: str,
    scale: str,
    function: ActivationFunction | None = None,
) -> Module:
    """Map, after an activation function if there is one, dropped out and added; cut by rows.

    `norm`: of the sum, where norms are late. `scale`: gain of what is added; "": it has none.
    """
    shape, shard, h = place.shape, place.shard, place.shape.width
    s, stream = shard.map_tokens(place.tokens), shard.stream_tokens(place.tokens) * h
    weights, late = _weights(place, name, h, inputs, bias=bias), shape.late_norms
    after = weight_and_bias(f"{place.prefix}.{norm}", h) if late else ()
    gain: tuple[Parameter, ...] = ((f"{place.prefix}.{scale}", (h,)),) if scale else ()
    scaled = bool(scale) * stream
    inner, drops = s * inputs, shape.inner_dropout and function is not None
    masks = float(MASK_BYTES * (shape.dropout * stream + drops * inner))
    rows = float(NORM_BYTES * late * shard.stream_tokens(place.tokens))
    function = function or NO_FUNCTION
    return linear(
        f"{place.prefix}.{name}",
        s,
        inputs,
        h,
        parameters=weights + gain + after,
        ready=names(after) + names(gain) + names_reversed(weights),
        norm_elements=float(late * passes_of("norm") * stream),
        vector_elements=(function.passes + drops * passes_of("dropout")) * inner
        + (shape.dropout * passes_of("dropout") + passes_of("addition")) * stream
        + passes_of("activation") * scaled,
        fused_elements=float(
            bool(function.passes) * passes_of("activation") * inner
            + (passes_of("fused_addition") + late * passes_of("fused_norm")) * stream
        ),
        saved_elements=float((function.narrow + (drops and function.saved == 1)) * inner + scaled),
        stream_elements=float(function.wide * inner + late * stream),
        saved_bytes=masks + rows,
        kernels=2 + shape.dropout + drops + late + bool(scale) + function.kernels,
        fused_kept=Kept((2.0 + shape.gated) * inner, late * stream, masks + rows)
        if function.kernels > 1
        else None,
        calls=row_calls(shard, s * h) + norm_calls(shard, numels(weights[1:] + gain + after)),
    )
