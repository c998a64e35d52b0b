"""Record what torch.distributed.rpc sends for remote embedding tables: ``remote_tables.json``.

The tutorial "Combining Distributed DataParallel with Distributed RPC Framework" with the tables of
`torchrec_cases`, sparse gradients, and SGD: trainers and a server are processes of this machine,
TensorPipe goes over loopback by TCP. Bytes are those that loopback counts in a pass, headers of TCP
and the all-reduce of a small linear layer with them; nothing else may use it meanwhile.

    python -P -m tests.training.recorded.record_remote_tables
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.multiprocessing as mp
from torch import nn
from torch.distributed import rpc
from torch.distributed.nn import RemoteModule
from torch.distributed.optim import DistributedOptimizer

from tests.training.recorded.torchrec_cases import ROWS, WIDTH

SAMPLES, STEPS, SETTLED, CALLS = 512, 8, 2, 300
QUIET_S = 0.3
"""Pause in which what is still under way arrives; seconds."""


class Tables(nn.Module):
    """Tables of bags of one, of which a server holds all."""

    def __init__(self) -> None:
        super().__init__()
        bags = (nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True) for rows in ROWS)
        self.bags = nn.ModuleList(bags)

    def forward(self, indices: list[torch.Tensor], offsets: list[torch.Tensor]) -> torch.Tensor:
        """Return the rows of all tables, side by side."""
        parts = zip(self.bags, indices, offsets, strict=True)
        return torch.cat([bag(index, offset) for bag, index, offset in parts], 1)


def nothing() -> None:
    """Answer a call without bytes."""


def looped_bytes() -> int:
    """Return the bytes that loopback has received."""
    lines = Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()
    return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip()[:3] == "lo:")


def train(rank: int, trainers: int, folder: str) -> None:
    """Train as one of the trainers, or serve; trainer 0 writes what it counted."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29677")
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{folder}/rpc", _transports=["uv"], _channels=["basic"]
    )
    name = f"trainer{rank}" if rank < trainers else "server"
    rpc.init_rpc(name, rank=rank, world_size=trainers + 1, rpc_backend_options=options)
    if rank < trainers:
        dist.init_process_group(
            "gloo", rank=rank, world_size=trainers, init_method=f"file://{folder}/gloo"
        )
        steps, calls_s = run_steps(), [timed_call() for _ in range(CALLS)]
        if rank == 0:
            counted = {key: median(step[key] for step in steps[SETTLED:]) for key in steps[0]}
            counted["call_s"] = median(calls_s)
            Path(folder, "counted.json").write_text(json.dumps(counted), encoding="utf-8")
        dist.barrier()
    rpc.shutdown()


def timed_call() -> float:
    """Return the time of a call without bytes; seconds."""
    begun_s = time.perf_counter()
    rpc.rpc_sync("server", nothing)
    return time.perf_counter() - begun_s


def run_steps() -> list[dict[str, float]]:
    """Train some steps; return what each pass took, and what loopback carried meanwhile."""
    tables: Any = RemoteModule("server/cpu", Tables)
    dense = nn.parallel.DistributedDataParallel(nn.Linear(WIDTH * len(ROWS), 8))
    parameters = [*tables.remote_parameters(), *(rpc.RRef(each) for each in dense.parameters())]
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=0.05)
    indices = [torch.randint(0, rows, (SAMPLES,)) for rows in ROWS]
    offsets, steps = [torch.arange(SAMPLES) for _ in ROWS], []
    for _ in range(STEPS):
        dist.barrier()
        time.sleep(QUIET_S)
        marks: list[tuple[int, float, float]] = []

        def mark(marks: list[tuple[int, float, float]] = marks) -> None:
            ended_s = time.perf_counter()
            time.sleep(QUIET_S)
            marks.append((looped_bytes(), ended_s, time.perf_counter()))

        mark()
        with dist_autograd.context() as context:
            rows = tables.forward(indices, offsets)
            mark()
            dist_autograd.backward(context, [dense(rows).sum()])
            mark()
            optimizer.step(context)
            mark()
        step: dict[str, float] = {}
        pairs = zip(marks, marks[1:], ("forward", "backward", "update"), strict=False)
        for (before, _, begun_s), (after, ended_s, _), part in pairs:
            step |= {f"{part}_bytes": after - before, f"{part}_s": ended_s - begun_s}
        steps.append(step)
    return steps


def record() -> dict[str, Any]:
    """Record one trainer and two."""
    counted = {}
    for trainers in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(train, args=(trainers, folder), nprocs=trainers + 1)
            text = Path(folder, "counted.json").read_text(encoding="utf-8")
        counted[str(trainers)] = json.loads(text)
    case = {"rows": ROWS, "width": WIDTH, "samples": SAMPLES, "trainers": counted}
    return {"versions": {"torch": torch.__version__}, **case}


if __name__ == "__main__":
    path = Path(__file__).with_name("remote_tables.json")
    path.write_text(json.dumps(record(), indent=1) + "\n", encoding="utf-8")
