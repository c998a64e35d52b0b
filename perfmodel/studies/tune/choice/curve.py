"""The curve: what each cap costs, simulated or by the recurrence."""

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
    """Step time and exposed communication of every cap, and the regrets of PyTorch's default."""
    rows = []
    base_s = _exposed_outside_buckets(evaluator)
    for one in partitions:
        outcomes = evaluator.outcomes.get(one.groups)
        if outcomes is not None:
            rows.append((outcomes.step_time_s, outcomes.exposed_comm_s, True))
        else:
            step_s, waited_s = evaluator.predict(one.groups)
            rows.append((step_s, waited_s + base_s, False))
    if evaluator.reasons:
        rows = _scale_as_nearest(evaluator, partitions, rows)
    default = assign_buckets(evaluator.workload, evaluator.default_options())
    caps = [RatedPartition(one.groups, row[0]) for one, row in zip(partitions, rows, strict=True)]
    usual, *rated = compute_regrets(
        evaluator,
        RatedPartition(default, evaluator.simulate(evaluator.default_options()).step_time_s),
        caps,
    )
    curve = tuple(
        CurvePoint(
            bucket_cap_mb=one.cap_mb,
            low_mb=one.window.low_mb,
            high_mb=one.window.high_mb,
            buckets=len(one.groups),
            step_time_s=step_s,
            exposed_comm_s=exposed_s,
            simulated=simulated,
            regrets=regret,
        )
        for one, (step_s, exposed_s, simulated), regret in zip(partitions, rows, rated, strict=True)
    )
    return curve, usual


def curve_error(evaluator: Evaluator, partitions: Sequence[UniformPartition]) -> float:
    """How far off the curve may be where it was not simulated, relatively."""
    left = [one.groups for one in partitions if one.groups not in evaluator.outcomes]
    off = (
        1.0 - evaluator.predict_step_s(groups, optimistic=True) / evaluator.predict_step_s(groups)
        for groups in left
    )
    return max(off, default=0.0)


def _scale_as_nearest(
    evaluator: Evaluator, partitions: Sequence[UniformPartition], rows: list[CapCost]
) -> list[CapCost]:
    """Scale what was not simulated as the cap nearest to it that was."""
    known = [at for at, row in enumerate(rows) if row[2]]
    found = []
    for at, row in enumerate(rows):
        step_s, exposed_s, simulated = row
        if simulated:
            found.append(row)
            continue
        near = min(known, key=lambda other: abs(other - at))
        off = rows[near][0] / evaluator.predict_step_s(partitions[near].groups)
        found.append((off * step_s, max(0.0, exposed_s + (off - 1.0) * step_s), False))
    return found


def _exposed_outside_buckets(evaluator: Evaluator) -> float:
    """Exposed communication that is not that of buckets: of buffers, before forward; seconds."""
    groups = assign_buckets(evaluator.workload, evaluator.default_options())
    waited_s = evaluator.predict(groups)[1]
    return max(0.0, evaluator.simulate(evaluator.default_options()).exposed_comm_s - waited_s)
