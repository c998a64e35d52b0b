"""A training that fails, restarts and does its lost work again, simulated many times.

The formula of `perfmodel.plan.failures` gives the mean of the wall time; this gives its spread, and
is the check of the formula.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from perfmodel.plan.failures import Upkeep

MOST_FAILURES = 20_000
"""Of one training, on average: a second for all of a row. Beyond it luck evens out, and nothing is
simulated."""

INSIDE = (10.0, 90.0)
"""Percentiles between which eight of ten trainings end."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """Wall times of simulated trainings; seconds.

    Parameters
    ----------
    runs : int
    mean_s, error_s : float
        Mean, and its standard error.
    low_s, high_s : float
        Eight of ten trainings end between them.
    failures : float
        Failures per training, on average.
    """

    runs: int
    mean_s: float
    error_s: float
    low_s: float
    high_s: float
    failures: float


def simulate_walls(
    work_s: float, upkeep: Upkeep, *, runs: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Simulate trainings, each with failures of its own, from failure to failure.

    Parameters
    ----------
    work_s : float
        Training time without failures and checkpoints; seconds.
    upkeep : Upkeep
    runs, seed : int

    Returns
    -------
    walls_s : ndarray of float, shape (runs,)
        Wall times; seconds.
    failures : ndarray of int, shape (runs,)
    """
    draws = np.random.default_rng(seed)
    walls_s, saved_s = np.zeros(runs), np.zeros(runs)
    failures = np.zeros(runs, dtype=np.int64)
    going, restart_s = np.arange(runs), 0.0
    while going.size:
        lasts_s = draws.exponential(upkeep.mtbf_s, runs)[going]
        left_s = work_s - saved_s[going]
        pieces = np.maximum(1, np.ceil(left_s / upkeep.interval_s - 1e-9))
        needed_s = restart_s + left_s + pieces * upkeep.write_s
        done = lasts_s >= needed_s
        whole = np.floor((lasts_s - restart_s) / (upkeep.interval_s + upkeep.write_s))
        walls_s[going] += np.where(done, needed_s, lasts_s)
        saved_s[going] += np.clip(whole, 0, pieces - 1) * upkeep.interval_s
        failures[going] += ~done
        going, restart_s = going[~done], upkeep.restart_s
    return walls_s, failures


def summed_up(walls_s: NDArray[np.float64], failures: NDArray[np.int64]) -> Simulated:
    """Mean and spread of simulated trainings."""
    low_s, high_s = np.percentile(walls_s, INSIDE)
    count = len(walls_s)
    return Simulated(
        runs=count,
        mean_s=float(walls_s.mean()),
        error_s=float(walls_s.std(ddof=1) / math.sqrt(count)) if count > 1 else 0.0,
        low_s=float(low_s),
        high_s=float(high_s),
        failures=float(failures.mean()),
    )


def with_luck(walls_s: NDArray[np.float64], low: float, high: float) -> tuple[float, float]:
    """Eight of ten trainings end so, if the step time is not known exactly either.

    Parameters
    ----------
    walls_s : ndarray of float, shape (runs,)
        At the likely step time; seconds.
    low, high : float
        Ends of 80 % of the step time over the likely one. Between and beyond them its logarithm is
        normal, with a width of its own on either side, and has nothing to do with luck.
    """
    count = len(walls_s)
    normal = NormalDist()
    end = normal.inv_cdf(INSIDE[1] / 100)
    sigmas = np.array([normal.inv_cdf((at + 0.5) / count) / end for at in range(count)])
    factors = np.exp(np.where(sigmas < 0, -math.log(low), math.log(high)) * sigmas)
    low_s, high_s = np.percentile(walls_s * factors, INSIDE, method="hazen")
    return float(low_s), float(high_s)
