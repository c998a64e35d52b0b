"""FLUX.1 as diffusers builds it: blocks of two streams, image and text, and then of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.kernels.shapes import WIDE_BYTES
from perfmodel.workload.model import Sample, Workload
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.dit import TIME_FEATURES, WIDTH_FACTOR, condition_map, modulated_map
from perfmodel.workload.zoo.layers import (
    Module,
    assemble,
    in_order,
    linear,
    more_work,
    weight_and_bias,
)
from perfmodel.workload.zoo.published import read_table
from perfmodel.workload.zoo.transformer import attention

SHRUNK, TEXT_TOKENS = 16, 512
"""Pixels of a side that become one token (the autoencoder's eight, in patches of two), and tokens
of a text (``max_sequence_length`` of the pipeline)."""


@dataclass(frozen=True, slots=True)
class FluxShape:
    """Blocks of two streams and of one, heads and their size, and what goes in.

    `guided`: whether it is told the scale of guidance (distilled from it).
    """

    double: int = 19
    single: int = 38
    heads: int = 24
    head_size: int = 128
    channels: int = 64
    text_width: int = 4096
    pooled_width: int = 768
    guided: bool = True

    @property
    def width(self) -> int:
        """Elements of a token."""
        return self.heads * self.head_size


FLUX_SHAPES = {"FLUX.1-dev": FluxShape(), "FLUX.1-schnell": FluxShape(guided=False)}
"""black-forest-labs on huggingface.co, ``transformer/config.json``."""


def flux(
    name: str,
    *,
    dtype: str,
    image_size: int,
    shape: FluxShape | None = None,
    text_tokens: int = TEXT_TOKENS,
) -> Workload:
    """Transformer of Black Forest Labs (2024), which learns the flow from noise to a code.

    The autoencoder and the text encoders, which are not trained, are not part of it.
    """
    shape = shape or FLUX_SHAPES[name]
    image = max(1, image_size // SHRUNK) ** 2
    double = [
        _double_block(f"transformer_blocks.{number}", shape, image, text_tokens)
        for number in range(shape.double)
    ]
    single = [
        _single_block(f"single_transformer_blocks.{number}", shape, image + text_tokens)
        for number in range(shape.single)
    ]
    first, h = _first(shape, image, text_tokens), shape.width
    last = [
        condition_map("norm_out.linear", h, 2 * h),
        modulated_map("proj_out", image, h, shape.channels),
    ]
    orders = read_table("module_names")["orders"]
    return assemble(
        name,
        [*first, *chain.from_iterable((*double, *single)), *last],
        dtype=dtype,
        sample=Sample("image", f"of {image_size} x {image_size} and its text", is_image=True),
        source="diffusers FluxTransformer2DModel; Black Forest Labs 2024",
        input_elements=float(
            image * shape.channels + text_tokens * shape.text_width + shape.pooled_width
        ),
        output_elements=float(image * shape.channels),
        registered=[
            *in_order(first, orders["flux-first"], 0),
            *chain.from_iterable(in_order(each, orders["flux-double"], 2) for each in double),
            *chain.from_iterable(in_order(each, orders["flux-single"], 2) for each in single),
            *in_order(last, orders["flux-last"], 0),
        ],
    )


def _first(shape: FluxShape, image: int, text: int) -> list[Module]:
    """Return the modules before the blocks: maps of image, text and what all blocks are told."""
    embedders = [
        ("timestep", TIME_FEATURES),
        *[("guidance", TIME_FEATURES)] * shape.guided,
        ("text", shape.pooled_width),
    ]
    image_map, text_map = (
        linear(name, tokens, width, shape.width, saved_elements=float(tokens * width), gradients=1)
        for name, tokens, width in (
            ("x_embedder", image, shape.channels),
            ("context_embedder", text, shape.text_width),
        )
    )
    embedded = [
        condition_map(f"time_text_embed.{kind}_embedder.linear_{number}", width, shape.width)
        for kind, inputs in embedders
        for number, width in ((1, inputs), (2, shape.width))
    ]
    return [image_map, *embedded, text_map]


_QUERIES = (("attn.to_q", "attn.norm_q"), ("attn.to_k", "attn.norm_k"), ("attn.to_v", ""))
_TEXT_QUERIES = (
    ("attn.add_q_proj", "attn.norm_added_q"),
    ("attn.add_k_proj", "attn.norm_added_k"),
    ("attn.add_v_proj", ""),
)
"""Maps of queries, keys and values, and the norm of the heads after each."""


def _double_block(name: str, shape: FluxShape, image: int, text: int) -> list[Module]:
    """Image and text have maps of their own, and attend to both."""
    h = shape.width
    return [
        condition_map(f"{name}.norm1.linear", h, 6 * h),
        condition_map(f"{name}.norm1_context.linear", h, 6 * h),
        *_normed_last(
            [
                *_query_maps(name, _QUERIES, image, shape),
                *_query_maps(name, _TEXT_QUERIES, text, shape),
            ]
        ),
        _attended(name, shape, image + text),
        _gated_map(f"{name}.attn.to_out.0", image, h, h),
        _gated_map(f"{name}.attn.to_add_out", text, h, h, copied=True),
        *_perceptron(f"{name}.ff", image, h),
        *_perceptron(f"{name}.ff_context", text, h),
    ]


def _attended(name: str, shape: FluxShape, tokens: int) -> Module:
    return attention(
        f"{name}.attn.attention",
        tokens,
        shape.width,
        heads=shape.heads,
        causal=False,
        dropout=False,
    )


def _query_maps(
    name: str,
    maps: Sequence[tuple[str, str]],
    tokens: int,
    shape: FluxShape,
    *,
    begins: bool = True,
) -> list[Module]:
    """Queries and keys, normalised by head and turned; values.

    `begins`: whether the first one normalises and keeps its input.
    """
    return [
        _query_map(
            f"{name}.{own}",
            norm and f"{name}.{norm}",
            tokens,
            shape,
            begins=begins and number == 0,
        )
        for number, (own, norm) in enumerate(maps)
    ]


def _normed_last(maps: list[Module]) -> list[Module]:
    """Maps of all streams, after which all norms of heads run; so their gains are ready first."""
    gains = [
        name
        for part in reversed(maps)
        for name, shape in part.parameters
        if len(shape) == 1 and name.endswith("weight")
    ]
    return [*maps[:-1], replace(maps[-1], ready=(*gains, *maps[-1].ready))]


def _query_map(name: str, norm: str, tokens: int, shape: FluxShape, *, begins: bool) -> Module:
    h, elements = shape.width, tokens * shape.width
    part = (
        modulated_map(name, tokens, h, h)
        if begins
        else linear(name, tokens, h, h, copied_elements=float(elements))
    )
    gain = weight_and_bias(norm, shape.head_size, bias=False) if norm else ()
    normed = float(bool(norm) * elements)
    vector = (
        2 * passes_of("addition") * elements + (passes_of("rotary") + passes_of("norm")) * normed
    )
    part = more_work(
        part,
        vector_bytes=WIDE_BYTES * vector,
        norm_bytes=WIDE_BYTES * passes_of("norm") * normed,
        fused_bytes=WIDE_BYTES
        * (passes_of("activation") * elements + passes_of("fused_norm") * normed),
        stream_elements=normed,
        saved_bytes=WIDE_BYTES * bool(norm) * tokens * shape.heads,
        kernels=2 + 6 * bool(norm),
    )
    return replace(part, parameters=part.parameters + gain)


def _gated_map(
    name: str,
    tokens: int,
    inputs: int,
    outputs: int,
    *,
    copied: bool = False,
    activated: bool = False,
) -> Module:
    """Map, times a gate that the condition sets, and add.

    `activated`: whether its input is GELU's result; `copied`: whether it is laid out anew.
    """
    result, inside = tokens * outputs, activated * tokens * inputs
    return linear(
        name,
        tokens,
        inputs,
        outputs,
        vector_elements=float(
            (passes_of("modulation_gate") + passes_of("addition")) * result
            + passes_of("activation") * inside
        ),
        fused_elements=float(
            passes_of("fused_addition") * result + passes_of("activation") * inside
        ),
        saved_elements=float(result + 2 * inside + (not activated) * tokens * inputs),
        kernels=3 + activated + copied,
    )


def _perceptron(name: str, tokens: int, width: int) -> list[Module]:
    """Modulated, widened, GELU, narrowed, gated, added."""
    wide = WIDTH_FACTOR * width
    return [
        modulated_map(f"{name}.net.0.proj", tokens, width, wide),
        _gated_map(f"{name}.net.2", tokens, wide, width, activated=True),
    ]


def _single_block(name: str, shape: FluxShape, tokens: int) -> list[Module]:
    """Attention and perceptron side by side, mapped back together."""
    h, wide = shape.width, WIDTH_FACTOR * shape.width
    inside, result, joined = tokens * wide, tokens * h, tokens * (h + wide)
    return [
        condition_map(f"{name}.norm.linear", h, 3 * h),
        modulated_map(f"{name}.proj_mlp", tokens, h, wide),
        *_normed_last(_query_maps(name, _QUERIES, tokens, shape, begins=False)),
        _attended(name, shape, tokens),
        linear(
            f"{name}.proj_out",
            tokens,
            h + wide,
            h,
            kernels=5,
            vector_elements=float(
                passes_of("activation") * (inside + joined)
                + (passes_of("modulation_gate") + passes_of("addition")) * result
            ),
            fused_elements=float(
                passes_of("activation") * inside + passes_of("fused_addition") * result
            ),
            saved_elements=float(inside + joined + result),
        ),
    ]


MODELS = {name: Buildable(name, partial(flux, name), 1024, "image") for name in FLUX_SHAPES}
"""Models of the zoo, with the image size that their authors trained with."""
