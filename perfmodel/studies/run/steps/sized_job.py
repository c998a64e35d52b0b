"""A training job at one cluster size, and the runs whose steps are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from perfmodel.arrays import RankGroup
from perfmodel.errors import InputError, SimulationError, TopologyError
from perfmodel.garbage import no_collections
from perfmodel.library.machine import Machine
from perfmodel.memo import once
from perfmodel.scenario import ClusterSize, Scenario, batch_per_gpu
from perfmodel.scenario.model import relocated_errors
from perfmodel.simulate.engine.engine import Fidelity
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.resolve.disturbance import Disturbance, resolve_events
from perfmodel.studies.run.resolve.job_plan import host_memory, plan_loops, plan_step, price_layers
from perfmodel.studies.run.resolve.machine import (
    MachineEnsemble,
    build_ensemble,
    build_machine,
    check_plan_messages,
)
from perfmodel.studies.run.resolve.memory_estimate import estimate_memory
from perfmodel.studies.run.resolve.placement import (
    RankAllocation,
    allocate_ranks,
    count_hosts,
    place_loops,
    place_plan,
    resolve_other_jobs,
)
from perfmodel.studies.run.resolve.resolved_scenario import ResolvedScenario, resolve_scenario
from perfmodel.studies.run.resolve.training_job import TrainingJob, move_to_gpu
from perfmodel.studies.run.resolve.what_if import filter_disturbances, what_if_of
from perfmodel.studies.run.steps.output_analysis import (
    MANY_TASKS,
    SETTLED_STEPS,
    WARM_UP,
    count_needed_steps,
)
from perfmodel.studies.run.steps.retimed_steps import RetimedSteps
from perfmodel.studies.run.steps.simulate_step import (
    ReportedRun,
    SimulationSetup,
    collective_s,
    simulate_steps,
)
from perfmodel.studies.run.usage import Memory
from perfmodel.training.ddp.buckets import Iteration
from perfmodel.training.memory_use import StepOptions
from perfmodel.training.plan.step_plan import (
    Communicator,
    LoopPlan,
    RankClass,
    StepPlan,
    extrapolate,
)
from perfmodel.workload.model import LayerTimes, Workload, scale_times

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

PlanRanks = tuple[tuple[RankClass, ...], tuple[Communicator, ...]]
"""Classes and communicators of a plan."""


@dataclass
class SizedJob:
    """A job at one size, ready to be simulated with any of its disturbances.

    `other_workloads`: models of the other jobs.
    `is_main`: whether this is the scenario's main size: all names in events have to resolve, and
        the cost of each event is simulated.
    `compute`: factor on the times of layers; `host`: on the time to issue a kernel.
    `own`: processes of the user's, as disturbances.
    """

    job: TrainingJob
    ensemble: MachineEnsemble
    size: ClusterSize
    allocation: RankAllocation
    other_workloads: tuple[Workload, ...]
    fidelity: Fidelity
    is_main: bool
    compute: float = 1.0
    host: float = 1.0
    own: tuple[Disturbance, ...] = ()
    batch: int = field(init=False)
    disturbances: tuple[Disturbance, ...] = field(init=False)
    _plans: dict[tuple[Iteration, bool, str | None], StepPlan] = field(
        default_factory=dict, init=False
    )
    _loops: dict[tuple[bool, str | None], LoopPlan] = field(default_factory=dict, init=False)
    _timers: dict[tuple[str, ...], UncontendedTimer] = field(default_factory=dict, init=False)
    _alone: dict[str, UncontendedTimer] = field(default_factory=dict, init=False)
    _times: dict[str | None, LayerTimes] = field(default_factory=dict, init=False)
    _elsewhere: dict[Machine, SizedJob] = field(default_factory=dict, init=False)
    _ranks: dict[PlanRanks, PlanRanks] = field(default_factory=dict, init=False)
    """Those of plans that differ in times only, once: they may name 10,000 ranks."""
    _memory: dict[str, Memory] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.batch = batch_per_gpu(self.job.scenario, self.size.gpus)
        self.disturbances = self.disturbances_on(self.machine)

    @property
    def machine(self) -> Machine:
        """The machine with its most likely numbers."""
        return self.ensemble.likely

    @property
    def steady_disturbances(self) -> tuple[Disturbance, ...]:
        """Disturbances that are the same in each step."""
        return tuple(each for each in self.disturbances if not each.varies)

    @property
    def varies(self) -> bool:
        """Whether some disturbances are not the same in each step."""
        return len(self.steady_disturbances) < len(self.disturbances)

    def disturbances_on(self, machine: Machine) -> tuple[Disturbance, ...]:
        """Return the events and the other jobs as they are on a machine, perhaps with other links.

        Of a degraded link they hold what it has left.
        """
        scenario = self.job.scenario
        events = resolve_events(
            scenario,
            machine.topology,
            self.allocation.own,
            self.size.gpus_per_node,
            strict=self.is_main,
        )
        jobs = resolve_other_jobs(self.job, self.other_workloads, machine, self.allocation)
        return filter_disturbances(what_if_of(scenario), (*events, *jobs, *self.own))

    def moved_disturbances(
        self, machine: Machine, disturbances: Sequence[Disturbance]
    ) -> tuple[Disturbance, ...]:
        """Return some of the disturbances as they are on another machine."""
        origins = {each.origin for each in disturbances}
        there = self.disturbances_on(machine) if origins else ()
        return tuple(each for each in there if each.origin in origins)

    def _changed(self, **attributes: Any) -> SizedJob:
        """Return a copy with other attributes; it shares the caches that are not among them."""
        other = copy(self)
        vars(other).update({"_elsewhere": {}, "_memory": {}} | attributes)
        return other

    def with_options(self, options: StepOptions) -> SizedJob:
        """Return the same job with other options; times of collectives are shared."""
        return self._changed(job=replace(self.job, chosen=options), _plans={})

    def with_scenario(
        self, scenario: Scenario, batch: int, share: Workload | None = None
    ) -> SizedJob:
        """Return the job on the same machine, trained as another scenario has it.

        `batch`: per GPU and micro-batch.
        `share`: of the model, where the scenario splits it in another way.
        """
        job = replace(self.job, scenario=scenario, workload=share or self.job.workload)
        return self._changed(job=job, batch=batch, _plans={}, _times={}, _ranks={})

    def with_own_times(self) -> SizedJob:
        """Return the same job that keeps times of collectives to itself, as long as it lives."""
        return self._changed(_timers={}, _alone={})

    @property
    def compute_spread(self) -> tuple[float, float]:
        """Factors on the times of layers between which eight of ten measured ones lie."""
        return self._layer_times(None).spread

    @property
    def launches(self) -> bool:
        """Whether kernels take time on the host."""
        return self._layer_times(None).launch_s > 0

    def with_compute(self, by: float) -> SizedJob:
        """Return the same job with times of layers `by` times as long; collectives are shared."""
        return self._changed(compute=by, _plans={}, _loops={})

    def with_host(self, by: float) -> SizedJob:
        """Return the same job on hosts that take `by` times as long to issue a kernel."""
        return self._changed(host=by, _plans={}, _loops={})

    def setups_with(
        self, change: Callable[[float], SizedJob], own: float, factors: tuple[float, float]
    ) -> tuple[SimulationSetup, SimulationSetup]:
        """Set up simulations at two factors that `change` takes, planned once for both.

        `own`: the factor of this job.
        """
        low, high = factors
        at_high, at_low = change(high).setup(), change(low).setup()
        if high == own:
            return at_low, at_high

        def plan_low(gpu: str | None) -> StepPlan:
            share = (low - own) / (high - own)
            plan = extrapolate(self.plan_for(gpu), at_high.plan_for(gpu), share)
            return plan or at_low.plan_for(gpu)

        return replace(at_low, plan_for=plan_low), at_high

    def with_spread(self, spread: tuple[float, float]) -> SizedJob:
        """Return the same job with times of layers that are surer, or less sure, than predicted."""
        return self._changed(_times={None: replace(self._layer_times(None), spread=spread)})

    def on_machine(self, machine: Machine) -> SizedJob:
        """Return the same job on the machine with other numbers, at fidelity "flow".

        Its loops are placed with the machine's own times.
        """
        return self._changed(
            ensemble=MachineEnsemble(machine), fidelity="flow", _timers={}, _alone={}, _loops={}
        )

    def plan_for(
        self, gpu: str | None, iteration: Iteration = "steady", launches: bool = True
    ) -> StepPlan:
        """Plan one step on the job's ranks.

        `gpu`: instead of the job's own GPU.
        `launches`: whether launching kernels takes time on the host.
        """
        if not self.job.strategy.first_differs(self.job.options):
            iteration = "steady"
        key = (iteration, launches, gpu)
        if key not in self._plans:
            with no_collections():
                step = plan_step(
                    self._job_on(gpu),
                    self._scaled_times(gpu, launches),
                    self.size.gpus,
                    self.batch,
                    iteration,
                    merge=not self._per_layer,
                    sockets=self.machine.topology.sockets,
                    ranks_per_host=self.size.gpus_per_node,
                    collective_s=partial(collective_s, self.machine, self._replicas, self._alone),
                    memory=host_memory(self.machine),
                )
            plan = place_plan(step, self.allocation.own, self.allocation.server_ranks)
            ranks = plan.classes, plan.communicators
            classes, communicators = self._ranks.setdefault(ranks, ranks)
            plan = replace(plan, classes=classes, communicators=communicators)
            steady = self._plans.get(("steady", launches, gpu))
            # of most strategies the first step is one as all others
            self._plans[key] = steady if steady and steady.tasks == plan.tasks else plan
        return self._plans[key]

    def memory(self) -> Memory:
        """Bytes on the fullest GPU, on the smallest of the job's GPUs, and of its host."""
        return once(
            self._memory,
            "",
            lambda: estimate_memory(
                self.job,
                self.size.gpus,
                self.batch,
                tuple(each.gpu for each in self.disturbances if each.gpu is not None),
                host_memory(self.machine),
                self.size.gpus_per_node,
            ),
        )

    @property
    def _replicas(self) -> RankGroup:
        """Ranks that average the gradients of one share of the model."""
        own, layout = self.allocation.own, self.job.parallel_layout
        if layout.is_plain:
            return own
        return tuple(own[rank] for rank in layout.grid(self.size.gpus).numbers[0, :, 0].tolist())

    @property
    def settled(self) -> int:
        """Steps to simulate where all later ones are the same."""
        return SETTLED_STEPS - (len(self.plan_for(None).tasks) > MANY_TASKS)

    def loops_for(self, gpu: str | None = None, launches: bool = True) -> LoopPlan:
        """Plan the loops of a strategy without shared steps, on the job's ranks and servers.

        `gpu`, `launches`: as in `plan_for`.
        """

        def plan() -> LoopPlan:
            return place_loops(
                plan_loops(
                    self._job_on(gpu),
                    self._scaled_times(gpu, launches),
                    self.size.gpus,
                    self.size.nodes,
                    self.batch,
                    merge=not self._per_layer,
                ),
                self.allocation,
                self.machine,
            )

        return once(self._loops, (launches, gpu), plan)

    @property
    def _per_layer(self) -> bool:
        """Whether each layer has to be a task of its own."""
        return any(each.jitter and each.jitter.per == "layer" for each in self.disturbances)

    def _job_on(self, gpu: str | None) -> TrainingJob:
        return self.job if gpu is None else move_to_gpu(self.job, gpu)

    def _layer_times(self, gpu: str | None) -> LayerTimes:
        return once(self._times, gpu, lambda: price_layers(self._job_on(gpu), self.batch))

    def _scaled_times(self, gpu: str | None, launches: bool) -> LayerTimes:
        """Times of layers, `compute` times as long, with or without their launches."""
        layers = self._layer_times(gpu)
        layers = layers if self.compute == 1 else scale_times(layers, self.compute)
        return replace(layers, launch_s=layers.launch_s * self.host if launches else 0.0)

    def step(
        self, options: StepOptions | None = None, machine: Machine | None = None
    ) -> ReportedRun:
        """Simulate the job with some options of its strategy.

        `options`: by default the scenario's. The batch stays the scenario's.
        `machine`: an alternative of the ensemble instead of the likely machine.
        The step equals the result of `run_scenario` with these options to the bit.

        Raises `InputError`: names file, line and field of the scenario.
        """
        sized = self
        if machine is not None:
            sized = once(self._elsewhere, machine, partial(self.on_machine, machine))
        sized = sized if options is None else sized.with_options(options)
        with locate_errors(sized):
            return simulate_reported(sized)

    def first_step_s(self, options: StepOptions) -> float:
        """Simulate the very first step with some options; seconds."""
        sized = self.with_options(options)
        with locate_errors(sized):
            return first_step_s(sized)

    def setup(self, settled_s: float = 0.0, iteration: Iteration = "steady") -> SimulationSetup:
        """Set up a simulation on the likely machine."""
        return SimulationSetup(
            self.machine,
            lambda gpu: self.plan_for(gpu, iteration),
            self.fidelity if what_if_of(self.job.scenario).communication else "free",
            self.job.scenario.compute.overlap_slowdown,
            settled_s,
            self._timers,
        )


