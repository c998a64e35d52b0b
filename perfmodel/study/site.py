"""Where a job runs, and who runs beside it: nodes of one network shared out among jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfmodel.errors import Fault, InputError
from perfmodel.library.carry import Machine
from perfmodel.scenario import OtherJob, Scenario, Size
from perfmodel.simulate.incidents import Beside
from perfmodel.study.incident import Incident
from perfmodel.study.training import Job, load_workload, plan, times
from perfmodel.training.placement import chosen_hosts, placed
from perfmodel.workload.model import Workload

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


def hosts_needed(scenario: Scenario, size: Size) -> int:
    """Nodes on the network: what the scenario says, or as many as all jobs need."""
    return scenario.cluster.pool or size.nodes + sum(job.nodes for job in scenario.jobs)


def site(scenario: Scenario, size: Size) -> Site:
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
            found.append(load_workload(scenario, job.model, f"jobs.{number}.model"))
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)
    return tuple(found)


def neighbours(
    job: Job, workloads: tuple[Workload, ...], here: Machine, where: Site
) -> tuple[Incident, ...]:
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
    job: Job, number: int, name: str, workload: Workload, here: Machine, ranks: Ranks
) -> Incident:
    other = job.scenario.jobs[number]
    asked = job.scenario.model_copy(update={"strategy": other.strategy})
    theirs = replace(job, scenario=asked, workload=workload, gpu=here.topology.gpu, chosen=None)
    layers = times(theirs, other.batch_per_gpu)
    made = plan(
        theirs, layers, len(ranks), other.batch_per_gpu, "steady", sockets=here.topology.sockets
    )
    beside = Beside(
        replace(placed(made, ranks), name=name), other.start, asked.compute.overlap_slowdown
    )
    nodes = f"{other.nodes} node{'s' if other.nodes > 1 else ''}"
    return Incident(f"job {name} on {nodes}, {other.placement}", f"jobs.{number}", beside=beside)
