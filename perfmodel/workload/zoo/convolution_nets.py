"""Networks of plain convolutions as torchvision builds them: ResNet, VGG, AlexNet, Inception.

ResNet is v1.5, whose stride sits in the 3x3 convolution; Inception v3 is trained with its auxiliary
classifier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.model import Workload
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.image_layers import (
    IMAGENET_CLASSES,
    Image,
    adaptive_pooling,
    classifier,
    convolution,
    hand_on,
    image_model,
    pair,
    pooling,
)
from perfmodel.workload.zoo.layers import MASK_BYTES, Module, linear, more_work, renamed
from perfmodel.workload.zoo.published import module_names, read_table

NETS = read_table("published_sizes")["convolution_nets"]
INCEPTION = read_table("published_sizes")["inception"]
RESNET_DEPTHS, VGG_DEPTHS = (tuple(map(int, NETS[family])) for family in ("resnet", "vgg"))


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
    blocks, image = _residual(
        image,
        [64 * 2**stage for stage in range(4)],
        NETS["resnet"][str(depth)],
        bottleneck=depth >= 50,
        groups=groups,
        group_width=group_width,
    )
    parts += chain.from_iterable(blocks)
    parts += classifier(image, classes=NETS["cifar_classes"] if small_images else IMAGENET_CLASSES)
    return image_model(
        f"resnet{depth}" if groups == 1 else f"resnext{depth}-{groups}x{group_width}d",
        parts,
        dtype=dtype,
        image_size=image_size,
        source="torchvision resnet (v1.5); He et al. 2015, arXiv 1512.03385",
    )


def _residual(
    image: Image, widths: Sequence[int], counts: Sequence[int], path: str = "layer{0}", **kind: Any
) -> tuple[list[list[Module]], Image]:
    """Parts of each block of all stages; `widths`: of their 3x3 convolutions.

    `path`: of a stage, by its number from 1 and from 0.
    """
    blocks = list[list[Module]]()
    for stage, (width, count) in enumerate(zip(widths, counts, strict=True), start=1):
        for number in range(count):
            added, image = _block(
                f"{path.format(stage, stage - 1)}.{number}",
                image,
                width=width,
                stride=2 if stage > 1 and number == 0 else 1,
                **kind,
            )
            blocks.append(hand_on(added, image.elements))
    return blocks, image


@dataclass(frozen=True, slots=True)
class ResNetShape:
    """Channels of the stem, what stages put out, blocks of each, and classes."""

    stem: int
    channels: Sequence[int]
    blocks: Sequence[int]
    bottleneck: bool
    classes: int


def hub_resnet(name: str, *, dtype: str, image_size: int, shape: ResNetShape) -> Workload:
    """Residual network as Hugging Face builds it, which registers shortcuts first."""
    image = Image(3, image_size, image_size)
    stem, image = convolution("conv1", image, shape.stem, 7, stride=2, padding=3, norm="bn1")
    pool, image = pooling("maxpool", image, 3, stride=2, padding=1)
    blocks, image = _residual(
        image,
        [width // (4 if shape.bottleneck else 1) for width in shape.channels],
        shape.blocks,
        "resnet.encoder.stages.{1}.layers",
        bottleneck=shape.bottleneck,
        groups=1,
        group_width=64,
    )
    own = [
        [renamed(part, module_names("replaced")["resnet-hub"]) for part in parts]
        for parts in ([stem, pool], *blocks, classifier(image, classes=shape.classes))
    ]
    in_block = [sorted(parts, key=lambda part: ".shortcut" not in part.layer.name) for parts in own]
    return image_model(
        name,
        [*chain.from_iterable(own)],
        dtype=dtype,
        image_size=image_size,
        source="Hugging Face ResNetForImageClassification; He et al. 2015, arXiv 1512.03385",
        registered=[each for part in chain.from_iterable(in_block) for each in part.parameters],
        classes=shape.classes,
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


def vgg(depth: int, *, dtype: str, image_size: int) -> Workload:
    """VGG without batch normalisation (arXiv 1409.1556)."""
    convolutions = [
        (min(64 * 2**stage, 512), 3, 1, 1, number == count)
        for stage, count in enumerate(NETS["vgg"][str(depth)])
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
    features = _features(Image(3, image_size, image_size), NETS["alexnet"], pooled=3, averaged=6)
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

    `convolutions`: channels, kernel, stride, padding, whether it is pooled.
    `pooled`, `averaged`: sides of what a pooling reads, and of the maps that the last one puts out.
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
    """Return the parts followed by a classifier of three linear maps.

    `numbers`: of the maps in their module. `dropout`: which of them read a dropped-out input.
    """
    widths = (features, *NETS["classifier_widths"], IMAGENET_CLASSES)
    for step, number in enumerate(numbers):
        inputs, outputs, name = widths[step], widths[step + 1], f"classifier.{number}"
        relu = step < 2
        part = linear(
            name,
            1,
            inputs,
            outputs,
            vector_elements=relu * passes_of("activation") * outputs
            + dropout[step] * passes_of("dropout") * inputs,
            saved_elements=relu * outputs + dropout[step] * inputs,
            saved_bytes=float(dropout[step] * MASK_BYTES * inputs),
            kernels=1 + relu + dropout[step],
        )
        parts = parts + hand_on([part], outputs)
    return parts


Step = tuple[str, int, int | Sequence[int], int, int | Sequence[int]]
"""Name, channels, kernel, stride, padding of one convolution; 0 channels: of a pooling."""
Branch = tuple[Sequence[Step], Sequence[Step]]
"""A chain of convolutions, and those that all read its end and whose outputs are joined."""


def inception_v3(*, dtype: str, image_size: int) -> Workload:
    """Szegedy et al. 2015 (arXiv 1512.00567), torchvision's module names."""
    parts, image = _chain(Image(3, image_size, image_size), "", INCEPTION["stem"])
    for number, kind, pooled in INCEPTION["blocks"]:
        image = _mixed(parts, image, f"Mixed_{number}", INCEPTION["branches"][kind], pooled)
        if number == INCEPTION["auxiliary_input"]:
            pool, small = pooling("AuxLogits.pool", image, 5, stride=3, indices=False)
            judged, small = _chain(small, "AuxLogits.", INCEPTION["auxiliary"])
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
    parts: list[Module], image: Image, name: str, branches: Sequence[Branch], pooled: int = 0
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
    more = float(joined.elements - (0 if pooled else averaged.elements))
    parts[-1] = more_work(parts[-1], saved_elements=more)
    return joined


MODELS = {
    **{
        f"resnet{each}": Buildable(f"resnet{each}", partial(resnet, each), 224, "image")
        for each in RESNET_DEPTHS
    },
    **{
        f"vgg{each}": Buildable(f"vgg{each}", partial(vgg, each), 224, "image")
        for each in VGG_DEPTHS
    },
    "alexnet": Buildable("alexnet", alexnet, 224, "image"),
    "inception-v3": Buildable("inception-v3", inception_v3, 299, "image"),
}
"""Models of the zoo, with the image size that their authors trained with."""
