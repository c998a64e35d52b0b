"""Parameters of a fit of sweeps, factors on the mechanism's numbers, and their priors.

The mechanism computes times from a few numbers, of which a sweep identifies only some. So every
factor has a lognormal prior around one, as wide as machines usually differ from the shipped
numbers, and stays at it where the data are silent: the result holds at other scales too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from perfmodel.arrays import FloatArray
from perfmodel.calibrate.parameters import (
    FactorPrior,
    Parameter,
    ParameterName,
    Prior,
    Values,
    invert,
    prior_covariance,
)
from perfmodel.files import FileModel, load_document
from perfmodel.library.corrections import Corrections
from perfmodel.units import MOST_MEASURED_BYTES

LARGEST_DEVIATION = 10.0
"""Of the logarithm of a time: at 10 the 80 % interval is a factor of 370,000 up and down."""

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


@cache
def shipped_priors() -> Priors:
    """Read the shipped priors."""
    return load_document(Priors, Path(__file__).with_name("priors.yaml"))


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
