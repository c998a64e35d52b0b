"""The small model of `toy.py` as a workload, which needs no PyTorch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from perfmodel.training.strategy import StepRequest
from perfmodel.workload.layer_calls import LayerCall
from perfmodel.workload.model import Layer, LayerTimes, ParameterTensor, Workload

WIDTH, BLOCKS, INPUTS, OUTPUTS = 17, 3, 5, 7
"""No width divides by 2 or 4, so that shards are padded."""
EXPERTS, ROWS = 6, 4
"""Experts of a layer of the net in `expert_cases.py`, and rows that a rank sends to them."""


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


def expert_share(own: int) -> Workload:
    """The tensors and layers of ``expert_cases.Net`` on a rank with so many experts of each."""
    tensors: list[ParameterTensor] = []
    layers: list[Layer] = []
    call = partial(LayerCall, "expert", "all_to_all", ROWS * WIDTH, 2)
    calls = tuple(
        call(phase, place) for phase in ("forward", "backward") for place in ("before", "after")
    )

    def add(name: str, *parts: ParameterTensor, calls: tuple[LayerCall, ...] = ()) -> None:
        first = len(tensors)
        tensors.extend(replace(part, name=f"{name}.{part.name}") for part in parts)
        layers.append(Layer(name, tuple(range(len(tensors) - 1, first - 1, -1)), calls=calls))

    bias = ParameterTensor("bias", (WIDTH,))
    add("embed", ParameterTensor("weight", (WIDTH, INPUTS)), bias)
    for block in range(BLOCKS):
        add(f"blocks.{block}.norm", ParameterTensor("weight", (WIDTH,)), bias)
        add(f"blocks.{block}.up", ParameterTensor("weight", (WIDTH, WIDTH)), bias)
        weight = ParameterTensor("weight", (own, 2 * WIDTH, WIDTH), of_experts=True)
        add(f"blocks.{block}.experts", weight, calls=calls)
    add("head", ParameterTensor("weight", (OUTPUTS, WIDTH)))
    return Workload("toy of experts", tuple(tensors), tuple(layers))


def request(ranks: int, model: Workload | None = None, **changes: Any) -> StepRequest:
    """A step of it, or of another one, on GPUs that are as quick for each layer."""
    model = model or workload()
    layers = len(model.layers)
    times = LayerTimes(
        np.full(layers, 1e-3),
        np.full(layers, 2e-3),
        np.ones(layers, int),
        np.ones(layers, int),
        5e-6,
        1e-3,
        3,
        1e12,
        "equal",
    )
    return StepRequest(model, times, ranks, 1, host_link_Bps=1e10, **changes)
