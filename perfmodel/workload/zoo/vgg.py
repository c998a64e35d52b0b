"""Plain convolutional networks as torchvision builds them: VGG and AlexNet."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.workload.model import Workload
from perfmodel.workload.zoo.image_layers import (
    CLASSES,
    Image,
    adaptive_pooling,
    convolution,
    hand_on,
    image_model,
    pooling,
)
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    DROPOUT_PASSES,
    MASK_BYTES,
    Module,
    linear,
)

HIDDEN = 4096
VGG_STAGES = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Convolutions per stage: Simonyan and Zisserman 2014, table 1, columns D and E."""
ALEXNET = (
    (64, 11, 4, 2, True),
    (192, 5, 1, 2, True),
    (384, 3, 1, 1, False),
    (256, 3, 1, 1, False),
    (256, 3, 1, 1, True),
)
"""Channels, kernel, stride, padding, pooled: Krizhevsky 2014 (arXiv 1404.5997), torchvision."""


def vgg(depth: int, *, dtype: str, image_size: int) -> Workload:
    """VGG without batch normalisation (arXiv 1409.1556)."""
    convolutions = [
        (min(64 * 2**stage, 512), 3, 1, 1, number == count)
        for stage, count in enumerate(VGG_STAGES[depth])
        for number in range(1, count + 1)
    ]
    features = _features(Image(3, image_size, image_size), convolutions, pooled=2, averaged=7)
    parts = _classified(*features, numbers=(0, 3, 6), dropout=(False, True, True))
    return image_model(
        f"vgg{depth}",
        parts,
        dtype=dtype,
        image_size=image_size,
        source="torchvision vgg; Simonyan and Zisserman 2014, arXiv 1409.1556",
    )


def alexnet(*, dtype: str, image_size: int) -> Workload:
    """AlexNet, "one weird trick" variant (arXiv 1404.5997)."""
    features = _features(Image(3, image_size, image_size), ALEXNET, pooled=3, averaged=6)
    parts = _classified(*features, numbers=(1, 4, 6), dropout=(True, True, False))
    return image_model(
        "alexnet",
        parts,
        dtype=dtype,
        image_size=image_size,
        source="torchvision alexnet; Krizhevsky 2014, arXiv 1404.5997",
    )


def _features(
    image: Image,
    convolutions: Sequence[tuple[int, int, int, int, bool]],
    *,
    pooled: int,
    averaged: int,
) -> tuple[list[Module], int]:
    """Convolutions, and pooling after some, with torchvision's numbers; parts and elements put out.

    `convolutions`: as in `ALEXNET`. `pooled`, `averaged`: sides of what a pooling reads, and of the
    maps that the last one puts out.
    """
    parts: list[Module] = []
    position = 0
    for channels, kernel, stride, padding, is_pooled in convolutions:
        part, image = convolution(
            f"features.{position}", image, channels, kernel, stride=stride, padding=padding
        )
        parts += hand_on([part], image.elements)
        position += 2  # the ReLU has a number of its own
        if is_pooled:
            part, image = pooling(f"features.{position}", image, pooled, stride=2)
            parts += hand_on([part], image.elements)
            position += 1
    pool, image = adaptive_pooling("avgpool", image, averaged)
    return parts + hand_on([pool], image.elements), image.elements


def _classified(
    parts: list[Module],
    features: int,
    *,
    numbers: tuple[int, int, int],
    dropout: tuple[bool, bool, bool],
) -> list[Module]:
    """Parts and three linear maps; `dropout` says which of these reads a dropped-out input."""
    widths = (features, HIDDEN, HIDDEN, CLASSES)
    for step, number in enumerate(numbers):
        inputs, outputs, name = widths[step], widths[step + 1], f"classifier.{number}"
        relu = step < 2
        part = linear(
            name,
            1,
            inputs,
            outputs,
            vector_elements=relu * ACTIVATION_PASSES * outputs
            + dropout[step] * DROPOUT_PASSES * inputs,
            saved_elements=relu * outputs + dropout[step] * inputs,
            saved_bytes=float(dropout[step] * MASK_BYTES * inputs),
            kernels=1 + relu + dropout[step],
        )
        parts = parts + hand_on([part], outputs)
    return parts
