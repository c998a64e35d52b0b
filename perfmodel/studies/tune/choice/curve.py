"""Step time by cap, from the simulation or from the surrogate."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.studies.tune.caps import UniformPartition, assign_buckets
from perfmodel.studies.tune.choice.robustness import RatedPartition, compute_regrets
from perfmodel.studies.tune.model import CurvePoint
from perfmodel.studies.tune.objective.evaluator import Evaluator

CapCost = tuple[float, float, bool]
"""Step and exposed communication in seconds, and whether they were simulated."""


def build_curve(
    evaluator: Evaluator, partitions: Sequence[UniformPartition]
) -> tuple[tuple[CurvePoint, ...], tuple[float, ...]]:
    """Return a point for every uniform cap, and the regrets of PyTorch's default."""
    costs = []
    base_s = _exposed_outside_buckets(evaluator)
    for partition in partitions:
        outcome = evaluator.outcomes.get(partition.groups)
        if outcome is not None:
            costs.append((outcome.step_time_s, outcome.exposed_comm_s, True))
        else:
            step_s, waited_s = evaluator.predict(partition.groups)
            costs.append((step_s, waited_s + base_s, False))
    if evaluator.reasons:
        costs = _scale_as_nearest(evaluator, partitions, costs)
    default = assign_buckets(evaluator.workload, evaluator.default_options())
    caps = [
        RatedPartition(partition.groups, cost[0])
        for partition, cost in zip(partitions, costs, strict=True)
    ]
    default_regrets, *cap_regrets = compute_regrets(
        evaluator,
        RatedPartition(default, evaluator.simulate(evaluator.default_options()).step_time_s),
        caps,
    )
    curve = tuple(
        CurvePoint(
            bucket_cap_mb=partition.cap_mb,
            low_mb=partition.window.low_mb,
            high_mb=partition.window.high_mb,
            buckets=len(partition.groups),
            step_time_s=step_s,
            exposed_comm_s=exposed_s,
            simulated=simulated,
            regrets=regret,
        )
        for partition, (step_s, exposed_s, simulated), regret in zip(
            partitions, costs, cap_regrets, strict=True
        )
    )
    return curve, default_regrets


def curve_error(evaluator: Evaluator, partitions: Sequence[UniformPartition]) -> float:
    """Return the largest relative error that the curve may have where it was not simulated."""
    estimated = [
        partition.groups for partition in partitions if partition.groups not in evaluator.outcomes
    ]
    errors = (
        1.0 - evaluator.predict_step_s(groups, optimistic=True) / evaluator.predict_step_s(groups)
        for groups in estimated
    )
    return max(errors, default=0.0)


def _scale_as_nearest(
    evaluator: Evaluator, partitions: Sequence[UniformPartition], costs: list[CapCost]
) -> list[CapCost]:
    """Scale predictions by the error of the surrogate at the nearest simulated cap."""
    simulated_at = [at for at, cost in enumerate(costs) if cost[2]]
    scaled = []
    for at, cost in enumerate(costs):
        step_s, exposed_s, simulated = cost
        if simulated:
            scaled.append(cost)
            continue
        nearest = min(simulated_at, key=lambda place: abs(place - at))
        factor = costs[nearest][0] / evaluator.predict_step_s(partitions[nearest].groups)
        scaled.append((factor * step_s, max(0.0, exposed_s + (factor - 1.0) * step_s), False))
    return scaled


def _exposed_outside_buckets(evaluator: Evaluator) -> float:
    """Exposed communication of buffers before forward, which buckets do not change; seconds."""
    groups = assign_buckets(evaluator.workload, evaluator.default_options())
    waited_s = evaluator.predict(groups)[1]
    return max(0.0, evaluator.simulate(evaluator.default_options()).exposed_comm_s - waited_s)
