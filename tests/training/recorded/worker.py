"""One of the processes that run the cases of a module and note their collectives.

``python -m tests.training.recorded.worker MODULE RANK RANKS FOLDER``: MODULE has ``CASES``, a
function for each name. Rank 0 writes the calls of all cases to FOLDER/calls.json.
"""

from __future__ import annotations

import datetime as dt
import importlib
import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.training.recorded.recording_group import create, enter_phase, take_calls

TIMEOUT = dt.timedelta(seconds=60)


def main(module: str, rank: int, ranks: int, folder: Path) -> None:
    """Run all cases; one that fails is written with its error."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.Backend.register_backend("recording", create, extended_api=True, devices=["cpu"])
    dist.init_process_group(
        "recording", init_method=f"file://{folder}/store", rank=rank, world_size=ranks,
        timeout=TIMEOUT,
    )  # fmt: skip
    report: dict[str, Any] = {}
    for name, case in importlib.import_module(module).CASES.items():
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
    os._exit(0)  # threads of gloo groups that cases made would end the process badly


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
