"""One size of a scenario, ready to be stepped many times with other options of DDP.

What does not depend on the options stands still between steps: the machine, the times of layers,
what happens around the job, and the time of every collective of a size that has been met before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from perfmodel.calibrate import Profile
from perfmodel.library.machine import Machine
from perfmodel.scenario import ClusterSize, Scenario, sizes
from perfmodel.simulate.engine.run import Run
from perfmodel.studies.run.resolve.job import TrainingJob
from perfmodel.studies.run.resolve.machine import machine
from perfmodel.studies.run.resolve.placement import hosts_needed, site
from perfmodel.studies.run.run import known_fidelity, measured_machine, named_profile, resolved
from perfmodel.studies.run.steps.metrics import mean, parts_of_steps
from perfmodel.studies.run.steps.one_size import (
    Counted,
    SizedJob,
    counted_run,
    first_step,
    naming_fields,
)
from perfmodel.topology.templates.build import build_topology
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.plan import StepPlan


@dataclass(frozen=True, slots=True)
class Stepped:
    """One settled step, or the means of the steps that are counted where something happens.

    Parameters
    ----------
    step_time_s, exposed_comm_s, comm_s, compute_s : float
        As `perfmodel.studies.run.result.SizeResult` has them.
    run : Run
        With the steps before, until the pipeline has filled.
    plan : StepPlan
    steps, counted : int
        Steps in all, and how many of them (the last ones) count.
    """

    step_time_s: float
    exposed_comm_s: float
    comm_s: float
    compute_s: float
    run: Run
    plan: StepPlan
    steps: int
    counted: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """One size of a scenario (see `prepare`).

    Parameters
    ----------
    sized : SizedJob
        The job at this size, with what happens around it.
    others : tuple of Machine
        Like machines that measurements allow: the quick and the slow end of an interval, or draws
        from a profile; empty where no spread is known.
    """

    sized: SizedJob
    others: tuple[Machine, ...]
    _elsewhere: dict[int, tuple[Machine, SizedJob]] = field(default_factory=dict, repr=False)

    @property
    def job(self) -> TrainingJob:
        """What is trained and how."""
        return self.sized.job

    @property
    def size(self) -> ClusterSize:
        """How large the cluster is."""
        return self.sized.size

    @property
    def machine(self) -> Machine:
        """The machine with its most likely numbers."""
        return self.sized.measured.likely

    def with_options(self, options: DdpOptions) -> Prepared:
        """Return the same with other options of DDP; what has been worked out is shared."""
        return replace(self, sized=self.sized.with_options(options))

    def step(self, options: DdpOptions | None = None, machine: Machine | None = None) -> Stepped:
        """Simulate the job with some options of DDP.

        Parameters
        ----------
        options : DdpOptions, optional
            Default: the scenario's. The batch stays the scenario's.
        machine : Machine, optional
            One of `others` instead of the likely one.

        Returns
        -------
        Stepped
            To the bit what `run_scenario` says of a scenario with these options.

        Raises
        ------
        InputError
            Names file, line and field of the scenario.
        """
        here = self.sized if machine is None else self._there(machine)
        here = here if options is None else here.with_options(options)
        with naming_fields(here):
            return _stepped(counted_run(here))

    def first_step_s(self, options: DdpOptions | None = None) -> float:
        """Simulate the very first step, before DDP rebuilds its buckets; seconds."""
        here = self.sized if options is None else self.sized.with_options(options)
        with naming_fields(here):
            return first_step(here).step_time_s

    def _there(self, machine: Machine) -> SizedJob:
        if id(machine) not in self._elsewhere:
            self._elsewhere[id(machine)] = (machine, self.sized.on_machine(machine))
        return self._elsewhere[id(machine)][1]


def prepare(
    scenario: Scenario,
    *,
    profile: Profile | None = None,
    size: ClusterSize | None = None,
    fidelity: str | None = None,
) -> Prepared:
    """Resolve a scenario at one size.

    Parameters
    ----------
    scenario : Scenario
    profile : Profile, optional
        MachineEnsemble numbers instead of datasheets'.
    size : ClusterSize, optional
        Default: the size that the scenario asks about.
    fidelity : {"flow", "message"}, optional
        Instead of the scenario's.

    Raises
    ------
    InputError
        A name that does not resolve or a size that does not fit; names file, line and field.
    """
    chosen = known_fidelity(fidelity or scenario.fidelity)
    if profile is None and scenario.profile is not None:
        profile = named_profile(scenario, scenario.profile)
    node, workload, beside = resolved(scenario)
    asked = sizes(scenario, len(build_topology(node).ranks))[-1]
    size = size or asked
    plain = machine(scenario, node, size, hosts_needed(scenario, size))
    measured = measured_machine(scenario, plain, profile, size)
    here = measured.likely
    job = TrainingJob(scenario, workload, here.topology.gpu, here.library)
    where = site(scenario, size)
    sized = SizedJob(job, measured, size, where, beside, chosen, size == asked)
    return Prepared(sized, measured.drawn or measured.bounds)


def _stepped(seen: Counted) -> Stepped:
    parts = parts_of_steps(seen.plan, seen.run, range(seen.steps - seen.counted, seen.steps))
    return Stepped(
        step_time_s=sum(seen.run.step_times_s[-seen.counted :]) / seen.counted,
        exposed_comm_s=mean([part.exposed_s for part in parts]),
        comm_s=mean([part.comm_s for part in parts]),
        compute_s=mean([part.compute_s for part in parts]),
        run=seen.run,
        plan=seen.plan,
        steps=seen.steps,
        counted=seen.counted,
    )
