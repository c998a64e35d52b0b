"""Which of equally good settings to recommend: round caps, and few buckets."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.studies.tune.caps import Uniform, number, whole_mb
from perfmodel.studies.tune.objective.evaluator import SAME, Evaluator

Caps = tuple[float, ...]

AS_GOOD = 5e-4
"""Relative difference of steps that is not worth an odd number."""
FEWER = 3e-3
"""The same where several all-reduces are under way at a time, for fewer buckets.

Assumption: a model of CPUs that reduce while they compute is less sure of what many small buckets
cost than of the rest (in reports/experiments/gloo_ddp the median error is 0.9 % of a step).
"""
LOOKS = 6
"""Caps that are simulated in search of a round one."""


def best_uniform(bench: Evaluator, uniforms: Sequence[Uniform]) -> float:
    """Return the best cap that was simulated, or one as good that is easier to keep; MiB."""
    known = [one for one in uniforms if one.groups in bench.tried]
    best = min(known, key=lambda one: bench.tried[one.groups].step_time_s)
    least_s = bench.tried[best.groups].step_time_s
    limit_s = least_s * (1 + as_good(bench))
    alike = [one for one in uniforms if _guess(bench, one) <= limit_s]
    for one in sorted(alike, key=lambda each: _plainness(bench, each))[:LOOKS]:
        if bench.simulate(bench.uniform(one.cap_mb)).step_time_s <= limit_s:
            return one.cap_mb
    return best.cap_mb


def as_good(bench: Evaluator) -> float:
    """Relative difference of steps that is not worth more buckets, or an odd number."""
    return FEWER if bench.workers > 1 else AS_GOOD


def _guess(bench: Evaluator, one: Uniform) -> float:
    """What a cap costs; infinite where only a simulation can tell and there was none."""
    if one.groups in bench.tried:
        return bench.tried[one.groups].step_time_s
    return float("inf") if bench.reasons else bench.guess(one.groups)


def _plainness(bench: Evaluator, one: Uniform) -> tuple[int, int, float]:
    """Key that orders caps: fewer buckets where that counts, fewer digits, more room."""
    window = one.window
    room = min(window.high_mb, 2 * window.low_mb) / window.low_mb
    buckets = len(one.groups) if bench.workers > 1 else 0
    return buckets, len(number(one.cap_mb)), -room


def best_lists(
    bench: Evaluator, lists: Sequence[Caps], uniforms: Sequence[Uniform]
) -> tuple[Caps, Caps]:
    """Return the best list of caps, and the best of whole numbers; MiB."""
    known = [one for one in uniforms if one.groups in bench.tried]
    whole = [cap for one in known if (cap := whole_mb(one.window)) is not None]
    plain = [(1.0, 25.0), *((float(cap),) for cap in whole)]
    every = [*lists, *plain, *((one.cap_mb,) for one in known)]
    integers = [caps for caps in (*lists, *plain) if all(cap == int(cap) for cap in caps)]
    return _least(bench, every), _least(bench, integers)


def _least(bench: Evaluator, lists: Sequence[Caps]) -> Caps:
    rated = [(bench.simulate(bench.listed(caps)).step_time_s, caps) for caps in lists]
    least_s = min(step_s for step_s, _ in rated)
    alike = [caps for step_s, caps in rated if step_s <= least_s * (1 + SAME)]
    return min(alike, key=lambda caps: (len(caps), len(str(caps))))
