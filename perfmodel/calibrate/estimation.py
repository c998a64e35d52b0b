"""What both estimators share: interval probability, identifiability threshold, drawing, rounding.

`link_costs` fits the numbers of one machine to its own measurements by least squares; `transfer`
fits factors on the mechanism's numbers to sweeps, with priors, and holds at other scales.
"""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import FloatArray

PROBABILITY = 0.8
"""That the truth lies inside an interval."""

NORMAL_QUANTILE = 1.2816
"""Standard deviations about zero that hold `PROBABILITY` of a normal distribution."""

NO_EFFECT = 1e-4
"""A parameter is not identifiable if doubling it changes no time by more than about this much."""


def draw_logs(
    covariance: FloatArray, rng: np.random.Generator, widening: float = 1.0
) -> FloatArray:
    """Draw deviations of logarithms with a covariance, their standard deviations times `widening`.

    By eigenvalues: rounding in a file may have pushed one just below zero.
    """
    variances, axes = np.linalg.eigh(covariance)
    normal = rng.standard_normal(len(variances))
    logs: FloatArray = axes @ (widening * np.sqrt(np.maximum(variances, 0.0)) * normal)
    return logs


def round_digits(number: float) -> float:
    """Round to six digits: more would feign accuracy."""
    return float(f"{number:.6g}")
