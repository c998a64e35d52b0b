"""ConvNeXt as torchvision builds it: depthwise convolutions, and a perceptron over channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfmodel.workload.model import Workload
from perfmodel.workload.zoo.image_layers import (
    CLASSES,
    Image,
    adaptive_pooling,
    convolution,
    hand_on,
    image_model,
)
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    ADD_PASSES,
    DROPPED_PASSES,
    ELEMENT_BYTES,
    FUSED_NORM_PASSES,
    JOIN_PASSES,
    NORM_BYTES,
    NORM_PASSES,
    Module,
    linear,
    names,
    names_reversed,
    norm_parameters,
    weight_and_bias,
    with_work,
)

WIDEN = 4
"""Inner width of the perceptron over the width of its block."""


CONVNEXTS: Mapping[str, dict[str, tuple[int, ...]]] = {
    "convnext_tiny": {"widths": (96, 192, 384, 768), "blocks": (3, 3, 9, 3)},
    "convnext_small": {"widths": (96, 192, 384, 768), "blocks": (3, 3, 27, 3)},
    "convnext_base": {"widths": (128, 256, 512, 1024), "blocks": (3, 3, 27, 3)},
    "convnext_large": {"widths": (192, 384, 768, 1536), "blocks": (3, 3, 27, 3)},
}
"""Channels and blocks of the four stages: Liu et al. 2022, section 3; names are torchvision's."""


def convnext(
    name: str, *, dtype: str, image_size: int, widths: Sequence[int], blocks: Sequence[int]
) -> Workload:
    """Convolutional network of Liu et al. 2022 (arXiv 2201.03545), torchvision's variant."""
    stem, image = convolution(
        "features.0.0", Image(3, image_size, image_size), widths[0], 4, stride=4, relu=False
    )
    parts = hand_on([_normed_after(stem, "features.0.1", image)], image.elements)
    for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        place = 2 * stage + 1
        if stage:
            part, image = _downsampling(f"features.{place - 1}", image, width)
            parts += hand_on([part], image.elements)
        for block in range(count):
            added = _convnext_block(f"features.{place}.{block}", image, drops=len(parts) > 1)
            parts += hand_on(added, image.elements)
    pool, pooled = adaptive_pooling("avgpool", image, 1)
    norm = norm_parameters("classifier.0", image.channels)
    head = weight_and_bias("classifier.2", CLASSES, image.channels)
    last = linear(
        "classifier.2",
        1,
        pooled.channels,
        CLASSES,
        parameters=norm + head,
        ready=names_reversed(head) + names(norm),
        norm_elements=NORM_PASSES * pooled.channels,
        fused_elements=FUSED_NORM_PASSES * pooled.channels,
        saved_bytes=NORM_BYTES,
        kernels=2,
        saved_elements=float(pooled.channels),
    )
    return image_model(
        name,
        [*parts, *hand_on([pool], pooled.elements), last],
        dtype=dtype,
        image_size=image_size,
        source="torchvision convnext; Liu et al. 2022, arXiv 2201.03545",
    )


def _normed_after(part: Module, norm: str, image: Image) -> Module:
    """A convolution whose result is normalised over channels, pixel by pixel."""
    layer, own = part.layer, norm_parameters(norm, image.channels)
    norm_bytes = float(ELEMENT_BYTES * NORM_PASSES * image.elements)
    changed = with_work(
        part,
        vector_bytes=layer.vector_bytes + norm_bytes,
        norm_bytes=norm_bytes,
        fused_bytes=float(ELEMENT_BYTES * FUSED_NORM_PASSES * image.elements),
        fused_kernels=2,
        kernels=layer.kernels + 1,
        saved_elements=layer.saved_elements + image.elements,
        saved_bytes=float(NORM_BYTES * image.elements // image.channels),
    )
    return replace(changed, parameters=part.parameters + own, ready=names(own) + part.ready)


def _downsampling(name: str, image: Image, width: int) -> tuple[Module, Image]:
    """Normalise, and halve the sides by a convolution."""
    part, out = convolution(f"{name}.1", image, width, 2, stride=2, relu=False)
    own = norm_parameters(f"{name}.0", image.channels)
    norm_bytes = float(ELEMENT_BYTES * NORM_PASSES * image.elements)
    changed = with_work(
        part,
        vector_bytes=norm_bytes,
        norm_bytes=norm_bytes,
        kernels=2,
        fused_kernels=2,
        fused_bytes=float(ELEMENT_BYTES * FUSED_NORM_PASSES * image.elements),
        saved_elements=2.0 * image.elements,
        saved_bytes=float(NORM_BYTES * image.elements // image.channels),
    )
    ready = part.ready + names(own)
    return replace(changed, parameters=own + part.parameters, ready=ready), out


def _convnext_block(name: str, image: Image, *, drops: bool) -> list[Module]:
    """Depthwise convolution, norm, perceptron, scale of channels, addition.

    The gradient of the scale, which is registered first, is complete first.
    """
    width, pixels, elements = image.channels, image.height * image.width, image.elements
    depthwise, _ = convolution(
        f"{name}.block.0", image, width, 7, padding=3, groups=width, relu=False
    )
    scale = ((f"{name}.layer_scale", (width, 1, 1)),)
    norm = norm_parameters(f"{name}.block.2", width)
    widen = weight_and_bias(f"{name}.block.3", WIDEN * width, width)
    narrow = weight_and_bias(f"{name}.block.5", width, WIDEN * width)
    first = replace(
        with_work(depthwise, saved_elements=float(elements)),
        parameters=scale + depthwise.parameters,
    )
    after = (ADD_PASSES + ACTIVATION_PASSES + DROPPED_PASSES * drops) * elements
    return [
        first,
        linear(
            f"{name}.block.3",
            pixels,
            width,
            WIDEN * width,
            parameters=norm + widen,
            ready=names_reversed(widen) + names(norm),
            norm_elements=NORM_PASSES * elements,
            fused_elements=FUSED_NORM_PASSES * elements,
            saved_elements=float(elements),
            stream_elements=float(elements),
            saved_bytes=float(NORM_BYTES * pixels),
            kernels=2,
        ),
        linear(
            f"{name}.block.5",
            pixels,
            WIDEN * width,
            width,
            parameters=narrow,
            ready=names(scale) + names_reversed(narrow),
            vector_elements=ACTIVATION_PASSES * WIDEN * elements + after,
            fused_elements=ACTIVATION_PASSES * WIDEN * elements + JOIN_PASSES * elements,
            saved_elements=float((2 * WIDEN + 1) * elements),
            kernels=4 + 3 * drops,
        ),
    ]