def size_job(
    inputs: ResolvedScenario, size: ClusterSize, job: TrainingJob | None = None
) -> SizedJob:
    """Build the machine at one size, and place the job and the other jobs on it.

    `job`: by default with the GPU and the library of the machine at this size.
    """
    scenario, is_main = inputs.scenario, size == inputs.sizes[-1]
    nominal = build_machine(scenario, inputs.node, size, count_hosts(scenario, size))
    ensemble = build_ensemble(scenario, nominal, inputs.profile, size)
    return SizedJob(
        job=job
        or TrainingJob(
            scenario,
            inputs.share,
            ensemble.likely.topology.gpu,
            ensemble.likely.library,
            whole=inputs.workload,
            own=inputs.own,
        ),
        own=tuple(  # at smaller sizes they may name devices that are not there
            replace(each, process=replace(each.process, strict=is_main))
            for each in inputs.processes
            if each.process
        ),
        ensemble=ensemble,
        size=size,
        allocation=allocate_ranks(scenario, size),
        other_workloads=inputs.other_workloads,
        fidelity=inputs.fidelity,
        is_main=is_main,
    )


def prepare(
    scenario: Scenario,
    *,
    profile: Profile | None = None,
    size: ClusterSize | None = None,
    fidelity: str | None = None,
) -> SizedJob:
    """Resolve a scenario at one size, to simulate many steps with different options.

    `profile`: measured numbers instead of those of datasheets.
    `size`: by default the scenario's main size, the last of its scaling curve.
    `fidelity`: instead of the scenario's.
    Raises `InputError`: a name that does not resolve or a size that does not fit; names file, line
        and field.
    """
    inputs = resolve_scenario(scenario, profile, fidelity)
    return size_job(inputs, size or inputs.sizes[-1])


