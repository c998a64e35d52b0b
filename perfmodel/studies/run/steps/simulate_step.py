"""Simulate steps with some disturbances: choose the plan, the machine and the engine."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from statistics import fmean
from typing import Literal

from perfmodel.arrays import RankGroup
from perfmodel.errors import refuse_if
from perfmodel.library.machine import Machine, make_machine
from perfmodel.library.model import load_library
from perfmodel.memo import grouped
from perfmodel.simulate.engine.background import Change
from perfmodel.simulate.engine.engine import Fidelity, Surroundings, simulate, uses_sockets
from perfmodel.simulate.engine.jitter import SlowSteps, Variation
from perfmodel.simulate.engine.outcome import Run
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.resolve.disturbance import (
    ALWAYS_S,
    Disturbance,
    background_traffic,
    join_names,
)
from perfmodel.studies.run.steps.output_analysis import WARM_UP, mean_interval_s
from perfmodel.studies.run.steps.step_parts import StepParts, mean_parts
from perfmodel.topology.faults import degrade_links, remove_links
from perfmodel.training.plan.split_class import ClassPart, one_class_per_rank, split
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Op,
    RankClass,
    StepPlan,
    Stream,
    Task,
)

MOST_SINGLE_RANKS = 128
"""Ranks at most that get a process each, where vectors of ranks would not be exact."""

MANY_RANKS = 8192
"""Ranks from which on a machine with its routes takes hundreds of MB."""


@dataclass(frozen=True, slots=True)
class SimulationSetup:
    """What a simulation needs besides its disturbances.

    `machine`: undisturbed.
    `plan_for`: plans the step on the job's own GPU (None), or on another by name.
    `settled_s`: when the settled state begins, from which times of disturbances count; seconds.
    `timers`: cache of timers: of machines with faults from the start, by the fields of these
        faults.
    """

    machine: Machine
    plan_for: Callable[[str | None], StepPlan]
    fidelity: Fidelity | Literal["free"]
    slowdown: float | None
    settled_s: float
    timers: dict[tuple[str, ...], UncontendedTimer]

    def on(self, machine: Machine) -> SimulationSetup:
        """Return the same setup on the machine with other numbers.

        Its timers share with those of this one what does not depend on these numbers.
        """
        is_alike = machine.differs_in_corrections_only(self.machine)
        return replace(
            self,
            machine=machine,
            timers={
                key: timer.on(timer.machine.with_corrections(machine.measured) if key else machine)
                for key, timer in (self.timers if is_alike else {}).items()
            },
        )


@dataclass(frozen=True)
class ReportedRun:
    """A run whose last `counted` steps are reported, after a warm-up.

    `plan`: with disturbed ranks in classes of their own.
    `mode`: how ranks were simulated.
    `steps`, `counted`: steps in all, and how many of them are counted.
    """

    plan: StepPlan
    run: Run
    mode: str
    setup: SimulationSetup
    steps: int
    counted: int

    @property
    def steps_s(self) -> tuple[float, ...]:
        """Durations of the counted steps; seconds."""
        return self.run.step_times_s[-self.counted :]

    @property
    def step_time_s(self) -> float:
        """Mean of the counted steps; seconds."""
        return sum(self.steps_s) / self.counted

    @property
    def step_s(self) -> float:
        """Their mean without rounding errors, for differences from other runs; seconds."""
        return fmean(self.steps_s)

    @property
    def noise_s(self) -> float:
        """Half width of the 80 % interval of the mean step; 0 with one step; seconds."""
        low, high = mean_interval_s(self.steps_s) if self.counted > 1 else (0.0, 0.0)
        return (high - low) / 2

    @property
    def counted_steps(self) -> range:
        """Numbers of the counted steps."""
        return range(self.steps - self.counted, self.steps)

    @cached_property
    def parts(self) -> StepParts:
        """Where the mean counted step goes."""
        return mean_parts(self.plan, self.run, self.counted_steps, self.step_time_s)

    def simulate_again(
        self,
        disturbances: Sequence[Disturbance],
        setup: SimulationSetup | None = None,
    ) -> float:
        """Simulate the same steps with other disturbances; mean of the counted ones in seconds.

        `setup`: by default the run's own.
        """
        # It was tried, if the graph is there; other numbers hardly change it.
        is_crowded = self.run.graph is not None and not self.run.is_uncontended
        return simulate_steps(
            setup or self.setup, disturbances, self.steps, self.counted, is_crowded=is_crowded
        ).step_s


def simulate_steps(
    setup: SimulationSetup,
    disturbances: Sequence[Disturbance],
    steps: int,
    counted: int = 1,
    *,
    is_crowded: bool = False,
) -> ReportedRun:
    """Simulate some steps with some disturbances, the last of which are `counted`.

    `is_crowded`: as of `simulate`.

    Raises `InputError`: disturbances that cannot be simulated together.
    """
    plan, slow = split_classes(setup, disturbances)
    timer = timer_of(setup, disturbances)
    settled_s, jobs = setup.settled_s, (each.background_job for each in disturbances)
    around = Surroundings(
        list_changes(setup, disturbances),
        background_traffic(disturbances, settled_s),
        # one that starts at 0 runs from the start of the run on, before the settled state
        tuple(replace(j, start_s=settled_s + j.start_s if j.start_s else 0.0) for j in jobs if j),
        tuple(replace(d.process, start_s=settled_s) for d in disturbances if d.process),
    )
    jitters = [each.jitter for each in disturbances if each.jitter is not None]
    fidelity = setup.fidelity
    if jitters:
        reason = _why_single(plan, timer, fidelity, around)
        if reason is None:
            from perfmodel.simulate.engine.rank_vectors import simulate_ranks

            run = simulate_ranks(
                plan,
                timer.machine,
                steps=steps,
                fidelity=fidelity,
                overlap_slowdown=setup.slowdown,
                timer=timer,
                stretch=Variation(plan, jitters, slow),
                surroundings=around,
            )
            mode = f"{sum(len(each.ranks) for each in plan.classes):,} ranks as vectors"
            return ReportedRun(plan, run, mode, setup, steps, counted)
        plan, slow = _split_into_ranks(plan, slow, reason, disturbances)
    run = simulate(
        plan,
        timer.machine,
        steps=steps,
        fidelity=fidelity,
        overlap_slowdown=setup.slowdown,
        timer=timer,
        changes=around.changes,
        traffic=around.traffic,
        background_jobs=around.background_jobs,
        processes=around.processes,
        stretch=Variation(plan, jitters, slow) if jitters or slow else None,
        is_crowded=is_crowded,
    )
    mode = f"{len(plan.classes)} rank class{'es' if len(plan.classes) > 1 else ''}"
    return ReportedRun(plan, run, mode, setup, steps, counted)


def _why_single(
    plan: StepPlan,
    timer: UncontendedTimer,
    fidelity: Fidelity | Literal["free"],
    around: Surroundings,
) -> str | None:
    """Say why ranks that differ need a process each; None where vectors of them are exact."""
    from perfmodel.simulate.engine.rank_vectors import why_unsuited

    reasons = (
        (around.processes, "processes see each collective begin"),
        (fidelity == "reference", "fidelity 'reference' has a process for each rank"),
        (
            around.background_jobs and uses_sockets(timer.machine, fidelity),
            "other jobs keep cores busy on which messages wait",
        ),
    )
    return next((reason for applies, reason in reasons if applies), None) or why_unsuited(plan)


# ---------------------------------------------------------------- ranks


def split_classes(
    setup: SimulationSetup, disturbances: Sequence[Disturbance]
) -> tuple[StepPlan, tuple[SlowSteps, ...]]:
    """Give disturbed ranks classes of their own, one per set of disturbances."""
    plan = setup.plan_for(None)
    causes_of = grouped((rank, each) for each in disturbances for rank in each.ranks)
    slow: list[SlowSteps] = []
    others = {each.gpu: setup.plan_for(each.gpu) for each in disturbances if each.gpu is not None}
    for rank_class in plan.classes if causes_of else ():
        alike = grouped(
            (tuple(each.origin for each in causes_of[rank]), rank)
            for rank in rank_class.ranks
            if rank in causes_of
        )
        parts = [_make_part(setup, own, causes_of[own[0]], others) for own in alike.values()]
        if parts:
            plan = split(plan, rank_class.name, parts)
            own = [replace(part, like=None) for part in parts]  # so that tasks stay the same ones
            others = {gpu: split(other, rank_class.name, own) for gpu, other in others.items()}
        slow += [
            SlowSteps(part.name, each.by, frozenset(step + WARM_UP for step in each.steps))
            for part in parts
            for each in causes_of[part.ranks[0]]
            if each.steps is not None
        ]
    return plan, tuple(slow)


def _make_part(
    setup: SimulationSetup,
    ranks: Sequence[int],
    causes: Sequence[Disturbance],
    others: Mapping[str, StepPlan],
) -> ClassPart:
    scale = math.prod((each.by for each in causes if each.steps is None), start=1.0)
    like = next((others[each.gpu] for each in reversed(causes) if each.gpu is not None), None)
    return ClassPart(_name_ranks(setup.machine, ranks), tuple(ranks), scale, like)


def _name_ranks(machine: Machine, ranks: Sequence[int]) -> str:
    """Name some ranks: by nodes where these are complete, else one by one."""
    per_host, numbers = machine.topology.gpus_per_host, set(ranks)
    hosts = sorted({rank // per_host for rank in ranks})
    if per_host > 1 and len(numbers) == len(hosts) * per_host:
        return join_names([f"n{host}" for host in hosts], 3)
    return join_names([machine.topology.ranks[rank] for rank in sorted(numbers)], 3)


def _split_into_ranks(
    plan: StepPlan, slow: Sequence[SlowSteps], reason: str, disturbances: Sequence[Disturbance]
) -> tuple[StepPlan, tuple[SlowSteps, ...]]:
    """Give every rank a class of its own, if there are few enough."""
    ranks = [rank for each in plan.classes for rank in each.ranks]
    origin = next(each.origin for each in disturbances if each.jitter is not None)
    refuse_if(
        len(ranks) > MOST_SINGLE_RANKS,
        f"{origin}.jitter",
        f"jitter on {len(ranks)} ranks, where {reason}",
        f"at most {MOST_SINGLE_RANKS} ranks then, or no jitter",
    )
    home = {rank: each.name for each in plan.classes for rank in each.ranks}
    single = one_class_per_rank(plan)
    return single, tuple(
        SlowSteps(each.name, slow_steps.by, slow_steps.steps)
        for each in single.classes
        for slow_steps in slow
        if home[each.ranks[0]] == slow_steps.rank_class
    )


# ---------------------------------------------------------------- links


def timer_of(setup: SimulationSetup, disturbances: Sequence[Disturbance]) -> UncontendedTimer:
    """Return the cached timer of collectives for the machine on which the job starts."""
    early = [d for d in disturbances if any(fault.from_s == ALWAYS_S for fault in d.faults)]
    key = tuple(each.origin for each in early)
    if key not in setup.timers:
        if len(setup.machine.topology.ranks) >= MANY_RANKS:
            gc.collect(1)  # machines of simulations before, which their events still hold
        setup.timers[key] = UncontendedTimer(_machine_at(setup.machine, early, ALWAYS_S))
    return setup.timers[key]


def list_changes(setup: SimulationSetup, disturbances: Sequence[Disturbance]) -> tuple[Change, ...]:
    """List the changes of the machine, with times in seconds since the start of the run."""
    moments = [
        (at, each.description) for each in disturbances if each.faults for at in each.moments_s
    ]
    return tuple(
        Change(
            setup.settled_s + at,
            _machine_at(setup.machine, disturbances, at),
            "; ".join(text for moment, text in moments if moment == at),
        )
        for at in sorted({at for at, _ in moments})
    )


def _machine_at(machine: Machine, disturbances: Sequence[Disturbance], at: float) -> Machine:
    """Return the machine with the faults of a moment; of several on one link the slowest counts."""
    faults = [
        fault
        for disturbance in disturbances
        for fault in disturbance.faults
        if fault.from_s <= at < fault.until_s
    ]
    if not faults:
        return machine
    rates_Bps = [pair for fault in faults for pair in fault.bandwidth_Bps.items()]
    slowest_Bps = dict(sorted(rates_Bps, key=itemgetter(1), reverse=True))  # the last one stays
    topology = degrade_links(
        machine.topology,
        slowest_Bps,
        {arc: delay_s for fault in faults for arc, delay_s in fault.latency_s.items()},
    )
    arcs = {arc for fault in faults for arc in fault.arcs}
    nodes = tuple(dict.fromkeys(node for fault in faults for node in fault.nodes))
    if arcs or nodes:
        topology = remove_links(topology, arcs=arcs, nodes=nodes)
    return replace(machine, topology=topology)


# ---------------------------------------------------------------- one collective alone


def collective_s(
    machine: Machine,
    group: RankGroup,
    timers: dict[str, UncontendedTimer],
    op: Op,
    nbytes: int,
    library: str | None = None,
) -> float:
    """Time of a collective of some ranks; seconds.

    Parameters
    ----------
    machine : Machine
    group : range or tuple of int
        Its ranks.
    timers : dict
        By library, filled when one is needed.
    op : str
    nbytes : int
        As nccl-tests counts it.
    library : str, optional
        Instead of the machine's own.
    """
    is_own, name = library in (None, machine.library.name), library or machine.library.name
    if name not in timers:
        timers[name] = UncontendedTimer(
            machine if is_own else make_machine(machine.topology, load_library(name))
        )
    if is_own and machine.library.in_order:
        return simulated_s(timers[name], group, op, nbytes)
    return timers[name].best(op, nbytes, group)[1]


def simulated_s(timer: UncontendedTimer, group: RankGroup, op: Op, nbytes: int) -> float:
    """Time of a collective by simulation, where the messages of a connection are in order."""
    ranks = tuple(group)
    plan = StepPlan(
        f"one {op}",
        (RankClass("ranks", ranks),),
        (Stream("comm", "comm"),),
        (Communicator("all", (ranks,)),),
        (Task(op, "communication", "ranks", "comm", Collective(op, nbytes, "all", "one")),),
        samples=1,
    )
    return simulate(plan, timer.machine, timer=timer).step_time_s
