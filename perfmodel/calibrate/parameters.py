"""Parameters of a machine that fits estimate, and what is expected of them before any data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from perfmodel.arrays import FloatArray
from perfmodel.files import FileModel, check_rows
from perfmodel.memo import first_applying
from perfmodel.units import LIMITS, parse_bandwidth, parse_bytes, parse_time

INTERVAL_PROBABILITY = 0.8
"""Probability with which the truth lies inside an interval."""

NORMAL_QUANTILE = 1.2816
"""Standard deviations about zero that hold `INTERVAL_PROBABILITY` of a normal distribution."""

ParameterName = Literal[
    "launch",
    "issue",
    "awaited",
    "uneven",
    "step",
    "host_step",
    "reduce",
    "bandwidth",
    "rank_rate",
    "rate",
]


MEANINGS: Mapping[ParameterName, str] = {
    "launch": "time before the first byte moves",
    "issue": "the host's time to start a collective on one GPU of several",
    "awaited": "what waiting for each collective adds",
    "uneven": "what uneven channels lose",
    "step": "time of a step beyond its bytes",
    "host_step": "what a rank's step costs the cores that all ranks of a host share",
    "reduce": "rate at which a rank adds what it received",
    "bandwidth": "rate of a kind of link",
    "rank_rate": "most that a rank sends with the link to itself",
    "rate": "share of the links' rate that an algorithm reaches",
}

SETTLED_SHARE = 0.3
"""Share of a factor's prior spread that data must settle for it to count as measured."""

LARGEST_LOGARITHM = 100.0
"""Largest logarithm of a ratio of times, of its deviation, or of its change with a value.

What is beyond leaves the range of a float when its exponential is taken.
"""

FACTOR = "x "
"""Stands before a factor on a number, in place of the number."""

LIMITS_OF_FACTORS = (1e-9, 1e9)

RATES = frozenset({"reduce", "bandwidth", "rank_rate"})
"""Parameters in bytes per second; the others are times or shares."""


class Parameter(NamedTuple):
    """Name of the number of a machine that a value, or a factor, is of.

    Parameters
    ----------
    name : str
        One of `MEANINGS`. Of the textbooks' parameters a "step" is alpha, a "bandwidth" 1 / beta,
        "reduce" 1 / gamma.
    where : str
        A protocol ("ring"), a protocol and a kind of hop ("ring/memory"), an algorithm and a
        protocol, or a kind of link; "" where it is one for all.
    beyond_bytes : float
        For a bandwidth: it is that of a chunk's bytes beyond this many.
    """

    name: ParameterName
    where: str = ""
    beyond_bytes: float = 0.0

    def parse(self, text: str) -> float:
        """Read a value of this parameter (seconds, or bytes per second) or a factor on it."""
        if text.startswith(FACTOR):
            return float(text.removeprefix(FACTOR))
        return parse_bandwidth(text) if self.name in RATES else parse_time(text)

    @property
    def limits(self) -> tuple[float, float]:
        """Smallest and largest value."""
        least, most = LIMITS["a bandwidth" if self.name in RATES else "a time"]
        return self.parse(least), self.parse(most)

    def format(self, value: float) -> str:
        """Write a value of this parameter, to seven digits."""
        return f"{value * 1e-9:.7g} GB/s" if self.name in RATES else f"{value * 1e6:.7g} us"

    def __str__(self) -> str:
        beyond = f" beyond {self.beyond_bytes:.0f} B of a chunk" if self.beyond_bytes else ""
        return f"{self.name} of {self.where}{beyond}" if self.where else self.name


Values = Mapping[Parameter, float]
"""A number for each parameter (seconds or bytes per second), or a factor on it."""


def _size(text: str) -> str:
    parse_bytes(text)
    return text


