"""Allocate the nodes of a network to jobs, and place the plans of jobs on their ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from perfmodel.arrays import RankGroup
from perfmodel.errors import Fault, InputError, TopologyError, check_schedule
from perfmodel.library.machine import Machine
from perfmodel.scenario import ClusterSize, OtherJob, Scenario
from perfmodel.scenario.sections.parallel import ParallelSection
from perfmodel.scenario.strategies.servers import server_nodes
from perfmodel.simulate.engine.background import BackgroundJob
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.resolve.disturbance import Disturbance
from perfmodel.studies.run.resolve.job_plan import plan_step, price_layers
from perfmodel.studies.run.resolve.training_job import TrainingJob
from perfmodel.topology.model import Topology
from perfmodel.training.plan.step_plan import Compute, Exchange, LoopPlan, Server, StepPlan
from perfmodel.workload.model import Workload


def choose_hosts(
    free: Sequence[int], count: int, placement: Literal["packed", "spread", "random"], seed: int
) -> tuple[int, ...]:
    """Choose nodes for a job among those that are free.

    `free`: rising; adjacent ones share switches.
    `count`: at most as many as are free.
    `placement`: the first ones; at equal distances; or drawn at random.
    `seed`: for "random".
    The result rises, as schedulers list nodes (Slurm sorts them), so that rings follow the fabric.

    Examples
    --------
    >>> choose_hosts(range(8), 4, "spread", 0)
    (0, 2, 4, 6)
    """
    if placement == "packed":
        return tuple(free[:count])
    if placement == "spread":
        return tuple(free[at * len(free) // count] for at in range(count))
    drawn = np.random.default_rng(seed).choice(len(free), count, replace=False)
    return tuple(free[at] for at in sorted(drawn.tolist()))


def place_plan(plan: StepPlan, ranks: RankGroup, servers: tuple[int, ...] = ()) -> StepPlan:
    """Return the plan on other ranks: its rank r becomes ``ranks[r]``.

    `servers`: what ranks of its communicators after those of its classes become.
    Raises `ScheduleError`: fewer ranks than the plan has.
    """
    needed = 1 + max(max(each.ranks) for each in plan.classes)
    check_schedule(
        (needed > len(ranks), f"{plan.name!r} has {needed} ranks; {len(ranks)} were given")
    )
    if ranks == range(len(ranks)) and not servers:
        return plan
    rank_of = np.asarray([*ranks, *servers], dtype=np.int64)

    def place_group(members: RankGroup) -> tuple[int, ...]:
        return tuple(rank_of[np.asarray(members, dtype=np.int64)].tolist())

    return replace(
        plan,
        classes=tuple(replace(each, ranks=place_group(each.ranks)) for each in plan.classes),
        communicators=tuple(
            replace(each, groups=tuple(map(place_group, each.groups)))
            for each in plan.communicators
        ),
        tasks=tuple(
            task
            if isinstance(task.work, Compute)
            else replace(task, work=replace(task.work, root=int(rank_of[task.work.root])))
            for task in plan.tasks
        ),
    )


@dataclass(frozen=True, slots=True)
class RankAllocation:
    """Ranks of the topology that each job has.

    `own`: of the scenario's main job.
    `others`: of each other job.
    `servers`: hosts of the main job's servers, as many as it may have.
    `server_ranks`: the first of each host that servers have for themselves.
    """

    own: RankGroup
    others: tuple[RankGroup, ...] = ()
    servers: tuple[int, ...] = ()
    server_ranks: tuple[int, ...] = ()


def count_hosts(scenario: Scenario, size: ClusterSize) -> int:
    """Count the nodes on the network: `cluster.pool`, or as many as all jobs and servers need."""
    return scenario.cluster.pool or (
        size.nodes
        + sum(job.nodes for job in scenario.jobs)
        + server_nodes(scenario.strategy, scenario.parallel)
    )


def allocate_ranks(scenario: Scenario, size: ClusterSize) -> RankAllocation:
    """Allocate nodes: to the main job, to the others in their order, then to servers.

    Servers without nodes of their own are on those of the main job.
    """
    free = list(range(count_hosts(scenario, size)))
    requests = [(size.nodes, scenario.cluster.placement)]
    requests += [(job.nodes, job.placement) for job in scenario.jobs]
    hosts: list[tuple[int, ...]] = []
    for number, (count, placement) in enumerate(requests):
        hosts.append(choose_hosts(free, count, placement, scenario.seed + number))
        free = sorted(set(free).difference(hosts[-1]))
    own, *others = (_list_ranks(each, size.gpus_per_node) for each in hosts)
    apart = server_nodes(scenario.strategy, scenario.parallel)
    return RankAllocation(
        own,
        tuple(others),
        servers=tuple(free[:apart]) or hosts[0],
        server_ranks=tuple(host * size.gpus_per_node for host in free[:apart]),
    )


def _list_ranks(hosts: tuple[int, ...], gpus_per_host: int) -> RankGroup:
    first, end = hosts[0], hosts[0] + len(hosts)
    if hosts == tuple(range(first, end)):
        return range(first * gpus_per_host, end * gpus_per_host)
    return tuple(host * gpus_per_host + gpu for host in hosts for gpu in range(gpus_per_host))


def place_loops(plan: LoopPlan, allocation: RankAllocation, machine: Machine) -> LoopPlan:
    """Return the loops on a job's ranks, with the devices of its servers.

    A server on a CPU is on the one nearest to a NIC of its host, or to its first GPU where it has
    none. What the GPUs of a worker do among themselves takes the library's time alone.

    Raises `InputError`: the hosts have no CPU.
    """
    workers = tuple(
        replace(worker, ranks=tuple(allocation.own[rank] for rank in worker.ranks))
        for worker in plan.workers
    )
    servers = tuple(
        replace(server, device=_server_device(machine, allocation.servers[server.host], server))
        for server in plan.servers
    )
    group, exchanges = workers[0].ranks, plan.exchanges
    if len(group) > 1:
        timer = UncontendedTimer(machine)
        exchanges = tuple(_with_local_times(each, timer, group) for each in exchanges)
    return replace(plan, workers=workers, servers=servers, exchanges=exchanges)


def _server_device(machine: Machine, host: int, server: Server) -> str:
    topology = machine.topology
    gpu = topology.ranks[host * topology.gpus_per_host]
    if server.on_gpu:
        return gpu
    nics = machine.router.nearest_nics(gpu)
    try:
        return machine.router.nearest_cpu(nics[0] if nics else gpu)
    except TopologyError as error:
        raise InputError(
            Fault("strategy.device", "'cpu'", f"'gpu' on {topology.template}: {error}")
        ) from None


def _with_local_times(
    exchange: Exchange, timer: UncontendedTimer, group: tuple[int, ...]
) -> Exchange:
    """Time what the GPUs of a worker add up before a push and share after a pull."""
    nbytes = round(exchange.local_bytes)
    before_s, after_s = (
        timer.best(op, nbytes, group)[1] if nbytes else 0.0
        for op in ("reduce_scatter", "all_gather")
    )
    return replace(exchange, before_s=before_s, after_s=after_s)


def resolve_other_jobs(
    job: TrainingJob,
    workloads: tuple[Workload, ...],
    machine: Machine,
    allocation: RankAllocation,
) -> tuple[Disturbance, ...]:
    """Place the other jobs of a scenario on their ranks, as disturbances of the main job."""
    sections, topology = job.scenario.jobs, machine.topology
    names = [each.name or own.name for each, own in zip(sections, workloads, strict=True)]
    disturbances = []
    for number, (section, workload) in enumerate(zip(sections, workloads, strict=True)):
        name, ranks = names[number], allocation.others[number]
        if section.name is None and names.count(name) > 1:  # as another job's model
            name = f"{name} (job {number})"
        background = BackgroundJob(
            replace(
                place_plan(_plan_other_job(job, section, workload, topology, len(ranks)), ranks),
                name=name,
            ),
            section.start,
            job.scenario.compute.overlap_slowdown,
        )
        nodes = f"{section.nodes} node{'s' if section.nodes > 1 else ''}"
        disturbances.append(
            Disturbance(
                f"job '{name}' on {nodes}, {section.placement}",
                f"jobs.{number}",
                background_job=background,
            )
        )
    return tuple(disturbances)


def _plan_other_job(
    main: TrainingJob, section: OtherJob, workload: Workload, topology: Topology, ranks: int
) -> StepPlan:
    job = replace(
        main,
        scenario=main.scenario.model_copy(
            update={"strategy": section.strategy, "parallel": ParallelSection()}
        ),
        workload=workload,
        gpu=topology.gpu,
        chosen=None,
        whole=None,
        own=None,
    )
    return plan_step(
        job,
        price_layers(job, section.batch_per_gpu),
        ranks,
        section.batch_per_gpu,
        "steady",
        sockets=topology.sockets,
        ranks_per_host=topology.gpus_per_host,
    )
