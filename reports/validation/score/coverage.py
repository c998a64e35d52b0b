"""Width of intervals for datasheet predictions, and how often they hold the measured time.

Datasheet mode: conformal quantiles of ln(measured / predicted) over recorded sweeps, predicted with
constants that were fitted without their family of machines. For coverage, each sweep's interval is
taken without its table (a kind seen in several tables), or without all of its kind (a new kind), so
that no interval rests on the data that it is judged by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.library.corrections import (
    BANDS,
    SEVERAL_SWEEPS,
    Familiarity,
    Spread,
)
from perfmodel.validate.forecast import Mode
from perfmodel.validate.scores import DataPoint, even_weights, weighted_quantile

PROBABILITY = 0.8
RESAMPLES = 2000
_NARROWEST = 0.01
"""An interval reaches at least this far on both sides of the prediction (natural logarithm)."""

Limits = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Coverage:
    """How often measured times lie inside 80 % intervals.

    Parameters
    ----------
    sweeps, points : int
    share : float
        Every table weighs the same.
    low, high : float
        95 % confidence interval of the share, from drawing whole tables with replacement; of a
        single one, which says nothing about others, all that is possible.
    """

    sweeps: int
    points: int
    share: float
    low: float
    high: float


def coverage(points: Sequence[DataPoint]) -> Coverage | None:
    """Coverage of the points that have an interval; None if none has."""
    own = [p for p in points if p.interval_s is not None]
    if not own:
        return None
    inside: dict[str, list[bool]] = {}
    for p in own:
        inside.setdefault(p.table, []).append(p.inside)
    shares = np.array([np.mean(values) for values in inside.values()])
    draws = np.random.default_rng(0).integers(len(shares), size=(RESAMPLES, len(shares)))
    drawn = shares[draws].mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(shares) > 1 else (0.0, 1.0)
    return Coverage(
        len({p.sweep for p in own}), len(own), float(shares.mean()), float(low), float(high)
    )


# ---------------------------------------------------------------- how wide


def limits(points: Sequence[DataPoint]) -> Limits | None:
    """Limits of ln(measured / predicted) that hold 80 %, corrected for the few sweeps behind them.

    Conformal prediction takes of n units the share (n + 1) / n (1 - alpha) instead of 1 - alpha.
    Sizes of one table are neither one unit nor independent: a tenth of that correction is made for
    n tables. Half of it covers 86 % instead of 80 % (53 tables), none of it 79 %.
    """
    if not points:
        return None
    sweeps = len({p.table for p in points})
    tail = max(0.0, 1 - (sweeps + 0.1) / sweeps * (1 + PROBABILITY) / 2)
    logs = np.array([math.log(p.measured_s / p.predicted_s) for p in points])
    weights = even_weights(points)
    low = weighted_quantile(logs, weights, tail)
    high = -weighted_quantile(-logs, weights, tail)
    return min(low, -_NARROWEST), max(high, _NARROWEST)


def _kinds(points: Sequence[DataPoint]) -> dict[str, set[str]]:
    """Tables by kind of machine and collective."""
    kinds: dict[str, set[str]] = {}
    for p in points:
        kinds.setdefault(f"{p.machine}, {p.op}", set()).add(p.table)
    return kinds


def _pools(points: Sequence[DataPoint]) -> dict[Familiarity, list[DataPoint]]:
    """Residuals for each familiarity; the less familiar, the more kinds they span."""
    kinds = _kinds(points)
    well = {kind for kind, sweeps in kinds.items() if len(sweeps) >= SEVERAL_SWEEPS}
    several = [p for p in points if f"{p.machine}, {p.op}" in well]
    few = [p for p in points if f"{p.machine}, {p.op}" not in well]
    return {"several": several, "few": few or several, "new": few or several}


def spread_of(points: Sequence[DataPoint], source: str) -> Spread:
    """Make the table of `perfmodel.library.corrections` from the counted points."""
    own = [p for p in points if p.mode == judged_mode(points) and p.counted]
    factors: dict[Familiarity, dict[str, Limits]] = {}
    for familiarity, pool in _pools(own).items():
        for band, _ in BANDS:
            low, high = _limits(pool, own, band, familiarity)
            factors.setdefault(familiarity, {})[band] = (
                round(math.exp(low), 3),
                round(math.exp(high), 3),
            )
    sweep_counts = {kind: len(sweeps) for kind, sweeps in sorted(_kinds(own).items())}
    return Spread.model_validate(
        {"source": source, "probability": PROBABILITY, "factors": factors, "seen": sweep_counts}
    )


def _limits(
    pool: Sequence[DataPoint], everything: Sequence[DataPoint], band: str, familiarity: Familiarity
) -> Limits:
    """Limits of a band; wider, and to both sides, for a kind of machine never seen."""
    band_limits = limits([p for p in pool if p.band == band])
    band_limits = band_limits or limits([p for p in everything if p.band == band])
    band_limits = band_limits or limits(everything) or (-1.0, 1.0)
    if familiarity != "new":
        return band_limits
    low, high = NEW * band_limits[0], NEW * band_limits[1]
    return min(low, -high / 2), max(high, -low / 2)


NEW = 1.1
"""Assumption: of a kind of machine of which nothing was recorded a prediction is off by a tenth
more than of one that was recorded once or twice, and at least half as far to the better side."""


def judged_mode(points: Sequence[DataPoint]) -> Mode:
    """Mode whose residuals intervals rest on: left out, where sweeps were fitted to."""
    return "left out" if any(p.mode == "left out" for p in points) else "datasheet"


def judged(points: Sequence[DataPoint]) -> list[DataPoint]:
    """Counted points, each with an interval that was made without its own table.

    A sweep whose kind is in no other table gets the interval of a new kind.
    """
    own = [p for p in points if p.mode == judged_mode(points) and p.counted]
    judged_points: list[DataPoint] = []
    for table in dict.fromkeys(p.table for p in own):
        others = [p for p in own if p.table != table]
        if not others:
            continue
        limits_of: dict[str, Mapping[str, Limits]] = {}
        for p in own:
            if p.table != table:
                continue
            if p.op not in limits_of:
                limits_of[p.op] = _table(others, p)
            low, high = limits_of[p.op][p.band]
            interval = (p.predicted_s * math.exp(low), p.predicted_s * math.exp(high))
            judged_points.append(replace(p, interval_s=interval))
    return judged_points


def _table(others: Sequence[DataPoint], point: DataPoint) -> Mapping[str, Limits]:
    familiarity = familiar(_kinds(others), point)
    pool = _pools(others)[familiarity]
    return {band: _limits(pool, others, band, familiarity) for band, _ in BANDS}


def familiar(kinds: Mapping[str, set[str]], point: DataPoint) -> Familiarity:
    """How many other sweeps are of the machine of a point."""
    if len(kinds.get(f"{point.machine}, {point.op}", ())) >= SEVERAL_SWEEPS:
        return "several"
    return "few" if any(kind.startswith(f"{point.machine}, ") for kind in kinds) else "new"
