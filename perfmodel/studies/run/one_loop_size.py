"""All results of one cluster size of a strategy whose workers loop on their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import nan
from operator import itemgetter

import numpy as np

from perfmodel.arrays import FloatArray, sending_s
from perfmodel.library.corrections import spread_factors
from perfmodel.library.machine import Machine
from perfmodel.scenario.sections.variants import WhatIf
from perfmodel.scenario.strategies.servers import ParameterServerStrategy
from perfmodel.studies.run.loop_job import EXACT_PUSHES, RATE_SOLUTIONS, LoopJob, settle
from perfmodel.studies.run.loop_metrics import LoopMetrics
from perfmodel.studies.run.resolve.disturbance import Disturbance
from perfmodel.studies.run.resolve.what_if import apply_what_if
from perfmodel.studies.run.result import (
    Bottleneck,
    DisturbanceCost,
    Relief,
    SizeResult,
    Uncertainty,
    with_bottleneck,
)
from perfmodel.studies.run.steps.bottleneck import beside_communication, ends_of, name_link
from perfmodel.studies.run.steps.one_size import cost_of, mfu_of, sum_link_uses
from perfmodel.studies.run.steps.reliefs import (
    COMMUNICATION,
    HOST,
    LATENCY,
    LINKS,
    MOST_OF_IT,
    PARTS,
    WORTH_NAMING,
    WORTH_SEARCHING,
    Part,
    by_savings,
    describe_parts,
)
from perfmodel.studies.run.steps.sized_job import SizedJob, locate_errors
from perfmodel.studies.run.steps.uncertainty import (
    chance_of_job,
    drawn_ends,
    name_compute,
    name_network,
    scaled_ends,
    with_chance,
    with_interval,
)
from perfmodel.studies.run.usage import ServerUse
from perfmodel.timeline import Timeline
from perfmodel.training.parameter_server import server_bytes
from perfmodel.training.plan.step_plan import LoopPlan


def simulate_loop_size(
    sized: SizedJob, *, with_first: bool = True, with_limits: bool = True, with_ends: bool = True
) -> SizeResult:
    """Simulate one size.

    `with_first`: whether the very first round's time is given; it is nan otherwise.
    `with_limits`: whether what limits them is looked for; the bottleneck is "" otherwise.
    `with_ends`: as in `perfmodel.studies.run.steps.one_size.simulate_size`.
    Raises `InputError`: names file, line and field of the scenario.
    """
    with locate_errors(sized):
        job = settle(sized, sized.disturbances)
        metrics = LoopMetrics(job, job.run())
        point = _summarise(sized, metrics, metrics.ends_s[0] if with_first else nan)
        if not with_ends:
            return point
        if sized.disturbances and sized.is_main:
            point = replace(point, disturbance=_costs(metrics))
        point = with_interval(point, sized, simulate_loop_uncertainties(metrics, point))
        use, (low_s, high_s) = point.server_use, point.interval_s or (nan, nan)
        assert use is not None
        updates = use.updates_per_s * point.step_time_s
        point = replace(
            point,
            server_use=replace(use, updates_interval_per_s=(updates / high_s, updates / low_s)),
        )
        if not with_limits:
            return point
        reliefs = simulate_loop_reliefs(metrics)
        return with_bottleneck(point, loop_bottleneck(metrics, point, reliefs), reliefs)


def _summarise(sized: SizedJob, metrics: LoopMetrics, first_s: float) -> SizeResult:
    run, job, plan, step_s = metrics.run, metrics.job, metrics.run.plan, metrics.step_s()
    breakdown_s, machine = metrics.breakdown_s, job.machine
    exposed_s = breakdown_s["exposed communication"]
    steps = len(run.update_times_s) / len(plan.workers)
    return SizeResult(
        gpus=sized.size.gpus,
        nodes=sized.size.nodes,
        step_time_s=step_s,
        first_step_time_s=first_s,
        compute_s=sum(breakdown_s[part] for part in ("forward", "backward", "copies")),
        comm_s=max(metrics.comm_s(), exposed_s),
        exposed_comm_s=exposed_s,
        breakdown_s=breakdown_s,
        samples_per_s=plan.samples / step_s,
        scaling_efficiency=1.0,
        bottleneck="",
        global_batch=plan.samples,
        batch_per_gpu=sized.batch,
        memory=sized.memory(),
        interval_s=None,
        buckets=(),
        links=sum_link_uses(machine.topology, run.counted, steps, run.length_s / steps),
        timeline=Timeline(
            metrics.spans(),
            classes=(*(w.name for w in plan.workers), *(s.name for s in plan.servers)),
        ),
        mode=f"flow, {len(plan.workers)} workers and {len(plan.servers)} servers as processes, "
        f"mean of {job.counted} rounds after {job.warm_up}",
        communication=metrics.communication(exposed_s),
        mfu=mfu_of(sized, plan.samples / step_s),
        notes=_notes(plan),
        server_use=_server_use(sized, metrics, machine),
    )


def _server_use(sized: SizedJob, metrics: LoopMetrics, machine: Machine) -> ServerUse:
    plan, section = metrics.run.plan, sized.job.options
    assert isinstance(section, ParameterServerStrategy)
    bounds, rates = metrics.bounds, metrics.rates_per_s
    workers, servers = len(plan.workers), len(plan.servers)
    together = workers if plan.together else 1
    limits = (
        (bounds.workers_per_s, "computing"),
        (bounds.servers_per_s, "the update at the busiest server"),
        (bounds.links_per_s, name_link(machine.topology, bounds.link or 0)),
    )
    return ServerUse(
        mode=section.mode,
        workers=workers,
        servers=tuple(f"{server.name}: {server.device}" for server in plan.servers),
        updates_per_s=workers / metrics.step_s() / together,
        most_updates_per_s=bounds.least_per_s / together,
        bound_by=min(limits, key=itemgetter(0))[1],
        staleness=metrics.staleness(),
        server_busy=metrics.server_busy,
        queue_wait_s=metrics.queue_wait_s(),
        worker_wait=metrics.worker_wait(),
        fastest_s=1 / max(rates),
        slowest_s=1 / min(rates),
        server_bytes=server_bytes(
            sized.job.workload, section, sized.job.scenario.compute.optimizer, servers, workers
        ),
    )


def _notes(plan: LoopPlan) -> tuple[str, ...]:
    notes = (
        (
            f"A worker's gradients travel in {len(plan.exchanges):,} messages an iteration; "
            "tensors of neighbouring layers for one server are one message where there are more."
        ),
        (
            f"Rates of messages are solved at most {RATE_SOLUTIONS:,} times in the time of a step: "
            f"a message is late by {0.5 / RATE_SOLUTIONS:.2%} of a step, on average."
        ),
    )
    return notes if len(plan.workers) * len(plan.exchanges) > EXACT_PUSHES else notes[:1]


def _costs(metrics: LoopMetrics) -> DisturbanceCost:
    """Simulate the job without each of its disturbances."""
    job, step_s = metrics.job, metrics.step_s()

    def step_with_s(disturbances: Sequence[Disturbance]) -> float:
        rest = tuple(disturbances)
        length = job if any(each.varies for each in rest) else settle(job.sized, rest)
        return _step_s(LoopJob(job.sized, rest, length.warm_up, length.counted, job.settled_s))

    return cost_of(
        job.disturbances, step_with_s, step_s, metrics.rounds_s() if metrics.varies else (step_s,)
    )


def _step_s(job: LoopJob) -> float:
    return LoopMetrics(job, job.run()).step_s()


# ---------------------------------------------------------------- interval


def simulate_loop_uncertainties(metrics: LoopMetrics, point: SizeResult) -> tuple[Uncertainty, ...]:
    """Simulate the ends of compute and network, without what varies from step to step.

    Their ratios to a run without it are what counts, as for other strategies. Compute is the times
    of layers, and nothing of the servers; the network is bandwidth and latency of all links.
    """
    sized, step_s = metrics.job.sized, metrics.step_s()
    job = replace(
        metrics.job,
        disturbances=tuple(each for each in metrics.job.disturbances if not each.varies),
    )
    base_s = _step_s(job) if metrics.varies else step_s

    def steps_s(jobs: Iterable[SizedJob]) -> list[float]:
        return [_step_s(replace(job, sized=each)) for each in jobs]

    share, likely = step_s / base_s, sized.ensemble.likely
    compute = scaled_ends(
        name_compute(sized.job),
        share,
        sorted(steps_s(map(sized.with_compute, sized.compute_spread))),
    )
    chance = chance_of_job(sized, step_s, compute)  # of the run alone, where nobody waits for all
    parts = [compute, *(chance if metrics.run.plan.together else chance[-1:])]
    if sized.ensemble.drawn and not job.is_free:
        parts.append(
            drawn_ends(likely, share, steps_s(map(sized.on_machine, sized.ensemble.drawn)), base_s)
        )
    elif not job.is_free:
        largest = int(max(each.push_bytes for each in job.plan().exchanges))
        slowed_s = steps_s(
            sized.on_machine(apply_what_if(_slowed(by), likely))
            for by in spread_factors(likely.topology, "all_reduce", largest)
        )
        parts.append(scaled_ends(name_network(likely), share, sorted(slowed_s)))
    return with_chance(parts, point.disturbance)


def _slowed(by: float) -> WhatIf:
    """Return the what-if by which messages take `by` times as long."""
    return WhatIf(
        network_bandwidth=1 / by, node_bandwidth=1 / by, network_latency=by, node_latency=by
    )


# ---------------------------------------------------------------- what limits

UPDATES = Part("updates", {}, text="servers that update in no time")
"""The servers' own work."""

