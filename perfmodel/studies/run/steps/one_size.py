"""One cluster size of a scenario, simulated with everything that happens around it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from math import nan
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate import interval_s
from perfmodel.errors import InputError, PerfmodelError, SimulationError, TopologyError
from perfmodel.library.machine import Machine
from perfmodel.scenario import ClusterSize, batch_per_gpu
from perfmodel.simulate.engine.engine import Fidelity, simulate
from perfmodel.simulate.engine.run import Run
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.resolve.events import Disturbance, incidents
from perfmodel.studies.run.resolve.job import TrainingJob, buckets, memory, on_gpu, plan, times
from perfmodel.studies.run.resolve.limits import check_message_size
from perfmodel.studies.run.resolve.machine import relocated
from perfmodel.studies.run.resolve.placement import Site, neighbours, placed
from perfmodel.studies.run.resolve.what_if import imagined_incidents, imagined_of
from perfmodel.studies.run.result import DisturbanceCost, EventCost, Neighbour, SizeResult
from perfmodel.studies.run.steps.bottleneck import StepPart, Suspects, bottleneck
from perfmodel.studies.run.steps.metrics import Observed, to_point
from perfmodel.studies.run.steps.output_analysis import (
    SETTLED,
    WARM_UP,
    counted_steps,
    mean_interval_s,
    waits,
)
from perfmodel.studies.run.steps.simulate_step import Setting, estimator_of, simulate_steps
from perfmodel.training.ddp.buckets import Iteration
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.plan import Collective, StepPlan
from perfmodel.workload.model import LayerTimes, Workload


@dataclass(frozen=True, slots=True)
class MachineEnsemble:
    """A machine with its most likely numbers, and others that its measurements allow.

    `drawn` are draws from a profile; `bounds`, without one, the quick and the slow end of what
    recorded machines of its kind did.
    """

    likely: Machine
    drawn: tuple[Machine, ...] = ()
    bounds: tuple[Machine, ...] = ()


@dataclass
class SizedJob:
    """A job at one size, ready to be simulated with this or that happening.

    Parameters
    ----------
    job : TrainingJob
    measured : MachineEnsemble
    size : ClusterSize
    where : Site
    beside : tuple of Workload
        Models of the other jobs.
    fidelity : {"flow", "message"}
    asked : bool
        Whether this is the size that the scenario asks about: every event has to make sense, and
        what each costs is worked out.
    """

    job: TrainingJob
    measured: MachineEnsemble
    size: ClusterSize
    where: Site
    beside: tuple[Workload, ...]
    fidelity: Fidelity
    asked: bool
    batch: int = field(init=False)
    happening: tuple[Disturbance, ...] = field(init=False)
    _plans: dict[tuple[Iteration, bool, str | None], StepPlan] = field(
        default_factory=dict, init=False
    )
    _estimators: dict[tuple[str, ...], UncontendedTimer] = field(default_factory=dict, init=False)
    _times: dict[str | None, LayerTimes] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        here, each = self.measured.likely, self.size.gpus_per_node
        self.batch = batch_per_gpu(self.job.scenario, self.size.gpus)
        events = incidents(
            self.job.scenario, here.topology, self.where.mine, each, strict=self.asked
        )
        around = (*events, *neighbours(self.job, self.beside, here, self.where))
        self.happening = imagined_incidents(imagined_of(self.job.scenario), around)

    def with_options(self, options: DdpOptions) -> SizedJob:
        """Return the same job with other options of DDP; costs of collectives are shared."""
        other = copy(self)
        other.job, other._plans = replace(self.job, chosen=options), {}
        return other

    def on_machine(self, machine: Machine) -> SizedJob:
        """Return the same job on a like machine with other numbers, at fidelity "flow"."""
        other = copy(self)
        other.measured, other.fidelity, other._estimators = MachineEnsemble(machine), "flow", {}
        return other

    # ------------------------------------------------------------ plans and runs

    def plan_for(
        self, gpu: str | None, iteration: Iteration = "steady", launches: bool = True
    ) -> StepPlan:
        """One step on the job's ranks and its own GPU or another; with or without the host."""
        key = (iteration, launches, gpu)
        if key not in self._plans:
            job = self.job if gpu is None else on_gpu(self.job, gpu)
            if gpu not in self._times:
                self._times[gpu] = times(job, self.batch)
            layers = self._times[gpu]
            layers = layers if launches else replace(layers, launch_s=0.0)
            pieces = any(one.jitter and one.jitter.per == "layer" for one in self.happening)
            made = plan(
                job, layers, self.size.gpus, self.batch, iteration, merge=not pieces,
                sockets=self.measured.likely.topology.sockets,
            )  # fmt: skip
            self._plans[key] = placed(made, self.where.mine)
        return self._plans[key]

    def setting(
        self, settled_s: float = 0.0, iteration: Iteration = "steady", launches: bool = True
    ) -> Setting:
        """What all runs on the likely machine share."""
        return Setting(
            self.measured.likely,
            lambda gpu: self.plan_for(gpu, iteration, launches),
            self.fidelity if imagined_of(self.job.scenario).communication else "free",
            self.job.scenario.compute.overlap_slowdown,
            settled_s,
            WARM_UP,
            self._estimators,
        )

    def check_size(self, steps: int) -> None:
        """Refuse more messages than fidelity "message" can take."""
        if self.fidelity == "message":
            works = [t.work for t in self.plan_for(None).tasks if isinstance(t.work, Collective)]
            sent = [(work.op, work.nbytes) for work in works] * steps
            check_message_size(self.measured.likely, sent)


