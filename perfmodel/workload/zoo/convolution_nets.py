"""Networks of plain convolutions as torchvision builds them: ResNet, VGG, AlexNet, Inception.

ResNet is v1.5, whose stride sits in the 3x3 convolution; Inception v3 is trained with its auxiliary
classifier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfmodel.workload.model import Workload
from perfmodel.workload.zoo.image_layers import (
    CLASSES,
    Image,
    adaptive_pooling,
    classifier,
    convolution,
    hand_on,
    image_model,
    pair,
    pooling,
)
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    DROPOUT_PASSES,
    MASK_BYTES,
    Module,
    linear,
    with_work,
)

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
    return image_model(
        f"resnet{depth}" if groups == 1 else f"resnext{depth}-{groups}x{group_width}d",
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
    inner = width * group_width // 64 * groups
    narrow = ((1, inner, 1), (3, inner, stride), (1, out_channels, 1))
    steps = narrow if bottleneck else ((3, width, stride), (3, width, 1))
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
    return image_model(
        f"vgg{depth}",
        _classified(*features, numbers=(0, 3, 6), dropout=(False, True, True)),
        dtype=dtype,
        image_size=image_size,
        source="torchvision vgg; Simonyan and Zisserman 2014, arXiv 1409.1556",
    )


def alexnet(*, dtype: str, image_size: int) -> Workload:
    """AlexNet, "one weird trick" variant (arXiv 1404.5997)."""
    features = _features(Image(3, image_size, image_size), ALEXNET, pooled=3, averaged=6)
    return image_model(
        "alexnet",
        _classified(*features, numbers=(1, 4, 6), dropout=(True, True, False)),
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


Step = tuple[str, int, int | tuple[int, int], int, int | tuple[int, int]]
"""Name, channels, kernel, stride, padding of one convolution; 0 channels: of a pooling."""
Branch = tuple[tuple[Step, ...], tuple[Step, ...]]
"""A chain of convolutions, and those that all read its end and whose outputs are joined."""


def _line(*steps: Step) -> Branch:
    """One convolution after the other."""
    return steps[:-1], steps[-1:]


STEM: tuple[Step, ...] = (
    ("Conv2d_1a_3x3", 32, 3, 2, 0),
    ("Conv2d_2a_3x3", 32, 3, 1, 0),
    ("Conv2d_2b_3x3", 64, 3, 1, 1),
    ("maxpool1", 0, 3, 2, 0),
    ("Conv2d_3b_1x1", 80, 1, 1, 0),
    ("Conv2d_4a_3x3", 192, 3, 1, 0),
    ("maxpool2", 0, 3, 2, 0),
)
AUXILIARY: tuple[Step, ...] = (("conv0", 128, 1, 1, 0), ("conv1", 768, 5, 1, 0))
DOUBLE_BRANCH: tuple[Step, ...] = (("branch3x3dbl_1", 64, 1, 1, 0), ("branch3x3dbl_2", 96, 3, 1, 1))
INCEPTION_A = (
    _line(("branch1x1", 64, 1, 1, 0)),
    _line(("branch5x5_1", 48, 1, 1, 0), ("branch5x5_2", 64, 5, 1, 2)),
    _line(*DOUBLE_BRANCH, ("branch3x3dbl_3", 96, 3, 1, 1)),
)
INCEPTION_B = (
    _line(("branch3x3", 384, 3, 2, 0)),
    _line(*DOUBLE_BRANCH, ("branch3x3dbl_3", 96, 3, 2, 0)),
)


def inception_c(width: int) -> tuple[Branch, ...]:
    """Return branches with kernels of seven places, whose inner maps are as wide as stated."""
    flat, tall = ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))
    return (
        _line(("branch1x1", 192, 1, 1, 0)),
        _line(
            ("branch7x7_1", width, 1, 1, 0),
            ("branch7x7_2", width, *flat),
            ("branch7x7_3", 192, *tall),
        ),
        _line(
            ("branch7x7dbl_1", width, 1, 1, 0),
            ("branch7x7dbl_2", width, *tall),
            ("branch7x7dbl_3", width, *flat),
            ("branch7x7dbl_4", width, *tall),
            ("branch7x7dbl_5", 192, *flat),
        ),
    )


INCEPTION_D = (
    _line(("branch3x3_1", 192, 1, 1, 0), ("branch3x3_2", 320, 3, 2, 0)),
    _line(
        ("branch7x7x3_1", 192, 1, 1, 0),
        ("branch7x7x3_2", 192, (1, 7), 1, (0, 3)),
        ("branch7x7x3_3", 192, (7, 1), 1, (3, 0)),
        ("branch7x7x3_4", 192, 3, 2, 0),
    ),
)
INCEPTION_E: tuple[Branch, ...] = (
    _line(("branch1x1", 320, 1, 1, 0)),
    (
        (("branch3x3_1", 384, 1, 1, 0),),
        (
            ("branch3x3_2a", 384, (1, 3), 1, (0, 1)),
            ("branch3x3_2b", 384, (3, 1), 1, (1, 0)),
        ),
    ),
    (
        (("branch3x3dbl_1", 448, 1, 1, 0), ("branch3x3dbl_2", 384, 3, 1, 1)),
        (
            ("branch3x3dbl_3a", 384, (1, 3), 1, (0, 1)),
            ("branch3x3dbl_3b", 384, (3, 1), 1, (1, 0)),
        ),
    ),
)
MIXED_BLOCKS = (
    ("5b", INCEPTION_A, 32),
    ("5c", INCEPTION_A, 64),
    ("5d", INCEPTION_A, 64),
    ("6a", INCEPTION_B, 0),
    ("6b", inception_c(128), 192),
    ("6c", inception_c(160), 192),
    ("6d", inception_c(160), 192),
    ("6e", inception_c(192), 192),
    ("7a", INCEPTION_D, 0),
    ("7b", INCEPTION_E, 192),
    ("7c", INCEPTION_E, 192),
)
"""Mixed blocks: branches, and channels of one that averages; 0: the input is pooled, and joined."""
JUDGED = "6e"
"""The block whose output the auxiliary classifier reads."""


def inception_v3(*, dtype: str, image_size: int) -> Workload:
    """Szegedy et al. 2015 (arXiv 1512.00567), torchvision's module names."""
    parts, image = _chain(Image(3, image_size, image_size), "", STEM)
    for number, branches, pooled in MIXED_BLOCKS:
        image = _mixed(parts, image, f"Mixed_{number}", branches, pooled)
        if number == JUDGED:
            pool, small = pooling("AuxLogits.pool", image, 5, stride=3, indices=False)
            judged, small = _chain(small, "AuxLogits.", AUXILIARY)
            parts += [pool, *judged, *classifier(small, "AuxLogits.")]
    return image_model(
        "inception-v3",
        [*parts, *classifier(image)],
        dtype=dtype,
        image_size=image_size,
        source="torchvision inception_v3, auxiliary classifier on; arXiv 1512.00567",
    )


