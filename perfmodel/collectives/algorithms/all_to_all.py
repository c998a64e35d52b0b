"""All-to-all: every rank has a block for every other (experts of a mixture, sequences).

Chunks 0 ... N-1 of a rank are its input, one for each receiver; N ... 2N-1 its output, one from
each sender; from 2N on scratch. The block for itself stays where it is. As everywhere all blocks
are of one size; a buffer that does not divide is padded to N equal blocks.

Sources: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005 (pairwise); Bruck et al., IEEE TPDS
8(11), 1997.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.arrays import IntArray
from perfmodel.collectives.patterns import Pattern, concatenate, single_step
from perfmodel.collectives.schedule import Round, Schedule, check_elements, check_ranks

RANKS_AT_ONCE = 32
"""Ranks to which NCCL sends at once: 32 channels, 8 for each peer on a network, 8 peers on each.
NVIDIA/nccl 2.30.7 ``src/include/device.h`` (NCCL_MAX_DEV_WORK_P2P_PER_BATCH) and
``src/graph/paths.cc`` (ncclTopoComputeP2pChannels), for a host with 8 NICs."""


def pairwise(ranks: int, nbytes: int, *, itemsize: int = 4) -> Schedule:
    """Give every rank its block of each: in step s to the rank s further on.

    Steps: N-1. Bytes sent per rank: (N-1)/N S, S the whole input. Latency term: (N-1) alpha.
    Right for large blocks: each port serves one pair at a time. Source: Thakur et al.
    """
    block = _block(ranks, nbytes, itemsize)
    shifts = [_direct(f"shift {s}", ranks, np.array([s]), block) for s in range(1, ranks)]
    return _schedule("pairwise", shifts, ranks, nbytes, itemsize, block)


def direct(ranks: int, nbytes: int, *, itemsize: int = 4) -> Schedule:
    """Give every rank its block of each, all pairs at once.

    Steps: 1. Bytes sent per rank: (N-1)/N S. Latency term: alpha. Right for small blocks on a
    network that does not suffer from many flows at once. Source: Gloo's ``alltoall.cc``; grouped
    sends and receives, as PyTorch uses NCCL, are the same.
    """
    block = _block(ranks, nbytes, itemsize)
    at_once = _direct("all pairs", ranks, np.arange(1, ranks), block)
    return _schedule("direct", [at_once], ranks, nbytes, itemsize, block)


def batched(ranks: int, nbytes: int, *, itemsize: int = 4, batch: int = RANKS_AT_ONCE) -> Schedule:
    """Give every rank its block of each, so many pairs of a rank at once, the nearest first.

    Steps: ceil((N-1)/B), with B = `batch` ranks at once. Bytes sent per rank: (N-1)/N S. Latency
    term: ceil((N-1)/B) alpha. Right for any size: few steps, and no more flows than the library has
    channels for. Source: NVIDIA/nccl 2.30.7 ``src/enqueue.cc``, grouped sends and receives.
    """
    block = _block(ranks, nbytes, itemsize)
    patterns = [
        _direct(f"from {first}", ranks, np.arange(first, min(first + batch, ranks)), block)
        for first in range(1, ranks, batch)
    ]
    return _schedule("batched", patterns, ranks, nbytes, itemsize, block)


def bruck(ranks: int, nbytes: int, *, itemsize: int = 4) -> Schedule:
    """Give every rank its block of each, passing blocks on 1, 2, 4 ... ranks.

    In step k a rank passes all blocks on whose way to go has the binary digit 2^k. Steps:
    ceil(log2 N). Bytes sent per rank: S/N times the digits 1 in all of 1 ... N-1 together, which
    is log2 N / 2 S for a power of two. Latency term: ceil(log2 N) alpha. Right for small blocks
    on many ranks. Source: Bruck et al. (see the module).
    """
    block = _block(ranks, nbytes, itemsize)
    patterns = [_digit(ranks, 1 << k, block) for k in range((ranks - 1).bit_length())]
    return _schedule("bruck", patterns, ranks, nbytes, itemsize, block)


def _block(ranks: int, nbytes: int, itemsize: int) -> int:
    """Return the bytes of a block."""
    check_elements(nbytes, itemsize)
    return -(-nbytes // (check_ranks(ranks) * itemsize)) * itemsize


def _direct(name: str, ranks: int, shifts: IntArray, block: int) -> Pattern:
    """Every rank sends to those `shifts` further on, out of its input into their output."""
    src = np.tile(np.arange(ranks), len(shifts))
    dst = (src + np.repeat(shifts, ranks)) % ranks
    return Pattern(
        single_step(name, src, dst, np.ones(len(src)) * block),
        lambda _: _round(src, dst, dst, ranks + src, block),
    )


def _digit(ranks: int, distance: int, block: int) -> Pattern:
    """One step of `bruck`: blocks wait in scratch under the distance that they have to go."""
    far = np.flatnonzero(np.arange(ranks) & distance)
    ranks_all = np.arange(ranks)
    nbytes = np.full(ranks, float(len(far) * block))

    def step(_: int) -> Round:
        src, offset = np.repeat(ranks_all, len(far)), np.tile(far, ranks)
        travelled = offset & (distance - 1)
        begins, ends = travelled == 0, offset < 2 * distance
        src_chunk = np.where(begins, (src + offset) % ranks, 2 * ranks + offset)
        dst_chunk = np.where(ends, ranks + (src - travelled) % ranks, 2 * ranks + offset)
        return _round(src, (src + distance) % ranks, src_chunk, dst_chunk, block)

    phase = single_step(f"distance {distance}", ranks_all, (ranks_all + distance) % ranks, nbytes)
    # If a block goes half this distance, it and twice it, one arrives where the rank's own waits.
    again = distance // 2 + distance + 2 * distance < ranks
    return Pattern(replace(phase, overwrites=again and distance > 1), step)


def _round(
    src: IntArray, dst: IntArray, src_chunk: IntArray, dst_chunk: IntArray, block: int
) -> Round:
    zeros = np.zeros(len(src), dtype=np.int64)
    return Round(
        src, dst, src_chunk, dst_chunk, zeros + block, zeros, np.zeros(len(src), dtype=np.bool_)
    )


def _schedule(
    algorithm: str, patterns: list[Pattern], ranks: int, nbytes: int, itemsize: int, block: int
) -> Schedule:
    parts = 3 if algorithm == "bruck" else 2  # which has scratch
    sizes = np.full(parts * ranks, block, dtype=np.int64)
    return concatenate(patterns, "all_to_all", algorithm, ranks, nbytes, itemsize, sizes)
