"""One of two processes that train with DistributedDataParallel on gloo under PyTorch's profiler.

Run by ``test_real_trace.py``: ``python ddp_with_profiler.py RANK FOLDER``. Writes the trace of the
rank and, of rank 0, the buckets that DDP reports.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

WIDTH, LAYERS, BATCH, STEPS = 320, 6, 128, 10


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.ones(BATCH, WIDTH)
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=2, warmup=2, active=STEPS),
        on_trace_ready=lambda each: each.export_chrome_trace(str(folder / f"rank{rank}.json")),
    ) as profiler:
        for _ in range(STEPS + 4):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            profiler.step()
    if rank == 0:
        reported = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
        (folder / "buckets.json").write_text(json.dumps(reported))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
