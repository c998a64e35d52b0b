"""A small model as PyTorch runs it; `toy_workload` has the same as a workload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.training.recorded.recording_group import enter_phase
from tests.training.recorded.toy_workload import BLOCKS, INPUTS, OUTPUTS, WIDTH


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
