"""Record what a real Horovod 0.28.1 reduces in each step of a small model: two processes, Gloo.

Prints `horovod_steps.json`: ``python -P record_horovod_steps.py > horovod_steps.json`` from the
repository's root on ``PYTHONPATH``; see `record_horovod`.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from tests.training import record_horovod

STEPS = 3
CYCLE_MS = 400
"""Longer than a backward, so that a cycle has all of it, unless it begins within."""
MODES: dict[str, dict[str, Any]] = {
    "default": {"threshold": 128 * 2**20},
    "compressed": {"threshold": 128 * 2**20, "compression": "fp16"},
    "unfused": {"threshold": 0},
    "small buffer": {"threshold": 8192},
    "accumulating": {"threshold": 128 * 2**20, "accumulate": 2},
}


def work(mode: str) -> None:
    """Train some steps, each of which begins as a cycle ends."""
    import horovod.torch as hvd
    import torch

    from tests.training.recorded.toy import Net
    from tests.training.recorded.toy_workload import INPUTS

    hvd.init()
    options = MODES[mode]
    model = Net()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        compression=getattr(hvd.Compression, options.get("compression", "none")),
        backward_passes_per_step=options.get("accumulate", 1),
    )
    model(torch.ones(2, INPUTS)).sum()
    for number in range(STEPS):
        hvd.allreduce(torch.ones(1), name=f"mark.{number}")
        for _ in range(options.get("accumulate", 1)):
            model(torch.ones(2, INPUTS)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    hvd.allreduce(torch.ones(1), name="mark.end")
    hvd.shutdown()


def read_trace(trace: str) -> list[list[dict[str, Any]]]:
    """Reductions of each step: names and bytes."""
    steps: list[list[dict[str, Any]]] = []
    sizes: list[int] = []
    for line in trace.splitlines():
        created = re.search(r"Created response of size (\d+)", line)
        performed = re.search(r"Performing (.*)", line)
        if created:
            sizes.append(int(created[1]))
        elif performed:
            names = [name.removeprefix("allreduce.") for name in performed[1].split(", ")]
            if names[0].startswith("mark"):
                steps.append([])
                sizes.pop(0)
            else:
                steps[-1].append({"names": names, "nbytes": sizes.pop(0)})
    return steps[:STEPS]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1])
    else:
        recorded = {}
        for mode, options in MODES.items():
            trace = record_horovod.launch(options["threshold"], (__file__, mode), CYCLE_MS)
            recorded[mode] = read_trace(trace)
        print(json.dumps({"horovod": "0.28.1", "torch": "2.13.0", "steps": recorded}))
