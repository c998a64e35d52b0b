"""From measurements to a profile."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from perfmodel.calibrate.cases import Case, Forward, cases_of
from perfmodel.calibrate.profile import (
    Fit,
    Parameter,
    Profile,
    Residual,
    Residuals,
    Rows,
    Source,
    Undetermined,
    Value,
)
from perfmodel.calibrate.solve import WIDEST, Solution, solve, tell_apart
from perfmodel.errors import Fault, InputError
from perfmodel.library.carry import Machine
from perfmodel.library.model import Library
from perfmodel.measure.record import Measurement
from perfmodel.topology.model import Topology

MOST_PIECES = 4
"""Different rates by size of chunk that a fit may use."""

GOOD_ENOUGH = 0.005
"""Scatter of the logarithm of times below which no further piece is looked for."""

FEWEST_PER_PIECE = 3
"""Sizes of chunk that every piece must hold."""

BIC_GAIN = 10.0
"""Very strong evidence for one more piece; Kass and Raftery, JASA 90(430), 1995."""

GIVEN_UP = ("reduce", "launch", "step", "bandwidth")
"""Which numbers to do without first where the data cannot tell all."""

METHOD = (
    "least squares of soft L1 on the logarithm of median times; covariance of an M-estimator; "
    "80 % intervals from Student's t"
)


def fit(
    measurements: Sequence[Measurement],
    topology: Topology,
    library: Library,
    *,
    name: str = "measured",
    sources: Sequence[Source] = (),
) -> Profile:
    """Find the numbers of a machine from measured collectives.

    The rows of the library's own collective and those of our schedule are fitted apart.

    Parameters
    ----------
    measurements : sequence of Measurement
    topology : Topology
        Of at least as many ranks as were measured.
    library : Library
    name : str
        Of the profile.
    sources : sequence of Source
        Where the measurements come from; default: from memory, without a file.

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
    machine = Machine(topology, library)
    fits = []
    for rows in get_args(Rows):
        cases = cases_of(measurements, machine, rows)
        if cases:
            fits.append(_fit(Forward(machine, cases), rows))
    if not fits:
        allowed = "rows of what 'library' or 'schedule'"
        raise InputError(Fault("measurements", "no row that says how a collective did", allowed))
    return Profile(
        name=name,
        topology=topology.template,
        library=library.name,
        date=max(measurement.started for measurement in measurements)[:10],
        source=tuple(sources) or tuple(source_of(one, None) for one in measurements),
        fits=tuple(fits),
    )


def source_of(made: Measurement, path: Path | None) -> Source:
    """Say where a measurement comes from."""
    content = made.model_dump_json().encode() if path is None else path.read_bytes()
    return Source(
        file="(not a file)" if path is None else path.name,
        sha256=hashlib.sha256(content).hexdigest(),
        backend=made.backend,
        collective=made.collective,
        algorithm=made.algorithm,
        ranks=made.ranks,
        started=made.started,
        machine=made.machine,
        versions=made.versions,
    )


def _fit(forward: Forward, rows: Rows) -> Fit:
    kept, lost = tell_apart(forward, forward.parameters())
    solution = solve(forward, kept)
    solution = _in_pieces(forward, solution)
    while (key := _vaguest(solution)) is not None:
        lost[key] = _why_vague(solution.spread[key])
        solution = solve(forward, {k: v for k, v in solution.values.items() if k != key})
    return Fit(
        rows=rows,
        ranks=tuple(sorted({case.ranks for case in forward.cases})),
        method=METHOD,
        values=tuple(_value(key, solution) for key in solution.values),
        covariance=tuple(tuple(_round(x) for x in row) for row in solution.covariance.tolist()),
        scatter=_round(solution.scatter),
        residuals=_residuals(forward, solution.values),
        undetermined=tuple(
            Undetermined(parameter=key.name, where=key.where, reason=why,
                         kept=_present(forward.machine, key))
            for key, why in lost.items()
        ),
    )  # fmt: skip


def _vaguest(solution: Solution) -> Parameter | None:
    """A value whose interval says nothing, the least telling kind first; pieces of a rate stay."""
    pieces = {key.where for key in solution.values if key.beyond_bytes}
    spread = {k: factor for k, factor in solution.spread.items() if k.where not in pieces}
    vague = [key for key, factor in spread.items() if factor > WIDEST]
    return min(vague, key=lambda key: (GIVEN_UP.index(key.name), -spread[key]), default=None)


