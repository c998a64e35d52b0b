"""A job whose workers loop, with its disturbances: which loops to run, on what, for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from statistics import NormalDist

import numpy as np

from perfmodel.arrays import Z80, FloatArray, round_bits, sending_s
from perfmodel.library.machine import Machine
from perfmodel.simulate.engine.loop_records import LoopRun
from perfmodel.simulate.engine.loop_run import Stretch, route_of_message, simulate_loops
from perfmodel.studies.run.resolve.disturbance import Disturbance, background_traffic
from perfmodel.studies.run.resolve.training_job import gpu_spread
from perfmodel.studies.run.resolve.what_if import what_if_of
from perfmodel.studies.run.steps.output_analysis import MEAN_WITHIN, count_needed_steps
from perfmodel.studies.run.steps.simulate_step import list_changes, timer_of
from perfmodel.studies.run.steps.sized_job import SizedJob
from perfmodel.training.plan.step_plan import LoopPlan, Worker


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
    count, items, exchanges = len(plan.workers), plan.items, plan.exchanges
    cycles_s = [
        max(
            worker.scale * sum(item.duration_s for item in items[worker.like]),
            sum(item.host_s for item in items[worker.like]),
        )
        for worker in plan.workers
    ]
    if plan.slack is not None:  # nobody makes more updates than the slowest, in the long run
        cycles_s = [max(cycles_s)] * count
    links_s = _link_demands_s(plan, machine)
    works_s = [each.each_s + each.all_s / count for each in exchanges]
    server_s = float(np.bincount([each.server for each in exchanges], works_s).max())
    link = int(np.argmax(links_s)) if len(links_s) and links_s.max() > 0 else None
    return LoopBounds(
        workers_per_s=sum(1 / cycle_s if cycle_s else np.inf for cycle_s in cycles_s),
        links_per_s=np.inf if link is None else 1 / float(links_s[link]),
        servers_per_s=1 / server_s if server_s else np.inf,
        link=link,
    )


def _link_demands_s(plan: LoopPlan, machine: Machine) -> FloatArray:
    """Mean time of an update on each link; seconds."""
    topology, servers = machine.topology, [each.server for each in plan.exchanges]
    pushed = np.bincount(servers, [each.push_bytes for each in plan.exchanges], len(plan.servers))
    pulled = np.bincount(servers, [each.pull_bytes for each in plan.exchanges], len(plan.servers))
    nbytes, rates = np.zeros(len(topology.arcs)), topology.arcs.bandwidth_Bps
    for worker, (number, server) in product(plan.workers, enumerate(plan.servers)):
        ends = topology.ranks[worker.ranks[0]], server.device
        if ends[0] != ends[1]:
            for (src, dst), size in ((ends, pushed[number]), (ends[::-1], pulled[number])):
                route = route_of_message(machine, src, dst)
                np.add.at(nbytes, list(route), size / len(plan.workers))
    return sending_s(np.where(rates > 0, nbytes, 0.0), rates)


# ---------------------------------------------------------------- loops of a job

COUNTED_UPDATES, FEWEST_ROUNDS, MOST_ROUNDS = 128, 4, 12
"""Updates of all workers together that are counted, and rounds of an update of each at least and at
most: where nothing is random, all rounds are soon alike."""
SLOW_ITERATIONS = 4
"""Iterations of the slowest worker that are counted at least."""
EXACT_PUSHES = 64
"""Pushes of a round up to which rates of messages are solved at each beginning and end."""
RATE_SOLUTIONS = 400
"""Beyond it, how often in a round they are solved at most: a message is late by an eighth of a
per cent of a round, on average."""
MOST_PAIRS, MOST_LOOSE_PAIRS = 8_192, 2_048
"""Pairs of a worker and a server that can be simulated in half a minute: where all workers send and
wait together, and where each goes its own way."""
MOST_JITTER_ROUNDS = 64
"""Rounds with jitter that are counted at most."""
MANY_PUSHES = 512
"""Pushes of a round from which as few rounds are counted as may be."""


@dataclass(frozen=True)
class LoopJob:
    """The loops of a job on a machine.

    `warm_up`, `counted`: rounds of an update of each worker, of which the last are counted.
    `settled_s`: when the counted rounds begin, from which times of disturbances count; seconds.
    """

    sized: SizedJob
    disturbances: tuple[Disturbance, ...]
    warm_up: int
    counted: int
    settled_s: float = 0.0
    launches: bool = True
    free: bool = False
    idle_servers: bool = False

    @property
    def is_free(self) -> bool:
        """Whether messages take no time."""
        return self.free or not what_if_of(self.sized.job.scenario).communication

    @property
    def machine(self) -> Machine:
        """As it is at the start of the run."""
        return timer_of(self.sized.setup(), self.disturbances).machine

    def plan(self) -> LoopPlan:
        """Return the loops with the speeds of this job's GPUs and of its slow and other ones."""
        plan = self.sized.loops_for(None, self.launches)
        gpus = list(dict.fromkeys(each.gpu for each in self.disturbances if each.gpu is not None))
        others = [self.sized.loops_for(gpu, self.launches).items[0] for gpu in gpus]
        scales = dict(zip(self.sized.allocation.own, gpu_times(self.sized), strict=True))
        causes = [(each, rank) for each in self.disturbances for rank in each.ranks]
        kinds = {rank: 1 + gpus.index(each.gpu) for each, rank in causes if each.gpu is not None}
        for each, rank in causes:
            if each.gpu is None and each.steps is None:
                scales[rank] *= each.by
        names = self.sized.machine.topology.ranks
        workers = tuple(
            replace(
                worker,
                name=names[worker.ranks[0]].split("/")[0]
                if len(worker.ranks) > 1
                else names[worker.ranks[0]],
                scale=max(scales[rank] for rank in worker.ranks),
                like=kinds.get(worker.ranks[0], 0),
            )
            for worker in plan.workers
        )
        plan = replace(plan, workers=workers, items=(*plan.items, *others))
        if plan.slack != 0:
            plan = replace(plan, workers=self._spread_out(plan))
        if not self.idle_servers:
            return plan
        return replace(
            plan, exchanges=tuple(replace(each, each_s=0.0, all_s=0.0) for each in plan.exchanges)
        )

    def _spread_out(self, plan: LoopPlan) -> tuple[Worker, ...]:
        """Let workers begin at random times of a round.

        Real ones draw apart by chance; here those that begin together and are alike would stay
        together for long, and crowd links that then lie idle.
        """
        round_s = len(plan.workers) / loop_bounds(plan, self.machine).least_per_s
        phases = np.random.default_rng(self.sized.job.scenario.seed).random(len(plan.workers))
        pairs = zip(plan.workers, round_bits(phases * round_s).tolist(), strict=True)
        return tuple(replace(worker, start_s=start_s) for worker, start_s in pairs)

    def run(self) -> LoopRun:
        """Simulate."""
        plan, machine, quantum_s = self.plan(), self.machine, 0.0
        if len(plan.workers) * len(plan.exchanges) > EXACT_PUSHES and not self.is_free:
            quantum_s = len(plan.workers) / loop_bounds(plan, machine).least_per_s / RATE_SOLUTIONS
        return simulate_loops(
            plan,
            machine,
            rounds=self.warm_up + self.counted,
            fidelity="free"
            if self.is_free
            else "reference"
            if self.sized.fidelity == "reference"
            else "flow",
            stretch=self._stretch(plan),
            changes=list_changes(self.sized.setup(self.settled_s), self.disturbances),
            traffic=background_traffic(self.disturbances, self.settled_s),
            quantum_s=quantum_s,
            tracked=tracked_workers(plan),
        )

    def _stretch(self, plan: LoopPlan) -> Stretch | None:
        """Return the factor on the work of the slowest GPU of a worker; None where none differs."""
        drawn = [
            (cache(partial(each.jitter.factors, self.sized.size.gpus)), each.jitter.per == "layer")
            for each in self.disturbances
            if each.jitter is not None
        ]
        slow = [
            (each, frozenset(step + self.warm_up for step in each.steps))
            for each in self.disturbances
            if each.steps is not None
        ]
        place = {rank: at for at, rank in enumerate(self.sized.allocation.own)}

        def factor(worker: int, iteration: int, item: int) -> float:
            causes = [each for each, steps in slow if iteration in steps]
            draws = [factors(iteration, item if layers else 0) for factors, layers in drawn]
            return max(
                math.prod(
                    [
                        *(each.by for each in causes if rank in each.ranks),
                        *(float(of_ranks[place[rank]]) for of_ranks in draws),
                    ]
                )
                for rank in plan.workers[worker].ranks
            )

        return factor if drawn or slow else None


