"""How much a machine differs from itself between runs whose processes are started afresh.

The placement of threads, their pages and other load of the machine stay the same through a run and
change with the next, so the repeats of one run do not show their effect. Model, a random effect of
the run: all its times are longer by a factor and all its rates lower by another, both lognormal
about the long-run values. Latency-bound sizes follow the first, bandwidth-bound ones the second.
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
"""Standard deviation of a run's factor from which on that run does not count for it."""


class RunSpreadPrior(FileModel):
    """Prior of the spread between runs of a machine; see `RunSpread`.

    `freedom` is its weight against the measured spread, as degrees of freedom.
    """

    times: float = Field(gt=0)
    rates: float = Field(gt=0)
    freedom: float = Field(gt=0)
    source: str


@cache
def run_spread_prior() -> RunSpreadPrior:
    """Read the shipped prior."""
    return load_document(RunSpreadPrior, Path(__file__).with_suffix(".yaml"))


def estimate_run_spread(forward: ForwardModel, solution: Solution) -> tuple[RunSpread, float]:
    """Estimate the spread between runs, and the scatter within them.

    Variance between runs by the method of moments (DerSimonian and Laird, Controlled Clinical
    Trials 7, 1986), pooled with the prior by their degrees of freedom.

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
    prior = run_spread_prior()
    run = np.array([observation.run for observation in forward.observations])
    numbers = np.unique(run)
    residuals = np.log(forward.measured_s) - np.log(forward.times_s(solution.values))
    spent = len(solution.values) + 2 * (len(numbers) - 1)
    if len(numbers) < 2:
        source = f"one run; usual spread: {prior.source}"
        return RunSpread(
            times=prior.times, rates=prior.rates, freedom=prior.freedom, source=source
        ), _scatter(residuals, spent)
    effects = run_effects(slopes(forward, solution.values), solution)
    fits = [
        _fit_run(effects[run == number], residuals[run == number], solution.scatter)
        for number in numbers
    ]
    factors, variances = (np.array(part) for part in zip(*fits, strict=True))
    within = np.concatenate(
        [
            residuals[run == number] - effects[run == number] @ f
            for number, f in zip(numbers, factors, strict=True)
        ]
    )
    times, rates = (
        _pool(factors[:, k], variances[:, k], deviation, prior.freedom)
        for k, deviation in enumerate((prior.times, prior.rates))
    )
    freedom = prior.freedom + len(numbers) - 1
    source = f"{len(numbers)} runs, pooled with the usual spread ({prior.freedom:g} of {freedom:g} "
    spread = RunSpread(
        times=times, rates=rates, freedom=freedom, source=source + "degrees of freedom)"
    )
    return spread, _scatter(within, spent)


def _scatter(residuals: FloatArray, parameters: int) -> float:
    """Standard deviation of the normal distribution with the same 80 % quantile about zero.

    Times have longer tails than a normal distribution of their median deviation.
    """
    held = float(np.quantile(np.abs(residuals), PROBABILITY))
    return (
        held
        / NORMAL_QUANTILE
        * float(np.sqrt(len(residuals) / max(len(residuals) - parameters, 1)))
    )


def run_effects(columns: FloatArray, solution: Solution) -> FloatArray:
    """Relative change of each time per relative change of all times, and of all rates downwards.

    Returns
    -------
    ndarray of float, shape (observations, 2)
    """
    rates = np.array([key.name in RATES for key in solution.values], dtype=bool)
    both = [columns[:, ~rates].sum(axis=1), -columns[:, rates].sum(axis=1)]
    return np.stack(both, axis=1)


def widen_covariance(solution: Solution, spread: RunSpread, runs: int) -> FloatArray:
    """Covariance of the values with that of the mean of few runs added, shape (values, values)."""
    rates = np.array([key.name in RATES for key in solution.values], dtype=bool)
    total: FloatArray = solution.covariance.copy()
    for chosen, deviations in ((~rates, spread.times), (rates, spread.rates)):
        total += np.outer(chosen, chosen) * deviations**2 / runs
    return total


def _fit_run(
    effects: FloatArray, residuals: FloatArray, scatter: float
) -> tuple[FloatArray, FloatArray]:
    """Two factors of a run (logarithms) and their variances; infinite if not identifiable."""
    matrix, target = effects, residuals
    weights = np.ones(len(residuals))
    scale = max(1.5 * scatter, 1e-9)
    factors: FloatArray = np.zeros(2)
    for _ in range(10):  # least squares of soft L1, by reweighting
        root = np.sqrt(weights)
        solved, *_ = np.linalg.lstsq(matrix * root[:, None], target * root, rcond=1e-3)
        factors = np.asarray(solved, dtype=float)
        weights = (1.0 + ((target - matrix @ factors) / scale) ** 2) ** -0.5
    spent = max(len(residuals) - 2, 1)
    variance = max(robust_deviation(target - matrix @ factors, spent), 1e-9) ** 2
    inverse = np.linalg.pinv((matrix * weights[:, None]).T @ matrix, rcond=1e-6)
    variances = np.diag(inverse) * variance
    variances = np.where(np.abs(effects).max(axis=0) < 0.05, np.inf, variances)
    return factors, variances


def _pool(factors: FloatArray, variances: FloatArray, prior: float, freedom: float) -> float:
    """Standard deviation between runs, pooled with the prior one."""
    informative = variances < UNINFORMATIVE**2
    if informative.sum() < 2:
        return prior
    variance = max(float(np.var(factors[informative], ddof=1) - variances[informative].mean()), 0.0)
    count = int(informative.sum()) - 1
    return float(np.sqrt((freedom * prior**2 + count * variance) / (freedom + count)))
