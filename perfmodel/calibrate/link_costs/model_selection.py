"""Models with more numbers than one pair of alpha and beta, where the data ask for them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from perfmodel.calibrate.link_costs.forward_model import ForwardModel, Observation
from perfmodel.calibrate.link_costs.least_squares import Solution, slopes, solve
from perfmodel.calibrate.profile import Parameter

MOST_PIECES = 4
"""Different rates by size of chunk that a fit may use."""

SUFFICIENT_SCATTER = 0.005
"""Scatter of the logarithm of times below which no further piece is looked for."""

FEWEST_PER_PIECE = 3
"""Sizes of chunk that every piece must hold."""

BIC_GAIN = 10.0
"""Very strong evidence for one more piece; Kass and Raftery, JASA 90(430), 1995."""

CANDIDATES = 4
"""Breakpoints that are tried out of those that look best while nothing else moves."""


def separate_host_limits(forward: ForwardModel, solution: Solution) -> Solution:
    """Tell what a rank does alone from what all ranks of a host do, if that explains much more."""
    longer = [
        solve(forward, {**solution.values, **more}, passes=1)
        for more in forward.shared(solution.values)
    ]
    best = min(longer, key=lambda one: bic(one, forward), default=solution)
    better = bic(solution, forward) - bic(best, forward) >= BIC_GAIN
    return solve(forward, best.values) if better else solution


def fit_rate_pieces(forward: ForwardModel, solution: Solution) -> Solution:
    """Give chunks of different sizes different rates, as long as that explains much more."""
    rates = [key for key in solution.values if key.name == "bandwidth"]
    protocols = {way.protocol for case in forward.cases for way in case.ways}
    if len(rates) != 1 or len(protocols) != 1:
        return solution
    kind = rates[0].where
    for _ in range(MOST_PIECES - 1):
        if solution.scatter < SUFFICIENT_SCATTER:
            break
        longer = [
            solve(forward, add_piece(solution.values, kind, at), passes=1)
            for at in _promising_breakpoints(forward, solution, kind)
        ]
        if not longer:
            break
        best = solve(forward, min(longer, key=lambda one: one.cost).values)
        if bic(solution, forward) - bic(best, forward) < BIC_GAIN:
            break
        solution = best
    return solution


def bic(solution: Solution, forward: ForwardModel) -> float:
    """Bayesian information criterion; a breakpoint counts as a number beside its rate."""
    count = len(forward.cases)
    breakpoints = sum(key.beyond_bytes > 0 for key in solution.values)
    return float(
        count * np.log(max(solution.cost, 1e-18))
        + (len(solution.values) + breakpoints) * np.log(count)
    )


def _promising_breakpoints(forward: ForwardModel, solution: Solution, kind: str) -> list[float]:
    """Breakpoints that explain most while times are as good as linear in the values; bytes."""
    left = np.log(forward.measured_s) - np.log(forward.times_s(solution.values))
    scale = max(1.5 * solution.scatter, 1e-9)
    weights = (1.0 + (left / scale) ** 2) ** -0.25
    columns = slopes(forward, solution.values)
    gains = []
    for at in breakpoints(forward.cases, solution.values):
        values = add_piece(solution.values, kind, at)
        key = Parameter("bandwidth", kind, at)
        more = np.column_stack([columns, slopes(forward, values, only=key)])
        weighted = more * weights[:, None]
        moved, *_ = np.linalg.lstsq(weighted, left * weights, rcond=None)
        gains.append((float(np.sum((left * weights - weighted @ moved) ** 2)), at))
    return [at for _, at in sorted(gains)[:CANDIDATES]]


def breakpoints(cases: Sequence[Observation], values: Mapping[Parameter, float]) -> list[float]:
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


def add_piece(values: Mapping[Parameter, float], kind: str, at: float) -> dict[Parameter, float]:
    """Values with one more piece, which starts from the rate that it had."""
    below = max(k.beyond_bytes for k in values if k.name == "bandwidth" and k.beyond_bytes < at)
    rate = values[Parameter("bandwidth", kind, below)]
    return {**values, Parameter("bandwidth", kind, at): rate}
