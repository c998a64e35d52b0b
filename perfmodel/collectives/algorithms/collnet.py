"""Reduction in switches (SHARP): behind one switch, or in nodes first and then up a tree of them.

Sources: Graham et al., "Scalable hierarchical aggregation protocol (SHARP)", COMHPC 2016;
NVIDIA/nccl 2.30.7 ``src/device/all_reduce.h`` (CollnetChain, CollnetDirect).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfmodel.arrays import IntArray
from perfmodel.collectives.algorithms import pipelined_trees
from perfmodel.collectives.algorithms.pipelined_trees import NO_PARENT, Forest, forest_of
from perfmodel.collectives.algorithms.tree import group_table
from perfmodel.collectives.patterns import pieces_of
from perfmodel.collectives.schedule import Schedule, check_ranks

PIECE_BYTES = 1 << 18
"""Default size of a piece; 256 KiB, NCCL's chunk of CollNet chains for large buffers."""


SWITCH_PIECE_BYTES = 1 << 17
"""Default size of a piece behind one switch; 128 KiB, NCCL's chunk of NVLS for large buffers."""


def switch_all_reduce(
    ranks: int, nbytes: int, *, itemsize: int = 4, piece_bytes: int = SWITCH_PIECE_BYTES
) -> Schedule:
    """Sum a buffer in a switch: every rank sends it up in P pieces, the sum comes down to all.

    Steps: P + 1. Bytes sent per rank: S; received: S, while the next pieces go up. Latency term:
    (P + 1) alpha. Right wherever the hardware can: half a ring's bytes, and steps that do not
    grow with N. Source: Graham et al. (see the module).

    The switch is participant number `ranks`. In NVLS each rank reads the sum of its own 1/N through
    the switch and writes it back to all, so that its port carries S(1 + 1/N) each way; here ranks
    send and do not fetch.
    """
    alone = np.arange(check_ranks(ranks))[:, None]
    pieces = pieces_of(nbytes, 1, piece_bytes, itemsize)
    trees = forest_of(chain_parents(alone)[None, :])
    return over_switches(trees, "switch", 1, nbytes, pieces=pieces, itemsize=itemsize)


def chain_all_reduce(
    ranks: int,
    nbytes: int,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    itemsize: int = 4,
    piece_bytes: int = PIECE_BYTES,
) -> Schedule:
    """Sum a buffer: along a chain in each node, in a switch over nodes, and back along the chains.

    With chains of g ranks and P pieces: Steps: 2g - 1 + P. Bytes sent by the busiest rank: S to
    the one before it and S to the one after it (S for g = 1). Latency term: (2g - 1 + P) alpha.
    Right for many nodes on a network whose switches reduce: a NIC carries S each way, whatever the
    number of nodes. Source: see the module.

    The switch is participant number `ranks`. `groups`: the ranks of each node, from the one that
    sends to the network on; default as for `hierarchical.all_reduce`.
    """
    trees = forest_of(chain_parents(group_table(check_ranks(ranks), groups))[None, :])
    pieces = pieces_of(nbytes, 1, piece_bytes, itemsize)
    return over_switches(trees, "collnet", 1, nbytes, pieces=pieces, itemsize=itemsize)


def direct_all_reduce(
    ranks: int,
    nbytes: int,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    itemsize: int = 4,
    piece_bytes: int = PIECE_BYTES,
) -> Schedule:
    """Sum a buffer: each rank that of its 1/g in its node, then in a switch over nodes, and back.

    With nodes of g ranks and P pieces of a rank's part: Steps: 3 + P (1 + P for g = 1). Bytes sent
    per rank: S(2g - 1)/g. Latency term: (3 + P) alpha. Right for nodes whose GPUs all see each
    other, with a NIC for each. Source: see the module; parameters as for `chain_all_reduce`.
    """
    table = group_table(check_ranks(ranks), groups)
    trees = forest_of(np.stack([star_parents(table, head) for head in range(table.shape[1])]))
    pieces = pieces_of(nbytes, trees.channels, piece_bytes, itemsize)
    return over_switches(trees, "collnet_direct", 1, nbytes, pieces=pieces, itemsize=itemsize)


def chain_parents(table: IntArray) -> IntArray:
    """Parents of ranks in chains, the first of each below a switch; the switch comes last."""
    parent = np.full(table.size + 1, NO_PARENT, dtype=np.int64)
    parent[table[:, 0]] = table.size
    parent[table[:, 1:]] = table[:, :-1]
    return parent


def star_parents(table: IntArray, head: int) -> IntArray:
    """Parents of ranks, if one of each node sends for it to a switch; the switch comes last."""
    parent = np.full(table.size + 1, NO_PARENT, dtype=np.int64)
    parent[table] = table[:, [head]]
    parent[table[:, head]] = table.size
    return parent


def over_switches(
    trees: Forest, algorithm: str, switches: int, nbytes: int, *, pieces: int, itemsize: int = 4
) -> Schedule:
    """All-reduce over trees whose last participants are switches."""
    if trees.ranks - switches < 2:
        trees = forest_of(np.full((trees.channels, trees.ranks), NO_PARENT))
    schedule = pipelined_trees.all_reduce(trees, nbytes, pieces=pieces, itemsize=itemsize)
    return replace(schedule, algorithm=algorithm, ranks=trees.ranks - switches, switches=switches)
