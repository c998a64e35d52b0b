"""Parts of a U-Net of Stable Diffusion: residual blocks with a time, transformers with a text."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.workload.model import Layer
from perfmodel.workload.zoo.image_layers import Image, convolution
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    ADD_PASSES,
    ELEMENT_BYTES,
    FUSED_NORM_PASSES,
    JOIN_PASSES,
    NORM_BYTES,
    NORM_PASSES,
    Module,
    Parameter,
    linear,
    names,
    names_reversed,
    norm_parameters,
    weight_and_bias,
)
from perfmodel.workload.zoo.transformer import attention

GROUPS = 32
"""Groups of channels of a normalisation."""
WIDEN = 4
"""Inner width of a perceptron over that of its block; as much again gates it."""
HEAD_SIZE = 64


@dataclass(frozen=True, slots=True)
class Condition:
    """What the network is told: width of the time, tokens and width of the text."""

    time_width: int
    text_tokens: int
    text_width: int


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts in the order of execution, and their parameters in the order of registration."""

    parts: tuple[Module, ...]
    registered: tuple[Parameter, ...]


def group_norm(name: str, image: Image, *, activation: bool) -> Module:
    """Normalise groups of channels over the whole map; SiLU after it."""
    norm_bytes = float(ELEMENT_BYTES * NORM_PASSES * image.elements)
    vector = ELEMENT_BYTES * ACTIVATION_PASSES * activation * image.elements
    parameters = norm_parameters(name, image.channels)
    layer = Layer(
        name,
        vector_bytes=norm_bytes + vector,
        norm_bytes=norm_bytes,
        kernels=1 + activation,
        fused_bytes=float(ELEMENT_BYTES * FUSED_NORM_PASSES * image.elements),
        stream_elements=float((1 + activation) * image.elements),
        saved_bytes=float(NORM_BYTES * GROUPS),
    )
    return Module(layer, parameters, names(parameters))


def plain_convolution(
    name: str,
    image: Image,
    channels: int,
    kernel: int = 3,
    *,
    stride: int = 1,
    keeps_input: bool = True,
    passes: float = 0.0,
) -> tuple[Module, Image]:
    """A convolution with a bias that keeps its input; `passes` over its result follow."""
    part, out = convolution(
        name, image, channels, kernel, stride=stride, padding=kernel // 2, relu=False
    )
    moved = float(ELEMENT_BYTES * passes * out.elements)
    layer = replace(
        part.layer,
        vector_bytes=moved,
        fused_bytes=moved,
        kernels=1 + round(passes / 2.5),
        saved_elements=float(image.elements * keeps_input),
        fused_kernels=1 + (passes > 0),
    )
    return replace(part, layer=layer), out


def residual_block(name: str, image: Image, channels: int, condition: Condition) -> Parts:
    """Norm, SiLU, convolution, twice; the time is added between, the input after."""
    first_norm = group_norm(f"{name}.norm1", image, activation=True)
    first, out = plain_convolution(f"{name}.conv1", image, channels)
    time = linear(
        f"{name}.time_emb_proj",
        1,
        condition.time_width,
        channels,
        parameters=weight_and_bias(f"{name}.time_emb_proj", channels, condition.time_width),
        vector_elements=ACTIVATION_PASSES * condition.time_width + 2.0 * out.elements,
        fused_elements=2.0 * out.elements,
        saved_elements=float(condition.time_width),
        kernels=3,
    )
    second_norm = group_norm(f"{name}.norm2", out, activation=True)
    last, _ = plain_convolution(f"{name}.conv2", out, channels, passes=ADD_PASSES + 2)
    parts = [first_norm, first, time, second_norm, last]
    if image.channels != channels:
        shortcut, _ = plain_convolution(f"{name}.conv_shortcut", image, channels, 1)
        # its gradient is added to that of the first norm; it runs before the addition
        parts.append(shortcut)
    registered = tuple(parameter for part in parts for parameter in part.parameters)
    return Parts(tuple(parts), registered)


