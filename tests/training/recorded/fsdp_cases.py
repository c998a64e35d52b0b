"""Fully sharded training as PyTorch has it, for `run_cases`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from tests.training.recorded.toy import Block, Net, train

CPU = torch.device("cpu")


def version_1(strategy: str) -> Callable[[], None]:
    """``FullyShardedDataParallel`` with a strategy."""

    def run() -> None:
        more: dict[str, Any] = {}
        if strategy == "HYBRID_SHARD":
            more["device_mesh"] = init_device_mesh("cpu", (dist.get_world_size() // 2, 2))
        model = FullyShardedDataParallel(
            Net(), sharding_strategy=ShardingStrategy[strategy], device_id=CPU,
            auto_wrap_policy=ModuleWrapPolicy({Block}), **more,
        )  # fmt: skip
        train(model, torch.optim.SGD(model.parameters(), 0.1))

    return run


def version_2(shape: tuple[int, ...] | None = None, **options: Any) -> Callable[[], None]:
    """``fully_shard`` of each block and of the model, on a mesh."""

    def run() -> None:
        model = Net()
        sizes = shape or (dist.get_world_size(),)
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("copies", "shards")[-len(sizes) :])
        for block in model.blocks:
            fully_shard(block, mesh=mesh, **options)
        fully_shard(model, mesh=mesh, **options)
        train(model, torch.optim.SGD(model.parameters(), 0.1))

    return run


HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

CASES: dict[str, Callable[[], None]] = {
    "fsdp1": version_1("FULL_SHARD"),
    "fsdp1, no reshard": version_1("SHARD_GRAD_OP"),
    "fsdp2": version_2(),
    "fsdp2, no reshard": version_2(reshard_after_forward=False),
    "fsdp2, bf16": version_2(mp_policy=HALF),
}
if dist.is_initialized() and dist.get_world_size() == 4:
    CASES |= {
        "fsdp1, hybrid": version_1("HYBRID_SHARD"),
        "fsdp2, hybrid": version_2((2, 2)),
    }
