"""Profile: the numbers of a machine that were estimated from measurements, as a file.

Every value carries an interval that holds the truth with a probability of 80 %. The file has the
covariance of all values (of their natural logarithms, which were fitted), and a list of parameters
that the data do not identify, with the reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, model_validator

from perfmodel.calibrate.transfer.model import Transfer
from perfmodel.errors import Fault, InputError
from perfmodel.files import FileModel, find_file, load_document, write_atomically
from perfmodel.units import parse_bandwidth, parse_bytes, parse_time

ParameterName = Literal["launch", "step", "host_step", "reduce", "bandwidth", "rank_rate"]
RATES = frozenset({"reduce", "bandwidth", "rank_rate"})
"""Parameters in bytes per second; the others are times."""

Rows = Literal["library", "schedule"]


class Parameter(NamedTuple):
    """Which number of a machine a value is of.

    Parameters
    ----------
    name : {"launch", "step", "host_step", "reduce", "bandwidth", "rank_rate"}
        Time of a collective before its first step; time of a step beyond its bytes (alpha); what
        each rank's step costs the cores of a host that all its ranks share; rate at which a rank
        adds what it received (1 / gamma); rate of the link, which ranks share (1 / beta); most that
        a rank sends when it has the link to itself.
    where : str
        A protocol ("ring"), a protocol and a kind of hop ("ring/memory"), or a kind of link.
    beyond_bytes : float
        For a bandwidth: it is that of a chunk's bytes beyond this many.
    """

    name: ParameterName
    where: str
    beyond_bytes: float = 0.0

    def parse(self, text: object) -> float:
        """Read a value of this parameter; seconds, or bytes per second."""
        return parse_bandwidth(text) if self.name in RATES else parse_time(text)

    def format(self, value: float) -> str:
        """Write a value of this parameter, to seven digits."""
        if self.name in RATES:
            return f"{value * 1e-9:.7g} GB/s"
        return f"{value * 1e6:.7g} us"

    def __str__(self) -> str:
        beyond = f" beyond {self.beyond_bytes:.0f} B of a chunk" if self.beyond_bytes else ""
        return f"{self.name} of {self.where}{beyond}"


def _size(text: str) -> str:
    parse_bytes(text)
    return text


SizeText = Annotated[str, AfterValidator(_size)]


class Value(FileModel):
    """One measured number with its 80 % interval, both with units."""

    parameter: ParameterName
    where: str
    beyond: SizeText = "0 B"
    value: str
    interval: tuple[str, str]

    @model_validator(mode="after")
    def _check_numbers(self) -> Value:
        for text in (self.value, *self.interval):
            if self.key.parse(text) <= 0:
                raise ValueError(f"more than zero, not {text!r}")
        if not self.low <= self.si <= self.high:
            raise ValueError(f"an interval around {self.value!r}, from low to high")
        return self

    @property
    def key(self) -> Parameter:
        """Which number the value is of."""
        return Parameter(self.parameter, self.where, parse_bytes(self.beyond))

    @property
    def is_rate(self) -> bool:
        """Whether the value is a rate; otherwise it is a time."""
        return self.parameter in RATES

    @property
    def si(self) -> float:
        """The value in seconds or bytes per second."""
        return self.key.parse(self.value)

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.key.parse(self.interval[0])

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.key.parse(self.interval[1])


class Undetermined(FileModel):
    """A parameter that the measurements do not identify, the value kept instead, and why."""

    parameter: ParameterName
    where: str
    kept: str
    reason: str


class RunSpread(FileModel):
    """Spread between runs of one machine whose processes are started afresh.

    Standard deviations of the logarithm of all `times` together and of all `rates` together from
    one run to another; `freedom` are their degrees of freedom.
    """

    times: float = Field(ge=0)
    rates: float = Field(ge=0)
    freedom: float = Field(gt=0)
    source: str


class Residual(FileModel):
    """Measured against fitted, one size; measured: geometric mean of the runs."""

    collective: str
    ranks: int
    nbytes: int
    runs: int = 1
    measured_s: float
    fitted_s: float

    @property
    def error(self) -> float:
        """Fitted over measured, minus one."""
        return self.fitted_s / self.measured_s - 1.0


class Residuals(FileModel):
    """Absolute relative errors of the fit: of all runs, and of each size."""

    median_abs: float
    p90_abs: float
    sizes: tuple[Residual, ...]


class Fit(FileModel):
    """Numbers from one kind of row: the library's own collective, or our schedule."""

    rows: Rows
    ranks: tuple[int, ...]
    """Numbers of ranks that were measured."""
    method: str
    values: tuple[Value, ...]
    covariance: tuple[tuple[float, ...], ...]
    """Of the natural logarithms of the values, in their order."""
    scatter: float = Field(ge=0)
    """Standard deviation of the logarithm of a time about the fit within a run, outliers aside."""
    runs: int = Field(1, ge=1)
    """Files, each from processes that were started afresh."""
    run_spread: RunSpread | None = None
    residuals: Residuals
    undetermined: tuple[Undetermined, ...] = ()

    @model_validator(mode="after")
    def _check_covariance(self) -> Fit:
        sides = {len(row) for row in self.covariance} | {len(self.covariance)}
        if sides != {len(self.values)}:
            raise ValueError(f"covariance with {len(self.values)} rows and columns, as values")
        return self


