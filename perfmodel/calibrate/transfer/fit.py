"""From sweeps of collectives to a profile that carries over to other scales of the machine."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from perfmodel.calibrate.estimation import NO_EFFECT, Estimate, Observation, estimate
from perfmodel.calibrate.parameters import (
    NORMAL_QUANTILE,
    SETTLED_SHARE,
    Parameter,
    Value,
    invert,
    prior_covariance,
    round_digits,
    rounded_rows,
)
from perfmodel.calibrate.profile import (
    Fit,
    FittedObservation,
    Profile,
    Source,
    fitted_observations,
)
from perfmodel.calibrate.readers.sweep_records import SweepRow
from perfmodel.calibrate.transfer.forward_model import FactorModel, model_of
from perfmodel.calibrate.transfer.noise_model import SweepNoise
from perfmodel.calibrate.transfer.priors import (
    DirectMeasurement,
    Priors,
    ResidualPrior,
    prior_of,
    shipped_priors,
    tails_of,
)
from perfmodel.errors import Fault, InputError, failed
from perfmodel.library.machine import Machine, make_machine
from perfmodel.library.model import CommLibrary, load_library
from perfmodel.library.settings import LibrarySettings
from perfmodel.topology.model import Topology

PER_OCTAVE = 2
"""Rows of a run that are used for each factor of two in size; more carry no information."""

MAX_STEPS = 6
"""Most Gauss-Newton steps; times are nearly linear in factors unless the algorithm changes."""

CONVERGED_LOG_STEP = 0.01
"""Logarithm of the last step: far below any interval."""

METHOD = (
    "maximum a posteriori of factors on the mechanism's numbers beside a Gaussian process over "
    "size and scale; factors, rows and runs with Student's t; spreads expected before any data: "
    "priors.yaml"
)

SweepRun = tuple[Topology, LibrarySettings, str, Sequence[SweepRow]]
"""The machine whose ranks all took part, the library's settings, the collective, the rows."""


