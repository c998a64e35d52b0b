"""Collectives in which switches add and copy: NVLink SHARP in a node, SHARP (CollNet) over nodes.

With NVLS each head sums its own part through the NVSwitch and sends the sum to all at once; between
nodes the heads of one rail stand in trees (NVLSTree). A head reads the sum of a chunk from the
switch (multimem load-reduce), which fetches it from all GPUs, and writes results to all of them
(multimem store). With CollNet ranks reduce in their nodes first and then up a tree of switches.

Sources: NVIDIA/nccl 2.30.7 ``src/transport/nvls.cc``, ``src/device/all_reduce.h`` (CollnetChain,
CollnetDirect) and ``src/device/all_gather.h``; Graham et al., "Scalable hierarchical aggregation
protocol (SHARP)", COMHPC 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import IntArray
from perfmodel.collectives.algorithms.tree import (
    NO_PARENT,
    Forest,
    forest_all_reduce,
    forest_of,
    group_table,
    node_parents,
)
from perfmodel.collectives.patterns import concatenate, pieces_of, pipeline
from perfmodel.collectives.schedule import Schedule, check_ranks, split_elements

NVLS_PIECE_BYTES = 1 << 17
"""Default size of a head's piece; 128 KiB, NCCL's chunk of NVLS for large buffers."""
CHAIN_PIECE_BYTES = 1 << 18
"""Default size of a piece; 256 KiB, NCCL's chunk of CollNet chains for large buffers."""


def nvls_all_reduce(
    ranks: int, nbytes: int, *, itemsize: int = 4, piece_bytes: int = NVLS_PIECE_BYTES
) -> Schedule:
    """Sum a buffer behind one switch: each rank fetches the sum of its 1/N and sends it to all.

    Steps: P + 3, with P pieces of each rank's part. Bytes sent per rank: S(1 + 1/N), and as many
    received, while the next pieces follow. Latency term: (P + 3) alpha. Right behind an NVSwitch
    that can reduce (Hopper and later): little more than half of a ring's bytes, and steps that do
    not grow with N. Source: see the module.

    The switch is participant `ranks` when it reduces, `ranks` + 1 when it sends to all.
    `piece_bytes`: largest piece of a rank's part.
    """
    return _one_node("all_reduce", ranks, nbytes, itemsize, piece_bytes)


def nvls_reduce_scatter(
    ranks: int, nbytes: int, *, itemsize: int = 4, piece_bytes: int = NVLS_PIECE_BYTES
) -> Schedule:
    """Leave each rank the sum of its own part: it fetches it through the switch.

    Steps: P + 1. Bytes sent per rank: S, with S the whole buffer; received: S/N. Latency term:
    (P + 1) alpha. Right, parameters and source as for `nvls_all_reduce`.
    """
    return _one_node("reduce_scatter", ranks, nbytes, itemsize, piece_bytes)


def nvls_all_gather(
    ranks: int, nbytes: int, *, itemsize: int = 4, piece_bytes: int = NVLS_PIECE_BYTES
) -> Schedule:
    """Give every rank the parts of all: each sends its own to the switch, which sends it to all.

    Steps: P + 1. Bytes sent per rank: S/N, with S the whole result; received: S. Latency term:
    (P + 1) alpha. Right, parameters and source as for `nvls_all_reduce`.
    """
    return _one_node("all_gather", ranks, nbytes, itemsize, piece_bytes)


