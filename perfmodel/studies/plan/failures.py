"""Wall time of a training with failures and checkpoints: Young's and Daly's formulas, Monte Carlo.

A synchronous job stops when any of its nodes fails. Failures come as a Poisson process; training
goes on from the last checkpoint after a restart, in which it may fail again. The formulas give the
mean of the wall time; simulated trainings give its spread, and check the formulas.

Sources: J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9),
1974; J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps,
Future Generation Computer Systems 22(3), 2006.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, round_bits

HOPELESS = 100.0
"""Wall time over work beyond which a training counts as never finishing."""


MOST_FAILURES = 20_000
"""Most failures of one training, on average, that are simulated (a second for all runs). Beyond it
the spread of the wall time is negligible."""


INSIDE = (10.0, 90.0)
"""Percentiles of the 80 % interval."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How a job on some nodes fails and recovers; times in seconds.

    `mtbf_s`: mean time between failures of the whole job.
    `write_s`: time to write a checkpoint, in which training stands still.
    `restart_s`: from a failure to the first new step.
    `interval_s`: training time between checkpoints.
    """

    mtbf_s: float
    write_s: float
    restart_s: float
    interval_s: float


@dataclass(frozen=True, slots=True)
class Simulated:
    """Wall times of simulated trainings; seconds.

    `mean_s`, `error_s`: mean, and its standard error.
    `low_s`, `high_s`: 80 % of trainings end between them.
    `failures`: failures per training, on average.
    """

    runs: int
    mean_s: float
    error_s: float
    low_s: float
    high_s: float
    failures: float


def job_mtbf_s(mtbf_per_node_s: float, nodes: int) -> float:
    """Mean time between failures of a job that any of its nodes stops; seconds."""
    return mtbf_per_node_s / nodes


def young_s(write_s: float, mtbf_s: float) -> float:
    """Young's checkpoint interval, sqrt(2 write mtbf); seconds of training.

    Examples
    --------
    >>> young_s(300.0, 86400.0) / 60
    120.0
    """
    return math.sqrt(2 * write_s * mtbf_s)


def daly_s(write_s: float, mtbf_s: float) -> float:
    """Daly's checkpoint interval; seconds of training.

    sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d with d the time to write and M the mean
    time between failures, and M where d is 2M or more.

    Examples
    --------
    >>> round(daly_s(300.0, 86400.0) / 60)
    117
    """
    if write_s >= 2 * mtbf_s:
        return mtbf_s
    part = write_s / (2 * mtbf_s)
    return young_s(write_s, mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9) - write_s


def expected_wall_s(work_s: float, upkeep: Upkeep) -> float:
    """Return the expected wall time of a training with failures; seconds, infinite on overflow.

    Daly's M e^(R/M) (e^((t + d)/M) - 1) for each interval t and the checkpoint d after it. The last
    interval is what is left of the work, so that the sum is exact where `interval_s` does not
    divide it; a checkpoint after it holds the result.

    `work_s`: training time without failures and checkpoints, above zero; seconds.
    """
    whole, rest = _split_work(work_s, upkeep.interval_s)
    mtbf_s = upkeep.mtbf_s
    try:
        again = mtbf_s * math.exp(upkeep.restart_s / mtbf_s)
        full = math.expm1((upkeep.interval_s + upkeep.write_s) / mtbf_s) if whole else 0.0
        last = math.expm1((rest + upkeep.write_s) / mtbf_s) if rest else 0.0
        return again * (whole * full + last)
    except OverflowError:
        return math.inf


def _split_work(work_s: float, interval_s: float) -> tuple[int, float]:
    """Return whole intervals in the work, and the rest; a rest of 1e-9 is taken for rounding."""
    whole = math.floor(work_s / interval_s + 1e-9)
    rest = work_s - whole * interval_s
    return whole, rest if rest > 1e-9 * interval_s else 0.0


def round_to_steps(interval_s: float, step_s: float) -> tuple[int, float]:
    """Return steps between checkpoints, at least one, and their time; seconds."""
    steps = max(1, round(interval_s / step_s))
    return steps, steps * step_s


def simulate_walls(
    work_s: float, upkeep: Upkeep, *, runs: int, seed: int
) -> tuple[FloatArray, IntArray]:
    """Simulate trainings, each with failures of its own, from failure to failure.

    `work_s`: training time without failures and checkpoints; seconds.
    Returns wall times in seconds and numbers of failures, each of shape (runs,).
    """
    draws = np.random.default_rng(seed)
    walls_s, saved_s = np.zeros(runs), np.zeros(runs)
    failures = np.zeros(runs, dtype=np.int64)
    going, restart_s = np.arange(runs), 0.0
    while going.size:
        lasts_s = round_bits(draws.exponential(upkeep.mtbf_s, runs))[going]
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


def summarise(walls_s: FloatArray, failures: IntArray) -> Simulated:
    """Return mean and spread of simulated trainings."""
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


def widen_by_luck(walls_s: FloatArray, low: float, high: float) -> tuple[float, float]:
    """Return the 80 % interval of wall times, the uncertainty of the step time included.

    `walls_s`: at the likely step time; seconds; shape (runs,).
    `low`, `high`: ends of the 80 % interval of the step time over the likely one. Its logarithm is
        taken as normal, with a width of its own on either side, and as independent of failures.
    """
    count = len(walls_s)
    normal = NormalDist()
    end = normal.inv_cdf(INSIDE[1] / 100)
    sigmas = np.array([normal.inv_cdf((at + 0.5) / count) / end for at in range(count)])
    logs = np.where(sigmas < 0, -math.log(low), math.log(high)) * sigmas
    factors = round_bits(np.exp(logs))
    low_s, high_s = np.percentile(walls_s * factors, INSIDE, method="hazen")
    return float(low_s), float(high_s)