def transformer(name: str, image: Image, depth: int, condition: Condition) -> Parts:
    """Normalise, map each pixel, run blocks over all pixels, map back, add the input."""
    width, pixels = image.channels, image.height * image.width
    parts = [group_norm(f"{name}.norm", image, activation=False)]
    parts.append(
        linear(
            f"{name}.proj_in",
            pixels,
            width,
            width,
            saved_elements=float(image.elements),
            parameters=weight_and_bias(f"{name}.proj_in", width, width),
        )
    )
    for block in range(depth):
        parts += _transformer_block(f"{name}.transformer_blocks.{block}", pixels, width, condition)
    parts.append(
        linear(
            f"{name}.proj_out",
            pixels,
            width,
            width,
            saved_elements=float(image.elements),
            parameters=weight_and_bias(f"{name}.proj_out", width, width),
            kernels=3,
            vector_elements=float((ADD_PASSES + 2) * image.elements),
            fused_elements=float(JOIN_PASSES * image.elements),
        )
    )
    registered = tuple(parameter for part in parts for parameter in part.parameters)
    return Parts(tuple(parts), registered)


def _transformer_block(name: str, rows: int, width: int, condition: Condition) -> list[Module]:
    """Attention of pixels to themselves, to the text, and a gated perceptron; each is added."""
    elements = rows * width
    parts: list[Module] = []
    for number, keys, key_width in (
        (1, rows, width),
        (2, condition.text_tokens, condition.text_width),
    ):
        place = f"{name}.attn{number}"
        parts += [
            _normed_map(f"{name}.norm{number}", f"{place}.to_q", rows, width, width, bias=False),
            *(
                _other_map(f"{place}.to_{letter}", keys, key_width, width, of_text=number == 2)
                for letter in ("k", "v")
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
                parameters=weight_and_bias(f"{place}.to_out.0", width, width),
                vector_elements=float((ADD_PASSES + 2) * elements),
                fused_elements=float(JOIN_PASSES * elements),
            ),
        ]
    inner = WIDEN * width
    return [
        *parts,
        _normed_map(f"{name}.norm3", f"{name}.ff.net.0.proj", rows, width, 2 * inner, bias=True),
        linear(
            f"{name}.ff.net.2",
            rows,
            inner,
            width,
            parameters=weight_and_bias(f"{name}.ff.net.2", width, inner),
            vector_elements=float(
                (ACTIVATION_PASSES + ADD_PASSES) * rows * inner + ADD_PASSES * elements
            ),
            fused_elements=float(ADD_PASSES * rows * inner + JOIN_PASSES * elements),
            saved_elements=float(4 * rows * inner),
            kernels=4,
        ),
    ]


def _other_map(name: str, keys: int, key_width: int, width: int, *, of_text: bool) -> Module:
    """Map of keys or values: of the input of queries, or of a text.

    A text is an input of the model, which has no gradient.
    """
    part = linear(
        name,
        keys,
        key_width,
        width,
        copied_elements=float(keys * key_width),
        parameters=weight_and_bias(name, width, key_width, bias=False),
    )
    return replace(part, layer=replace(part.layer, gradients=1)) if of_text else part


def _normed_map(norm: str, name: str, rows: int, width: int, outputs: int, *, bias: bool) -> Module:
    """Layer normalisation and a map of its result."""
    own, mapped = norm_parameters(norm, width), weight_and_bias(name, outputs, width, bias=bias)
    elements = rows * width
    return linear(
        name,
        rows,
        width,
        outputs,
        parameters=own + mapped,
        ready=names_reversed(mapped) + names(own),
        norm_elements=NORM_PASSES * elements,
        fused_elements=FUSED_NORM_PASSES * elements,
        saved_elements=float(elements),
        stream_elements=float(elements),
        saved_bytes=float(NORM_BYTES * rows),
        kernels=2,
    )
