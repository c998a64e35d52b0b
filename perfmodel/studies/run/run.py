"""Run a scenario at every size of its scaling curve, and list the assumptions of the result."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from perfmodel.errors import Fault, InputError
from perfmodel.scenario import (
    ClusterSize,
    Scenario,
    change_scenario,
    scenario_digest,
    sizes_left_out,
)
from perfmodel.studies.run.assumptions import (
    describe_disturbances,
    describe_interval,
    list_assumptions,
)
from perfmodel.studies.run.resolve.disturbance import as_disturbances
from perfmodel.studies.run.resolve.resolved_scenario import ResolvedScenario, resolve_scenario
from perfmodel.studies.run.resolve.training_job import gpu_spread
from perfmodel.studies.run.result.model import Result, SizeResult
from perfmodel.studies.run.steps.one_size import simulate_size
from perfmodel.studies.run.steps.routing_cost import describe_routing, routing_cost
from perfmodel.studies.run.steps.sized_job import SizedJob, size_job
from perfmodel.studies.run.steps.uncertainty import ratio_interval
from perfmodel.topology.model import Topology
from perfmodel.version import __version__
from perfmodel.workload.compute_spread import slowest_factor

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile
    from perfmodel.simulate.engine.own_processes import Process
    from perfmodel.studies.run.resolve.resolved_scenario import OwnStrategy
    from perfmodel.studies.sweep.executor import Workers


def run_scenario(
    scenario: Scenario,
    *,
    fidelity: str | None = None,
    profile: Profile | None = None,
    progress: Callable[[int, int], None] | None = None,
    with_first: bool = True,
    workers: Workers | None = None,
    strategy: OwnStrategy | None = None,
    processes: Sequence[Process] = (),
    steps: int | None = None,
) -> Result:
    """Answer a scenario.

    Parameters
    ----------
    scenario : Scenario
    fidelity : {"flow", "message", "reference"}, optional
        Instead of the scenario's.
    profile : Profile, optional
        Measured numbers instead of those of datasheets.
    progress : callable, optional
        Called with (sizes done, sizes in all).
    with_first : bool
        Whether very first steps are simulated, too; their times are nan otherwise.
    workers : Workers, optional
        Who simulates the mixtures of strategy ``auto``; default: this process.
    strategy : callable, optional
        A function of a `StepRequest` that returns a `StepPlan`, in place of the scenario's
        strategy.
    processes : sequence of callable
        Generator functions of (env, network), SimPy processes that run beside the job from the
        first step that counts on; see `perfmodel.simulate.engine.own_processes.NetworkView`.
    steps : int, optional
        Steps that are counted beside processes; default: 20.

    With strategy ``auto`` the quickest mixture that fits is looked for first
    (`perfmodel.studies.choose`), and the result is that of it.

    Raises
    ------
    InputError
        A name that does not resolve or a size that does not fit; names file, line and field.
    """
    search = None
    if scenario.strategy.kind == "auto" and strategy is None:
        from perfmodel.studies.choose.search import choose_mixture

        search = choose_mixture(scenario, profile=profile, fidelity=fidelity, workers=workers)
        scenario = change_scenario(scenario, search.winner.changes)
    inputs = resolve_scenario(scenario, profile, fidelity, strategy)
    inputs = replace(inputs, processes=as_disturbances(processes, steps))
    largest = size_job(inputs, inputs.sizes[-1])
    if inputs.processes and largest.job.strategy.loops is not None:
        allowed = f"none with {largest.job.strategy.name}, whose ranks share no steps"
        raise InputError(Fault("processes", str(len(inputs.processes)), allowed))
    points: list[SizeResult] = []
    for done, size in enumerate(inputs.sizes, 1):
        sized = largest if size == largest.size else size_job(inputs, size, largest.job)
        points.append(_simulate(sized, with_first=with_first))
        if progress is not None:
            progress(done, len(inputs.sizes))
    return replace(_assemble_result(inputs, largest, points), search=search)


def _simulate(sized: SizedJob, *, with_first: bool) -> SizeResult:
    """One size, whose ranks share steps or loop on their own."""
    if sized.job.strategy.loops is None:
        return simulate_size(sized, with_first=with_first)
    from perfmodel.studies.run.loops.one_loop_size import simulate_loop_size

    return simulate_loop_size(sized, with_first=with_first)


def _assemble_result(
    inputs: ResolvedScenario, largest: SizedJob, points: Sequence[SizeResult]
) -> Result:
    scenario, profile = inputs.scenario, inputs.profile
    job, machine, topology = largest.job, largest.ensemble.likely, largest.ensemble.likely.topology
    base, hashed = points[0], routing_cost(largest, points[-1])
    largest_bytes = max((bucket.nbytes for bucket in points[-1].buckets), default=0)
    return Result(
        scenario=scenario.name,
        question=scenario.question,
        workload=job.model.name,
        strategy=job.strategy.name,
        machine=name_machine(topology, largest.size),
        scaling=scenario.training.scaling,
        points=tuple(_with_efficiency(point, base) for point in points),
        efficiency_base=base.gpus,
        samples=job.model.sample,
        topology=topology,
        routing_cost=hashed,
        slowest_gpu=1.0
        if job.strategy.loops
        else slowest_factor(largest.size.gpus, gpu_spread(job)),
        assumptions=(
            *list_assumptions(job, machine, largest.size.gpus),
            *sizes_left_out(scenario, largest.size),
            *points[-1].notes,
            *describe_routing(hashed, largest_bytes),
            *describe_interval(job, profile, points[-1]),
            *describe_disturbances(points[-1], largest),
        ),
        sources=topology.sources,
        provenance={
            "perfmodel": __version__,
            "scenario_sha256": scenario_digest(scenario),
            "fidelity": inputs.fidelity,
            "profile": "none" if profile is None else profile.name,
            **({} if inputs.own is None else {"strategy": f"own, {inputs.own.name}"}),
            "seed": str(scenario.seed),
            "python": platform.python_version(),
        },
    )


def name_machine(topology: Topology, size: ClusterSize) -> str:
    """Name the machine, and the number of its nodes that the job has."""
    return (
        topology.name if topology.hosts == size.nodes else f"{size.nodes} nodes of {topology.name}"
    )


def _with_efficiency(point: SizeResult, base: SizeResult) -> SizeResult:
    ideal = base.samples_per_s / base.gpus * point.gpus
    efficiency = point.samples_per_s / ideal
    interval = None
    if point.uncertainties is not None and base.uncertainties is not None:
        ratio = base.step_time_s / point.step_time_s
        low, high = ratio_interval(
            (base.step_time_s, base.uncertainties), (point.step_time_s, point.uncertainties)
        )
        interval = efficiency * low / ratio, efficiency * high / ratio
    return replace(point, scaling_efficiency=efficiency, scaling_efficiency_interval=interval)
