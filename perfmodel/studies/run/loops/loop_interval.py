"""What the steps of looping workers may be: each uncertain number at both ends of its interval.

Compute and the speeds of GPUs are as uncertain as for other strategies. Messages between workers
and servers are no collectives, and nobody publishes them: their times are taken to be off by as
much as those of all-reduces of that size on recorded machines of the kind, by the bandwidth and the
latency of all links. A profile's draws have their own links.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from perfmodel.library.corrections import kind_of_machine, spread_factors
from perfmodel.library.machine import Machine
from perfmodel.scenario.sections.studies.what_if import WhatIf
from perfmodel.studies.run.loops.loop_job import LoopJob
from perfmodel.studies.run.loops.loop_metrics import LoopMetrics
from perfmodel.studies.run.resolve.job.training_job import gpu_spread
from perfmodel.studies.run.resolve.what_if import apply_what_if
from perfmodel.studies.run.result.model import SizeResult, Uncertainty
from perfmodel.studies.run.steps.sized_job import SizedJob
from perfmodel.studies.run.uncertainty import chance_of_gpus
from perfmodel.workload.compute_spread import run_factors


def simulate_loop_uncertainties(metrics: LoopMetrics, point: SizeResult) -> tuple[Uncertainty, ...]:
    """Simulate the ends of compute and network, without what varies from step to step.

    Their ratios to a run without it are what counts, as for other strategies.
    """
    ends = _LoopEnds(metrics.job, _settled_s(metrics), metrics.step_s())
    compute = ends.of_compute()
    parts = [compute, *_chance_of_gpus(ends, metrics, compute)]
    if not metrics.job.is_free:
        parts.append(ends.of_network())
    cost = point.disturbance
    if cost is not None and cost.mean_interval_s is not None:
        parts.append(Uncertainty("chance", *cost.mean_interval_s, is_shared=False))
    return tuple(part for part in parts if part.low_s != part.high_s)


def _settled_s(metrics: LoopMetrics) -> float:
    """Step without what varies; seconds."""
    return _step_s(metrics.job) if metrics.varies else metrics.step_s()


def _step_s(job: LoopJob) -> float:
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
        job = sized.job
        origin = (
            f"compute of {job.workload.name} on {job.gpu.name} in "
            f"{job.scenario.compute.precision}, {job.scenario.compute.source}"
        )
        return self._between(origin, (sized.with_compute(by) for by in sized.compute_spread))

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
