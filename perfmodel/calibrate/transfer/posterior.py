"""Factors and what is left of the times, found together: a robust maximum a posteriori.

Measured times are the mechanism's, stretched by factors, times a residual that is smooth over size,
times what each run and each row has of its own: all lognormal but for the rows' tails (Student's
t). Factors and residual share what the data show as their expected spreads say; the covariance of
the factors counts the residual in, so that no factor is more certain than the mechanism is good.
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
"""Of Gauss and Newton; times are nearly linear in the factors but for changes of way."""

RELINEARISE_BEYOND = 0.15
"""Logarithm by which factors may move before the slopes are looked up again."""

CONVERGED = 0.01
"""Logarithm of the last step: far below any interval."""

MAX_LOG_STEP = 2.0
"""Logarithm of the largest factor that one step may apply."""


@dataclass(frozen=True, slots=True)
class Posterior:
    """What the data say of the factors.

    Parameters
    ----------
    levers : tuple of TransferParameter
    logs : ndarray of float, shape (levers,)
        Logarithms of the factors.
    covariance : ndarray of float, shape (levers, levers)
        Of `logs`.
    fitted_s : ndarray of float, shape (rows,)
        Times of the stretched mechanism, without the residual.
    slopes : ndarray of float, shape (rows, levers)
    noise : NoiseModel
        How much rows, runs and the mechanism may be off.
    places : ContextArrays
    """

    levers: tuple[TransferParameter, ...]
    logs: FloatArray
    covariance: FloatArray
    fitted_s: FloatArray
    slopes: FloatArray
    noise: NoiseModel
    places: ContextArrays


@dataclass(frozen=True, slots=True)
class DirectMeasurement:
    """A rate of a link that was measured by itself: a logarithm of its factor, and how sure."""

    lever: TransferParameter
    log: float
    deviation: float


def fit_posterior(
    forward: ForwardModel,
    levers: Sequence[TransferParameter],
    expected: Priors,
    seen: Sequence[DirectMeasurement] = (),
) -> Posterior:
    """Find factors and the covariance of what they leave.

    Parameters
    ----------
    forward : ForwardModel
        At least one row.
    levers : sequence of TransferParameter
    expected : Priors
    seen : sequence of DirectMeasurement
        What other measurements say of single factors.
    """
    held, pull = _prior_information(levers, expected, seen)
    logs: FloatArray = invert(held) @ pull
    if not forward.observed:
        return _prior_alone(levers, logs, held, expected)
    measured = np.log(forward.measured_s)
    run = np.array([one.run for one in forward.observed])
    expected_logs, open_ = logs, invert(held)
    slopes, since = np.zeros((0, 0)), np.inf
    for _ in range(MAX_STEPS):
        fitted_s, places = _fit_times(forward, levers, logs)
        if since > RELINEARISE_BEYOND:
            slopes, since = forward.slopes(_factors(levers, logs), fitted_s), 0.0
        over = measured - np.log(fitted_s)
        before = over + slopes @ (logs - expected_logs)
        found = fit_noise(slopes @ open_ @ slopes.T, places, run, before, expected)
        inverse = invert(_covariance_beside_factors(found, places, run, expected))
        curve = slopes.T @ inverse @ slopes + held
        step = np.linalg.solve(curve, slopes.T @ inverse @ over + pull - held @ logs)
        logs = logs + np.clip(step, -MAX_LOG_STEP, MAX_LOG_STEP)
        since += float(np.abs(step).max(initial=0.0))
        if np.abs(step).max(initial=0.0) < CONVERGED:
            break
    fitted_s, places = _fit_times(forward, levers, logs)
    if since > RELINEARISE_BEYOND:
        slopes = forward.slopes(_factors(levers, logs), fitted_s)
    inverse = invert(_covariance_beside_factors(found, places, run, expected))
    covariance = invert(slopes.T @ inverse @ slopes + held)
    return Posterior(tuple(levers), logs, covariance, fitted_s, slopes, found, places)


def _covariance_beside_factors(
    found: NoiseModel, places: ContextArrays, run: IntArray, expected: Priors
) -> FloatArray:
    """Covariance of rows but for what is open of the factors."""
    return residual_covariance(places, places, found.left, expected.runs) + found.noise(
        places, run, expected
    )


def _prior_alone(
    levers: Sequence[TransferParameter], logs: FloatArray, held: FloatArray, expected: Priors
) -> Posterior:
    """What is expected, and what was seen of single factors."""
    none = NoiseModel(expected.left, np.zeros(0), np.zeros(0), np.zeros((0, 0)))
    return Posterior(
        tuple(levers), logs, invert(held), np.zeros(0), np.zeros((0, len(levers))), none,
        ContextArrays.of(()),
    )  # fmt: skip


def _prior_information(
    levers: Sequence[TransferParameter], expected: Priors, seen: Sequence[DirectMeasurement]
) -> tuple[FloatArray, FloatArray]:
    """Inverse covariance of what is known before any sweep, and that times its mean."""
    held = invert(prior_covariance(levers, expected))
    pull = np.zeros(len(levers))
    for one in seen:
        if one.lever in levers:
            at = list(levers).index(one.lever)
            held[at, at] += one.deviation**-2
            pull[at] += one.log * one.deviation**-2
    return held, pull


def _factors(
    levers: Sequence[TransferParameter], logs: FloatArray
) -> dict[TransferParameter, float]:
    return dict(zip(levers, np.exp(logs).tolist(), strict=True))


def _fit_times(
    forward: ForwardModel, levers: Sequence[TransferParameter], logs: FloatArray
) -> tuple[FloatArray, ContextArrays]:
    factors = _factors(levers, logs)
    places = ContextArrays.of(forward.situations(factors), forward.shares(factors).tolist())
    return forward.times_s(factors), places
