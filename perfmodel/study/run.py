"""Run a scenario at every size of its scaling curve."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

from perfmodel import __version__
from perfmodel.errors import Fault, InputError, one_of
from perfmodel.library.carry import Machine
from perfmodel.result import Point, Result
from perfmodel.scenario import Scenario, Size, batch_per_gpu, scenario_digest, sizes
from perfmodel.simulate.engine import Fidelity, simulate
from perfmodel.simulate.estimate import Estimator
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
from perfmodel.training.plan import Collective, StepPlan
from perfmodel.workload.model import Workload

STEPS = 3
"""Steps simulated: the pipeline of host, device and network has settled by the third."""


def run_scenario(
    scenario: Scenario,
    *,
    fidelity: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Answer a scenario.

    Parameters
    ----------
    scenario : Scenario
    fidelity : {"flow", "message"}, optional
        Instead of the scenario's.
    progress : callable, optional
        Called with (sizes done, sizes in all).

    Raises
    ------
    InputError
        A name that does not resolve or a size that does not fit; names file, line and field.
    """
    chosen: Fidelity = _fidelity(fidelity or scenario.fidelity)
    node, workload = resolved(scenario)
    wanted = sizes(scenario, len(build(node).ranks))
    largest = machine(scenario, node, wanted[-1])
    job = Job(scenario, workload, largest.topology.gpu, largest.library)
    points: list[Point] = []
    for done, size in enumerate(wanted):
        here = largest if size == wanted[-1] else machine(scenario, node, size)
        points.append(_point(job, here, size, chosen))
        if progress is not None:
            progress(done + 1, len(wanted))
    base = points[0]
    return Result(
        scenario=scenario.name,
        question=scenario.question,
        workload=job.workload.name,
        strategy=STRATEGY_NAMES[scenario.strategy.kind],
        machine=largest.topology.name,
        scaling=scenario.training.scaling,
        points=tuple(_with_efficiency(point, base) for point in points),
        efficiency_base=base.gpus,
        samples=job.workload.sample,
        topology=largest.topology,
        assumptions=_assumptions(job, largest),
        sources=largest.topology.sources,
        provenance={
            "perfmodel": __version__,
            "scenario_sha256": scenario_digest(scenario),
            "fidelity": chosen,
            "seed": str(scenario.seed),
            "python": platform.python_version(),
        },
    )


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


def _point(job: Job, here: Machine, size: Size, fidelity: Fidelity) -> Point:
    """Simulate one size."""
    batch = batch_per_gpu(job.scenario, size.gpus)
    layers = times(job, batch)
    steady = plan(job, layers, size.gpus, batch, "steady")
    if fidelity == "message":
        _check_messages(job.scenario, steady, here)
    slowdown = job.scenario.compute.overlap_slowdown
    known = Estimator(here)
    run = simulate(
        steady, here, steps=STEPS, fidelity=fidelity, overlap_slowdown=slowdown, estimator=known
    )
    first = plan(job, layers, size.gpus, batch, "first")
    begin = simulate(first, here, overlap_slowdown=slowdown, estimator=known)
    classes = len(steady.classes)
    return to_point(
        Observed(
            topology=here.topology,
            workload=job.workload,
            plan=steady,
            run=run,
            first_step_time_s=begin.step_time_s,
            steps=STEPS,
            nodes=size.nodes,
            batch=batch,
            memory=memory(job, size.gpus, batch),
            buckets=buckets(job),
            mode=f"{fidelity}, {classes} rank class{'es' if classes > 1 else ''}",
        )
    )


def _check_messages(scenario: Scenario, steady: StepPlan, here: Machine) -> None:
    collectives = sum(isinstance(task.work, Collective) for task in steady.tasks)
    try:
        check_message_size(here, collectives * STEPS)
    except InputError as error:
        raise relocated(scenario, error, "fidelity") from None


def _with_efficiency(point: Point, base: Point) -> Point:
    ideal = base.samples_per_s / base.gpus * point.gpus
    return replace(point, scaling_efficiency=point.samples_per_s / ideal)


def _assumptions(job: Job, here: Machine) -> tuple[str, ...]:
    """What the numbers rest on, in sentences."""
    slow = job.scenario.compute.overlap_slowdown or here.topology.gpu.overlap_slowdown
    times_of = (
        "a file" if job.scenario.compute.source == "file" else f"a roofline of {job.gpu.name}"
    )
    return (
        f"Compute times come from {times_of}; the input pipeline never holds a GPU up.",
        f"Compute is {slow:g} times slower while a collective runs on the same GPU.",
        f"Communication is {here.library.description}, no trees and no in-switch reduction.",
        "All GPUs of a class are alike: no stragglers, no jitter, no other jobs.",
        "A collective starts when its last rank has reached it, and shares links max-min fairly.",
        *here.topology.assumptions,
    )
