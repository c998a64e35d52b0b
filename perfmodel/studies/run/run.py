"""Run a scenario at every size of its scaling curve.

Intervals of predictions from datasheets: how far recorded runs of like machines were off.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import get_args

from perfmodel.calibrate import Profile, apply, draws, measured_at, read_profile
from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.library.corrections import CollectiveContext, Corrections
from perfmodel.library.machine import Machine
from perfmodel.library.prediction_error import band_of, factors_by_band
from perfmodel.scenario import ClusterSize, Scenario, WhatIf, scenario_digest, sizes
from perfmodel.simulate.engine.engine import Fidelity
from perfmodel.studies.run.resolve.job import TrainingJob, resolve_workload
from perfmodel.studies.run.resolve.machine import machine, relocated
from perfmodel.studies.run.resolve.placement import hosts_needed, site, workloads_beside
from perfmodel.studies.run.resolve.what_if import imagined, imagined_of, said
from perfmodel.studies.run.result import Result, SizeResult
from perfmodel.studies.run.steps.one_size import MachineEnsemble, SizedJob, simulate_size
from perfmodel.studies.run.steps.output_analysis import SETTLED, WARM_UP
from perfmodel.topology.templates.build import build_topology, load_node
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.topology.templates.spec import NodeSpec
from perfmodel.version import __version__
from perfmodel.workload.model import Workload


def spread_bounds(machine: Machine) -> tuple[Machine, ...]:
    """The machine with all its collectives as quick, and as slow, as eight of ten were.

    Every collective of a step errs the same way at once, which is the worst case. Empty for
    libraries whose predictions from datasheets were not compared with recorded sweeps.
    """
    if machine.library.name != "nccl" or len(machine.topology.ranks) < 2:
        return ()

    def at(end: int) -> Machine:
        known = cache(lambda op: factors_by_band(machine.topology, op))

        def factor(situation: CollectiveContext) -> float:
            return known(situation.op)[band_of(situation.nbytes)][end]

        return machine.stretched(machine.topology, Corrections(residual=factor))

    return at(0), at(1)


DRAWS = 20
"""Draws of a profile's numbers that an interval rests on."""

OF_SPREAD = (
    "The interval holds eight of ten recorded collectives of like machines about predictions from "
    "datasheets, all those of a step off the same way; compute times have none."
)
"""What an interval without a profile means."""


def run_scenario(
    scenario: Scenario,
    *,
    fidelity: str | None = None,
    profile: Profile | None = None,
    progress: Callable[[int, int], None] | None = None,
    with_first: bool = True,
) -> Result:
    """Answer a scenario.

    Parameters
    ----------
    scenario : Scenario
    fidelity : {"flow", "message"}, optional
        Instead of the scenario's.
    profile : Profile, optional
        MachineEnsemble numbers instead of datasheets'.
    progress : callable, optional
        Called with (sizes done, sizes in all).
    with_first : bool
        Whether very first steps are simulated, too; their times are nan otherwise.

    Raises
    ------
    InputError
        A name that does not resolve or a size that does not fit; names file, line and field.
    """
    chosen: Fidelity = known_fidelity(fidelity or scenario.fidelity)
    if profile is None and scenario.profile is not None:
        profile = named_profile(scenario, scenario.profile)
    node, workload, beside = resolved(scenario)
    wanted = sizes(scenario, len(build_topology(node).ranks))

    def machine_of(size: ClusterSize) -> Machine:
        return machine(scenario, node, size, hosts_needed(scenario, size))

    largest = measured_machine(scenario, machine_of(wanted[-1]), profile, wanted[-1])
    final = largest.likely
    job = TrainingJob(scenario, workload, final.topology.gpu, final.library)
    points: list[SizeResult] = []
    for done, size in enumerate(wanted):
        asked = size == wanted[-1]
        here = largest if asked else measured_machine(scenario, machine_of(size), profile, size)
        where = site(scenario, size)
        sized = SizedJob(job, here, size, where, beside, chosen, asked)
        points.append(simulate_size(sized, with_first=with_first))
        if progress is not None:
            progress(done + 1, len(wanted))
    base = points[0]
    return Result(
        scenario=scenario.name,
        question=scenario.question,
        workload=job.workload.name,
        strategy=job.strategy.name,
        machine=_named(final, wanted[-1]),
        scaling=scenario.training.scaling,
        points=tuple(_with_efficiency(point, base) for point in points),
        efficiency_base=base.gpus,
        samples=job.workload.sample,
        topology=final.topology,
        assumptions=(
            *_assumptions(job, final),
            *points[-1].notes,
            *_of_interval(profile, points[-1].interval_s is not None),
            *_around(points[-1], job),
        ),
        sources=final.topology.sources,
        provenance={
            "perfmodel": __version__,
            "scenario_sha256": scenario_digest(scenario),
            "fidelity": chosen,
            "profile": "none" if profile is None else profile.name,
            "seed": str(scenario.seed),
            "python": platform.python_version(),
        },
    )


