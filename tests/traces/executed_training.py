"""One of two processes that train over gloo under the profiler and its ExecutionTraceObserver.

Each rank writes two traces of one step, and one of a step of fully_shard.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

WIDTH, INNER, BATCH = 64, 96, 32


def make_module() -> Any:
    """A convolution, and two maps."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.Flatten(),
        nn.Linear(4 * WIDTH, INNER),
        nn.ReLU(),
        nn.Linear(INNER, 10, bias=False),
    )


def make_loss(module: Any) -> Any:
    """Of one batch."""
    outputs = module(torch.ones(BATCH, 1, 8, WIDTH // 8))
    return nn.functional.cross_entropy(outputs, torch.zeros(BATCH, dtype=torch.long))


class Blocks(nn.Module):
    """Two blocks between a table and a head that has its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(INNER, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH), nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH)
            )
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, INNER, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Any) -> Any:
        """Return the loss."""
        stream = self.table(tokens)
        for block in self.blocks:
            stream = stream + block(stream)
        return nn.functional.cross_entropy(self.head(stream).flatten(0, 1), tokens.flatten())


def record_sharded(path: Path) -> None:
    """Write a step of fully_shard: two micro-batches in half precision, gradients clipped."""
    mesh = init_device_mesh("cpu", (2,))
    model, policy = Blocks(), MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(BATCH, 8, dtype=torch.long)
    observer = ExecutionTraceObserver().register_callback(str(path))
    for begins in (False, True):
        if begins:
            observer.start()
        for _ in range(2):
            model(tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    observer.stop()
    observer.unregister_callback()


def train(rank: int, folder: Path) -> None:
    """Train and write."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    model = DistributedDataParallel(make_module())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    observer = ExecutionTraceObserver()
    observer.register_callback(str(folder / f"et{rank}.json"))
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=1, warmup=1, active=1),
        execution_trace_observer=observer,
        on_trace_ready=lambda each: each.export_chrome_trace(str(folder / f"kineto{rank}.json")),
    ) as profiler:
        for _ in range(3):
            optimizer.zero_grad()
            make_loss(model).backward()
            optimizer.step()
            profiler.step()
    record_sharded(folder / f"sharded{rank}.json")
    dist.barrier()