def gpu_times(sized: SizedJob) -> list[float]:
    """Time of each GPU of the job over that of a usual one.

    They have the speeds that so many GPUs of one model are expected to have, the same at each
    size: normal scores (Blom 1958), in an order drawn by the scenario's seed.
    """
    count, spread, normal = sized.size.gpus, gpu_spread(sized.job), NormalDist()
    if count == 1 or not spread:
        return [1.0] * count
    scores = [normal.inv_cdf((at + 1 - 0.375) / (count + 0.25)) for at in range(count)]
    order = np.random.default_rng(sized.job.scenario.seed).permutation(count)
    return list(round_bits(1.0 + spread * np.array(scores)[order]).tolist())


def tracked_workers(plan: LoopPlan) -> tuple[int, ...]:
    """Workers whose spans are worth drawing: a usual one, and the fastest and slowest kinds."""
    work_s = [
        worker.scale * sum(item.duration_s for item in plan.items[worker.like])
        for worker in plan.workers
    ]
    order = sorted(range(len(work_s)), key=work_s.__getitem__)
    return tuple(dict.fromkeys([order[len(order) // 2], order[-1], order[0]]))


# ---------------------------------------------------------------- length


def settle(sized: SizedJob, disturbances: tuple[Disturbance, ...]) -> LoopJob:
    """Choose how long to simulate, and when the counted rounds begin.

    Raises `InputError`: more workers and servers, or more rounds, than can be simulated.
    """
    plan = sized.loops_for(None)
    check_pairs(sized, plan)
    workers, cvs = len(plan.workers), [each.jitter.cv for each in disturbances if each.jitter]
    counted = min(
        FEWEST_ROUNDS if workers * len(plan.exchanges) > MANY_PUSHES else MOST_ROUNDS,
        max(FEWEST_ROUNDS, math.ceil(COUNTED_UPDATES / workers)),
    )
    steady = tuple(each for each in disturbances if not each.varies)
    job = LoopJob(sized, steady, warm_up_of(counted), counted)
    if plan.slack is None:  # a worker twice as slow makes half as many updates
        scales = [worker.scale for worker in job.plan().workers]
        slowest = max(scales) * np.mean([1 / scale for scale in scales])
        counted = max(counted, min(20 * MOST_ROUNDS, math.ceil(SLOW_ITERATIONS * slowest)))
    needed = [math.ceil((Z80 * cv / MEAN_WITHIN) ** 2 / workers) for cv in cvs]
    counted = max(counted, min(MOST_JITTER_ROUNDS, max(needed, default=0)))
    if len(steady) == len(disturbances):
        return LoopJob(sized, disturbances, warm_up_of(counted), counted)
    ends_s = job.run().round_ends_s()
    settled_s = ends_s[job.warm_up - 1]
    round_s = (ends_s[-1] - settled_s) / (len(ends_s) - job.warm_up)
    counted = max(
        counted,
        count_needed_steps([replace(each, jitter=None) for each in disturbances], round_s, None),
    )
    return LoopJob(sized, disturbances, job.warm_up, counted, settled_s)


def warm_up_of(counted: int) -> int:
    """Rounds before those that count: workers have drawn apart, queues have filled."""
    return max(2, counted // 3)


def check_pairs(sized: SizedJob, plan: LoopPlan) -> None:
    """Refuse more pairs of workers and servers than can be simulated in half a minute."""
    workers, is_loose = len(plan.workers), plan.slack != 0
    pairs, most = workers * len(plan.servers), MOST_LOOSE_PAIRS if is_loose else MOST_PAIRS
    ways = (
        (True, "fewer servers or workers"),
        (
            is_loose and pairs <= MOST_PAIRS,
            f"workers that stay together ({MOST_PAIRS:,} pairs)",
        ),
        (
            sized.size.gpus_per_node > 1 and workers == sized.size.gpus,
            "local_reduce: true, where a node is one worker",
        ),
    )
    sized.job.scenario.refuse_if(
        pairs > most,
        "strategy.servers",
        f"{len(plan.servers):,} with {workers:,} workers, {pairs:,} pairs",
        f"at most {most:,} pairs: {', or '.join(text for helps, text in ways if helps)}",
    )
