"""Steps with other durations or on other machines: timed again where that is near enough.

Most of what is asked about a step is the step with other numbers: ends of its interval, parts of
the machine that are no limit. One pass through the run that was simulated answers all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.collectives.timing.compiled_loops import Effort
from perfmodel.simulate.engine.engine import BY_SENDS, uses_sockets
from perfmodel.simulate.engine.retiming import (
    Durations,
    Retimed,
    RunOrder,
    can_be_retimed,
    have_same_order,
    works_s,
)
from perfmodel.simulate.engine.task_graph import calls_of, participants_of
from perfmodel.simulate.engine.uncontended_run import are_crowded, times_alone_s
from perfmodel.simulate.network import CollectiveCall
from perfmodel.studies.run.resolve.disturbance import Disturbance
from perfmodel.studies.run.steps.output_analysis import SETTLED_STEPS
from perfmodel.studies.run.steps.simulate_step import (
    ReportedRun,
    SimulationSetup,
    simulate_steps,
    split_classes,
    timer_of,
)
from perfmodel.training.plan.step_plan import StepPlan

MOST_MET = 0.1
"""Share of their time by which collectives may have delayed each other where ends of intervals are
timed again: with 4 % these are off by up to 6e-4 of the step, with 13 % by up to 3e-3."""
TASKS_WORTH_A_CHANGE = 64
"""Tasks of a run that take as long as one change of rates, about a millisecond, where the run is
timed again some fifteen times: compiled loops are loaded where they pay."""
ROUNDING = 1e-9
"""Share of a time up to which it is the same."""


class Step(NamedTuple):
    """A step, and whether a simulation would give the same."""

    step_s: float
    is_exact: bool


@dataclass(frozen=True)
class RetimedSteps:
    """A simulated run, and what its steps take with other numbers.

    `base`: at fidelity "flow"; `disturbances`: its own.
    """

    base: ReportedRun
    disturbances: Sequence[Disturbance]

    @cached_property
    def met(self) -> float:
        """Share of its time by which communication was delayed by other communication.

        Infinite where the run cannot be timed again.
        """
        setup, plan = self.base.setup, self.base.plan
        varies = any(each.varies or each.traffic for each in self.disturbances)
        by_messages = setup.fidelity in BY_SENDS or uses_sockets(setup.machine, setup.fidelity)
        if varies or by_messages or not can_be_retimed(plan):
            return np.inf
        first, took_s = self._order.collectives()
        delayed_s, whole_s = np.abs(took_s - self._alone_s[first]).sum(), took_s.sum()
        return float(delayed_s / whole_s) if whole_s else 0.0

    @property
    def is_met(self) -> bool:
        """Whether some communication was delayed by other communication, or it is not known."""
        return self.met > ROUNDING

    @property
    def first_step_s(self) -> float | None:
        """Return the first step of the run as if it were the only one, if that is sure; seconds.

        It is where delays by the next step's communication do not move its end.
        """
        base_s = self.base.run.step_ends_s[0]
        if not self.is_met or np.isinf(self.met):
            return None if self.is_met else base_s
        usual = self._durations(self.disturbances, self.base.setup, self.base.plan)
        alone = replace(usual, factors=self._order.alone_at_last(self._alone_s))
        whole_s = self._order.retime(usual).step_ends_s[0]
        least_s, most_s = (float(self._order.retime(d, 1).step_ends_s[0]) for d in (alone, usual))
        is_sure = np.allclose((whole_s, least_s), (base_s, most_s), rtol=ROUNDING, atol=0.0)
        return most_s if is_sure else None

    def end_s(self, setup: SimulationSetup) -> float:
        """Return the mean counted step of a setup, simulated where it has to be; seconds.

        That is also where communication meets with these numbers only.
        """
        plan = split_classes(setup, self.disturbances)[0]
        if self.met > MOST_MET or not have_same_order(self.base.plan, plan):
            return self._simulated_s(setup)
        retimed = self._order.retime(self._durations(self.disturbances, setup, plan))
        if not self.is_met and are_crowded(timer_of(setup, self.disturbances), retimed):
            return self._simulated_s(setup)
        return self._counted_s(retimed)

    def _simulated_s(self, setup: SimulationSetup) -> float:
        """Simulate a setup: one step less where all are the same, as its last changes alike."""
        fewer = self.base.steps - 1
        if self.base.counted > 1 or fewer >= SETTLED_STEPS:
            return self.base.simulate_again(self.disturbances, setup)
        return (
            simulate_steps(setup, self.disturbances, fewer).step_time_s
            / self.base.run.step_times_s[fewer - 1]
            * self.base.step_s
        )

    def step_s(self, setup: SimulationSetup, disturbances: Sequence[Disturbance]) -> Step:
        """Return the mean counted step of a setup with the same disturbances on its machine."""
        plan = split_classes(setup, disturbances)[0]
        if np.isinf(self.met) or not have_same_order(self.base.plan, plan):
            return Step(np.nan, is_exact=False)
        retimed = self._order.retime(self._durations(disturbances, setup, plan))
        is_alone = setup.fidelity == "free" or not (
            self.is_met or are_crowded(timer_of(setup, disturbances), retimed)
        )
        return Step(self._counted_s(retimed), is_alone)

    @cached_property
    def _calls(self) -> list[CollectiveCall | None]:
        return calls_of(self.base.plan, participants_of(self.base.plan))

    @cached_property
    def _alone_s(self) -> FloatArray:
        return times_alone_s(self._calls, timer_of(self.base.setup, self.disturbances))

    @cached_property
    def _order(self) -> RunOrder:
        effort = timer_of(self.base.setup, self.disturbances).keep(Effort)
        effort.expect(self.base.steps * len(self.base.plan.tasks) // TASKS_WORTH_A_CHANGE)
        return RunOrder(self.base.plan, self.base.run)

    def _counted_s(self, retimed: Retimed) -> float:
        ends_s = [0.0, *retimed.step_ends_s.tolist()]
        return float((ends_s[-1] - ends_s[-1 - self.base.counted]) / self.base.counted)

    def _durations(
        self, disturbances: Sequence[Disturbance], setup: SimulationSetup, plan: StepPlan
    ) -> Durations:
        factors = np.ones(len(plan.tasks))
        if setup.fidelity == "free":
            factors = np.where(self._alone_s > 0, 0.0, 1.0)
        elif setup.machine is not self.base.setup.machine:
            new_s = times_alone_s(self._calls, timer_of(setup, disturbances))
            np.divide(new_s, self._alone_s, out=factors, where=self._alone_s > 0)
        usual = setup.machine.topology.gpu.overlap_slowdown
        return Durations(
            works_s(plan), factors, usual if setup.slowdown is None else setup.slowdown
        )
