"""How much rows, runs and the mechanism may each be off, told from the rows themselves.

Expected spreads say how far rows, runs and the mechanism usually are off. Here a row or a run that
is far from all others is given a wider spread of its own (Student's t, reweighted), and a machine
on which the mechanism is off by more than usual a wider spread of what is left: rows of that
machine then say more about its other runs. MacKay, Bayesian interpolation, Neural Computation 4(3),
1992 (evidence and the number of well-determined parameters).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.calibrate.transfer.gaussian_process import (
    ContextArrays,
    invert,
    residual_covariance,
    row_variance,
    run_covariance,
)
from perfmodel.calibrate.transfer.parameters import Priors, ResidualPrior

ROUNDS = 4
"""Of finding rows, runs and the mechanism's part in turn."""

FACTORS = np.exp2(np.arange(-0.5, 3.6, 0.5))
"""Factors that are tried on what is left: from 0.7 to 11."""


@dataclass(frozen=True, eq=False)
class NoiseModel:
    """Spreads of some rows, and the inverse of their whole covariance.

    Parameters
    ----------
    left : ResidualPrior
        With the deviations that this machine asks for.
    odd : ndarray of float, shape (runs,)
        Factor on the variance of each run.
    row : ndarray of float, shape (rows,)
        Variance that is each row's own.
    inverse : ndarray of float, shape (rows, rows)
    """

    left: ResidualPrior
    odd: FloatArray
    row: FloatArray
    inverse: FloatArray

    def noise(self, places: ContextArrays, run: IntArray, expected: Priors) -> FloatArray:
        """Covariance of what runs and rows have of their own."""
        found: FloatArray = run_covariance(places, run, expected.runs, self.odd.tolist())
        return found + np.diag(self.row)


def fit_noise(
    by_factors: FloatArray, places: ContextArrays, run: IntArray, over: FloatArray, expected: Priors
) -> NoiseModel:
    """Find the spreads.

    Parameters
    ----------
    by_factors : ndarray of float, shape (rows, rows)
        Covariance of the rows by what is open of the factors.
    places : ContextArrays
    run : ndarray of int, shape (rows,)
        From 0 on.
    over : ndarray of float, shape (rows,)
        Logarithm of measured over predicted time.
    expected : Priors
    """
    mechanism = residual_covariance(places, places, expected.left, expected.runs)
    usual = run_covariance(places, run, expected.runs)
    usual_row = row_variance(places, expected.runs)
    row = usual_row
    odd, factor = np.ones(int(run.max(initial=-1)) + 1), 1.0
    base = by_factors + usual
    for _ in range(ROUNDS):
        inverse = invert(base + factor**2 * mechanism + np.diag(row))
        weights = inverse @ over
        row = _row_variances(row * weights, usual_row, expected.runs.freedom)
        odd = _run_factors(usual, run, odd, weights, inverse, expected.runs.odd)
        base = by_factors + usual * odd[run][:, None]
        factor = _likeliest_factor(base + np.diag(row), mechanism, over, expected.left.open)
    whole = base + factor**2 * mechanism + np.diag(row)
    return NoiseModel(scale_residual(expected.left, factor), odd, row, invert(whole))


def scale_residual(left: ResidualPrior, factor: float) -> ResidualPrior:
    """What is left where the mechanism is off by so many times as much."""
    return left.model_copy(
        update={
            name: factor * getattr(left, name) for name in ("small", "deviation", "large", "level")
        }
    )


def _likeliest_factor(
    base: FloatArray, mechanism: FloatArray, over: FloatArray, open_: float
) -> float:
    """The likeliest factor on the mechanism's part, between those tried by a parabola."""
    if open_ == 0.0 or not len(over):
        return 1.0
    logs = np.log(FACTORS)
    found = np.array([_log_density(base + f**2 * mechanism, over) for f in FACTORS])
    found -= 0.5 * (logs / open_) ** 2
    at = int(np.clip(np.argmax(found), 1, len(found) - 2))
    left, middle, right = found[at - 1 : at + 2]
    bend = left - 2 * middle + right
    shift = 0.5 * (left - right) / bend if bend < 0 else 0.0
    return float(np.exp(logs[at] + float(np.clip(shift, -1, 1)) * (logs[1] - logs[0])))


def _log_density(whole: FloatArray, over: FloatArray) -> float:
    """Logarithm of a normal density, but for a constant."""
    root = np.linalg.cholesky(whole)
    away = np.linalg.solve(root, over)
    return -float(np.log(np.diag(root)).sum()) - 0.5 * float(away @ away)


def _run_factors(
    usual: FloatArray,
    run: IntArray,
    odd: FloatArray,
    weights: FloatArray,
    inverse: FloatArray,
    freedom: float,
) -> FloatArray:
    """Factor on each run's variance, from how far it is off and how well that can be told."""
    if freedom == 0.0 or len(odd) < 2:  # a single run is not off from others
        return odd
    found = odd.copy()
    for one in range(len(odd)):
        at = np.flatnonzero(run == one)
        own = usual[np.ix_(at, at)]
        off = odd[one] ** 2 * float(weights[at] @ own @ weights[at])
        told = odd[one] * float(np.einsum("ij,ji->", own, inverse[np.ix_(at, at)]))
        found[one] = max((freedom + off) / (freedom + told), 1.0)
    return found


def _row_variances(own: FloatArray, usual: FloatArray, freedom: float) -> FloatArray:
    """Variances of rows: an outlier's is what its distance asks for (Student's t, reweighted)."""
    return np.maximum((freedom * usual + own**2) / (freedom + 1), 0.5 * usual)
