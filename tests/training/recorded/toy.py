"""A small model as PyTorch runs it, and the same as a workload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import Layer, LayerTimes, ParameterTensor, Workload
from tests.training.recorded.recording_group import enter_phase

WIDTH, BLOCKS, INPUTS, OUTPUTS = 17, 3, 5, 7
"""No width divides by 2 or 4, so that shards are padded."""


class Block(nn.Module):
    """Norm and two linear layers, around which the input passes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    """An embedding, blocks, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(INPUTS, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, OUTPUTS, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(
    model: Any, optimizer: Any, steps: int = 2, step: Callable[[], Any] | None = None
) -> None:
    """Train some steps; calls are noted under ``step I forward``, ``backward``, ``optimizer``."""
    for number in range(steps):
        enter_phase(f"step {number} forward")
        loss = model(torch.ones(2, INPUTS)).sum()
        enter_phase(f"step {number} backward")
        loss.backward()
        enter_phase(f"step {number} optimizer")
        (step or optimizer.step)()
        optimizer.zero_grad()


def workload() -> Workload:
    """The tensors and layers of `Net`."""
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
