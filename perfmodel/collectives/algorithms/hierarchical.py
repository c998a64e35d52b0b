"""Two-level all-reduce: rings inside groups and rings across them; and the same on a torus.

Sources: Cho et al., "BlueConnect", MLSys 2019 (hierarchical); Mikami et al., "Massively
distributed SGD: ImageNet/ResNet-50 training in a flash", arXiv:1811.05233, 2018 (2D torus).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.arrays import IntArray
from perfmodel.collectives.algorithms.tree import group_table
from perfmodel.collectives.patterns import around, concatenate, near_root
from perfmodel.collectives.schedule import Schedule, check_ranks, split_elements
from perfmodel.errors import check_schedule


def all_reduce(
    ranks: int, nbytes: int, *, groups: Sequence[Sequence[int]] | None = None, itemsize: int = 4
) -> Schedule:
    """Sum a buffer: reduce-scatter inside each group, all-reduce across, all-gather inside.

    The ranks in the same place of each group (a rail) all-reduce their 1/g among themselves, all
    rails at once. With g ranks in each of k groups, N = g k. Steps: 2(g-1) + 2(k-1). Bytes sent
    per rank: 2(g-1)/g S inside and 2(k-1)/k S/g across, in sum 2(N-1)/N S as a flat ring.
    Latency term: 2(g-1) alpha inside + 2(k-1) alpha across. Right for nodes with quick links
    inside and a NIC for each GPU. Source: Cho et al. (see the module).

    `groups`: the ranks of each group (node), in the order of its ring. Default: groups of
    consecutive ranks, their size the divisor of N nearest to sqrt(N) from above.

    Raises `ScheduleError`: groups of different sizes, or that do not hold each rank once.
    """
    return _two_level(
        "hierarchical", group_table(check_ranks(ranks), groups), ranks, nbytes, itemsize
    )


def torus(
    ranks: int,
    nbytes: int,
    *,
    rows: int | None = None,
    columns: int | None = None,
    itemsize: int = 4,
) -> Schedule:
    """Sum a buffer on a torus: reduce-scatter along rows, all-reduce along columns, all-gather.

    Rank r stands in row r // columns. Steps: 2(columns-1) + 2(rows-1). Bytes sent per rank:
    2(columns-1)/columns S along rows and 2(rows-1)/rows S/columns along columns, in sum
    2(N-1)/N S. Latency term: steps times alpha. Right on a torus (each step goes to a neighbour)
    and for many ranks: about 4 sqrt(N) steps where a ring has 2N. Source: Mikami et al. (see the
    module). Only one dimension's links work at a time.

    `rows` and `columns` are about equal by default.

    Raises `ScheduleError`: rows times columns are not the number of ranks.
    """
    check_ranks(ranks)
    if columns is None:
        columns = near_root(ranks) if rows is None else ranks // max(rows, 1)
    if rows is None:
        rows = ranks // max(columns, 1)
    check_schedule(
        (
            rows < 1 or columns < 1 or rows * columns != ranks,
            f"a torus of {rows} rows x {columns} columns; allowed: rows x columns = {ranks} ranks",
        )
    )
    return _two_level(
        "torus", np.arange(ranks, dtype=np.int64).reshape(rows, columns), ranks, nbytes, itemsize
    )


def _two_level(algorithm: str, table: IntArray, ranks: int, nbytes: int, itemsize: int) -> Schedule:
    """Blocks are numbered by place in a group (place p ends with p + 1) and cut by groups."""
    groups, size = table.shape
    sizes = split_elements(nbytes, ranks, itemsize)
    block = np.arange(size) * groups
    inside = np.broadcast_to(block, (groups, size))
    # Rail p holds block p + 1 and cuts it into one chunk for each group.
    across = np.roll(block, -1)[:, None] + np.arange(groups)
    patterns = [
        around("reduce-scatter inside", table, inside, groups, sizes, reduces=True),
        around("reduce-scatter across", table.T, across, 1, sizes, reduces=True),
        around("all-gather across", table.T, across, 1, sizes, reduces=False),
        around("all-gather inside", table, inside, groups, sizes, reduces=False),
    ]
    return concatenate(patterns, "all_reduce", algorithm, ranks, nbytes, itemsize, sizes)
