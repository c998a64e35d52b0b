"""U-Nets of diffusers that a text guides, as those of Stable Diffusion 1.5, 2 and XL.

Residual blocks with a time, and transformers with a text, at three or four resolutions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.model import ELEMENT_BYTES, Layer, Sample, Workload
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.dit import SHRUNK, WIDTH_FACTOR
from perfmodel.workload.zoo.image_layers import Image, convolution
from perfmodel.workload.zoo.layers import (
    NORM_BYTES,
    Module,
    Parameter,
    assemble,
    linear,
    names,
    names_reversed,
    norm_parameters,
    weight_and_bias,
    with_work,
)
from perfmodel.workload.zoo.published import read_table
from perfmodel.workload.zoo.transformer import attention

SDXL = "stable-diffusion-xl-base-1.0"
NETWORK = read_table("published_sizes")["unet"]


@dataclass(frozen=True, slots=True)
class UnetShape:
    """Channels, blocks of each transformer (0: none) and its heads, of each resolution.

    `text_width`: of the text's tokens.
    `blocks`: residual blocks of a resolution on the way down; one more on the way up.
    `added`: features of what is added to the time (pooled text and sizes of the picture, in XL).
    `mapped`: whether transformers begin and end with maps of pixels, not with convolutions.
    `code`, `out`: channels of what is read, the autoencoder's code, and of what is put out.
    """

    channels: tuple[int, ...] = (320, 640, 1280)
    depths: tuple[int, ...] = (0, 2, 10)
    heads: tuple[int, ...] = (5, 10, 20)
    middle: int = 10
    text_width: int = 2048
    blocks: int = 2
    added: int | None = 2816
    mapped: bool = True
    code: int = 4
    out: int = 4


SDXL_SHAPE = UnetShape()
"""Podell et al. 2023, table 1."""


def unet(
    *, dtype: str, image_size: int, name: str = SDXL, shape: UnetShape = SDXL_SHAPE
) -> Workload:
    """U-Net of Podell et al. 2023 (arXiv 2307.01952), which learns to tell the noise of a code.

    The autoencoder and the text encoders, which are not trained, are not part of it.
    """
    side = max(1, image_size // SHRUNK)
    code, time = Image(shape.code, side, side), shape.channels[0]
    first, image = plain_convolution("conv_in", code, time)
    down, waiting = _way_down(image, shape)
    lowest = waiting[-1]
    up, image = _way_up(lowest, waiting, shape)
    last, _ = plain_convolution("conv_out", image, shape.out)
    width = WIDTH_FACTOR * time
    parts = [
        *_embedded("time_embedding", time, width),
        *(_embedded("add_embedding", shape.added, width) if shape.added else ()),
        first,
        *down,
        *residual_block("mid_block.resnets.0", lowest, lowest.channels, width),
        *transformer("mid_block.attentions.0", lowest, shape.middle, shape.heads[-1], shape),
        *residual_block("mid_block.resnets.1", lowest, lowest.channels, width),
        *up,
        group_norm("conv_norm_out", image, activation=True),
        last,
    ]
    return assemble(
        name,
        parts,
        dtype=dtype,
        sample=Sample("image", f"of {image_size} x {image_size}", is_image=True),
        source="diffusers UNet2DConditionModel; Podell et al. 2023, arXiv 2307.01952",
        input_elements=float(code.elements + NETWORK["text_tokens"] * shape.text_width),
        output_elements=float(shape.out * side**2),
        registered=sorted(
            [parameter for part in parts for parameter in part.parameters], key=_registered_place
        ),
    )


def _registered_place(parameter: Parameter) -> tuple[int, int, list[int]]:
    """Return where a parameter is registered: places of its stage and block, kinds of its path."""
    stage, *path = parameter[0].split(".")
    orders = read_table("module_names")["orders"]
    kinds = [orders["unet-stage"].index(part) for part in path if part in orders["unet-stage"]]
    return orders["unet"].index(stage), int(path[0]) if path[0].isdigit() else 0, kinds


def _embedded(name: str, features: int, width: int) -> list[Module]:
    """Map features of the time, or of what is added to it, twice."""
    return [
        linear(
            f"{name}.linear_{number}",
            1,
            inputs,
            width,
            saved_elements=float(inputs * number),
            kernels=2,
            vector_elements=float(passes_of("activation") * width),
        )
        for number, inputs in ((1, features), (2, width))
    ]


def _way_down(image: Image, shape: UnetShape) -> tuple[list[Module], list[Image]]:
    """Blocks of each resolution, and their results, which wait for the way up."""
    parts, waiting = list[Module](), [image]
    for place, channels in enumerate(shape.channels):
        name = f"down_blocks.{place}"
        for layer in range(shape.blocks):
            parts += _layer(name, layer, waiting[-1], place, shape)
            waiting.append(replace(waiting[-1], channels=channels))
        if place + 1 < len(shape.channels):
            part, image = plain_convolution(
                f"{name}.downsamplers.0.conv", waiting[-1], channels, stride=2
            )
            parts.append(part)
            waiting.append(image)
    return parts, waiting


def _way_up(image: Image, waiting: list[Image], shape: UnetShape) -> tuple[list[Module], Image]:
    """Blocks that also see what waited, and the image at twice the sides after each."""
    parts: list[Module] = []
    for place, channels in enumerate(shape.channels[::-1]):
        name = f"up_blocks.{place}"
        for layer in range(shape.blocks + 1):
            joined = replace(image, channels=image.channels + waiting.pop().channels)
            parts.append(_copied(f"{name}.concat.{layer}", 2.0 * joined.elements))
            parts += _layer(name, layer, joined, -1 - place, shape)
            image = replace(image, channels=channels)
        if waiting:
            image = replace(waiting[-1], channels=channels)  # each pixel repeated
            part, _ = plain_convolution(f"{name}.upsamplers.0.conv", image, channels)
            parts += [_copied(f"{name}.upsamplers.0", 1.25 * image.elements), part]
    return parts, image


def _layer(name: str, layer: int, image: Image, place: int, shape: UnetShape) -> list[Module]:
    """A residual block of a resolution, and a transformer after it where that has one."""
    channels, depth, heads = shape.channels[place], shape.depths[place], shape.heads[place]
    width, out = WIDTH_FACTOR * shape.channels[0], replace(image, channels=channels)
    return residual_block(f"{name}.resnets.{layer}", image, channels, width) + (
        transformer(f"{name}.attentions.{layer}", out, depth, heads, shape) if depth else []
    )


def _copied(name: str, passes: float) -> Module:
    return Module(
        Layer(name, vector_bytes=ELEMENT_BYTES * passes, fused_bytes=ELEMENT_BYTES * passes)
    )


def group_norm(name: str, image: Image, *, activation: bool) -> Module:
    """Normalise groups of channels over the whole map; SiLU after it."""
    norm_bytes = float(ELEMENT_BYTES * passes_of("norm") * image.elements)
    parameters = norm_parameters(name, image.channels)
    layer = Layer(
        name,
        vector_bytes=norm_bytes
        + ELEMENT_BYTES * passes_of("activation") * activation * image.elements,
        norm_bytes=norm_bytes,
        kernels=1 + activation,
        fused_bytes=float(ELEMENT_BYTES * passes_of("fused_norm") * image.elements),
        stream_elements=float((1 + activation) * image.elements),
        saved_bytes=float(NORM_BYTES * NETWORK["norm_groups"]),
    )
    return Module(layer, parameters, names(parameters))


def plain_convolution(
    name: str, image: Image, channels: int, kernel: int = 3, *, stride: int = 1, passes: float = 0.0
) -> tuple[Module, Image]:
    """A convolution with a bias that keeps its input; `passes` over its result follow."""
    part, out = convolution(
        name, image, channels, kernel, stride=stride, padding=kernel // 2, relu=False
    )
    moved = float(ELEMENT_BYTES * passes * out.elements)
    return with_work(
        part,
        vector_bytes=moved,
        fused_bytes=moved,
        kernels=1 + round(passes / 2.5),
        saved_elements=float(image.elements),
        fused_kernels=1 + (passes > 0),
    ), out


def residual_block(name: str, image: Image, channels: int, time: int) -> list[Module]:
    """Norm, SiLU, convolution, twice; the time, of so many elements, is added between.

    The input is added after.
    """
    first, out = plain_convolution(f"{name}.conv1", image, channels)
    last, _ = plain_convolution(f"{name}.conv2", out, channels, passes=passes_of("addition") + 2)
    return [
        group_norm(f"{name}.norm1", image, activation=True),
        first,
        linear(
            f"{name}.time_emb_proj",
            1,
            time,
            channels,
            vector_elements=passes_of("activation") * time + 2.0 * out.elements,
            fused_elements=2.0 * out.elements,
            saved_elements=float(time),
            kernels=3,
        ),
        group_norm(f"{name}.norm2", out, activation=True),
        last,
        # its gradient is added to that of the first norm; it runs before the addition
        *(
            [plain_convolution(f"{name}.conv_shortcut", image, channels, 1)[0]]
            if image.channels != channels
            else []
        ),
    ]


def transformer(name: str, image: Image, depth: int, heads: int, shape: UnetShape) -> list[Module]:
    """Normalise, map each pixel, run blocks over all pixels, map back, add the input."""
    width, pixels = image.channels, image.height * image.width
    blocks = (f"{name}.transformer_blocks.{block}" for block in range(depth))
    begin, end = (
        linear(part, pixels, width, width, saved_elements=float(image.elements))
        if shape.mapped
        else plain_convolution(part, image, width, 1)[0]
        for part in (f"{name}.proj_in", f"{name}.proj_out")
    )
    return [
        group_norm(f"{name}.norm", image, activation=False),
        begin,
        *chain.from_iterable(
            _transformer_block(block, pixels, width, heads, shape.text_width) for block in blocks
        ),
        with_work(
            end,
            kernels=3,
            vector_bytes=float(ELEMENT_BYTES * (passes_of("addition") + 2) * image.elements),
            fused_bytes=float(ELEMENT_BYTES * passes_of("fused_addition") * image.elements),
            fused_kernels=2,
        ),
    ]


def _transformer_block(
    name: str, rows: int, width: int, heads: int, text_width: int
) -> list[Module]:
    """Attention of pixels to themselves, to the text, and a gated perceptron; each is added."""
    elements, inner = rows * width, WIDTH_FACTOR * width
    return [
        *_attention_part(name, 1, rows, width, heads, rows, width),
        *_attention_part(name, 2, rows, width, heads, NETWORK["text_tokens"], text_width),
        _normed_map(f"{name}.norm3", f"{name}.ff.net.0.proj", rows, width, 2 * inner, bias=True),
        linear(
            f"{name}.ff.net.2",
            rows,
            inner,
            width,
            vector_elements=float(
                (passes_of("activation") + passes_of("addition")) * rows * inner
                + passes_of("addition") * elements
            ),
            fused_elements=float(
                passes_of("addition") * rows * inner + passes_of("fused_addition") * elements
            ),
            saved_elements=float(4 * rows * inner),
            kernels=4,
        ),
    ]


def _attention_part(
    name: str, number: int, rows: int, width: int, heads: int, keys: int, key_width: int
) -> list[Module]:
    """Normalise, attend, add.

    A text, the second part's keys and values, is an input of the model, which has no gradient.
    """
    place = f"{name}.attn{number}"
    return [
        _normed_map(f"{name}.norm{number}", f"{place}.to_q", rows, width, width, bias=False),
        *(
            linear(
                f"{place}.to_{letter}",
                keys,
                key_width,
                width,
                copied_elements=float(keys * key_width),
                parameters=weight_and_bias(f"{place}.to_{letter}", width, key_width, bias=False),
                gradients=2 if number == 1 else 1,
            )
            for letter in "kv"
        ),
        attention(
            f"{place}.attention",
            rows,
            width,
            heads=heads,
            causal=False,
            keys=keys,
            dropout=False,
        ),
        linear(
            f"{place}.to_out.0",
            rows,
            width,
            width,
            kernels=3,
            vector_elements=float((passes_of("addition") + 2) * rows * width),
            fused_elements=float(passes_of("fused_addition") * rows * width),
        ),
    ]


def _normed_map(norm: str, name: str, rows: int, width: int, outputs: int, *, bias: bool) -> Module:
    """Layer normalisation and a map of its result."""
    own, mapped = norm_parameters(norm, width), weight_and_bias(name, outputs, width, bias=bias)
    return linear(
        name,
        rows,
        width,
        outputs,
        parameters=own + mapped,
        ready=names_reversed(mapped) + names(own),
        norm_elements=passes_of("norm") * rows * width,
        fused_elements=passes_of("fused_norm") * rows * width,
        saved_elements=float(rows * width),
        stream_elements=float(rows * width),
        saved_bytes=float(NORM_BYTES * rows),
        kernels=2,
    )


MODELS = {SDXL: Buildable(SDXL, unet, 1024, "image")}
"""Models of the zoo, with the image size that their authors trained with."""
