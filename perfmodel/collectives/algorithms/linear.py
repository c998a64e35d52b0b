"""Direct sends: scatter and gather (what nn.DataParallel does), and a single message.

Source: the flat tree of Chan and others, Concurrency and Computation 19(13), 2007; pytorch 2.13
``torch/csrc/cuda/comm.cpp`` copies to and from one GPU alike.

Parameter servers: every rank pushes its gradients to some ranks, and pulls the sums.

Source: Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.collectives.patterns import concatenate, exchange
from perfmodel.collectives.schedule import Schedule, check_ranks, split_elements
from perfmodel.errors import check_schedule


def scatter(ranks: int, nbytes: int, *, root: int = 0, itemsize: int = 4) -> Schedule:
    """Send each rank its part of the root's buffer, all at once.

    Steps: 1. Bytes sent by the root: (N-1)/N S; by the others none. Latency term: alpha.
    Right for few ranks or one strong port at the root. Source: see the module.
    """
    return _star("scatter", ranks, nbytes, root, itemsize)


def gather(ranks: int, nbytes: int, *, root: int = 0, itemsize: int = 4) -> Schedule:
    """Collect each rank's part in the root's buffer, all at once.

    Steps: 1. Bytes received by the root: (N-1)/N S. Latency term: alpha. Right, and source, as
    for `scatter`.
    """
    return _star("gather", ranks, nbytes, root, itemsize)


def _star(collective: str, ranks: int, nbytes: int, root: int, itemsize: int) -> Schedule:
    sizes = split_elements(nbytes, check_ranks(ranks, root), itemsize)
    others = np.delete(np.arange(ranks), root)
    center = np.full(len(others), root)
    src, dst = (center, others) if collective == "scatter" else (others, center)
    pattern = exchange(collective, src, dst, others, 1, sizes, reduces=False)
    own = np.arange(ranks)
    return concatenate(
        [pattern], collective, "star", ranks, nbytes, itemsize, sizes, owner=own, root=root
    )


def send(ranks: int, nbytes: int, *, root: int = 0, itemsize: int = 1) -> Schedule:
    """One message from rank 0 to rank 1.

    Steps: 1. Bytes sent: S. Latency term: alpha. Right between two ranks: there is no other way.
    Source: Hockney, Parallel Computing 20(3), 1994.

    Raises `ScheduleError`: other ranks than these two, or a size that is not whole elements.
    """
    check_schedule(
        (
            ranks != 2 or root != 0 or nbytes < 0 or nbytes % itemsize,
            (
                f"send of {nbytes} bytes from rank {root} among {ranks} ranks; allowed: whole "
                f"{itemsize}-byte elements from rank 0 among 2 ranks"
            ),
        )
    )
    sender, receiver = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    size = np.array([nbytes], dtype=np.int64)
    pattern = exchange("send", sender, receiver, np.zeros_like(sender), 1, size, reduces=False)
    return concatenate([pattern], "broadcast", "send", 2, nbytes, 1, size)


def server_all_reduce(
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
    check_schedule(
        (
            not servers or len(set(servers)) < len(servers) or not set(servers) <= every,
            f"servers {servers}; allowed: one or more different ranks from 0 to {ranks - 1}",
        )
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


def all_pairs(ranks: int, nbytes: int, *, itemsize: int = 4) -> Schedule:
    """Sum a buffer over all ranks, each of which is the server of its own part.

    Steps: 2. Bytes sent per rank: 2 (N-1)/N S. Latency term: 2 alpha. Right for small buffers where
    every rank has a link to each other. Source: ROCm/rccl
    ``tools/msccl-algorithms/allreduce-allpairs-8n-*.xml``.
    """
    servers = tuple(range(check_ranks(ranks)))
    return replace(
        server_all_reduce(ranks, nbytes, servers=servers, itemsize=itemsize), algorithm="all_pairs"
    )
