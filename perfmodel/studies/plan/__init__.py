"""Which cluster to buy or rent: time to train, cost, energy, goodput, and whether upgrades pay."""

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
