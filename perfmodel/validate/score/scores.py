"""Error statistics of predictions: by band of size, by machine, by mode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.library.corrections import BANDS
from perfmodel.validate.predict.forecast import Mode
from perfmodel.validate.score.points import DataPoint, even_weights, weighted_quantile

MODES: tuple[Mode, ...] = (
    "left out",
    "datasheet",
    "transferred",
    "calibrated",
    "nccl tuner",
    "alpha-beta",
)
LARGE = "256 KiB and up"
BAND_NAMES = {
    "latency": "below 256 KiB",
    "buckets": "256 KiB to 64 MiB",
    "bandwidth": "above 64 MiB",
}


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of some points.

    Parameters
    ----------
    sweeps, points : int
    median_abs_error, p90_abs_error : float
        Of predicted over measured less one; every table weighs the same.
    median_error : float
        With its sign: below zero the prediction is too short.
    median_of_points, p90_of_points : float
        The same with every size of every sweep weighing the same.
    """

    sweeps: int
    points: int
    median_abs_error: float
    p90_abs_error: float
    median_error: float
    median_of_points: float
    p90_of_points: float


def score(points: Sequence[DataPoint]) -> Score | None:
    """Score some points; None if there are none."""
    if not points:
        return None
    errors = np.array([point.error for point in points])
    weights, ones = even_weights(points), np.ones(len(points))
    return Score(
        sweeps=len({point.sweep for point in points}),
        points=len(points),
        median_abs_error=weighted_quantile(np.abs(errors), weights, 0.5),
        p90_abs_error=weighted_quantile(np.abs(errors), weights, 0.9),
        median_error=weighted_quantile(errors, weights, 0.5),
        median_of_points=weighted_quantile(np.abs(errors), ones, 0.5),
        p90_of_points=weighted_quantile(np.abs(errors), ones, 0.9),
    )


def in_band(points: Iterable[DataPoint], band: str) -> list[DataPoint]:
    """Return the points of a band, or of both upper ones (`LARGE`)."""
    return [p for p in points if p.band == band or (band == LARGE and p.band != "latency")]


def by_band(points: Sequence[DataPoint]) -> dict[Mode, dict[str, Score]]:
    """Score the counted points by mode and band."""
    table: dict[Mode, dict[str, Score]] = {}
    for mode in MODES:
        own = [p for p in points if p.mode == mode and p.counted]
        bands = {band: score(in_band(own, band)) for band in (*(b for b, _ in BANDS), LARGE)}
        scored = {
            band: scored_band for band, scored_band in bands.items() if scored_band is not None
        }
        if scored:
            table[mode] = scored
    return table


def by_machine(points: Sequence[DataPoint]) -> dict[str, dict[Mode, dict[str, Score]]]:
    """Score the counted points by kind of machine, mode, and below or from 256 KiB on."""
    table: dict[str, dict[Mode, dict[str, Score]]] = {}
    for machine in sorted({point.machine for point in points}):
        for mode in MODES:
            own = [p for p in points if p.machine == machine and p.mode == mode and p.counted]
            for band in ("latency", LARGE):
                scored = score(in_band(own, band))
                if scored is not None:
                    table.setdefault(machine, {}).setdefault(mode, {})[band] = scored
    return table


def by_sweep(points: Sequence[DataPoint]) -> dict[str, dict[Mode, dict[str, Score]]]:
    """Score each sweep by mode and band, counted or not."""
    table: dict[str, dict[Mode, dict[str, Score]]] = {}
    groups: dict[tuple[str, Mode], list[DataPoint]] = {}
    for point in points:
        groups.setdefault((point.sweep, point.mode), []).append(point)
    for (sweep, mode), own in groups.items():
        for band in (*(b for b, _ in BANDS), LARGE, "all"):
            scored = score(own if band == "all" else in_band(own, band))
            if scored is not None:
                table.setdefault(sweep, {}).setdefault(mode, {})[band] = scored
    return table


def on_common(points: Sequence[DataPoint]) -> dict[Mode, dict[str, Score]]:
    """Score every mode on the sweeps that the mode with the fewest covers, for a fair comparison.

    The modes are those that any counted sweep has.
    """
    counted = [p for p in points if p.counted]
    modes = [mode for mode in MODES if any(p.mode == mode for p in counted)]
    if not modes:
        return {}
    common = set.intersection(*({p.sweep for p in counted if p.mode == mode} for mode in modes))
    return by_band([p for p in counted if p.sweep in common])
