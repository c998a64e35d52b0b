"""Estimation of parameters from measured times: the maximum a posteriori of their logarithms.

All times and values are lognormal, so the unknowns are logarithms. What a fit brings along is its
forward model (`link_model`: numbers of a machine; `transfer`: factors on them), the prior of its
parameters and the noise of its rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.calibrate.parameters import Parameter, Prior, Values, invert
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.machine import Machine

NO_EFFECT = 1e-4
"""A parameter is not identifiable if doubling it changes no time by more than about this much."""

RELINEARISE_BEYOND = 0.15
"""Change of the logarithm of a value from which on the slopes are computed again."""

MAX_LOG_STEP = 2.0
"""Logarithm of the largest factor that one step may apply."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured time.

    Parameters
    ----------
    machine : Machine
    op : str
    ranks : int
    nbytes : int
    measured_s : float
    run : int
        Rows of one run were measured by the same processes.
    algorithm : str or None
        None: the library's own.
    lowered : tuple of LoweredCollective
        Of which the library may have chosen; one object for all that measured the same.
    """

    machine: Machine
    op: str
    ranks: int
    nbytes: int
    measured_s: float
    run: int
    algorithm: str | None
    lowered: tuple[LoweredCollective, ...]

    @staticmethod
    def of(
        machine: Machine,
        op: str,
        ranks: int,
        nbytes: int,
        measured_s: float,
        run: int = 0,
        algorithm: str | None = None,
    ) -> Observation:
        """Observe the library's own collective among the first ranks, or a named algorithm."""
        lowered = machine.cached(
            ("observed", op, ranks, nbytes, algorithm),
            lambda: lower_collective(machine, op, nbytes, range(ranks), algorithm=algorithm),
        )
        return Observation(machine, op, ranks, nbytes, measured_s, run, algorithm, lowered)


class ForwardModel(ABC):
    """Predicts the times of measured collectives from values of parameters.

    Several runs measured the same collective: its time is computed once, as one of `distinct`.

    Parameters
    ----------
    observations : sequence of Observation
    """

    log_step: ClassVar[float]
    """Step of a value's logarithm for finite differences."""

    def __init__(self, observations: Sequence[Observation]) -> None:
        self.observations = tuple(observations)
        self.measured_s = np.array([o.measured_s for o in observations])
        self.run = np.array([o.run for o in observations], dtype=np.int64)
        first = {o.lowered: o for o in reversed(self.observations)}
        self.distinct = tuple(reversed(first.values()))
        position = {o.lowered: at for at, o in enumerate(self.distinct)}
        self._position = np.array([position[o.lowered] for o in observations], dtype=np.int64)

    @abstractmethod
    def times_s(self, values: Values) -> FloatArray:
        """Time of each observation; seconds, shape (observations,)."""

    def slopes(self, values: Values, base_s: FloatArray | None = None) -> FloatArray:
        """Change of the logarithm of each time per logarithm of each value.

        Returns
        -------
        ndarray of float, shape (observations, values)
        """
        base = np.log(self.times_s(values) if base_s is None else base_s)
        columns = [
            (np.log(self.times_s({**values, key: value * np.exp(self.log_step)})) - base)
            / self.log_step
            for key, value in values.items()
        ]
        return np.stack(columns, axis=1) if columns else np.zeros((len(base), 0))


Precision = tuple[FloatArray, FloatArray]
"""Inverse covariances that a step weighs with: of rows, and of values' logarithms before data."""


Weighting = Callable[[Values, FloatArray, FloatArray, FloatArray, bool], Precision]
"""``weigh(values, over, by_prior, slopes, last)`` fits the noise of the rows, and how far values
are from usual, to the rows.

`over` is the logarithm of measured over fitted time, `by_prior` the same with the values at the
mean of their prior, times linear in their logarithms; `slopes` are those of `Estimate`. `last`:
whether no step follows; noise of a whole covariance then stays as it was fitted.
"""


@dataclass(frozen=True)
class Estimate:
    """Values with the covariance of their logarithms.

    Parameters
    ----------
    values : dict
        By parameter, in the order of the covariance.
    covariance : ndarray of float, shape (values, values)
    fitted_s : ndarray of float, shape (rows,)
        Times with these values.
    slopes : ndarray of float, shape (rows, values)
    """

    values: dict[Parameter, float]
    covariance: FloatArray
    fitted_s: FloatArray
    slopes: FloatArray


def estimate(
    forward: ForwardModel,
    keys: Sequence[Parameter],
    prior: Prior,
    weigh: Weighting,
    *,
    steps: int,
    converged: float,
    halvings: int = 0,
) -> Estimate:
    """Maximise the posterior by Gauss-Newton steps, the weights fitted anew in each.

    Parameters
    ----------
    forward : ForwardModel
    keys : sequence of Parameter
    prior : Prior
        The steps begin at its mean.
    weigh : Weighting
    steps : int
        Most that are taken; times are nearly linear unless another algorithm takes over.
    converged : float
        Logarithm of the last step.
    halvings : int
        Of a step that leads away from the measured times; most.
    """
    measured, logs = np.log(forward.measured_s), prior.mean
    moved = np.inf
    values, slopes, since = _values_of(keys, logs), np.zeros((0, 0)), np.inf
    fitted_s = forward.times_s(values)
    for number in range(steps + 1):
        if since > RELINEARISE_BEYOND:
            slopes, since = forward.slopes(values, fitted_s), 0.0
        over = measured - np.log(fitted_s)
        by_prior, last = over + slopes @ (logs - prior.mean), number == steps or moved < converged
        rows, expected = precision = weigh(values, over, by_prior, slopes, last)
        curvature = slopes.T @ rows @ slopes + expected
        if last:
            break
        gradient = slopes.T @ rows @ over + expected @ (prior.mean - logs)
        step = np.clip(np.linalg.solve(curvature, gradient), -MAX_LOG_STEP, MAX_LOG_STEP)
        before = _misfit(over, precision, logs - prior.mean)
        for halving in range(halvings + 1):
            reached = logs + step / 2**halving
            values = _values_of(keys, reached)
            fitted_s = forward.times_s(values)
            if _misfit(measured - np.log(fitted_s), precision, reached - prior.mean) <= before:
                break
        moved = float(np.abs(reached - logs).max(initial=0.0))
        since += moved
        logs = reached
    return Estimate(values, invert(curvature), fitted_s, slopes)


def _values_of(keys: Sequence[Parameter], logs: FloatArray) -> dict[Parameter, float]:
    return dict(zip(keys, np.exp(logs).tolist(), strict=True))


def _misfit(over: FloatArray, precision: Precision, moved: FloatArray) -> float:
    """Return twice the negative logarithm of the posterior, but for a constant."""
    rows, expected = precision
    return float(over @ rows @ over + moved @ expected @ moved)
