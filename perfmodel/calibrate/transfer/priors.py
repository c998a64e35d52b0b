"""Priors of a fit of sweeps: of factors on the mechanism's numbers, of its residual, and of noise.

The residual is a factor on times that is smooth over size and fades from the data: a Gaussian
process (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006) over the logarithms
of size, ranks and hosts, beside factors of the mechanism: Kennedy and O'Hagan, Bayesian calibration
of computer models, J. R. Statist. Soc. B 63(3), 2001. Its mean is zero, so that it shrinks
deviations on which rows disagree and predicts none at sizes and scales far from the data.

The mechanism computes times from a few numbers, of which a sweep identifies only some. So every
factor has a lognormal prior around one, as wide as machines usually differ from the shipped
numbers, and stays at it where the data are silent: the result holds at other scales too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import numpy as np
from pydantic import Field

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.calibrate.parameters import (
    LARGEST_LOGARITHM,
    FactorPrior,
    Parameter,
    ParameterName,
    Prior,
    Values,
    invert,
    prior_covariance,
)
from perfmodel.files import FileModel, shipped
from perfmodel.library.corrections import CollectiveContext, Corrections
from perfmodel.units import MOST_MEASURED_BYTES

LARGEST_DEVIATION = 10.0
"""Largest deviation of a time's logarithm: at 10 the 80 % interval is 370,000 times up and down."""

Deviation = Annotated[float, Field(gt=0, le=LARGEST_DEVIATION)]
Octaves = Annotated[float, Field(ge=1e-3, le=1e6)]
"""A length over the logarithm of a size or a count; from constant to unrelated."""

LAUNCH = Parameter("launch")
ISSUE = Parameter("issue")
AWAITED = Parameter("awaited")
UNEVEN = Parameter("uneven")


class ResidualPrior(FileModel):
    """Prior of the residual: a Gaussian process over size, ranks and hosts.

    `small`, `deviation` and `large` are standard deviations at small, middling and large sizes (see
    `NoisePrior`) and `octaves` the length over size of the part that changes with the size; `level`
    is the deviation of the part that does not; `ranks_octaves` and `hosts_octaves` are lengths over
    the number of ranks and hosts; `other_op` and `other_way` are correlations with another
    collective, and with another algorithm or protocol; `networked` is that between one host and
    several. `open` is the deviation of the logarithm of a factor on all of these deviations, which
    is fitted for each machine to its own rows: on some machines the mechanism is far less accurate
    than on most, and their rows then weigh more.
    """

    small: Deviation
    deviation: Deviation
    large: Deviation
    octaves: Octaves
    level: float = Field(ge=0, le=LARGEST_DEVIATION)
    ranks_octaves: Octaves
    hosts_octaves: Octaves
    other_op: float = Field(ge=0, le=1)
    other_way: float = Field(ge=0, le=1)
    networked: float = Field(ge=0, le=1)
    open: float = Field(0.0, ge=0, le=LARGEST_DEVIATION)


class NoisePrior(FileModel):
    """Prior of the noise: how runs on the same hardware differ, and a row from its neighbours.

    `small`, `middle` and `large` are standard deviations of the logarithm of times, far below
    `turn_bytes`, between that and `bulk_bytes` (where algorithms and protocols change and runs
    differ most), and far above. `octaves` is the length over which a run's deviation changes, `row`
    the deviation of one row as a part of that, with `freedom` degrees of freedom (Student's t:
    first iterations spike).
    `widened` multiplies the deviations of predictions, for errors of the mechanism that are
    peculiar to a machine. `odd` are the degrees of freedom (Student's t) of a whole run: an outlier
    weighs less; 0: runs are normally distributed. `start` is the deviation of the host's start of a
    collective, which depends on a processor that no table of sweeps names.
    """

    small: Deviation
    middle: Deviation
    large: Deviation
    turn_bytes: float = Field(ge=1, le=MOST_MEASURED_BYTES)
    bulk_bytes: float = Field(ge=1, le=MOST_MEASURED_BYTES)
    octaves: Octaves
    row: Deviation
    freedom: float = Field(gt=2, le=1e9)
    widened: float = Field(1.0, ge=1, le=LARGEST_DEVIATION)
    odd: float = Field(0.0, ge=0, le=1e9)
    start: float = Field(0.12, gt=0, le=LARGEST_DEVIATION)


