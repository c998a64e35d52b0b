"""How much a machine differs from itself between runs whose processes are started afresh.

Where threads land, which pages they get and what else the machine does stay the same through a
run and change with the next, so the repeats of one run do not show it. Model, a random effect of
the run: all its times are longer by a factor and all its rates lower by another, both lognormal
about the long-run values. Sizes that wait for steps follow the first, long ones the second.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from pydantic import Field

from perfmodel.arrays import FloatArray
from perfmodel.calibrate.estimation import NORMAL_QUANTILE, PROBABILITY
from perfmodel.calibrate.link_costs.forward_model import ForwardModel
from perfmodel.calibrate.link_costs.least_squares import Solution, robust_deviation, slopes
from perfmodel.calibrate.profile import RATES, RunSpread
from perfmodel.files import FileModel, load_document

UNINFORMATIVE = 1.0
"""Standard deviation of a run's factor beyond which that run is said to tell nothing about it."""


class RunSpreadPrior(FileModel):
    """What is expected of a machine before several runs of it were seen; see `RunSpread`.

    `freedom` is the weight that it has against what they show, as degrees of freedom.
    """

    times: float = Field(gt=0)
    rates: float = Field(gt=0)
    freedom: float = Field(gt=0)
    source: str


@cache
def run_spread_prior() -> RunSpreadPrior:
    """The spread that stands in for one that was not measured."""
    return load_document(RunSpreadPrior, Path(__file__).with_suffix(".yaml"))


def estimate_run_spread(forward: ForwardModel, solution: Solution) -> tuple[RunSpread, float]:
    """Spread between runs, and the scatter that is left within them.

    Variance between runs by the method of moments (DerSimonian and Laird, Controlled Clinical
    Trials 7, 1986), pooled with the usual one by their degrees of freedom.

    Parameters
    ----------
    forward : ForwardModel
    solution : Solution
        Of all runs together.

    Returns
    -------
    spread : RunSpread
    scatter : float
        Standard deviation of the logarithm of a time about its own run's fit.
    """
    usual = run_spread_prior()
    run = np.array([case.run for case in forward.cases])
    numbers = np.unique(run)
    left = np.log(forward.measured_s) - np.log(forward.times_s(solution.values))
    spent = len(solution.values) + 2 * (len(numbers) - 1)
    if len(numbers) < 2:
        said = f"one run; usual spread: {usual.source}"
        return RunSpread(
            times=usual.times, rates=usual.rates, freedom=usual.freedom, source=said
        ), _scatter(left, spent)
    effects = run_effects(slopes(forward, solution.values), solution)
    found = [_fit_run(effects[run == one], left[run == one], solution.scatter) for one in numbers]
    factors, variances = (np.array(part) for part in zip(*found, strict=True))
    within = np.concatenate(
        [
            left[run == one] - effects[run == one] @ f
            for one, f in zip(numbers, factors, strict=True)
        ]
    )
    times, rates = (
        _pool(factors[:, k], variances[:, k], prior, usual.freedom)
        for k, prior in enumerate((usual.times, usual.rates))
    )
    freedom = usual.freedom + len(numbers) - 1
    said = f"{len(numbers)} runs, pooled with the usual spread ({usual.freedom:g} of {freedom:g} "
    told = RunSpread(times=times, rates=rates, freedom=freedom, source=said + "degrees of freedom)")
    return told, _scatter(within, spent)


def _scatter(left: FloatArray, spent: int) -> float:
    """Standard deviation of the normal distribution that holds as many about zero as `left` does.

    Times have longer tails than a normal distribution of their median deviation.
    """
    held = float(np.quantile(np.abs(left), PROBABILITY))
    return held / NORMAL_QUANTILE * float(np.sqrt(len(left) / max(len(left) - spent, 1)))


def run_effects(columns: FloatArray, solution: Solution) -> FloatArray:
    """Relative change of each time per relative change of all times, and of all rates downwards.

    Returns
    -------
    ndarray of float, shape (cases, 2)
    """
    rates = np.array([key.name in RATES for key in solution.values], dtype=bool)
    both = [columns[:, ~rates].sum(axis=1), -columns[:, rates].sum(axis=1)]
    return np.stack(both, axis=1)


def widen_covariance(solution: Solution, spread: RunSpread, runs: int) -> FloatArray:
    """Covariance of the values with what too few runs leave open, shape (values, values)."""
    rates = np.array([key.name in RATES for key in solution.values], dtype=bool)
    total: FloatArray = solution.covariance.copy()
    for chosen, deviations in ((~rates, spread.times), (rates, spread.rates)):
        total += np.outer(chosen, chosen) * deviations**2 / runs
    return total


def _fit_run(
    effects: FloatArray, left: FloatArray, scatter: float
) -> tuple[FloatArray, FloatArray]:
    """Two factors of a run (logarithms) and their variances; infinite where it tells nothing."""
    matrix, target = effects, left
    weights = np.ones(len(left))
    scale = max(1.5 * scatter, 1e-9)
    factors: FloatArray = np.zeros(2)
    for _ in range(10):  # least squares of soft L1, by reweighting
        root = np.sqrt(weights)
        found, *_ = np.linalg.lstsq(matrix * root[:, None], target * root, rcond=1e-3)
        factors = np.asarray(found, dtype=float)
        weights = (1.0 + ((target - matrix @ factors) / scale) ** 2) ** -0.5
    spent = max(len(left) - 2, 1)
    variance = max(robust_deviation(target - matrix @ factors, spent), 1e-9) ** 2
    inverse = np.linalg.pinv((matrix * weights[:, None]).T @ matrix, rcond=1e-6)
    variances = np.diag(inverse) * variance
    variances = np.where(np.abs(effects).max(axis=0) < 0.05, np.inf, variances)
    return factors, variances


def _pool(factors: FloatArray, variances: FloatArray, usual: float, freedom: float) -> float:
    """Standard deviation between runs, pooled with the usual one."""
    told = variances < UNINFORMATIVE**2
    if told.sum() < 2:
        return usual
    seen = max(float(np.var(factors[told], ddof=1) - variances[told].mean()), 0.0)
    count = int(told.sum()) - 1
    return float(np.sqrt((freedom * usual**2 + count * seen) / (freedom + count)))
