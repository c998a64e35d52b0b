"""Noise model: variances of rows, runs and residual, fitted to the rows themselves.

The priors say how large they usually are. Here a row or a run that is an outlier gets a larger
variance of its own (Student's t, by reweighting), and a machine on which the mechanism is less
accurate than usual a larger residual: its rows then weigh more for its other runs. MacKay,
Bayesian interpolation, Neural Computation 4(3), 1992 (evidence, number of well-determined
parameters). A factor of the mechanism has heavy tails too: where rows show that one is far from
what is usual, its prior gets a variance of its own, as large as makes the rows likeliest (Tipping
and Faul, Fast marginal likelihood maximisation for sparse Bayesian models, AISTATS 2003).
"""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.calibrate.estimation import Precision
from perfmodel.calibrate.parameters import Values, invert
from perfmodel.calibrate.transfer.forward_model import FactorModel
from perfmodel.calibrate.transfer.priors import (
    ContextArrays,
    Priors,
    residual_covariance,
    row_variance,
    run_covariance,
)

REWEIGHTING_ROUNDS = 4
"""Rounds of fitting variances of rows, of runs and of the residual in turn."""

OWN_DEVIATIONS = np.exp2(np.arange(0.0, 7.1, 0.5))
"""Deviations of a factor that are tried, in multiples of what is usual: to 128, with which a rate
that is usually a few percent off may be a tenth of its datasheet's."""

NO_INFORMATION = 1e-9
"""What rows tell of a factor's logarithm (inverse variance) by rounding alone."""

FACTORS = np.exp2(np.arange(-0.5, 3.6, 0.5))
"""Factors on the residual's deviations that are tried: from 0.7 to 11."""


class SweepNoise:
    """Noise of the rows of a fit of sweeps: residual, runs and rows, with what a fit made of it.

    Parameters
    ----------
    by_prior : ndarray of float, shape (factors, factors)
        Covariance of the factors' logarithms before any sweep.
    tails : ndarray of float, shape (factors,)
        Degrees of freedom of each factor's distribution; 0: normal.
    priors : Priors
    forward : FactorModel, optional
        Whose rows they are, where an estimation calls for their precisions step by step.

    Attributes
    ----------
    contexts : ContextArrays
        Of the rows.
    residual : ResidualPrior
        With the deviations fitted to this machine.
    run_factors : ndarray of float, shape (runs,)
        Factor on the variance of each run.
    row_variances : ndarray of float, shape (rows,)
        Variance that is each row's own.
    factor_variances : ndarray of float, shape (factors,)
        Variance that is each factor's own, beyond its prior: of one that is far from usual. A fit
        begins from those of the step before, so that which of two factors with the same effect is
        taken stays the same from step to step.
    inverse : ndarray of float, shape (rows, rows)
        Inverse of the rows' whole covariance.
    """

    def __init__(
        self,
        by_prior: FloatArray,
        tails: FloatArray,
        priors: Priors,
        forward: FactorModel | None = None,
    ) -> None:
        self._forward, self._by_prior, self._tails, self._priors = forward, by_prior, tails, priors
        self.contexts, self.residual = ContextArrays.of(()), priors.left
        self.run_factors, self.row_variances = np.zeros(0), np.zeros(0)
        self.factor_variances, self.inverse = np.zeros(len(by_prior)), np.zeros((0, 0))

    def __call__(
        self, values: Values, _: FloatArray, by_prior: FloatArray, slopes: FloatArray, last: bool
    ) -> Precision:
        """Fit the variances; precisions of the rows by residual and noise, and of the factors."""
        assert self._forward is not None
        noise, run = self._priors.runs, self._forward.run
        self.contexts = contexts = ContextArrays.of(*self._forward.contexts(values))
        if not last:
            self.fit(slopes, contexts, run, by_prior)
        by_runs = run_covariance(contexts, run, noise, self.run_factors.tolist())
        residual = residual_covariance(contexts, contexts, self.residual, noise)
        rows = invert(residual + (by_runs + np.diag(self.row_variances)))
        return rows, invert(self._by_prior + np.diag(self.factor_variances))

    def fit(
        self, slopes: FloatArray, contexts: ContextArrays, run: IntArray, over: FloatArray
    ) -> None:
        """Fit the variances.

        Parameters
        ----------
        slopes : ndarray of float, shape (rows, factors)
        contexts : ContextArrays
        run : ndarray of int, shape (rows,)
            From 0 on.
        over : ndarray of float, shape (rows,)
            Logarithm of measured over predicted time.
        """
        priors = self._priors

        def by_factors(own: FloatArray) -> FloatArray:
            """Covariance of the rows by factors with variances of their `own` beside the prior."""
            return np.asarray(slopes @ (self._by_prior + np.diag(own)) @ slopes.T)

        by_residual = residual_covariance(contexts, contexts, priors.left, priors.runs)
        by_runs = run_covariance(contexts, run, priors.runs)
        prior_rows = row_variance(contexts, priors.runs)
        rows, own = prior_rows, self.factor_variances
        run_factors, factor = np.ones(int(run.max(initial=-1)) + 1), 1.0
        base = by_factors(own) + by_runs
        for _ in range(REWEIGHTING_ROUNDS):
            inverse = invert(base + factor**2 * by_residual + np.diag(rows))
            # First what the mechanism explains: the others would take all of it for outliers.
            usual = np.diag(self._by_prior)
            own, inverse = _own_variances(slopes, usual, self._tails, own, inverse, over)
            weights = inverse @ over
            # An outlier's variance grows with its distance (Student's t, by reweighting).
            squared, freedom = (rows * weights) ** 2, priors.runs.freedom
            rows = np.maximum((freedom * prior_rows + squared) / (freedom + 1), 0.5 * prior_rows)
            run_factors = _run_factors(by_runs, run, run_factors, weights, inverse, priors.runs.odd)
            base = by_factors(own) + by_runs * run_factors[run][:, None]
            factor = _likeliest_factor(base + np.diag(rows), by_residual, over, priors.left.open)
        self.inverse = invert(base + factor**2 * by_residual + np.diag(rows))
        deviations = ("small", "deviation", "large", "level")
        scaled = {name: factor * getattr(priors.left, name) for name in deviations}
        self.residual = priors.left.model_copy(update=scaled)
        self.run_factors, self.row_variances, self.factor_variances = run_factors, rows, own


