"""Robust least squares on the logarithm of times, and which parameters are identifiable."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.calibrate.estimation import NO_EFFECT, PROBABILITY
from perfmodel.calibrate.link_costs.forward_model import ForwardModel
from perfmodel.calibrate.profile import Parameter

COLLINEAR = 1e-3
"""A parameter is not identifiable if others explain all of its effect but for this share."""

MAX_INTERVAL_FACTOR = 4.0
"""Most that the ends of an interval may be apart from their value, as a factor."""

FLAT_DEVIATION = 100.0
"""Standard deviation of the logarithm of a value that has shrunk until nothing depends on it."""

FIRST_SCALE = 0.1
"""Scatter that the first pass assumes."""

PIECE_PRIOR_FACTOR = 3.0
"""Factor, one standard deviation, by which rates of neighbouring sizes of chunk may differ."""

MAX_LOG_DISTANCE = 20.0
"""Logarithm of how far a value may go from where it starts: anything physical, no overflow."""

MAX_STEPS = 25
"""Of one pass. Smooth problems take 3 to 10; more steps alternate across a kink, where another
lowering or another limit takes over, without any gain."""

MIN_SCATTER = 1e-6
"""Smallest scatter, that of rounding: the loss is quadratic below it."""


@dataclass(frozen=True)
class Solution:
    """Values with the covariance of their logarithms.

    Parameters
    ----------
    values : dict
        By parameter, in the order of the covariance.
    covariance : ndarray of float, shape (values, values)
    scatter : float
        Robust standard deviation of the logarithm of measured over fitted times.
    cost : float
        Mean robust squared residual, for comparing models.
    factor : float
        Standard deviations of a logarithm from its value to the end of its interval.
    """

    values: dict[Parameter, float]
    covariance: FloatArray
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


def solve(forward: ForwardModel, start: Mapping[Parameter, float], *, passes: int = 3) -> Solution:
    """Find the values whose predicted times come closest to the measured ones.

    Loss: soft L1 of the logarithms' differences, quadratic up to 1.5 standard deviations, which are
    estimated by the pass before. A weak prior ties rates of one link for neighbouring sizes of
    chunk (`PIECE_PRIOR_FACTOR`). Covariance of an M-estimator: Huber, Robust Statistics (1981),
    section 7.6, with n - p degrees of freedom.

    Parameters
    ----------
    forward : ForwardModel
    start : mapping of Parameter to float
    passes : int
        One is enough to compare models.
    """
    from scipy import optimize, stats

    keys = list(start)
    measured, ties = np.log(forward.measured_s), _ties(keys)
    freedom = max(len(measured) - len(keys), 1)
    logs, scale = np.log(list(start.values())), FIRST_SCALE
    first = logs

    def residuals_at(logs: FloatArray) -> FloatArray:
        difference: FloatArray = np.log(forward.times_s(_values_of(keys, logs))) - measured
        return difference

    def residuals_and_ties(logs: FloatArray) -> FloatArray:
        return np.concatenate([residuals_at(logs), scale * (ties @ logs)])

    for number in range(passes if keys else 0):
        tight = 1e-10 if number == passes - 1 > 0 else 1e-4  # early passes only set the scale
        fitted = optimize.least_squares(
            residuals_and_ties, logs, loss="soft_l1", f_scale=scale, x_scale="jac",
            bounds=(first - MAX_LOG_DISTANCE, first + MAX_LOG_DISTANCE), max_nfev=MAX_STEPS,
            xtol=tight, ftol=tight, gtol=tight,
        )  # fmt: skip
        logs = fitted.x
        scale = max(1.5 * robust_deviation(residuals_at(logs), freedom), MIN_SCATTER)
    residuals = residuals_at(logs)
    return Solution(
        values=_values_of(keys, logs),
        covariance=_covariance(
            slopes(forward, _values_of(keys, logs)), ties, residuals, scale, freedom
        ),
        scatter=robust_deviation(residuals, freedom),
        cost=float(np.mean(2.0 * scale**2 * (np.sqrt(1.0 + (residuals / scale) ** 2) - 1.0))),
        factor=float(stats.t.ppf(0.5 + PROBABILITY / 2, freedom)),
    )


def _values_of(keys: Sequence[Parameter], logs: FloatArray) -> dict[Parameter, float]:
    return dict(zip(keys, np.exp(logs).tolist(), strict=True))


def _ties(keys: Sequence[Parameter]) -> FloatArray:
    """Rows that compare the logarithms of rates for neighbouring sizes of chunk."""
    rates = sorted((k for k in keys if k.name == "bandwidth"), key=lambda k: k[1:])
    pairs = [(a, b) for a, b in itertools.pairwise(rates) if a.where == b.where]
    rows = np.zeros((len(pairs), len(keys)))
    for row, (low, high) in zip(rows, pairs, strict=True):
        row[keys.index(low)], row[keys.index(high)] = 1.0, -1.0
    rows /= 1.5 * np.log(PIECE_PRIOR_FACTOR)
    return rows


def _covariance(
    jacobian: FloatArray, ties: FloatArray, residuals: FloatArray, scale: float, freedom: int
) -> FloatArray:
    z = residuals / scale
    psi, bend = scale * z / np.sqrt(1.0 + z**2), float(np.mean((1.0 + z**2) ** -1.5))
    identifiable = np.flatnonzero(np.abs(jacobian).max(axis=0, initial=0.0) >= NO_EFFECT)
    covariance: FloatArray = np.diag(np.full(jacobian.shape[1], FLAT_DEVIATION**2))
    if len(identifiable):
        matrix = np.concatenate([jacobian, scale * ties])[:, identifiable]
        inverse = np.linalg.pinv(matrix.T @ matrix)
        variance = float(np.sum(psi**2)) / freedom / bend**2
        covariance[np.ix_(identifiable, identifiable)] = inverse * variance
    return covariance


def robust_deviation(residuals: FloatArray, freedom: int) -> float:
    """Standard deviation from the median of absolute values (1.4826 of it for a normal one)."""
    return 1.4826 * float(np.median(np.abs(residuals))) * math.sqrt(len(residuals) / freedom)


def slopes(
    forward: ForwardModel, values: Mapping[Parameter, float], *, only: Parameter | None = None
) -> FloatArray:
    """Elasticity of each time to each value; shape (observations, values)."""
    step = 1e-4
    columns = []
    for key, value in values.items():
        if only not in {None, key}:
            continue
        up = forward.times_s({**values, key: value * np.exp(step)})
        down = forward.times_s({**values, key: value * np.exp(-step)})
        columns.append((np.log(up) - np.log(down)) / (2 * step))
    return np.stack(columns, axis=1) if columns else np.zeros((len(forward.observations), 0))


def select_identifiable(
    forward: ForwardModel, start: Mapping[Parameter, float]
) -> tuple[dict[Parameter, float], dict[Parameter, str]]:
    """Split parameters into identifiable ones and the others, with the reason.

    Where two have the same effect the later one is dropped.
    """
    columns = slopes(forward, start)
    most = max(len(forward.observations) - 2, 0)
    identifiable: dict[Parameter, float] = {}
    chosen: list[int] = []
    dropped: dict[Parameter, str] = {}
    for at, (key, value) in enumerate(start.items()):
        column = columns[:, at]
        if np.abs(column).max() < NO_EFFECT:
            dropped[key] = "no measured time depends on it"
            continue
        rest = column - _explained(columns[:, chosen], column)
        if np.linalg.norm(rest) < COLLINEAR * np.linalg.norm(column):
            names = " and ".join(
                str(key) for key in _equivalent_parameters(columns, chosen, column, list(start))
            )
            dropped[key] = f"in these data its effect is that of {names}"
        elif len(chosen) >= most:
            dropped[key] = (
                f"{len(forward.observations)} times are too few for more than {most} numbers"
            )
        else:
            identifiable[key] = value
            chosen.append(at)
    return identifiable, dropped


def _explained(columns: FloatArray, column: FloatArray) -> FloatArray:
    if not columns.shape[1]:
        return np.zeros_like(column)
    weights, *_ = np.linalg.lstsq(columns, column, rcond=None)
    explained: FloatArray = columns @ weights
    return explained


def _equivalent_parameters(
    columns: FloatArray, chosen: Sequence[int], column: FloatArray, keys: Sequence[Parameter]
) -> list[Parameter]:
    """Parameters that together have a column's effect."""
    weights, *_ = np.linalg.lstsq(columns[:, chosen], column, rcond=None)
    sizes = np.abs(weights) * np.linalg.norm(columns[:, chosen], axis=0)
    return [keys[at] for at, size in zip(chosen, sizes, strict=True) if size > 0.05 * sizes.max()]
