"""The curve: what each cap costs, simulated or by the recurrence."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.studies.tune.caps import Uniform, groups_of
from perfmodel.studies.tune.choice.robustness import Rated, regrets
from perfmodel.studies.tune.model import CurvePoint
from perfmodel.studies.tune.objective.evaluator import Evaluator

Costs = tuple[float, float, bool]
"""Step and exposed communication in seconds, and whether they were simulated."""


def curve_of(
    bench: Evaluator, uniforms: Sequence[Uniform]
) -> tuple[tuple[CurvePoint, ...], tuple[float, ...]]:
    """Step time and exposed communication of every cap, and the regrets of PyTorch's default."""
    rows = []
    base_s = _exposed_anyway(bench)
    for one in uniforms:
        tried = bench.tried.get(one.groups)
        if tried is not None:
            rows.append((tried.step_time_s, tried.exposed_comm_s, True))
        else:
            step_s, waited_s = bench.guess_both(one.groups)
            rows.append((step_s, waited_s + base_s, False))
    if bench.reasons:
        rows = _as_nearest(bench, uniforms, rows)
    default = groups_of(bench.workload, bench.default())
    caps = [Rated(one.groups, row[0]) for one, row in zip(uniforms, rows, strict=True)]
    usual, *rated = regrets(
        bench, Rated(default, bench.simulate(bench.default()).step_time_s), caps
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
        for one, (step_s, exposed_s, simulated), regret in zip(uniforms, rows, rated, strict=True)
    )
    return curve, usual


def unsure(bench: Evaluator, uniforms: Sequence[Uniform]) -> float:
    """How far off the curve may be where it was not simulated, relatively."""
    left = [one.groups for one in uniforms if one.groups not in bench.tried]
    off = (1.0 - bench.guess(groups, optimism=True) / bench.guess(groups) for groups in left)
    return max(off, default=0.0)


def _as_nearest(bench: Evaluator, uniforms: Sequence[Uniform], rows: list[Costs]) -> list[Costs]:
    """Scale what was not simulated as the cap nearest to it that was."""
    known = [at for at, row in enumerate(rows) if row[2]]
    found = []
    for at, row in enumerate(rows):
        step_s, exposed_s, simulated = row
        if simulated:
            found.append(row)
            continue
        near = min(known, key=lambda other: abs(other - at))
        off = rows[near][0] / bench.guess(uniforms[near].groups)
        found.append((off * step_s, max(0.0, exposed_s + (off - 1.0) * step_s), False))
    return found


def _exposed_anyway(bench: Evaluator) -> float:
    """Exposed communication that is not that of buckets: of buffers, before forward; seconds."""
    groups = groups_of(bench.workload, bench.default())
    waited_s = bench.guess_both(groups)[1]
    return max(0.0, bench.simulate(bench.default()).exposed_comm_s - waited_s)
