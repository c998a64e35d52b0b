"""Run a scenario at every size of its scaling curve."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from perfmodel import __version__
from perfmodel.calibrate import Profile, apply, draws, interval_s, measured_at, read_profile
from perfmodel.errors import Fault, InputError, one_of
from perfmodel.library.carry import Machine
from perfmodel.result import Point, Result
from perfmodel.scenario import Scenario, Size, batch_per_gpu, scenario_digest, sizes
from perfmodel.simulate.engine import Fidelity, Run, simulate
from perfmodel.simulate.estimate import Estimator
from perfmodel.study.bottleneck import Part, Suspects, bottleneck
from perfmodel.study.hardware import machine, relocated
from perfmodel.study.limits import check_message_size
from perfmodel.study.point import Observed, to_point
from perfmodel.study.training import (
    STRATEGY_NAMES,
    Job,
    buckets,
    load_workload,
    memory,
    plan,
    times,
)
from perfmodel.topology.build import build, load_node
from perfmodel.topology.spec import NodeSpec
from perfmodel.training.buckets import Iteration
from perfmodel.training.plan import Collective, StepPlan
from perfmodel.workload.model import Workload

STEPS = 3
"""Steps simulated: the pipeline of host, device and network has settled by the third."""

DRAWS = 20
"""Draws of a profile's numbers that an interval rests on."""


