"""`plan_scenario`: time, cost and energy to train on candidate clusters, and their upgrades."""

from perfmodel.studies.plan.model import (
    Answers,
    Cost,
    PlanOption,
    PlanResult,
    Step,
    Training,
    UpgradeOutcome,
)
from perfmodel.studies.plan.run import plan_scenario

__all__ = [
    "Answers",
    "Cost",
    "PlanOption",
    "PlanResult",
    "Step",
    "Training",
    "UpgradeOutcome",
    "plan_scenario",
]
