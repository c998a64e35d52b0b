"""Run the cases of modules in several processes and note their collectives.

``python -m tests.training.recorded.worker`` reads ``[MODULE, RANKS, FOLDER]``, a line of JSON each.
MODULE has ``CASES``, a function for each name: rank 0 writes the calls of all to FOLDER/calls.json,
and what is printed is in FOLDER/output.txt. The status of each line is printed. All ranks are forks
of this process, so that PyTorch is imported once, with what it would import in each of them at the
first optimizer or tensor that is spread over ranks: that takes longer than most cases.
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
import torch._dynamo
import torch.distributed as dist
import torch.distributed.tensor

from tests.training.recorded.recording_group import create, enter_phase, take_calls

TIMEOUT = dt.timedelta(seconds=60)


def main() -> None:
    """Run the cases of each line, one line after the other; print how they ended."""
    torch.set_num_threads(1)  # before any fork: no threads are lost in it
    for line in sys.stdin:
        module, ranks, folder = json.loads(line)
        imported = importlib.import_module(module)
        first = os.fork()
        if first == 0:
            run_ranks(imported, ranks, Path(folder))
        print(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]), flush=True)


def run_ranks(module: ModuleType, ranks: int, folder: Path) -> NoReturn:
    """Run all cases in as many processes as there are ranks, of which this is the first."""
    with (folder / "output.txt").open("w", encoding="utf-8") as output:
        for printed in (1, 2):
            os.dup2(output.fileno(), printed)
    children: list[int] = []
    for rank in range(1, ranks):
        child = os.fork()
        if child == 0:
            _exit_after(module, rank, ranks, folder)
        children.append(child)
    _exit_after(module, 0, ranks, folder, children)


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
    main()
