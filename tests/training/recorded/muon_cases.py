"""``torch.optim.Muon`` on parameters of which each process has some rows, for `run_cases`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.training.recorded.recording_group import enter_phase

SHAPES = {"more columns": (8, 24), "as many": (16, 16), "more rows": (24, 8)}
"""Rows and columns of a matrix."""


def case(rows: int, columns: int) -> None:
    """Update one matrix, whose calls are noted under ``optimizer``."""
    model = nn.Sequential(nn.Linear(columns, rows, bias=False))
    fully_shard(model)
    optimizer = torch.optim.Muon(model.parameters())
    model(torch.ones(2, columns)).sum().backward()
    enter_phase("optimizer")
    optimizer.step()


CASES: dict[str, Callable[[], None]] = {
    name: partial(case, *shape) for name, shape in SHAPES.items()
}
