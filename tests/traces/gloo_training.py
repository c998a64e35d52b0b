"""One of two processes that train with DistributedDataParallel over gloo, and are watched.

`train`: twice in turn, what ``perfmodel measure`` measures between the two processes, then steps
under PyTorch's profiler. At last steps under `record_steps`, and profiled steps of fully_shard.
Rank 0 writes what it found into a folder; each rank its traces.

`train_hybrid`: one of four, that hold two copies of a model of which each is split over two ranks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

from perfmodel.measure.job import MeasurementJob
from perfmodel.measure.run import measure
from perfmodel.torch_modules.capture import capture
from perfmodel.torch_modules.ddp_steps import record_steps
from tests.measure.measured_files import write_measurement

WIDTH, LAYERS, BATCH, STEPS, CAP_MB = 320, 6, 128, 10, 1
ROUNDS = 2
RECORDED, VALIDATED = 5, 3
"""Recorded steps, and the one before which a forward without gradients runs: it is no step."""

SIZES = (1024, 1 << 16, 1 << 19, 1 << 20, 5 << 18)
"""Up to that of the buckets."""


def _rebuilt_order(logged: Mapping[str, object], names: Sequence[str]) -> tuple[str, ...]:
    """Parameters in the order of DDP's rebuilt buckets; `names`: as registered."""
    indices = str(logged.get("rebuilt_per_bucket_param_indices", "")).replace(",", " ").split()
    return tuple(names[int(index)] for index in indices if index.isdigit())


def train(rank: int, folder: Path) -> None:
    """Train, measure, write."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)]
    module = nn.Sequential(*layers)
    captured = capture(module, torch.ones(BATCH, WIDTH), name="small")
    for number in range(ROUNDS):
        _measure(rank, folder, number)
        trained = _start(module, rank, folder, number)
        _profile(*trained, folder / f"round{number}-rank{rank}.json")
        if number == ROUNDS - 1:
            _record(*trained, captured, folder if rank == 0 else None)
            _profile(*_sharded(module), folder / f"sharded-rank{rank}.json")
        dist.barrier()
        if number < ROUNDS - 1:
            dist.destroy_process_group()


def _take_turns(priority: int) -> None:
    """Run ahead of other work of this machine, where the system lets us; threads inherit it.

    Gloo's threads come before those that compute, as threads that wake up do on an idle machine.
    """
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(priority))


def _measure(rank: int, folder: Path, number: int) -> None:
    """What ``torchrun ... perfmodel measure`` does in each process."""
    _take_turns(2)
    port = (folder / "ports").read_text().split()[number]
    group = {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update(group)
    job = MeasurementJob(
        "gloo", "ring", "all_reduce", 2, SIZES, repeats=12, topology="cpu-loopback"
    )
    measured = measure(job)
    if measured is not None:
        write_measurement(measured, folder / f"round{number}-measured.json")
    for name in group:
        del os.environ[name]


def _start(module: Any, rank: int, folder: Path, number: int) -> tuple[Any, Any]:
    meeting = f"file://{folder}/meeting{number}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    dist.barrier()  # gloo's threads are there now
    _take_turns(1)
    model = DistributedDataParallel(module, bucket_cap_mb=CAP_MB)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def _step(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.ones(BATCH, WIDTH)).square().mean().backward()
    optimizer.step()


def _profile(model: Any, optimizer: Any, path: Path) -> None:
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=2, warmup=2, active=STEPS),
        on_trace_ready=lambda each: each.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(STEPS + 4):
            _step(model, optimizer)
            profiler.step()


def _sharded(module: Any, ranks: tuple[int, ...] = (2,)) -> tuple[Any, Any]:
    """Two units of two layers each; what is left of the model is the outermost one.

    `ranks`: that hold copies, if there are any, and that a unit is split over.
    """
    mesh = init_device_mesh("cpu", ranks, mesh_dim_names=("copies", "shards")[-len(ranks) :])
    model = nn.Sequential(*(nn.Sequential(*module[at : at + 2]) for at in range(0, LAYERS, 2)))
    for unit in model[:2]:
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def _record(model: Any, optimizer: Any, captured: Any, folder: Path | None) -> None:
    with record_steps(model) as recorded:
        for step in range(RECORDED):
            if step == VALIDATED:
                with torch.no_grad():
                    model(torch.ones(BATCH, WIDTH))
            _step(model, optimizer)
    if folder is not None:
        recorded.apply(captured).save(folder / "recorded.yaml")
        steps_s = [step.step_s for step in recorded.steady]
        names = [name for name, _ in model.module.named_parameters()]
        document = {
            "ready": recorded.ready_order,
            "captured": captured.ready_order,
            "rebuilt": _rebuilt_order(recorded.logging_data, names),
            "buckets": recorded.bucket_bytes,
            "steps": len(recorded.steps),
            "step_s": recorded.step_s,
            "rest_s": recorded.rest_s,
            "spread_s": (min(steps_s), max(steps_s)),
            "forward_s": recorded.median("forward_s"),
            "backward_s": recorded.median("backward_s"),
        }
        (folder / "recorded.json").write_text(json.dumps(document), encoding="utf-8")


def train_hybrid(rank: int, folder: Path) -> None:
    """Train four ranks, without measuring."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/met", rank=rank, world_size=4)
    module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    _profile(*_sharded(module, (2, 2)), folder / f"hybrid-rank{rank}.json")
    dist.barrier()
