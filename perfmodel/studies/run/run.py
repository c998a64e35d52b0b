"""Run a scenario at every size of its scaling curve, and list the assumptions of the result."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from perfmodel.errors import refuse_if
from perfmodel.library.machine import Machine
from perfmodel.memo import with_progress
from perfmodel.scenario import (
    ClusterSize,
    Scenario,
    scenario_digest,
    sizes_left_out,
)
from perfmodel.studies.run.resolve.disturbance import as_disturbances
from perfmodel.studies.run.resolve.resolved_scenario import ResolvedScenario, resolve_scenario
from perfmodel.studies.run.resolve.training_job import TrainingJob, gpu_spread
from perfmodel.studies.run.resolve.what_if import describe_what_if, what_if_of
from perfmodel.studies.run.result import Result, SizeResult
from perfmodel.studies.run.steps.one_size import simulate_size
from perfmodel.studies.run.steps.output_analysis import WARM_UP
from perfmodel.studies.run.steps.routing_cost import describe_routing, routing_cost
from perfmodel.studies.run.steps.sized_job import SizedJob, size_job
from perfmodel.studies.run.steps.uncertainty import step_ratio_interval
from perfmodel.topology.model import Topology
from perfmodel.version import __version__
from perfmodel.workload.compute_spread import slowest_factor
from perfmodel.workload.kernels.float8_layers import float8_layers
from perfmodel.workload.kernels.shapes import Convolution
from perfmodel.workload.pricing import TENSOR_CORE_PRECISIONS

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
    with_ends: bool = True,
    workers: Workers | None = None,
    strategy: OwnStrategy | None = None,
    processes: Sequence[Process] = (),
    steps: int | None = None,
    seconds: float = math.inf,
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
    with_ends : bool
        Whether intervals, bottlenecks and costs of events are simulated, too; there are none
        otherwise.
    workers : Workers, optional
        Who simulates the parallel layouts of strategy ``auto``; default: this process.
    strategy : callable, optional
        A function of a `StepRequest` that returns a `StepPlan`, in place of the scenario's
        strategy.
    processes : sequence of callable
        Generator functions of (env, network), SimPy processes that run beside the job from the
        first step that counts on; see `perfmodel.simulate.engine.own_processes.NetworkView`.
    steps : int, optional
        Steps that are counted beside processes; default: 20.
    seconds : float
        After which the search of strategy ``auto`` ends with the best so far.

    With strategy ``auto`` the quickest parallel layout that fits is looked for first
    (`perfmodel.studies.choose`), and the result is that of it.

    Raises
    ------
    InputError
        A name that does not resolve or a size that does not fit; names file, line and field.
    """
    search, chosen = None, list[Any]()
    if scenario.strategy.kind == "auto" and strategy is None:
        from perfmodel.studies.choose.search import find_layout

        search, *chosen = find_layout(
            scenario, profile=profile, fidelity=fidelity, workers=workers, seconds=seconds
        )
        scenario = chosen[0].job.scenario
    inputs = resolve_scenario(scenario, profile, fidelity, strategy)
    inputs = replace(inputs, processes=as_disturbances(processes, steps))
    sized, reported = chosen if chosen and not inputs.processes else (None, None)
    largest = sized or size_job(inputs, inputs.sizes[-1])
    refuse_if(
        inputs.processes and largest.job.strategy.loops is not None,
        "processes",
        str(len(inputs.processes)),
        f"none with {largest.job.strategy.name}, whose ranks share no steps",
    )
    simulate: Callable[..., SizeResult] = partial(simulate_size, reported=reported)
    if largest.job.strategy.loops is not None:
        from perfmodel.studies.run.one_loop_size import simulate_loop_size

        simulate = simulate_loop_size
    points = [
        simulate(
            largest if size == largest.size else size_job(inputs, size, largest.job),
            with_first=with_first,
            with_ends=with_ends,
        )
        for size in with_progress(inputs.sizes, progress, len(inputs.sizes))
    ]
    return replace(_assemble_result(inputs, largest, points), search=search)


