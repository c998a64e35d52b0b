"""Robust least squares on the logarithm of times: noise whose scale the rows themselves show."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.calibrate.estimation import Estimate, Iterate, Precision, estimate
from perfmodel.calibrate.link_costs.forward_model import CostModel
from perfmodel.calibrate.parameters import (
    PROBABILITY,
    FactorPrior,
    Parameter,
    ParameterName,
    Prior,
    Values,
    invert,
    prior_covariance,
)
from perfmodel.calibrate.profile import RunSpread
from perfmodel.files import FileModel, load_document

MAX_STEPS = 25
"""Of Gauss and Newton. Smooth problems take 3 to 10; more steps alternate across a kink, where
another lowering or another limit takes over, without any gain."""

CONVERGED = 1e-5
"""Logarithm of the last step."""

MAX_HALVINGS = 3
"""Of a step that leads away from the measured times."""

LINEAR_UP_TO = 1.5
"""Standard deviations up to which the loss is about quadratic."""

MIN_SCATTER = 1e-6
"""Smallest scatter, that of rounding: the loss is quadratic below it."""


class CostPriors(FileModel):
    """What a fit of our own runs expects before it sees data: `levers` of values, `runs`."""

    levers: dict[ParameterName, FactorPrior]
    runs: RunSpread
    source: str


@cache
def shipped_cost_priors() -> CostPriors:
    """Read the shipped priors."""
    return load_document(CostPriors, Path(__file__).with_name("priors.yaml"))


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

    def weigh(iterate: Iterate) -> Precision:
        scatter = max(robust_deviation(iterate.over, freedom), MIN_SCATTER)
        return Precision(np.diag(robust_weights(iterate.over, scatter) / scatter**2), information)

    fitted = estimate(
        forward, keys, prior, weigh, steps=MAX_STEPS, converged=CONVERGED, halvings=MAX_HALVINGS
    )
    residuals = np.log(fitted.fitted_s / forward.measured_s)
    scatter = robust_deviation(residuals, freedom)
    scale = LINEAR_UP_TO * max(scatter, MIN_SCATTER)
    return Solution(
        **vars(fitted),
        scatter=scatter,
        cost=float(np.mean(2.0 * scale**2 * (np.sqrt(1.0 + (residuals / scale) ** 2) - 1.0))),
        factor=float(stats.t.ppf(0.5 + PROBABILITY / 2, freedom)),
    )
