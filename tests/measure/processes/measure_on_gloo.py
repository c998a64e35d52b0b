"""One of several processes that measure many small schedules in one process group on gloo.

Run by ``test_worker_on_gloo.py``: ``python measure_on_gloo.py RANK RANKS FOLDER``. Beside what
`measure_rank` checks itself, every rank saves its buffer from before and after each schedule, and
what the library's all_reduce made of the same numbers, so that the test can judge on its own.
"""

from __future__ import annotations

import json
import sys
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

    from perfmodel.measure.job import make_schedules
    from perfmodel.measure.processes import status as at
    from perfmodel.measure.processes.p2p import count_scratch, make_exchanges, run_exchanges
    from perfmodel.measure.reference import count_elements, make_moves

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
    from perfmodel.measure.processes import status as at
    from perfmodel.measure.processes.launcher import join_group
    from perfmodel.measure.processes.worker import measure_rank

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


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
