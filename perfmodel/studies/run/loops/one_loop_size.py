"""All results of one cluster size of a strategy whose workers loop on their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import nan

from perfmodel.library.corrections import kind_of_machine, spread_factors
from perfmodel.library.machine import Machine
from perfmodel.scenario.sections.variants import WhatIf
from perfmodel.scenario.strategies.servers import ParameterServerStrategy
from perfmodel.studies.run.loops.loop_job import (
    EXACT_PUSHES,
    QUANTA,
    LoopBounds,
    LoopJob,
    LoopLength,
    settle,
)
from perfmodel.studies.run.loops.loop_limits import loop_bottleneck, simulate_loop_reliefs
from perfmodel.studies.run.loops.loop_metrics import LoopMetrics
from perfmodel.studies.run.resolve.training_job import gpu_spread
from perfmodel.studies.run.resolve.what_if import apply_what_if
from perfmodel.studies.run.result.model import (
    DisturbanceCost,
    EventCost,
    SizeResult,
    Uncertainty,
    with_bottleneck,
)
from perfmodel.studies.run.result.usage import LinkUse, ServerUse
from perfmodel.studies.run.steps.bottleneck import name_link
from perfmodel.studies.run.steps.one_size import mfu_of, sum_link_uses
from perfmodel.studies.run.steps.output_analysis import mean_interval_s
from perfmodel.studies.run.steps.sized_job import SizedJob, locate_errors
from perfmodel.studies.run.steps.uncertainty import chance_of_gpus, name_compute, step_interval
from perfmodel.timeline import Timeline
from perfmodel.training.parameter_server import ServerOptions, server_bytes
from perfmodel.training.plan.loop_plan import LoopPlan
from perfmodel.workload.compute_spread import run_factors


def simulate_loop_size(
    sized: SizedJob, *, with_first: bool = True, with_limits: bool = True
) -> SizeResult:
    """Simulate one size.

    `with_first`: whether the very first round's time is given; it is nan otherwise.
    `with_limits`: whether what limits them is looked for; the bottleneck is "" otherwise.
    Raises `InputError`: names file, line and field of the scenario.
    """
    with locate_errors(sized):
        job = settle(sized, sized.disturbances)
        metrics = LoopMetrics(job, job.run())
        first_s = metrics.ends_s[0] if with_first else nan
        point = _summarise(sized, metrics, first_s)
        if sized.disturbances and sized.is_main:
            point = replace(point, disturbance=_costs(metrics))
        uncertainties = simulate_loop_uncertainties(metrics, point)
        ends_s = step_interval(point.step_time_s, uncertainties)
        point = replace(point, uncertainties=uncertainties, interval_s=ends_s)
        point = replace(point, server_use=_with_interval(point))
        if not with_limits:
            return point
        reliefs = simulate_loop_reliefs(metrics)
        bottleneck = loop_bottleneck(metrics, point, reliefs)
        return replace(with_bottleneck(point, bottleneck), reliefs=reliefs)


def _with_interval(point: SizeResult) -> ServerUse:
    """Updates per second at both ends of the step's interval."""
    use, (low_s, high_s) = point.server_use, point.interval_s or (nan, nan)
    assert use is not None
    per_s = use.updates_per_s * point.step_time_s
    return replace(use, updates_interval_per_s=(per_s / high_s, per_s / low_s))


def _summarise(sized: SizedJob, metrics: LoopMetrics, first_s: float) -> SizeResult:
    plan, step_s = metrics.run.plan, metrics.step_s()
    machine = metrics.job.machine
    breakdown_s = metrics.breakdown_s
    rounds = metrics.job.length
    use = _server_use(sized, metrics, machine)
    exposed_s = breakdown_s["exposed communication"]
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
        links=_link_uses(metrics, machine),
        timeline=Timeline(
            metrics.spans(),
            classes=(*(w.name for w in plan.workers), *(s.name for s in plan.servers)),
        ),
        mode=f"flow, {len(plan.workers)} workers and {len(plan.servers)} servers as processes, "
        f"mean of {rounds.counted} rounds after {rounds.warm_up}",
        communication=metrics.communication(exposed_s),
        mfu=mfu_of(sized, plan.samples / step_s),
        notes=_notes(plan),
        server_use=use,
    )


