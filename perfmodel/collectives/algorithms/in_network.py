"""In-switch reduction: the switch adds what ranks send and copies the sum to all of them.

Sources: Graham et al., "Scalable hierarchical aggregation protocol (SHARP)", COMHPC 2016; NVIDIA
NVSwitch with NVLink SHARP (NVLS, NCCL ``src/device/all_reduce.h``).
"""

from __future__ import annotations

import numpy as np

from perfmodel.collectives.patterns import concatenate, pieces_of, pipeline
from perfmodel.collectives.schedule import Schedule, check_ranks, split_elements

PIECE_BYTES = 1 << 17
"""Default size of a piece; 128 KiB, NCCL's chunk of NVLS for large buffers."""


def all_reduce(
    ranks: int, nbytes: int, *, itemsize: int = 4, piece_bytes: int = PIECE_BYTES
) -> Schedule:
    """Sum a buffer in a switch: every rank sends it up in P pieces, the sum comes down to all.

    Steps: P + 1. Bytes sent per rank: S; received: S, while the next pieces go up. Latency term:
    (P + 1) alpha. Right wherever the hardware can: half a ring's bytes, and steps that do not
    grow with N. Source: Graham et al. (see the module).

    The switch is participant number `ranks`. In NVLS each rank reads the sum of its own 1/N through
    the switch and writes it back to all, so that its port carries S(1 + 1/N) each way; here ranks
    send and do not fetch.
    """
    check_ranks(ranks)
    pieces = pieces_of(nbytes, 1, piece_bytes, itemsize)
    sizes = split_elements(nbytes, pieces, itemsize)
    members = np.arange(ranks if ranks > 1 else 0)
    switch, zeros = np.full(len(members), ranks), np.zeros(2 * len(members), dtype=np.int64)
    up = np.repeat([True, False], len(members))
    both = pipeline(
        "reduce and multicast",
        np.concatenate([members, switch]),
        np.concatenate([switch, members]),
        zeros,
        np.where(up, 0, 1),
        sizes[None, :],
        reduces=up,
    )
    return concatenate([both], "all_reduce", "switch", ranks, nbytes, itemsize, sizes, switches=1)
