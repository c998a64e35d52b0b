"""Fit a profile to our own measurements of a machine.

The parameters are those that the data identify; more of them than one alpha and one beta are
fitted where the Bayesian information criterion (BIC) is in their favour.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from perfmodel.calibrate.estimation import NO_EFFECT, Observation
from perfmodel.calibrate.least_squares import (
    MIN_SCATTER,
    Solution,
    estimate_run_spread,
    robust_weights,
    solve,
    spread_of,
    widen_covariance,
)
from perfmodel.calibrate.link_model import CostModel, observations_of
from perfmodel.calibrate.parameters import Parameter, Value, Values, round_digits, rounded_rows
from perfmodel.calibrate.profile import (
    Fit,
    Profile,
    Rows,
    Source,
    Undetermined,
    fitted_observations,
)
from perfmodel.errors import refuse_if
from perfmodel.library.lowering.protocols import chunk_bytes
from perfmodel.library.machine import Machine, make_machine
from perfmodel.library.model import CommLibrary
from perfmodel.measure.job import Measurement
from perfmodel.topology.model import Topology

MAX_INTERVAL_FACTOR = 3.0
"""Most that the ends of an interval may be apart from their value, as a factor."""

DROP_ORDER = ("host_step", "rank_rate", "reduce", "launch", "step", "bandwidth")
"""Parameters in the order in which they are dropped where the data do not identify all."""

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
    refuse_if(not measurements, "measurements", "none", "at least one")
    machine = make_machine(topology, library)
    fits = [
        _fit(CostModel(machine, observations), rows)
        for rows in get_args(Rows)
        if (observations := observations_of(measurements, machine, rows, files))
    ]
    refuse_if(
        not fits,
        "measurements",
        "no row that says how a collective did",
        "rows of what 'library' or 'schedule'",
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
        factor = solution.spread[key]
        vague = f"these data leave a factor of {factor:.2g} up and down open"
        dropped[key] = "these data show no sign of it" if factor > 1e3 else vague
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


def _default_value(machine: Machine, key: Parameter) -> str:
    """Value in use where the data do not determine one; as text."""
    arcs, (protocol, _, hop) = machine.topology.arcs, key.where.partition("/")
    if key.name == "bandwidth":
        rates = [r for r, k in zip(arcs.bandwidth_Bps, arcs.kinds, strict=True) if k == key.where]
        return key.format(min(rates)) + ", as the topology says"
    spec = machine.library.protocols[protocol]
    if key.name == "reduce":
        return "no time of its own" if spec.reduce_rate is None else key.format(spec.reduce_rate)
    if key.name in {"rank_rate", "host_step"}:
        return "no limit of its own"
    time_s = spec.launch if key.name == "launch" else getattr(spec.step, hop)
    return key.format(time_s) + ", as the library says"


COLLINEAR_SHARE = 1e-3
"""A parameter is not identifiable if others explain all of its effect but for this share."""

MOST_PIECES = 4
"""Maximum number of rates by size of chunk."""

SUFFICIENT_SCATTER = 0.005
"""Scatter of the logarithm of times below which no further piece is tried."""

FEWEST_PER_PIECE = 3
"""Sizes of chunk that every piece must hold."""

BIC_GAIN = 10.0
"""Very strong evidence for one more piece; Kass and Raftery, JASA 90(430), 1995."""

TRIED_RATE_FACTOR = 1.01
"""Factor on the rate of a piece that shows its effect."""

MOST_FITTED_BREAKPOINTS = 4
"""Breakpoints that are fitted, of those that look best in the linearised problem."""


def separate_host_limits(forward: CostModel, solution: Solution) -> Solution:
    """Add limits of a single rank beside those of its host, if that explains much more."""
    candidates = [
        solve(forward, {**solution.values, **more}) for more in forward.host_limits(solution.values)
    ]
    best = min(candidates, key=lambda candidate: bic(candidate, forward), default=solution)
    better = bic(solution, forward) - bic(best, forward) >= BIC_GAIN
    return solve(forward, best.values) if better else solution


def fit_rate_pieces(forward: CostModel, solution: Solution) -> Solution:
    """Give chunks of different sizes different rates, as long as that explains much more."""
    rates = [key for key in solution.values if key.name == "bandwidth"]
    protocols = {
        lowered.protocol for observation in forward.observations for lowered in observation.lowered
    }
    if len(rates) != 1 or len(protocols) != 1:
        return solution
    kind = rates[0].where
    for _ in range(MOST_PIECES - 1):
        good_enough = solution.scatter < SUFFICIENT_SCATTER
        tried = () if good_enough else _promising_breakpoints(forward, solution, kind)
        candidates = [solve(forward, add_piece(solution.values, kind, at)) for at in tried]
        best = min(candidates, key=lambda candidate: candidate.cost, default=solution)
        best = solve(forward, best.values) if candidates else solution
        if bic(solution, forward) - bic(best, forward) < BIC_GAIN:
            break
        solution = best
    return solution


def bic(solution: Solution, forward: CostModel) -> float:
    """Bayesian information criterion; a breakpoint counts as a parameter beside its rate."""
    count = len(forward.observations)
    added = sum(key.beyond_bytes > 0 for key in solution.values)
    return float(
        count * np.log(max(solution.cost, MIN_SCATTER**2))
        + (len(solution.values) + added) * np.log(count)
    )


def _promising_breakpoints(forward: CostModel, solution: Solution, kind: str) -> list[float]:
    """Breakpoints that explain most with times linearised in the values; bytes."""
    residuals = np.log(forward.measured_s / solution.fitted_s)
    weights = np.sqrt(robust_weights(residuals, max(solution.scatter, 1e-9)))
    gains = []
    for at in breakpoints(forward.observations, solution.values):
        values = add_piece(solution.values, kind, at)
        key = Parameter("bandwidth", kind, at)
        column = np.log(
            forward.times_s(values | {key: values[key] * TRIED_RATE_FACTOR}) / solution.fitted_s
        )
        weighted = np.column_stack([solution.slopes, column]) * weights[:, None]
        step, *_ = np.linalg.lstsq(weighted, residuals * weights, rcond=None)
        gains.append((float(np.sum((residuals * weights - weighted @ step) ** 2)), at))
    return [at for _, at in sorted(gains)[:MOST_FITTED_BREAKPOINTS]]


def breakpoints(observations: Sequence[Observation], values: Values) -> list[float]:
    """Sizes of measured chunks from which a rate may change; bytes."""
    sizes = sorted({round(chunk_bytes(o.lowered[0].schedule)) for o in observations})
    existing = sorted(key.beyond_bytes for key in values if key.name == "bandwidth")

    def fewest(at: float) -> int:
        ends = [0.0, *sorted([edge for edge in (*existing, at) if edge > 0]), float("inf")]
        return min(sum(a < size <= b for size in sizes) for a, b in itertools.pairwise(ends))

    return [at for at in map(float, sizes) if fewest(at) >= FEWEST_PER_PIECE]


def add_piece(values: Values, kind: str, at: float) -> dict[Parameter, float]:
    """Values with one more piece, which starts at the rate of the piece that it divides."""
    below = max(k.beyond_bytes for k in values if k.name == "bandwidth" and k.beyond_bytes < at)
    return {**values, Parameter("bandwidth", kind, at): values[Parameter("bandwidth", kind, below)]}


def select_identifiable(
    forward: CostModel, start: Values
) -> tuple[dict[Parameter, float], dict[Parameter, str]]:
    """Split parameters into identifiable ones and the others, with the reason.

    Where two have the same effect the later one is dropped.
    """
    number = {key: at for at, key in enumerate(start)}
    columns = forward.slopes(start)
    most = max(len(forward.observations) - 2, 0)
    identifiable: dict[Parameter, float] = {}
    dropped: dict[Parameter, str] = {}
    for at, (key, value) in enumerate(start.items()):
        column, chosen = columns[:, at], [number[key] for key in identifiable]
        weights, *_ = np.linalg.lstsq(columns[:, chosen], column, rcond=None)
        rest = column - columns[:, chosen] @ weights
        if np.abs(column).max() < NO_EFFECT:
            dropped[key] = "no measured time depends on it"
        elif np.linalg.norm(rest) < COLLINEAR_SHARE * np.linalg.norm(column):
            sizes = np.abs(weights) * np.linalg.norm(columns[:, chosen], axis=0)
            equal = [
                k for k, size in zip(identifiable, sizes, strict=True) if size > 0.05 * sizes.max()
            ]
            dropped[key] = f"in these data its effect is that of {' and '.join(map(str, equal))}"
        elif len(chosen) >= most:
            dropped[key] = (
                f"{len(forward.observations)} times are too few for more than {most} numbers"
            )
        else:
            identifiable[key] = value
    return identifiable, dropped
