"""Profile: the numbers of a machine that were estimated from measurements, as a file.

Every value carries an interval that holds the truth with a probability of 80 %. The file also has
the covariance of all values (of their natural logarithms) and what the data do not identify.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from perfmodel.arrays import FloatArray
from perfmodel.calibrate.checks import settings_differences
from perfmodel.calibrate.estimation import Estimate, Observation
from perfmodel.calibrate.parameters import (
    LARGEST_LOGARITHM,
    Parameter,
    ParameterName,
    Value,
    round_digits,
)
from perfmodel.calibrate.transfer.priors import (
    ContextArrays,
    NoisePrior,
    ResidualPrior,
    ResidualProcess,
    run_covariance,
)
from perfmodel.errors import refuse_if
from perfmodel.files import (
    FileModel,
    check_rows,
    find_file,
    load_document,
    write_atomically,
    yaml_text,
)
from perfmodel.library.corrections import CollectiveContext
from perfmodel.library.settings import LibrarySettings
from perfmodel.memo import grouped
from perfmodel.units import (
    LONGEST_MEASURED_S,
    MOST_COUNT,
    MOST_MEASURED_BYTES,
    SHORTEST_MEASURED_S,
)

Rows = Literal["library", "schedule"]


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

    times: float = Field(ge=0, le=LARGEST_LOGARITHM)
    rates: float = Field(ge=0, le=LARGEST_LOGARITHM)
    freedom: float = Field(ge=1)
    source: str


class FittedObservation(FileModel):
    """One measured time and that of the fitted machine, before any residual.

    `run` numbers the file, `own` is the standard deviation of the logarithm that is this row's
    alone (large for an outlier), `share` the part of the time that the residual multiplies (the
    rest is the host's start of the collective).
    """

    run: int = Field(ge=0)
    op: str
    ranks: int = Field(gt=0, le=MOST_COUNT)
    hosts: int = Field(gt=0, le=MOST_COUNT)
    nbytes: int = Field(ge=0, le=MOST_MEASURED_BYTES)
    algorithm: str
    protocol: str
    measured_s: float = Field(ge=SHORTEST_MEASURED_S, le=LONGEST_MEASURED_S)
    fitted_s: float = Field(ge=SHORTEST_MEASURED_S, le=LONGEST_MEASURED_S)
    own: float = Field(ge=0, le=LARGEST_LOGARITHM)
    share: float = Field(1.0, ge=0, le=1)

    @property
    def context(self) -> CollectiveContext:
        """The context on which the residual depends."""
        return CollectiveContext(
            self.op, self.nbytes, self.ranks, self.hosts, self.algorithm, self.protocol
        )


class Fit(FileModel):
    """Values from one kind of row: the library's own collective, or our schedule.

    `values` are numbers, or factors on them (a transfer), which hold at other scales too. `points`
    are the rows, `slopes` the change of the logarithm of each `fitted_s` per logarithm of each
    value, `files` the runs, `median_abs` and `p90_abs` how far the fit is from its rows (absolute
    relative errors, after the residual).

    Numbers: `scatter` is the standard deviation of the logarithm of a time about the fit within a
    run, outliers aside. Factors: `gpu` is the model of GPU that they belong to, `left` the
    residual's prior with the deviations fitted to this machine, `noise` the prior of runs; `odd`
    multiplies the variance of each run: more than one for an outlier. `settings` are the library's
    in each run.
    """

    rows: Rows
    method: str
    values: tuple[Value, ...]
    covariance: tuple[tuple[float, ...], ...]
    """Covariance of the natural logarithms of the values, in their order."""
    points: tuple[FittedObservation, ...] = ()
    slopes: tuple[tuple[float, ...], ...] = ()
    median_abs: float = 0.0
    p90_abs: float = 0.0
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    undetermined: tuple[Undetermined, ...] = ()
    scatter: float = Field(default=0.0, ge=0, le=LARGEST_LOGARITHM)
    run_spread: RunSpread | None = None
    gpu: str = ""
    left: ResidualPrior | None = None
    noise: NoisePrior | None = None
    odd: tuple[Annotated[float, Field(ge=0, le=1e9)], ...] = ()
    settings: tuple[LibrarySettings, ...] = ()

    @model_validator(mode="after")
    def _check_lengths(self) -> Fit:
        count, rows = len(self.values), len(self.points)
        widths = {len(row) for row in self.covariance} | {len(self.covariance)}
        steepest = max((abs(slope) for row in self.slopes for slope in row), default=0.0)
        widest = max((abs(entry) for row in self.covariance for entry in row), default=0.0)
        runs = 1 + max((point.run for point in self.points), default=-1)
        listed = {"files": self.files, "odd": self.odd, "settings": self.settings}
        problems = {
            f"covariance with {count} rows and columns, as values": widths != {count},
            f"{rows} rows of slopes, as points, of {count}, as values": (
                [len(row) for row in self.slopes] != [count] * rows
            ),
            f"slopes from -{LARGEST_LOGARITHM:g} to {LARGEST_LOGARITHM:g}": (
                steepest > LARGEST_LOGARITHM
            ),
            f"a covariance of at most {LARGEST_LOGARITHM**2:g}": widest > LARGEST_LOGARITHM**2,
            **{
                f"{runs} {name}, as points name runs 0 to {runs - 1}": 0 < len(each) < runs
                for name, each in listed.items()
            },
            f"{len(self.files)} settings, as files": len(self.settings) > len(self.files),
        }
        check_rows(*((is_missing, wanted) for wanted, is_missing in problems.items()))
        return self

    @property
    def ranks(self) -> tuple[int, ...]:
        """Numbers of ranks that were measured."""
        return tuple(sorted({point.ranks for point in self.points}))

    @property
    def runs(self) -> int:
        """Files with rows, each from processes that were started afresh."""
        return len({point.run for point in self.points})

    @property
    def numbers(self) -> dict[Parameter, float]:
        """The values by parameter; seconds, bytes per second, or factors."""
        return {value.key: value.si for value in self.values}

    @property
    def by_size(self) -> dict[tuple[str, int, int], list[FittedObservation]]:
        """Points by collective, ranks and size."""
        return grouped(((point.op, point.ranks, point.nbytes), point) for point in self.points)

    def settings_differences(self, settings: LibrarySettings) -> tuple[str, ...]:
        """Return differences from the runs' settings under which the fit may not hold."""
        pairs = {(point.op, point.run) for point in self.points if point.run < len(self.settings)}
        differences = {
            f"{self.files[run]}: {difference}"
            for op, run in pairs
            for difference in settings_differences(op, self.settings[run], settings)
        }
        return tuple(sorted(differences))

    @cached_property
    def likely(self) -> dict[Parameter, float]:
        """The most likely values by parameter: of a draw, those that it was drawn around."""
        return self.numbers

    @cached_property
    def residual(self) -> ResidualProcess | None:
        """The residual beside factors; None without points."""
        if self.left is None or self.noise is None or not self.points:
            return None
        contexts = ContextArrays.of(
            [point.context for point in self.points], [point.share for point in self.points]
        )
        over = np.log([point.measured_s / point.fitted_s for point in self.points])
        own = np.array([point.own**2 for point in self.points])
        run = np.array([point.run for point in self.points])
        noise = run_covariance(contexts, run, self.noise, self.odd or None) + np.diag(own)
        return ResidualProcess(contexts, over, noise, self.left, self.noise)

    def with_errors(self) -> Fit:
        """The same with how far it is from its rows."""
        if not self.points:
            return self
        predicted_s = [
            p.fitted_s * (self.residual(p.context) ** p.share if self.residual else 1.0)
            for p in self.points
        ]
        errors = np.abs(np.divide(predicted_s, [p.measured_s for p in self.points]) - 1.0)
        median, p90 = (round_digits(float(np.quantile(errors, q))) for q in (0.5, 0.9))
        return self.model_copy(update={"median_abs": median, "p90_abs": p90})


def fitted_observations(
    observations: Sequence[Observation],
    estimate: Estimate,
    protocols: Sequence[tuple[str, str]],
    own: FloatArray,
    shares: FloatArray,
) -> tuple[FittedObservation, ...]:
    """Rows of a fit as a profile has them; `protocols`: algorithm and protocol of each."""
    return tuple(
        FittedObservation(
            run=o.run,
            op=o.op,
            ranks=o.ranks,
            hosts=o.machine.topology.hosts,
            nbytes=o.nbytes,
            algorithm=algorithm,
            protocol=protocol,
            measured_s=round_digits(o.measured_s),
            fitted_s=round_digits(fitted_s),
            own=round_digits(deviation),
            share=round_digits(share),
        )
        for o, (algorithm, protocol), fitted_s, deviation, share in zip(
            observations, protocols, estimate.fitted_s, own, shares, strict=True
        )
    )


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
    numbers of the ranks that were measured, or factors that hold at other scales too.
    """

    perfmodel: Literal[2] = 2
    kind: Literal["profile"] = "profile"
    name: str
    topology: str
    library: str
    date: str
    source: tuple[Source, ...]
    fits: tuple[Fit, ...] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _check_format(cls, document: Any) -> Any:
        is_old = isinstance(document, dict) and document.get("perfmodel") == 1
        allowed = (
            "version 2 (perfmodel: 2): this one is of an earlier version; make it "
            "again from its measurements with 'perfmodel calibrate'"
        )
        check_rows((is_old, allowed))
        return document

    @property
    def transfer(self) -> Fit | None:
        """Factors that hold at other scales, if it has them."""
        return next((fit for fit in self.fits if fit.left is not None), None)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Numbers of ranks that were measured."""
        return tuple(sorted({count for fit in self.fits for count in fit.ranks}))

    def fit_of(self, rows: Rows | None = None) -> Fit:
        """The numbers from one kind of row; default: the library's own collective if there.

        Raises
        ------
        InputError
            There are none from such rows.
        """
        fits = [fit for fit in self.fits if rows in {None, fit.rows}]
        available = " and ".join(repr(fit.rows) for fit in self.fits)
        refuse_if(not fits, "rows", repr(rows), f"what profile {self.name!r} has: {available}")
        return min(fits, key=lambda fit: fit.rows != "library")


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
    comment = "Made by `perfmodel calibrate`; intervals hold the truth with 80 % probability."
    write_atomically(path, yaml_text(profile.model_dump(mode="json"), comment))
