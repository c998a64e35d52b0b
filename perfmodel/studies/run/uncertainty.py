"""Intervals of steps and of their ratios, from independent uncertainties.

Each uncertainty moves the step between two ends, which enclose 80 % of its own possibilities.
Logarithms of independent ones add as squares. What two steps have in common, such as the error of
one model's compute time, moves both the same way and partly cancels in their ratio.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from perfmodel.studies.run.result.model import Uncertainty
from perfmodel.workload.compute_spread import run_factors, slowest_factor, slowest_factors

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
