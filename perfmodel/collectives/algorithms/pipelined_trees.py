"""Trees side by side: all-reduce up and down one tree per channel, in pieces, as NCCL runs it.

Between nodes stand two complementary binary trees; inside a node the GPUs form a chain that begins
at the GPU beside the channel's NIC. Sources: NVIDIA/nccl 2.30.7 ``src/graph/trees.cc`` and
``connect.cc``; Sanders, Speck and Träff, Parallel Computing 35(12), 2009.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import IntArray, stable_order
from perfmodel.collectives.patterns import concatenate, pipeline
from perfmodel.collectives.schedule import Schedule, check_ranks, split_elements
from perfmodel.errors import ScheduleError

NO_PARENT = -1
"""Parent of a tree's root."""


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Edges of trees, first all that go up and then all that go down, tree after tree.

    Arrays have shape (edges,).
    """

    ranks: int
    channels: int
    src: IntArray
    dst: IntArray
    channel: IntArray
    first: IntArray
    """Repeat in which an edge sends its first piece."""
    up: NDArray[np.bool_]
    """Whether the edge reduces."""


def forest_of(parents: IntArray) -> Forest:
    """Edges of trees over the same ranks.

    `parents`: of each rank in each channel's tree, `NO_PARENT` at its root; shape (channels,
    ranks).
    """
    channels, ranks = parents.shape
    above = np.where(parents < 0, NO_PARENT, parents + ranks * np.arange(channels)[:, None]).ravel()
    depth, height = _depth(above), np.zeros(channels * ranks, dtype=np.int64)
    child = np.flatnonzero(above >= 0)
    order = child[stable_order(-depth[child])]
    ends = np.flatnonzero(np.diff(depth[order])) + 1
    for lower in np.split(order, ends) if len(order) else ():
        np.maximum.at(height, above[lower], height[lower] + 1)
    tree = child // ranks
    tallest = height.reshape(channels, ranks).max(axis=1, initial=0)[tree]
    # A piece goes up once the children's have come, and down once the root has it whole.
    first = np.concatenate([height[child], tallest + depth[child] - 1])
    lower, upper = child % ranks, above[child] % ranks
    return Forest(
        ranks=ranks,
        channels=channels,
        src=np.concatenate([lower, upper]),
        dst=np.concatenate([upper, lower]),
        channel=np.concatenate([tree, tree]),
        first=first,
        up=np.repeat([True, False], len(child)),
    )


def _depth(above: IntArray) -> IntArray:
    """Edges from each node up to its root, by doubling the known distance."""
    nodes = len(above)
    up = np.append(np.where(above < 0, nodes, above), nodes)
    depth = np.append((above >= 0).astype(np.int64), 0)
    while (up[:-1] < nodes).any():
        depth = depth + depth[up]
        up = up[up]
    return depth[:-1]


def all_reduce(trees: Forest, nbytes: int, *, pieces: int, itemsize: int = 4) -> Schedule:
    """Sum a buffer over all ranks: up and down one tree per channel, each with an equal share.

    Steps: 2H - 1 + P, with H the height of the highest tree and P pieces of a channel's share.
    Bytes sent by a rank: S / channels for each of its edges up and down in each tree. Latency
    term: (2H - 1 + P) alpha. Right for middle sizes on many nodes. Source: see the module.

    Each channel's share is cut into so many `pieces`.
    """
    check_ranks(trees.ranks)
    if pieces < 1:
        raise ScheduleError(f"{pieces} pieces; allowed: 1 or more")
    sizes = split_elements(nbytes, trees.channels * pieces, itemsize)
    both = pipeline(
        "reduce and broadcast",
        trees.src,
        trees.dst,
        trees.channel,
        trees.first,
        sizes.reshape(trees.channels, pieces, 1),
        reduces=trees.up,
    )
    return concatenate([both], "all_reduce", "tree", trees.ranks, nbytes, itemsize, sizes)


def node_parents(nodes: int, second: bool) -> tuple[IntArray, NDArray[np.bool_]]:
    """Parent of each node in NCCL's double binary tree, and who is its parent's first child.

    The first tree is in order of nodes, so that odd ones are leaves; the second is its mirror
    image, or for an odd number of nodes the same shifted by one. Both have shape (nodes,).
    """
    node = np.arange(nodes)
    bit = node & -node
    above = (node ^ bit) | (bit << 1)
    parent = np.where(above < nodes, above, node ^ bit)
    parent[:1] = NO_PARENT
    is_first = node < parent
    if not second:
        return parent, is_first
    if nodes % 2 == 0:
        mirrored = parent[::-1]
        return np.where(mirrored < 0, NO_PARENT, nodes - 1 - mirrored), is_first[::-1]
    shifted = np.roll(parent, 1)
    return np.where(shifted < 0, NO_PARENT, (shifted + 1) % nodes), np.roll(is_first, 1)


def chained_parents(chains: IntArray, *, second: bool, spread: bool) -> IntArray:
    """Parent of each rank, if chains of ranks (the GPUs of a node) stand in a binary tree.

    `chains`: positions of ranks; the first of each chain sends to the parent node; shape (nodes,
    size). `second`: which of the two trees. `spread`: whether a node's first child sends to the
    second of its chain (NCCL's balanced tree), so that two GPUs share the traffic of the NIC; else
    both children send to the first.
    """
    nodes, size = chains.shape
    parent, is_first = node_parents(nodes, second)
    parents = np.full(int(chains.max(initial=-1)) + 1, NO_PARENT, dtype=np.int64)
    place = np.where(is_first, 1, 0) if spread and size > 1 else np.zeros(nodes, dtype=np.int64)
    parents[chains[:, 0]] = np.where(parent < 0, NO_PARENT, chains[parent, place])
    parents[chains[:, 1:]] = chains[:, :-1]
    return parents
