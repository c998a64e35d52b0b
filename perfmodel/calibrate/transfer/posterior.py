"""Posterior of the factors beside the residual: a robust maximum a posteriori.

A measured time is the mechanism's with its factors, times a residual that is smooth over size,
times the noise of its run and of its row: all lognormal but for the rows' tails (Student's t).
The priors decide how much of a deviation is attributed to factors and how much to the residual. The
covariance of the factors includes that of the residual, so that an inaccurate mechanism widens it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.calibrate.transfer.forward_model import ForwardModel
from perfmodel.calibrate.transfer.gaussian_process import ContextArrays, invert, residual_covariance
from perfmodel.calibrate.transfer.noise_model import NoiseModel, fit_noise
from perfmodel.calibrate.transfer.parameters import Priors, TransferParameter, prior_covariance

MAX_STEPS = 6
"""Of Gauss and Newton; times are nearly linear in the factors unless the algorithm changes."""

RELINEARISE_BEYOND = 0.15
"""Change of the logarithm of a factor from which on the slopes are computed again."""

CONVERGED = 0.01
"""Logarithm of the last step: far below any interval."""

MAX_LOG_STEP = 2.0
"""Logarithm of the largest factor that one step may apply."""


@dataclass(frozen=True, slots=True)
class Posterior:
    """Posterior of the factors: mean and covariance of their logarithms.

    Parameters
    ----------
    parameters : tuple of TransferParameter
    logs : ndarray of float, shape (parameters,)
        Logarithms of the factors.
    covariance : ndarray of float, shape (parameters, parameters)
        Of `logs`.
    fitted_s : ndarray of float, shape (rows,)
        Times of the mechanism with the factors, without the residual.
    slopes : ndarray of float, shape (rows, parameters)
    noise : NoiseModel
        Deviations of rows, runs and the mechanism.
    contexts : ContextArrays
    """

    parameters: tuple[TransferParameter, ...]
    logs: FloatArray
    covariance: FloatArray
    fitted_s: FloatArray
    slopes: FloatArray
    noise: NoiseModel
    contexts: ContextArrays


@dataclass(frozen=True, slots=True)
class DirectMeasurement:
    """Rate of a link that was measured by itself: logarithm of its factor, standard deviation."""

    parameter: TransferParameter
    log: float
    deviation: float


def fit_posterior(
    forward: ForwardModel,
    parameters: Sequence[TransferParameter],
    priors: Priors,
    direct: Sequence[DirectMeasurement] = (),
) -> Posterior:
    """Maximise the posterior by Gauss-Newton steps, the noise model fitted anew in each.

    Parameters
    ----------
    forward : ForwardModel
        Without an observation the result is the prior with the direct measurements.
    parameters : sequence of TransferParameter
    priors : Priors
    direct : sequence of DirectMeasurement
        Measurements of single factors.
    """
    information, pull = _prior_information(parameters, priors, direct)
    before = invert(information)
    logs: FloatArray = before @ pull
    if not forward.observations:
        return _posterior_without_rows(parameters, logs, before, priors)
    measured = np.log(forward.measured_s)
    run = np.array([observation.run for observation in forward.observations])
    prior_logs = logs
    slopes, since = np.zeros((0, 0)), np.inf
    for _ in range(MAX_STEPS):
        fitted_s, contexts = _fit_times(forward, parameters, logs)
        if since > RELINEARISE_BEYOND:
            slopes, since = forward.slopes(_factors(parameters, logs), fitted_s), 0.0
        over = measured - np.log(fitted_s)
        over_prior = over + slopes @ (logs - prior_logs)
        by_factors = slopes @ before @ slopes.T
        noise = fit_noise(by_factors, contexts, run, over_prior, priors)
        inverse = invert(_row_covariance(noise, contexts, run, priors))
        curvature = slopes.T @ inverse @ slopes + information
        gradient = slopes.T @ inverse @ over + pull - information @ logs
        step = np.linalg.solve(curvature, gradient)
        logs = logs + np.clip(step, -MAX_LOG_STEP, MAX_LOG_STEP)
        since += float(np.abs(step).max(initial=0.0))
        if np.abs(step).max(initial=0.0) < CONVERGED:
            break
    fitted_s, contexts = _fit_times(forward, parameters, logs)
    if since > RELINEARISE_BEYOND:
        slopes = forward.slopes(_factors(parameters, logs), fitted_s)
    inverse = invert(_row_covariance(noise, contexts, run, priors))
    covariance = invert(slopes.T @ inverse @ slopes + information)
    return Posterior(tuple(parameters), logs, covariance, fitted_s, slopes, noise, contexts)


def _row_covariance(
    noise: NoiseModel, contexts: ContextArrays, run: IntArray, priors: Priors
) -> FloatArray:
    """Covariance of rows by residual and noise, without that by the factors."""
    residual = residual_covariance(contexts, contexts, noise.residual, priors.runs)
    return residual + noise.covariance(contexts, run, priors)


def _posterior_without_rows(
    parameters: Sequence[TransferParameter], logs: FloatArray, covariance: FloatArray,
    priors: Priors,
) -> Posterior:  # fmt: skip
    """The prior with the direct measurements of single factors."""
    noise = NoiseModel(priors.left, np.zeros(0), np.zeros(0), np.zeros((0, 0)))
    return Posterior(
        tuple(parameters), logs, covariance, np.zeros(0), np.zeros((0, len(parameters))), noise,
        ContextArrays.of(()),
    )  # fmt: skip


def _prior_information(
    parameters: Sequence[TransferParameter], priors: Priors, direct: Sequence[DirectMeasurement]
) -> tuple[FloatArray, FloatArray]:
    """Inverse covariance of the factors before any sweep, and that times their mean."""
    information = invert(prior_covariance(parameters, priors))
    pull = np.zeros(len(parameters))
    for measurement in direct:
        if measurement.parameter in parameters:
            at = list(parameters).index(measurement.parameter)
            information[at, at] += measurement.deviation**-2
            pull[at] += measurement.log * measurement.deviation**-2
    return information, pull


def _factors(
    parameters: Sequence[TransferParameter], logs: FloatArray
) -> dict[TransferParameter, float]:
    return dict(zip(parameters, np.exp(logs).tolist(), strict=True))


def _fit_times(
    forward: ForwardModel, parameters: Sequence[TransferParameter], logs: FloatArray
) -> tuple[FloatArray, ContextArrays]:
    factors = _factors(parameters, logs)
    contexts = ContextArrays.of(forward.contexts(factors), forward.shares(factors).tolist())
    return forward.times_s(factors), contexts
