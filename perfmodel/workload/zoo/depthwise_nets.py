"""Networks of depthwise convolutions as torchvision builds them: EfficientNet and ConvNeXt.

Both versions of EfficientNet are inverted residuals with gated channels; a block of ConvNeXt ends
in a perceptron over channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from typing import Any

from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.model import ELEMENT_BYTES, Workload
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.image_layers import (
    IMAGENET_CLASSES,
    Image,
    adaptive_pooling,
    convolution,
    hand_on,
    image_model,
)
from perfmodel.workload.zoo.layers import (
    MASK_BYTES,
    NORM_BYTES,
    Module,
    linear,
    more_work,
    names,
    names_reversed,
    norm_parameters,
    renamed,
    weight_and_bias,
    with_work,
)
from perfmodel.workload.zoo.published import module_names, published_sizes, read_table

CHANNEL_STEP = 8
"""Scaled channels are rounded to a multiple of this, and by a tenth at most."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Blocks of one stage: growth inside of a block, kernel, stride, channels, repeats.

    `fused`: whether one convolution takes the place of the first two, and no channels are gated.
    """

    growth: int
    kernel: int
    stride: int
    inputs: int
    outputs: int
    blocks: int
    fused: bool = False


STAGES = read_table("published_sizes")["efficientnet_stages"]


def efficientnet(
    name: str,
    *,
    dtype: str,
    image_size: int,
    stages: str,
    width: float = 1.0,
    depth: float = 1.0,
    last_channels: int | None = None,
) -> Workload:
    """Convolutional network of Tan and Le (arXiv 1905.11946, 2104.00298), torchvision's variant.

    `stages`: the row of `STAGES`.
    `width`, `depth`: factors on the channels and on the blocks of the stages.
    `last_channels`: before the classifier, where these are not four times those of the last stage.
    """
    scaled = [
        replace(
            stage,
            inputs=_channels(stage.inputs * width),
            outputs=_channels(stage.outputs * width),
            blocks=math.ceil(stage.blocks * depth),
        )
        for stage in starmap(Stage, STAGES[stages])
    ]
    stem, image = _unit(
        "features.0", Image(3, image_size, image_size), scaled[0].inputs, 3, stride=2
    )
    parts = hand_on([stem], image.elements)
    for place, stage in enumerate(scaled, start=1):
        for block in range(stage.blocks):
            added, image = _inverted_residual(
                f"features.{place}.{block}",
                image,
                stage if block == 0 else replace(stage, inputs=stage.outputs, stride=1),
                drops=len(parts) > 1,
            )
            parts += hand_on(added, image.elements)
    last = last_channels or 4 * scaled[-1].outputs
    top, image = _unit(f"features.{len(scaled) + 1}", image, last, 1)
    pool, pooled = adaptive_pooling("avgpool", image, 1)
    head = linear(
        "classifier.1",
        1,
        last,
        IMAGENET_CLASSES,
        vector_elements=passes_of("dropout") * last,
        fused_elements=passes_of("activation") * last,
        kernels=2,
        saved_bytes=float(MASK_BYTES * last),
    )
    return image_model(
        name,
        [*parts, *hand_on([top], image.elements), *hand_on([pool], pooled.elements), head],
        dtype=dtype,
        image_size=image_size,
        source="torchvision efficientnet; Tan and Le 2019, arXiv 1905.11946; 2021, 2104.00298",
    )


def _channels(wished: float) -> int:
    """Round to a multiple of eight, upwards where that loses more than a tenth."""
    rounded = max(CHANNEL_STEP, int(wished + CHANNEL_STEP / 2) // CHANNEL_STEP * CHANNEL_STEP)
    return rounded + CHANNEL_STEP if rounded < 0.9 * wished else rounded


def _unit(
    name: str,
    image: Image,
    channels: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    activation: bool = True,
    residual: bool = False,
    drops: bool = False,
) -> tuple[Module, Image]:
    """Convolution, batch normalisation and SiLU, which works in place on a copy that it keeps."""
    part, out = convolution(
        f"{name}.0",
        image,
        channels,
        kernel,
        stride=stride,
        padding=(kernel - 1) // 2,
        groups=groups,
        norm=f"{name}.1",
        relu=activation,
        residual=residual,
    )
    falls = drops and residual
    copied = passes_of("activation") * activation + passes_of("stochastic_depth") * falls
    return more_work(
        part,
        vector_bytes=ELEMENT_BYTES * copied * out.elements,
        saved_elements=out.elements,
        kernels=activation + 3 * falls,
    ), out


def _inverted_residual(
    name: str, image: Image, stage: Stage, *, drops: bool
) -> tuple[list[Module], Image]:
    """An inverted residual: widen, filter each channel, gate the channels, narrow, add."""
    inner = _channels(stage.inputs * stage.growth)
    grows, sides = inner != stage.inputs, {"kernel": stage.kernel, "stride": stage.stride}
    last = {
        "channels": stage.outputs,
        "kernel": 1,
        "residual": stage.stride == 1 and stage.inputs == stage.outputs,
        "drops": drops,
        "activation": False,
    }
    units: list[dict[str, Any] | None] = [
        *[{"channels": inner, "kernel": 1}] * grows,
        {"channels": inner, **sides, "groups": inner},
        None,
        last,
    ]
    if stage.fused:
        units = (
            [{"channels": inner, **sides}, last]
            if grows
            else [{**last, **sides, "activation": True}]
        )
    parts: list[Module] = []
    for place, unit in enumerate(units):
        path = f"{name}.block.{place}"
        if unit is None:
            parts += _gate(path, image, max(1, stage.inputs // 4))
            continue
        part, image = _unit(path, image, **unit)
        parts.append(part)
    return parts, image


def _gate(name: str, image: Image, squeezed: int) -> list[Module]:
    """Average each channel, map the averages twice, and scale the channels by what comes out."""
    pool, pooled = adaptive_pooling(f"{name}.avgpool", image, 1)
    first, inner = convolution(f"{name}.fc1", pooled, squeezed, 1)
    second, _ = convolution(f"{name}.fc2", inner, image.channels, 1)
    moved = ELEMENT_BYTES * 2.0 * image.elements
    second = with_work(second, saved_elements=float(image.elements + pooled.elements))
    return [
        with_work(pool, saved_elements=float(pooled.elements)),
        with_work(first, saved_elements=2.0 * inner.elements),
        more_work(second, vector_bytes=moved, fused_bytes=moved, kernels=1),
    ]


WIDTH_FACTOR = 4
"""Inner width of the perceptron over the width of its block."""


def convnext(
    name: str,
    *,
    dtype: str,
    image_size: int,
    widths: Sequence[int],
    blocks: Sequence[int],
    patch: int = 4,
    classes: int = IMAGENET_CLASSES,
    hub: bool = False,
) -> Workload:
    """Convolutional network of Liu et al. 2022 (arXiv 2201.03545), torchvision's variant.

    Its norms over channels see permuted images, which leaves all after the first in NHWC.
    `patch`: side of the pixels that the first convolution joins.
    `hub`: as Hugging Face builds it: without stochastic depth, under other names.
    """
    stem, image = convolution(
        "features.0.0", Image(3, image_size, image_size), widths[0], patch, stride=patch, relu=False
    )
    parts = hand_on([_normed_after(stem, "features.0.1", image)], image.elements)
    for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        path = f"convnext.encoder.stages.{stage}"
        if stage:
            place = f"{path}.downsampling_layer" if hub else f"features.{2 * stage}"
            part, image = _downsampling(place, image, width)
            parts += hand_on([part], image.elements)
        place = f"{path}.layers" if hub else f"features.{2 * stage + 1}"
        for block in range(count):
            drops = len(parts) > 1 and not hub
            block_parts = _convnext_block(f"{place}.{block}", image, drops=drops)
            parts += hand_on(block_parts, image.elements)
    pool, pooled = adaptive_pooling("avgpool", image, 1)
    norm = norm_parameters("classifier.0", image.channels)
    head = weight_and_bias("classifier.2", classes, image.channels)
    last = linear(
        "classifier.2",
        1,
        pooled.channels,
        classes,
        parameters=norm + head,
        ready=names_reversed(head) + names(norm),
        norm_elements=passes_of("norm") * pooled.channels,
        fused_elements=passes_of("fused_norm") * pooled.channels,
        saved_bytes=NORM_BYTES,
        kernels=2,
        saved_elements=float(pooled.channels),
    )
    parts += [*hand_on([pool], pooled.elements), last]
    return image_model(
        name,
        [_as_hub(part) for part in parts] if hub else parts,
        dtype=dtype,
        image_size=image_size,
        source=f"{'Hugging Face' if hub else 'torchvision'} convnext; Liu et al. 2022, arXiv "
        "2201.03545",
        classes=classes,
    )


def _as_hub(part: Module) -> Module:
    """Return a part with Hugging Face's names, whose scales have one dimension."""
    part = renamed(part, module_names("replaced")["convnext-hub"])
    return replace(
        part,
        parameters=tuple(
            (name, shape[:1] if name.endswith("_parameter") else shape)
            for name, shape in part.parameters
        ),
    )


