"""Experts under ``fully_shard``, as torchtitan's ``apply_fsdp`` has them: a mesh of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.nn.functional import all_to_all_single
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tests.training.recorded.fsdp_cases import ACCUMULATE, BF16, train
from tests.training.recorded.toy_workload import BLOCKS, EXPERTS, INPUTS, OUTPUTS, ROWS, WIDTH


class Experts(nn.Module):
    """All experts of a layer in one tensor; each rank of a group has some of them.

    Rows go to them and come back within the module, as with torchtitan's ``ExpertParallel``, whose
    hooks stand inside those of ``fully_shard``.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(number, 2 * WIDTH, WIDTH))
        self.group: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        own = weight.to_local() if isinstance(weight, DTensor) else weight
        there = all_to_all_single(torch.empty_like(x), x, group=self.group)
        said = (there @ own.sum(0).T)[:, :WIDTH].contiguous()
        return all_to_all_single(torch.empty_like(said), said, group=self.group)


class Block(nn.Module):
    """A norm, a map, and experts."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, WIDTH)
        self.experts = Experts(number)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.up(self.norm(x)).repeat(ROWS // len(x), 1)
        return x + self.experts(rows)[: len(x)]


class Net(nn.Module):
    """An embedding, blocks, a head."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.embed = nn.Linear(INPUTS, WIDTH)
        self.blocks = nn.ModuleList(Block(number) for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, OUTPUTS, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def experts(
    degree: int | None,
    number: int = EXPERTS,
    train_with: dict[str, Any] | None = None,
    **options: Any,
) -> Callable[[], None]:
    """Share experts among so many neighbours, or all; shard them over holders of the same ones."""

    def run() -> None:
        ranks = dist.get_world_size()
        own = degree or ranks
        mesh = init_device_mesh("cpu", (ranks // own, own), mesh_dim_names=("efsdp", "ep"))
        everyone = mesh._flatten("fsdp")
        model: Any = Net(number)
        for block in model.blocks:
            part = block.experts
            part.group = mesh["ep"].get_group()
            part.weight = nn.Parameter(distribute_tensor(part.weight, mesh["ep"], [Shard(0)]))
            few = ranks > number  # as torchtitan decides (``apply_fsdp``)
            fully_shard(
                part,
                mesh=mesh["efsdp"],
                shard_placement_fn=(lambda _: Shard(1)) if few else None,
                **options,
            )
            fully_shard(block, mesh=everyone, **options)
        fully_shard(model, mesh=everyone, **options)
        train(model, **(train_with or {}))

    return run


HALF = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=torch.float32)
CASES: dict[str, Callable[[], None]] = {
    "of 2": experts(2),
    "of 2, bf16": experts(2, mp_policy=HALF),
    "of 2, no reshard": experts(2, reshard_after_forward=False),
    "of 2, accumulate": experts(2, train_with=ACCUMULATE),
    "of 2, fewer than ranks": experts(2, 2),
    "of all": experts(None, 4),
    "of all, bf16": experts(None, 4, mp_policy=HALF),
}
