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
"""Rows of a run that are used for each factor of two in size; more carry no information."""

METHOD = (
    "maximum a posteriori of factors on the mechanism's numbers beside a Gaussian process over "
    "size and scale; rows and runs with Student's t; spreads expected before any data: priors.yaml"
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
    runs: Sequence[SweepRun],
    *,
    topology: Topology | None = None,
    library: str = "nccl",
    name: str = "measured",
    files: Sequence[str] = (),
    sources: Sequence[Source] = (),
    direct: Sequence[DirectMeasurement] = (),
    date: str | None = None,
    priors: Priors | None = None,
) -> Profile:
    """Fit factors of a machine to sweeps of it, of any scales and collectives.

    Parameters
    ----------
    runs : sequence of (Topology, LibrarySettings, str, rows)
    topology : Topology, optional
        Machine that the profile is named after; default: the first run's.
    library : str
    name : str
        Of the profile.
    files : sequence of str
        Names of the runs; default: their numbers.
    sources : sequence of Source
        Where the runs come from.
    direct : sequence of DirectMeasurement
        Rates of links that were measured by themselves.
    date : str, optional
        Default: today.
    priors : Priors, optional
        Default: the shipped ones.

    Raises
    ------
    InputError
        No rows, or runs of different GPUs.
    """
    first = topology or (runs[0][0] if runs else None)
    faults = _faults(runs, direct)
    if faults or first is None:
        raise InputError(faults)
    priors = priors or shipped_priors()
    names = list(files) or [f"run {number + 1}" for number in range(len(runs))]
    forward = ForwardModel(_observations(runs, load_library(library), names))
    measured_directly = (measurement.parameter for measurement in direct)
    parameters = list(dict.fromkeys([*forward.parameters(), *measured_directly]))
    posterior = fit_posterior(forward, parameters, priors, direct)
    transfer = _transfer(posterior, forward, priors, model_of(first.gpu.name), tuple(names))
    settings = tuple(settings for _, settings, *_ in runs)
    return Profile(
        name=name,
        topology=first.template,
        library=library,
        date=date or dt.datetime.now(tz=dt.UTC).date().isoformat(),
        source=tuple(sources),
        fits=(),
        transfer=transfer.model_copy(update={"settings": settings}),
    )


def _faults(runs: Sequence[SweepRun], direct: Sequence[DirectMeasurement]) -> list[Fault]:
    rows = sum(1 for *_, rows in runs for row in rows if row.nbytes > 0 and row.time_s > 0)
    if not rows and not direct:
        return [Fault("observations", f"{rows} rows", "at least one size with a time")]
    models = sorted({model_of(topology.gpu.name) for topology, *_ in runs})
    if len(models) > 1:
        return [Fault("observations", " and ".join(models), "runs of one model of GPU")]
    return []


def _observations(
    runs: Sequence[SweepRun], library: CommLibrary, names: Sequence[str]
) -> list[Observation]:
    machines: dict[tuple[int, str], Machine] = {}
    observations = []
    for run, (topology, settings, op, rows) in enumerate(runs):
        key = (id(topology), settings.model_dump_json())
        if key not in machines:
            machines[key] = make_machine(topology, library, settings=settings)
        observations += [
            Observation(machines[key], op, row.nbytes, row.time_s, run, names[run])
            for row in thin(rows)
        ]
    return observations


def thin(rows: Iterable[Timed], per_octave: int = PER_OCTAVE) -> list[Timed]:
    """Return rows with a time, no more than so many per factor of two in size, by size."""
    chosen: dict[int, Timed] = {}
    for row in sorted(rows, key=lambda row: row.nbytes):
        if row.nbytes > 0 and row.time_s > 0:
            chosen.setdefault(int(np.floor(per_octave * np.log2(row.nbytes) + 1e-9)), row)
    return list(chosen.values())


# ---------------------------------------------------------------- the file's entries


