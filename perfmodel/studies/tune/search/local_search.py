"""Local search over contiguous groups: an end is moved, removed or added."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from perfmodel.studies.tune.objective.gradients import Cuts

Rate = Callable[[Cuts], float]
"""Seconds of a step, or infinity where a group is not allowed."""

SHIFTS = (-8, -4, -2, -1, 1, 2, 4, 8)
EFFORT = 100_000
MANY = 30
"""Groups from which on only the middle of each is tried as a new end."""
LEAST_GAIN = 1e-10
"""Least relative gain of a round."""


def neighbourhood(cuts: Cuts, every: bool = True) -> Iterator[Cuts]:
    """Yield the groups that differ from given ones in one end.

    `every`: whether to try all new ends, or only the middle of each group.
    """
    inner, n = cuts[:-1], cuts[-1]
    ends = set(inner)
    for at, cut in enumerate(inner):
        yield (*inner[:at], *inner[at + 1 :], n)
        low, high = (0, *inner)[at], (*inner, n)[at + 1]
        for shift in SHIFTS:
            if low < cut + shift < high:
                yield (*inner[:at], cut + shift, *inner[at + 1 :], n)
    if every:
        new = [position for position in range(1, n) if position not in ends]
    else:
        new = [(a + b) // 2 for a, b in zip((0, *inner), cuts, strict=True) if b - a > 1]
    for position in new:
        yield tuple(sorted((*cuts, position)))


def improve(cuts: Cuts, rate: Rate, effort: int = EFFORT) -> Cuts:
    """Take the best neighbour as long as it is better and effort remains.

    `effort`: most buckets to rate.
    """
    best_s = rate(cuts)
    while effort > 0:
        candidates = list(neighbourhood(cuts, every=len(cuts) <= MANY))
        effort -= len(candidates) * len(cuts)
        nearest_s, nearest = min(
            ((rate(candidate), candidate) for candidate in candidates), default=(best_s, cuts)
        )
        if nearest_s >= best_s * (1 - LEAST_GAIN):
            break
        best_s, cuts = nearest_s, nearest
    return cuts


def simplify(cuts: Cuts, rate: Rate, within: float = LEAST_GAIN) -> Cuts:
    """Remove ends that gain nothing."""
    best_s = rate(cuts)
    at = 0
    while at < len(cuts) - 1:
        fewer = (*cuts[:at], *cuts[at + 1 :])
        if rate(fewer) <= best_s * (1 + within):
            cuts = fewer
        else:
            at += 1
    return cuts
