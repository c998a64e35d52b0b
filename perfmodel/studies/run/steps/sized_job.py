"""A training job at one cluster size, and the runs whose steps are reported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from perfmodel.errors import InputError, SimulationError, TopologyError
from perfmodel.garbage import no_collections
from perfmodel.library.machine import Machine
from perfmodel.scenario import ClusterSize, Scenario, batch_per_gpu
from perfmodel.scenario.model import relocated_errors
from perfmodel.simulate.engine.engine import BY_SENDS, Fidelity, has_shared_cores, uses_sockets
from perfmodel.simulate.engine.outcome import Run
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.resolve.disturbance import Disturbance, resolve_events
from perfmodel.studies.run.resolve.job_plan import host_memory, plan_loops, plan_step, price_layers
from perfmodel.studies.run.resolve.machine import (
    MachineEnsemble,
    build_ensemble,
    build_machine,
    check_message_size,
)
from perfmodel.studies.run.resolve.memory_estimate import estimate_memory
from perfmodel.studies.run.resolve.placement import (
    RankAllocation,
    Ranks,
    allocate_ranks,
    count_hosts,
    place_loops,
    place_plan,
    resolve_other_jobs,
)
from perfmodel.studies.run.resolve.resolved_scenario import ResolvedScenario
from perfmodel.studies.run.resolve.training_job import TrainingJob, move_to_gpu
from perfmodel.studies.run.resolve.what_if import filter_disturbances, what_if_of
from perfmodel.studies.run.result.usage import Memory
from perfmodel.studies.run.steps.output_analysis import (
    MANY_TASKS,
    SETTLED_STEPS,
    WARM_UP,
    count_needed_steps,
)
from perfmodel.studies.run.steps.simulate_step import (
    ReportedRun,
    SimulationSetup,
    collective_s,
    simulate_steps,
)
from perfmodel.training.ddp.buckets import Iteration
from perfmodel.training.memory_use import StepOptions
from perfmodel.training.plan.step_plan import Collective, LoopPlan, StepPlan
from perfmodel.workload.model import LayerTimes, Workload, scale_times


@dataclass
class SizedJob:
    """A job at one size, ready to be simulated with any of its disturbances.

    `other_workloads`: models of the other jobs.
    `is_main`: whether this is the scenario's main size: all names in events have to resolve, and
        the cost of each event is simulated.
    `compute`: factor on the times of layers.
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

    def __post_init__(self) -> None:
        self.batch = batch_per_gpu(self.job.scenario, self.size.gpus)
        self.disturbances = self.disturbances_on(self.ensemble.likely)

    @property
    def steady_disturbances(self) -> tuple[Disturbance, ...]:
        """Disturbances that are the same in each step."""
        return tuple(each for each in self.disturbances if not each.varies)

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
        if not disturbances:
            return ()
        origins = {each.origin for each in disturbances}
        return tuple(each for each in self.disturbances_on(machine) if each.origin in origins)

    def _changed(self, **attributes: Any) -> SizedJob:
        """Return a copy with other attributes; it shares the caches that are not among them."""
        other = copy(self)
        vars(other).update(attributes)
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
        return self._changed(job=job, batch=batch, _plans={}, _times={})

    def with_own_times(self) -> SizedJob:
        """Return the same job that keeps times of collectives to itself, as long as it lives."""
        return self._changed(_timers={}, _alone={})

    @property
    def compute_spread(self) -> tuple[float, float]:
        """Factors on the times of layers between which eight of ten measured ones lie."""
        return self._layer_times(None).spread

    def with_compute(self, by: float) -> SizedJob:
        """Return the same job with times of layers `by` times as long; collectives are shared."""
        return self._changed(compute=by, _plans={}, _loops={})

    def with_spread(self, spread: tuple[float, float]) -> SizedJob:
        """Return the same job with times of layers that are surer, or less sure, than predicted."""
        return self._changed(_times={None: replace(self._layer_times(None), spread=spread)})

    def on_machine(self, machine: Machine) -> SizedJob:
        """Return the same job on the machine with other numbers, at fidelity "flow".

        Its loops are placed with the machine's own times.
        """
        ensemble = MachineEnsemble(machine)
        return self._changed(ensemble=ensemble, fidelity="flow", _timers={}, _alone={}, _loops={})

    def plan_for(
        self, gpu: str | None, iteration: Iteration = "steady", launches: bool = True
    ) -> StepPlan:
        """Plan one step on the job's ranks.

        `gpu`: instead of the job's own GPU.
        `launches`: whether launching kernels takes time on the host.
        """
        key = (iteration, launches, gpu)
        if key not in self._plans:
            job, layers = self._job_on(gpu), self._scaled_times(gpu, launches)
            collective = partial(collective_s, self.ensemble.likely, self._replicas, self._alone)
            with no_collections():
                step = plan_step(
                    job,
                    layers,
                    self.size.gpus,
                    self.batch,
                    iteration,
                    merge=not self._per_layer,
                    sockets=self.ensemble.likely.topology.sockets,
                    ranks_per_host=self.size.gpus_per_node,
                    collective_s=collective,
                    memory=host_memory(self.ensemble.likely),
                )
            self._plans[key] = place_plan(step, self.allocation.own)
        return self._plans[key]

    def memory(self) -> Memory:
        """Bytes on the fullest GPU, on the smallest of the job's GPUs, and of its host."""
        return estimate_memory(
            self.job,
            self.size.gpus,
            self.batch,
            tuple(each.gpu for each in self.disturbances if each.gpu is not None),
            host_memory(self.ensemble.likely),
            self.size.gpus_per_node,
        )

    @property
    def _replicas(self) -> Ranks:
        """Ranks that average the gradients of one share of the model."""
        own, parallel_layout = self.allocation.own, self.job.parallel_layout
        if parallel_layout.is_plain:
            return own
        return tuple(
            own[rank] for rank in parallel_layout.grid(self.size.gpus).numbers[0, :, 0].tolist()
        )

    @property
    def settled(self) -> int:
        """Steps to simulate where all later ones are the same."""
        return SETTLED_STEPS - (len(self.plan_for(None).tasks) > MANY_TASKS)

    def loops_for(self, gpu: str | None = None, launches: bool = True) -> LoopPlan:
        """Plan the loops of a strategy without shared steps, on the job's ranks and servers.

        `gpu`, `launches`: as in `plan_for`.
        """
        key = (launches, gpu)
        if key not in self._loops:
            job, layers = self._job_on(gpu), self._scaled_times(gpu, launches)
            loops = plan_loops(
                job, layers, self.size.gpus, self.size.nodes, self.batch, merge=not self._per_layer
            )
            self._loops[key] = place_loops(loops, self.allocation, self.ensemble.likely)
        return self._loops[key]

    @property
    def _per_layer(self) -> bool:
        """Whether each layer has to be a task of its own."""
        return any(each.jitter and each.jitter.per == "layer" for each in self.disturbances)

    def _job_on(self, gpu: str | None) -> TrainingJob:
        return self.job if gpu is None else move_to_gpu(self.job, gpu)

    def _layer_times(self, gpu: str | None) -> LayerTimes:
        if gpu not in self._times:
            self._times[gpu] = price_layers(self._job_on(gpu), self.batch)
        return self._times[gpu]

    def _scaled_times(self, gpu: str | None, launches: bool) -> LayerTimes:
        """Times of layers, `compute` times as long, with or without their launches."""
        layers = self._layer_times(gpu)
        layers = layers if self.compute == 1 else scale_times(layers, self.compute)
        return layers if launches else replace(layers, launch_s=0.0)

    def setup(
        self, settled_s: float = 0.0, iteration: Iteration = "steady", launches: bool = True
    ) -> SimulationSetup:
        """Set up a simulation on the likely machine."""
        return SimulationSetup(
            self.ensemble.likely,
            lambda gpu: self.plan_for(gpu, iteration, launches),
            self.fidelity if what_if_of(self.job.scenario).communication else "free",
            self.job.scenario.compute.overlap_slowdown,
            settled_s,
            self._timers,
        )

    def check_message_count(self, steps: int) -> None:
        """Refuse more messages, where they are simulated one by one, than minutes allow."""
        machine, by_sends = self.ensemble.likely, self.fidelity in BY_SENDS
        sockets = uses_sockets(machine, self.fidelity)
        if not by_sends and not (sockets and has_shared_cores(machine)):
            return
        plan = self.plan_for(None)
        groups = {
            name: tuple(group for group in each if len(group) > 1)
            for name, each in plan.groups_of.items()
        }
        works = {t.work.key: t.work for t in plan.tasks if isinstance(t.work, Collective)}
        sent = [
            (work.op, work.nbytes, groups[work.communicator])
            for work in works.values()
            for _ in range(work.times)
            if groups[work.communicator]
        ]
        check_message_size(
            machine,
            sent * steps,
            "fidelity" if by_sends else "cluster.nodes",
            fidelity=self.fidelity,
            sockets=sockets,
            by_cores=not by_sends,
            simulations=SIMULATIONS_OF_A_SIZE,
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
    likely = ensemble.likely
    own_job = TrainingJob(
        scenario,
        inputs.share,
        likely.topology.gpu,
        likely.library,
        whole=inputs.workload,
        own=inputs.own,
    )
    return SizedJob(
        job=job or own_job,
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
        origin, allowed = sized.job.scenario.origin, f"what leaves a way around it; {error}"
        faults = [origin.fault(each.origin, each.description, allowed) for each in cuts]
        raise InputError(faults) from error


# ---------------------------------------------------------------- runs

SIMULATIONS_OF_A_SIZE = 6
"""Of one size over sockets: the run, limits of the step, and four machines nearby."""


def simulate_reported(sized: SizedJob) -> ReportedRun:
    """Simulate until the state has settled, then as many steps as the disturbances need."""
    steady = sized.steady_disturbances
    varies = len(steady) < len(sized.disturbances)
    settled = SETTLED_STEPS if varies else sized.settled
    sized.check_message_count(settled)
    reported = simulate_steps(sized.setup(), steady, settled)
    if not varies:
        return reported
    counted = count_needed_steps(sized.disturbances, reported.step_time_s, reported.plan)
    sized.check_message_count(WARM_UP + counted)
    setup = sized.setup(reported.run.step_ends_s[WARM_UP - 1])
    return simulate_steps(setup, sized.disturbances, WARM_UP + counted, counted)


def simulate_first_step(sized: SizedJob) -> Run:
    """Simulate the very first step, before DDP rebuilds its buckets."""
    return simulate_steps(sized.setup(iteration="first"), sized.steady_disturbances, 1).run
