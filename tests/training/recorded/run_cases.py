"""Run cases of real PyTorch in several processes and return the collectives that they called."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.training.plan.step_plan import Collective, StepPlan

ROOT = Path(__file__).parents[3]

DTYPES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""Names that differ from PyTorch's."""


@dataclass(frozen=True)
class Call:
    """A collective of rank 0.

    `nbytes`: as nccl-tests counts it; `group_ranks`: ranks that take part; `dtype` as PyTorch names
    it.
    """

    op: str
    nbytes: int
    group_ranks: int
    dtype: str = ""
    phase: str = ""

    @property
    def issued(self) -> tuple[str, int, int, str | None]:
        """What a plan says of it, too."""
        return self.op, self.nbytes, self.group_ranks, DTYPES.get(self.dtype, self.dtype)


@cache
def start_server() -> subprocess.Popen[str]:
    """A process that imports PyTorch once, and runs cases of any module in forks of itself."""
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-P", "-m", "tests.training.recorded.worker"]
    pipe = subprocess.PIPE
    server = subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe)
    atexit.register(server.communicate)  # the end of its input ends it
    return server


def run_cases(module: str, ranks: int, folder: Path) -> dict[str, list[Call]]:
    """Run ``CASES`` of a module in `ranks` processes; calls by case.

    Raises `AssertionError`: a case that failed, with its traceback.
    """
    server = start_server()
    assert server.stdin is not None
    assert server.stdout is not None
    print(json.dumps([module, ranks, str(folder)]), file=server.stdin, flush=True)
    status = server.stdout.readline().strip()
    assert status == "0", (status, (folder / "output.txt").read_text(encoding="utf-8"))
    report = json.loads((folder / "calls.json").read_text(encoding="utf-8"))
    failed = {name: text for name, text in report.items() if isinstance(text, str)}
    assert not failed, "\n".join(f"{name}: {text}" for name, text in failed.items())
    return {name: [_call(each, ranks) for each in calls] for name, calls in report.items()}


def _call(noted: dict[str, Any], ranks: int) -> Call:
    group_ranks = len(noted["group"]) or ranks
    return Call(noted["op"], noted["bytes"], group_ranks, noted["dtype"], noted["phase"])


def planned_calls(plan: StepPlan) -> list[tuple[str, int, int, str | None]]:
    """Collectives of a plan as they are issued: operation, bytes, ranks, dtype."""
    ranks = {each.name: len(each.groups[0]) for each in plan.communicators}
    return [
        (task.work.op, task.work.nbytes, ranks[task.work.communicator], task.work.dtype)
        for task in plan.tasks
        if isinstance(task.work, Collective)
    ]