def named_profile(scenario: Scenario, name: str) -> Profile:
    """The profile that a scenario names."""
    try:
        return read_profile(scenario.origin.beside("profile", name))
    except InputError as error:
        raise relocated(scenario, error, "profile") from None


def known_fidelity(name: str) -> Fidelity:
    """Check the name of a fidelity."""
    for allowed in get_args(Fidelity):
        if name == allowed:
            return allowed  # type: ignore[no-any-return]
    raise InputError(Fault("fidelity", repr(name), allowed_names(get_args(Fidelity), name)))


def _named(here: Machine, size: ClusterSize) -> str:
    """The machine, and how much of it is the job's."""
    topology = here.topology
    return topology.name if topology.hosts == size.nodes else f"{size.nodes} of {topology.name}"


def resolved(scenario: Scenario) -> tuple[NodeSpec, Workload, tuple[Workload, ...]]:
    """What the names of a scenario stand for: node, model, and models of the jobs beside it.

    Raises
    ------
    InputError
        With the faults of all names at once.
    """
    faults: list[Fault] = []
    node, workload = None, None
    beside: tuple[Workload, ...] = ()
    try:
        node = load_node(scenario.origin.beside("cluster.node", scenario.cluster.node))
    except InputError as error:
        faults += relocated(scenario, error, "cluster.node").faults
    try:
        workload = resolve_workload(scenario)
    except InputError as error:
        faults += error.faults
    try:
        beside = workloads_beside(scenario)
    except InputError as error:
        faults += error.faults
    for number, mixed in enumerate(scenario.cluster.mixed):
        try:
            load_gpu(mixed.gpu)
        except InputError as error:
            field = {"gpu": f"cluster.mixed.{number}.gpu"}
            faults += relocated(scenario, error, "cluster.mixed", field).faults
    if node is None or workload is None or faults:
        raise InputError(faults)
    return node, workload, beside


def measured_machine(
    scenario: Scenario, plain: Machine, profile: Profile | None, size: ClusterSize
) -> MachineEnsemble:
    """Put a profile's numbers into a machine; without one it keeps its datasheets'.

    What the scenario imagines comes on top.
    """
    what_if = imagined_of(scenario)
    if profile is None:
        known = imagined(what_if, plain)
        if not what_if.communication:
            return MachineEnsemble(known)
        return MachineEnsemble(known, bounds=spread_bounds(known))
    if profile.transfer is not None:  # factors, which hold on the imagined machine too
        plain, what_if = imagined(what_if, plain), WhatIf(communication=what_if.communication)
    likely = imagined(what_if, apply(profile, plain))
    if not (what_if.communication and measured_at(profile, size.gpus, "all_reduce")):
        return MachineEnsemble(likely)
    drawn = draws(profile, DRAWS, seed=scenario.seed)
    return MachineEnsemble(likely, tuple(imagined(what_if, apply(one, plain)) for one in drawn))


def _with_efficiency(point: SizeResult, base: SizeResult) -> SizeResult:
    ideal = base.samples_per_s / base.gpus * point.gpus
    return replace(point, scaling_efficiency=point.samples_per_s / ideal)


