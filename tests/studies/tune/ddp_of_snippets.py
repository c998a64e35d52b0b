"""A process that pastes what ``perfmodel tune`` prints, and writes which buckets DDP then has.

Run by ``test_snippet_in_ddp.py``: ``python ddp_of_snippets.py FOLDER``. FOLDER/asked.json holds the
widths of a chain of linear layers and the snippets; FOLDER/found.json gets DDP's own account.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def buckets_of(snippet: str, widths: list[int]) -> dict[str, Any]:
    """Train three steps with the pasted line and return what DDP logged."""
    layers = [nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths)]
    names: dict[str, Any] = {
        "DistributedDataParallel": DistributedDataParallel,
        "model": nn.Sequential(*layers),
    }
    exec(snippet, names)
    ddp = names["model"]
    initial = ddp._get_ddp_logging_data()["bucket_sizes"]
    for _ in range(3):
        ddp(torch.ones(2, widths[0])).sum().backward()
    ddp(torch.ones(2, widths[0]))
    data = ddp._get_ddp_logging_data()
    return {"initial": initial, "rebuilt": data.get("rebuilt_bucket_sizes", "")}


def main(folder: Path) -> None:
    """Answer what is asked in a folder."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    asked = json.loads((folder / "asked.json").read_text())
    found = {snippet: buckets_of(snippet, asked["widths"]) for snippet in asked["snippets"]}
    dist.destroy_process_group()
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