def _normed_after(part: Module, norm: str, image: Image) -> Module:
    """A convolution whose result is normalised over channels, pixel by pixel."""
    layer, own = part.layer, norm_parameters(norm, image.channels)
    norm_bytes = float(ELEMENT_BYTES * passes_of("norm") * image.elements)
    return replace(
        with_work(
            part,
            vector_bytes=layer.vector_bytes + norm_bytes,
            norm_bytes=norm_bytes,
            fused_bytes=float(ELEMENT_BYTES * passes_of("fused_norm") * image.elements),
            fused_kernels=2,
            kernels=layer.kernels + 1,
            saved_elements=layer.saved_elements + image.elements,
            saved_bytes=float(NORM_BYTES * image.elements // image.channels),
        ),
        parameters=part.parameters + own,
        ready=names(own) + part.ready,
    )


def _downsampling(name: str, image: Image, width: int) -> tuple[Module, Image]:
    """Normalise, and halve the sides by a convolution."""
    part, out = convolution(f"{name}.1", image, width, 2, stride=2, relu=False, channels_last=True)
    own = norm_parameters(f"{name}.0", image.channels)
    norm_bytes = float(ELEMENT_BYTES * passes_of("norm") * image.elements)
    return replace(
        with_work(
            part,
            vector_bytes=norm_bytes,
            norm_bytes=norm_bytes,
            kernels=2,
            fused_kernels=2,
            fused_bytes=float(ELEMENT_BYTES * passes_of("fused_norm") * image.elements),
            saved_elements=2.0 * image.elements,
            saved_bytes=float(NORM_BYTES * image.elements // image.channels),
        ),
        parameters=own + part.parameters,
        ready=part.ready + names(own),
    ), out


def _convnext_block(name: str, image: Image, *, drops: bool) -> list[Module]:
    """Depthwise convolution, norm, perceptron, scale of channels, addition.

    The gradient of the scale, which is registered first, is complete first.
    """
    width, pixels, elements = image.channels, image.height * image.width, image.elements
    same: dict[str, Any] = {"padding": 3, "groups": width, "relu": False, "channels_last": True}
    depthwise, _ = convolution(f"{name}.block.0", image, width, 7, **same)
    scale = ((f"{name}.layer_scale", (width, 1, 1)),)
    norm = norm_parameters(f"{name}.block.2", width)
    widen = weight_and_bias(f"{name}.block.3", WIDTH_FACTOR * width, width)
    narrow = weight_and_bias(f"{name}.block.5", width, WIDTH_FACTOR * width)
    after = (
        passes_of("addition") + passes_of("activation") + passes_of("stochastic_depth") * drops
    ) * elements
    return [
        replace(
            with_work(depthwise, saved_elements=float(elements)),
            parameters=scale + depthwise.parameters,
        ),
        linear(
            f"{name}.block.3",
            pixels,
            width,
            WIDTH_FACTOR * width,
            parameters=norm + widen,
            ready=names_reversed(widen) + names(norm),
            norm_elements=passes_of("norm") * elements,
            fused_elements=passes_of("fused_norm") * elements,
            saved_elements=float(elements),
            stream_elements=float(elements),
            saved_bytes=float(NORM_BYTES * pixels),
            kernels=2,
        ),
        linear(
            f"{name}.block.5",
            pixels,
            WIDTH_FACTOR * width,
            width,
            parameters=narrow,
            ready=names(scale) + names_reversed(narrow),
            vector_elements=passes_of("activation") * WIDTH_FACTOR * elements + after,
            fused_elements=passes_of("activation") * WIDTH_FACTOR * elements
            + passes_of("fused_addition") * elements,
            saved_elements=float((2 * WIDTH_FACTOR + 1) * elements),
            kernels=4 + 3 * drops,
        ),
    ]


MODELS = {
    **{
        name: Buildable(name, partial(convnext, name, **sizes), 224, "image")
        for name, sizes in published_sizes("images")["convnext"].items()
    },
    **{
        name: Buildable(name, partial(efficientnet, name, **sizes), sizes["image_size"], "image")
        for name, sizes in published_sizes("images")["efficientnet"].items()
    },
}
"""Models of the zoo, with the image size that their authors trained with."""
