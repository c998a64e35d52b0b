"""DeepSeek-V4's attention to near keys and to compressed ones, and streams that blocks mix.

Keys are values, too, and one head's for all. A layer that compresses makes a key of so many tokens,
weighed by a softmax over them; one that chooses has an indexer, which nothing trains.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.workload.kernels.element_wise import kernels_of, passes_of
from perfmodel.workload.kernels.shapes import WIDE_BYTES, MatrixProduct
from perfmodel.workload.model import ELEMENT_BYTES, Buffers, Layer
from perfmodel.workload.zoo.decoder_block import BlockPlace, projection
from perfmodel.workload.zoo.decoder_sizes import CompressedShape, DecoderShape, RoutedShape
from perfmodel.workload.zoo.latent_attention import normed_map
from perfmodel.workload.zoo.layers import (
    Module,
    Parameter,
    linear,
    names,
    weight_and_bias,
    with_work,
)
from perfmodel.workload.zoo.transformer import attention

NOTE = (
    "Attention to near and to compressed keys is counted as full attention to all of them, as "
    "transformers runs it, which masks the others; nothing trains the indexer there."
)


def stream_weights(prefix: str, s: int, width: int, shape: CompressedShape, outputs: int) -> Module:
    """Map all streams to weights of each, and sum the streams so weighed.

    `outputs`: weights; more than one for each stream mix the streams, too, balanced in a loop.
    """
    begin = "hc_" * (outputs == shape.streams)
    wide, elements = shape.streams * width, float(s * shape.streams * width)
    own: tuple[Parameter, ...] = (
        (f"{prefix}.{begin}fn", (outputs, wide)),
        (f"{prefix}.{begin}base", (outputs,)),
        (f"{prefix}.{begin}scale", (1 if begin else 3,)),
    )
    loop = 0 if begin else shape.iterations
    return linear(
        prefix,
        s,
        wide,
        outputs,
        parameters=own,
        ready=names(own[1:] if begin else own[:0:-1]) + names(own[:1]),
        vector_elements=float(
            passes_of("addition") * elements + kernels_of("stream_balance") * loop * s * outputs
        ),
        wide_elements=float(passes_of("addition") * elements),
        norm_elements=passes_of("rms_norm") * elements,
        wide_norm=True,
        fused_elements=float((passes_of("fused_norm") + 1) * elements),
        saved_bytes=float(
            WIDE_BYTES * (3 * elements + 2 * kernels_of("stream_balance") * loop * s * outputs)
        ),
        stream_elements=elements,
        kernels=kernels_of("rms_norm") + 12 + kernels_of("stream_balance") * loop,
    )


def mixed_streams(prefix: str, s: int, width: int, shape: CompressedShape) -> Module:
    """Mix the streams, and add what a part put out, weighed for each of them."""
    product = MatrixProduct(
        shape.streams, width, shape.streams, s, of_activations=True, has_bias=False
    )
    moved = float(ELEMENT_BYTES * 2 * passes_of("addition") * s * shape.streams * width)
    return Module(
        Layer(
            f"{prefix}.streams",
            matmul_flops=product.flops,
            matmul_bytes=float(ELEMENT_BYTES * product.elements),
            vector_bytes=moved,
            fused_bytes=moved,
            saved_elements=float(s * width * (1 + shape.streams)),
            kernels=4,
            matrix=product,
        )
    )


def compressed_part(place: BlockPlace, shape: CompressedShape, number: int) -> list[Module]:
    """Normalise, map queries through a narrow map, keys, compressed ones, attend, map in groups."""
    decoder, s, root = place.shape, place.tokens, f"{place.prefix}.self_attn"
    heads, size, h = decoder.heads, decoder.head_size, decoder.width
    rate, chooses = shape.layers[number]
    turned, inner = float(s * heads * size) * decoder.rotary_share, float(s * heads * size)
    extra = s // rate if rate else 0
    norm = weight_and_bias(f"{root}.kv_norm", size, bias=False)
    sinks: tuple[Parameter, ...] = ((f"{root}.sinks", (heads,)),)
    queries = normed_map(
        place,
        "q_b_proj",
        shape.query_rank,
        heads * size,
        norm="self_attn.q_a_norm",
        by_columns=True,
        vector=passes_of("rotary") * turned
        + (passes_of("joined_heads") + passes_of("rms_norm")) * inner,
        fused=(passes_of("joined_heads") + passes_of("fused_norm")) * inner,
    )
    attended = attention(
        root,
        s,
        heads * size,
        heads=heads,
        kv_width=size,
        causal=not extra,
        keys=s + extra,
        dropout=decoder.score_dropout,
        wide_scores=False,
        held=1.0,
    )
    grouped = linear(
        f"{root}.o_a_proj",
        s,
        heads * size // shape.groups,
        shape.groups * shape.out_rank,
        parameters=weight_and_bias(
            f"{root}.o_a_proj",
            shape.groups * shape.out_rank,
            heads * size // shape.groups,
            bias=False,
        ),
        vector_elements=passes_of("rotary") * turned + passes_of("joined_heads") * inner,
        fused_elements=passes_of("joined_heads") * inner,
        saved_elements=inner,
        kernels=8,
    )
    return [
        normed_map(place, "q_a_proj", h, shape.query_rank, norm="input_layernorm"),
        queries,
        projection(
            place,
            "self_attn.kv_proj",
            h,
            size,
            head_norm=norm,
            ready_first=names(norm),
            rotary=True,
            shared=True,
        ),
        *(_compressor(f"{root}.compressor", place, rate, size, overlaps=chooses) if rate else ()),
        *(_indexer(f"{root}.compressor.indexer", place, shape, rate) if chooses else ()),
        replace(attended, parameters=sinks, ready=names(sinks)),
        grouped,
        normed_map(place, "o_b_proj", shape.groups * shape.out_rank, h, vector=0.0),
    ]


def _compressor(
    root: str, place: BlockPlace, rate: int, size: int, *, overlaps: bool
) -> list[Module]:
    """Map tokens to what is summed and to how it is weighed; each key sees two windows, or one."""
    s, h, wide = place.tokens, place.shape.width, (1 + overlaps) * size
    bias: tuple[Parameter, ...] = ((f"{root}.position_bias", (rate, wide)),)
    norm = weight_and_bias(f"{root}.kv_norm", size, bias=False)
    maps = [
        weight_and_bias(f"{root}.{name}", wide, h, bias=False) for name in ("kv_proj", "gate_proj")
    ]
    first, last = (
        linear(f"{root}.{name}", s, h, wide, parameters=own, copied_elements=float(s * h))
        for name, own in zip(("kv_proj", "gate_proj"), maps, strict=True)
    )
    elements = float((1 + overlaps) * s * wide)
    last = replace(
        with_work(
            last,
            vector_bytes=ELEMENT_BYTES * passes_of("compression_gate") * elements,
            fused_bytes=ELEMENT_BYTES * passes_of("addition") * elements,
            saved_elements=2 * elements,
            saved_bytes=WIDE_BYTES * elements,
            kernels=16 + kernels_of("rms_norm"),
        ),
        parameters=bias + last.parameters + norm,
        ready=names(norm) + names(bias) + last.ready,
    )
    parts = [first, last]
    return parts if s >= rate else [replace(part, ready=()) for part in parts]


def _indexer(root: str, place: BlockPlace, shape: CompressedShape, rate: int) -> list[Module]:
    """Compress anew, in narrow heads, score all pairs, and choose; it has no backward."""
    s, h, size, heads = place.tokens, place.shape.width, shape.index_size, shape.index_heads
    keys = s // rate
    compressor = _compressor(root, place, rate, size, overlaps=True)
    maps = [
        linear(
            f"{root}.{name}",
            s,
            inputs,
            outputs,
            parameters=weight_and_bias(f"{root}.{name}", outputs, inputs, bias=False),
        )
        for name, inputs, outputs in (
            ("q_b_proj", shape.query_rank, heads * size),
            ("scorer.weights_proj", h, heads),
        )
    ]
    passes = (passes_of("index_scores") * heads + passes_of("index_choice")) * s * keys
    scores = with_work(
        linear(
            f"{root}.scores",
            s * heads,
            size,
            keys,
            parameters=(),
            vector_elements=passes,
            kernels=12,
        ),
        weight_elements=0.0,
    )
    return [
        replace(with_work(part, gradients=0), ready=()) for part in [*compressor, *maps, scores]
    ]


def buffers(
    shape: CompressedShape, decoder: DecoderShape, routed: RoutedShape
) -> tuple[Buffers, ...]:
    """Frequencies of each module that turns positions, biases of routers, and tables of others."""
    turning = 1 + sum((rate > 0) + chooses for rate, chooses in shape.layers)
    biased = len(shape.layers) - shape.hashed
    floats = 4 * (
        4 * turning * (int(decoder.head_size * decoder.rotary_share) // 2) + biased * routed.experts
    )
    tables = Buffers("int64", shape.hashed, 8 * shape.hashed * decoder.vocabulary * routed.top_k)
    return (Buffers("fp32", 4 * turning + biased, floats), *(tables,) * bool(shape.hashed))
