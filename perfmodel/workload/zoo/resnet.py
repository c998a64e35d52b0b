"""ResNet as torchvision builds it (v1.5: the stride sits in the 3x3 convolution)."""

from __future__ import annotations

from perfmodel.workload.model import Workload
from perfmodel.workload.zoo.image_layers import (
    CLASSES,
    Image,
    classifier,
    convolution,
    hand_on,
    image_model,
    pooling,
)
from perfmodel.workload.zoo.layers import Module

RESNET_BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Residual blocks per stage by depth: He et al. 2015, table 1."""


CIFAR_CLASSES = 10


def resnet(
    depth: int,
    *,
    dtype: str,
    image_size: int,
    small_images: bool = False,
    groups: int = 1,
    group_width: int = 64,
) -> Workload:
    """Residual network of He et al. 2015 (arXiv 1512.03385), torchvision's variant.

    `small_images`: as it is usual for CIFAR-10 (kuangliu/pytorch-cifar, models/resnet.py): a stem
    of 3x3 that keeps the size, no pooling after it, ten classes.
    `groups`, `group_width`: of the 3x3 convolutions, and channels of each where a block has 64: 32
    and 4 make a ResNeXt of 32x4d (Xie et al. 2016, arXiv 1611.05431).
    """
    image = Image(3, image_size, image_size)
    if small_images:
        stem, image = convolution("conv1", image, 64, 3, padding=1, norm="bn1")
        parts = [stem]
    else:
        stem, image = convolution("conv1", image, 64, 7, stride=2, padding=3, norm="bn1")
        pool, image = pooling("maxpool", image, 3, stride=2, padding=1)
        parts = [stem, pool]
    for stage, blocks in enumerate(RESNET_BLOCKS[depth], start=1):
        for block in range(blocks):
            added, image = _block(
                f"layer{stage}.{block}",
                image,
                width=32 * 2**stage,
                stride=2 if stage > 1 and block == 0 else 1,
                bottleneck=depth >= 50,
                groups=groups,
                group_width=group_width,
            )
            parts += hand_on(added, image.elements)
    parts += classifier(image, classes=CIFAR_CLASSES if small_images else CLASSES)
    name = f"resnet{depth}" if groups == 1 else f"resnext{depth}-{groups}x{group_width}d"
    return image_model(
        name,
        parts,
        dtype=dtype,
        image_size=image_size,
        source="torchvision resnet (v1.5); He et al. 2015, arXiv 1512.03385",
    )


def _block(
    name: str,
    image: Image,
    *,
    width: int,
    stride: int,
    bottleneck: bool,
    groups: int,
    group_width: int,
) -> tuple[list[Module], Image]:
    """Convolutions of one residual block; the shortcut runs (and is registered) after them."""
    out_channels = 4 * width if bottleneck else width
    # (kernel, channels, stride) of the convolutions on the main path
    plain = ((3, width, stride), (3, width, 1))
    inner = width * group_width // 64 * groups
    narrow = ((1, inner, 1), (3, inner, stride), (1, out_channels, 1))
    steps = narrow if bottleneck else plain
    parts, x = [], image
    for number, (kernel, channels, step) in enumerate(steps, start=1):
        part, x = convolution(
            f"{name}.conv{number}",
            x,
            channels,
            kernel,
            stride=step,
            padding=kernel // 2,
            groups=groups if kernel == 3 else 1,
            norm=f"{name}.bn{number}",
            residual=number == len(steps),
        )
        parts.append(part)
    if stride > 1 or image.channels != out_channels:
        part, x = convolution(
            f"{name}.downsample.0",
            image,
            out_channels,
            1,
            stride=stride,
            norm=f"{name}.downsample.1",
            relu=False,
        )
        parts.append(part)
    return parts, x