def nvls_tree_all_reduce(
    ranks: int,
    nbytes: int,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    heads: int | None = None,
    itemsize: int = 4,
    piece_bytes: int = NVLS_PIECE_BYTES,
) -> Schedule:
    """Sum a buffer: in each node's switch, between nodes up and down two trees, and back to all.

    Node by node the first `heads` ranks fetch the sum of their part; the heads in the same place
    (a rail) sum theirs up and down a double binary tree, half of it on each tree; then each sends
    the result to all of its node. With k nodes, H heads and P pieces of half a head's part:
    Steps: 2 ceil(log2 k) + 3 + P. Bytes sent by the busiest rank: S(1 + 1/H) through the switch
    and 2 S/H between nodes for k >= 4 (3/2 S/H for k = 3, S/H for k = 2). Latency term:
    (2 ceil(log2 k) + 3 + P) alpha. Right for many nodes with NVSwitches that can reduce: NICs carry
    as much as in a ring, and steps grow with the logarithm of the nodes. Source: see the module.

    The switch of node i is participant `ranks` + i when it reduces, `ranks` + k + i when it sends
    to all. `groups`: the ranks of each node, heads first; default as for `hierarchical.all_reduce`.
    `heads`: default: all ranks of a node. `piece_bytes`: largest piece of a head's part.

    Raises `ScheduleError`: groups of different sizes, or that do not hold each rank once.
    """
    nodes = switched_nodes(group_table(check_ranks(ranks), groups), heads)
    return over_nodes(
        nodes,
        nbytes,
        pieces=pieces_of(nbytes, nodes.trees * nodes.heads, piece_bytes, itemsize),
        itemsize=itemsize,
    )


def _one_node(
    collective: str, ranks: int, nbytes: int, itemsize: int, piece_bytes: int
) -> Schedule:
    nodes = switched_nodes(np.arange(check_ranks(ranks), dtype=np.int64)[None, :], None, collective)
    return over_nodes(
        nodes, nbytes, pieces=pieces_of(nbytes, ranks, piece_bytes, itemsize), itemsize=itemsize
    )


@dataclass(frozen=True, slots=True)
class Switched:
    """Edges of a collective through switches that reduce and copy, and of trees between them.

    Arrays have shape (edges,).
    """

    collective: str
    """Is "all_reduce", or on one node "reduce_scatter" or "all_gather"."""
    ranks: int
    nodes: int
    heads: int
    trees: int
    src: IntArray
    dst: IntArray
    """`src` and `dst`: ranks; ranks + node for its switch when it reduces, ranks + nodes + node
    when it copies."""
    tree: IntArray
    first: IntArray
    """Repeat of the first piece."""
    head: IntArray
    """Whose part the edge carries; -1: those of all heads."""
    adds: NDArray[np.bool_]


def switched_nodes(table: IntArray, heads: int | None, collective: str = "all_reduce") -> Switched:
    """Lay out a collective over nodes with reducing switches.

    `table`: ranks of each node, heads first; shape (nodes, size). All are heads
    by default.
    """
    nodes, size = table.shape
    number = size if heads is None else min(heads, size)
    trees = [] if table.size < 2 else range(1 if nodes == 1 else 2)
    parts = [_lanes(table, table[:, :number], bool(tree), collective) for tree in trees]
    src, dst, first, head, adds = np.concatenate([np.zeros((5, 0), np.int64), *parts], axis=1)
    return Switched(
        collective=collective,
        ranks=table.size,
        nodes=nodes,
        heads=number,
        trees=max(1, len(parts)),
        src=src,
        dst=dst,
        tree=np.repeat(np.arange(len(parts)), [part.shape[1] for part in parts]),
        first=first,
        head=head,
        adds=adds.astype(np.bool_),
    )


def _lanes(table: IntArray, heads: IntArray, second: bool, collective: str) -> IntArray:
    """Return the edges of one tree: rows src, dst, first, head and adds of `Switched`."""
    parent = node_parents(len(table), second)[0]
    trees = forest_of(parent[None, :])
    height, depth = _levels(parent, trees)
    # When the head of each node has the sum of all.
    last = 0 * depth if collective == "all_gather" else 2 + int(height.max(initial=0)) + depth
    count = heads.shape[1]
    between = np.stack(
        [
            heads[trees.src].ravel(),
            heads[trees.dst].ravel(),
            np.repeat(trees.first + 2, count),
            np.tile(np.arange(count), len(trees.src)),
            np.repeat(trees.up, count),
        ]
    )
    summing = _at_switch(table, heads, table.size, 0 * last, fetches=True)
    copying = _at_switch(table, heads, table.size + len(table), last, fetches=False)
    kinds = {
        "all_reduce": [summing, between, copying],
        "reduce_scatter": [summing],
        "all_gather": [copying],
    }
    return np.concatenate(kinds[collective], axis=1)


