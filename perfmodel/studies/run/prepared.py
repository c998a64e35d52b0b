"""One size of a scenario, prepared to simulate many steps with different options.

All that does not depend on the options is computed once: the machine, the times of layers, the
disturbances, and the time of each collective of a size that occurred before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from perfmodel.library.machine import Machine
from perfmodel.scenario import ClusterSize, Scenario
from perfmodel.simulate.engine.outcome import Run
from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
from perfmodel.studies.run.resolve.training_job import TrainingJob
from perfmodel.studies.run.steps.output_analysis import mean_interval_s
from perfmodel.studies.run.steps.sized_job import (
    ReportedRun,
    SizedJob,
    locate_errors,
    simulate_first_step,
    simulate_reported,
    size_job,
)
from perfmodel.studies.run.steps.step_parts import mean_parts
from perfmodel.training.memory_use import StepOptions
from perfmodel.training.plan.step_plan import StepPlan

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """One settled step, or the means of the counted steps under disturbances.

    `step_time_s`, `exposed_comm_s`, `comm_s`, `compute_s`: as in
        `perfmodel.studies.run.result.model.SizeResult`.
    `run`: with the warm-up before.
    `steps`, `counted`: steps in all, and how many of them (the last ones) count.
    """

    step_time_s: float
    exposed_comm_s: float
    comm_s: float
    compute_s: float
    run: Run
    plan: StepPlan
    steps: int
    counted: int

    @property
    def noise_s(self) -> float:
        """Half width of the 80 % interval of the mean step; 0 with one step; seconds."""
        if self.counted < 2:
            return 0.0
        low, high = mean_interval_s(self.run.step_times_s[-self.counted :])
        return (high - low) / 2


@dataclass(frozen=True, slots=True)
class PreparedSize:
    """One size of a scenario (see `prepare`).

    `sized`: the job at this size, with its disturbances.
    `alternatives`: alternatives of the machine: the fast and the slow end of an interval, or draws
        from a profile; empty where no interval is known.
    """

    sized: SizedJob
    alternatives: tuple[Machine, ...]
    _on_alternatives: dict[int, tuple[Machine, SizedJob]] = field(default_factory=dict, repr=False)

    @property
    def job(self) -> TrainingJob:
        """What is trained and how."""
        return self.sized.job

    @property
    def size(self) -> ClusterSize:
        """The size of the cluster."""
        return self.sized.size

    @property
    def machine(self) -> Machine:
        """The machine with its most likely numbers."""
        return self.sized.ensemble.likely

    def with_options(self, options: StepOptions) -> PreparedSize:
        """Return the same size with other options; times of collectives are shared."""
        return replace(self, sized=self.sized.with_options(options))

    def step(
        self, options: StepOptions | None = None, machine: Machine | None = None
    ) -> StepEstimate:
        """Simulate the job with some options of its strategy.

        `options`: by default the scenario's. The batch stays the scenario's.
        `machine`: one of `alternatives` instead of the likely one.
        The estimate equals the result of `run_scenario` with these options to the bit.

        Raises `InputError`: names file, line and field of the scenario.
        """
        sized = self.sized if machine is None else self._size_on(machine)
        sized = sized if options is None else sized.with_options(options)
        with locate_errors(sized):
            return _summarise(simulate_reported(sized))

    def first_step_s(self, options: StepOptions | None = None) -> float:
        """Simulate the very first step, before DDP rebuilds its buckets; seconds."""
        sized = self.sized if options is None else self.sized.with_options(options)
        with locate_errors(sized):
            return simulate_first_step(sized).step_time_s

    def _size_on(self, machine: Machine) -> SizedJob:
        if id(machine) not in self._on_alternatives:
            self._on_alternatives[id(machine)] = (machine, self.sized.on_machine(machine))
        return self._on_alternatives[id(machine)][1]


def prepare(
    scenario: Scenario,
    *,
    profile: Profile | None = None,
    size: ClusterSize | None = None,
    fidelity: str | None = None,
) -> PreparedSize:
    """Resolve a scenario at one size.

    `profile`: measured numbers instead of those of datasheets.
    `size`: by default the scenario's main size, the last of its scaling curve.
    `fidelity`: instead of the scenario's.
    Raises `InputError`: a name that does not resolve or a size that does not fit; names file, line
        and field.
    """
    inputs = resolve_scenario(scenario, profile, fidelity)
    sized = size_job(inputs, size or inputs.sizes[-1])
    return PreparedSize(sized, sized.ensemble.alternatives)


def _summarise(reported: ReportedRun) -> StepEstimate:
    step_s = sum(reported.steps_s) / reported.counted
    parts = mean_parts(reported.plan, reported.run, reported.counted_steps, step_s)
    return StepEstimate(
        step_time_s=step_s,
        exposed_comm_s=parts.exposed_s,
        comm_s=parts.comm_s,
        compute_s=parts.compute_s,
        run=reported.run,
        plan=reported.plan,
        steps=reported.steps,
        counted=reported.counted,
    )