class Priors(FileModel):
    """Everything that a fit of sweeps assumes before it sees data; `priors.yaml`.

    `levers`: of factors, by name; `left`: of the residual; `runs`: of the noise.
    """

    levers: dict[ParameterName, FactorPrior]
    left: ResidualPrior
    runs: NoisePrior
    source: str


shipped_priors = shipped(Priors, __file__, "priors.yaml")
"""Reads the shipped priors."""


@dataclass(frozen=True, slots=True)
class DirectMeasurement:
    """Rate of a link that was measured by itself: logarithm of its factor, standard deviation."""

    parameter: Parameter
    log: float
    deviation: float


def tails_of(parameters: Sequence[Parameter], priors: Priors) -> FloatArray:
    """Degrees of freedom of each factor's prior; 0: a normal one."""
    return np.array([priors.levers[parameter.name].tails for parameter in parameters])


def prior_of(
    parameters: Sequence[Parameter], priors: Priors, direct: Sequence[DirectMeasurement]
) -> Prior:
    """Prior of factors, with measurements of single ones."""
    information = invert(prior_covariance(parameters, priors.levers))
    pull = np.zeros(len(parameters))
    for measurement in direct:
        at = list(parameters).index(measurement.parameter)
        information[at, at] += measurement.deviation**-2
        pull[at] += measurement.log * measurement.deviation**-2
    return Prior(invert(information) @ pull, information)


def corrections_of(factors: Values) -> Corrections:
    """Return the factors that correct lowered collectives: all but those on bandwidths."""
    return Corrections(
        launch=factors.get(LAUNCH, 1.0),
        issue=factors.get(ISSUE, 1.0),
        awaited=factors.get(AWAITED, 1.0),
        uneven=factors.get(UNEVEN, 1.0),
        steps={parameter.where: f for parameter, f in factors.items() if parameter.name == "step"},
        rates={parameter.where: f for parameter, f in factors.items() if parameter.name == "rate"},
    )


def bandwidth_factors(factors: Values) -> dict[str, float]:
    """Return the factors on bandwidths, by kind of link."""
    return {parameter.where: f for parameter, f in factors.items() if parameter.name == "bandwidth"}


@dataclass(frozen=True, eq=False)
class ContextArrays:
    """Contexts of collectives as arrays.

    Parameters
    ----------
    octaves : ndarray of float, shape (contexts, 3)
        Logarithms to base 2 of size, ranks and hosts.
    op, algorithm, protocol : ndarray of str
    shares : ndarray of float, shape (contexts,)
        Part of the time that is not the host's start, which the residual does not multiply.
    """

    octaves: FloatArray
    op: np.ndarray
    algorithm: np.ndarray
    protocol: np.ndarray
    shares: FloatArray

    @staticmethod
    def of(
        contexts: Sequence[CollectiveContext], shares: Sequence[float] | None = None
    ) -> ContextArrays:
        """Arrays of some contexts; without `shares` all times are free of the host's start."""
        return ContextArrays(
            np.log2([[max(s.nbytes, 1), s.ranks, s.hosts] for s in contexts]).reshape(-1, 3),
            np.array([s.op for s in contexts]),
            np.array([s.algorithm for s in contexts]),
            np.array([s.protocol for s in contexts]),
            np.ones(len(contexts)) if shares is None else np.array(shares),
        )


def residual_covariance(
    first: ContextArrays, second: ContextArrays, prior: ResidualPrior, noise: NoisePrior
) -> FloatArray:
    """Return the covariance of the residual in two sets of contexts; shape (first, second)."""
    apart = first.octaves[:, None, :] - second.octaves[None, :, :]
    scale = np.exp(
        -0.5 * (apart[:, :, 1] / prior.ranks_octaves) ** 2
        - 0.5 * (apart[:, :, 2] / prior.hosts_octaves) ** 2
    )
    one_of_single_host = (first.octaves[:, 2] == 0)[:, None] != (second.octaves[:, 2] == 0)[None, :]
    scale *= np.where(one_of_single_host, prior.networked, 1.0)
    others = {"op": prior.other_op, "algorithm": prior.other_way, "protocol": prior.other_way}
    for name, correlation in others.items():
        same = getattr(first, name)[:, None] == getattr(second, name)[None, :]
        scale = scale * np.where(same, 1.0, correlation)
    sizes = (prior.small, prior.deviation, prior.large)
    deviations = (interpolate_by_size(c.octaves[:, 0], sizes, noise) for c in (first, second))
    smooth = np.outer(*deviations) * np.exp(-0.5 * (apart[:, :, 0] / prior.octaves) ** 2)
    return np.asarray(scale * (prior.level**2 + smooth) * np.outer(first.shares, second.shares))


