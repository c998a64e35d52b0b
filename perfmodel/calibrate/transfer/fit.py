"""From sweeps of collectives to a profile that carries over to other scales of the machine."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from perfmodel.calibrate.estimation import NO_EFFECT, NORMAL_QUANTILE, round_digits
from perfmodel.calibrate.profile import Parameter, Profile, Source
from perfmodel.calibrate.transfer.forward_model import ForwardModel, Observation
from perfmodel.calibrate.transfer.model import (
    SETTLED_SHARE,
    Factor,
    FittedObservation,
    Transfer,
    model_of,
)
from perfmodel.calibrate.transfer.parameters import (
    Priors,
    ResidualPrior,
    TransferParameter,
    prior_covariance,
    shipped_priors,
)
from perfmodel.calibrate.transfer.posterior import (
    DirectMeasurement,
    Posterior,
    fit_posterior,
)
from perfmodel.errors import Fault, InputError
from perfmodel.library.machine import Machine, make_machine
from perfmodel.library.model import CommLibrary, load_library
from perfmodel.library.settings import LibrarySettings
from perfmodel.topology.model import Topology

PER_OCTAVE = 2
"""Rows of a run that are used for each factor of two in size; more say the same again."""

METHOD = (
    "maximum a posteriori of factors on the mechanism's numbers beside a Gaussian process over "
    "size and scale; rows and runs with Student's t; spreads expected before any data: sweeps.yaml"
)


class Timed(Protocol):
    """A row of a sweep."""

    @property
    def nbytes(self) -> int:
        """Bytes as the tool counts them."""

    @property
    def time_s(self) -> float:
        """Seconds."""


SweepRun = tuple[Topology, LibrarySettings, str, Sequence[Timed]]
"""The machine whose ranks all took part, the library's settings, the collective, the rows."""


def fit_profile(
    observations: Sequence[SweepRun],
    *,
    topology: Topology | None = None,
    library: str = "nccl",
    name: str = "measured",
    files: Sequence[str] = (),
    sources: Sequence[Source] = (),
    seen: Sequence[DirectMeasurement] = (),
    date: str | None = None,
    expected: Priors | None = None,
) -> Profile:
    """Fit factors of a machine to sweeps of it, of any scales and collectives.

    Parameters
    ----------
    observations : sequence of (Topology, LibrarySettings, str, rows)
        Each is a run of its own.
    topology : Topology, optional
        Machine that the profile is named after; default: the first run's.
    library : str
    name : str
        Of the profile.
    files : sequence of str
        Names of the runs; default: their numbers.
    sources : sequence of Source
        Where the runs come from.
    seen : sequence of DirectMeasurement
        Rates of links that were measured by themselves.
    date : str, optional
        Default: today.
    expected : Priors, optional
        Spreads before any data; default: the shipped ones.

    Raises
    ------
    InputError
        No rows, or runs of different GPUs.
    """
    first = topology or (observations[0][0] if observations else None)
    faults = _faults(observations, seen)
    if faults or first is None:
        raise InputError(faults)
    expectation = expected or shipped_priors()
    names = list(files) or [f"run {number + 1}" for number in range(len(observations))]
    observed = _observations(observations, load_library(library), names)
    forward = ForwardModel(observed)
    levers = list(dict.fromkeys([*forward.levers(), *(one.lever for one in seen)]))
    found = fit_posterior(forward, levers, expectation, seen)
    transfer = _transfer(found, forward, expectation, model_of(first.gpu.name), tuple(names))
    told = tuple(settings for _, settings, *_ in observations)
    return Profile(
        name=name,
        topology=first.template,
        library=library,
        date=date or dt.datetime.now(tz=dt.UTC).date().isoformat(),
        source=tuple(sources),
        fits=(),
        transfer=transfer.model_copy(update={"settings": told}),
    )


def _faults(observations: Sequence[SweepRun], seen: Sequence[DirectMeasurement]) -> list[Fault]:
    rows = sum(1 for *_, rows in observations for row in rows if row.nbytes > 0 and row.time_s > 0)
    if not rows and not seen:
        return [Fault("observations", f"{rows} rows", "at least one size with a time")]
    models = sorted({model_of(topology.gpu.name) for topology, *_ in observations})
    if len(models) > 1:
        return [Fault("observations", " and ".join(models), "runs of one model of GPU")]
    return []


def _observations(
    observations: Sequence[SweepRun], library: CommLibrary, names: Sequence[str]
) -> list[Observation]:
    machines: dict[tuple[int, str], Machine] = {}
    found = []
    for run, (topology, settings, op, rows) in enumerate(observations):
        key = (id(topology), settings.model_dump_json())
        if key not in machines:
            machines[key] = make_machine(topology, library, settings=settings)
        found += [
            Observation(machines[key], op, row.nbytes, row.time_s, run, names[run])
            for row in thinned(rows)
        ]
    return found