def _link_uses(metrics: LoopMetrics, machine: Machine) -> Sequence[LinkUse]:
    run = metrics.run
    steps = len(run.update_times_s) / len(run.plan.workers)
    return sum_link_uses(machine.topology, run.counted, steps, run.length_s / steps)


def _server_use(sized: SizedJob, metrics: LoopMetrics, machine: Machine) -> ServerUse:
    plan, options, section = metrics.run.plan, sized.job.options, sized.job.scenario.strategy
    assert isinstance(options, ServerOptions)
    assert isinstance(section, ParameterServerStrategy)
    bounds, rates = metrics.bounds, metrics.rates_per_s
    together = len(plan.workers) if plan.together else 1
    return ServerUse(
        mode=section.mode,
        workers=len(plan.workers),
        servers=tuple(f"{server.name}: {server.device}" for server in plan.servers),
        updates_per_s=len(plan.workers) / metrics.step_s() / together,
        most_updates_per_s=bounds.least_per_s / together,
        bound_by=_bound_by(bounds, machine),
        staleness=metrics.staleness(),
        server_busy=metrics.server_busy,
        queue_wait_s=metrics.queue_wait_s(),
        worker_wait=metrics.worker_wait(),
        fastest_s=1 / max(rates),
        slowest_s=1 / min(rates),
        server_bytes=server_bytes(
            sized.job.workload,
            options,
            sized.job.scenario.compute.optimizer,
            len(plan.servers),
            len(plan.workers),
        ),
    )


def _bound_by(bounds: LoopBounds, machine: Machine) -> str:
    if bounds.least_per_s == bounds.workers_per_s:
        return "computing"
    if bounds.least_per_s == bounds.servers_per_s or bounds.link is None:
        return "the update at the busiest server"
    return name_link(machine.topology, bounds.link)


def _notes(plan: LoopPlan) -> tuple[str, ...]:
    pushes = len(plan.workers) * len(plan.exchanges)
    messages = f"{len(plan.exchanges):,} messages an iteration"
    merged = "tensors of neighbouring layers for one server are one message where there are more"
    notes = [f"A worker's gradients travel in {messages}; {merged}."]
    if pushes > EXACT_PUSHES:
        notes.append(
            f"Rates of messages are solved at most {QUANTA:,} times in the time of a step: a "
            f"message is late by {0.5 / QUANTA:.2%} of a step, on average."
        )
    return tuple(notes)


def _costs(metrics: LoopMetrics) -> DisturbanceCost:
    """Simulate the job without each of its disturbances."""
    job, step_s = metrics.job, metrics.step_s()

    def without(*left_out: object) -> float:
        rest = tuple(each for each in job.disturbances if each not in left_out)
        length = job.length
        if not any(each.varies for each in rest):
            base = settle(job.sized, rest)
            length = LoopLength(base.length.warm_up, base.length.counted)
        other = LoopJob(job.sized, rest, length, job.settled_s)
        return LoopMetrics(other, other.run()).step_s()

    undisturbed_s = without(*job.disturbances)
    alone = len(job.disturbances) == 1
    events = []
    for each in job.disturbances:
        without_s = undisturbed_s if alone else without(each)
        events.append(EventCost(each.description, without_s, step_s - without_s))
    is_random = any(each.jitter for each in job.disturbances)
    rounds_s = metrics.rounds_s() if metrics.varies else (step_s,)
    return DisturbanceCost(
        steps_s=rounds_s,
        undisturbed_s=undisturbed_s,
        mean_interval_s=mean_interval_s(rounds_s) if is_random else None,
        events=tuple(events),
        waits=(),
    )


# ---------------------------------------------------------------- interval