def _transfer(
    posterior: Posterior, forward: ForwardModel, priors: Priors, gpu: str, files: tuple[str, ...]
) -> Transfer:
    points = _points(posterior, forward)
    transfer = Transfer(
        gpu=gpu,
        factors=_factors(posterior, priors, forward.nominal_values()),
        covariance=tuple(
            tuple(round_digits(x) for x in row) for row in posterior.covariance.tolist()
        ),
        left=_round_prior(posterior.noise.residual),
        runs=priors.runs,
        files=files,
        points=points,
        median_abs=0.0,
        p90_abs=0.0,
        method=METHOD,
        odd=tuple(round_digits(x) for x in posterior.noise.run_factors),
    )
    residual = transfer.residual
    if residual is None:
        return transfer
    ratios = [residual(p.situation) ** p.share * p.fitted_s / p.measured_s for p in points]
    errors = np.abs(np.array(ratios) - 1.0)
    return transfer.model_copy(
        update={
            "median_abs": round_digits(np.median(errors)),
            "p90_abs": round_digits(np.quantile(errors, 0.9)),
        }
    )


def _points(posterior: Posterior, forward: ForwardModel) -> tuple[FittedObservation, ...]:
    contexts = posterior.contexts
    return tuple(
        FittedObservation(
            run=o.run, op=o.op, ranks=len(o.machine.topology.ranks), hosts=o.machine.topology.hosts,
            nbytes=o.nbytes, algorithm=str(algorithm), protocol=str(protocol),
            measured_s=round_digits(o.measured_s), fitted_s=round_digits(fitted_s),
            own=round_digits(variance**0.5), slopes=tuple(round_digits(x) for x in slopes),
            share=round_digits(min(max(share, 0.0), 1.0)),
        )
        for o, algorithm, protocol, share, fitted_s, variance, slopes in zip(
            forward.observations, contexts.algorithm, contexts.protocol, contexts.shares,
            posterior.fitted_s, posterior.noise.row_variances, posterior.slopes, strict=True,
        )
    )  # fmt: skip


def _factors(
    posterior: Posterior, priors: Priors, nominal: Mapping[TransferParameter, float]
) -> tuple[Factor, ...]:
    before = np.sqrt(np.diag(prior_covariance(posterior.parameters, priors)))
    after = np.sqrt(np.diag(posterior.covariance))
    effects = np.abs(posterior.slopes).max(axis=0, initial=0.0)
    factors = []
    for at, parameter in enumerate(posterior.parameters):
        shrinkage = float(np.clip(1.0 - after[at] / before[at], 0.0, 1.0))
        log, reach = posterior.logs[at], NORMAL_QUANTILE * after[at]
        factors.append(
            Factor(
                of=parameter.name, where=parameter.where, factor=round_digits(np.exp(log)),
                interval=(round_digits(np.exp(log - reach)), round_digits(np.exp(log + reach))),
                told=round_digits(shrinkage),
                now=_format_value(parameter, nominal.get(parameter), float(np.exp(log))),
                reason=_explain_shrinkage(posterior, at, shrinkage, effects[at]),
            )
        )  # fmt: skip
    return tuple(factors)


def _format_value(parameter: TransferParameter, nominal: float | None, factor: float) -> str:
    """The number that results, with its unit; empty where no lowering has it."""
    if nominal is None:
        return ""
    if parameter.name == "rate":
        return f"{100 * nominal * factor:.3g} % of the links' rate"
    unit = Parameter("bandwidth" if parameter.name == "bandwidth" else "launch", parameter.where)
    return unit.format(float(f"{nominal * factor:.4g}"))


def _explain_shrinkage(posterior: Posterior, at: int, shrinkage: float, effect: float) -> str:
    """Why a factor is not identifiable; empty where it is."""
    if shrinkage >= SETTLED_SHARE:
        return ""
    if effect < NO_EFFECT:
        return "no measured time depends on it"
    deviation = np.sqrt(np.diag(posterior.covariance))
    correlation = posterior.covariance[at] / (deviation * deviation[at])
    correlated = [
        str(posterior.parameters[other])
        for other in np.argsort(-np.abs(correlation)).tolist()
        if other != at and abs(correlation[other]) > 0.4
    ]
    if correlated:
        return f"in these data its effect is like that of {' and '.join(correlated[:2])}"
    return "these data leave it nearly as open as it was"


def _round_prior(prior: ResidualPrior) -> ResidualPrior:
    return ResidualPrior.model_validate(
        {name: round_digits(x) for name, x in prior.model_dump().items()}
    )