def _at_switch(
    table: IntArray, heads: IntArray, switch: int, first: IntArray, *, fetches: bool
) -> IntArray:
    """What ranks send to their switch and heads fetch from it, or heads send and ranks are sent.

    `switch` is the number of the first node's, `first` the repeat in which each node begins.
    """
    everybody = np.full(table.shape[1], -1), table
    of_heads = np.arange(heads.shape[1]), heads
    lanes = []
    for (part, ranks), goes_up in zip(
        (everybody, of_heads) if fetches else (of_heads, everybody), (True, False), strict=True
    ):
        node = np.repeat(np.arange(len(ranks)), ranks.shape[1])
        ends = ranks.ravel(), switch + node
        begin, carried = first[node] + (not goes_up), np.tile(part, len(ranks))
        adds = np.full(len(node), fetches and goes_up)
        lanes.append(np.stack([*(ends if goes_up else ends[::-1]), begin, carried, adds]))
    return np.concatenate(lanes, axis=1)


def _levels(parent: IntArray, trees: Forest) -> tuple[IntArray, IntArray]:
    """Return the height over the leaves and depth below the root of each node."""
    nodes = len(parent)
    height, depth = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    up, down = trees.up, ~trees.up
    height[trees.src[up]] = trees.first[up]
    root = parent == NO_PARENT
    below = trees.dst[up] == int(np.flatnonzero(root)[0])
    height[root] = 1 + int(trees.first[up][below].max(initial=-1))
    depth[trees.dst[down]] = trees.first[down] - int(height.max(initial=0)) + 1
    return height, depth


def over_nodes(nodes: Switched, nbytes: int, *, pieces: int, itemsize: int = 4) -> Schedule:
    """Send a buffer over such edges; each head's part of each tree in so many pieces."""
    sizes = split_elements(nbytes, nodes.trees * pieces * nodes.heads, itemsize)
    pattern = pipeline(
        "through switches",
        nodes.src,
        nodes.dst,
        nodes.tree,
        nodes.first,
        sizes.reshape(nodes.trees, pieces, nodes.heads),
        reduces=nodes.adds,
        part=nodes.head,
    )
    return concatenate(
        [pattern],
        nodes.collective,
        "nvls" if nodes.nodes == 1 else "nvls_tree",
        nodes.ranks,
        nbytes,
        itemsize,
        sizes,
        owner=None
        if nodes.collective == "all_reduce"
        else np.tile(np.arange(nodes.heads), nodes.trees * pieces),
        switches=2 * nodes.nodes,
    )


def switch_all_reduce(
    ranks: int, nbytes: int, *, itemsize: int = 4, piece_bytes: int = NVLS_PIECE_BYTES
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
    piece_bytes: int = CHAIN_PIECE_BYTES,
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
    return over_switches(
        trees,
        "collnet",
        1,
        nbytes,
        pieces=pieces_of(nbytes, 1, piece_bytes, itemsize),
        itemsize=itemsize,
    )


def direct_all_reduce(
    ranks: int,
    nbytes: int,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    itemsize: int = 4,
    piece_bytes: int = CHAIN_PIECE_BYTES,
) -> Schedule:
    """Sum a buffer: each rank that of its 1/g in its node, then in a switch over nodes, and back.

    With nodes of g ranks and P pieces of a rank's part: Steps: 3 + P (1 + P for g = 1). Bytes sent
    per rank: S(2g - 1)/g. Latency term: (3 + P) alpha. Right for nodes whose GPUs all see each
    other, with a NIC for each. Source: see the module; parameters as for `chain_all_reduce`.
    """
    table = group_table(check_ranks(ranks), groups)
    trees = forest_of(np.stack([star_parents(table, head) for head in range(table.shape[1])]))
    return over_switches(
        trees,
        "collnet_direct",
        1,
        nbytes,
        pieces=pieces_of(nbytes, trees.channels, piece_bytes, itemsize),
        itemsize=itemsize,
    )


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
    return replace(
        forest_all_reduce(trees, nbytes, pieces=pieces, itemsize=itemsize),
        algorithm=algorithm,
        ranks=trees.ranks - switches,
        switches=switches,
    )
