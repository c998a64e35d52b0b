"""A step with everything that happens around it: which plan, which machine, simulated how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from perfmodel.errors import Fault, InputError
from perfmodel.library.machine import Machine
from perfmodel.simulate.engine.background import Change
from perfmodel.simulate.engine.engine import Fidelity, simulate
from perfmodel.simulate.engine.run import Run
from perfmodel.simulate.ranks.jitter import SlowSteps, Variation
from perfmodel.simulate.ranks.rank_vectors import simulate_ranks
from perfmodel.simulate.ranks.task_order import unsuited
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.resolve.events import (
    BEFORE,
    Disturbance,
    background_jobs,
    background_traffic,
)
from perfmodel.topology.faults import degraded, without
from perfmodel.training.plan import StepPlan
from perfmodel.training.split_class import ClassPart, one_class_per_rank, split

MOST_SINGLE_RANKS = 128
"""Ranks that get a process of their own, where a vector of clocks would not be exact."""

PlanFor = Callable[[str | None], StepPlan]
"""The step's plan on the job's own GPU (None), or on another by name."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a disturbed run needs beside its incidents.

    Parameters
    ----------
    machine : Machine
        Undisturbed.
    plan_for : callable
    fidelity : {"flow", "message", "free"}
    slowdown : float, optional
    settled_s : float
        When the settled state begins, which the times of incidents count from; seconds.
    warm_up : int
        Steps before it, which steps of incidents do not count.
    estimators : dict
        Of machines that differ from the start, by what is wrong with them; filled here.
    """

    machine: Machine
    plan_for: PlanFor
    fidelity: Fidelity | Literal["free"]
    slowdown: float | None
    settled_s: float
    warm_up: int
    estimators: dict[tuple[str, ...], UncontendedTimer]


def simulate_steps(
    setting: Setting, active: Sequence[Disturbance], steps: int, *, free: bool = False
) -> tuple[StepPlan, Run, str]:
    """Simulate some steps with some incidents.

    Parameters
    ----------
    free : bool
        Let communication take no time.

    Returns
    -------
    plan : StepPlan
        With odd ranks in classes of their own.
    run : Run
    mode : str
        How ranks were simulated, in words.

    Raises
    ------
    InputError
        Incidents that cannot be simulated together; says why.
    """
    plan, slow = _with_odd_ranks(setting, active)
    known = estimator_of(setting, active)
    changes = machine_changes(setting, active)
    traffic = tuple(background_traffic(active, setting.settled_s))
    beside = tuple(background_jobs(active, setting.settled_s))
    jitters = [one.jitter for one in active if one.jitter is not None]
    fidelity = "free" if free else setting.fidelity
    if jitters:
        reason = unsuited(plan)
        reason = "the network changes or others use it" if changes or traffic or beside else reason
        if reason is None:
            run = simulate_ranks(
                plan, known.machine, steps=steps, fidelity=fidelity,
                overlap_slowdown=setting.slowdown, estimator=known,
                stretch=Variation(plan, jitters, slow),
            )  # fmt: skip
            return plan, run, f"{_counted(plan)} as vectors"
        plan, slow = _single(plan, slow, reason, active)
    run = simulate(
        plan, known.machine, steps=steps, fidelity=fidelity, overlap_slowdown=setting.slowdown,
        estimator=known, changes=changes, traffic=traffic, beside=beside,
        stretch=Variation(plan, jitters, slow) if jitters or slow else None,
    )  # fmt: skip
    classes = len(plan.classes)
    return plan, run, f"{classes} rank class{'es' if classes > 1 else ''}"


def _counted(plan: StepPlan) -> str:
    return f"{sum(len(each.ranks) for each in plan.classes):,} ranks"


# ---------------------------------------------------------------- ranks


def _with_odd_ranks(
    setting: Setting, active: Sequence[Disturbance]
) -> tuple[StepPlan, tuple[SlowSteps, ...]]:
    """Give ranks that differ classes of their own, alike ones together."""
    plan = setting.plan_for(None)
    odd: dict[int, list[Disturbance]] = {}
    for incident in active:
        for rank in incident.ranks:
            odd.setdefault(rank, []).append(incident)
    slow: list[SlowSteps] = []
    for each in plan.classes:
        alike: dict[tuple[str, ...], tuple[list[int], list[Disturbance]]] = {}
        for rank in each.ranks if odd else ():
            if rank in odd:
                key = tuple(one.place for one in odd[rank])
                alike.setdefault(key, ([], odd[rank]))[0].append(rank)
        parts = [_part(setting, ranks, why) for ranks, why in alike.values()]
        if parts:
            plan = split(plan, each.name, parts)
        for part, (_, why) in zip(parts, alike.values(), strict=True):
            slow += [
                SlowSteps(part.name, one.by, frozenset(s + setting.warm_up for s in one.steps))
                for one in why
                if one.steps is not None
            ]
    return plan, tuple(slow)


def _part(setting: Setting, ranks: Sequence[int], why: Sequence[Disturbance]) -> ClassPart:
    scale, gpu = 1.0, None
    for one in why:
        scale *= 1.0 if one.steps is not None else one.by
        gpu = one.gpu or gpu
    like = None if gpu is None else setting.plan_for(gpu)
    return ClassPart(ranks_named(setting.machine, ranks), tuple(ranks), scale, like)


def ranks_named(machine: Machine, ranks: Sequence[int], most: int = 3) -> str:
    """Name some ranks: by their nodes where these are whole, else one by one."""
    topology = machine.topology
    each, wanted = topology.gpus_per_host, set(ranks)
    hosts = sorted({rank // each for rank in ranks})
    if each > 1 and len(wanted) == len(hosts) * each:
        names = [f"n{host}" for host in hosts]
    else:
        names = [topology.ranks[rank] for rank in sorted(wanted)]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _single(
    plan: StepPlan, slow: Sequence[SlowSteps], reason: str, active: Sequence[Disturbance]
) -> tuple[StepPlan, tuple[SlowSteps, ...]]:
    """Give every rank a process, where there are few enough."""
    ranks = [rank for each in plan.classes for rank in each.ranks]
    if len(ranks) > MOST_SINGLE_RANKS:
        place = next(one.place for one in active if one.jitter is not None)
        found = f"jitter on {len(ranks)} ranks, where {reason}"
        allowed = f"at most {MOST_SINGLE_RANKS} ranks then, or no jitter"
        raise InputError(Fault(f"{place}.jitter", found, allowed))
    home = {rank: each.name for each in plan.classes for rank in each.ranks}
    single = one_class_per_rank(plan)
    return single, tuple(
        SlowSteps(each.name, one.by, one.steps)
        for each in single.classes
        for one in slow
        if home[each.ranks[0]] == one.rank_class
    )


# ---------------------------------------------------------------- links


def estimator_of(setting: Setting, active: Sequence[Disturbance]) -> UncontendedTimer:
    """Times of collectives on the machine that the job starts on."""
    early = [one for one in active if any(fault.from_s == BEFORE for fault in one.faults)]
    key = tuple(one.place for one in early)
    if key not in setting.estimators:
        machine = _machine_at(setting.machine, early, BEFORE)
        setting.estimators[key] = UncontendedTimer(machine)
    return setting.estimators[key]


def machine_changes(setting: Setting, active: Sequence[Disturbance]) -> tuple[Change, ...]:
    """What the machine becomes, and when; in seconds since the start of the run."""
    moments: dict[float, list[str]] = {}
    for incident in active:
        if incident.faults:
            for at in incident.moments_s:
                moments.setdefault(at, []).append(incident.what)
    return tuple(
        Change(
            setting.settled_s + at, _machine_at(setting.machine, active, at), "; ".join(moments[at])
        )
        for at in sorted(moments)
    )


def _machine_at(machine: Machine, active: Sequence[Disturbance], at: float) -> Machine:
    faults = [
        fault
        for incident in active
        for fault in incident.faults
        if fault.from_s <= at < fault.until_s
    ]
    if not faults:
        return machine
    topology = degraded(
        machine.topology,
        _slowest([fault.bandwidth_Bps for fault in faults]),
        {arc: at for fault in faults for arc, at in fault.latency_s.items()},
    )
    arcs = {arc for fault in faults for arc in fault.arcs}
    nodes = tuple(dict.fromkeys(node for fault in faults for node in fault.nodes))
    if arcs or nodes:
        topology = without(topology, arcs=arcs, nodes=nodes)
    return replace(machine, topology=topology)


def _slowest(rates: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Of several faults on one link the worst counts."""
    found: dict[int, float] = {}
    for each in rates:
        for arc, rate_Bps in each.items():
            found[arc] = min(rate_Bps, found.get(arc, rate_Bps))
    return found
