"""T5 and T5 v1.1 with Hugging Face's tensors: encoder and decoder share their embedding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from perfmodel.workload.kernels.element_wise import kernels_of, passes_of
from perfmodel.workload.kernels.shapes import WIDE_BYTES
from perfmodel.workload.layer_calls import (
    column_calls,
    norm_calls,
    row_calls,
)
from perfmodel.workload.model import ELEMENT_BYTES, Layer, Workload, sequence_of
from perfmodel.workload.shard import WHOLE, Shard, SharedSizes, check_shard
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.layers import (
    INDEX_BYTES,
    MASK_BYTES,
    Module,
    Parameter,
    assemble,
    join_maps,
    linear,
    more_work,
    names,
    numels,
    weight_and_bias,
    with_work,
)
from perfmodel.workload.zoo.published import published_sizes
from perfmodel.workload.zoo.transformer import attention, token_tables, vocabulary_head

VOCABULARY, BUCKETS, INPUTS = 32128, 32, 512
"""Tokens, distances that have a bias of their own, and tokens of a sample in pre-training."""
CORRUPTED, SPAN = 0.15, 3
"""Share of tokens that pre-training replaces, and how many stand side by side (Raffel et al. 2019,
arXiv 1910.10683, section 3.1.4)."""
GELU_WIDE = 4
"""Elements that v1.1's GELU keeps, in single operations (``NewGELUActivation``), beside half of its
input: that, tanh, tanh plus 1, and its result, which the gate needs. Autocast runs powers, and what
follows from them, in fp32."""
SOURCE = "Hugging Face T5ForConditionalGeneration; Raffel et al. 2019, arXiv 1910.10683"
NOTE = "The table of relative positions is looked up, and added to scores, in no time of its own."


@dataclass(frozen=True, slots=True)
class T5Shape:
    """Sizes; as many blocks in the decoder, unless stated.

    `gated`: two maps into the feed-forward part, as v1.1 has.
    `untied`: whether the head has a weight of its own; None: where it is gated, as in v1.1.
    """

    layers: int
    width: int
    heads: int
    head_size: int
    mlp_width: int
    gated: bool = False
    untied: bool | None = None
    decoder_layers: int | None = None
    vocabulary: int = VOCABULARY
    buckets: int = BUCKETS
    dropout: bool = True

    @property
    def own_head(self) -> bool:
        """Whether the head has a weight of its own."""
        return self.gated if self.untied is None else self.untied


SHAPES = {name: T5Shape(**fields) for name, fields in published_sizes("text")["t5"].items()}


def target_tokens(inputs: int) -> int:
    """Tokens that the decoder predicts where `inputs` are left of a text with spans cut out.

    A text of n tokens loses noise = 0.15 n of them in noise / 3 spans, each of which a token of its
    own marks in both sequences, and each sequence ends in one.
    """

    def lengths(text: int) -> tuple[int, int]:
        noise = round(text * CORRUPTED)
        spans = round(noise / SPAN)
        return text - noise + spans + 1, noise + spans + 1

    text = inputs
    while lengths(text + 1)[0] <= inputs:
        text += 1
    return lengths(text)[1]


def t5(
    name: str,
    *,
    dtype: str,
    sequence_length: int,
    shape: T5Shape | None = None,
    shard: Shard = WHOLE,
) -> Workload:
    """Encoder of `sequence_length` tokens, and decoder of the targets of span corruption.

    `shape`: of a model that is not in the zoo.
    `shard`: which part of it a rank holds.
    """
    shape, s = shape or SHAPES[name], sequence_length
    targets = target_tokens(s)
    check_shard(
        shard,
        SharedSizes(
            name,
            shape.heads,
            shape.heads,
            shape.mlp_width,
            shape.vocabulary,
            s,
            others=(targets,),
            context_limit="encoder and decoder have different numbers of tokens",
        ),
    )
    table = (("shared.weight", (shard.words(shape.vocabulary), shape.width)),)
    first, again = (
        token_tables(
            f"{stack}.embed_tokens",
            table,
            tokens,
            shape.width,
            dropout=shape.dropout,
            indexed=1,
            shard=shard,
        )
        for stack, tokens in (("encoder", s), ("decoder", targets))
    )
    encoder = _stack("encoder", s, None, shape, shard)
    decoder = _stack("decoder", targets, s, shape, shard)
    parts = [
        first,
        *encoder,
        _final_norm("encoder", s, shape, shard),
        # the gradient of the embedding is complete when the encoder's use of it is done
        Module(again.layer),
        *decoder,
        _final_norm("decoder", targets, shape, shard),
        _head(targets, shape, shard),
    ]
    return assemble(
        name,
        parts,
        dtype=dtype,
        sample=sequence_of(s),
        source=SOURCE,
        input_elements=s + targets,
        output_elements=targets * shape.vocabulary,
        registered=_registered(parts),
        notes=(f"The decoder predicts {targets} tokens, which span corruption takes out.", NOTE),
        shard=shard,
    )


def _registered(parts: list[Module]) -> list[Parameter]:
    """Hugging Face registers a norm after the maps of its part, a table of distances before it."""
    order = {"layer_norm": 2, "relative_attention_bias": 1}
    by_part: dict[str, list[Parameter]] = {}
    for parameter in chain.from_iterable(part.parameters for part in parts):
        path = parameter[0].split(".")
        by_part.setdefault(
            ".".join(path[:5]) if len(path) > 5 or path[-2] == "layer_norm" else parameter[0], []
        ).append(parameter)
    return [
        parameter
        for part in by_part.values()
        for parameter in sorted(part, key=lambda p: order.get(p[0].split(".")[-2], 0))
    ]


def _final_norm(stack: str, all_tokens: int, shape: T5Shape, shard: Shard) -> Module:
    """Normalise what a stack puts out, and drop some of it."""
    width, tokens = shape.width, shard.stream_tokens(all_tokens)
    parameters = weight_and_bias(f"{stack}.final_layer_norm", width, bias=False)
    normed = passes_of("rms_norm") * tokens * width
    layer = Layer(
        f"{stack}.final_layer_norm",
        vector_bytes=ELEMENT_BYTES
        * (normed + shape.dropout * passes_of("dropout") * tokens * width),
        norm_bytes=float(ELEMENT_BYTES * normed),
        wide_norm=True,
        fused_bytes=float(
            ELEMENT_BYTES * (passes_of("fused_norm") + passes_of("activation")) * tokens * width
        ),
        narrow_elements=float(tokens * width),
        stream_elements=float(tokens * width),
        saved_bytes=float((WIDE_BYTES + shape.dropout * MASK_BYTES) * tokens * width)
        + float(WIDE_BYTES * tokens),
        kernels=kernels_of("rms_norm") + shape.dropout,
        calls=norm_calls(shard, numels(parameters)),
    )
    return Module(layer, parameters, names(parameters))


def _head(targets: int, shape: T5Shape, shard: Shard) -> Module:
    """Logits and loss; T5 scales its input and shares the embedding's weight, v1.1 does not."""
    tied, rows = not shape.own_head, shard.stream_tokens(targets)
    scaled_bytes = ELEMENT_BYTES * tied * passes_of("activation") * rows * shape.width
    return more_work(
        vocabulary_head(
            "lm_head",
            targets,
            shape.width,
            shape.vocabulary,
            norm=(),
            tied=tied,
            wide_loss=False,
            shard=shard,
        ),
        vector_bytes=scaled_bytes,
        fused_bytes=scaled_bytes,
        saved_bytes=INDEX_BYTES * targets,
        kernels=tied,
    )


