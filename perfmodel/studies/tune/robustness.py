"""Step and regret of every uniform cap on the likely machine, and on the quick and slow one.

From these: the caps as good as the best on the likely machine, and the cap with the least largest
regret.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from perfmodel.library.corrections import BANDS, CollectiveContext, Corrections
from perfmodel.library.machine import Machine
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.tune.allreduce_times import TimeOf
from perfmodel.studies.tune.caps import Groups, UniformPartition, assign_buckets, number
from perfmodel.studies.tune.evaluator import Evaluator
from perfmodel.studies.tune.model import CurvePoint, Plateau, RobustCap
from perfmodel.studies.tune.surrogate import STEP_TOLERANCE

WITHIN = 0.01
"""Regret up to which a cap counts as good as the best."""
SAMPLES = 5
"""Sizes at which another machine is compared with the likely one."""
TAIL_SHARE = 0.1
"""Share of the draws below the quick and above the slow machine: 80 % lie between."""

TINY_S = 1e-30

Ratio = Callable[[int], float]
"""Time of an all-reduce of some bytes on another machine over that on the likely one."""

CapCost = tuple[float, float, bool]
"""Step and exposed communication in seconds, and whether they were simulated."""


def build_curve(
    evaluator: Evaluator, partitions: Sequence[UniformPartition], ratios: Sequence[Ratio]
) -> tuple[tuple[CurvePoint, ...], tuple[float, ...]]:
    """Return a point for every uniform cap, and the regrets of PyTorch's default.

    `ratios`: of `compare_machines`.
    """
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
    default_s = evaluator.simulate(evaluator.default_options()).step_time_s
    caps = [RatedPartition(p.groups, cost[0]) for p, cost in zip(partitions, costs, strict=True)]
    default_regrets, *cap_regrets = compute_regrets(
        evaluator, RatedPartition(default, default_s), caps, ratios
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
    estimated = [p.groups for p in partitions if p.groups not in evaluator.outcomes]
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


def compare_machines(evaluator: Evaluator) -> tuple[Ratio, ...]:
    """Return the time ratios of all-reduces on the quick machine, and on the slow one."""
    others = evaluator.prepared.alternatives
    if not others:
        return ()
    span = np.geomspace(min(evaluator.gradients.nbytes), evaluator.gradients.sums[-1], SAMPLES)
    sizes = [int(size) for size in np.unique(span.astype(int))]
    if len(others) > 2:
        middle = sizes[len(sizes) // 2]
        ranked = sorted(
            others, key=lambda other: _time_s(evaluator, UncontendedTimer(other), middle)
        )
        place = int(TAIL_SHARE * len(ranked))
        others = (ranked[place], ranked[-1 - place])
    return tuple(_compare_machine(evaluator, other, sizes) for other in others)


def _compare_machine(evaluator: Evaluator, machine: Machine, sizes: Sequence[int]) -> Ratio:
    """Compare a machine with the likely one: by its residual alone, or at some sizes."""
    if _differs_by_residual(evaluator, machine):
        residual = smooth_residual(machine).measured.residual
        ranks, hosts = evaluator.prepared.size.gpus, evaluator.prepared.size.nodes

        def factor(nbytes: int) -> float:
            wire = evaluator.allreduce.wire_bytes(nbytes)
            situation = CollectiveContext("all_reduce", wire, ranks, hosts, "", "")
            return 1.0 if residual is None else residual(situation)

        return cache(factor)
    timer = UncontendedTimer(machine)
    likely = evaluator.allreduce.timer
    ratios = [
        _time_s(evaluator, timer, n) / max(_time_s(evaluator, likely, n), TINY_S) for n in sizes
    ]
    logs = np.log(sizes)
    return cache(lambda nbytes: float(np.interp(np.log(nbytes), logs, ratios)))


def _differs_by_residual(evaluator: Evaluator, machine: Machine) -> bool:
    likely, corrections = evaluator.prepared.machine, machine.measured
    same_hardware = machine.library is likely.library and machine.topology is likely.topology
    return (
        same_hardware
        and likely.measured == Corrections()
        and corrections == Corrections(residual=corrections.residual)
    )


def smooth_residual(machine: Machine) -> Machine:
    """Return a machine whose residual changes gradually from band to band of sizes.

    Intervals are known by band (`perfmodel.library.corrections`). A machine that is slow in
    all bands does not reduce 65 MiB quicker than 63 MiB, as the jump between two bands says, and no
    cap should be recommended because of such a jump.
    """
    residual = machine.measured.residual
    if residual is None:
        return machine
    low, high = (end for _, end in BANDS[:2])
    middle = (low * high) ** 0.5
    middles = (middle * low / high, middle, middle * high / low)
    logs = np.log(middles)

    def factor(situation: CollectiveContext) -> float:
        residuals = [np.log(residual(replace(situation, nbytes=int(n)))) for n in middles]
        return float(np.exp(np.interp(np.log(max(1, situation.nbytes)), logs, residuals)))

    return machine.with_corrections(machine.topology, Corrections(residual=factor))


def _time_s(evaluator: Evaluator, timer: UncontendedTimer, nbytes: int) -> float:
    return timer.best(
        "all_reduce", evaluator.allreduce.wire_bytes(nbytes), evaluator.allreduce.group
    )[1]


@dataclass(frozen=True, slots=True)
class RatedPartition:
    """Some buckets, and their step on the likely machine; seconds."""

    groups: Groups
    step_s: float


def compute_regrets(
    evaluator: Evaluator,
    default: RatedPartition,
    caps: Sequence[RatedPartition],
    ratios: Sequence[Ratio],
) -> list[tuple[float, ...]]:
    """Return by machine how much longer a step is than with the best uniform cap, relatively.

    `default`: PyTorch's default buckets, which may be better than every uniform cap.
    One row for the default, then one per cap: on the likely machine, the quick and the slow one.
    """
    rows = steps_on_machines(evaluator, (default, *caps), ratios)
    best_s = [min(of_machine) for of_machine in zip(*rows[1:], strict=True)]
    return [
        tuple(step_s / least_s - 1.0 for step_s, least_s in zip(row, best_s, strict=True))
        for row in rows
    ]


def steps_on_machines(
    evaluator: Evaluator, partitions: Sequence[RatedPartition], ratios: Sequence[Ratio]
) -> list[tuple[float, ...]]:
    """Return the steps of each partition on the likely machine and on others; seconds.

    `ratios`: of the other machines. What a step differs by on them is that of the surrogate.
    """
    likely_s = [evaluator.predict_step_s(rated.groups) for rated in partitions] if ratios else []
    machines_s = [[rated.step_s for rated in partitions]]
    for ratio in ratios:
        time_of = _scale_times(evaluator, ratio)
        machines_s.append(
            [
                rated.step_s
                + evaluator.surrogate.step_s(evaluator.buckets(rated.groups), time_of)
                - likely
                for rated, likely in zip(partitions, likely_s, strict=True)
            ]
        )
    return list(zip(*machines_s, strict=True))


def _scale_times(evaluator: Evaluator, ratio: Ratio) -> TimeOf:
    return cache(lambda nbytes: evaluator.allreduce.time_s(nbytes) * ratio(nbytes))


def find_plateau(curve: Sequence[CurvePoint]) -> Plateau:
    """Return the caps whose regret on the likely machine is at most `WITHIN` above the least."""
    return Plateau(WITHIN, _merge_spans(curve, [point.regrets[0] for point in curve]))


def find_robust_cap(curve: Sequence[CurvePoint]) -> RobustCap | None:
    """Return the cap with the least largest regret; None if no interval is known."""
    if len(curve[0].regrets) < 2:
        return None
    worst = [point.worst_regret for point in curve]
    least = min(worst)
    candidates = [point for point in curve if point.worst_regret <= least + STEP_TOLERANCE]
    best = min(candidates, key=lambda point: (len(number(point.bucket_cap_mb)), -point.room))
    return RobustCap(WITHIN, _merge_spans(curve, worst), best.bucket_cap_mb, best.worst_regret)


def _merge_spans(
    curve: Sequence[CurvePoint], regrets_of: Sequence[float]
) -> tuple[tuple[float, float], ...]:
    limit = min(regrets_of) + WITHIN
    spans: list[tuple[float, float]] = []
    for point, regret in zip(curve, regrets_of, strict=True):
        if regret > limit:
            continue
        if spans and spans[-1][1] == point.low_mb:
            spans[-1] = (spans[-1][0], point.high_mb)
        else:
            spans.append((point.low_mb, point.high_mb))
    return tuple(spans)
