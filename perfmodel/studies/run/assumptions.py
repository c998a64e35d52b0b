"""The assumptions of a run, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfmodel.library.machine import Machine
from perfmodel.studies.run.resolve.training_job import TrainingJob, gpu_spread
from perfmodel.studies.run.resolve.what_if import describe_what_if, what_if_of
from perfmodel.studies.run.result.model import SizeResult
from perfmodel.studies.run.steps.output_analysis import WARM_UP
from perfmodel.studies.run.steps.sized_job import SizedJob
from perfmodel.workload.compute_spread import slowest_factor
from perfmodel.workload.kernels.float8_layers import float8_layers

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile


def list_assumptions(job: TrainingJob, machine: Machine, ranks: int) -> tuple[str, ...]:
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


# ---------------------------------------------------------------- compute

SPEEDS = "GPUs of one model differ in speed, by a standard deviation of {spread:.2g} of it; "
SPEEDS_OF_LOOPS = SPEEDS + "the job's {ranks:,} are spread as so many are expected to be."
SPEEDS_OF_STEPS = SPEEDS + (
    "the slowest of {ranks:,}, which a step waits for, takes {slowest:.3g} times as long as a "
    "usual one."
)
FLOAT8 = (
    (
        "{narrow} of {layers} layers multiply in fp8 ({recipe} scaling of {library}); attention, "
        "norms, embedding and the other layers run in bf16."
    ),
    "MFU is over the dense peak of fp8, though some products run in bf16, at half of it.",
)


def _describe_speeds(job: TrainingJob, ranks: int) -> tuple[str, ...]:
    """Say how much longer than a usual GPU the slowest one is taken to compute."""
    spread = gpu_spread(job)
    if ranks == 1 or not spread:
        return ()
    text = SPEEDS_OF_STEPS if job.strategy.loops is None else SPEEDS_OF_LOOPS
    return (text.format(spread=spread, ranks=ranks, slowest=slowest_factor(ranks, spread)),)


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
    if job.float8 is None:
        return ()
    layers, mfu = FLOAT8
    counted = layers.format(
        narrow=len(float8_layers(job.workload, job.float8)),
        layers=len(job.workload.layers),
        recipe=job.float8.recipe,
        library=job.float8.library.replace("_", " "),
    )
    return counted, mfu


# ---------------------------------------------------------------- communication

CHOICE = "algorithm, protocol and channels of each collective as its own rules choose"
STAGING = "Traffic is staged in host memory, whose own bandwidth is taken as no limit."
RENDEZVOUS = (
    "A collective starts when its last rank has reached it, and shares links max-min fairly."
)
MESSAGES = (
    "Messages use what links carry, over the NIC nearest to each GPU and to each server, and wait "
    "for the links' latencies; a transport's own work on them is left out."
)


def _describe_communication(job: TrainingJob, machine: Machine) -> tuple[str, ...]:
    """Say what carries the job's bytes."""
    if job.strategy.loops is not None:
        return (MESSAGES,)
    library = f"Communication is {machine.library.description}{_describe_choice(machine)}."
    return library, *([STAGING] if _is_staged(machine) else []), RENDEZVOUS


def _describe_choice(machine: Machine) -> str:
    """Say that the library chooses the algorithm of a collective, where it has a choice."""
    if machine.library.name != "nccl":
        return ""
    fixed = [f"{name}={value}" for name, value in sorted(machine.settings.env.items())]
    within = f" within {', '.join(fixed)}" if fixed else ""
    return "; ".join([f": {CHOICE}{within}", *machine.settings.notes()])


def _is_staged(machine: Machine) -> bool:
    """Whether traffic goes through host memory, of which the machine has no links."""
    ranks = range(len(machine.topology.ranks))
    if len(ranks) < 2 or "memory" in machine.topology.arcs.kinds.present():
        return False
    return bool(machine.rings(ranks).edges.staged)


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
    counted = COUNTED_STEPS if count > 1 else SETTLED_STEP
    happening = (text for text, of_kinds in HAPPENING.items() if of_kinds & kinds)
    return (
        *lines,
        counted.format(count=count, warm_up=WARM_UP),
        *(text.format(processes=processes) for text in happening),
    )
