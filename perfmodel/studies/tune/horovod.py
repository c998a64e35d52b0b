"""The best threshold of Horovod's tensor fusion for the same job.

Every cycle a thread looks which gradients have been handed over, fuses them in that order into
buffers of at most the threshold, and reduces buffer after buffer; a gradient that fits nowhere goes
alone (horovod/horovod, docs/tensor-fusion.rst). Hooks hand gradients over when the host has issued
their kernels, so that the host decides what is fused; the all-reduce waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from perfmodel.studies.tune.model import Fusion, Horovod
from perfmodel.studies.tune.objective.allreduce_times import AllReduceTimes
from perfmodel.studies.tune.objective.evaluator import SAME, Evaluator
from perfmodel.studies.tune.objective.surrogate import StepSurrogate
from perfmodel.training.ddp.options import MIB

CYCLE_S = 1e-3
"""Default of HOROVOD_CYCLE_TIME since 0.21.0 (its release notes: 5 ms became 1 ms); seconds."""
DEFAULT_MB = 128.0
"""Default of HOROVOD_FUSION_THRESHOLD since 0.21.0 (its release notes: 64 MB became 128); MiB."""
THRESHOLDS_MB = (0.0, *(2.0**power for power in range(-2, 11)))
PHASES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""End of the first cycle since backward began, in cycles; equally likely."""

ASSUMPTIONS = (
    f"A cycle takes {CYCLE_S * 1e3:g} ms and begins at any time before backward: steps are means.",
    (
        "Agreeing on what is ready takes no time beside the cycle; copies into and out of a fused "
        "buffer run beside compute; no buffers are broadcast."
    ),
    "Steps under Horovod were worked out bucket by bucket, and not simulated.",
)


def tune_horovod(evaluator: Evaluator) -> Horovod:
    """Return the best fusion threshold of a job, and the step by threshold."""
    surrogate = strip_buckets(evaluator.surrogate)
    curve = tuple(
        evaluate_threshold(evaluator, surrogate, threshold) for threshold in THRESHOLDS_MB
    )
    default = next(fusion for fusion in curve if fusion.threshold_mb == DEFAULT_MB)
    least_s = min(fusion.step_time_s for fusion in curve)
    quickest = [fusion for fusion in curve if fusion.step_time_s <= least_s * (1 + SAME)]
    nearest = min(quickest, key=lambda fusion: abs(fusion.threshold_mb - DEFAULT_MB))
    return Horovod(CYCLE_S, default, nearest, curve, ASSUMPTIONS)


def strip_buckets(surrogate: StepSurrogate) -> StepSurrogate:
    """Return a step without the copies of DDP's buckets and its broadcast of buffers."""
    total, ready = 0.0, []
    for at, in_s in zip(surrogate.ready_s, surrogate.in_s, strict=True):
        total += in_s
        ready.append(at - total)
    return replace(
        surrogate,
        before_s=surrogate.forward_s,
        ready_s=tuple(ready),
        backward_s=surrogate.backward_s - total,
        out_s=(0.0,) * len(ready),
    )


def evaluate_threshold(
    evaluator: Evaluator, surrogate: StepSurrogate, threshold_mb: float
) -> Fusion:
    """Return the step with one threshold, as a mean over the phases of cycles."""
    outcomes = []
    for phase in PHASES:
        fused = fuse_groups(surrogate, int(threshold_mb * MIB), phase * CYCLE_S)
        outcomes.append((*_step(surrogate, evaluator.allreduce, fused), len(fused)))
    steps, waits, counts = zip(*outcomes, strict=True)
    return Fusion(threshold_mb, fmean(steps), fmean(waits), round(fmean(counts)))


def fuse_groups(surrogate: StepSurrogate, threshold: int, first_s: float) -> list[list[int]]:
    """Return which gradients are reduced together, by position.

    `threshold`: bytes of a buffer; 0 fuses nothing.
    `first_s`: when the first cycle ends, since the host began to issue backward; seconds.
    """
    handed = surrogate.host_s if any(surrogate.host_s) else surrogate.ready_s
    groups: list[list[int]] = []
    waiting, at = list(range(len(handed))), first_s
    while waiting:
        handed_over = [position for position in waiting if handed[position] <= at]
        groups += _fill_buffers(surrogate, handed_over, threshold)
        waiting = waiting[len(handed_over) :]
        at += CYCLE_S
    return groups


def _fill_buffers(
    surrogate: StepSurrogate, positions: Sequence[int], threshold: int
) -> list[list[int]]:
    """Fill buffers: each with the first unfused gradient, then with all that still fit."""
    nbytes, dtypes = surrogate.gradients.nbytes, surrogate.gradients.dtypes
    unfused, groups = list(positions), []
    while unfused:
        group, size = [unfused[0]], nbytes[unfused[0]]
        for position in unfused[1:]:
            if size + nbytes[position] <= threshold and dtypes[position] == dtypes[group[0]]:
                group.append(position)
                size += nbytes[position]
        groups.append(group)
        unfused = [position for position in unfused if position not in set(group)]
    return groups


def _step(
    surrogate: StepSurrogate, allreduce: AllReduceTimes, groups: Sequence[Sequence[int]]
) -> tuple[float, float]:
    """Return step time and exposed communication; seconds."""
    now = ended = done_s = 0.0
    latest = 0
    for group in groups:
        latest = max(latest, *group)
        now = surrogate.after(now, surrogate.ready_s[latest] - done_s, ended)
        done_s = surrogate.ready_s[latest]
        copies_s = (
            2 * sum(surrogate.in_s[position] for position in group) if len(group) > 1 else 0.0
        )
        size = sum(surrogate.gradients.nbytes[position] for position in group)
        ended = max(now, ended) + copies_s + allreduce.time_s(size)
    now = surrogate.after(now, surrogate.backward_s - done_s, ended)
    end_s = max(now, ended)
    return surrogate.before_s + end_s + surrogate.optimizer_s, end_s - now
