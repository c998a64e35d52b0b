"""`plan_scenario`: time, cost and energy to train on candidate clusters, and their upgrades."""

from perfmodel.studies.plan.model import PlanResult
from perfmodel.studies.plan.run import plan_scenario

__all__ = [
    "PlanResult",
    "plan_scenario",
]
