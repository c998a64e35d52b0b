"""A function of the user's as a strategy: it is called for each size, and its plan is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from perfmodel.errors import InputError, ScheduleError, describe_type
from perfmodel.own_functions import call_function, check_function, name_of
from perfmodel.scenario import Scenario
from perfmodel.scenario.strategies.ddp import DdpStrategy
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.plan.step_plan import StepPlan
from perfmodel.training.strategy import StepRequest, Strategy

OwnStrategy = Callable[[StepRequest], StepPlan]

A_FUNCTION: Final = "a function of a StepRequest that returns a perfmodel.StepPlan"


@dataclass(frozen=True, slots=True)
class OwnOptions:
    """What is asked of a strategy of the user's: it plans its micro-batches itself."""

    accumulate: int = 1


def make_strategy(function: OwnStrategy) -> Strategy:
    """Return the row of a strategy that a function plans.

    Raises `InputError`: no function, or one that takes other arguments.
    """
    check_function("strategy", function, "(request)", A_FUNCTION)
    name = name_of(function)
    return Strategy(
        name=name,
        options=lambda _: OwnOptions(),
        plan=partial(_plan, function),
        memory=None,
        assumptions=(f"The step is what {name} plans: what that leaves out takes no time.",),
    )


def without_strategy(scenario: Scenario) -> Scenario:
    """Return the scenario without its own strategy.

    Raises `InputError`: the model is split over ranks, which the user's strategy would not know.
    """
    if scenario.parallel.gpus_per_replica > 1 or scenario.parallel.expert > 1:
        allowed = "nothing with a strategy of your own, whose plan has all ranks"
        raise scenario.fault("parallel", "a model that ranks share", allowed)
    return scenario.model_copy(update={"strategy": DdpStrategy()})


def _plan(function: OwnStrategy, request: StepRequest, _: object) -> StepPlan:
    """Plan a step.

    Raises `ScheduleError`: what was expected of the function, and what came.
    """
    try:
        plan = call_function("strategy", function, (request,), "(request)", A_FUNCTION)
    except InputError as error:  # of no field of the scenario
        raise ScheduleError(str(error)) from error.__cause__
    name = name_of(function)
    if not isinstance(plan, StepPlan):
        returned = describe_type(plan)
        raise ScheduleError(f"strategy: {name} returned {returned}; allowed: {A_FUNCTION}")
    check_plan(plan, request.ranks)
    if not plan.tasks:
        raise ScheduleError(f"plan {plan.name!r}: tasks: found none; allowed: at least one")
    return plan