def _step(image: Image, prefix: str, step: Step) -> tuple[Module, Image]:
    name, channels, kernel, stride, padding = step
    if not channels:
        return pooling(f"{prefix}{name}", image, pair(kernel)[0], stride=stride)
    return convolution(
        f"{prefix}{name}.conv",
        image,
        channels,
        kernel,
        stride=stride,
        padding=padding,
        norm=f"{prefix}{name}.bn",
    )


def _chain(image: Image, prefix: str, steps: Iterable[Step]) -> tuple[list[Module], Image]:
    parts = []
    for step in steps:
        part, image = _step(image, prefix, step)
        parts.append(part)
    return parts, image


def _mixed(
    parts: list[Module], image: Image, name: str, branches: tuple[Branch, ...], pooled: int = 0
) -> Image:
    """Append one mixed block to `parts` and return its output.

    `pooled` channels come from an averaged branch; with 0 the max-pooled input itself is joined.
    """
    channels, out = 0, image
    for trunk, ends in branches:
        chain, middle = _chain(image, f"{name}.", trunk)
        parts += chain
        for end in ends:
            part, out = _step(middle, f"{name}.", end)
            parts.append(part)
            channels += out.channels
    if pooled:
        pool, averaged = pooling(f"{name}.pool", image, 3, padding=1, indices=False)
        part, averaged = _step(averaged, f"{name}.", ("branch_pool", pooled, 1, 1, 0))
        parts += [pool, part]
    else:
        pool, averaged = pooling(f"{name}.pool", image, 3, stride=2)
        parts.append(pool)
    joined = Image(channels + averaged.channels, out.height, out.width)
    # the last part keeps what all are joined to, a copy that the next layers read, and which alone
    # reads a pooled input
    kept = parts[-1].layer.saved_elements + joined.elements - (0 if pooled else averaged.elements)
    parts[-1] = with_work(parts[-1], saved_elements=float(kept))
    return joined