def run_scenario(
    scenario: Scenario,
    *,
    fidelity: str | None = None,
    profile: Profile | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Answer a scenario.

    Parameters
    ----------
    scenario : Scenario
    fidelity : {"flow", "message"}, optional
        Instead of the scenario's.
    profile : Profile, optional
        Measured numbers instead of datasheets'.
    progress : callable, optional
        Called with (sizes done, sizes in all).

    Raises
    ------
    InputError
        A name that does not resolve or a size that does not fit; names file, line and field.
    """
    chosen: Fidelity = _fidelity(fidelity or scenario.fidelity)
    if profile is None and scenario.profile is not None:
        profile = _profile(scenario, scenario.profile)
    node, workload = resolved(scenario)
    wanted = sizes(scenario, len(build(node).ranks))
    largest = machine(scenario, node, wanted[-1])
    job = Job(scenario, workload, largest.topology.gpu, largest.library)
    points: list[Point] = []
    for done, size in enumerate(wanted):
        here = largest if size == wanted[-1] else machine(scenario, node, size)
        points.append(_point(job, _measured(here, profile, scenario.seed), size, chosen))
        if progress is not None:
            progress(done + 1, len(wanted))
    base, final = points[0], _measured(largest, profile, scenario.seed).likely
    return Result(
        scenario=scenario.name,
        question=scenario.question,
        workload=job.workload.name,
        strategy=STRATEGY_NAMES[scenario.strategy.kind],
        machine=final.topology.name,
        scaling=scenario.training.scaling,
        points=tuple(_with_efficiency(point, base) for point in points),
        efficiency_base=base.gpus,
        samples=job.workload.sample,
        topology=final.topology,
        assumptions=(*_assumptions(job, final), *_of_profile(profile)),
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


def _profile(scenario: Scenario, name: str) -> Profile:
    try:
        return read_profile(scenario.origin.beside("profile", name))
    except InputError as error:
        raise relocated(scenario, error, "profile") from None


def _fidelity(name: str) -> Fidelity:
    for allowed in get_args(Fidelity):
        if name == allowed:
            return allowed  # type: ignore[no-any-return]
    raise InputError(Fault("fidelity", repr(name), one_of(get_args(Fidelity), name)))


def resolved(scenario: Scenario) -> tuple[NodeSpec, Workload]:
    """What the names of a scenario stand for.

    Raises
    ------
    InputError
        With the faults of all names at once.
    """
    faults: list[Fault] = []
    node, workload = None, None
    try:
        node = load_node(scenario.origin.beside("cluster.node", scenario.cluster.node))
    except InputError as error:
        faults += relocated(scenario, error, "cluster.node").faults
    try:
        workload = load_workload(scenario)
    except InputError as error:
        faults += error.faults
    if node is None or workload is None:
        raise InputError(faults)
    return node, workload


@dataclass(frozen=True, slots=True)
class Measured:
    """A machine with its most likely numbers, and others that its measurements allow."""

    likely: Machine
    drawn: tuple[Machine, ...] = ()


def _measured(plain: Machine, profile: Profile | None, seed: int) -> Measured:
    """Put a profile's numbers into a machine; without one it keeps its datasheets'."""
    if profile is None:
        return Measured(plain)
    if not measured_at(profile, len(plain.topology.ranks)):
        return Measured(apply(profile, plain))
    drawn = draws(profile, DRAWS, seed=seed)
    return Measured(apply(profile, plain), tuple(apply(one, plain) for one in drawn))


def _point(job: Job, measured: Measured, size: Size, fidelity: Fidelity) -> Point:
    """Simulate one size."""
    here = measured.likely
    batch = batch_per_gpu(job.scenario, size.gpus)
    layers = times(job, batch)
    slowdown = job.scenario.compute.overlap_slowdown
    known = Estimator(here)

    def run(
        iteration: Iteration, network: Fidelity | Literal["free"], launch_s: float, steps: int
    ) -> tuple[StepPlan, Run]:
        made = plan(job, replace(layers, launch_s=launch_s), size.gpus, batch, iteration)
        if network == "message":
            sent = sum(isinstance(task.work, Collective) for task in made.tasks)
            check_message_size(here, steps * sent)
        return made, simulate(
            made, here, steps=steps, fidelity=network, overlap_slowdown=slowdown, estimator=known
        )

    def without(part: Part) -> float:
        if part == "network":
            return run("steady", "free", layers.launch_s, STEPS)[1].step_time_s
        return run("steady", fidelity, 0.0, STEPS)[1].step_time_s

    try:
        steady, settled = run("steady", fidelity, layers.launch_s, STEPS)
        _, begin = run("first", fidelity, layers.launch_s, 1)
    except InputError as error:
        raise relocated(job.scenario, error, "library") from None
    classes = len(steady.classes)
    point = to_point(
        Observed(
            topology=here.topology,
            workload=job.workload,
            plan=steady,
            run=settled,
            first_step_time_s=begin.step_time_s,
            steps=STEPS,
            nodes=size.nodes,
            batch=batch,
            memory=memory(job, size.gpus, batch),
            buckets=buckets(job),
            mode=f"{fidelity}, {classes} rank class{'es' if classes > 1 else ''}",
        )
    )
    spread = [
        simulate(steady, other, steps=STEPS, overlap_slowdown=slowdown).step_time_s
        for other in measured.drawn
    ]
    limit = bottleneck(point, Suspects(steady, settled, STEPS, known, without))
    spread_s = interval_s(spread, point.step_time_s)
    return replace(point, bottleneck=limit, interval_s=spread_s)


def _with_efficiency(point: Point, base: Point) -> Point:
    ideal = base.samples_per_s / base.gpus * point.gpus
    return replace(point, scaling_efficiency=point.samples_per_s / ideal)


def _of_profile(profile: Profile | None) -> tuple[str, ...]:
    """What a profile's interval holds, and where there is none."""
    if profile is None:
        return ()
    ranks = ", ".join(str(n) for n in sorted({n for fit in profile.fits for n in fit.ranks}))
    return (
        "The interval is that of the measured link costs (fidelity flow); compute times have none.",
        f"The profile was measured on {ranks} ranks; elsewhere there is no interval.",
    )


def _staging(here: Machine) -> tuple[str, ...]:
    """Say so if traffic rests in host memory on its way."""
    ranks = range(len(here.topology.ranks))
    if len(ranks) < 2 or not here.rings(ranks).edges.staged:
        return ()
    return ("Traffic is staged in host memory, whose own bandwidth is taken as no limit.",)


def _assumptions(job: Job, here: Machine) -> tuple[str, ...]:
    """What the numbers rest on, in sentences."""
    slow = job.scenario.compute.overlap_slowdown or here.topology.gpu.overlap_slowdown
    times_of = (
        "a file" if job.scenario.compute.source == "file" else f"a roofline of {job.gpu.name}"
    )
    return (
        f"Compute times come from {times_of}; the input pipeline never holds a GPU up.",
        f"Compute takes {slow:g} times as long while a collective runs on the same GPU."
        if slow != 1
        else "Compute is as quick beside a collective as alone.",
        f"Communication is {here.library.description}, no trees and no in-switch reduction.",
        *_staging(here),
        *(
            ()
            if job.is_ddp
            else ("Cloning Python modules per replica costs nothing here: a lower bound.",)
        ),
        "All GPUs of a class are alike: no stragglers, no jitter, no other jobs.",
        "A collective starts when its last rank has reached it, and shares links max-min fairly.",
        *here.topology.assumptions,
    )
