"""Fit a profile to our own measurements of a machine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from perfmodel.calibrate.link_costs.forward_model import CostModel, observations_of
from perfmodel.calibrate.link_costs.least_squares import Solution, solve, spread_of
from perfmodel.calibrate.link_costs.model_selection import (
    fit_rate_pieces,
    select_identifiable,
    separate_host_limits,
)
from perfmodel.calibrate.link_costs.run_variance import estimate_run_spread, widen_covariance
from perfmodel.calibrate.parameters import Parameter, Value, round_digits, rounded_rows
from perfmodel.calibrate.profile import (
    Fit,
    Profile,
    Rows,
    Source,
    Undetermined,
    fitted_observations,
)
from perfmodel.errors import Fault, InputError
from perfmodel.library.machine import Machine, make_machine
from perfmodel.library.model import CommLibrary
from perfmodel.measure.record import Measurement
from perfmodel.topology.model import Topology

MAX_INTERVAL_FACTOR = 3.0
"""Most that the ends of an interval may be apart from their value, as a factor."""

DROP_ORDER = ("host_step", "rank_rate", "reduce", "launch", "step", "bandwidth")
"""Which parameters to drop first where the data do not identify all."""

METHOD = (
    "least squares of soft L1 on the logarithm of median times; covariance of an M-estimator; "
    "80 % intervals from Student's t, with the spread between runs"
)


def fit(
    measurements: Sequence[Measurement],
    topology: Topology,
    library: CommLibrary,
    *,
    name: str = "measured",
    sources: Sequence[Source] = (),
    files: Sequence[str] = (),
) -> Profile:
    """Estimate the parameters of a machine from measured collectives.

    The rows of the library's own collective and those of our schedule are fitted separately.

    Parameters
    ----------
    measurements : sequence of Measurement
        Each is a run of its own; their spread widens the intervals.
    topology : Topology
        Of at least as many ranks as were measured.
    library : CommLibrary
    name : str
        Of the profile.
    sources : sequence of Source
        Where the measurements come from; default: from memory, without a file.
    files : sequence of str
        What to call the measurements in messages; default: their numbers.

    Returns
    -------
    Profile

    Raises
    ------
    InputError
        Measurements of another machine or library, or none at all; every fault at once.
    """
    if not measurements:
        raise InputError(Fault("measurements", "none", "at least one"))
    machine = make_machine(topology, library)
    fits = []
    for rows in get_args(Rows):
        observations = observations_of(measurements, machine, rows, files)
        if observations:
            fits.append(_fit(CostModel(machine, observations), rows))
    if not fits:
        raise InputError(
            Fault(
                "measurements",
                "no row that says how a collective did",
                "rows of what 'library' or 'schedule'",
            )
        )
    return Profile(
        name=name,
        topology=topology.template,
        library=library.name,
        date=max(measurement.started for measurement in measurements)[:10],
        source=tuple(sources)
        or tuple(source_of(measurement, None) for measurement in measurements),
        fits=tuple(fits),
    )


def source_of(measurement: Measurement, path: Path | None) -> Source:
    """Say where a measurement comes from."""
    content = measurement.model_dump_json().encode() if path is None else path.read_bytes()
    return Source(
        file="(not a file)" if path is None else path.name,
        sha256=hashlib.sha256(content).hexdigest(),
        backend=measurement.backend,
        collective=measurement.collective,
        algorithm=measurement.algorithm,
        ranks=measurement.ranks,
        started=measurement.started,
        machine=measurement.machine,
        versions=measurement.versions,
    )


def _fit(forward: CostModel, rows: Rows) -> Fit:
    start, dropped = select_identifiable(forward, forward.parameters())
    if not forward.reduced_shares_differ():
        for gamma in [key for key in start if key.name == "reduce"]:
            del start[gamma]
            dropped[gamma] = "the same share of the bytes is added in all of these data"
    solution = fit_rate_pieces(forward, separate_host_limits(forward, solve(forward, start)))
    while (key := _least_identified(solution)) is not None:
        dropped[key] = _explain_drop(solution.spread[key])
        solution = solve(forward, {k: v for k, v in solution.values.items() if k != key})
    runs = len({observation.run for observation in forward.observations})
    between, scatter = estimate_run_spread(forward, solution)
    covariance = widen_covariance(solution, between, runs)
    spread = spread_of(solution.values, covariance, solution.factor)
    lowered = [observation.lowered[0] for observation in forward.observations]
    ones = np.ones(len(lowered))
    return Fit(
        rows=rows,
        method=METHOD,
        values=tuple(
            Value.of(key, si, spread[key], factor=False) for key, si in solution.values.items()
        ),
        covariance=rounded_rows(covariance),
        points=fitted_observations(
            forward.observations,
            solution,
            [(each.schedule.algorithm, each.protocol) for each in lowered],
            scatter * ones,
            ones,
        ),
        slopes=rounded_rows(solution.slopes),
        scatter=round_digits(scatter),
        run_spread=between.model_copy(
            update={"times": round_digits(between.times), "rates": round_digits(between.rates)}
        ),
        undetermined=tuple(
            Undetermined(
                parameter=key.name,
                where=key.where,
                reason=why,
                kept=_default_value(forward.machine, key),
            )
            for key, why in dropped.items()
        ),
    ).with_errors()


def _least_identified(solution: Solution) -> Parameter | None:
    """Parameter with too wide an interval, by `DROP_ORDER`; pieces of a rate stay."""
    pieces = {key.where for key in solution.values if key.beyond_bytes}
    spread = {k: factor for k, factor in solution.spread.items() if k.where not in pieces}
    vague = [key for key, factor in spread.items() if factor > MAX_INTERVAL_FACTOR]
    return min(vague, key=lambda key: (DROP_ORDER.index(key.name), -spread[key]), default=None)


def _explain_drop(factor: float) -> str:
    if factor > 1e3:
        return "these data show no sign of it"
    return f"these data leave a factor of {factor:.2g} up and down open"


def _default_value(machine: Machine, key: Parameter) -> str:
    """Value in use where the data do not determine one; as text."""
    arcs, (protocol, _, hop) = machine.topology.arcs, key.where.partition("/")
    if key.name == "bandwidth":
        rates = [r for r, k in zip(arcs.bandwidth_Bps, arcs.kinds, strict=True) if k == key.where]
        return key.format(min(rates)) + ", as the topology says"
    spec = machine.library.protocols[protocol]
    if key.name == "reduce":
        rate = spec.reduce_rate
        return "no time of its own" if rate is None else key.format(rate)
    if key.name in {"rank_rate", "host_step"}:
        return "no limit of its own"
    time_s = spec.launch if key.name == "launch" else getattr(spec.step, hop)
    return key.format(time_s) + ", as the library says"
