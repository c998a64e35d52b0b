"""Parameter servers: every rank pushes its gradients to some ranks, and pulls the sums.

Source: Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.
"""

from __future__ import annotations

import numpy as np

from perfmodel.collectives.patterns import concatenate, exchange
from perfmodel.collectives.schedule import Schedule, check_ranks, split_elements
from perfmodel.errors import ScheduleError


def all_reduce(
    ranks: int, nbytes: int, *, servers: tuple[int, ...] = (0,), itemsize: int = 4
) -> Schedule:
    """Sum a buffer over all ranks at k servers, each with 1/k of it, and send the sums back.

    Steps: 2. Bytes sent by the busiest rank: (N-1)/k S + (k-1)/k S, a server's (it pushes what
    other servers hold, and answers N - 1 ranks), or for a rank that is no server S. Latency term:
    2 alpha. Right for small buffers or where servers have links to spare; with k = N, the direct
    reduce-scatter and all-gather, it sends a ring's bytes. One server is what ``nn.DataParallel``
    comes to without NCCL. Source: Li et al. (see the module).

    Every rank trains, servers too. `servers`: ranks that hold the sums.

    Raises `ScheduleError`: no server, one named twice, or one that is no rank.
    """
    every = set(range(check_ranks(ranks)))
    if not servers or len(set(servers)) < len(servers) or not set(servers) <= every:
        raise ScheduleError(
            f"servers {servers}; allowed: one or more different ranks from 0 to {ranks - 1}"
        )
    sizes = split_elements(nbytes, len(servers), itemsize)
    part = np.repeat(np.arange(len(servers)), ranks)
    worker, server = np.tile(np.arange(ranks), len(servers)), np.asarray(servers)[part]
    other = worker != server
    part, worker, server = part[other], worker[other], server[other]
    patterns = [
        exchange("push", worker, server, part, 1, sizes, reduces=True),
        exchange("pull", server, worker, part, 1, sizes, reduces=False),
    ]
    return concatenate(patterns, "all_reduce", "server", ranks, nbytes, itemsize, sizes)
