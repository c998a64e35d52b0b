"""Run a function once for each rank, in forks of one process: PyTorch is imported once.

So is what PyTorch imports when a first optimizer is made, which takes as long again.

``python -P -m tests.forked_ranks MODULE FUNCTION RANKS FOLDER`` calls ``FUNCTION(rank, FOLDER)``.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[1]


def run_ranks(module: str, function: str, ranks: int, folder: Path) -> None:
    """Run a function of a module in so many processes; all end with it, whatever happens.

    Raises `AssertionError`: a rank that failed, with what all of them printed.
    """
    environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-m", "tests.forked_ranks", module, function, str(ranks)]
    process = subprocess.Popen(
        [*command, str(folder)],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed = process.communicate(timeout=200)[1]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, printed


def main(module: str, function: str, ranks: int, folder: Path) -> bool:
    """Fork a process for each rank; return whether one of them failed."""
    called = getattr(importlib.import_module(module), function)
    importlib.import_module("torch._dynamo")
    gc.freeze()  # no rank looks for cycles in PyTorch
    children: list[int] = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            _call(called, rank, folder)
        children.append(child)
    return max(os.waitpid(child, 0)[1] for child in children) > 0


def _call(called: Callable[[int, Path], None], rank: int, folder: Path) -> NoReturn:
    """End the process without its clean-up: threads of gloo end a process badly."""
    status = 0
    try:
        called(rank, folder)
    except BaseException:  # noqa: BLE001 (the parent shows it)
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3], int(sys.argv[3]), Path(sys.argv[4])))