class Value(FileModel):
    """One measured number, or a factor on it, with its 80 % interval; numbers with units.

    Of factors: `told` is by which share the data have narrowed the prior's spread (shrinkage): 0
    leaves the factor at its prior, 1 determines it. `now` is the number that results, with its
    unit, where there is one. `reason` says why a factor is hardly identifiable.
    """

    parameter: ParameterName
    where: str
    beyond: Annotated[str, AfterValidator(_size)] = "0 B"
    value: str
    interval: tuple[str, str]
    told: float = Field(1.0, ge=0, le=1)
    now: str = ""
    reason: str = ""

    @staticmethod
    def of(key: Parameter, value: float, reach: float, *, factor: bool, **more: Any) -> Value:
        """Write a value, and its interval from one over `reach` to `reach` times it."""
        low, middle, high = (
            f"{FACTOR}{x:.6g}" if factor else key.format(x)
            for x in (value / reach, value, value * reach)
        )
        return Value(
            parameter=key.name,
            where=key.where,
            beyond=f"{key.beyond_bytes:.0f} B",
            value=middle,
            interval=(low, high),
            **more,
        )

    @model_validator(mode="after")
    def _check_numbers(self) -> Value:
        least, most = LIMITS_OF_FACTORS
        for text in (self.value, *self.interval):
            si, is_factor = self.key.parse(text), text.startswith(FACTOR)
            check_rows(
                (not 0 < si < math.inf, f"more than zero, not {text!r}"),
                (
                    is_factor and not least <= si <= most,
                    f"a factor from {least:g} to {most:g}, not {text!r}",
                ),
            )
        is_around = self.low <= self.si <= self.high
        check_rows((not is_around, f"an interval around {self.value!r}, from low to high"))
        return self

    @property
    def settled(self) -> bool:
        """Whether the data tell enough of the value for it to count as measured."""
        return self.told >= SETTLED_SHARE

    @property
    def key(self) -> Parameter:
        """The number that the value is of."""
        return Parameter(self.parameter, self.where, parse_bytes(self.beyond))

    @property
    def si(self) -> float:
        """The value in seconds or bytes per second, or the factor."""
        return self.key.parse(self.value)

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.key.parse(self.interval[0])

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.key.parse(self.interval[1])

    def scaled(self, log: float) -> Value:
        """The value times the exponential of a logarithm, with its old interval.

        A draw from an interval of any width ends where quantities do.
        """
        factor = self.value.startswith(FACTOR)
        least, most = LIMITS_OF_FACTORS if factor else self.key.limits
        si = self.si * math.exp(min(max(log, -LARGEST_LOGARITHM), LARGEST_LOGARITHM))
        scaled = Value.of(self.key, min(max(si, least), most), 1.0, factor=factor)
        return self.model_copy(update={"value": scaled.value})


class FactorPrior(FileModel):
    """Prior of values of one name: how far machines usually differ from where the fit begins.

    `deviation` is that of the logarithm; `alike` is the correlation between values of the same
    name, `pieces` that between rates of one link for chunks of different sizes. `tails` are degrees
    of freedom (Student's t), where now and then a machine is several times off; 0: a normal
    distribution.
    """

    deviation: float = Field(gt=0)
    alike: float = Field(0.0, ge=0, lt=1)
    pieces: float = Field(0.0, ge=0, lt=1)
    tails: float = Field(0.0, ge=0, le=1e9)

    def correlation(self, first: Parameter, second: Parameter) -> float:
        """Correlation of two values, of which the first has this prior."""
        return first_applying(
            (first == second, 1.0),
            (first[:2] == second[:2], self.pieces),
            (first.name == second.name, self.alike),
            (True, 0.0),
        )


def prior_covariance(
    parameters: Sequence[Parameter], priors: Mapping[ParameterName, FactorPrior]
) -> FloatArray:
    """Covariance of the logarithms of values before any data; shape (parameters, parameters)."""
    deviation = np.array([priors[parameter.name].deviation for parameter in parameters])
    correlation = np.array(
        [[priors[a.name].correlation(a, b) for b in parameters] for a in parameters]
    ).reshape(len(parameters), len(parameters))
    return np.asarray(correlation * np.outer(deviation, deviation))


@dataclass(frozen=True)
class Prior:
    """Normal distribution of the logarithms of values before any time was measured.

    Parameters
    ----------
    mean : ndarray of float, shape (values,)
    information : ndarray of float, shape (values, values)
        Inverse covariance.
    """

    mean: FloatArray
    information: FloatArray


def invert(matrix: FloatArray) -> FloatArray:
    """Inverse of a covariance."""
    return np.asarray(np.linalg.inv(matrix), dtype=float)


def draw_logs(
    covariance: FloatArray, rng: np.random.Generator, widening: float = 1.0
) -> FloatArray:
    """Draw deviations of logarithms with a covariance, their standard deviations times `widening`.

    By eigenvalues: rounding in a file may have pushed one just below zero.
    """
    variances, axes = np.linalg.eigh(covariance)
    normal = rng.standard_normal(len(variances))
    return np.asarray(axes @ (widening * np.sqrt(np.maximum(variances, 0.0)) * normal))


def round_digits(number: float) -> float:
    """Round to six digits: more would feign accuracy."""
    return float(f"{number:.6g}")


def rounded_rows(matrix: FloatArray) -> tuple[tuple[float, ...], ...]:
    """Round a matrix, for a file."""
    return tuple(tuple(round_digits(x) for x in row) for row in matrix.tolist())