@dataclass(frozen=True, slots=True)
class Counted:
    """The run that is reported."""

    plan: StepPlan
    run: Run
    mode: str
    setting: Setting
    steps: int
    counted: int

    @property
    def step_s(self) -> float:
        """Mean of the counted steps; seconds."""
        return fmean(self.run.step_times_s[-self.counted :])


def simulate_size(sized: SizedJob, *, with_first: bool = True) -> SizeResult:
    """Simulate one size.

    Parameters
    ----------
    sized : SizedJob
    with_first : bool
        Whether the very first step is simulated, too; its time is nan otherwise.

    Raises
    ------
    InputError
        Names file, line and field of the scenario.
    """
    with naming_fields(sized):
        seen = counted_run(sized)
        return _point(sized, seen, first_step(sized).step_time_s if with_first else nan)


@contextmanager
def naming_fields(sized: SizedJob) -> Iterator[None]:
    """Let errors from lower layers name file, line and field of the scenario."""
    try:
        yield
    except InputError as error:
        raise relocated(sized.job.scenario, error, "library") from None
    except SimulationError as error:
        raise _cut_off(sized, error) from error


def _cut_off(sized: SizedJob, error: SimulationError) -> PerfmodelError:
    """Name the events that left somebody out of reach, if it was they."""
    guilty = [one for one in sized.happening if any(f.arcs or f.nodes for f in one.faults)]
    if not guilty or not isinstance(error.__cause__, TopologyError):
        return error
    allowed = f"what leaves a way around it; {error}"
    origin = sized.job.scenario.origin
    return InputError(origin.fault(one.place, one.what, allowed) for one in guilty)


def _point(sized: SizedJob, seen: Counted, first_s: float) -> SizeResult:
    """Everything that is said of one size."""
    words = seen.mode if seen.counted == 1 else f"{seen.mode}, mean of {seen.counted} steps"
    point = to_point(
        Observed(
            topology=estimator_of(seen.setting, sized.happening).machine.topology,
            workload=sized.job.workload,
            plan=seen.plan,
            run=seen.run,
            first_step_time_s=first_s,
            steps=seen.steps,
            gpus=sized.size.gpus,
            nodes=sized.size.nodes,
            batch=sized.batch,
            memory=memory(sized.job, sized.size.gpus, sized.batch, _gpus(sized)),
            buckets=buckets(sized.job),
            mode=f"{sized.fidelity}, {words}",
            counted=seen.counted,
        )
    )
    disturbance = _disturbance(sized, seen) if sized.happening and sized.asked else None
    point = replace(point, disturbance=disturbance)
    return replace(
        point, bottleneck=_limit(sized, seen, point), interval_s=_interval(sized, seen, point)
    )


def _gpus(sized: SizedJob) -> tuple[str, ...]:
    """Other GPUs that have to hold the model too."""
    return tuple(one.gpu for one in sized.happening if one.gpu is not None)


def _quiet(sized: SizedJob) -> tuple[Disturbance, ...]:
    """What happens the same in each step."""
    return tuple(one for one in sized.happening if not one.varies)


def counted_run(sized: SizedJob) -> Counted:
    """Run until the state has settled, then as many steps as what happens needs."""
    setting, quiet = sized.setting(), _quiet(sized)
    sized.check_size(SETTLED)
    made, run, mode = simulate_steps(setting, quiet, SETTLED)
    if len(quiet) == len(sized.happening):
        return Counted(made, run, mode, setting, SETTLED, 1)
    counted = counted_steps(sized.happening, run.step_time_s, made)
    setting = sized.setting(run.step_ends_s[WARM_UP - 1])
    sized.check_size(WARM_UP + counted)
    made, run, mode = simulate_steps(setting, sized.happening, WARM_UP + counted)
    return Counted(made, run, mode, setting, WARM_UP + counted, counted)


