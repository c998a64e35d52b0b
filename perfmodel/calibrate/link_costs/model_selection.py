"""Selection of models with more parameters than one alpha and one beta, by BIC."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from perfmodel.calibrate.link_costs.forward_model import ForwardModel, Observation
from perfmodel.calibrate.link_costs.least_squares import Solution, slopes, solve
from perfmodel.calibrate.profile import Parameter

MOST_PIECES = 4
"""Maximum number of rates by size of chunk."""

SUFFICIENT_SCATTER = 0.005
"""Scatter of the logarithm of times below which no further piece is tried."""

FEWEST_PER_PIECE = 3
"""Sizes of chunk that every piece must hold."""

BIC_GAIN = 10.0
"""Very strong evidence for one more piece; Kass and Raftery, JASA 90(430), 1995."""

CANDIDATES = 4
"""Breakpoints that are fitted, of those that look best in the linearised problem."""


def separate_host_limits(forward: ForwardModel, solution: Solution) -> Solution:
    """Add limits of a single rank beside those of its host, if that explains much more."""
    candidates = [
        solve(forward, {**solution.values, **more}, passes=1)
        for more in forward.host_limits(solution.values)
    ]
    best = min(candidates, key=lambda candidate: bic(candidate, forward), default=solution)
    better = bic(solution, forward) - bic(best, forward) >= BIC_GAIN
    return solve(forward, best.values) if better else solution


def fit_rate_pieces(forward: ForwardModel, solution: Solution) -> Solution:
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
            solve(forward, add_piece(solution.values, kind, at), passes=1)
            for at in _promising_breakpoints(forward, solution, kind)
        ]
        if not candidates:
            break
        best = solve(forward, min(candidates, key=lambda candidate: candidate.cost).values)
        if bic(solution, forward) - bic(best, forward) < BIC_GAIN:
            break
        solution = best
    return solution


def bic(solution: Solution, forward: ForwardModel) -> float:
    """Bayesian information criterion; a breakpoint counts as a parameter beside its rate."""
    count = len(forward.observations)
    added = sum(key.beyond_bytes > 0 for key in solution.values)
    return float(
        count * np.log(max(solution.cost, 1e-18)) + (len(solution.values) + added) * np.log(count)
    )


def _promising_breakpoints(forward: ForwardModel, solution: Solution, kind: str) -> list[float]:
    """Breakpoints that explain most with times linearised in the values; bytes."""
    residuals = np.log(forward.measured_s) - np.log(forward.times_s(solution.values))
    scale = max(1.5 * solution.scatter, 1e-9)
    weights = (1.0 + (residuals / scale) ** 2) ** -0.25
    columns = slopes(forward, solution.values)
    gains = []
    for at in breakpoints(forward.observations, solution.values):
        values = add_piece(solution.values, kind, at)
        key = Parameter("bandwidth", kind, at)
        extended = np.column_stack([columns, slopes(forward, values, only=key)])
        weighted = extended * weights[:, None]
        step, *_ = np.linalg.lstsq(weighted, residuals * weights, rcond=None)
        gains.append((float(np.sum((residuals * weights - weighted @ step) ** 2)), at))
    return [at for _, at in sorted(gains)[:CANDIDATES]]


def breakpoints(
    observations: Sequence[Observation], values: Mapping[Parameter, float]
) -> list[float]:
    """Sizes of measured chunks from which a rate may change; bytes."""
    sizes = sorted({round(observation.chunk_bytes) for observation in observations})
    existing = sorted(key.beyond_bytes for key in values if key.name == "bandwidth")
    allowed = []
    for at in map(float, sizes):
        edges = [edge for edge in (*existing, at) if edge > 0]
        ends = [0.0, *sorted(edges), float("inf")]
        counts = [sum(a < size <= b for size in sizes) for a, b in itertools.pairwise(ends)]
        if min(counts) >= FEWEST_PER_PIECE:
            allowed.append(at)
    return allowed


def add_piece(values: Mapping[Parameter, float], kind: str, at: float) -> dict[Parameter, float]:
    """Values with one more piece, which starts at the rate of the piece that it divides."""
    below = max(k.beyond_bytes for k in values if k.name == "bandwidth" and k.beyond_bytes < at)
    rate = values[Parameter("bandwidth", kind, below)]
    return {**values, Parameter("bandwidth", kind, at): rate}
