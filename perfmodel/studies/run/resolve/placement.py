"""Where a job runs: which nodes it gets, and its plan on their ranks.

Where a job runs, and who runs beside it: nodes of one network shared out among jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from perfmodel.errors import Fault, InputError, ScheduleError
from perfmodel.library.machine import Machine
from perfmodel.scenario import ClusterSize, OtherJob, Scenario
from perfmodel.simulate.engine.background import BackgroundJob
from perfmodel.studies.run.resolve.events import Disturbance
from perfmodel.studies.run.resolve.job import TrainingJob, plan, resolve_workload, times
from perfmodel.training.plan import Collective, Compute, StepPlan, Task
from perfmodel.workload.model import Workload


def chosen_hosts(
    free: Sequence[int], count: int, placement: Literal["packed", "spread", "random"], seed: int
) -> tuple[int, ...]:
    """Choose nodes for a job among those that are free.

    Parameters
    ----------
    free : sequence of int
        Rising; neighbours share switches.
    count : int
        At most as many as are free.
    placement : {"packed", "spread", "random"}
        The first ones; every so many-th one; or any.
    seed : int
        For "random".

    Returns
    -------
    tuple of int
        Rising, as schedulers list nodes (Slurm sorts them), so that rings follow the fabric.

    Examples
    --------
    >>> chosen_hosts(range(8), 4, "spread", 0)
    (0, 2, 4, 6)
    """
    if placement == "packed":
        return tuple(free[:count])
    if placement == "spread":
        return tuple(free[at * len(free) // count] for at in range(count))
    drawn = np.random.default_rng(seed).choice(len(free), count, replace=False)
    return tuple(free[at] for at in sorted(drawn.tolist()))


def placed(plan: StepPlan, ranks: range | tuple[int, ...]) -> StepPlan:
    """Return the plan on other ranks: its rank r becomes ``ranks[r]``.

    Raises
    ------
    ScheduleError
        Fewer ranks than the plan has.
    """
    needed = 1 + max(max(each.ranks) for each in plan.classes)
    if needed > len(ranks):
        raise ScheduleError(f"{plan.name!r} has {needed} ranks; {len(ranks)} were given")
    if ranks == range(len(ranks)):
        return plan
    to = np.asarray(ranks, dtype=np.int64)

    def moved(members: range | tuple[int, ...]) -> tuple[int, ...]:
        return tuple(to[np.asarray(members, dtype=np.int64)].tolist())

    def task_moved(task: Task) -> Task:
        work = task.work
        if isinstance(work, Compute):
            return task
        if isinstance(work, Collective):
            return replace(task, work=replace(work, root=int(to[work.root])))
        src, dst = int(to[work.src_rank]), int(to[work.dst_rank])
        return replace(task, work=replace(work, src_rank=src, dst_rank=dst))

    return replace(
        plan,
        classes=tuple(replace(each, ranks=moved(each.ranks)) for each in plan.classes),
        communicators=tuple(
            replace(each, groups=tuple(moved(group) for group in each.groups))
            for each in plan.communicators
        ),
        tasks=tuple(task_moved(task) for task in plan.tasks),
    )


Ranks = range | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Site:
    """Ranks of the topology that each job has.

    Parameters
    ----------
    mine : range or tuple of int
        Of the job that the scenario asks about.
    others : tuple of (range or tuple of int)
        Of each job beside it.
    """

    mine: Ranks
    others: tuple[Ranks, ...] = ()


def hosts_needed(scenario: Scenario, size: ClusterSize) -> int:
    """Nodes on the network: what the scenario says, or as many as all jobs need."""
    return scenario.cluster.pool or size.nodes + sum(job.nodes for job in scenario.jobs)


def site(scenario: Scenario, size: ClusterSize) -> Site:
    """Share the nodes out: this job chooses first, then the others in their order."""
    free = list(range(hosts_needed(scenario, size)))
    wishes = [(size.nodes, scenario.cluster.placement)]
    wishes += [(job.nodes, job.placement) for job in scenario.jobs]
    found: list[Ranks] = []
    for number, (count, placement) in enumerate(wishes):
        hosts = chosen_hosts(free, count, placement, scenario.seed + number)
        taken = set(hosts)
        free = [host for host in free if host not in taken]
        found.append(_ranks(hosts, size.gpus_per_node))
    return Site(found[0], tuple(found[1:]))


def _ranks(hosts: tuple[int, ...], each: int) -> Ranks:
    if hosts == tuple(range(hosts[0], hosts[0] + len(hosts))):
        return range(hosts[0] * each, (hosts[-1] + 1) * each)
    return tuple(host * each + gpu for host in hosts for gpu in range(each))


def workloads_beside(scenario: Scenario) -> tuple[Workload, ...]:
    """Models of the jobs beside this one.

    Raises
    ------
    InputError
        With the faults of all of them.
    """
    faults: list[Fault] = []
    found: list[Workload] = []
    for number, job in enumerate(scenario.jobs):
        try:
            found.append(resolve_workload(scenario, job.model, f"jobs.{number}.model"))
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)
    return tuple(found)


def neighbours(
    job: TrainingJob, workloads: tuple[Workload, ...], here: Machine, where: Site
) -> tuple[Disturbance, ...]:
    """Return the jobs beside this one, as incidents."""
    names = _names(job.scenario.jobs, workloads)
    return tuple(
        _neighbour(job, number, name, workload, here, ranks)
        for number, (name, workload, ranks) in enumerate(
            zip(names, workloads, where.others, strict=True)
        )
    )


def _names(jobs: Sequence[OtherJob], workloads: Sequence[Workload]) -> list[str]:
    """A name for each job, unlike all others: its own, or its model's with a number if need be."""
    plain = [job.name or workload.name for job, workload in zip(jobs, workloads, strict=True)]
    return [
        name if job.name is not None or plain.count(name) == 1 else f"{name} (job {number})"
        for number, (job, name) in enumerate(zip(jobs, plain, strict=True))
    ]


def _neighbour(
    job: TrainingJob, number: int, name: str, workload: Workload, here: Machine, ranks: Ranks
) -> Disturbance:
    other = job.scenario.jobs[number]
    asked = job.scenario.model_copy(update={"strategy": other.strategy})
    theirs = replace(job, scenario=asked, workload=workload, gpu=here.topology.gpu, chosen=None)
    layers = times(theirs, other.batch_per_gpu)
    made = plan(
        theirs, layers, len(ranks), other.batch_per_gpu, "steady", sockets=here.topology.sockets
    )
    beside = BackgroundJob(
        replace(placed(made, ranks), name=name), other.start, asked.compute.overlap_slowdown
    )
    nodes = f"{other.nodes} node{'s' if other.nodes > 1 else ''}"
    return Disturbance(f"job {name} on {nodes}, {other.placement}", f"jobs.{number}", beside=beside)
