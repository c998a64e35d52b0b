"""Float8 training of torchao with `fully_shard`, for `run_cases`; needs ``torchao``, not a GPU.

A CPU has no fp8 products: torchao emulates them, with the same casts and collectives around.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torchao.float8 import (
    Float8LinearConfig,
    convert_to_float8_training,
    precompute_float8_dynamic_scale_for_fsdp,
)

from tests.training.recorded.recording_group import enter_phase

WIDTH, BLOCKS, INPUTS, OUTPUTS = 32, 3, 16, 48


class Block(nn.Module):
    """Norm and two linear layers, around which the input passes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    """An embedding, blocks, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(INPUTS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, OUTPUTS, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def in_a_block(_module: nn.Module, name: str) -> bool:
    return name.startswith("blocks")


def train(case: dict[str, Any]) -> None:
    """Train two steps, calls noted under ``step 0`` and ``step 1``."""
    fields = case["fields"]
    precomputes = fields.get("precompute_float8_dynamic_scale_for_fsdp", False)
    config = dataclasses.replace(
        Float8LinearConfig.from_recipe_name(fields["recipe"]),
        emulate=True,
        enable_fsdp_float8_all_gather=fields.get("enable_fsdp_float8_all_gather", False),
    )
    model = Net()
    convert_to_float8_training(model, config=config, module_filter_fn=in_a_block)
    ranks = dist.get_world_size()
    shards = case["shard_gpus"] or ranks
    if shards < ranks:
        mesh = init_device_mesh(
            "cpu", (ranks // shards, shards), mesh_dim_names=("copies", "shards")
        )
    else:
        mesh = init_device_mesh("cpu", (ranks,))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    for number in range(2):
        enter_phase(f"step {number}")
        for _ in range(case["accumulate"]):
            model(torch.ones(2, INPUTS)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if precomputes:
            precompute_float8_dynamic_scale_for_fsdp(model)


def settings(
    recipe: str = "tensorwise",
    *,
    accumulate: int = 1,
    shard_gpus: int | None = None,
    **fields: bool,
) -> dict[str, Any]:
    """Fields of ``compute.fp8``, and what stands beside it."""
    return {
        "accumulate": accumulate,
        "shard_gpus": shard_gpus,
        "fields": {"recipe": recipe, **fields},
    }


GATHERED = {"enable_fsdp_float8_all_gather": True}
PRECOMPUTED = GATHERED | {"precompute_float8_dynamic_scale_for_fsdp": True}

SETTINGS: dict[str, dict[str, Any]] = {
    "tensorwise": settings(),
    "rowwise": settings("rowwise"),
    "rowwise_with_gw_hp": settings("rowwise_with_gw_hp"),
    "gathered": settings(**GATHERED),
    "gathered, accumulate": settings(accumulate=2, **GATHERED),
    "precomputed": settings(**PRECOMPUTED),
    "precomputed, accumulate": settings(accumulate=2, **PRECOMPUTED),
    "precomputed, hybrid": settings(shard_gpus=2, **PRECOMPUTED),
}

CASES: dict[str, Callable[[], None]] = {
    name: partial(train, case) for name, case in SETTINGS.items()
}
