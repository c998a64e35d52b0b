"""The small model of `toy.py` as a workload, which needs no PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import Layer, LayerTimes, ParameterTensor, Workload

WIDTH, BLOCKS, INPUTS, OUTPUTS = 17, 3, 5, 7
"""No width divides by 2 or 4, so that shards are padded."""


def workload() -> Workload:
    """The tensors and layers of ``toy.Net``."""
    tensors: list[ParameterTensor] = []
    layers: list[Layer] = []

    def add(name: str, **shapes: tuple[int, ...]) -> None:
        first = len(tensors)
        tensors.extend(ParameterTensor(f"{name}.{part}", shape) for part, shape in shapes.items())
        layers.append(Layer(name, tuple(range(len(tensors) - 1, first - 1, -1))))

    add("embed", weight=(WIDTH, INPUTS), bias=(WIDTH,))
    for block in range(BLOCKS):
        add(f"blocks.{block}.norm", weight=(WIDTH,), bias=(WIDTH,))
        add(f"blocks.{block}.up", weight=(3 * WIDTH, WIDTH), bias=(3 * WIDTH,))
        add(f"blocks.{block}.down", weight=(WIDTH, 3 * WIDTH), bias=(WIDTH,))
    add("head", weight=(OUTPUTS, WIDTH))
    return Workload("toy", tuple(tensors), tuple(layers))


def request(ranks: int, **changes: Any) -> StepRequest:
    """A step of it on GPUs that are as quick for each layer."""
    model = workload()
    layers = len(model.layers)
    times = LayerTimes(
        np.full(layers, 1e-3), np.full(layers, 2e-3), np.ones(layers, int), np.ones(layers, int),
        5e-6, 1e-3, 3, 1e12, 0.0, "equal",
    )  # fmt: skip
    return StepRequest(model, times, ranks, 1, host_link_Bps=1e10, **changes)
