"""Robust least squares on the logarithm of times, and how much runs of one machine differ.

The rows themselves show the scale of their noise. A run is of processes that are started afresh.
The placement of threads, their pages and other load of the machine stay the same through a run and
change with the next, so the repeats of one run do not show their effect. Model, a random effect of
the run: all its times are longer by a factor and all its rates lower by another, both lognormal
about the long-run values. Latency-bound sizes follow the first, bandwidth-bound ones the second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.calibrate.estimation import Estimate, Precision, estimate
from perfmodel.calibrate.link_model import CostModel
from perfmodel.calibrate.parameters import (
    INTERVAL_PROBABILITY,
    NORMAL_QUANTILE,
    RATES,
    Parameter,
    Prior,
    Values,
    invert,
    prior_covariance,
)
from perfmodel.calibrate.priors import shipped_cost_priors
from perfmodel.calibrate.profile import RunSpread

UNINFORMATIVE_DEVIATION = 1.0
"""Standard deviation of a run's factor from which on that run does not count for it."""


def estimate_run_spread(forward: CostModel, solution: Solution) -> tuple[RunSpread, float]:
    """Estimate the spread between runs, and the scatter within them.

    Variance between runs by the method of moments (DerSimonian and Laird, Controlled Clinical
    Trials 7, 1986), pooled with the prior by their degrees of freedom.

    Parameters
    ----------
    forward : CostModel
    solution : Solution
        Of all runs together.

    Returns
    -------
    spread : RunSpread
    scatter : float
        Standard deviation of the logarithm of a time about its own run's fit.
    """
    prior, run = shipped_cost_priors().runs, forward.run
    numbers = np.unique(run)
    residuals = np.log(forward.measured_s / solution.fitted_s)
    spent = len(solution.values) + 2 * (len(numbers) - 1)
    if len(numbers) < 2:
        single_run = prior.model_copy(update={"source": f"one run; usual spread: {prior.source}"})
        return single_run, _scatter(residuals, spent)
    # Relative change of each time per relative change of all times, and of all rates downwards.
    of_times, of_rates = _sides(solution)
    effects = np.stack([solution.slopes @ of_times, -solution.slopes @ of_rates], axis=1)
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
    source = (
        f"{len(numbers)} runs, pooled with the usual spread "
        f"({prior.freedom:g} of {freedom:g} degrees of freedom)"
    )
    spread = RunSpread(times=times, rates=rates, freedom=freedom, source=source)
    return spread, _scatter(within, spent)


def _scatter(residuals: FloatArray, parameters: int) -> float:
    """Standard deviation of the normal distribution with the same 80 % quantile about zero.

    Times have longer tails than a normal distribution of their median deviation.
    """
    return (
        float(np.quantile(np.abs(residuals), INTERVAL_PROBABILITY))
        / NORMAL_QUANTILE
        * float(np.sqrt(len(residuals) / max(len(residuals) - parameters, 1)))
    )


def widen_covariance(solution: Solution, spread: RunSpread, runs: int) -> FloatArray:
    """Covariance of the values with that of the mean of few runs added, shape (values, values)."""
    sides = zip(_sides(solution), (spread.times, spread.rates), strict=True)
    more = (np.outer(side, side) * deviation**2 / runs for side, deviation in sides)
    return sum(more, start=solution.covariance)


def _sides(solution: Solution) -> tuple[FloatArray, FloatArray]:
    """Return which values are times, and which are rates: 1 or 0 for each."""
    rates = np.array([float(key.name in RATES) for key in solution.values])
    return 1.0 - rates, rates


def _fit_run(
    effects: FloatArray, residuals: FloatArray, scatter: float
) -> tuple[FloatArray, FloatArray]:
    """Two factors of a run (logarithms) and their variances; infinite if not identifiable."""
    weights = np.ones(len(residuals))
    factors: FloatArray = np.zeros(2)
    for _ in range(10):
        root = np.sqrt(weights)
        solved, *_ = np.linalg.lstsq(effects * root[:, None], residuals * root, rcond=1e-3)
        factors = np.asarray(solved, dtype=float)
        weights = robust_weights(residuals - effects @ factors, max(scatter, 1e-9))
    spent = max(len(residuals) - 2, 1)
    variance = max(robust_deviation(residuals - effects @ factors, spent), 1e-9) ** 2
    inverse = np.linalg.pinv((effects * weights[:, None]).T @ effects, rcond=1e-6)
    is_seen = np.abs(effects).max(axis=0) >= 0.05
    return factors, np.where(is_seen, np.diag(inverse) * variance, np.inf)


