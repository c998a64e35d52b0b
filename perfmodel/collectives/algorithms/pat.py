"""Parallel aggregated trees (PAT): all-gather and reduce-scatter in ever shorter steps.

Source: Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", 2025
(arXiv 2506.20252), and NVIDIA/nccl since 2.23: every rank's part goes down a binomial tree, to the
farthest first, so that what travels far is still little; the trees of all ranks share each step.
"""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import IntArray
from perfmodel.collectives.patterns import Pattern, concatenate, single_step
from perfmodel.collectives.schedule import Round, Schedule, check_ranks, split_elements


def all_gather(ranks: int, nbytes: int, *, itemsize: int = 4) -> Schedule:
    """Give every rank the parts of all, far ones first.

    Steps: ceil(log2 N). Bytes sent per rank: (N-1)/N S, with S the whole result, most of them to
    the nearest. Latency term: ceil(log2 N) alpha. Right for many nodes of one GPU each. Source: see
    the module.
    """
    return _made("all_gather", ranks, nbytes, itemsize)


def reduce_scatter(ranks: int, nbytes: int, *, itemsize: int = 4) -> Schedule:
    """Sum a buffer over all ranks and leave each its own part: `all_gather` run backwards.

    Steps: ceil(log2 N). Bytes sent per rank: (N-1)/N S, with S the whole buffer. Latency term:
    ceil(log2 N) alpha. Right, and source, as for `all_gather`.
    """
    return _made("reduce_scatter", ranks, nbytes, itemsize)


def _made(collective: str, ranks: int, nbytes: int, itemsize: int) -> Schedule:
    sizes, own = split_elements(nbytes, check_ranks(ranks), itemsize), np.arange(ranks)
    distances = [1 << k for k in range((ranks - 1).bit_length())]
    reduces = collective == "reduce_scatter"
    patterns = [
        _step(distance, ranks, sizes, reduces=reduces)
        for distance in (distances if reduces else distances[::-1])
    ]
    return concatenate(patterns, collective, "pat", ranks, nbytes, itemsize, sizes, owner=own)


def _step(distance: int, ranks: int, sizes: IntArray, *, reduces: bool) -> Pattern:
    """All pairs at a distance: what those that have come a multiple of twice as far pass on."""
    come = np.arange(0, ranks - distance, 2 * distance)
    sender = np.arange(ranks)
    receiver = (sender + distance) % ranks
    chunk = ((sender[:, None] - come) % ranks).ravel()
    src, dst = (receiver, sender) if reduces else (sender, receiver)
    nbytes = sizes[chunk].reshape(ranks, -1).sum(axis=1).astype(float)

    def step(_: int) -> Round:
        return Round(
            src=np.repeat(src, len(come)),
            dst=np.repeat(dst, len(come)),
            src_chunk=chunk,
            dst_chunk=chunk,
            nbytes=sizes[chunk],
            channel=np.zeros(len(chunk), dtype=np.int64),
            reduce=np.full(len(chunk), reduces),
        )

    return Pattern(single_step(f"distance {distance}", src, dst, nbytes, adds=reduces), step)
