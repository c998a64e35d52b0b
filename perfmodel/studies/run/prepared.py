"""One size of a scenario, prepared to simulate many steps with different options.

All that does not depend on the options is computed once: the machine, the times of layers, the
disturbances, and the time of each collective of a size that occurred before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perfmodel.library.machine import Machine
from perfmodel.scenario import ClusterSize, Scenario
from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
from perfmodel.studies.run.resolve.training_job import TrainingJob
from perfmodel.studies.run.steps.simulate_step import ReportedRun
from perfmodel.studies.run.steps.sized_job import (
    SizedJob,
    locate_errors,
    simulate_first_step,
    simulate_reported,
    size_job,
)
from perfmodel.training.memory_use import StepOptions

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile


@dataclass(frozen=True, slots=True)
class PreparedSize:
    """One size of a scenario (see `prepare`).

    `sized`: the job at this size, with its disturbances.
    `alternatives`: alternatives of the machine: the fast and the slow end of an interval, or draws
        from a profile; empty where no interval is known.
    """

    sized: SizedJob
    alternatives: tuple[Machine, ...]
    _on_alternatives: dict[Machine, SizedJob] = field(default_factory=dict, repr=False)

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

    def step(
        self, options: StepOptions | None = None, machine: Machine | None = None
    ) -> ReportedRun:
        """Simulate the job with some options of its strategy.

        `options`: by default the scenario's. The batch stays the scenario's.
        `machine`: one of `alternatives` instead of the likely one.
        The step equals the result of `run_scenario` with these options to the bit.

        Raises `InputError`: names file, line and field of the scenario.
        """
        sized = self.sized
        if machine is not None:
            sized = self._on_alternatives.setdefault(machine, sized.on_machine(machine))
        sized = sized if options is None else sized.with_options(options)
        with locate_errors(sized):
            return simulate_reported(sized)

    def first_step_s(self, options: StepOptions | None = None) -> float:
        """Simulate the very first step, before DDP rebuilds its buckets; seconds."""
        sized = self.sized if options is None else self.sized.with_options(options)
        with locate_errors(sized):
            return simulate_first_step(sized).step_time_s


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
