"""What the mechanism leaves of measured times: smooth over size, and fading away from the data.

A Gaussian process (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006) over the
logarithms of size, ranks and hosts, beside factors of the mechanism: Kennedy and O'Hagan, Bayesian
calibration of computer models, J. R. Statist. Soc. B 63(3), 2001. Its mean is zero, so that it
shrinks what rows do not agree on and says nothing about sizes and scales far from the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.calibrate.transfer.parameters import NoisePrior, ResidualPrior
from perfmodel.library.corrections import CollectiveContext


@dataclass(frozen=True, eq=False)
class ContextArrays:
    """Situations as arrays.

    Parameters
    ----------
    octaves : ndarray of float, shape (situations, 3)
        Logarithms to base 2 of size, ranks and hosts.
    op, algorithm, protocol : ndarray of str
    shares : ndarray of float, shape (situations,)
        Part of the time that is the way's, and so what is left of it counts.
    """

    octaves: FloatArray
    op: np.ndarray
    algorithm: np.ndarray
    protocol: np.ndarray
    shares: FloatArray

    @staticmethod
    def of(
        situations: Sequence[CollectiveContext], shares: Sequence[float] | None = None
    ) -> ContextArrays:
        """Arrays of some situations."""
        return ContextArrays(
            np.log2([[max(s.nbytes, 1), s.ranks, s.hosts] for s in situations]).reshape(-1, 3),
            np.array([s.op for s in situations]),
            np.array([s.algorithm for s in situations]),
            np.array([s.protocol for s in situations]),
            np.ones(len(situations)) if shares is None else np.array(shares),
        )


def invert(matrix: FloatArray) -> FloatArray:
    """Inverse of a covariance."""
    found: FloatArray = np.asarray(np.linalg.inv(matrix), dtype=float)
    return found


def residual_covariance(
    one: ContextArrays, other: ContextArrays, left: ResidualPrior, runs: NoisePrior
) -> FloatArray:
    """Covariance of what is left in two sets of situations; shape (one, other)."""
    apart = one.octaves[:, None, :] - other.octaves[None, :, :]
    scale = np.exp(
        -0.5 * (apart[:, :, 1] / left.ranks_octaves) ** 2
        - 0.5 * (apart[:, :, 2] / left.hosts_octaves) ** 2
    )
    single = (one.octaves[:, 2] == 0)[:, None] != (other.octaves[:, 2] == 0)[None, :]
    scale *= np.where(single, left.networked, 1.0)
    scale *= np.where(one.op[:, None] == other.op[None, :], 1.0, left.other_op)
    for name in ("algorithm", "protocol"):
        same = getattr(one, name)[:, None] == getattr(other, name)[None, :]
        scale = scale * np.where(same, 1.0, left.other_way)
    here, there = (
        interpolate_by_size(place.octaves[:, 0], (left.small, left.deviation, left.large), runs)
        for place in (one, other)
    )
    smooth = np.outer(here, there) * np.exp(-0.5 * (apart[:, :, 0] / left.octaves) ** 2)
    found: FloatArray = scale * (left.level**2 + smooth) * np.outer(one.shares, other.shares)
    return found


def interpolate_by_size(
    octaves: FloatArray, of: tuple[float, float, float], runs: NoisePrior
) -> FloatArray:
    """What is so for small, middling and large sizes, with bends between them."""
    small, middle, large = of
    beyond, bulk = (
        1.0 / (1.0 + np.exp(-(octaves - np.log2(nbytes))))
        for nbytes in (runs.turn_bytes, runs.bulk_bytes)
    )
    found: FloatArray = small + (middle - small) * beyond + (large - middle) * bulk
    return found


def run_deviation(places: ContextArrays, runs: NoisePrior) -> FloatArray:
    """Standard deviation of the logarithm of a run's time from the next run's, by size.

    Of the host's start of collectives it is another one: its processor differs.
    """
    own = interpolate_by_size(places.octaves[:, 0], (runs.small, runs.middle, runs.large), runs)
    found: FloatArray = places.shares * own + (1.0 - places.shares) * runs.start
    return found


def row_variance(places: ContextArrays, runs: NoisePrior) -> FloatArray:
    """Variance of the logarithm of a row's time that is the row's own, by size."""
    found: FloatArray = (runs.row * run_deviation(places, runs)) ** 2
    return found


def run_covariance(
    places: ContextArrays, run: IntArray, runs: NoisePrior, odd: Sequence[float] | None = None
) -> FloatArray:
    """Covariance of what rows of the same run have in common; shape (rows, rows).

    `odd` multiplies the variance of each run.
    """
    octaves = places.octaves[:, 0]
    deviation = run_deviation(places, runs)
    apart = (octaves[:, None] - octaves[None, :]) / runs.octaves
    same = run[:, None] == run[None, :]
    found: FloatArray = same * np.outer(deviation, deviation) * np.exp(-0.5 * apart**2)
    return found if odd is None else found * np.array(odd)[run][:, None]


@dataclass(frozen=True, eq=False)
class ResidualProcess:
    """Factor on the time in a situation, from rows that were measured.

    Parameters
    ----------
    places : ContextArrays
    over : ndarray of float, shape (rows,)
        Logarithm of measured over fitted time.
    noise : ndarray of float, shape (rows, rows)
        Covariance of what is the rows' and their runs' alone.
    left : ResidualPrior
    runs : NoisePrior
    deviations : float
        How many standard deviations above the mean; 0: what is expected.
    new_run : bool
        Whether these are deviations of the times of a new run, or of what is expected of one.
    """

    places: ContextArrays
    over: FloatArray
    noise: FloatArray
    left: ResidualPrior
    runs: NoisePrior
    deviations: float = 0.0
    new_run: bool = True

    @cached_property
    def _inverse(self) -> FloatArray:
        whole = residual_covariance(self.places, self.places, self.left, self.runs) + self.noise
        return invert(whole + 1e-9 * np.eye(len(whole)))

    @cached_property
    def _weights(self) -> FloatArray:
        weights: FloatArray = np.asarray(self._inverse @ self.over, dtype=float)
        return weights

    def __call__(self, situation: CollectiveContext) -> float:
        """Factor on the time; see `perfmodel.library.corrections.Corrections`."""
        place = ContextArrays.of([situation])
        common = residual_covariance(place, self.places, self.left, self.runs)[0]
        log = float(common @ self._weights)
        if self.deviations:
            own = float(residual_covariance(place, place, self.left, self.runs)[0, 0])
            known = float(common @ self._inverse @ common)
            run = float(run_deviation(place, self.runs)[0]) * self.new_run
            log += self.deviations * float(np.sqrt(max(own - known, 0.0) + run**2))
        return float(np.exp(log))

    def shift(self, over: FloatArray, deviations: float) -> ResidualProcess:
        """The same with other rows' residuals, so many deviations above the mean."""
        found = replace(self, over=over, deviations=deviations)
        vars(found)["_inverse"] = self._inverse
        return found
