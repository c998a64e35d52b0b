"""Lists of caps that gradients of several dtypes share: local search over a list, cap by cap.

The j-th cap closes the j-th bucket of each dtype, with the first gradient that brings it to the
cap. So only caps that are sums of gradients from the start of one of these buckets differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from perfmodel.scenario import ClusterSize, Scenario, change_scenario
from perfmodel.scenario.strategies.ddp import DdpStrategy
from perfmodel.scenario.strategies.fusion import HorovodStrategy
from perfmodel.studies.run.prepared import PreparedSize, prepare
from perfmodel.studies.tune.caps import (
    Caps,
    Groups,
    Window,
    as_bytes,
    assign_buckets,
    round_cap_mb,
    with_caps,
)
from perfmodel.studies.tune.evaluator import Evaluator
from perfmodel.studies.tune.model import STEP_ROUNDING, Fusion, Horovod
from perfmodel.training.ddp.options import MIB
from perfmodel.training.plan.step_plan import Collective
from perfmodel.training.strategies import STRATEGIES

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

Bytes = tuple[int, ...]

EFFORT = 1500
"""Lists that the surrogate rates."""
SHIFTS = (-3, -2, -1, 1, 2, 3)
FINALISTS = 12
"""Lists to be simulated."""


def search_shared_lists(evaluator: Evaluator, starts: Sequence[Caps]) -> list[Caps]:
    """Return lists of caps, MiB, with the shortest steps by the surrogate, the best first.

    `evaluator`: of gradients of several dtypes.
    `starts`: lists to start from; MiB.
    """
    queues = _fill_queues(evaluator)
    rated: dict[Groups, tuple[float, Bytes]] = {}
    for start in starts:
        caps = _normalise(queues, [int(cap) for cap in as_bytes(start)])
        best_s = _rate_list(evaluator, caps, rated)
        improved = True
        while improved and len(rated) < EFFORT:
            candidates = [
                (_rate_list(evaluator, candidate, rated), candidate)
                for candidate in _vary(queues, caps)
            ]
            nearest_s, nearest = min(candidates, default=(best_s, caps))
            improved = nearest_s < best_s
            if improved:
                best_s, caps = nearest_s, nearest
    ranked = sorted(rated.values())[:FINALISTS]
    return [_to_mib(queues, caps) for _, caps in ranked]


def _fill_queues(evaluator: Evaluator) -> list[Bytes]:
    """Sizes of the gradients of each dtype, in the order in which they fill buckets."""
    gradients = evaluator.gradients
    queues: dict[str, list[int]] = {}
    for dtype, nbytes in zip(gradients.dtypes, gradients.nbytes, strict=True):
        queues.setdefault(dtype, []).append(nbytes)
    step = -1 if gradients.reverse_filled else 1
    return [tuple(sizes[::step]) for sizes in queues.values()]


def _rate_list(
    evaluator: Evaluator, caps: Bytes, rated: dict[Groups, tuple[float, Bytes]]
) -> float:
    groups = assign_buckets(
        evaluator.workload, with_caps(evaluator.options, tuple(map(float, caps)))
    )
    if groups not in rated:
        rated[groups] = evaluator.predict_step_s(groups), caps
    return rated[groups][0]


def _vary(queues: Sequence[Bytes], caps: Bytes) -> Iterator[Bytes]:
    """Yield the lists with one cap removed, replaced or inserted."""
    remaining = list(queues)
    for at, cap in enumerate(caps):
        sums = _sums(remaining)
        current = bisect_left(sums, cap)
        yield _normalise(queues, (*caps[:at], *caps[at + 1 :]))
        for position in {current + shift for shift in SHIFTS} | {len(sums) // 2, len(sums) - 1}:
            if 0 <= position < len(sums) and position != current:
                yield _normalise(queues, (*caps[:at], sums[position], *caps[at + 1 :]))
                yield _normalise(queues, (*caps[:at], sums[position], *caps[at:]))
        remaining = [_close_bucket(queue, cap)[1] for queue in remaining]


def _normalise(queues: Sequence[Bytes], caps: Sequence[int]) -> Bytes:
    """Return the list with one cap per bucket: the last one repeated, unused ones dropped."""
    remaining, normal = list(queues), []
    caps_left = iter(caps)
    cap = 1
    while any(remaining):
        cap = next(caps_left, cap)
        normal.append(cap)
        remaining = [_close_bucket(queue, cap)[1] for queue in remaining]
    return tuple(normal)


def _sums(queues: Sequence[Bytes]) -> list[int]:
    return sorted({nbytes for queue in queues for nbytes in accumulate(queue)})


def _close_bucket(queue: Bytes, cap: int) -> tuple[int, Bytes]:
    """Return how many gradients the bucket that a cap closes has, and those after it."""
    for at, filled in enumerate(accumulate(queue), 1):
        if filled >= cap:
            return at, queue[at:]
    return len(queue), ()


def _to_mib(queues: Sequence[Bytes], caps: Bytes) -> Caps:
    """Write a list in short numbers, each cap within the range that makes the same buckets."""
    remaining, caps_mb = list(queues), []
    for cap in caps:
        sums = _sums(remaining)
        position = bisect_left(sums, cap)
        above = sums[position - 1] if position else 0
        most = sums[position] if position < len(sums) else float(max(cap, MIB))
        caps_mb.append(round_cap_mb(Window(above, most)))
        remaining = [_close_bucket(queue, cap)[1] for queue in remaining]
    while len(caps_mb) > 1 and caps_mb[-1] == caps_mb[-2]:
        caps_mb.pop()  # PyTorch repeats the last one
    return tuple(caps_mb)


# ---------------------------------------------------------------- Horovod's fusion

THRESHOLDS_MB = (0.0, *(2.0**power for power in range(-2, 11)))


def tune_horovod(scenario: Scenario, profile: Profile | None, size: ClusterSize | None) -> Horovod:
    """Return the best fusion threshold of a job, and the step by threshold."""
    changed = change_scenario(scenario, {"strategy": _section(scenario)})
    prepared = prepare(changed, profile=profile, size=size)
    options = prepared.job.options
    assert isinstance(options, HorovodStrategy)
    curve = tuple(_simulate(prepared, options, threshold) for threshold in THRESHOLDS_MB)
    usual_mb = options.fusion_threshold / MIB
    default = next(fusion for fusion in curve if fusion.threshold_mb == usual_mb)
    least_s = min(fusion.step_time_s for fusion in curve)
    quickest = [fusion for fusion in curve if fusion.step_time_s <= least_s * (1 + STEP_ROUNDING)]
    nearest = min(quickest, key=lambda fusion: abs(fusion.threshold_mb - usual_mb))
    assumptions = STRATEGIES["horovod"].assumptions
    return Horovod(options.cycle_time, default, nearest, curve, assumptions)


def _section(scenario: Scenario) -> dict[str, Any]:
    """The same training under Horovod; its compression has fp16 alone."""
    strategy = scenario.strategy
    section: dict[str, Any] = {"kind": "horovod", "accumulate": strategy.accumulate}
    if isinstance(strategy, DdpStrategy) and strategy.hook.kind == "fp16":
        section["compression"] = "fp16"
    return section


def _simulate(prepared: PreparedSize, options: HorovodStrategy, threshold_mb: float) -> Fusion:
    """Simulate the job with one threshold."""
    stepped = prepared.step(options.model_copy(update={"fusion_threshold": threshold_mb * MIB}))
    reductions = sum(isinstance(task.work, Collective) for task in stepped.plan.tasks)
    return Fusion(threshold_mb, stepped.step_time_s, stepped.exposed_comm_s, reductions)
