"""What Gloo itself takes of the machine's cores: bare all-reduces of two processes.

The machine has other work too, and its cores are faster at one time than at another. How much CPU
time a small all-reduce takes of each process says how fast they are now, against what Gloo's
library file says.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import resource
import tempfile
from pathlib import Path
from typing import Any

from reports.experiments.gloo_ddp.lab import Lab, enter, urgent

KIND, NBYTES = "call", 1024
DROPPED, REPEATS, IN_A_ROW = 3, 12, 150


def call_us(lab: Lab, nbytes: int = NBYTES, in_a_row: int = IN_A_ROW) -> list[float]:
    """CPU time of an all-reduce, mean of the processes of a lab, some times; microseconds."""
    import torch  # noqa: F401  (once, before the ranks fork)

    context = mp.get_context("fork")
    answers = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "store")
        ranks = [
            context.Process(
                target=_rank,
                args=(name, rank, meeting, answers, len(lab.names), nbytes, in_a_row),
                daemon=True,
            )
            for rank, name in enumerate(lab.names)
        ]
        for process in ranks:
            process.start()
        found = [answers.get() for _ in ranks]
        for process in ranks:
            process.join()
    return [sum(both) / len(both) for both in zip(*found, strict=True)]


def _rank(
    namespace: str, rank: int, meeting: str, answers: Any, ranks: int, nbytes: int, in_a_row: int
) -> None:
    enter(namespace)
    urgent()
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(meeting, ranks), rank=rank, world_size=ranks
    )
    data = torch.zeros(nbytes // 4)
    found = []
    for number in range(DROPPED + REPEATS):
        dist.barrier()
        before = _used_us()
        for _ in range(in_a_row):
            dist.all_reduce(data)
        if number >= DROPPED:
            found.append((_used_us() - before) / in_a_row)
    answers.put(found)
    dist.barrier()
    dist.destroy_process_group()


def _used_us() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return 1e6 * (used.ru_utime + used.ru_stime)
