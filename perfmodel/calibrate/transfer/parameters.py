"""What a fit of sweeps may move: factors on the mechanism's numbers, and what is expected of them.

The mechanism says how times follow from a few numbers; a sweep shows only some of them apart. So
every factor begins with an expectation, one with a spread that says how far machines are usually
off, and keeps it where the data say nothing: what comes out carries over to other scales.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from perfmodel.arrays import FloatArray
from perfmodel.files import FileModel, load_document
from perfmodel.library.corrections import Corrections

TransferParameterName = Literal["launch", "issue", "awaited", "uneven", "step", "bandwidth", "rate"]

MEANINGS: Mapping[str, str] = {
    "launch": "time before the first byte moves",
    "issue": "the host's time to start a collective on one GPU of several",
    "awaited": "what waiting for each collective adds",
    "uneven": "what uneven channels lose",
    "step": "time of a step beyond its bytes",
    "bandwidth": "rate of a kind of link",
    "rate": "share of the links' rate that an algorithm reaches",
}


class TransferParameter(NamedTuple):
    """One factor.

    Parameters
    ----------
    name : {"launch", "issue", "awaited", "uneven", "step", "bandwidth", "rate"}
    where : str
        "" (the first four), "protocol/hop", a kind of link, or "algorithm/protocol".
    """

    name: TransferParameterName
    where: str

    def __str__(self) -> str:
        return f"{self.name} of {self.where}" if self.where else self.name


LAUNCH = TransferParameter("launch", "")
ISSUE = TransferParameter("issue", "")
AWAITED = TransferParameter("awaited", "")
UNEVEN = TransferParameter("uneven", "")


class FactorPrior(FileModel):
    """How far machines are usually off in a number.

    `deviation` is that of the logarithm of the factor; `alike` is the correlation between factors
    of the same name.
    """

    deviation: float = Field(gt=0)
    alike: float = Field(0.0, ge=0, lt=1)


class ResidualPrior(FileModel):
    """What the mechanism leaves: a Gaussian process over size, ranks and hosts.

    `small`, `deviation` and `large` are deviations (small sizes, those between, large ones; see
    `NoisePrior`) and `octaves` the length over size of the part that changes with the size, `level` is
    the deviation of the part that does not; `ranks_octaves` and `hosts_octaves` are lengths over
    the number of ranks and hosts; `other_op` and `other_way` are correlations with another
    collective, and with another algorithm or protocol; `networked` is that between one host and
    several. `open` is the deviation of the logarithm of a factor on all of these deviations, found
    for each machine from its own rows: on some machines the mechanism is off by far more than on
    most, and their rows then say more.
    """

    small: float = Field(gt=0)
    deviation: float = Field(gt=0)
    large: float = Field(gt=0)
    octaves: float = Field(gt=0)
    level: float = Field(ge=0)
    ranks_octaves: float = Field(gt=0)
    hosts_octaves: float = Field(gt=0)
    other_op: float = Field(ge=0, le=1)
    other_way: float = Field(ge=0, le=1)
    networked: float = Field(ge=0, le=1)
    open: float = Field(0.0, ge=0)


class NoisePrior(FileModel):
    """How a run differs from the next on like hardware, and a row from its neighbours.

    `small`, `middle` and `large` are deviations of the logarithm of times, far below `turn_bytes`,
    between that and `bulk_bytes` (where algorithms and protocols change, runs differ most), and far
    above. `octaves` is the length over which a run's deviation changes, `row` the deviation of one
    row as a part of that, with `freedom` degrees of freedom (Student's t: first iterations spike).
    `widened` multiplies the deviations of predictions: the mechanism is off in ways of its own on
    some machines. `odd` are the degrees of freedom (Student's t) of a whole run: one that is far
    from all others counts less; 0 for runs that differ as a normal distribution has it. `start` is
    the deviation of the host's start of a collective: no table of sweeps names the processor.
    """

    small: float = Field(gt=0)
    middle: float = Field(gt=0)
    large: float = Field(gt=0)
    turn_bytes: float = Field(gt=0)
    bulk_bytes: float = Field(gt=0)
    octaves: float = Field(gt=0)
    row: float = Field(gt=0)
    freedom: float = Field(gt=2)
    widened: float = Field(1.0, ge=1)
    odd: float = Field(0.0, ge=0)
    start: float = Field(0.12, gt=0)


class Priors(FileModel):
    """Everything that a fit of sweeps assumes before it sees data; `sweeps.yaml`."""

    levers: dict[TransferParameterName, FactorPrior]
    left: ResidualPrior
    runs: NoisePrior
    source: str


@cache
def shipped_priors() -> Priors:
    """The shipped expectations."""
    return load_document(Priors, Path(__file__).with_name("priors.yaml"))


def prior_covariance(levers: Sequence[TransferParameter], expected: Priors) -> FloatArray:
    """Covariance of the logarithms of factors before any data; shape (levers, levers)."""
    deviation = np.array([expected.levers[lever.name].deviation for lever in levers])
    alike = np.array(
        [
            [
                1.0 if a == b else expected.levers[a.name].alike if a.name == b.name else 0.0
                for b in levers
            ]
            for a in levers
        ]
    ).reshape(len(levers), len(levers))
    covariance: FloatArray = alike * np.outer(deviation, deviation)
    return covariance


def corrections_of(factors: Mapping[TransferParameter, float]) -> Corrections:
    """The part of the factors that stretches ways of carrying a collective."""
    return Corrections(
        launch=factors.get(LAUNCH, 1.0),
        issue=factors.get(ISSUE, 1.0),
        awaited=factors.get(AWAITED, 1.0),
        uneven=factors.get(UNEVEN, 1.0),
        steps={lever.where: f for lever, f in factors.items() if lever.name == "step"},
        rates={lever.where: f for lever, f in factors.items() if lever.name == "rate"},
    )


def bandwidth_factors(factors: Mapping[TransferParameter, float]) -> dict[str, float]:
    """The part of the factors that changes links: factor by kind of link."""
    return {lever.where: f for lever, f in factors.items() if lever.name == "bandwidth"}
