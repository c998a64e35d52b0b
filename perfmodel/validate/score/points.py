"""Predicted and measured times by sweep, size and mode; quantiles with equal weight per sweep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.library.corrections import Band, band_of, kind_of_machine
from perfmodel.validate.predict.forecast import Interval, Mode, SweepPrediction


@dataclass(frozen=True, slots=True)
class DataPoint:
    """One size of one sweep, predicted in one mode; seconds."""

    sweep: str
    table: str
    """Sweeps of one table weigh together as much as a sweep alone."""
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
        for mode, times in prediction.times.items()
        for at, row in enumerate(prediction.sweep.rows)
    ]


def even_weights(points: Sequence[DataPoint]) -> NDArray[np.float64]:
    """Weights that sum to one in every table, however many sweeps and sizes it has."""
    names, at, counts = np.unique(
        [point.table for point in points], return_inverse=True, return_counts=True
    )
    weights: NDArray[np.float64] = 1.0 / counts[at] if len(names) else np.zeros(0)
    return weights


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
