"""Error statistics of predictions: by band of size, by machine, by mode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from perfmodel.library.corrections import BANDS, Band, band_of, kind_of_machine
from perfmodel.memo import grouped
from perfmodel.validate.forecast import Interval, Mode, SweepPrediction

MODES: tuple[Mode, ...] = get_args(Mode)
LARGE = "256 KiB and up"
BAND_NAMES = {
    "latency": "below 256 KiB",
    "buckets": "256 KiB to 64 MiB",
    "bandwidth": "above 64 MiB",
}


@dataclass(frozen=True, slots=True)
class DataPoint:
    """One size of one sweep, predicted in one mode; seconds.

    `table`: sweeps of one table weigh together as much as a sweep alone.
    """

    sweep: str
    table: str
    machine: str
    op: str
    mode: Mode
    nbytes: int
    measured_s: float
    predicted_s: float
    interval_s: Interval
    counted: bool

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1.0

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the interval of the prediction, if it has one."""
        return (
            self.interval_s is not None
            and self.interval_s[0] <= self.measured_s <= self.interval_s[1]
        )

    @property
    def band(self) -> Band:
        """Band of the size."""
        return band_of(self.nbytes)


def points_of(predicted: Iterable[SweepPrediction]) -> list[DataPoint]:
    """List all points of all sweeps and modes."""
    return [
        DataPoint(
            sweep=prediction.sweep.id,
            table=prediction.sweep.table or prediction.sweep.id,
            machine=kind_of_machine(prediction.matched.topology),
            op=prediction.matched.op,
            mode=mode,
            nbytes=row.nbytes,
            measured_s=row.time_s,
            predicted_s=times.time_s[at],
            interval_s=times.interval_s[at] if times.interval_s else None,
            counted=prediction.counted,
        )
        for prediction in predicted
        for mode, times in prediction.forecast.times.items()
        for at, row in enumerate(prediction.sweep.rows)
    ]


def even_weights(points: Sequence[DataPoint]) -> NDArray[np.float64]:
    """Weights that sum to one in every table, however many sweeps and sizes it has."""
    names, at, counts = np.unique(
        [point.table for point in points], return_inverse=True, return_counts=True
    )
    return 1.0 / counts[at] if len(names) else np.zeros(0)


def weighted_quantile(
    values: NDArray[np.float64], weights: NDArray[np.float64], share: float
) -> float:
    """Smallest value with at least that share of the weight at or below it.

    Examples
    --------
    >>> weighted_quantile(np.array([1.0, 2.0, 3.0]), np.ones(3), 0.5)
    2.0
    """
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    at = int(np.searchsorted(reached, share * reached[-1] * (1 - 1e-12)))
    return float(values[order][min(at, len(values) - 1)])


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
    counted = [point for point in points if point.counted]
    table = {mode: _scores([p for p in counted if p.mode == mode]) for mode in MODES}
    return {mode: scores for mode, scores in table.items() if scores}


def _scores(points: Sequence[DataPoint]) -> dict[str, Score]:
    """Score the bands in which there are points."""
    bands = {band: score(in_band(points, band)) for band in (*(b for b, _ in BANDS), LARGE)}
    return {band: scored for band, scored in bands.items() if scored is not None}


def by_sweep(points: Sequence[DataPoint]) -> dict[str, dict[Mode, dict[str, Score]]]:
    """Score each sweep by mode and band, counted or not."""
    groups = grouped(((point.sweep, point.mode), point) for point in points)
    table: dict[str, dict[Mode, dict[str, Score]]] = {}
    for (sweep, mode), own in groups.items():
        every = score(own)
        assert every is not None
        table.setdefault(sweep, {})[mode] = _scores(own) | {"all": every}
    return table
