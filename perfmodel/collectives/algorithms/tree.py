"""Trees: pipelined ones side by side, binomial trees, and parallel aggregated trees (PAT).

Pipelined trees all-reduce up and down one tree per channel, in pieces, as NCCL runs it: between
nodes stand two complementary binary trees; inside a node the GPUs form a chain that begins at the
GPU beside the channel's NIC. With PAT every rank's part goes down a binomial tree of its own, to
the farthest first, so that what travels far is still little; the trees of all ranks share each
step.

Sources: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction
and scan", Parallel Computing 35(12), 2009; Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005;
Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", 2025 (arXiv
2506.20252); NVIDIA/nccl 2.30.7 ``src/graph/trees.cc`` and ``connect.cc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import IntArray, stable_order
from perfmodel.collectives.patterns import (
    Pattern,
    concatenate,
    exchange,
    near_root,
    pieces_of,
    pipeline,
    single_step,
)
from perfmodel.collectives.schedule import Round, Schedule, check_ranks, split_elements
from perfmodel.errors import check_schedule

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
    """Return the edges of trees over the same ranks.

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
    """Return the edges from each node up to its root, by doubling the known distance."""
    nodes = len(above)
    up = np.append(np.where(above < 0, nodes, above), nodes)
    depth = np.append((above >= 0).astype(np.int64), 0)
    while (up[:-1] < nodes).any():
        depth = depth + depth[up]
        up = up[up]
    return depth[:-1]


def forest_all_reduce(trees: Forest, nbytes: int, *, pieces: int, itemsize: int = 4) -> Schedule:
    """Sum a buffer over all ranks: up and down one tree per channel, each with an equal share.

    Steps: 2H - 1 + P, with H the height of the highest tree and P pieces of a channel's share.
    Bytes sent by a rank: S / channels for each of its edges up and down in each tree. Latency
    term: (2H - 1 + P) alpha. Right for middle sizes on many nodes. Source: see the module.

    Each channel's share is cut into so many `pieces`.
    """
    check_ranks(trees.ranks)
    check_schedule((pieces < 1, f"{pieces} pieces; allowed: 1 or more"))
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


PIECE_BYTES = 1 << 19
"""Default size of a piece of a tree; 512 KiB, one of the 8 steps of NCCL's 4 MiB Simple buffer."""


def double_binary_tree(
    ranks: int,
    nbytes: int,
    *,
    itemsize: int = 4,
    piece_bytes: int = PIECE_BYTES,
    groups: Sequence[Sequence[int]] | None = None,
) -> Schedule:
    """Sum a buffer over all ranks: up and down two trees, each with half of the data, in pieces.

    Who is a leaf in one tree is inside the other, so that all ports carry about the same.
    Steps: 2D - 1 + P, with D = ceil(log2 N) the height of the trees and P the pieces of each
    half. Bytes sent by the busiest rank: 2S for N >= 4 (in one tree half the data up and twice
    half down, in the other half up), 3/2 S for N = 3, S for N = 2. Latency term: (2D - 1 + P)
    alpha. Right for middle sizes on many ranks: far fewer steps than a ring, nearly its bytes.
    Source: Sanders et al. (see the module); NCCL uses it between nodes.

    `groups`: chains of ranks (the GPUs of a node): the first of each chain stands in the trees, the
    others pass on to it one after the other, as in NCCL. Adds 2(g-1) steps to both trees.

    Raises `ScheduleError`: groups that do not hold each rank once.
    """
    alone = [[rank] for rank in range(check_ranks(ranks))]
    table = group_table(ranks, alone if groups is None else groups)
    trees = forest_of(
        np.stack([chained_parents(table, second=second, spread=False) for second in (False, True)])
    )
    order = np.lexsort((~trees.up, trees.channel))  # tree after tree
    columns = ("src", "dst", "channel", "first", "up")
    trees = replace(trees, **{name: getattr(trees, name)[order] for name in columns})
    return forest_all_reduce(
        trees, nbytes, pieces=pieces_of(nbytes, 2, piece_bytes, itemsize), itemsize=itemsize
    )


def group_table(ranks: int, groups: Sequence[Sequence[int]] | None) -> IntArray:
    """Groups of ranks as an array of shape (groups, size); default: of `near_root` ranks each.

    Raises `ScheduleError`: groups of different sizes, or that do not hold each rank once.
    """
    if groups is None:
        return np.arange(ranks, dtype=np.int64).reshape(-1, near_root(ranks))
    lengths = sorted({len(group) for group in groups})
    check_schedule(
        (len(lengths) != 1, f"groups of {lengths} ranks; allowed: groups of one size"),
        (
            sorted(rank for group in groups for rank in group) != list(range(ranks)),
            f"groups that do not hold each rank 0 to {ranks - 1} once",
        ),
    )
    return np.asarray([list(group) for group in groups], dtype=np.int64)


