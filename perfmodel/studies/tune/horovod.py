"""The best threshold of Horovod's tensor fusion for the same job.

The job is simulated as `perfmodel.training.fusion.horovod` plans it, with one threshold after the
other and all else at Horovod's defaults; `perfmodel.studies.tune.settings` tunes the rest as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.scenario import ClusterSize, Scenario, change_scenario
from perfmodel.scenario.strategies.ddp import DdpStrategy
from perfmodel.scenario.strategies.fusion import HorovodStrategy
from perfmodel.studies.run.prepared import PreparedSize, prepare
from perfmodel.studies.tune.model import Fusion, Horovod
from perfmodel.studies.tune.objective.evaluator import SAME
from perfmodel.training.ddp.options import MIB
from perfmodel.training.plan.step_plan import Collective
from perfmodel.training.strategies import STRATEGIES

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

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
    quickest = [fusion for fusion in curve if fusion.step_time_s <= least_s * (1 + SAME)]
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
