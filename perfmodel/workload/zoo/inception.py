"""Inception v3 as torchvision trains it: with the auxiliary classifier."""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.workload.model import Workload
from perfmodel.workload.zoo.image_layers import (
    Image,
    classifier,
    convolution,
    image_model,
    pair,
    pooling,
)
from perfmodel.workload.zoo.layers import Module, with_work

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
    unread = 0 if pooled else averaged.elements
    kept = parts[-1].layer.saved_elements + joined.elements - unread
    parts[-1] = with_work(parts[-1], saved_elements=float(kept))
    return joined