def first_step(sized: SizedJob) -> Run:
    """Simulate the very first step, whose buckets are not yet rebuilt."""
    return simulate_steps(sized.setting(iteration="first"), _quiet(sized), 1)[1]


def _mean_with(seen: Counted, active: Sequence[Disturbance]) -> float:
    """Mean step with some of what happens; the same steps as those that are reported."""
    if any(one.varies for one in active):
        _, run, _ = simulate_steps(seen.setting, active, seen.steps)
        return fmean(run.step_times_s[-seen.counted :])
    return simulate_steps(seen.setting, active, SETTLED)[1].step_time_s


def _disturbance(sized: SizedJob, seen: Counted) -> DisturbanceCost:
    """What each of the incidents costs, and who waits for whom."""
    alone_s = _mean_with(seen, ())
    costs = []
    for one in sized.happening:
        rest = tuple(other for other in sized.happening if other is not one)
        without_s = _mean_with(seen, rest) if rest else alone_s
        costs.append(EventCost(one.what, without_s, seen.step_s - without_s))
    is_random = any(one.jitter for one in sized.happening)
    steps_s = seen.run.step_times_s[-seen.counted :]
    counted = range(seen.steps - seen.counted, seen.steps)
    topology = sized.measured.likely.topology
    usual = [each.name for each in sized.plan_for(None).classes]
    return DisturbanceCost(
        steps_s=steps_s,
        undisturbed_s=alone_s,
        mean_interval_s=mean_interval_s(steps_s) if is_random else None,
        events=tuple(costs),
        waits=waits(seen.run.meetings, seen.plan, topology, counted, is_random, usual),
        jobs=tuple(_neighbour(sized, seen, one) for one in sized.happening if one.beside),
    )


def _neighbour(sized: SizedJob, seen: Counted, one: Disturbance) -> Neighbour:
    """How another job fared while the main one's steps were counted."""
    assert one.beside is not None
    theirs, here = one.beside.plan, sized.measured.likely
    ends = seen.run.others_step_ends_s[theirs.name]
    from_s = seen.run.step_ends_s[WARM_UP - 1]
    times_s = [b - a for a, b in itertools.pairwise(ends) if a >= from_s]
    alone = simulate(
        theirs, here, steps=SETTLED, overlap_slowdown=one.beside.overlap_slowdown,
        estimator=estimator_of(seen.setting, ()),
    )  # fmt: skip
    gpus = sum(len(each.ranks) for each in theirs.classes)
    step_s = fmean(times_s) if times_s else alone.step_time_s
    return Neighbour(theirs.name, gpus, step_s, alone.step_time_s)


def _limit(sized: SizedJob, seen: Counted, point: SizeResult) -> str:
    """What limits the step, found by taking it away."""

    def without(part: StepPart) -> float:
        setting = replace(seen.setting, plan_for=lambda gpu: sized.plan_for(gpu, launches=False))
        setting = seen.setting if part == "network" else setting
        _, run, _ = simulate_steps(setting, sized.happening, seen.steps, free=part == "network")
        return fmean(run.step_times_s[-seen.counted :])

    known = estimator_of(seen.setting, sized.happening)
    suspects = Suspects(seen.plan, seen.run, seen.steps, known, _own_links(sized, seen), without)
    return bottleneck(point, suspects)


def _own_links(sized: SizedJob, seen: Counted) -> NDArray[np.bool_]:
    """Links that this job itself uses."""
    run, others = seen.run, [one for one in sized.happening if one.traffic or one.beside]
    if others:
        mine = [one for one in sized.happening if one not in others and not one.jitter]
        run = simulate_steps(seen.setting, mine, seen.steps if mine else 1)[1]
    return run.counted.wire_bytes > 0


def _interval(sized: SizedJob, seen: Counted, point: SizeResult) -> tuple[float, float] | None:
    """80 % interval of the step from what the profile's measurements allow."""
    if seen.counted > 1:
        return None
    setting = replace(seen.setting, fidelity="flow")

    def step_s(other: Machine) -> float:
        there = replace(setting, machine=other, estimators={})
        return simulate_steps(there, sized.happening, SETTLED)[1].step_time_s

    if sized.measured.bounds:
        ends = [point.step_time_s, *map(step_s, sized.measured.bounds)]
        return min(ends), max(ends)
    return interval_s([step_s(other) for other in sized.measured.drawn], point.step_time_s)
