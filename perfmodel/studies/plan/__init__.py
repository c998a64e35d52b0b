"""Which cluster to buy or rent: time to train, cost, energy, goodput, and whether upgrades pay."""

from perfmodel.studies.plan.model import Answers, Bill, Option, Outcome, Plan, Step, Training
from perfmodel.studies.plan.run import plan_scenario

__all__ = [
    "Answers",
    "Bill",
    "Option",
    "Outcome",
    "Plan",
    "Step",
    "Training",
    "plan_scenario",
]
