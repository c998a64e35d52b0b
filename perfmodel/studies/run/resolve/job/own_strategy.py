"""A function of the user's as a strategy: it is called for each size, and its plan is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, get_args

from perfmodel.errors import InputError, ScheduleError, allowed_names, describe_type
from perfmodel.own_functions import call_function, check_function, name_of
from perfmodel.scenario import Scenario
from perfmodel.scenario.sections.strategies.ddp import DdpStrategy
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.plan.step_plan import Collective, Compute, Op, StepPlan, Task
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
    faults = [*_type_faults(plan)] or [*_rank_faults(plan, request.ranks)]
    if faults:
        raise ScheduleError(f"strategy: {name} returned a plan with\n" + "\n".join(faults))
    check_plan(plan)
    return plan


def _type_faults(plan: StepPlan) -> Iterator[str]:
    if isinstance(plan.samples, bool) or not isinstance(plan.samples, int):
        yield f"  samples: found {plan.samples!r}; allowed: a whole number"
    if not plan.tasks:
        yield "  tasks: found none; allowed: at least one"
    for index, task in enumerate(plan.tasks):
        if not isinstance(task, Task):
            yield f"  task {index}: found {describe_type(task)}; allowed: a perfmodel.Task"
            continue
        where = f"  task {index} {task.name!r}"
        if not all(isinstance(each, int) for each in (*task.after, *task.after_previous)):
            yield f"{where}: found after {task.after!r}; allowed: numbers of tasks"
        yield from (f"{where}: {fault}" for fault in _work_faults(task.work))


def _work_faults(work: object) -> Iterator[str]:
    if isinstance(work, Compute):
        if not isinstance(work.duration_s, int | float):
            yield f"found duration_s {work.duration_s!r}; allowed: seconds"
    elif isinstance(work, Collective):
        if not isinstance(work.nbytes, int):
            yield f"found nbytes {work.nbytes!r}; allowed: a whole number"
        if work.op not in get_args(Op):
            yield f"found op {work.op!r}; allowed: {allowed_names(get_args(Op), str(work.op))}"
    else:
        yield f"found work {describe_type(work)}; allowed: a perfmodel.Compute or Collective"


def _rank_faults(plan: StepPlan, ranks: int) -> Iterator[str]:
    planned = {rank for each in plan.classes for rank in each.ranks}
    if planned != set(range(ranks)):
        missing, extra = sorted(set(range(ranks)) - planned), sorted(planned - set(range(ranks)))
        without = f", without {missing[:4]}" if missing else ""
        beyond = f", with {extra[:4]}" if extra else ""
        yield f"  classes: found {len(planned)} ranks{without}{beyond}; allowed: 0 to {ranks - 1}"
