"""Emulated models: their tensors, and how long each layer is slept for instead of computing.

None is one of those that the shipped model was calibrated or checked with before. Sizes are those
of small models so that hosts at some 100 Mbit/s communicate for about as long as they compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FORWARD_MS, BACKWARD_MS = 30.0, 60.0


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: elements of its tensors, and its times."""

    name: str
    numels: tuple[int, ...]
    forward_ms: float
    backward_ms: float


def _timed(layers: list[tuple[str, tuple[int, ...], float]]) -> tuple[Layer, ...]:
    """Share the times of a pass out by the work of each layer."""
    work = sum(share for _, _, share in layers)
    return tuple(
        Layer(
            name, numels, round(FORWARD_MS * share / work, 4), round(BACKWARD_MS * share / work, 4)
        )
        for name, numels, share in layers
    )


def bert_like() -> tuple[Layer, ...]:
    """A large embedding, then eight equal blocks of attention and feed-forward: 6.2 MB."""
    width = 96
    blocks = []
    for number in range(8):
        attention = (3 * width * width, 3 * width, width * width, width, width, width)
        blocks.append((f"attention{number}", attention, 4.0))
        feed = (4 * width * width, 4 * width, 4 * width * width, width, width, width)
        blocks.append((f"feed{number}", feed, 8.0))
    head = [("pooler", (width * width, width), 1.0)]
    return _timed([("embedding", (6400 * width, 256 * width), 2.0), *blocks, *head])


def vgg_like() -> tuple[Layer, ...]:
    """Convolutions that compute long and weigh little, then one huge product: 5.6 MB."""
    sizes = [(3, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64), (64, 64), (64, 96)]
    work = [6.0, 14.0, 9.0, 14.0, 9.0, 14.0, 14.0, 8.0]
    layers = [
        (f"conv{number}", (a * b * 9, b), share)
        for number, ((a, b), share) in enumerate(zip(sizes, work, strict=True))
    ]
    products = [("fc0", (4096 * 256, 256), 5.0), ("fc1", (256 * 256, 256), 1.0)]
    return _timed([*layers, *products, ("fc2", (256 * 100, 100), 0.5)])


def many_small() -> tuple[Layer, ...]:
    """Ninety layers of four small tensors each, growing towards the end: 3.6 MB."""
    layers = []
    for number in range(90):
        width = 20 + number
        layers.append((f"layer{number}", (width * 100, width * 58, width, width), 1.0 + number % 3))
    return _timed(layers)


MODELS: Mapping[str, tuple[Layer, ...]] = {
    "bert-like": bert_like(),
    "vgg-like": vgg_like(),
    "many-small": many_small(),
}
