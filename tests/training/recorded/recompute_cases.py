"""Recomputation inside and around units of fully sharded training, for `run_cases`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.training.recorded.toy import Net, train

CPU = torch.device("cpu")


def sgd(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


LAYERS = ("norm", "up", "down")


def version_1(inner: tuple[str, ...] = ()) -> Callable[[], None]:
    """``FullyShardedDataParallel`` around checkpointed blocks, or `inner` modules of them."""

    def run() -> None:
        model = Net()
        for block in model.blocks:
            for name in inner:
                unit = FullyShardedDataParallel(getattr(block, name), device_id=CPU)
                setattr(block, name, unit)
        blocks = [checkpoint_wrapper(block) for block in model.blocks]
        if not inner:
            blocks = [FullyShardedDataParallel(block, device_id=CPU) for block in blocks]
        model.blocks = nn.ModuleList(blocks)
        whole = FullyShardedDataParallel(model, device_id=CPU)
        train(whole, sgd(whole))

    return run


def version_2(inner: tuple[str, ...] = ()) -> Callable[[], None]:
    """``fully_shard`` around checkpointed blocks, or of `inner` modules of them."""

    def run() -> None:
        model = Net()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            for name in inner:
                fully_shard(getattr(block, name), mesh=mesh)
        model.blocks = nn.ModuleList(checkpoint_wrapper(block) for block in model.blocks)
        if not inner:
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        train(model, sgd(model))

    return run


def ddp() -> None:
    """DistributedDataParallel with checkpointed blocks."""
    model = Net()
    model.blocks = nn.ModuleList(checkpoint_wrapper(block) for block in model.blocks)
    whole = DistributedDataParallel(model, bucket_cap_mb=0.004)
    train(whole, sgd(whole), steps=3)


CASES: dict[str, Callable[[], None]] = {
    "fsdp1": version_1(),
    "fsdp1, several units in a block": version_1(LAYERS),
    "fsdp2": version_2(),
    "fsdp2, several units in a block": version_2(LAYERS),
    "ddp": ddp,
}