def _stack(
    stack: str, tokens: int, source: int | None, shape: T5Shape, shard: Shard
) -> list[Module]:
    """Blocks of attention, attention to the encoder's `source` tokens, and feed-forward."""
    parts: list[Module] = []
    for number in range(shape.layers if source is None else shape.decoder_layers or shape.layers):
        prefix, first = f"{stack}.block.{number}.layer", number == 0
        crossed = source is not None
        parts += [
            *_attention(
                f"{prefix}.0",
                "SelfAttention",
                tokens,
                None,
                shape,
                shard,
                first=first,
                causal=crossed,
            ),
            *(
                _attention(
                    f"{prefix}.1", "EncDecAttention", tokens, source, shape, shard, first=first
                )
                if crossed
                else ()
            ),
            *_feed_forward(f"{prefix}.{1 + crossed}", tokens, shape, shard),
        ]
    return parts


def _mapped(
    name: str,
    tokens: int,
    inputs: int,
    outputs: int,
    *,
    norm: str = "",
    added: bool = False,
    elements: float = 0.0,
    fused: float = 0.0,
    saved: float = 0.0,
    wide: float = 0.0,
    copied: float = 0.0,
    dropped: float = 0.0,
    keeps: bool = False,
    shared: bool = False,
    kernels: int = 0,
    shard: Shard = WHOLE,
    first: bool = True,
    drops: bool = True,
) -> Module:
    """Map, after a norm or before dropout and addition; the rest as a caller states.

    It is cut by rows where its result is added to the stream, else by columns.

    `first`: whether it is the first of the maps of its input.
    `drops`: whether some of what is added is dropped out.
    `keeps`, `shared`: whether it is the first that keeps its input, or keeps it as others do.
    """
    stream, read = shard.stream_tokens(tokens), shard.kept_tokens(tokens) * inputs
    own = weight_and_bias(name, outputs, inputs, bias=False)
    before = weight_and_bias(norm, inputs, bias=False) if norm else ()
    normed, tail = bool(norm) * stream * inputs, added * stream * outputs
    calls = (
        row_calls(shard, tokens * outputs)
        if added
        else column_calls(shard, tokens * inputs, first=first)
    )
    return linear(
        name,
        tokens,
        inputs,
        outputs,
        parameters=before + own,
        ready=names(own) + names(before),
        vector_elements=elements + (drops * passes_of("dropout") + passes_of("addition")) * tail,
        norm_elements=float(passes_of("rms_norm") * normed),
        wide_norm=True,
        fused_elements=float(
            fused + passes_of("fused_norm") * normed + passes_of("fused_addition") * tail
        ),
        saved_elements=float(saved + (bool(norm) or keeps) * read),
        stream_elements=float(normed) + wide,
        copied_elements=float(shared * read) + copied,
        narrow_elements=float(normed),
        saved_bytes=float(
            WIDE_BYTES * (normed + bool(norm) * stream) + MASK_BYTES * (drops * tail + dropped)
        ),
        kernels=1 + kernels + kernels_of("rms_norm") * bool(norm) + (1 + drops) * added,
        calls=calls + norm_calls(shard, numels(before)),
    )


