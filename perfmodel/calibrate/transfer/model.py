"""Result of a fit of sweeps, as a part of a profile: factors, their covariance, the residual."""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np
from pydantic import Field, model_validator

from perfmodel.arrays import FloatArray
from perfmodel.calibrate.checks import settings_differences
from perfmodel.calibrate.transfer.gaussian_process import (
    ContextArrays,
    ResidualProcess,
    run_covariance,
)
from perfmodel.calibrate.transfer.parameters import (
    NoisePrior,
    ResidualPrior,
    TransferParameter,
    TransferParameterName,
)
from perfmodel.files import FileModel
from perfmodel.library.corrections import CollectiveContext
from perfmodel.library.settings import LibrarySettings

SETTLED_SHARE = 0.3
"""Share of a factor's prior spread that data must settle for it to count as measured."""


class Factor(FileModel):
    """A factor on one of the mechanism's numbers, with its 80 % interval.

    `told` is by which share the data have narrowed the prior's spread (shrinkage): 0 leaves the
    factor at its prior, 1 determines it. `now` is the number that results, with its unit, where
    there is one. `reason` says why a factor is hardly identifiable.
    """

    of: TransferParameterName
    where: str
    factor: float = Field(gt=0)
    interval: tuple[float, float]
    told: float = Field(ge=0, le=1)
    now: str = ""
    reason: str = ""

    @property
    def parameter(self) -> TransferParameter:
        """What the factor multiplies."""
        return TransferParameter(self.of, self.where)


class FittedObservation(FileModel):
    """One measured time and that of the mechanism with its factors, before the residual.

    `run` numbers the file, `own` is the standard deviation of the logarithm that is this row's
    alone (large for an outlier), `slopes` the change of the logarithm of `fitted_s` per logarithm
    of each factor, `share` the part of the time that the residual multiplies (the rest is
    the host's start of the collective).
    """

    run: int
    op: str
    ranks: int
    hosts: int
    nbytes: int
    algorithm: str
    protocol: str
    measured_s: float = Field(gt=0)
    fitted_s: float = Field(gt=0)
    own: float = Field(gt=0)
    slopes: tuple[float, ...]
    share: float = Field(1.0, ge=0, le=1)

    @property
    def situation(self) -> CollectiveContext:
        """The context on which the residual depends."""
        return CollectiveContext(
            self.op, self.nbytes, self.ranks, self.hosts, self.algorithm, self.protocol
        )


class Transfer(FileModel):
    """Factors of a machine and the residual beside them.

    `gpu` is the model of GPU that the factors belong to, `covariance` that of their logarithms,
    `files` the runs, `median_abs` and `p90_abs` how far the profile is from its own rows (absolute
    relative errors, after the residual). `left` is the residual's prior with the deviations fitted
    to this machine; `odd` multiplies the variance of each run: more than one for an outlier.
    `settings` are the library's in each run.
    """

    gpu: str
    factors: tuple[Factor, ...]
    covariance: tuple[tuple[float, ...], ...]
    left: ResidualPrior
    runs: NoisePrior
    files: tuple[str, ...]
    points: tuple[FittedObservation, ...]
    median_abs: float
    p90_abs: float
    method: str
    notes: tuple[str, ...] = ()
    odd: tuple[float, ...] = ()
    settings: tuple[LibrarySettings, ...] = ()

    @model_validator(mode="after")
    def _check_lengths(self) -> Transfer:
        count = len(self.factors)
        if {len(self.covariance), *(len(row) for row in self.covariance)} - {count}:
            raise ValueError(f"covariance with {count} rows and columns, as factors")
        if any(len(point.slopes) != count for point in self.points):
            raise ValueError(f"points with {count} slopes, as factors")
        return self

    def settings_differences(self, settings: LibrarySettings) -> tuple[str, ...]:
        """Differences from the runs' settings under which the profile may not hold."""
        pairs = {(point.op, point.run) for point in self.points if point.run < len(self.settings)}
        differences = {
            f"{self.files[run]}: {difference}"
            for op, run in pairs
            for difference in settings_differences(op, self.settings[run], settings)
        }
        return tuple(sorted(differences))

    @property
    def factors_by_parameter(self) -> dict[TransferParameter, float]:
        """The factors by the number that each multiplies."""
        return {factor.parameter: factor.factor for factor in self.factors}

    @cached_property
    def over(self) -> FloatArray:
        """Logarithm of measured over fitted time, shape (points,)."""
        over: FloatArray = np.log([point.measured_s / point.fitted_s for point in self.points])
        return over

    @cached_property
    def residual(self) -> ResidualProcess | None:
        """The residual beside the factors; None without points."""
        if not self.points:
            return None
        contexts = ContextArrays.of(
            [point.situation for point in self.points], [point.share for point in self.points]
        )
        own = np.array([point.own**2 for point in self.points])
        run = np.array([point.run for point in self.points])
        noise = run_covariance(contexts, run, self.runs, self.odd or None) + np.diag(own)
        return ResidualProcess(contexts, self.over, noise, self.left, self.runs)


def model_of(gpu: str) -> str:
    """Name of a GPU without the size of its memory, on which no communication depends.

    Examples
    --------
    >>> model_of("a100-sxm4-40gb")
    'a100-sxm4'
    """
    return re.sub(r"-\d+gb$", "", gpu)