def _assemble_result(
    inputs: ResolvedScenario, largest: SizedJob, points: Sequence[SizeResult]
) -> Result:
    scenario, profile = inputs.scenario, inputs.profile
    job, topology, base = largest.job, largest.machine.topology, points[0]
    largest_bytes = max((bucket.nbytes for bucket in points[-1].buckets), default=0)
    hashed = routing_cost(largest, largest_bytes)
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
        notes=job.model.notes,
        assumptions=(
            *list_assumptions(job, largest.machine, largest.size.gpus),
            *sizes_left_out(scenario, largest.size),
            *scenario.origin.notes,
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
    efficiency = point.samples_per_s / (base.samples_per_s / base.gpus * point.gpus)
    ratio, ends = base.step_time_s / point.step_time_s, step_ratio_interval(base, point)
    return replace(
        point,
        scaling_efficiency=efficiency,
        scaling_efficiency_interval=ends
        and (efficiency * ends[0] / ratio, efficiency * ends[1] / ratio),
    )


_SPEEDS = "GPUs of one model differ in speed, by a standard deviation of {spread:.2g} of it; "
_SENTENCES = (
    (
        "steps of unlike GPUs",
        _SPEEDS + "the slowest of {ranks:,}, which a step waits for, takes {slowest:.3g} times as "
        "long as a usual one.",
    ),
    (
        "loops of unlike GPUs",
        _SPEEDS + "the job's {ranks:,} are spread as so many are expected to be.",
    ),
    ("any", "Compute times come from {source}; the input pipeline never holds a GPU up."),
    ("any", "The model's tensors are {dtypes}, its layers compute in {precision}."),
    (
        "transposed",
        (
            "compute.channels_last is false: images are transposed for each convolution on tensor "
            "cores, which 'channels_last: true' (torch.channels_last in PyTorch) spares."
        ),
    ),
    ("loops", "Copies to and from servers do not slow compute down."),
    ("quick overlap", "Compute is as quick beside a collective as alone."),
    (
        "slow overlap",
        "Compute takes {slow:.3g} times as long while a collective runs on the same GPU.",
    ),
    (
        "fp8",
        (
            "{narrow} of {layers} layers multiply in fp8 ({recipe} scaling of {float8_library}); "
            "attention, norms, embedding and the other layers run in bf16."
        ),
    ),
    ("fp8", "MFU is over the dense peak of fp8, though some products run in bf16, at half of it."),
    (
        "loops",
        (
            "Messages use what links carry, over the NIC nearest to each GPU and to each server, "
            "and wait for the links' latencies; a transport's own work on them is left out."
        ),
    ),
    ("steps", "Communication is {library}{choice}."),
    ("staging", "Traffic is staged in host memory, whose own bandwidth is taken as no limit."),
    (
        "steps",
        "A collective starts when its last rank has reached it, and shares links max-min fairly.",
    ),
)
"""What a model assumes, each with the kind of job that it is said of."""


def list_assumptions(job: TrainingJob, machine: Machine, ranks: int) -> tuple[str, ...]:
    """List the assumptions of the model in sentences."""
    loops, topology = job.strategy.loops is not None, machine.topology
    everyone, float8 = range(len(topology.ranks)), job.float8
    spread = gpu_spread(job) if ranks > 1 else 0.0
    slow = job.scenario.compute.overlap_slowdown or topology.gpu.overlap_slowdown
    # through host memory, of which the machine has no links
    may_stage = not loops and len(everyone) > 1 and "memory" not in topology.arcs.kinds.present()
    is_said = {
        "any": True,
        "loops": loops,
        "steps": not loops,
        "loops of unlike GPUs": loops and spread > 0,
        "steps of unlike GPUs": not loops and spread > 0,
        "quick overlap": not loops and slow == 1,
        "slow overlap": not loops and slow != 1,
        "fp8": float8 is not None,
        "transposed": _transposes_images(job),
        "staging": may_stage and machine.rings(everyone).edges.staged,
    }
    words = {
        "spread": spread,
        "ranks": ranks,
        "slowest": slowest_factor(ranks, spread),
        "source": "a file"
        if job.scenario.compute.source == "file"
        else f"a roofline of {job.gpu.name}",
        "dtypes": " and ".join(sorted({tensor.dtype for tensor in job.workload.tensors})),
        "precision": job.scenario.compute.precision,
        "slow": slow,
        "library": machine.library.description,
        "choice": _describe_choice(machine),
    }
    if float8 is not None:
        words |= {
            "narrow": len(float8_layers(job.workload, float8)),
            "layers": len(job.workload.layers),
            "recipe": float8.recipe,
            "float8_library": float8.library.replace("_", " "),
        }
    return (
        *describe_what_if(what_if_of(job.scenario)),
        *job.model.notes,
        *(text.format(**words) for kind, text in _SENTENCES if is_said[kind]),
        *job.strategy.assumptions,
        *job.strategy.remarks(job.options),
        *topology.assumptions,
    )


def _transposes_images(job: TrainingJob) -> bool:
    """Whether most operations are of convolutions that another layout would make quicker."""
    compute, layers = job.scenario.compute, job.workload.layers
    transposed = [
        layer.matmul_flops
        for layer in layers
        if isinstance(conv := layer.matrix, Convolution)
        and not (conv.channels_last or conv.is_depthwise)
    ]
    return (
        compute.source == "roofline"
        and not compute.channels_last
        and job.wide_precision in TENSOR_CORE_PRECISIONS
        and 2 * sum(transposed) > sum(layer.matmul_flops for layer in layers)
    )


def _describe_choice(machine: Machine) -> str:
    """Say that the library chooses the algorithm of a collective, where it has a choice."""
    if not machine.library.nccl_tuner:
        return ""
    fixed = [f"{name}={value}" for name, value in sorted(machine.settings.env.items())]
    within = f" within {', '.join(fixed)}" if fixed else ""
    choice = "algorithm, protocol and channels of each collective as its own rules choose"
    return "; ".join([f": {choice}{within}", *machine.settings.notes()])


# ---------------------------------------------------------------- interval

DATASHEET_INTERVAL = (
    "The interval holds eight of ten recorded collectives of like machines about predictions from "
    "datasheets, all those of a step off the same way, {compute}, and what GPUs of one model and "
    "runs differ in."
)
"""Meaning of an interval without a profile."""
MEASURED_INTERVAL = (
    "The interval is that of the measured link costs (fidelity flow) and {compute}.",
    "The profile was measured on {ranks} ranks; elsewhere {elsewhere}.",
)
"""Meaning of an interval with a profile."""
COMPUTE_SPREADS: Mapping[str, str] = {
    "file": "what a measured step varies when it is measured again",
    "measured step": "what is left of the error of compute once a step was measured",
    "roofline": "eight of ten published throughputs of one GPU about those predicted",
}
"""How sure times of computing are, by what they come from."""


def describe_interval(
    job: TrainingJob, profile: Profile | None, point: SizeResult
) -> tuple[str, ...]:
    """Describe what the interval contains, and where there is none."""
    compute = job.scenario.compute
    spread = COMPUTE_SPREADS["measured step" if compute.measured_step else compute.source]
    if profile is None:
        has_network = point.interval_s is not None and point.comm_s > 0
        return (DATASHEET_INTERVAL.format(compute=spread),) if has_network else ()
    ranks = ", ".join(map(str, profile.ranks)) or "no"
    elsewhere = "it is wider" if profile.transfer is not None else "there is no interval"
    return tuple(
        text.format(compute=spread, ranks=ranks, elsewhere=elsewhere) for text in MEASURED_INTERVAL
    )


# ---------------------------------------------------------------- events and other jobs

ABSENT: Mapping[str, frozenset[str]] = {
    "no stragglers": frozenset({"slow"}),
    "no jitter": frozenset({"jitter"}),
    "no failing links": frozenset({"degrade", "down", "lose", "own"}),
    "no other traffic": frozenset({"traffic", "own"}),
    "no other jobs": frozenset({"jobs"}),
}
"""What does not happen without any of these kinds of disturbances."""
COUNTED_STEPS = (
    "What happens is simulated for {count} steps after {warm_up} that are not counted; the figures "
    "are means over them."
)
SETTLED_STEP = "What happens does so from the start; the step that is counted is a settled one."
HAPPENING: Mapping[str, frozenset[str]] = {
    "Jitter varies work on the GPU, not on the host, independently from GPU to GPU; timeline and "
    "parts of the step are those of the first rank of each class.": frozenset({"jitter"}),
    "Beside the job run processes of your own: {processes}.": frozenset({"own"}),
    "Other jobs repeat their step without a pause, from their start on.": frozenset({"jobs"}),
    "The library keeps its algorithm and rings when a link fails while it runs; without `at` it "
    "has chosen them on the machine as it then is.": frozenset({"degrade", "down", "lose"}),
}
"""Sentences about any of these kinds of disturbances."""


def describe_disturbances(point: SizeResult, sized: SizedJob) -> tuple[str, ...]:
    """Describe which events and other jobs are simulated, and which are absent."""
    scenario, what_if = sized.job.scenario, what_if_of(sized.job.scenario)
    events = scenario.events if what_if.events else ()
    processes = ", ".join(each.process.name for each in sized.disturbances if each.process)
    others = {"jobs": what_if.jobs and scenario.jobs, "slow": scenario.cluster.mixed}
    kinds = {event.kind for event in events if what_if.jitter or event.kind != "jitter"}
    kinds |= {kind for kind, found in {**others, "own": processes}.items() if found}
    absent = ", ".join(text for text, of_kinds in ABSENT.items() if not of_kinds & kinds)
    unlike = "jitter" in kinds or gpu_spread(sized.job) > 0
    begin = "Nothing else happens:" if unlike else "All GPUs of a class are alike;"
    lines = (f"{begin} {absent}.",) if absent else ()
    if point.disturbance is None:
        return lines
    count = len(point.disturbance.steps_s)
    return (
        *lines,
        (COUNTED_STEPS if count > 1 else SETTLED_STEP).format(count=count, warm_up=WARM_UP),
        *(
            text.format(processes=processes)
            for text, of_kinds in HAPPENING.items()
            if of_kinds & kinds
        ),
    )
