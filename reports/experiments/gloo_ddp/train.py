"""Real DistributedDataParallel whose layers sleep instead of computing.

A layer of the model sleeps in forward and in backward until a time that was fixed at the beginning
of the pass, as if a device worked through a queue: what the process does meanwhile (copies, hooks,
Python) delays nothing unless it takes longer. Gradients are real tensors, all-reduces are real.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import statistics
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.experiments.gloo_ddp.lab import Lab, enter, urgent
from reports.experiments.gloo_ddp.models import MODELS, Layer

DROPPED, COUNTED = 4, 10
"""Steps: DDP makes its buckets anew after the first."""
WHOLE_MB = 100_000.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One way to train.

    Parameters
    ----------
    model : str
    caps : str
        "def", "inf" (one bucket), a cap in MB, or several joined by "|".
    why : str
        Where the caps come from.
    accumulate : int
    """

    model: str
    caps: str
    why: str = "grid"
    accumulate: int = 1


@dataclass(frozen=True, slots=True)
class Timed:
    """Steps of one trial on rank 0, the buckets that DDP said it made, and the machine's load."""

    steps_ms: list[float]
    buckets: str
    load: float


def run_trials(lab: Lab, trials: Sequence[Trial]) -> list[Timed]:
    """Train in each way, one after the other, on all hosts of a lab."""
    import torch  # noqa: F401  (once, before the ranks fork)

    context = mp.get_context("fork")
    answers = context.SimpleQueue()
    barrier = context.Barrier(len(lab.names))
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "store")
        ranks = [
            context.Process(target=_rank, args=(name, rank, lab, trials, meeting, barrier, answers))
            for rank, name in enumerate(lab.names)
        ]
        for process in ranks:
            process.start()
        found = answers.get()
        for process in ranks:
            process.join()
    if isinstance(found, str):
        raise RuntimeError(found)  # noqa: TRY004  (what went wrong in a rank)
    timed: list[Timed] = found
    return timed


def _rank(
    namespace: str,
    rank: int,
    lab: Lab,
    trials: Sequence[Trial],
    meeting: str,
    barrier: Any,
    answers: Any,
) -> None:
    try:
        enter(namespace)
        urgent()
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        store = dist.FileStore(meeting, len(lab.names))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=len(lab.names))
        found = []
        for trial in trials:
            barrier.wait(120)
            found.append(_train(trial))
        barrier.wait(120)
        if rank == 0:
            answers.put(found)
        dist.destroy_process_group()
    except BaseException:  # noqa: BLE001  (a rank of its own process)
        if not barrier.broken:  # the first to fail says why
            barrier.abort()
            answers.put(traceback.format_exc())


def _train(trial: Trial) -> Timed:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    network, clock = sleeping(MODELS[trial.model])
    caps: dict[str, Any] = {}
    if "|" in trial.caps:
        caps["bucket_cap_mb_list"] = [float(cap) for cap in trial.caps.split("|")]
    elif trial.caps != "def":
        caps["bucket_cap_mb"] = WHOLE_MB if trial.caps == "inf" else float(trial.caps)
    ddp = DistributedDataParallel(network, init_sync=False, **caps)
    start = torch.zeros(1, requires_grad=True)
    ticks = [time.monotonic_ns()]
    for _ in range(DROPPED + COUNTED):
        for micro in range(trial.accumulate):
            clock.due = time.monotonic_ns()
            if micro < trial.accumulate - 1:
                with ddp.no_sync():
                    ddp(start).sum().backward()
                continue
            loss = ddp(start).sum()
            clock.due = max(clock.due, time.monotonic_ns())
            loss.backward()
        network.zero_grad(set_to_none=True)
        ticks.append(time.monotonic_ns())
    steps = [(b - a) / 1e6 for a, b in zip(ticks[DROPPED:], ticks[DROPPED + 1 :], strict=False)]
    said = ddp._get_ddp_logging_data()
    sizes = said.get("rebuilt_bucket_sizes") or said.get("bucket_sizes") or ""
    return Timed(steps, str(sizes).replace(", ", "|"), os.getloadavg()[0])


def sleeping(layers: Sequence[Layer]) -> tuple[Any, Any]:
    """A torch module of layers that sleep, and the clock that says until when."""
    import torch

    class Clock:
        due = 0

        def pass_by(self, time_ms: float) -> None:
            self.due += int(time_ms * 1e6)
            left = self.due - time.monotonic_ns()
            if left > 0:
                time.sleep(left / 1e9)

    clock = Clock()

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, value: Any, module: Any, *_weights: Any) -> Any:
            context.module = module
            clock.pass_by(module.times[0])
            return value + 0

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            clock.pass_by(context.module.times[1])
            return (gradient, None, *context.module.gradients)

    class Block(torch.nn.Module):
        def __init__(self, layer: Layer) -> None:
            super().__init__()
            self.times = layer.forward_ms, layer.backward_ms
            self.gradients = tuple(torch.zeros(numel) for numel in layer.numels)
            self.weights = torch.nn.ParameterList(torch.zeros(numel) for numel in layer.numels)

        def forward(self, value: Any) -> Any:
            return Sleep.apply(value, self, *self.weights)

    return torch.nn.Sequential(*map(Block, layers)), clock


def spread(steps_ms: Sequence[float]) -> dict[str, float]:
    """Quartiles of some steps."""
    low, middle, high = statistics.quantiles(steps_ms, n=4, method="inclusive")
    return {
        "iter_ms_min": min(steps_ms),
        "iter_ms_p25": low,
        "iter_ms_med": middle,
        "iter_ms_p75": high,
        "iter_ms_max": max(steps_ms),
    }