def broadcast(ranks: int, nbytes: int, *, root: int = 0, itemsize: int = 4) -> Schedule:
    """Copy the root's buffer to everyone: who has it sends it on, to twice as many each step.

    Steps: ceil(log2 N). Bytes sent by the root: ceil(log2 N) S. Latency term: ceil(log2 N)
    alpha. Right for small buffers: no algorithm of single sends has fewer steps.
    Source: Thakur et al. (see the module); Gloo's broadcast.
    """
    return _binomial(("broadcast",), "broadcast", ranks, nbytes, root, itemsize)


def reduce(ranks: int, nbytes: int, *, root: int = 0, itemsize: int = 4) -> Schedule:
    """Sum everyone's buffer into the root's; `broadcast` run backwards.

    Steps: ceil(log2 N). Bytes received by the root: ceil(log2 N) S; sent per rank: S (the root
    sends none). Latency term: ceil(log2 N) alpha. Right for small buffers. The other ranks'
    buffers hold partial sums afterwards. Source: Thakur et al. (see the module).
    """
    return _binomial(("reduce",), "reduce", ranks, nbytes, root, itemsize)


def all_reduce(ranks: int, nbytes: int, *, itemsize: int = 4) -> Schedule:
    """Sum a buffer over all ranks: binomial `reduce` to rank 0, then `broadcast` from it.

    Steps: 2 ceil(log2 N). Bytes sent by rank 0: ceil(log2 N) S. Latency term: 2 ceil(log2 N)
    alpha. Seldom right: recursive doubling takes half the steps. Source: Thakur et al.
    """
    return _binomial(("reduce", "broadcast"), "all_reduce", ranks, nbytes, 0, itemsize)


def _binomial(
    halves: tuple[str, ...], collective: str, ranks: int, nbytes: int, root: int, itemsize: int
) -> Schedule:
    down = range((check_ranks(ranks, root) - 1).bit_length())
    sizes = split_elements(nbytes, 1, itemsize)
    patterns = [
        _level(half, 1 << step, ranks, root, sizes)
        for half in halves
        for step in (down if half == "broadcast" else down[::-1])
    ]
    return concatenate(patterns, collective, "binomial", ranks, nbytes, itemsize, sizes, root=root)


def _level(half: str, distance: int, ranks: int, root: int, sizes: IntArray) -> Pattern:
    """Return the `distance` ranks nearest to the root and those `distance` further away."""
    near = np.arange(min(distance, ranks - distance))
    upper, lower = (near + root) % ranks, (near + distance + root) % ranks
    src, dst = (upper, lower) if half == "broadcast" else (lower, upper)
    return exchange(half, src, dst, np.zeros_like(src), 1, sizes, reduces=half == "reduce")


def pat_all_gather(ranks: int, nbytes: int, *, itemsize: int = 4) -> Schedule:
    """Give every rank the parts of all, far ones first.

    Steps: ceil(log2 N). Bytes sent per rank: (N-1)/N S, with S the whole result, most of them to
    the nearest. Latency term: ceil(log2 N) alpha. Right for many nodes of one GPU each. Source: see
    the module.
    """
    return _pat("all_gather", ranks, nbytes, itemsize)


def pat_reduce_scatter(ranks: int, nbytes: int, *, itemsize: int = 4) -> Schedule:
    """Sum a buffer over all ranks and leave each its own part: `pat_all_gather` run backwards.

    Steps: ceil(log2 N). Bytes sent per rank: (N-1)/N S, with S the whole buffer. Latency term:
    ceil(log2 N) alpha. Right, and source, as for `pat_all_gather`.
    """
    return _pat("reduce_scatter", ranks, nbytes, itemsize)


def _pat(collective: str, ranks: int, nbytes: int, itemsize: int) -> Schedule:
    sizes, own = split_elements(nbytes, check_ranks(ranks), itemsize), np.arange(ranks)
    distances = [1 << k for k in range((ranks - 1).bit_length())]
    reduces = collective == "reduce_scatter"
    patterns = [
        _pat_step(distance, ranks, sizes, reduces=reduces)
        for distance in (distances if reduces else distances[::-1])
    ]
    return concatenate(patterns, collective, "pat", ranks, nbytes, itemsize, sizes, owner=own)


def _pat_step(distance: int, ranks: int, sizes: IntArray, *, reduces: bool) -> Pattern:
    """All pairs at a distance: what those that have come a multiple of twice as far pass on."""
    come = np.arange(0, ranks - distance, 2 * distance)
    sender = np.arange(ranks)
    receiver = (sender + distance) % ranks
    src, dst = (receiver, sender) if reduces else (sender, receiver)
    nbytes = (
        np.full(ranks, float(sizes[0] * len(come)))
        if sizes.min() == sizes.max()
        else sum((np.roll(sizes, each) for each in come), np.zeros_like(sizes)).astype(float)
    )

    def step(_: int) -> Round:
        # as many as ranks squared: made where they are asked for, and not kept
        chunk = ((sender[:, None] - come) % ranks).ravel()
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
