"""The U-Net of Stable Diffusion XL as diffusers builds it.

Residual blocks with a time, and transformers with a text, at three resolutions.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from perfmodel.workload.model import ELEMENT_BYTES, Layer, Sample, Workload
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.image_layers import Image, convolution
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    ADD_PASSES,
    FUSED_NORM_PASSES,
    JOIN_PASSES,
    NORM_BYTES,
    NORM_PASSES,
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
from perfmodel.workload.zoo.transformer import attention

SDXL = "stable-diffusion-xl-base-1.0"
CHANNELS = (320, 640, 1280)
"""Of the three resolutions."""
DEPTHS = (0, 2, 10)
"""Blocks of each transformer at the three resolutions; Podell et al. 2023, table 1."""
DOWN_BLOCKS = 2
"""Residual blocks of a resolution on the way down; one more on the way up."""
LATENT_CHANNELS, SHRUNK = 4, 8
"""Channels of the autoencoder's code, and pixels of a side that become one of it."""
TIME_WIDTH, TIME_FEATURES, ADDED_FEATURES = 1280, 320, 2816
"""Width of the time's embedding; sinusoids of the time; pooled text and sizes of the picture."""
TEXT_TOKENS, TEXT_WIDTH = 77, 2048
NORM_GROUPS = 32
"""Groups of channels of a normalisation."""
WIDTH_FACTOR = 4
"""Inner width of a perceptron over that of its block; as much again gates it."""
HEAD_SIZE = 64
STAGES = (
    "conv_in",
    "time_embedding",
    "add_embedding",
    "down_blocks",
    "up_blocks",
    "mid_block",
    "conv_norm_out",
    "conv_out",
)
KINDS = ("attentions", "resnets", "downsamplers", "upsamplers")
"""Modules of the network, and those of a stage, in the order in which diffusers registers them."""


