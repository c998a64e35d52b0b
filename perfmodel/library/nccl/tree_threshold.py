"""NCCL 2.4's choice between tree and ring: a size of message, not estimates of time.

Source: NVIDIA/nccl 2.4.8 ``src/init.cc``, ncclTreeThreshold.
"""

from __future__ import annotations

import math

from perfmodel.library.nccl.communicator import System, channels_of
from perfmodel.library.nccl.search.host_graph import RANK
from perfmodel.library.settings import LibrarySettings

RING_BYTES_PER_US = 5000
"""Of a channel over NVLink, or of all without it."""
RING_US, TREE_US, TREE_BETWEEN_US = 6, 4, 15
"""Time of a step: of a ring, of a tree inside a host and between hosts; microseconds."""


def threshold_algorithm(
    system: System, op: str, nbytes: float, settings: LibrarySettings
) -> str | None:
    """Algorithm of an all-reduce by NCCL 2.4; None for other operations and versions."""
    if op != "all_reduce" or not (2, 4) <= settings.release < (2, 5):
        return None
    return "tree" if nbytes <= tree_threshold(system, settings) else "ring"


def tree_threshold(system: System, settings: LibrarySettings) -> float:
    """Largest all-reduce that NCCL 2.4 runs as trees; bytes."""
    nvlink = system.gpus > 1 and RANK[system.tree.type_intra] <= RANK["NVB"]
    ring = RING_BYTES_PER_US * (channels_of(system, "ring", settings) if nvlink else 1)
    tree = ring * 2 / 3
    if nvlink:
        tree = ring * 3 / 4 * (2 if system.nodes == 2 else 1)
    ring_us = RING_US * (system.ranks - 1)
    tree_us = TREE_BETWEEN_US * int(math.log2(system.nodes))
    tree_us += TREE_US * (system.ranks // system.nodes - 1)
    if system.nodes < 2 or ring_us <= tree_us:
        return 0.0
    if tree > ring:
        return math.inf
    return ring * tree / (ring - tree) * (ring_us - tree_us)
