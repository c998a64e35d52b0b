"""Which of equally good settings to recommend: round caps and few buckets."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.studies.tune.caps import Caps, UniformPartition, integer_cap_mb, number
from perfmodel.studies.tune.objective.evaluator import SAME, Evaluator

AS_GOOD = 5e-4
"""Relative difference of steps that is not worth an odd number."""
FEWER = 3e-3
"""The same where several all-reduces are under way at a time, for fewer buckets.

Assumption: a model of CPUs that reduce while they compute is less sure of what many small buckets
cost than of the rest (in reports/experiments/gloo_ddp the median error is 0.9 % of a step).
"""
LOOKS = 6
"""Most caps that are simulated in search of a round one."""


def choose_uniform_cap(evaluator: Evaluator, partitions: Sequence[UniformPartition]) -> float:
    """Return the best simulated uniform cap, or a rounder one that is as good; MiB."""
    simulated = [partition for partition in partitions if partition.groups in evaluator.outcomes]
    best = min(simulated, key=lambda partition: evaluator.outcomes[partition.groups].step_time_s)
    least_s = evaluator.outcomes[best.groups].step_time_s
    limit_s = least_s * (1 + (FEWER if evaluator.workers > 1 else AS_GOOD))
    candidates = [partition for partition in partitions if _step_s(evaluator, partition) <= limit_s]
    for partition in sorted(candidates, key=lambda each: _complexity(evaluator, each))[:LOOKS]:
        if evaluator.simulate(evaluator.uniform_options(partition.cap_mb)).step_time_s <= limit_s:
            return partition.cap_mb
    return best.cap_mb


def _step_s(evaluator: Evaluator, partition: UniformPartition) -> float:
    """Step time; seconds, infinite where the surrogate is not exact and nothing was simulated."""
    if partition.groups in evaluator.outcomes:
        return evaluator.outcomes[partition.groups].step_time_s
    return float("inf") if evaluator.reasons else evaluator.predict_step_s(partition.groups)


def _complexity(evaluator: Evaluator, partition: UniformPartition) -> tuple[int, int, float]:
    """Key that orders caps: fewer buckets where that counts, fewer digits, more room."""
    window = partition.window
    room = min(window.high_mb, 2 * window.low_mb) / window.low_mb
    buckets = len(partition.groups) if evaluator.workers > 1 else 0
    return buckets, len(number(partition.cap_mb)), -room


def choose_lists(
    evaluator: Evaluator, lists: Sequence[Caps], partitions: Sequence[UniformPartition]
) -> tuple[Caps, Caps]:
    """Return the best list of caps, and the best of whole numbers; MiB."""
    simulated = [partition for partition in partitions if partition.groups in evaluator.outcomes]
    whole = [
        cap for partition in simulated if (cap := integer_cap_mb(partition.window)) is not None
    ]
    uniform = [(1.0, 25.0), *((float(cap),) for cap in whole)]
    candidates = [*lists, *uniform, *((partition.cap_mb,) for partition in simulated)]
    integers = [caps for caps in (*lists, *uniform) if all(cap == int(cap) for cap in caps)]
    return _choose_quickest(evaluator, candidates), _choose_quickest(evaluator, integers)


def _choose_quickest(evaluator: Evaluator, lists: Sequence[Caps]) -> Caps:
    rated = [(evaluator.simulate(evaluator.list_options(caps)).step_time_s, caps) for caps in lists]
    least_s = min(step_s for step_s, _ in rated)
    quickest = [caps for step_s, caps in rated if step_s <= least_s * (1 + SAME)]
    return min(quickest, key=lambda caps: (len(caps), len(str(caps))))