def simulate_loop_uncertainties(metrics: LoopMetrics, point: SizeResult) -> tuple[Uncertainty, ...]:
    """Simulate the ends of compute and network, without what varies from step to step.

    Their ratios to a run without it are what counts, as for other strategies.
    """
    base_s = _step_s(metrics.job) if metrics.varies else metrics.step_s()
    ends = _LoopEnds(metrics.job, base_s, metrics.step_s())
    compute = ends.of_compute()
    parts = [compute, *_chance_of_gpus(ends, metrics, compute)]
    if not metrics.job.is_free:
        parts.append(ends.of_network())
    cost = point.disturbance
    if cost is not None and cost.mean_interval_s is not None:
        parts.append(Uncertainty("chance", *cost.mean_interval_s, is_shared=False))
    return tuple(part for part in parts if part.low_s != part.high_s)


def _step_s(job: LoopJob) -> float:
    """Step without what varies; seconds."""
    steady = tuple(each for each in job.disturbances if not each.varies)
    settled = replace(job, disturbances=steady)
    return LoopMetrics(settled, settled.run()).step_s()


@dataclass(frozen=True, slots=True)
class _LoopEnds:
    """Simulates loops at the ends of their uncertain numbers.

    `base_s`: step without what varies; `step_s`: as reported; seconds.
    """

    job: LoopJob
    base_s: float
    step_s: float

    def of_compute(self) -> Uncertainty:
        """Times of layers, and with them nothing of the servers."""
        sized = self.job.sized
        slower = (sized.with_compute(by) for by in sized.compute_spread)
        return self._between(name_compute(sized.job), slower)

    def of_network(self) -> Uncertainty:
        """Bandwidth and latency of all links together."""
        sized = self.job.sized
        likely = sized.ensemble.likely
        origin = f"network of {kind_of_machine(likely.topology)}"
        if sized.ensemble.drawn:
            from perfmodel.calibrate import interval_s

            drawn_s = [self._end_s(self._on(machine)) for machine in sized.ensemble.drawn]
            return self._relative(origin, *(interval_s(drawn_s, self.base_s) or (self.base_s,) * 2))
        largest = int(max(each.push_bytes for each in self.job.plan().exchanges))
        factors = spread_factors(likely.topology, "all_reduce", largest)
        return self._between(origin, (self._on(_slowed(likely, by)) for by in factors))

    def _on(self, machine: Machine) -> SizedJob:
        return self.job.sized.on_machine(machine)

    def _end_s(self, sized: SizedJob) -> float:
        return _step_s(replace(self.job, sized=sized))

    def _between(self, origin: str, jobs: Iterable[SizedJob]) -> Uncertainty:
        ends_s = sorted(self._end_s(sized) for sized in jobs)
        return self._relative(origin, ends_s[0], ends_s[-1])

    def _relative(self, origin: str, low_s: float, high_s: float) -> Uncertainty:
        share = self.step_s / self.base_s
        return Uncertainty(origin, low_s * share, high_s * share)


def _slowed(machine: Machine, by: float) -> Machine:
    """Return the machine whose messages take `by` times as long."""
    rate, latency = 1 / by, by
    what_if = WhatIf(
        network_bandwidth=rate, node_bandwidth=rate, network_latency=latency, node_latency=latency
    )
    return apply_what_if(what_if, machine)


def _chance_of_gpus(
    ends: _LoopEnds, metrics: LoopMetrics, compute: Uncertainty
) -> tuple[Uncertainty, ...]:
    """Speeds of the GPUs that it happens to get, where all wait for the slowest; and of the run."""
    sized = ends.job.sized
    gpu, count = sized.job.gpu, sized.size.gpus
    if gpu.generation == "cpu":
        return ()
    if metrics.run.plan.together:
        numbers = (count, gpu.name)
        return chance_of_gpus(
            ends.step_s, compute, sized.compute_spread, numbers, gpu_spread(sized.job)
        )
    quick, slow = run_factors()
    return (Uncertainty(f"run on {count} x {gpu.name}", ends.step_s * quick, ends.step_s * slow),)
