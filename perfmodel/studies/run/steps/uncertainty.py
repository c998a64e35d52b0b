"""Intervals of steps and of their ratios, from independent uncertainties.

Each uncertainty moves the step between two ends, which enclose 80 % of its own possibilities.
Logarithms of independent ones add as squares. What two steps have in common, such as the error of
one model's compute time, moves both the same way and partly cancels in their ratio.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.library.corrections import kind_of_machine
from perfmodel.library.machine import Machine
from perfmodel.scenario.sections.variants import WhatIf
from perfmodel.simulate.engine.engine import BY_SENDS, uses_sockets
from perfmodel.studies.run.resolve.training_job import TrainingJob, gpu_spread
from perfmodel.studies.run.resolve.what_if import apply_what_if, what_if_of
from perfmodel.studies.run.result.model import SizeResult, Uncertainty
from perfmodel.studies.run.steps.simulate_step import SimulationSetup, simulate_steps
from perfmodel.studies.run.steps.sized_job import ReportedRun, SizedJob
from perfmodel.units import format_time
from perfmodel.workload.compute_spread import (
    overlap_slowdowns,
    run_factors,
    slowest_factor,
    slowest_factors,
)

Interval = tuple[float, float]
"""Low and high end, 80 %."""


def step_interval(step_s: float, uncertainties: Iterable[Uncertainty]) -> Interval:
    """80 % interval of a step; seconds."""
    return _around(step_s, [each.logs(step_s) for each in uncertainties])


def ratio_interval(
    numerator: tuple[float, Sequence[Uncertainty]], denominator: tuple[float, Sequence[Uncertainty]]
) -> Interval:
    """80 % interval of the ratio of two steps, each given with its uncertainties."""
    (above_s, above), (below_s, below) = numerator, denominator
    own = {each.origin: each.logs(above_s) for each in above if each.is_shared}
    other = {each.origin: each.logs(below_s) for each in below if each.is_shared}
    none = (0.0, 0.0)
    pairs = ((own.get(name, none), other.get(name, none)) for name in dict.fromkeys([*own, *other]))
    moves = [(a[0] - b[0], a[1] - b[1]) for a, b in pairs]
    moves += [each.logs(above_s) for each in above if not each.is_shared]
    moves += [(-low, -high) for low, high in (e.logs(below_s) for e in below if not e.is_shared)]
    return _around(above_s / below_s, moves)


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
    ranks, model = gpus
    expected = slowest_factor(ranks, spread)
    known_s = compute.low_s, step_s, compute.high_s
    low_s, high_s = (
        float(np.interp(by / expected, (factors[0], 1.0, factors[1]), known_s))
        for by in slowest_factors(ranks, spread)
    )
    quick, slow = run_factors()
    return (
        Uncertainty(f"speed of {ranks} x {model}", low_s, high_s),
        Uncertainty(f"run on {ranks} x {model}", step_s * quick, step_s * slow),
    )


def _around(value: float, moves: Iterable[tuple[float, float]]) -> Interval:
    """Interval around a value that independent moves of its logarithm make."""
    down = up = 0.0
    for ends in moves:
        down = math.hypot(down, min(*ends, 0.0))
        up = math.hypot(up, max(*ends, 0.0))
    return value * math.exp(-down), value * math.exp(up)


# ---------------------------------------------------------------- ends of the interval of a step

BANDWIDTH, DELAY = 0.02, 0.03
"""Shares by which the network of a machine may be off its data sheet without anybody noticing."""
USUAL = 2.0
"""Times the change of the network up to which a step may change."""


def simulate_uncertainties(
    sized: SizedJob, reported: ReportedRun, point: SizeResult | None = None
) -> tuple[Uncertainty, ...] | None:
    """Simulate the ends of compute, overlap and network; None where the network's are not known.

    What varies from step to step is left out of these simulations: their ratios to one that leaves
    it out, too, are what counts.

    `point`: the result without an interval, where something varies from step to step.
    """
    communicates = sized.size.gpus > 1 and what_if_of(sized.job.scenario).communication
    if communicates and not sized.ensemble.alternatives:
        return None
    ends = _StepEnds(sized, reported, _base_s(sized, reported))
    compute = ends.of_compute()
    parts = [compute]
    if sized.job.gpu.generation != "cpu":
        gpus, spread = (sized.size.gpus, sized.job.gpu.name), gpu_spread(sized.job)
        parts += chance_of_gpus(reported.step_s, compute, sized.compute_spread, gpus, spread)
    if communicates:
        parts += [*ends.of_overlap(), ends.of_network()]
    disturbance = None if point is None else point.disturbance
    if disturbance is not None and disturbance.mean_interval_s is not None:
        parts.append(Uncertainty("chance", *disturbance.mean_interval_s, is_shared=False))
    return tuple(part for part in parts if part.low_s != part.high_s)


def name_compute(job: TrainingJob) -> str:
    """Origin of an uncertainty of the times of layers."""
    compute = job.scenario.compute
    on = f"{job.workload.name} on {job.gpu.name}"
    return f"compute of {on} in {compute.precision}, {compute.source}"


@dataclass(frozen=True, slots=True)
class _StepEnds:
    """Simulates a job at the ends of its uncertain numbers, one at a time, at fidelity "flow"."""

    sized: SizedJob
    reported: ReportedRun
    base_s: float

    def of_compute(self) -> Uncertainty:
        sized = self.sized
        slower = (sized.with_compute(by).setup() for by in sized.compute_spread)
        return self._between(name_compute(sized.job), slower)

    def of_overlap(self) -> Iterable[Uncertainty]:
        """Slowdown of compute beside collectives, where it is a typical one of GPUs."""
        stated = self.sized.job.scenario.compute.overlap_slowdown is not None
        if stated or self.sized.job.gpu.overlap_slowdown == 1:
            return
        setup = self.reported.setup
        yield self._between(
            "overlap", (replace(setup, slowdown=slowdown) for slowdown in overlap_slowdowns())
        )

    def of_network(self) -> Uncertainty:
        ensemble, setup = self.sized.ensemble, self.reported.setup
        origin = f"network of {kind_of_machine(ensemble.likely.topology)}"
        if ensemble.bounds:
            return self._between(origin, map(setup.on, ensemble.bounds))
        from perfmodel.calibrate import interval_s

        drawn_s = [_step_s(self.sized, setup.on(drawn)) for drawn in ensemble.drawn]
        ends_s = interval_s(drawn_s, self.base_s) or (self.base_s, self.base_s)
        return self._relative(origin, *ends_s)

    def _between(self, origin: str, setups: Iterable[SimulationSetup]) -> Uncertainty:
        low_s, high_s = (_step_s(self.sized, setup) for setup in setups)
        return self._relative(origin, low_s, high_s)

    def _relative(self, origin: str, low_s: float, high_s: float) -> Uncertainty:
        """Ends in proportion to the reported step, which may vary or be one of messages."""
        share = self.reported.step_s / self.base_s
        return Uncertainty(origin, low_s * share, high_s * share)


def _base_s(sized: SizedJob, reported: ReportedRun) -> float:
    """Likely step without what varies, at the fidelity of the ends; seconds."""
    if reported.counted == 1 and reported.setup.fidelity not in BY_SENDS:
        return reported.step_s
    return _step_s(sized, reported.setup)


def _step_s(sized: SizedJob, setup: SimulationSetup) -> float:
    """One settled step without what varies, at fidelity "flow"; seconds."""
    quick = setup if setup.fidelity == "free" else replace(setup, fidelity="flow")
    return simulate_steps(quick, sized.steady_disturbances, sized.settled)[1].step_time_s


# ---------------------------------------------------------------- small changes of the network


def nearby_machines(machine: Machine, fidelity: str) -> Mapping[str, tuple[Machine, float]]:
    """Machines that differ by little, with the share by which, where the order of events matters.

    Empty where times are those of flows, which share links without any order.
    """
    if not uses_sockets(machine, fidelity):
        return {}
    changes = {
        f"{sign}{share:.0%} of {name}": (
            WhatIf.model_validate(dict.fromkeys(fields, factor)),
            share,
        )
        for name, share, fields in (
            ("bandwidth", BANDWIDTH, ("network_bandwidth", "node_bandwidth")),
            ("delay", DELAY, ("network_latency", "node_latency")),
        )
        for sign, factor in (("+", 1 + share), ("-", 1 - share))
    }
    return {name: (apply_what_if(each, machine), share) for name, (each, share) in changes.items()}


def describe_sensitivity(sized: SizedJob, reported: ReportedRun) -> tuple[str, ...]:
    """Say where the step moves by more than twice the change of its network."""
    if reported.counted > 1 or sized.size.gpus == 1 or not sized.is_main:
        return ()
    moved = {}
    for name, (machine, share) in nearby_machines(sized.ensemble.likely, sized.fidelity).items():
        setup = reported.setup.on(machine)
        step_s = simulate_steps(setup, sized.disturbances, sized.settled)[1].step_time_s
        if abs(step_s / reported.step_s - 1) > USUAL * share:
            moved[name] = step_s
    if not moved:
        return ()
    steps = ", ".join(f"{format_time(step_s)} with {name}" for name, step_s in moved.items())
    sentence = (
        f"Sensitive: the step takes {steps} instead of {format_time(reported.step_s)}, because "
        "messages then meet in another order. A real system may flip between both."
    )
    return (sentence,)