LEAST_BUSY_SHARE = 0.25
"""Share of the time that a link has to be busy for the kind of it to be tried."""


def simulate_loop_reliefs(metrics: LoopMetrics) -> tuple[Relief, ...]:
    """Simulate the loops without each limit that may matter; the one that saves most first.

    These are the host's launches, servers' updates, and links of each kind that are busy.
    """
    job, step_s = metrics.job, metrics.step_s()
    idle_s, waits_s = (metrics.breakdown_s[name] for name in ("idle", "exposed communication"))
    reliefs: list[Relief] = []
    if idle_s > WORTH_NAMING * step_s:
        reliefs.append(_relief(metrics, replace(job, launches=False), HOST))
    if waits_s <= WORTH_SEARCHING * step_s:
        return by_savings(reliefs)
    kinds, busy = job.machine.topology.arcs.kinds, _busy(metrics)
    of_waiting = [
        _relief(metrics, _without(job, part), part)
        for part in LINKS
        if busy[kinds.among(part.kinds)].max(initial=0.0) > LEAST_BUSY_SHARE
    ]
    if max(metrics.server_busy) > WORTH_NAMING:
        of_waiting.insert(0, _relief(metrics, replace(job, idle_servers=True), UPDATES))
    if max((relief.saves_s for relief in of_waiting), default=0.0) < MOST_OF_IT * waits_s:
        of_waiting += [
            _relief(metrics, _without(job, LATENCY), LATENCY),
            replace(
                _relief(metrics, replace(job, free=True, idle_servers=True), COMMUNICATION),
                parts=(COMMUNICATION.name, UPDATES.name),
            ),
        ]
    return by_savings([*reliefs, *of_waiting])