def unet(*, dtype: str, image_size: int) -> Workload:
    """U-Net of Podell et al. 2023 (arXiv 2307.01952), which learns to tell the noise of a code.

    The autoencoder and the text encoders, which are not trained, are not part of it.
    """
    side = max(1, image_size // SHRUNK)
    code = Image(LATENT_CHANNELS, side, side)
    first, image = plain_convolution("conv_in", code, CHANNELS[0])
    down, waiting = _way_down(image)
    lowest = waiting[-1]
    up, image = _way_up(lowest, waiting)
    last, _ = plain_convolution("conv_out", image, LATENT_CHANNELS)
    parts = [
        *_embedded("time_embedding", TIME_FEATURES),
        *_embedded("add_embedding", ADDED_FEATURES),
        first,
        *down,
        *residual_block("mid_block.resnets.0", lowest, CHANNELS[-1]),
        *transformer("mid_block.attentions.0", lowest, DEPTHS[-1]),
        *residual_block("mid_block.resnets.1", lowest, CHANNELS[-1]),
        *up,
        group_norm("conv_norm_out", image, activation=True),
        last,
    ]
    return assemble(
        SDXL,
        parts,
        dtype=dtype,
        sample=Sample("image", f"of {image_size} x {image_size}", is_image=True),
        source="diffusers UNet2DConditionModel; Podell et al. 2023, arXiv 2307.01952",
        input_elements=float(code.elements + TEXT_TOKENS * TEXT_WIDTH),
        output_elements=float(code.elements),
        registered=sorted(
            [parameter for part in parts for parameter in part.parameters], key=_registered_place
        ),
    )


def _registered_place(parameter: Parameter) -> tuple[int, int, list[int]]:
    """Return where a parameter is registered: places of its stage and block, kinds of its path."""
    stage, *path = parameter[0].split(".")
    kinds = [KINDS.index(part) for part in path if part in KINDS]
    return STAGES.index(stage), int(path[0]) if path[0].isdigit() else 0, kinds


def _embedded(name: str, features: int) -> list[Module]:
    """Map features of the time, or of what is added to it, twice."""
    return [
        linear(
            f"{name}.linear_{number}",
            1,
            inputs,
            TIME_WIDTH,
            saved_elements=float(inputs * number),
            kernels=2,
            vector_elements=float(ACTIVATION_PASSES * TIME_WIDTH),
        )
        for number, inputs in ((1, features), (2, TIME_WIDTH))
    ]


def _way_down(image: Image) -> tuple[list[Module], list[Image]]:
    """Blocks of each resolution, and their results, which wait for the way up."""
    parts, waiting = list[Module](), [image]
    for place, (channels, depth) in enumerate(zip(CHANNELS, DEPTHS, strict=True)):
        name = f"down_blocks.{place}"
        for layer in range(DOWN_BLOCKS):
            parts += _layer(name, layer, waiting[-1], channels, depth)
            waiting.append(replace(waiting[-1], channels=channels))
        if channels != CHANNELS[-1]:
            part, image = plain_convolution(
                f"{name}.downsamplers.0.conv", waiting[-1], channels, stride=2
            )
            parts.append(part)
            waiting.append(image)
    return parts, waiting


def _way_up(image: Image, waiting: list[Image]) -> tuple[list[Module], Image]:
    """Blocks that also see what waited, and the image at twice the sides after each."""
    parts: list[Module] = []
    for place, (channels, depth) in enumerate(zip(CHANNELS[::-1], DEPTHS[::-1], strict=True)):
        name = f"up_blocks.{place}"
        for layer in range(DOWN_BLOCKS + 1):
            joined = replace(image, channels=image.channels + waiting.pop().channels)
            parts.append(_copied(f"{name}.concat.{layer}", 2.0 * joined.elements))
            parts += _layer(name, layer, joined, channels, depth)
            image = replace(image, channels=channels)
        if waiting:
            image = replace(waiting[-1], channels=channels)  # each pixel repeated
            part, _ = plain_convolution(f"{name}.upsamplers.0.conv", image, channels)
            parts += [_copied(f"{name}.upsamplers.0", 1.25 * image.elements), part]
    return parts, image


def _layer(name: str, layer: int, image: Image, channels: int, depth: int) -> list[Module]:
    """A residual block, and a transformer after it where the resolution has one."""
    return residual_block(f"{name}.resnets.{layer}", image, channels) + (
        transformer(f"{name}.attentions.{layer}", replace(image, channels=channels), depth)
        if depth
        else []
    )


def _copied(name: str, passes: float) -> Module:
    return Module(
        Layer(name, vector_bytes=ELEMENT_BYTES * passes, fused_bytes=ELEMENT_BYTES * passes)
    )


def group_norm(name: str, image: Image, *, activation: bool) -> Module:
    """Normalise groups of channels over the whole map; SiLU after it."""
    norm_bytes = float(ELEMENT_BYTES * NORM_PASSES * image.elements)
    parameters = norm_parameters(name, image.channels)
    layer = Layer(
        name,
        vector_bytes=norm_bytes + ELEMENT_BYTES * ACTIVATION_PASSES * activation * image.elements,
        norm_bytes=norm_bytes,
        kernels=1 + activation,
        fused_bytes=float(ELEMENT_BYTES * FUSED_NORM_PASSES * image.elements),
        stream_elements=float((1 + activation) * image.elements),
        saved_bytes=float(NORM_BYTES * NORM_GROUPS),
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


def residual_block(name: str, image: Image, channels: int) -> list[Module]:
    """Norm, SiLU, convolution, twice; the time is added between, the input after."""
    first, out = plain_convolution(f"{name}.conv1", image, channels)
    last, _ = plain_convolution(f"{name}.conv2", out, channels, passes=ADD_PASSES + 2)
    parts = [
        group_norm(f"{name}.norm1", image, activation=True),
        first,
        linear(
            f"{name}.time_emb_proj",
            1,
            TIME_WIDTH,
            channels,
            vector_elements=ACTIVATION_PASSES * TIME_WIDTH + 2.0 * out.elements,
            fused_elements=2.0 * out.elements,
            saved_elements=float(TIME_WIDTH),
            kernels=3,
        ),
        group_norm(f"{name}.norm2", out, activation=True),
        last,
    ]
    if image.channels == channels:
        return parts
    # its gradient is added to that of the first norm; it runs before the addition
    return [*parts, plain_convolution(f"{name}.conv_shortcut", image, channels, 1)[0]]


def transformer(name: str, image: Image, depth: int) -> list[Module]:
    """Normalise, map each pixel, run blocks over all pixels, map back, add the input."""
    width, pixels, kept = image.channels, image.height * image.width, float(image.elements)
    blocks = (f"{name}.transformer_blocks.{block}" for block in range(depth))
    return [
        group_norm(f"{name}.norm", image, activation=False),
        linear(f"{name}.proj_in", pixels, width, width, saved_elements=kept),
        *chain.from_iterable(_transformer_block(block, pixels, width) for block in blocks),
        linear(
            f"{name}.proj_out",
            pixels,
            width,
            width,
            saved_elements=kept,
            kernels=3,
            vector_elements=float((ADD_PASSES + 2) * image.elements),
            fused_elements=float(JOIN_PASSES * image.elements),
        ),
    ]


def _transformer_block(name: str, rows: int, width: int) -> list[Module]:
    """Attention of pixels to themselves, to the text, and a gated perceptron; each is added."""
    elements, inner = rows * width, WIDTH_FACTOR * width
    return [
        *_attention_part(name, 1, rows, width, rows, width),
        *_attention_part(name, 2, rows, width, TEXT_TOKENS, TEXT_WIDTH),
        _normed_map(f"{name}.norm3", f"{name}.ff.net.0.proj", rows, width, 2 * inner, bias=True),
        linear(
            f"{name}.ff.net.2",
            rows,
            inner,
            width,
            vector_elements=float(
                (ACTIVATION_PASSES + ADD_PASSES) * rows * inner + ADD_PASSES * elements
            ),
            fused_elements=float(ADD_PASSES * rows * inner + JOIN_PASSES * elements),
            saved_elements=float(4 * rows * inner),
            kernels=4,
        ),
    ]


def _attention_part(
    name: str, number: int, rows: int, width: int, keys: int, key_width: int
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
            heads=width // HEAD_SIZE,
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
            vector_elements=float((ADD_PASSES + 2) * rows * width),
            fused_elements=float(JOIN_PASSES * rows * width),
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
        norm_elements=NORM_PASSES * rows * width,
        fused_elements=FUSED_NORM_PASSES * rows * width,
        saved_elements=float(rows * width),
        stream_elements=float(rows * width),
        saved_bytes=float(NORM_BYTES * rows),
        kernels=2,
    )


MODELS = {SDXL: Buildable(SDXL, unet, 1024, "image")}
"""Models of the zoo, with the image size that their authors trained with."""