@contextmanager
def locate_errors(sized: SizedJob) -> Iterator[None]:
    """Add file, line and field of the scenario to errors of lower layers."""
    try:
        with relocated_errors(sized.job.scenario, "library"):
            yield
    except SimulationError as error:
        cuts = [each for each in sized.disturbances if any(f.arcs or f.nodes for f in each.faults)]
        if not cuts or not isinstance(error.__cause__, TopologyError):
            raise
        # these events cut a device off
        fault, allowed = sized.job.scenario.origin.fault, f"what leaves a way around it; {error}"
        raise InputError(fault(e.origin, e.description, allowed) for e in cuts) from error


# ---------------------------------------------------------------- runs


def simulate_settled(sized: SizedJob) -> ReportedRun:
    """Simulate until the state has settled, without disturbances that vary."""
    settled = SETTLED_STEPS if sized.varies else sized.settled
    check_plan_messages(sized.machine, sized.plan_for(None), sized.fidelity, settled)
    return simulate_steps(sized.setup(), sized.steady_disturbances, settled)


def simulate_reported(sized: SizedJob) -> ReportedRun:
    """Simulate until the state has settled, then as many steps as the disturbances need."""
    reported = simulate_settled(sized)
    if not sized.varies:
        return reported
    counted = count_needed_steps(sized.disturbances, reported.step_time_s, reported.plan)
    check_plan_messages(sized.machine, sized.plan_for(None), sized.fidelity, WARM_UP + counted)
    setup = sized.setup(reported.run.step_ends_s[WARM_UP - 1])
    return simulate_steps(setup, sized.disturbances, WARM_UP + counted, counted)


def first_step_s(sized: SizedJob, again: RetimedSteps | None = None) -> float:
    """Time of the very first step, before DDP rebuilds its buckets; seconds.

    `again`: a run of the job, which begins with that step where it is planned as all others, and
        no communication was delayed by that of another step.
    """
    is_alike = sized.plan_for(None, "first") is sized.plan_for(None)
    if again and is_alike and (first_s := again.first_step_s) is not None:
        return first_s
    return simulate_steps(sized.setup(iteration="first"), sized.steady_disturbances, 1).step_time_s
