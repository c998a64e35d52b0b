"""One of two processes that run real DistributedDataParallel on gloo, in every bucket mode.

Run by ``test_buckets_real.py``. Rank 0 writes what DDP reports of its buckets, per mode, to
report.json.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTHS = (256, 1024, 640, 128, 2048, 64, 512, 10)
"""Widths of a chain of linear layers: 10 KiB to 5 MiB of fp32 each."""


class Chain(nn.Module):
    """Linear layers, some in another dtype; the gradients get ready in an odd order.

    The layers are registered in another order than they run, as in real models.
    """

    def __init__(self, mixed: bool) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(WIDTHS))
        running = {}
        for place in (3, 0, 1, 5, 2, 4, 6):
            layer = nn.Linear(*pairs[place])
            if mixed and place % 3 == 1:
                layer = layer.to(torch.float64)
            if mixed and place % 3 == 2:
                layer = layer.to(torch.bfloat16)
            self.add_module(f"layer{place}", layer)
            running[place] = layer
        self.running = [running[place] for place in sorted(running)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.running:
            x = torch.relu(layer(x.to(layer.weight.dtype)))
        return x.float().sum()


MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "one cap": {"bucket_cap_mb": 3},
    "fractional cap": {"bucket_cap_mb": 0.3},
    "find unused": {"find_unused_parameters": True},
    "find unused, one cap": {"find_unused_parameters": True, "bucket_cap_mb": 2},
    "static graph": {"static_graph": True},
    "static graph, find unused": {"static_graph": True, "find_unused_parameters": True},
    "list": {"bucket_cap_mb_list": [1, 4, 2]},
    "list, find unused": {"bucket_cap_mb_list": [2, 1], "find_unused_parameters": True},
    "views": {"gradient_as_bucket_view": True},
    "mixed": {"mixed": True},
    "mixed, one cap": {"mixed": True, "bucket_cap_mb": 1},
    "mixed, find unused": {"mixed": True, "find_unused_parameters": True},
    "first bucket": {"first_bucket": 300_000},
    "small last": {"small_last": True},
    "small last, list": {"small_last": True, "bucket_cap_mb_list": [1, 4, 2]},
}


def run_mode(mode: dict[str, Any]) -> dict[str, Any]:
    """Train three steps and return what DDP logged."""
    arguments = dict(mode)
    torch.manual_seed(0)
    model = Chain(arguments.pop("mixed", False))
    dist._DEFAULT_FIRST_BUCKET_BYTES = arguments.pop("first_bucket", 1024 * 1024)
    os.environ["DDP_SET_LAST_BUCKET_CAP"] = str(int(arguments.pop("small_last", False)))
    ddp = DistributedDataParallel(model, **arguments)
    initial = ddp._get_ddp_logging_data()["bucket_sizes"]
    for _ in range(3):  # static_graph rebuilds its buckets before the third
        ddp(torch.ones(2, WIDTHS[0])).backward()
    ddp(torch.ones(2, WIDTHS[0]))
    data = ddp._get_ddp_logging_data()
    return {
        "tensors": [
            (name, list(p.shape), str(p.dtype).removeprefix("torch."))
            for name, p in model.named_parameters()
        ],
        "initial": initial,
        "ready": data.get("prev_iteration_grad_ready_order_indices", ""),
        "rebuilt": data.get("rebuilt_bucket_sizes", ""),
        "rebuilt_indices": data.get("rebuilt_per_bucket_param_indices", ""),
        "has_rebuilt": bool(data.get("has_rebuilt_buckets", 0)),
    }


def report_buckets(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # find_unused_parameters warns that all are used: on purpose
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=dt.timedelta(seconds=30),
    )
    report = {name: run_mode(mode) for name, mode in MODES.items()}
    dist.destroy_process_group()
    if rank == 0:
        (folder / "report.json").write_text(json.dumps(report, indent=1))