def thinned(rows: Iterable[Timed], per_octave: int = PER_OCTAVE) -> list[Timed]:
    """Rows with a time, no more than so many per factor of two in size, by size."""
    chosen: dict[int, Timed] = {}
    for row in sorted(rows, key=lambda row: row.nbytes):
        if row.nbytes > 0 and row.time_s > 0:
            chosen.setdefault(int(np.floor(per_octave * np.log2(row.nbytes) + 1e-9)), row)
    return list(chosen.values())


# ---------------------------------------------------------------- what is written down


def _transfer(
    found: Posterior, forward: ForwardModel, expected: Priors, gpu: str, files: tuple[str, ...]
) -> Transfer:
    where = found.places
    points = tuple(
        FittedObservation(
            run=one.run, op=one.op, ranks=len(one.machine.topology.ranks),
            hosts=one.machine.topology.hosts, nbytes=one.nbytes, algorithm=str(algorithm),
            protocol=str(protocol), measured_s=round_digits(one.measured_s), fitted_s=round_digits(fitted),
            own=round_digits(variance**0.5), slopes=tuple(round_digits(x) for x in slopes),
            share=round_digits(min(max(share, 0.0), 1.0)),
        )
        for one, algorithm, protocol, share, fitted, variance, slopes in zip(
            forward.observed, where.algorithm, where.protocol, where.shares, found.fitted_s,
            found.noise.row, found.slopes, strict=True,
        )
    )  # fmt: skip
    made = _describe(found, forward, expected, gpu, files, points)
    if made.residual is None:
        return made
    after = [made.residual(p.situation) ** p.share * p.fitted_s / p.measured_s for p in points]
    off = np.abs(np.array(after) - 1.0)
    return made.model_copy(
        update={
            "median_abs": round_digits(np.median(off)),
            "p90_abs": round_digits(np.quantile(off, 0.9)),
        }
    )


def _describe(
    found: Posterior, forward: ForwardModel, expected: Priors, gpu: str, files: tuple[str, ...],
    points: tuple[FittedObservation, ...],
) -> Transfer:  # fmt: skip
    return Transfer(
        gpu=gpu,
        factors=_factors(found, expected, forward.usual()),
        covariance=tuple(tuple(round_digits(x) for x in row) for row in found.covariance.tolist()),
        left=_rounded(found.noise.left),
        runs=expected.runs,
        files=files,
        points=points,
        median_abs=0.0,
        p90_abs=0.0,
        method=METHOD,
        odd=tuple(round_digits(x) for x in found.noise.odd),
    )


def _factors(
    found: Posterior, expected: Priors, usual: Mapping[TransferParameter, float]
) -> tuple[Factor, ...]:
    before = np.sqrt(np.diag(prior_covariance(found.levers, expected)))
    after = np.sqrt(np.diag(found.covariance))
    most = np.abs(found.slopes).max(axis=0, initial=0.0)
    factors = []
    for at, lever in enumerate(found.levers):
        told = float(np.clip(1.0 - after[at] / before[at], 0.0, 1.0))
        log, wide = found.logs[at], NORMAL_QUANTILE * after[at]
        factors.append(
            Factor(
                of=lever.name, where=lever.where, factor=round_digits(np.exp(log)),
                interval=(round_digits(np.exp(log - wide)), round_digits(np.exp(log + wide))),
                told=round_digits(told),
                now=_now(lever, usual.get(lever), float(np.exp(log))),
                reason=_reason(found, at, told, most[at]),
            )
        )  # fmt: skip
    return tuple(factors)


def _now(lever: TransferParameter, usual: float | None, factor: float) -> str:
    """The number that results, where a way has it; with its unit."""
    if usual is None:
        return ""
    if lever.name == "rate":
        return f"{100 * usual * factor:.3g} % of the links' rate"
    parameter = Parameter("bandwidth" if lever.name == "bandwidth" else "launch", lever.where)
    return parameter.format(float(f"{usual * factor:.4g}"))


def _reason(found: Posterior, at: int, told: float, most: float) -> str:
    """Why a factor is as it was expected; empty where data tell it."""
    if told >= SETTLED_SHARE:
        return ""
    if most < NO_EFFECT:
        return "no measured time depends on it"
    deviation = np.sqrt(np.diag(found.covariance))
    with_it = found.covariance[at] / (deviation * deviation[at])
    twins = [
        str(found.levers[other])
        for other in np.argsort(-np.abs(with_it)).tolist()
        if other != at and abs(with_it[other]) > 0.4
    ]
    if twins:
        return f"in these data its effect is like that of {' and '.join(twins[:2])}"
    return "these data leave it nearly as open as it was"


def _rounded(left: ResidualPrior) -> ResidualPrior:
    return ResidualPrior.model_validate(
        {name: round_digits(x) for name, x in left.model_dump().items()}
    )