def _why_vague(factor: float) -> str:
    if factor > 1e6:
        return "these data show no sign of it"
    return f"these data leave a factor of {factor:.2g} up and down open"


# ---------------------------------------------------------------- pieces


def _in_pieces(forward: Forward, solution: Solution) -> Solution:
    """Give chunks of different sizes different rates, as long as that explains much more."""
    rates = [key for key in solution.values if key.name == "bandwidth"]
    protocols = {way.protocol for case in forward.cases for way in case.ways}
    if len(rates) != 1 or len(protocols) != 1:
        return solution
    kind = rates[0].where
    for _ in range(MOST_PIECES - 1):
        if solution.scatter < GOOD_ENOUGH:
            break
        longer = [
            solve(forward, _split(solution.values, kind, at), passes=1)
            for at in _breaks(forward.cases, solution.values)
        ]
        if not longer:
            break
        best = solve(forward, min(longer, key=lambda one: one.cost).values)
        if _bic(solution, forward) - _bic(best, forward) < BIC_GAIN:
            break
        solution = best
    return solution


def _bic(solution: Solution, forward: Forward) -> float:
    """Bayesian information criterion; a breakpoint counts as a number beside its rate."""
    count = len(forward.cases)
    breaks = sum(key.beyond_bytes > 0 for key in solution.values)
    return float(
        count * np.log(max(solution.cost, 1e-18)) + (len(solution.values) + breaks) * np.log(count)
    )


def _breaks(cases: Sequence[Case], values: Mapping[Parameter, float]) -> list[float]:
    """Sizes of measured chunks from which a rate may change; bytes."""
    sizes = sorted({round(case.chunk_bytes) for case in cases})
    known = sorted(key.beyond_bytes for key in values if key.name == "bandwidth")
    found = []
    for at in map(float, sizes):
        edges = [edge for edge in (*known, at) if edge > 0]
        ends = [0.0, *sorted(edges), float("inf")]
        counts = [sum(a < size <= b for size in sizes) for a, b in itertools.pairwise(ends)]
        if min(counts) >= FEWEST_PER_PIECE:
            found.append(at)
    return found


def _split(values: Mapping[Parameter, float], kind: str, at: float) -> dict[Parameter, float]:
    """Values with one more piece, which starts from the rate that it had."""
    below = max(k.beyond_bytes for k in values if k.name == "bandwidth" and k.beyond_bytes < at)
    rate = values[Parameter("bandwidth", kind, below)]
    return {**values, Parameter("bandwidth", kind, at): rate}


# ---------------------------------------------------------------- what is written down


def _value(key: Parameter, solution: Solution) -> Value:
    value, factor = solution.values[key], solution.spread[key]
    return Value(
        parameter=key.name,
        where=key.where,
        beyond=f"{key.beyond_bytes:.0f} B",
        value=key.format(value),
        interval=(key.format(value / factor), key.format(value * factor)),
    )


def _present(machine: Machine, key: Parameter) -> str:
    """What is used where the data say nothing; as text."""
    arcs, (protocol, _, hop) = machine.topology.arcs, key.where.partition("/")
    if key.name == "bandwidth":
        rates = [r for r, k in zip(arcs.bandwidth_Bps, arcs.kinds, strict=True) if k == key.where]
        return key.format(min(rates)) + ", as the topology says"
    held = machine.library.protocols[protocol]
    if key.name == "reduce":
        rate = held.reduce_rate
        return "no time of its own" if rate is None else key.format(rate)
    now = held.launch if key.name == "launch" else getattr(held.step, hop)
    return key.format(now) + ", as the library says"


def _residuals(forward: Forward, values: Mapping[Parameter, float]) -> Residuals:
    times = forward.times_s(values)
    sizes = tuple(
        Residual(
            collective=case.collective,
            ranks=case.ranks,
            nbytes=case.nbytes,
            measured_s=_round(case.measured_s),
            fitted_s=_round(time_s),
        )
        for case, time_s in zip(forward.cases, times.tolist(), strict=True)
    )
    off = np.abs([size.error for size in sizes])
    return Residuals(
        median_abs=_round(np.median(off)), p90_abs=_round(np.quantile(off, 0.9)), sizes=sizes
    )


def _round(number: float) -> float:
    """Six digits: more would pretend."""
    return float(f"{number:.6g}")
