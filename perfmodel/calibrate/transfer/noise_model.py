"""Noise model: variances of rows, runs and residual, fitted to the rows themselves.

The priors say how large they usually are. Here a row or a run that is an outlier gets a larger
variance of its own (Student's t, by reweighting), and a machine on which the mechanism is less
accurate than usual a larger residual: its rows then weigh more for its other runs. MacKay,
Bayesian interpolation, Neural Computation 4(3), 1992 (evidence, number of well-determined
parameters).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.calibrate.estimation import Iterate
from perfmodel.calibrate.parameters import invert
from perfmodel.calibrate.transfer.forward_model import FactorModel
from perfmodel.calibrate.transfer.gaussian_process import (
    ContextArrays,
    residual_covariance,
    row_variance,
    run_covariance,
)
from perfmodel.calibrate.transfer.priors import Priors, ResidualPrior

ROUNDS = 4
"""Of fitting variances of rows, of runs and of the residual in turn."""

FACTORS = np.exp2(np.arange(-0.5, 3.6, 0.5))
"""Factors on the residual's deviations that are tried: from 0.7 to 11."""


class SweepNoise:
    """Noise of the rows of a fit of sweeps: residual, runs and rows.

    Parameters
    ----------
    forward : FactorModel
    by_prior : ndarray of float, shape (factors, factors)
        Covariance of the factors before any sweep.
    priors : Priors
    """

    def __init__(self, forward: FactorModel, by_prior: FloatArray, priors: Priors) -> None:
        self._forward, self._by_prior, self._priors = forward, by_prior, priors
        self.contexts = ContextArrays.of(())
        self.model = NoiseModel(priors.left, np.zeros(0), np.zeros(0), np.zeros((0, 0)))

    def __call__(self, iterate: Iterate) -> FloatArray:
        """Fit the variances; inverse covariance of the rows by residual and noise."""
        forward, priors, values = self._forward, self._priors, iterate.values
        contexts = ContextArrays.of(forward.contexts(values), forward.shares(values).tolist())
        model = self.model
        if not iterate.last:
            by_factors = iterate.slopes @ self._by_prior @ iterate.slopes.T
            model = fit_noise(by_factors, contexts, forward.run, iterate.by_prior, priors)
        residual = residual_covariance(contexts, contexts, model.residual, priors.runs)
        self.contexts, self.model = contexts, model
        return invert(residual + model.covariance(contexts, forward.run, priors))


@dataclass(frozen=True, eq=False)
class NoiseModel:
    """Variances of some rows, and the inverse of their whole covariance.

    Parameters
    ----------
    residual : ResidualPrior
        With the deviations fitted to this machine.
    run_factors : ndarray of float, shape (runs,)
        Factor on the variance of each run.
    row_variances : ndarray of float, shape (rows,)
        Variance that is each row's own.
    inverse : ndarray of float, shape (rows, rows)
    """

    residual: ResidualPrior
    run_factors: FloatArray
    row_variances: FloatArray
    inverse: FloatArray

    def covariance(self, contexts: ContextArrays, run: IntArray, priors: Priors) -> FloatArray:
        """Covariance of the noise of runs and rows, without the residual."""
        by_runs: FloatArray = run_covariance(contexts, run, priors.runs, self.run_factors.tolist())
        return by_runs + np.diag(self.row_variances)


def fit_noise(
    by_factors: FloatArray, contexts: ContextArrays, run: IntArray, over: FloatArray, priors: Priors
) -> NoiseModel:
    """Fit the variances.

    Parameters
    ----------
    by_factors : ndarray of float, shape (rows, rows)
        Covariance of the rows by the prior of the factors.
    contexts : ContextArrays
    run : ndarray of int, shape (rows,)
        From 0 on.
    over : ndarray of float, shape (rows,)
        Logarithm of measured over predicted time.
    priors : Priors
    """
    by_residual = residual_covariance(contexts, contexts, priors.left, priors.runs)
    by_runs = run_covariance(contexts, run, priors.runs)
    prior_rows = row_variance(contexts, priors.runs)
    rows = prior_rows
    run_factors, factor = np.ones(int(run.max(initial=-1)) + 1), 1.0
    base = by_factors + by_runs
    for _ in range(ROUNDS):
        inverse = invert(base + factor**2 * by_residual + np.diag(rows))
        weights = inverse @ over
        rows = _row_variances(rows * weights, prior_rows, priors.runs.freedom)
        run_factors = _run_factors(by_runs, run, run_factors, weights, inverse, priors.runs.odd)
        base = by_factors + by_runs * run_factors[run][:, None]
        factor = _likeliest_factor(base + np.diag(rows), by_residual, over, priors.left.open)
    whole = base + factor**2 * by_residual + np.diag(rows)
    return NoiseModel(scale_residual(priors.left, factor), run_factors, rows, invert(whole))


def scale_residual(residual: ResidualPrior, factor: float) -> ResidualPrior:
    """Multiply the residual's deviations by a factor."""
    return residual.model_copy(
        update={
            name: factor * getattr(residual, name)
            for name in ("small", "deviation", "large", "level")
        }
    )


def _likeliest_factor(
    base: FloatArray, by_residual: FloatArray, over: FloatArray, open_: float
) -> float:
    """Likeliest factor on the residual's deviations, by a parabola between those tried."""
    if open_ == 0.0 or not len(over):
        return 1.0
    logs = np.log(FACTORS)
    density = np.array([_log_density(base + f**2 * by_residual, over) for f in FACTORS])
    density -= 0.5 * (logs / open_) ** 2
    at = int(np.clip(np.argmax(density), 1, len(density) - 2))
    before, middle, after = density[at - 1 : at + 2]
    bend = before - 2 * middle + after
    shift = 0.5 * (before - after) / bend if bend < 0 else 0.0
    return float(np.exp(logs[at] + float(np.clip(shift, -1, 1)) * (logs[1] - logs[0])))


def _log_density(covariance: FloatArray, over: FloatArray) -> float:
    """Logarithm of a normal density, but for a constant."""
    root = np.linalg.cholesky(covariance)
    standardised = np.linalg.solve(root, over)
    return -float(np.log(np.diag(root)).sum()) - 0.5 * float(standardised @ standardised)


def _run_factors(
    by_runs: FloatArray,
    run: IntArray,
    factors: FloatArray,
    weights: FloatArray,
    inverse: FloatArray,
    freedom: float,
) -> FloatArray:
    """Factor on each run's variance: its squared deviation over the part that is identifiable."""
    if freedom == 0.0 or len(factors) < 2:  # a single run has no others to differ from
        return factors
    updated = factors.copy()
    for number in range(len(factors)):
        at = np.flatnonzero(run == number)
        own = by_runs[np.ix_(at, at)]
        squared = factors[number] ** 2 * float(weights[at] @ own @ weights[at])
        trace = float(np.einsum("ij,ji->", own, inverse[np.ix_(at, at)]))
        updated[number] = max((freedom + squared) / (freedom + factors[number] * trace), 1.0)
    return updated


def _row_variances(own: FloatArray, prior: FloatArray, freedom: float) -> FloatArray:
    """Variances of rows: an outlier's grows with its distance (Student's t, by reweighting)."""
    return np.maximum((freedom * prior + own**2) / (freedom + 1), 0.5 * prior)
