"""Inception v3 as torchvision trains it: with the auxiliary classifier."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from perfmodel.workload.model import Workload
from perfmodel.workload.zoo.image_layers import (
    Image,
    classifier,
    convolution,
    image_model,
    pooling,
)
from perfmodel.workload.zoo.layers import Module

Step = tuple[str, int, int | tuple[int, int], int, int | tuple[int, int]]
"""Name, channels, kernel, stride, padding of one convolution."""
Branch = tuple[tuple[Step, ...], tuple[Step, ...]]
"""A chain of convolutions, and those that all read its end and whose outputs are joined."""


def inception_v3(*, dtype: str, image_size: int) -> Workload:
    """Szegedy et al. 2015 (arXiv 1512.00567), torchvision's module names."""
    parts, image = _stem(Image(3, image_size, image_size))
    for number, pooled in (("5b", 32), ("5c", 64), ("5d", 64)):
        image = _mixed(parts, image, f"Mixed_{number}", _branches_a(), pooled)
    image = _mixed(parts, image, "Mixed_6a", _branches_b())
    for number, width in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        image = _mixed(parts, image, f"Mixed_{number}", _branches_c(width), 192)
    parts += _auxiliary(image)
    image = _mixed(parts, image, "Mixed_7a", _branches_d())
    for number in ("7b", "7c"):
        image = _mixed(parts, image, f"Mixed_{number}", _branches_e(), 192)
    parts += classifier(image)
    return image_model(
        "inception-v3",
        parts,
        dtype=dtype,
        image_size=image_size,
        source="torchvision inception_v3, auxiliary classifier on; arXiv 1512.00567",
    )


def _conv(image: Image, prefix: str, step: Step) -> tuple[Module, Image]:
    name, channels, kernel, stride, padding = step
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
        part, image = _conv(image, prefix, step)
        parts.append(part)
    return parts, image


def _stem(image: Image) -> tuple[list[Module], Image]:
    first = (
        ("Conv2d_1a_3x3", 32, 3, 2, 0),
        ("Conv2d_2a_3x3", 32, 3, 1, 0),
        ("Conv2d_2b_3x3", 64, 3, 1, 1),
    )
    second = (("Conv2d_3b_1x1", 80, 1, 1, 0), ("Conv2d_4a_3x3", 192, 3, 1, 0))
    parts, image = _chain(image, "", first)
    pool, image = pooling("maxpool1", image, 3, stride=2)
    more, image = _chain(image, "", second)
    last, image = pooling("maxpool2", image, 3, stride=2)
    return [*parts, pool, *more, last], image


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
            part, out = _conv(middle, f"{name}.", end)
            parts.append(part)
            channels += out.channels
    if pooled:
        pool, averaged = pooling(f"{name}.pool", image, 3, padding=1, indices=False)
        part, averaged = _conv(averaged, f"{name}.", ("branch_pool", pooled, 1, 1, 0))
        parts += [pool, part]
    else:
        pool, averaged = pooling(f"{name}.pool", image, 3, stride=2)
        parts.append(pool)
    joined = Image(channels + averaged.channels, out.height, out.width)
    parts[-1] = _join(parts[-1], joined, unread=0 if pooled else averaged.elements)
    return joined


def _join(last: Module, joined: Image, *, unread: int) -> Module:
    """Let the last part keep what the branches are joined to, a copy that the next layers read.

    `unread`: elements of a branch that nothing reads but the copy.
    """
    saved = last.layer.saved_elements + joined.elements - unread
    return replace(last, layer=replace(last.layer, saved_elements=float(saved)))


def _line(*steps: Step) -> Branch:
    """One convolution after the other."""
    return steps[:-1], steps[-1:]


def _branches_a() -> tuple[Branch, ...]:
    return (
        _line(("branch1x1", 64, 1, 1, 0)),
        _line(("branch5x5_1", 48, 1, 1, 0), ("branch5x5_2", 64, 5, 1, 2)),
        _line(
            ("branch3x3dbl_1", 64, 1, 1, 0),
            ("branch3x3dbl_2", 96, 3, 1, 1),
            ("branch3x3dbl_3", 96, 3, 1, 1),
        ),
    )


def _branches_b() -> tuple[Branch, ...]:
    return (
        _line(("branch3x3", 384, 3, 2, 0)),
        _line(
            ("branch3x3dbl_1", 64, 1, 1, 0),
            ("branch3x3dbl_2", 96, 3, 1, 1),
            ("branch3x3dbl_3", 96, 3, 2, 0),
        ),
    )


def _branches_c(width: int) -> tuple[Branch, ...]:
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


def _branches_d() -> tuple[Branch, ...]:
    return (
        _line(("branch3x3_1", 192, 1, 1, 0), ("branch3x3_2", 320, 3, 2, 0)),
        _line(
            ("branch7x7x3_1", 192, 1, 1, 0),
            ("branch7x7x3_2", 192, (1, 7), 1, (0, 3)),
            ("branch7x7x3_3", 192, (7, 1), 1, (3, 0)),
            ("branch7x7x3_4", 192, 3, 2, 0),
        ),
    )


def _branches_e() -> tuple[Branch, ...]:
    flat, tall = ((1, 3), 1, (0, 1)), ((3, 1), 1, (1, 0))
    return (
        _line(("branch1x1", 320, 1, 1, 0)),
        (
            (("branch3x3_1", 384, 1, 1, 0),),
            (("branch3x3_2a", 384, *flat), ("branch3x3_2b", 384, *tall)),
        ),
        (
            (("branch3x3dbl_1", 448, 1, 1, 0), ("branch3x3dbl_2", 384, 3, 1, 1)),
            (("branch3x3dbl_3a", 384, *flat), ("branch3x3dbl_3b", 384, *tall)),
        ),
    )


def _auxiliary(image: Image) -> list[Module]:
    """Classifier on the output of Mixed_6e, which runs before Mixed_7a."""
    pool, image = pooling("AuxLogits.pool", image, 5, stride=3, indices=False)
    steps: tuple[Step, ...] = (("conv0", 128, 1, 1, 0), ("conv1", 768, 5, 1, 0))
    parts, image = _chain(image, "AuxLogits.", steps)
    return [pool, *parts, *classifier(image, "AuxLogits.")]