def _of_interval(profile: Profile | None, known: bool) -> tuple[str, ...]:
    """What an interval holds, and where there is none."""
    if profile is None:
        return (OF_SPREAD,) if known else ()
    ranks = ", ".join(map(str, profile.ranks)) or "no"
    elsewhere = "it is wider" if profile.transfer is not None else "there is no interval"
    return (
        "The interval is that of the measured link costs (fidelity flow); compute times have none.",
        f"The profile was measured on {ranks} ranks; elsewhere {elsewhere}.",
    )


def _around(point: SizeResult, job: TrainingJob) -> tuple[str, ...]:
    """What happens around the job, and what does not."""
    what_if = imagined_of(job.scenario)
    events = job.scenario.events if what_if.events else ()
    jobs = job.scenario.jobs if what_if.jobs else ()
    kinds = {event.kind for event in events if what_if.jitter or event.kind != "jitter"}
    kinds |= {"jobs"} if jobs else set()
    kinds |= {"slow"} if job.scenario.cluster.mixed else set()
    absent = {
        "no stragglers": {"slow"}, "no jitter": {"jitter"},
        "no failing links": {"degrade", "down", "lose"}, "no other traffic": {"traffic"},
        "no other jobs": {"jobs"},
    }  # fmt: skip
    nothing = [words for words, of in absent.items() if not of & kinds]
    begin = "There are" if "jitter" in kinds else "All GPUs of a class are alike;"
    lines = [f"{begin} {', '.join(nothing)}."] if nothing else []
    disturbance = point.disturbance
    if disturbance is None:
        return tuple(lines)
    count = len(disturbance.steps_s)
    lines.append(
        f"What happens is simulated for {count} steps after {WARM_UP} that are not counted; the "
        "figures are means over them."
        if count > 1
        else f"What happens does so from the start; the step counted is number {SETTLED}."
    )
    if "jitter" in kinds:
        lines.append(
            "Jitter varies work on the GPU, not on the host, independently from GPU to GPU; "
            "timeline and parts of the step are those of the first rank of each class."
        )
    if jobs:
        lines.append("Other jobs repeat their step without a pause, from their start on.")
    if {"degrade", "down", "lose"} & kinds:
        lines.append(
            "The library keeps its algorithm and rings when a link fails while it runs; without "
            "`at` it has chosen them on the machine as it then is."
        )
    return tuple(lines)


def _choice(here: Machine) -> str:
    """Who chooses how a collective is carried, where it is not the same way always."""
    if here.library.name != "nccl":
        return ""
    fixed = [f"{name}={word}" for name, word in sorted(here.settings.env.items())]
    within = f" within {', '.join(fixed)}" if fixed else ""
    return f": algorithm, protocol and channels of each collective as its own rules choose{within}"


def _staging(here: Machine) -> tuple[str, ...]:
    """Say so if traffic rests in host memory on its way."""
    ranks = range(len(here.topology.ranks))
    if len(ranks) < 2 or "memory" in here.topology.arcs.kinds:
        return ()
    if not here.rings(ranks).edges.staged:
        return ()
    return ("Traffic is staged in host memory, whose own bandwidth is taken as no limit.",)


def _assumptions(job: TrainingJob, here: Machine) -> tuple[str, ...]:
    """What the numbers rest on, in sentences."""
    slow = job.scenario.compute.overlap_slowdown or here.topology.gpu.overlap_slowdown
    times_of = (
        "a file" if job.scenario.compute.source == "file" else f"a roofline of {job.gpu.name}"
    )
    return (
        *said(imagined_of(job.scenario)),
        f"Compute times come from {times_of}; the input pipeline never holds a GPU up.",
        f"Compute takes {slow:g} times as long while a collective runs on the same GPU."
        if slow != 1
        else "Compute is as quick beside a collective as alone.",
        f"Communication is {here.library.description}{_choice(here)}.",
        *_staging(here),
        *job.strategy.assumptions,
        "A collective starts when its last rank has reached it, and shares links max-min fairly.",
        *here.topology.assumptions,
    )
