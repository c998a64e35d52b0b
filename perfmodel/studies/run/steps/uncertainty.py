"""Intervals of steps and of their ratios, from independent uncertainties.

Each uncertainty moves the step between two ends, which enclose 80 % of its own possibilities.
Logarithms of independent ones add as squares. What two steps have in common, such as the error of
one model's compute time, moves both the same way and partly cancels in their ratio.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.library.corrections import kind_of_machine
from perfmodel.library.machine import Machine
from perfmodel.scenario.sections.variants import WhatIf
from perfmodel.simulate.engine.engine import BY_SENDS, uses_sockets
from perfmodel.studies.run.resolve.training_job import TrainingJob, gpu_spread
from perfmodel.studies.run.resolve.what_if import apply_what_if, what_if_of
from perfmodel.studies.run.result import DisturbanceCost, Interval, SizeResult, Uncertainty
from perfmodel.studies.run.steps.retimed_steps import RetimedSteps
from perfmodel.studies.run.steps.simulate_step import (
    ReportedRun,
    SimulationSetup,
    simulate_steps,
)
from perfmodel.studies.run.steps.sized_job import SizedJob
from perfmodel.units import format_time
from perfmodel.workload.compute_spread import (
    host_factors,
    overlap_slowdowns,
    run_factors,
    slowest_factor,
    slowest_factors,
)


def step_interval(step_s: float, uncertainties: Iterable[Uncertainty]) -> Interval:
    """80 % interval of a step; seconds."""
    return _around(step_s, [each.logs(step_s) for each in uncertainties])


def with_interval(
    point: SizeResult, sized: SizedJob, uncertainties: tuple[Uncertainty, ...] | None
) -> SizeResult:
    """Return the step with its uncertainties, the interval that they make, and what it rests on."""
    from perfmodel.studies.run.evidence import evidence_of

    ends_s = None if uncertainties is None else step_interval(point.step_time_s, uncertainties)
    return replace(
        point, uncertainties=uncertainties, interval_s=ends_s, evidence=evidence_of(sized)
    )


def ratio_interval(
    numerator: tuple[float, Sequence[Uncertainty]], denominator: tuple[float, Sequence[Uncertainty]]
) -> Interval:
    """80 % interval of the ratio of two steps, each given with its uncertainties."""
    signed = [
        (sign, each, each.logs(step_s))
        for sign, (step_s, uncertainties) in ((1, numerator), (-1, denominator))
        for each in uncertainties
    ]
    moves: dict[Hashable, FloatArray] = defaultdict(lambda: np.zeros(2))
    for sign, each, logs in sorted(signed, key=lambda row: not row[1].is_shared):
        moves[each.origin if each.is_shared else (sign, each.origin)] += sign * np.array(logs)
    return _around(numerator[0] / denominator[0], moves.values())


def step_ratio_interval(numerator: SizeResult, denominator: SizeResult) -> Interval | None:
    """80 % interval of the ratio of the steps of two results; None where one has no interval."""
    if numerator.uncertainties is None or denominator.uncertainties is None:
        return None
    return ratio_interval(
        (numerator.step_time_s, numerator.uncertainties),
        (denominator.step_time_s, denominator.uncertainties),
    )


def _around(value: float, moves: Iterable[Iterable[float]]) -> Interval:
    """Interval around a value that independent moves of its logarithm make."""
    down = up = 0.0
    for ends in moves:
        down = math.hypot(down, min(*ends, 0.0))
        up = math.hypot(up, max(*ends, 0.0))
    return value * math.exp(-down), value * math.exp(up)


# ---------------------------------------------------------------- ends of the interval of a step

NEARBY_BANDWIDTH, NEARBY_DELAY = 0.02, 0.03
"""Shares by which the network of a machine may be off its data sheet without anybody noticing."""
LEAST_CHANGE = 1e-3
"""Share of a step by which slow hosts lengthen it where their speed is a part of its bar."""
MOST_TIMES_CHANGE = 2.0
"""Times the change of the network up to which a step may change."""


def simulate_uncertainties(
    sized: SizedJob, again: RetimedSteps, point: SizeResult | None = None
) -> tuple[Uncertainty, ...] | None:
    """Simulate the ends of compute, overlap and network; None where the network's are not known.

    Numbers are at their ends one at a time, at fidelity "flow". What varies from step to step is
    left out of these steps: their ratios to one that leaves it out, too, are what counts.

    `again`: the reported run.
    `point`: the result without an interval, where something varies from step to step.
    """
    job, ensemble, reported, setup = sized.job, sized.ensemble, again.base, again.base.setup
    communicates = sized.size.gpus > 1 and what_if_of(job.scenario).communication
    if communicates and not ensemble.alternatives:
        return None
    quick = replace(setup, fidelity="flow") if setup.fidelity in BY_SENDS else setup
    steady = sized.steady_disturbances
    if reported.counted > 1 or quick is not setup or len(steady) < len(sized.disturbances):
        again = RetimedSteps(simulate_steps(quick, steady, sized.settled), steady)
    base_s = again.base.step_s
    share = reported.step_s / base_s

    host, network = f"host of {job.gpu.name}", name_network(sized.machine)
    ends: dict[str, Sequence[SimulationSetup]] = {
        name_compute(job): sized.setups_with(
            sized.with_compute, sized.compute, sized.compute_spread
        )
    }
    if sized.launches:
        ends[host] = sized.setups_with(sized.with_host, sized.host, host_factors())
    is_typical = job.scenario.compute.overlap_slowdown is None and job.gpu.overlap_slowdown != 1
    if communicates and is_typical:  # of GPUs, and not stated
        ends["overlap"] = tuple(replace(quick, slowdown=each) for each in overlap_slowdowns())
    if communicates:
        ends[network] = tuple(map(quick.on, ensemble.bounds or ensemble.drawn))
    of_ends = _steps_of(again, ends)
    if host in of_ends and of_ends[host][1] <= (1 + LEAST_CHANGE) * base_s:
        del of_ends[host]
    drawn_s = of_ends.pop(network) if communicates and not ensemble.bounds else None
    parts = [scaled_ends(name, share, own_s) for name, own_s in of_ends.items()]
    parts[1:1] = chance_of_job(sized, reported.step_s, parts[0])
    if drawn_s is not None:
        parts.append(drawn_ends(sized.machine, share, drawn_s, base_s))
    return with_chance(parts, None if point is None else point.disturbance)


def _steps_of(
    again: RetimedSteps, ends: Mapping[str, Sequence[SimulationSetup]]
) -> dict[str, list[float]]:
    """Return the steps of all ends by what is uncertain, at the fidelity of the run; seconds."""
    fidelity = again.base.setup.fidelity
    return {
        name: [again.end_s(replace(each, fidelity=fidelity)) for each in own]
        for name, own in ends.items()
    }


def scaled_ends(origin: str, share: float, ends_s: Iterable[float]) -> Uncertainty:
    """Return ends in proportion to the reported step, which may vary or be one of messages.

    `share`: of the reported step over the one that `ends_s` are the ends of; seconds.
    """
    low_s, high_s = ends_s
    return Uncertainty(origin, low_s * share, high_s * share)


def drawn_ends(
    machine: Machine, share: float, drawn_s: Sequence[float], base_s: float
) -> Uncertainty:
    """Return the ends that steps on draws from a profile have; `share` is as in `scaled_ends`.

    `drawn_s`, `base_s`: steps with drawn and with likely numbers; seconds.
    """
    from perfmodel.calibrate import interval_s

    return scaled_ends(
        name_network(machine), share, interval_s(drawn_s, base_s) or (base_s, base_s)
    )


def with_chance(
    parts: Iterable[Uncertainty], disturbance: DisturbanceCost | None
) -> tuple[Uncertainty, ...]:
    """Return the uncertainties that have two ends, with that of what is random in the steps."""
    ends_s = None if disturbance is None else disturbance.mean_interval_s
    chance = () if ends_s is None else (Uncertainty("chance", *ends_s, is_shared=False),)
    return tuple(part for part in (*parts, *chance) if part.low_s != part.high_s)


def chance_of_gpus(
    step_s: float, compute: Uncertainty, factors: Interval, gpus: tuple[int, str], spread: float
) -> tuple[Uncertainty, ...]:
    """Uncertainties of a step for the GPUs that it happens to get, and for the run.

    As many GPUs of one model are taken for the same ones in one run: between two settings on them
    both cancel, between two numbers of GPUs they do not.

    `compute`: the step at both ends of the times of its layers; `factors`: these ends. Between
        them and the likely step it is taken as linear.
    `gpus`: how many it waits for, and of which model. `spread`: standard deviation of their speeds.
    """
    (ranks, model), (low, high) = gpus, factors
    known_s = compute.low_s, step_s, compute.high_s
    speeds = (by / slowest_factor(ranks, spread) for by in slowest_factors(ranks, spread))
    low_s, high_s = (float(np.interp(by, (low, 1.0, high), known_s)) for by in speeds)
    quick, slow = run_factors()
    return (
        Uncertainty(f"speed of {ranks} x {model}", low_s, high_s),
        Uncertainty(f"run on {ranks} x {model}", step_s * quick, step_s * slow),
    )


def chance_of_job(sized: SizedJob, step_s: float, compute: Uncertainty) -> tuple[Uncertainty, ...]:
    """Return the uncertainties of `chance_of_gpus` for the GPUs of a job; none for CPUs."""
    if sized.job.gpu.generation == "cpu":
        return ()
    return chance_of_gpus(
        step_s,
        compute,
        sized.compute_spread,
        (sized.size.gpus, sized.job.gpu.name),
        gpu_spread(sized.job),
    )


def name_compute(job: TrainingJob) -> str:
    """Origin of an uncertainty of the times of layers."""
    compute = job.scenario.compute
    return (
        f"compute of {job.workload.name} on {job.gpu.name} in {compute.precision}, {compute.source}"
    )


def name_network(machine: Machine) -> str:
    """Origin of an uncertainty of the links of a machine."""
    return f"network of {kind_of_machine(machine.topology)}"


# ---------------------------------------------------------------- small changes of the network


_NEARBY = (
    ("bandwidth", NEARBY_BANDWIDTH, ("network_bandwidth", "node_bandwidth")),
    ("delay", NEARBY_DELAY, ("network_latency", "node_latency")),
)
"""Small changes: name, share, and the fields of a what-if that make them."""


def nearby_machines(sized: SizedJob) -> Mapping[str, tuple[Machine, float]]:
    """Machines that differ by little, with the share by which, where the order of events matters.

    Empty where times are those of flows, which share links without any order.
    """
    if not uses_sockets(sized.machine, sized.fidelity):
        return {}
    return {
        f"{sign}{share:.0%} of {name}": (
            apply_what_if(WhatIf.model_validate(dict.fromkeys(fields, factor)), sized.machine),
            share,
        )
        for name, share, fields in _NEARBY
        for sign, factor in (("+", 1 + share), ("-", 1 - share))
    }


def describe_sensitivity(sized: SizedJob, reported: ReportedRun) -> tuple[str, ...]:
    """Say where the step moves by more than twice the change of its network."""
    if reported.counted > 1 or sized.size.gpus == 1 or not sized.is_main:
        return ()
    usual_s = reported.step_s
    steps_s = {
        name: (share, reported.simulate_again(sized.disturbances, reported.setup.on(machine)))
        for name, (machine, share) in nearby_machines(sized).items()
    }
    moved = [
        f"{format_time(step_s)} with {name}"
        for name, (share, step_s) in steps_s.items()
        if abs(step_s / usual_s - 1) > MOST_TIMES_CHANGE * share
    ]
    text = (
        f"Sensitive: the step takes {', '.join(moved)} instead of {format_time(usual_s)}, "
        "because messages then meet in another order. A real system may flip between both."
    )
    return (text,) if moved else ()