def _busy(metrics: LoopMetrics) -> FloatArray:
    """Share of the time in which each link is busy."""
    rates_Bps, run = metrics.job.machine.topology.arcs.bandwidth_Bps, metrics.run
    return sending_s(np.where(rates_Bps > 0, run.counted.wire_bytes, 0.0), rates_Bps * run.length_s)


def _without(job: LoopJob, part: Part) -> LoopJob:
    """Return the loops on a machine of which a part is no limit."""
    machine = apply_what_if(WhatIf.model_validate(part.what_if), job.sized.ensemble.likely)
    sized = job.sized.on_machine(machine)
    return replace(
        job, sized=sized, disturbances=sized.moved_disturbances(machine, job.disturbances)
    )


def _relief(metrics: LoopMetrics, job: LoopJob, part: Part) -> Relief:
    """Simulate loops of which a part of the machine, or the servers' own work, is no limit."""
    return Relief(
        describe_parts([part]), (part.name,), dict(part.what_if), metrics.step_s() - _step_s(job)
    )


def loop_bottleneck(
    metrics: LoopMetrics, point: SizeResult, reliefs: Sequence[Relief]
) -> Bottleneck:
    """Name what limits: "compute", the host, the servers' updates, an event, latency or a link.

    It is what saves most where it is no limit, if that is more than 1 % of the step.
    """
    elsewhere = beside_communication(
        point, reliefs, max((relief.saves_s for relief in reliefs), default=0.0)
    )
    if elsewhere is not None:
        return elsewhere
    name = reliefs[0].parts[0]
    if name == UPDATES.name:
        server = metrics.run.plan.servers[int(np.argmax(metrics.server_busy))]
        updates = f"updates at {server.name} ({server.device})"
        return Bottleneck("communication", updates, updates)
    topology, shares, over = metrics.job.machine.topology, _busy(metrics), "messages, over "
    if PARTS[name].kinds:
        shares, over = np.where(topology.arcs.kinds.among(PARTS[name].kinds), shares, -1.0), ""
    elif name == LATENCY.name:
        over = "latency of messages, over "
    busiest = int(np.argmax(shares))
    ends = ends_of(topology, busiest)
    return Bottleneck(
        "communication", f"{over}{name_link(topology, busiest)}", f"{over}{ends}", (ends,)
    )
