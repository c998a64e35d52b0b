"""Selection of models with more parameters than one alpha and one beta, by BIC."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from perfmodel.calibrate.estimation import NO_EFFECT, Observation
from perfmodel.calibrate.link_costs.forward_model import CostModel
from perfmodel.calibrate.link_costs.least_squares import (
    MIN_SCATTER,
    Solution,
    robust_weights,
    solve,
)
from perfmodel.calibrate.parameters import Parameter, Values
from perfmodel.library.lowering.protocols import chunk_bytes

COLLINEAR = 1e-3
"""A parameter is not identifiable if others explain all of its effect but for this share."""

MOST_PIECES = 4
"""Maximum number of rates by size of chunk."""

SUFFICIENT_SCATTER = 0.005
"""Scatter of the logarithm of times below which no further piece is tried."""

FEWEST_PER_PIECE = 3
"""Sizes of chunk that every piece must hold."""

BIC_GAIN = 10.0
"""Very strong evidence for one more piece; Kass and Raftery, JASA 90(430), 1995."""

LARGER = 1.01
"""Factor on the rate of a piece that shows its effect."""

CANDIDATES = 4
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
        if solution.scatter < SUFFICIENT_SCATTER:
            break
        candidates = [
            solve(forward, add_piece(solution.values, kind, at))
            for at in _promising_breakpoints(forward, solution, kind)
        ]
        if not candidates:
            break
        best = solve(forward, min(candidates, key=lambda candidate: candidate.cost).values)
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
        column = np.log(forward.times_s(values | {key: values[key] * LARGER}) / solution.fitted_s)
        weighted = np.column_stack([solution.slopes, column]) * weights[:, None]
        step, *_ = np.linalg.lstsq(weighted, residuals * weights, rcond=None)
        gains.append((float(np.sum((residuals * weights - weighted @ step) ** 2)), at))
    return [at for _, at in sorted(gains)[:CANDIDATES]]


def breakpoints(observations: Sequence[Observation], values: Values) -> list[float]:
    """Sizes of measured chunks from which a rate may change; bytes."""
    sizes = sorted({round(chunk_bytes(o.lowered[0].schedule)) for o in observations})
    existing = sorted(key.beyond_bytes for key in values if key.name == "bandwidth")
    allowed = []
    for at in map(float, sizes):
        ends = [0.0, *sorted([edge for edge in (*existing, at) if edge > 0]), float("inf")]
        counts = [sum(a < size <= b for size in sizes) for a, b in itertools.pairwise(ends)]
        if min(counts) >= FEWEST_PER_PIECE:
            allowed.append(at)
    return allowed


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
        elif np.linalg.norm(rest) < COLLINEAR * np.linalg.norm(column):
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