def fit_profile(
    runs: Sequence[SweepRun],
    *,
    topology: Topology | None = None,
    library: str | CommLibrary = "nccl",
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
    library : str or CommLibrary
        By name, or with numbers of its own.
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
    names = tuple(files) or tuple(f"run {number + 1}" for number in range(len(runs)))
    model = load_library(library) if isinstance(library, str) else library
    observations = _observations(runs, model)
    fit = _fit_factors(FactorModel(observations), direct, priors or shipped_priors()).model_copy(
        update={
            "files": names,
            "gpu": model_of(first.gpu.name),
            "settings": tuple(settings for _, settings, *_ in runs),
        }
    )
    return Profile(
        name=name,
        topology=first.template,
        library=model.name,
        date=date or dt.datetime.now(tz=dt.UTC).date().isoformat(),
        source=tuple(sources),
        fits=(fit.with_errors(),),
    )


def _fit_factors(forward: FactorModel, direct: Sequence[DirectMeasurement], priors: Priors) -> Fit:
    """Fit factors, residual and noise to the rows and to what was measured by itself."""
    measured_directly = (measurement.parameter for measurement in direct)
    parameters = list(dict.fromkeys([*forward.parameters(), *measured_directly]))
    prior = prior_of(parameters, priors, direct)
    noise = SweepNoise(invert(prior.information), tails_of(parameters, priors), priors, forward)
    steps = MAX_STEPS if forward.observations else 0  # 0: the prior with direct measurements
    fitted = estimate(forward, parameters, prior, noise, steps=steps, converged=CONVERGED_LOG_STEP)
    return Fit(
        rows="library",
        method=METHOD,
        values=tuple(_values(fitted, noise, priors, forward.nominal_values())),
        covariance=rounded_rows(fitted.covariance),
        points=_points(forward, fitted, noise),
        slopes=rounded_rows(fitted.slopes),
        left=ResidualPrior.model_validate(
            {name: round_digits(x) for name, x in noise.residual.model_dump().items()}
        ),
        noise=priors.runs,
        odd=tuple(round_digits(x) for x in noise.run_factors),
    )


def _points(
    forward: FactorModel, fitted: Estimate, noise: SweepNoise
) -> tuple[FittedObservation, ...]:
    """The rows as a profile has them."""
    contexts = noise.contexts
    chosen = zip(contexts.algorithm.tolist(), contexts.protocol.tolist(), strict=True)
    deviations, shares = noise.row_variances**0.5, np.clip(contexts.shares, 0.0, 1.0)
    return fitted_observations(forward.observations, fitted, list(chosen), deviations, shares)


def _faults(runs: Sequence[SweepRun], direct: Sequence[DirectMeasurement]) -> list[Fault]:
    rows = sum(1 for *_, rows in runs for row in rows if row.nbytes > 0 and row.time_s > 0)
    models = sorted({model_of(topology.gpu.name) for topology, *_ in runs})
    return failed(
        (not rows and not direct, "observations", "0 rows", "at least one size with a time"),
        (len(models) > 1, "observations", " and ".join(models), "runs of one model of GPU"),
    )


def _observations(runs: Sequence[SweepRun], library: CommLibrary) -> list[Observation]:
    machines: list[tuple[Topology, LibrarySettings, Machine]] = []
    observations = []
    for run, (topology, settings, op, rows) in enumerate(runs):
        made = (m for t, s, m in machines if t is topology and s == settings)
        machine = next(made, None) or make_machine(topology, library, settings=settings)
        machines.append((topology, settings, machine))
        observations += [
            Observation.of(machine, op, len(topology.ranks), row.nbytes, row.time_s, run)
            for row in thin(rows)
        ]
    return observations


def thin(rows: Iterable[SweepRow], per_octave: int = PER_OCTAVE) -> list[SweepRow]:
    """Return rows with a time, no more than so many per factor of two in size, by size."""
    chosen: dict[int, SweepRow] = {}
    for row in sorted(rows, key=lambda row: row.nbytes):
        if row.nbytes > 0 and row.time_s > 0:
            chosen.setdefault(int(np.floor(per_octave * np.log2(row.nbytes) + 1e-9)), row)
    return list(chosen.values())


# ---------------------------------------------------------------- the file's entries


def _values(
    fitted: Estimate, noise: SweepNoise, priors: Priors, nominal: Mapping[Parameter, float]
) -> Iterator[Value]:
    usual = np.diag(prior_covariance(list(fitted.values), priors.levers))
    before = np.sqrt(usual + noise.factor_variances)
    after = np.sqrt(np.diag(fitted.covariance))
    effects = np.abs(fitted.slopes).max(axis=0, initial=0.0)
    for at, (parameter, factor) in enumerate(fitted.values.items()):
        shrinkage = float(np.clip(1.0 - after[at] / before[at], 0.0, 1.0))
        yield Value.of(
            parameter,
            factor,
            np.exp(NORMAL_QUANTILE * after[at]),
            factor=True,
            told=round_digits(shrinkage),
            now=_format_value(parameter, nominal.get(parameter), factor),
            reason=_explain_shrinkage(fitted, at, effects[at]) if shrinkage < SETTLED_SHARE else "",
        )


def _format_value(parameter: Parameter, nominal: float | None, factor: float) -> str:
    """The number that results, with its unit; empty where no lowering has it."""
    if nominal is None:
        return ""
    if parameter.name == "rate":
        return f"{100 * nominal * factor:.3g} % of the links' rate"
    return parameter.format(float(f"{nominal * factor:.4g}"))


def _explain_shrinkage(fitted: Estimate, at: int, effect: float) -> str:
    """Say why a factor is not identifiable."""
    if effect < NO_EFFECT:
        return "no measured time depends on it"
    deviation = np.sqrt(np.diag(fitted.covariance))
    parameters = list(fitted.values)
    correlation = np.abs(fitted.covariance[at] / (deviation * deviation[at]))
    correlated = [
        str(parameters[other])
        for other in np.argsort(-correlation).tolist()
        if other != at and correlation[other] > 0.4
    ]
    if not correlated:
        return "these data leave it nearly as open as it was"
    return f"in these data its effect is like that of {' and '.join(correlated[:2])}"
