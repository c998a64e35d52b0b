"""Run a scenario at every size of its scaling curve, and list the assumptions of the result."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from perfmodel.errors import Fault, InputError
from perfmodel.library.machine import Machine
from perfmodel.scenario import (
    ClusterSize,
    Scenario,
    change_scenario,
    scenario_digest,
    sizes_left_out,
)
from perfmodel.studies.run.resolve.disturbance import as_disturbances
from perfmodel.studies.run.resolve.job.training_job import TrainingJob, gpu_spread
from perfmodel.studies.run.resolve.resolved_scenario import ResolvedScenario, resolve_scenario
from perfmodel.studies.run.resolve.what_if import describe_what_if, what_if_of
from perfmodel.studies.run.result.model import Result, SizeResult
from perfmodel.studies.run.steps.bottlenecks.routing_cost import describe_routing, routing_cost
from perfmodel.studies.run.steps.one_size import simulate_size
from perfmodel.studies.run.steps.output_analysis import WARM_UP
from perfmodel.studies.run.steps.sized_job import SizedJob, size_job
from perfmodel.studies.run.uncertainty import ratio_interval
from perfmodel.topology.model import Topology
from perfmodel.version import __version__
from perfmodel.workload.compute_spread import slowest_factor
from perfmodel.workload.kernels.float8_layers import float8_layers

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile
    from perfmodel.simulate.engine.own_processes import Process
    from perfmodel.studies.run.resolve.job.own_strategy import OwnStrategy
    from perfmodel.studies.sweep.executor import Workers

DATASHEET_INTERVAL = (
    "The interval holds eight of ten recorded collectives of like machines about predictions from "
    "datasheets, all those of a step off the same way, {compute}, and what GPUs of one model and "
    "runs differ in."
)
"""Meaning of an interval without a profile."""


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
            *_list_assumptions(job, machine, largest.size.gpus),
            *sizes_left_out(scenario, largest.size),
            *points[-1].notes,
            *describe_routing(hashed, largest_bytes),
            *_describe_interval(job, profile, points[-1]),
            *_describe_disturbances(points[-1], largest),
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


def _describe_interval(
    job: TrainingJob, profile: Profile | None, point: SizeResult
) -> tuple[str, ...]:
    """Describe what the interval contains, and where there is none."""
    compute = _describe_compute_spread(job)
    if profile is None:
        has_network = point.interval_s is not None and point.comm_s > 0
        return (DATASHEET_INTERVAL.format(compute=compute),) if has_network else ()
    ranks = ", ".join(map(str, profile.ranks)) or "no"
    elsewhere = "it is wider" if profile.transfer is not None else "there is no interval"
    return (
        f"The interval is that of the measured link costs (fidelity flow) and {compute}.",
        f"The profile was measured on {ranks} ranks; elsewhere {elsewhere}.",
    )


def _describe_compute_spread(job: TrainingJob) -> str:
    """Say how sure times of computing are."""
    compute = job.scenario.compute
    if compute.source == "file":
        return "what a measured step varies when it is measured again"
    if compute.measured_step is not None:
        return "what is left of the error of compute once a step was measured"
    return "eight of ten published throughputs of one GPU about those predicted"


def _describe_disturbances(point: SizeResult, sized: SizedJob) -> tuple[str, ...]:
    """Describe which events and other jobs are simulated, and which are absent."""
    job = sized.job
    what_if = what_if_of(job.scenario)
    events = job.scenario.events if what_if.events else ()
    jobs = job.scenario.jobs if what_if.jobs else ()
    kinds = {event.kind for event in events if what_if.jitter or event.kind != "jitter"}
    kinds |= {"jobs"} if jobs else set()
    kinds |= {"slow"} if job.scenario.cluster.mixed else set()
    own = [each.process.name for each in sized.disturbances if each.process]
    kinds |= {"own"} if own else set()
    absent = {
        "no stragglers": {"slow"},
        "no jitter": {"jitter"},
        "no failing links": {"degrade", "down", "lose", "own"},
        "no other traffic": {"traffic", "own"},
        "no other jobs": {"jobs"},
    }
    missing = [text for text, of_kinds in absent.items() if not of_kinds & kinds]
    unlike = "jitter" in kinds or gpu_spread(job) > 0
    begin = "Nothing else happens:" if unlike else "All GPUs of a class are alike;"
    lines = [f"{begin} {', '.join(missing)}."] if missing else []
    disturbance = point.disturbance
    if disturbance is None:
        return tuple(lines)
    count = len(disturbance.steps_s)
    lines.append(
        f"What happens is simulated for {count} steps after {WARM_UP} that are not counted; the "
        "figures are means over them."
        if count > 1
        else "What happens does so from the start; the step that is counted is a settled one."
    )
    if "jitter" in kinds:
        lines.append(
            "Jitter varies work on the GPU, not on the host, independently from GPU to GPU; "
            "timeline and parts of the step are those of the first rank of each class."
        )
    if own:
        lines.append(f"Beside the job run processes of your own: {', '.join(own)}.")
    if jobs:
        lines.append("Other jobs repeat their step without a pause, from their start on.")
    if {"degrade", "down", "lose"} & kinds:
        lines.append(
            "The library keeps its algorithm and rings when a link fails while it runs; without "
            "`at` it has chosen them on the machine as it then is."
        )
    return tuple(lines)


def _describe_choice(machine: Machine) -> str:
    """Say that the library chooses the algorithm of a collective, where it has a choice."""
    if machine.library.name != "nccl":
        return ""
    fixed = [f"{name}={value}" for name, value in sorted(machine.settings.env.items())]
    within = f" within {', '.join(fixed)}" if fixed else ""
    rules = "algorithm, protocol and channels of each collective as its own rules choose"
    return "; ".join([f": {rules}{within}", *machine.settings.notes()])


def _describe_staging(machine: Machine) -> tuple[str, ...]:
    """Say that traffic is staged in host memory, if it is."""
    ranks = range(len(machine.topology.ranks))
    if len(ranks) < 2 or "memory" in machine.topology.arcs.kinds.present():
        return ()
    if not machine.rings(ranks).edges.staged:
        return ()
    return ("Traffic is staged in host memory, whose own bandwidth is taken as no limit.",)


def _describe_speeds(job: TrainingJob, ranks: int) -> tuple[str, ...]:
    """Say how much longer than a usual GPU the slowest one is taken to compute."""
    spread = gpu_spread(job)
    if ranks == 1 or not spread:
        return ()
    if job.strategy.loops is not None:
        text = f"GPUs of one model differ in speed, by a standard deviation of {spread:.2g} of it"
        return (f"{text}; the job's {ranks:,} are spread as so many are expected to be.",)
    sentence = (
        f"GPUs of one model differ in speed, by a standard deviation of {spread:.2g} of it; the "
        f"slowest of {ranks:,}, which a step waits for, takes {slowest_factor(ranks, spread):.3g} "
        "times as long as a usual one."
    )
    return (sentence,)


def _list_assumptions(job: TrainingJob, machine: Machine, ranks: int) -> tuple[str, ...]:
    """List the assumptions of the model in sentences."""
    return (
        *describe_what_if(what_if_of(job.scenario)),
        *job.model.notes,
        *_describe_speeds(job, ranks),
        *_describe_compute(job, machine),
        *_describe_float8(job),
        *_describe_communication(job, machine),
        *job.strategy.assumptions,
        *job.strategy.remarks(job.options),
        *machine.topology.assumptions,
    )


def _describe_compute(job: TrainingJob, machine: Machine) -> tuple[str, ...]:
    """Say where times of computing come from, and what collectives do to them."""
    slow = job.scenario.compute.overlap_slowdown or machine.topology.gpu.overlap_slowdown
    source = "a file" if job.scenario.compute.source == "file" else f"a roofline of {job.gpu.name}"
    times = f"Compute times come from {source}; the input pipeline never holds a GPU up."
    if job.strategy.loops is not None:
        return times, "Copies to and from servers do not slow compute down."
    if slow == 1:
        return times, "Compute is as quick beside a collective as alone."
    return times, f"Compute takes {slow:.3g} times as long while a collective runs on the same GPU."


def _describe_float8(job: TrainingJob) -> tuple[str, ...]:
    """Say which layers run in fp8, and what utilisation is counted over."""
    float8 = job.float8
    if float8 is None:
        return ()
    layers = len(float8_layers(job.workload, float8))
    scaling = f"{float8.recipe} scaling of {float8.library.replace('_', ' ')}"
    parts = f"{layers} of {len(job.workload.layers)} layers multiply in fp8 ({scaling})"
    return (
        f"{parts}; attention, norms, embedding and the other layers run in bf16.",
        "MFU is over the dense peak of fp8, though some products run in bf16, at half of it.",
    )


def _describe_communication(job: TrainingJob, machine: Machine) -> tuple[str, ...]:
    """Say what carries the job's bytes."""
    if job.strategy.loops is None:
        library = f"{machine.library.description}{_describe_choice(machine)}"
        return f"Communication is {library}.", *_describe_staging(machine), MEETING
    return (MESSAGES,)


MEETING = "A collective starts when its last rank has reached it, and shares links max-min fairly."
MESSAGES = (
    "Messages use what links carry, over the NIC nearest to each GPU and to each server, and wait "
    "for the links' latencies; a transport's own work on them is left out."
)