class Source(FileModel):
    """A measurement file that went into a profile."""

    file: str
    sha256: str
    backend: str
    collective: str
    algorithm: str
    ranks: int
    started: str
    machine: dict[str, str]
    versions: dict[str, str]


class Profile(FileModel):
    """Measured numbers of one machine with one library.

    `topology` is the template that the numbers belong to, `library` the library model; `fits` are
    numbers of the ranks that were measured, `transfer` holds at other scales too.
    """

    perfmodel: Literal[1] = 1
    kind: Literal["profile"] = "profile"
    name: str
    topology: str
    library: str
    date: str
    source: tuple[Source, ...]
    fits: tuple[Fit, ...] = ()
    transfer: Transfer | None = None

    @model_validator(mode="after")
    def _has_numbers(self) -> Profile:
        if not self.fits and self.transfer is None:
            raise ValueError("fits, or a transfer")
        return self

    @property
    def ranks(self) -> tuple[int, ...]:
        """Numbers of ranks that were measured."""
        counts = {count for fit in self.fits for count in fit.ranks}
        if self.transfer is not None:
            counts |= {point.ranks for point in self.transfer.points}
        return tuple(sorted(counts))

    def fit_of(self, rows: Rows | None = None) -> Fit:
        """The numbers from one kind of row; default: the library's own collective if there.

        Raises
        ------
        InputError
            There are none from such rows.
        """
        if rows is None and self.fits:
            return min(self.fits, key=lambda fit: fit.rows != "library")
        for fit in self.fits:
            if fit.rows == rows:
                return fit
        available = " and ".join(repr(fit.rows) for fit in self.fits) or "factors from sweeps alone"
        raise InputError(Fault("rows", repr(rows), f"what profile {self.name!r} has: {available}"))


def read_profile(name_or_path: str | Path) -> Profile:
    """Read a profile by path, or by name from the folder ``profiles``.

    Raises
    ------
    InputError
        No such file, or everything that is wrong in it, with lines.
    """
    return load_document(
        Profile, find_file(str(name_or_path), "topologies/profiles", field="profile")
    )


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile as YAML, whole or not at all."""
    import io

    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 120
    yaml.default_flow_style = None  # a list of numbers stands on one line
    text = io.StringIO()
    text.write("# Made by `perfmodel calibrate`; intervals hold the truth with 80 % probability.\n")
    yaml.dump(profile.model_dump(mode="json"), text)
    write_atomically(path, text.getvalue())
