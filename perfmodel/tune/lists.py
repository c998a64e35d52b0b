"""The best list of caps where the recurrence over buckets is what the simulation says."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.training.options import MIB
from perfmodel.tune.bench import Bench
from perfmodel.tune.clock import neighbours
from perfmodel.tune.refine import improved, simplified
from perfmodel.tune.row import Cuts, Row
from perfmodel.tune.search import best_cuts

PASSES = 4
"""Searches, each with the times of all that the one before chose worked out."""
LABELS, LABELS_SLOWED = 24, 8
FINALISTS = 4
"""Ways to the end that are looked at closely where all-reduces slow copies back down."""


def list_by_clock(bench: Bench, allowed: NDArray[np.bool_] | None = None) -> Cuts | None:
    """Return the groups of neighbours with the least time; None if none are allowed.

    Parameters
    ----------
    bench : Bench
    allowed : ndarray of bool, shape (gradients, gradients + 1), optional
        Whether a group may go from one position to another.
    """
    clock, costs = bench.clock, bench.costs
    slowed = clock.slowdown > 1.0

    def rate(cuts: Cuts) -> float:
        if allowed is not None and not all(
            allowed[a, b] for a, b in zip((0, *cuts), cuts, strict=False)
        ):
            return float("inf")
        return clock.step_s(neighbours(clock, cuts), costs.time_s)

    best: Cuts | None = None
    for _ in range(PASSES):
        keep = LABELS_SLOWED if slowed else LABELS
        found = best_cuts(clock, costs.estimate, allowed=allowed, keep=keep)
        if not found:
            return None
        ways = [*found[: FINALISTS if slowed else 1], *([best] if best else [])]
        way = min(ways, key=rate)
        way = simplified(way, rate)
        best = simplified(improved(way, rate), rate) if slowed else way
        if not bench.learn(bench.row.groups(best)):
            break
    return best


def all_sizes_known(bench: Bench) -> bool:
    """Whether no time was read off, so that the search left no group of neighbours out."""
    sums = bench.row.sums
    sizes = {b - a for i, a in enumerate(sums) for b in sums[i + 1 :]}
    return all(bench.costs.is_known(size) for size in sizes)


def work_out_all(bench: Bench, at_most: int) -> None:
    """Work out what every group of neighbours takes, if these are few."""
    sums = bench.row.sums
    if len(sums) ** 2 > 4 * at_most:
        return
    sizes = {b - a for i, a in enumerate(sums) for b in sums[i + 1 :]}
    if len(sizes) <= at_most:
        for size in sorted(sizes):
            bench.costs.exact(size)


def closed_by_whole(row: Row) -> NDArray[np.bool_]:
    """Whether a cap of whole MiB makes a group of the gradients from one position to another."""
    n, sums = len(row), np.array(row.sums, dtype=np.int64)
    begin, end = np.meshgrid(np.arange(n), np.arange(n + 1), indexing="ij")
    nbytes = sums[end] - sums[begin]
    sizes = np.array(row.nbytes, dtype=np.int64)
    last = sizes[begin] if row.flipped else sizes[np.maximum(end, 1) - 1]
    above = nbytes - last
    number = np.maximum(1, above // MIB + 1)
    left_over = begin == 0 if row.flipped else end == n
    found: NDArray[np.bool_] = (end > begin) & ((number * MIB <= nbytes) | left_over)
    return found