def interpolate_by_size(
    octaves: FloatArray, of: tuple[float, float, float], noise: NoisePrior
) -> FloatArray:
    """Interpolate a quantity given for small, middling and large sizes, by logistic steps."""
    small, middle, large = of
    beyond, bulk = (
        1.0 / (1.0 + np.exp(-(octaves - np.log2(nbytes))))
        for nbytes in (noise.turn_bytes, noise.bulk_bytes)
    )
    return np.asarray(small + (middle - small) * beyond + (large - middle) * bulk)


def run_deviation(contexts: ContextArrays, noise: NoisePrior) -> FloatArray:
    """Standard deviation between runs of the logarithm of a time, by size.

    The part of a time that is the host's start of collectives has one of its own: `noise.start`.
    """
    own = interpolate_by_size(
        contexts.octaves[:, 0], (noise.small, noise.middle, noise.large), noise
    )
    return np.asarray(contexts.shares * own + (1.0 - contexts.shares) * noise.start)


def row_variance(contexts: ContextArrays, noise: NoisePrior) -> FloatArray:
    """Variance of the logarithm of a row's time that is the row's own, by size."""
    return np.asarray((noise.row * run_deviation(contexts, noise)) ** 2)


def run_covariance(
    contexts: ContextArrays,
    run: IntArray,
    noise: NoisePrior,
    factors: Sequence[float] | None = None,
) -> FloatArray:
    """Covariance of what rows of the same run have in common; shape (rows, rows).

    `factors` multiply the variance of each run.
    """
    octaves = contexts.octaves[:, 0]
    deviation = run_deviation(contexts, noise)
    apart = (octaves[:, None] - octaves[None, :]) / noise.octaves
    same = run[:, None] == run[None, :]
    covariance: FloatArray = same * np.outer(deviation, deviation) * np.exp(-0.5 * apart**2)
    return covariance if factors is None else covariance * np.array(factors)[run][:, None]


@dataclass(frozen=True, eq=False)
class ResidualProcess:
    """Factor on the time of a collective in a context, from rows that were measured.

    Parameters
    ----------
    contexts : ContextArrays
    over : ndarray of float, shape (rows,)
        Logarithm of measured over fitted time.
    noise : ndarray of float, shape (rows, rows)
        Covariance of the noise of rows and runs.
    prior : ResidualPrior
    noise_prior : NoisePrior
    deviations : float
        How many standard deviations above the mean; 0: the mean.
    new_run : bool
        Whether these are deviations of the times of a new run, or of the residual alone.
    """

    contexts: ContextArrays
    over: FloatArray
    noise: FloatArray
    prior: ResidualPrior
    noise_prior: NoisePrior
    deviations: float = 0.0
    new_run: bool = True

    @cached_property
    def _inverse(self) -> FloatArray:
        residual = residual_covariance(self.contexts, self.contexts, self.prior, self.noise_prior)
        whole = residual + self.noise
        return invert(whole + 1e-9 * np.eye(len(whole)))

    @cached_property
    def _weights(self) -> FloatArray:
        return np.asarray(self._inverse @ self.over, dtype=float)

    def __call__(self, context: CollectiveContext) -> float:
        """Factor on the time; see `perfmodel.library.corrections.Corrections`."""
        point = ContextArrays.of([context])
        common = residual_covariance(point, self.contexts, self.prior, self.noise_prior)[0]
        log = float(common @ self._weights)
        if self.deviations:
            own = float(residual_covariance(point, point, self.prior, self.noise_prior)[0, 0])
            explained = float(common @ self._inverse @ common)
            run = float(run_deviation(point, self.noise_prior)[0]) * self.new_run
            log += self.deviations * float(np.sqrt(max(own - explained, 0.0) + run**2))
        return math.exp(float(np.clip(log, -LARGEST_LOGARITHM, LARGEST_LOGARITHM)))

    def shift(self, over: FloatArray, deviations: float) -> ResidualProcess:
        """The same with residuals `over` of the rows, so many deviations above the mean."""
        shifted = replace(self, over=over, deviations=deviations)
        vars(shifted)["_inverse"] = self._inverse
        return shifted
