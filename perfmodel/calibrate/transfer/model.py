"""What sweeps of a machine say, as a part of a profile: factors, residual, what is not told."""

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

    `told` is the share of what was open before that the data have settled: 0 leaves the factor as
    it was expected, 1 pins it down. `now` is the number that results, with its unit, where there is
    one. `reason` says why the data tell little.
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
    """One measured time and the stretched mechanism's, before the residual.

    `run` numbers the file, `own` is the standard deviation of the logarithm that is this row's
    alone (large for an outlier), `slopes` the change of the logarithm of `fitted_s` per logarithm
    of each factor, `share` the part of the time that is the way's (what is left does not stretch
    the host's start of a collective).
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
        """What the residual may depend on."""
        return CollectiveContext(
            self.op, self.nbytes, self.ranks, self.hosts, self.algorithm, self.protocol
        )


class Transfer(FileModel):
    """Factors of a machine and what they leave.

    `gpu` is the model of GPU that the factors belong to, `covariance` that of their logarithms,
    `files` the runs, `median_abs` and `p90_abs` how far the profile is from its own rows (absolute
    relative errors, after the residual). `left` is what is left on this machine, which may be more
    than on most; `odd` multiplies the variance of each run: more than one where it is far from the
    others. `settings` is what the library was told in each run.
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
    def _fits(self) -> Transfer:
        count = len(self.factors)
        if {len(self.covariance), *(len(row) for row in self.covariance)} - {count}:
            raise ValueError(f"covariance with {count} rows and columns, as factors")
        if any(len(point.slopes) != count for point in self.points):
            raise ValueError(f"points with {count} slopes, as factors")
        return self

    def settings_differences(self, settings: LibrarySettings) -> tuple[str, ...]:
        """What of these settings speaks against the runs' holding for them."""
        pairs = {(point.op, point.run) for point in self.points if point.run < len(self.settings)}
        found = {
            f"{self.files[run]}: {why}"
            for op, run in pairs
            for why in settings_differences(op, self.settings[run], settings)
        }
        return tuple(sorted(found))

    @property
    def factors_by_parameter(self) -> dict[TransferParameter, float]:
        """The factors by what they are on."""
        return {factor.parameter: factor.factor for factor in self.factors}

    @cached_property
    def over(self) -> FloatArray:
        """Logarithm of measured over fitted time, shape (points,)."""
        found: FloatArray = np.log([point.measured_s / point.fitted_s for point in self.points])
        return found

    @cached_property
    def residual(self) -> ResidualProcess | None:
        """What the factors leave, as it is expected; None without points."""
        if not self.points:
            return None
        places = ContextArrays.of(
            [point.situation for point in self.points], [point.share for point in self.points]
        )
        own = np.array([point.own**2 for point in self.points])
        run = np.array([point.run for point in self.points])
        noise = run_covariance(places, run, self.runs, self.odd or None) + np.diag(own)
        return ResidualProcess(places, self.over, noise, self.left, self.runs)


def model_of(gpu: str) -> str:
    """Name of a GPU without the size of its memory, on which no communication depends.

    Examples
    --------
    >>> model_of("a100-sxm4-40gb")
    'a100-sxm4'
    """
    return re.sub(r"-\d+gb$", "", gpu)