def _pool(factors: FloatArray, variances: FloatArray, prior: float, freedom: float) -> float:
    """Standard deviation between runs, pooled with the prior one."""
    informative = variances < UNINFORMATIVE_DEVIATION**2
    if informative.sum() < 2:
        return prior
    variance = max(float(np.var(factors[informative], ddof=1) - variances[informative].mean()), 0.0)
    count = int(informative.sum()) - 1
    return float(np.sqrt((freedom * prior**2 + count * variance) / (freedom + count)))


MAX_STEPS = 25
"""Most Gauss-Newton steps. Smooth problems take 3 to 10; more alternate across a kink, where
another lowering or another limit takes over, without any gain."""

CONVERGED_LOG_STEP = 1e-5
"""Logarithm of the last step."""

MAX_HALVINGS = 3
"""Most halvings of a step that leads away from the measured times."""

LINEAR_UP_TO = 1.5
"""Standard deviations up to which the loss is about quadratic."""

MIN_SCATTER = 1e-6
"""Smallest scatter, that of rounding: the loss is quadratic below it."""


@dataclass(frozen=True)
class Solution(Estimate):
    """Values with the covariance of their logarithms.

    Parameters
    ----------
    scatter : float
        Robust standard deviation of the logarithm of measured over fitted times.
    cost : float
        Mean robust squared residual, for comparing models.
    factor : float
        Standard deviations of a logarithm from its value to the end of its interval.
    """

    scatter: float
    cost: float
    factor: float

    @property
    def spread(self) -> dict[Parameter, float]:
        """Factor between each value and the ends of its interval."""
        return spread_of(self.values, self.covariance, self.factor)


def spread_of(
    values: Iterable[Parameter], covariance: FloatArray, factor: float
) -> dict[Parameter, float]:
    """Factor between each value and the ends of its interval, `factor` deviations away."""
    deviations = np.sqrt(np.diag(covariance))
    # Beyond e^50 an interval is as good as everything; larger powers would overflow.
    return dict(zip(values, np.exp(np.minimum(deviations * factor, 50.0)).tolist(), strict=True))


def robust_weights(over: FloatArray, scatter: float) -> FloatArray:
    """Weights of rows in least squares that give soft L1; Huber, Robust Statistics (1981), 7.8."""
    return np.asarray((1.0 + (over / (LINEAR_UP_TO * scatter)) ** 2) ** -0.5)


def robust_deviation(residuals: FloatArray, freedom: int) -> float:
    """Standard deviation from the median of absolute values (1.4826 of it for a normal one)."""
    return 1.4826 * float(np.median(np.abs(residuals))) * math.sqrt(len(residuals) / freedom)


def solve(forward: CostModel, start: Values) -> Solution:
    """Find the values whose predicted times come closest to the measured ones.

    Rows are independent with the loss soft L1, whose scale is that of the median residual.
    Intervals are those of Student's t with n - p degrees of freedom.
    """
    from scipy import stats

    keys = list(start)
    freedom = max(len(forward.measured_s) - len(keys), 1)
    information = invert(prior_covariance(keys, shipped_cost_priors().levers))
    prior = Prior(np.log(list(start.values())), information)

    def weigh(_: Values, over: FloatArray, *__: object) -> Precision:
        scatter = max(robust_deviation(over, freedom), MIN_SCATTER)
        return np.diag(robust_weights(over, scatter) / scatter**2), information

    fitted = estimate(
        forward,
        keys,
        prior,
        weigh,
        steps=MAX_STEPS,
        converged=CONVERGED_LOG_STEP,
        halvings=MAX_HALVINGS,
    )
    residuals = np.log(fitted.fitted_s / forward.measured_s)
    scatter = robust_deviation(residuals, freedom)
    scale = LINEAR_UP_TO * max(scatter, MIN_SCATTER)
    return Solution(
        **vars(fitted),
        scatter=scatter,
        cost=float(np.mean(2.0 * scale**2 * (np.sqrt(1.0 + (residuals / scale) ** 2) - 1.0))),
        factor=float(stats.t.ppf(0.5 + INTERVAL_PROBABILITY / 2, freedom)),
    )
