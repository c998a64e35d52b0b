"""Trees: pipelined double binary tree all-reduce, and binomial broadcast, reduce and all-reduce.

Sources: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction
and scan", Parallel Computing 35(12), 2009; Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.arrays import IntArray
from perfmodel.collectives.patterns import (
    Pattern,
    concatenate,
    exchange,
    near_root,
    pieces_of,
    pipeline,
)
from perfmodel.collectives.schedule import Schedule, check_ranks, split_elements
from perfmodel.errors import ScheduleError

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

    Parameters
    ----------
    ranks, nbytes, itemsize : int
        As everywhere.
    piece_bytes : int
        Largest piece.
    groups : sequence of equal-sized sequences of int, optional
        Chains of ranks (the GPUs of a node): the first of each chain stands in the trees, the
        others pass on to it one after the other, as in NCCL. Adds 2(g-1) steps to both trees.

    Raises
    ------
    ScheduleError
        Groups that do not hold each rank once.
    """
    check_ranks(ranks)
    table = group_table(ranks, [[r] for r in range(ranks)] if groups is None else groups)
    pieces = pieces_of(nbytes, 2, piece_bytes, itemsize)
    sizes = split_elements(nbytes, 2 * pieces, itemsize).reshape(2, pieces)
    both = [_edges(_chained(parents, table), tree) for tree, parents in enumerate(_two(len(table)))]
    src, dst, channel, first, reduces = (
        np.concatenate(columns) for columns in zip(*both, strict=True)
    )
    flow = pipeline("reduce and broadcast", src, dst, channel, first, sizes, reduces=reduces)
    return concatenate(
        [flow],
        collective="all_reduce",
        algorithm="tree",
        ranks=ranks,
        nbytes=nbytes,
        itemsize=itemsize,
        chunk_bytes=sizes.ravel(),
    )


def group_table(ranks: int, groups: Sequence[Sequence[int]] | None) -> IntArray:
    """Groups of ranks as an array of shape (groups, size); default: of `near_root` ranks each.

    Raises
    ------
    ScheduleError
        Groups of different sizes, or that do not hold each rank once.
    """
    if groups is None:
        return np.arange(ranks, dtype=np.int64).reshape(-1, near_root(ranks))
    lengths = sorted({len(group) for group in groups})
    if len(lengths) != 1:
        raise ScheduleError(f"groups of {lengths} ranks; allowed: groups of one size")
    table = np.asarray([list(group) for group in groups], dtype=np.int64)
    if not np.array_equal(np.sort(table, axis=None), np.arange(ranks)):
        raise ScheduleError(f"groups that do not hold each rank 0 to {ranks - 1} once")
    return table


def _two(places: int) -> tuple[IntArray, IntArray]:
    """Parent of each place in two trees; -1 at the roots.

    The first tree is in order of places, so that odd places are leaves. The second is its mirror
    image, or for an odd number of places the same shifted by one.
    """
    place = np.arange(places)
    bit = place & -place
    above = (place ^ bit) | (bit << 1)
    first = np.where(above < places, above, place ^ bit)
    first[:1] = -1
    if places % 2 == 0:
        mirrored = first[::-1]
        return first, np.where(mirrored < 0, -1, places - 1 - mirrored)
    shifted = np.roll(first, 1)
    return first, np.where(shifted < 0, -1, (shifted + 1) % places)


def _chained(parents: IntArray, groups: IntArray) -> IntArray:
    """Parent of each rank, if groups stand at the places of a tree and each is a chain."""
    found = np.empty(groups.size, dtype=np.int64)
    found[groups[:, 0]] = np.where(parents < 0, -1, groups[parents, 0])
    found[groups[:, 1:]] = groups[:, :-1]
    return found


def _edges(parents: IntArray, tree: int) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
    """Edges of a tree up and down: src, dst, channel, first repeat, whether they reduce."""
    depth = np.zeros(len(parents), dtype=np.int64)
    above = parents
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parents[above], -1)
    height = np.zeros(len(parents), dtype=np.int64)
    for level in range(int(depth.max()), 0, -1):
        lower = np.flatnonzero(depth == level)
        np.maximum.at(height, parents[lower], height[lower] + 1)
    child = np.flatnonzero(parents >= 0)
    upper = parents[child]
    # A piece goes up once both children's have come, and down once the root has it whole.
    first = np.concatenate([height[child], height.max() + depth[child] - 1])
    up = np.repeat([True, False], len(child))
    channel = np.full(2 * len(child), tree)
    return np.concatenate([child, upper]), np.concatenate([upper, child]), channel, first, up


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
    check_ranks(ranks, root)
    sizes = split_elements(nbytes, 1, itemsize)
    steps = (ranks - 1).bit_length()
    patterns = []
    for half in halves:
        order = range(steps) if half == "broadcast" else reversed(range(steps))
        patterns += [_level(half, 1 << step, ranks, root, sizes) for step in order]
    return concatenate(
        patterns,
        collective=collective,
        algorithm="binomial",
        ranks=ranks,
        nbytes=nbytes,
        itemsize=itemsize,
        chunk_bytes=sizes,
        root=root,
    )


def _level(half: str, distance: int, ranks: int, root: int, sizes: IntArray) -> Pattern:
    """The `distance` ranks nearest to the root and those `distance` further away."""
    near = np.arange(min(distance, ranks - distance))
    upper, lower = (near + root) % ranks, (near + distance + root) % ranks
    src, dst = (upper, lower) if half == "broadcast" else (lower, upper)
    return exchange(half, src, dst, np.zeros_like(src), 1, sizes, reduces=half == "reduce")
