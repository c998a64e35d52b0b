"""Run the cases of a module in several processes and note their collectives.

``python -m tests.training.recorded.worker MODULE RANKS FOLDER``: MODULE has ``CASES``, a function
for each name. Rank 0 writes the calls of all cases to FOLDER/calls.json. The other ranks are forks
of it, so that PyTorch is imported once: that takes longer than most cases.
"""

from __future__ import annotations

import datetime as dt
import importlib
import json
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from tests.training.recorded.recording_group import create, enter_phase, take_calls

TIMEOUT = dt.timedelta(seconds=60)


def main(module: str, ranks: int, folder: Path) -> None:
    """Run all cases in as many processes as there are ranks."""
    imported = importlib.import_module(module)
    torch.set_num_threads(1)  # before the fork: no threads are lost in it
    children: list[int] = []
    for rank in range(1, ranks):
        child = os.fork()
        if child == 0:
            _exit_after(imported, rank, ranks, folder)
        children.append(child)
    _exit_after(imported, 0, ranks, folder, children)


def _exit_after(
    module: ModuleType,
    rank: int,
    ranks: int,
    folder: Path,
    children: Sequence[int] = (),
) -> NoReturn:
    """End the process without its clean-up: threads of gloo's groups would end it badly."""
    status = 1
    try:
        run(module, rank, ranks, folder)
        status = max([0, *(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children)])
    except BaseException:  # noqa: BLE001 (the parent prints it)
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run(module: ModuleType, rank: int, ranks: int, folder: Path) -> None:
    """Run all cases; one that fails is written with its error."""
    warnings.simplefilter("ignore")
    dist.Backend.register_backend("recording", create, extended_api=True, devices=["cpu"])
    dist.init_process_group(
        "recording",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
        timeout=TIMEOUT,
    )
    report: dict[str, Any] = {}
    for name, case in importlib.reload(module).CASES.items():  # which depend on the ranks
        take_calls()
        enter_phase("setup")
        torch.manual_seed(0)
        try:
            case()
        except Exception:  # noqa: BLE001 (the test that reads it fails with the text)
            report[name] = traceback.format_exc()
        else:
            report[name] = take_calls()
    dist.barrier()
    if rank == 0:
        (folder / "calls.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
