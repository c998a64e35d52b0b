"""Several processes that measure many small schedules in one process group on gloo.

Run by ``test_worker_on_gloo.py``: ``python measure_on_gloo.py RANKS FOLDER``. The ranks are forks
of one process, so that PyTorch is imported once, and what it made is frozen for the collector of
cycles, that runs before each is timed: both take longer than what they measure. Beside
what `measure_rank` checks itself, every rank saves its buffer from before and after each schedule,
and what the library's all_reduce made of the same numbers: the test can judge on its own.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from pathlib import Path

import numpy as np

JOBS = {
    "all_reduce": ("ring", "tree", "recursive_doubling", "gloo_ring"),
    "reduce_scatter": ("ring",),
    "all_gather": ("ring",),
    "broadcast": ("chain", "binomial"),
    "reduce": ("chain",),
    "all_to_all": ("bruck",),
}
DTYPES = ("int32", "int64", "float32")
SIZES = (4, 100_000)


def jobs(ranks):
    from perfmodel.measure.job import MeasurementJob

    for place, (collective, names) in enumerate(JOBS.items()):
        for offset, name in enumerate(names):
            dtype = DTYPES[(place + offset) % 3]
            yield MeasurementJob("gloo", name, collective, ranks, SIZES, dtype=dtype, repeats=2)


def result_of(job, rank):
    """A rank's buffer before and after the largest size, and the library's sum of it."""
    import torch
    import torch.distributed as dist

    from perfmodel.measure import status as at
    from perfmodel.measure.job import make_schedules
    from perfmodel.measure.reference import count_elements, make_moves
    from perfmodel.measure.worker import count_scratch, make_exchanges, run_exchanges

    schedule = list(make_schedules(job).values())[-1]
    rounds = make_moves(schedule)
    dtype = getattr(torch, job.dtype)
    rng = np.random.default_rng([rank, 77])
    start = torch.from_numpy(rng.integers(-(2**20), 2**20, count_elements(schedule))).to(dtype)
    after, total = start.clone(), start.clone()
    scratch = torch.full((max(1, count_scratch(rounds, rank)),), 99, dtype=dtype)
    run_exchanges(
        make_exchanges(rounds, rank, after, scratch), at.make_private_status(rank, job.ranks)
    )
    dist.all_reduce(total)
    return {"start": start.numpy(), "after": after.numpy(), "total": total.numpy()}


def main(rank, ranks, folder):
    from perfmodel.measure import status as at
    from perfmodel.measure.launcher import join_group
    from perfmodel.measure.worker import measure_rank

    saved, rows = {}, {}
    for number, job in enumerate(jobs(ranks)):
        status = at.make_private_status(rank, ranks)
        if number == 0:
            join_group(job, status, folder)
        name = f"{job.collective}-{job.algorithm}"
        found, note = measure_rank(job, status, shared_clock=True)
        assert note == ""
        rows[name] = [row.model_dump() for row in found]
        saved |= {f"{name}-{part}": data for part, data in result_of(job, rank).items()}
    np.savez(folder / f"rank{rank}.npz", **saved)
    if rank == 0:
        (folder / "rows.json").write_text(json.dumps(rows))


def start(ranks, folder):
    """Measure in so many forks, and end with the worst of their statuses."""
    import torch

    torch.set_num_threads(1)  # before the fork: no threads are lost in it
    from perfmodel.measure import launcher, worker  # noqa: F401  (once, not in each rank)

    gc.freeze()
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            end_after(rank, ranks, folder)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


def end_after(rank, ranks, folder):
    """End the process without its clean-up: threads of gloo's groups would end it badly."""
    status = 1
    try:
        main(rank, ranks, folder)
        status = 0
    except BaseException:  # noqa: BLE001 (the parent prints it)
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    start(int(sys.argv[1]), Path(sys.argv[2]))
