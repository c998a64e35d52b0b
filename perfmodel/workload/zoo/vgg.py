"""Plain convolutional networks as torchvision builds them: VGG and AlexNet."""

from __future__ import annotations

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
    weight_and_bias,
)

HIDDEN = 4096
STAGES = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
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
    """VGG without batch normalisation (arXiv 1409.1556), torchvision's module numbering."""
    image, position = Image(3, image_size, image_size), 0
    parts: list[Module] = []
    for stage, convolutions in enumerate(STAGES[depth]):
        for _ in range(convolutions):
            part, image = convolution(
                f"features.{position}", image, min(64 * 2**stage, 512), 3, padding=1
            )
            parts += hand_on([part], image.elements)
            position += 2  # the ReLU has a number of its own
        part, image = pooling(f"features.{position}", image, 2, stride=2)
        parts += hand_on([part], image.elements)
        position += 1
    pool, image = adaptive_pooling("avgpool", image, 7)
    parts += [
        *hand_on([pool], image.elements),
        *_classifier(image.elements, numbers=(0, 3, 6), dropout=(False, True, True)),
    ]
    return image_model(
        f"vgg{depth}",
        parts,
        dtype=dtype,
        image_size=image_size,
        source="torchvision vgg; Simonyan and Zisserman 2014, arXiv 1409.1556",
    )


def alexnet(*, dtype: str, image_size: int) -> Workload:
    """AlexNet, "one weird trick" variant (arXiv 1404.5997), torchvision's module numbering."""
    image, position = Image(3, image_size, image_size), 0
    parts: list[Module] = []
    for channels, kernel, stride, padding, pooled in ALEXNET:
        part, image = convolution(
            f"features.{position}", image, channels, kernel, stride=stride, padding=padding
        )
        parts += hand_on([part], image.elements)
        position += 2
        if pooled:
            part, image = pooling(f"features.{position}", image, 3, stride=2)
            parts += hand_on([part], image.elements)
            position += 1
    pool, image = adaptive_pooling("avgpool", image, 6)
    parts += [
        *hand_on([pool], image.elements),
        *_classifier(image.elements, numbers=(1, 4, 6), dropout=(True, True, False)),
    ]
    return image_model(
        "alexnet",
        parts,
        dtype=dtype,
        image_size=image_size,
        source="torchvision alexnet; Krizhevsky 2014, arXiv 1404.5997",
    )


def _classifier(
    features: int, *, numbers: tuple[int, int, int], dropout: tuple[bool, bool, bool]
) -> list[Module]:
    """Three linear maps; `dropout` says which of them reads a dropped-out input."""
    widths = (features, HIDDEN, HIDDEN, CLASSES)
    parts: list[Module] = []
    for step, number in enumerate(numbers):
        inputs, outputs, name = widths[step], widths[step + 1], f"classifier.{number}"
        relu = step < 2
        part = linear(
            name,
            1,
            inputs,
            outputs,
            parameters=weight_and_bias(name, outputs, inputs),
            vector_elements=relu * ACTIVATION_PASSES * outputs
            + dropout[step] * DROPOUT_PASSES * inputs,
            saved_elements=relu * outputs + dropout[step] * inputs,
            saved_bytes=float(dropout[step] * MASK_BYTES * inputs),
            kernels=1 + relu + dropout[step],
        )
        parts += hand_on([part], outputs)
    return parts