def _own_variances(
    slopes: FloatArray,
    usual: FloatArray,
    tails: FloatArray,
    own: FloatArray,
    inverse: FloatArray,
    over: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Likeliest variance of each factor beyond its prior, and the rows' inverse covariance with it.

    Factors that explain most come first. A variance adds a matrix of rank one to the covariance of
    the rows, so that its likelihood is known in closed form. Before any data a factor's whole
    variance is that of Student's t.

    `usual`: variance of each factor by its prior. `tails`: as of `SweepNoise`.
    """
    updated = own.copy()
    informations = np.einsum("ij,ik,kj->j", slopes, inverse, slopes)
    gain = (slopes.T @ inverse @ over) ** 2 / np.maximum(informations, NO_INFORMATION)
    squared = OWN_DEVIATIONS**2
    expected = -0.5 * (np.log(squared) + 1.0 / squared)
    for at in np.argsort(-gain).tolist():
        along = inverse @ slopes[:, at]
        information = float(slopes[:, at] @ along)
        if information <= NO_INFORMATION or tails[at] == 0.0:
            continue
        without = 1.0 - updated[at] * information
        information_left, score = information / without, float(along @ over) / without
        candidates = (squared - 1.0) * usual[at]
        density = 0.5 * (
            candidates * score**2 / (1.0 + candidates * information_left)
            - np.log1p(candidates * information_left)
        )
        variance = float(candidates[int(np.argmax(density + tails[at] * expected))])
        change = variance - updated[at]
        inverse = inverse - np.outer(along, along) * change / (1.0 + change * information)
        updated[at] = variance
    return updated, inverse


def _likeliest_factor(
    base: FloatArray, by_residual: FloatArray, over: FloatArray, open_: float
) -> float:
    """Likeliest factor on the residual's deviations, by a parabola between those that are tried."""
    if open_ == 0.0 or not len(over):
        return 1.0
    logs = np.log(FACTORS)
    density = _log_densities(base, by_residual, over) - 0.5 * (logs / open_) ** 2
    at = int(np.clip(np.argmax(density), 1, len(density) - 2))
    before, middle, after = density[at - 1 : at + 2]
    bend = before - 2 * middle + after
    shift = 0.5 * (before - after) / bend if bend < 0 else 0.0
    return float(np.exp(logs[at] + float(np.clip(shift, -1, 1)) * (logs[1] - logs[0])))


def _log_densities(base: FloatArray, by_residual: FloatArray, over: FloatArray) -> FloatArray:
    """Logarithms of normal densities with each of `FACTORS`, but for a constant.

    Both covariances are made diagonal at once, so that one decomposition serves all factors.
    """
    whiten = np.linalg.inv(np.linalg.cholesky(base))
    variances, axes = np.linalg.eigh(whiten @ by_residual @ whiten.T)
    spread = 1.0 + np.outer(FACTORS**2, np.maximum(variances, 0.0))
    standardised = axes.T @ (whiten @ over)
    return np.asarray(-0.5 * (np.log(spread) + standardised**2 / spread).sum(axis=1))


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