def _attention(
    prefix: str,
    kind: str,
    tokens: int,
    source: int | None,
    shape: T5Shape,
    shard: Shard,
    *,
    first: bool = False,
    causal: bool = False,
) -> list[Module]:
    """Normalise, attend to itself or to `source` tokens of the encoder, drop out, add.

    `first`: whether it is in the first block, whose table of relative positions gives all blocks
        their bias, and whose maps keep what the encoder puts out for those of all.
    """
    name, whole, h = f"{prefix}.{kind}", shape.heads * shape.head_size, shape.width
    keys, inner, heads = source or tokens, whole // shard.tensor, shape.heads // shard.tensor
    attended = attention(
        name,
        tokens,
        whole,
        heads=shape.heads,
        causal=causal,
        keys=keys,
        shard=shard,
        dropout=shape.dropout,
    )
    crossed = source is not None
    bias = heads * tokens * keys * (first or not crossed)  # zeros, once for all, where crossed
    # a causal mask of the bias is kept by each block; indices of the table by the first
    once = MASK_BYTES * tokens * keys * causal + INDEX_BYTES * tokens * keys * (first > crossed)
    attended = with_work(attended, bias_elements=float(bias), once_bytes=float(once))
    if first and not crossed:
        table = weight_and_bias(f"{name}.relative_attention_bias", shape.buckets, heads, bias=False)
        attended = replace(attended, parameters=table, ready=names(table))
    maps = [
        _mapped(f"{name}.q", tokens, h, inner, norm=f"{prefix}.layer_norm", shard=shard),
        _mapped(
            f"{name}.k",
            keys,
            h,
            inner,
            shared=not (crossed and first),
            shard=shard,
            first=crossed,
            keeps=crossed and first,
        ),
        _mapped(f"{name}.v", keys, h, inner, shared=True, shard=shard, first=False),
    ]
    if shard.joins_maps and source is None:
        maps = [join_maps(maps, f"{name}.qkv")]
    elif shard.joins_maps:  # queries and keys are of other tokens
        maps = [maps[0], join_maps(maps[1:], f"{name}.kv")]
    return [
        *maps,
        attended,
        _mapped(f"{name}.o", tokens, inner, h, added=True, shard=shard, drops=shape.dropout),
    ]


def _feed_forward(prefix: str, tokens: int, shape: T5Shape, shard: Shard) -> list[Module]:
    """Normalise, widen, activate (and gate), drop out, narrow, drop out, add."""
    h, wide, name = shape.width, shape.mlp_width // shard.tensor, f"{prefix}.DenseReluDense"
    inside, drops = tokens * wide, shape.dropout
    passes = passes_of("gate_product") if shape.gated else passes_of("activation")
    narrow = _mapped(
        f"{name}.wo",
        tokens,
        wide,
        h,
        added=True,
        elements=(passes + drops * passes_of("dropout")) * inside,
        fused=float(
            (passes_of("fused_addition") if shape.gated else passes_of("activation")) * inside
        ),
        saved=(3.0 if shape.gated else 1.0 + drops) * inside,
        # autocast's result is cast to the weight's dtype, and to its own once more
        copied=float(not (shape.gated or drops)) * inside,
        wide=shape.gated * GELU_WIDE * inside,
        dropped=drops * inside,
        kernels=1 + drops + shape.gated,
        shard=shard,
        drops=drops,
    )
    norm = f"{prefix}.layer_norm"
    if not shape.gated:
        return [_mapped(f"{name}.wi", tokens, h, wide, norm=norm, shard=shard), narrow]
    gate = _mapped(f"{name}.wi_0", tokens, h, wide, norm=norm, shard=shard)
    other = _mapped(f"{name}.wi_1", tokens, h, wide, shared=True, shard=shard, first=False)
    maps = [join_maps([gate, other], f"{name}.wi")] if shard.joins_maps else [gate, other]
    return [*maps, narrow]


MODELS = {name: Buildable(name, partial(t5, name), INPUTS) for name in SHAPES}
"""Models of the zoo, with the sequence that their authors trained with; none has a longest one."""
