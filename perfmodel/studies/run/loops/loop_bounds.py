"""What no loops of workers can be faster than: the asymptotic bounds of closed queueing networks.

With N workers, of which worker i computes for Z_i an iteration, and demands D_k of links and
servers for each update, the throughput X is at most sum 1/Z_i and at most 1/max D_k. Source:
Lazowska et al., Quantitative System Performance, 1984, section 5.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.library.machine import Machine
from perfmodel.training.plan.loop_plan import LoopPlan


@dataclass(frozen=True, slots=True)
class LoopBounds:
    """Bounds of updates per second; an update is one worker's.

    `workers_per_s`: of computing alone.
    `links_per_s`: of the busiest link.
    `servers_per_s`: of the busiest server.
    `link`: index of the busiest link; None without links.
    """

    workers_per_s: float
    links_per_s: float
    servers_per_s: float
    link: int | None

    @property
    def least_per_s(self) -> float:
        """The smallest of them."""
        return min(self.workers_per_s, self.links_per_s, self.servers_per_s)


def loop_bounds(plan: LoopPlan, machine: Machine) -> LoopBounds:
    """Bounds of the updates that all workers together make.

    Where workers stay together, the slowest's computing bounds all; else links and servers bound
    the workers as if each made as many updates as any other.
    """
    cycles_s = [
        worker.scale * sum(item.duration_s for item in plan.items[worker.like])
        for worker in plan.workers
    ]
    hosts_s = [sum(item.host_s for item in plan.items[worker.like]) for worker in plan.workers]
    cycles_s = [max(pair) for pair in zip(cycles_s, hosts_s, strict=True)]
    count = len(plan.workers)
    if plan.slack is not None:  # nobody makes more updates than the slowest, in the long run
        cycles_s = [max(cycles_s)] * count
    links_s = _link_demands_s(plan, machine)
    servers_s = [0.0] * len(plan.servers)
    for exchange in plan.exchanges:
        servers_s[exchange.server] += exchange.each_s + exchange.all_s / count
    link = int(np.argmax(links_s)) if len(links_s) and links_s.max() > 0 else None
    return LoopBounds(
        workers_per_s=sum(1 / cycle_s if cycle_s else np.inf for cycle_s in cycles_s),
        links_per_s=np.inf if link is None else 1 / float(links_s[link]),
        servers_per_s=1 / max(servers_s) if max(servers_s) else np.inf,
        link=link,
    )


def _link_demands_s(plan: LoopPlan, machine: Machine) -> FloatArray:
    """Mean time of an update on each link; seconds."""
    topology = machine.topology
    pushed, pulled = np.zeros(len(plan.servers)), np.zeros(len(plan.servers))
    for exchange in plan.exchanges:
        pushed[exchange.server] += exchange.push_bytes
        pulled[exchange.server] += exchange.pull_bytes
    nbytes = np.zeros(len(topology.arcs))
    for worker in plan.workers:
        end = topology.ranks[worker.ranks[0]]
        for number, server in enumerate(plan.servers):
            if end == server.device:
                continue
            for src, dst, size in (
                (end, server.device, pushed[number]),
                (server.device, end, pulled[number]),
            ):
                np.add.at(nbytes, list(machine.router.route(src, dst)), size / len(plan.workers))
    rates = topology.arcs.bandwidth_Bps
    demands_s: FloatArray = np.divide(nbytes, rates, out=np.zeros(len(nbytes)), where=rates > 0)
    return demands_s
