"""What failures cost a training that saves checkpoints: Young's and Daly's formulas.

A synchronous job stops when any of its nodes fails. Failures come as a Poisson process; training
goes on from the last checkpoint after a restart, in which it may fail again.

Sources: J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9),
1974; J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps,
Future Generation Computer Systems 22(3), 2006.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HOPELESS = 100.0
"""A training that would take more than so many times its work is said never to finish."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How a job on some nodes fails and recovers; times in seconds.

    Parameters
    ----------
    mtbf_s : float
        Mean time between failures of the whole job.
    write_s : float
        Training stands still for so long while a checkpoint is written.
    restart_s : float
        From a failure to the first new step.
    interval_s : float
        Training time between checkpoints.
    """

    mtbf_s: float
    write_s: float
    restart_s: float
    interval_s: float


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
    """Expected wall time of a training with failures; seconds, infinite if beyond counting.

    Daly's M e^(R/M) (e^((t + d)/M) - 1) for each interval t and the checkpoint d after it. The last
    interval is what is left of the work, so that the sum is exact where `interval_s` does not
    divide it; a checkpoint after it holds the result.

    Parameters
    ----------
    work_s : float
        Training time without failures and checkpoints, above zero; seconds.
    upkeep : Upkeep
    """
    whole, rest = _pieces(work_s, upkeep.interval_s)
    mtbf_s = upkeep.mtbf_s
    try:
        again = mtbf_s * math.exp(upkeep.restart_s / mtbf_s)
        full = math.expm1((upkeep.interval_s + upkeep.write_s) / mtbf_s) if whole else 0.0
        last = math.expm1((rest + upkeep.write_s) / mtbf_s) if rest else 0.0
        return again * (whole * full + last)
    except OverflowError:
        return math.inf


def _pieces(work_s: float, interval_s: float) -> tuple[int, float]:
    """Whole intervals in the work, and what is left; a sliver is rounding and left out."""
    whole = math.floor(work_s / interval_s + 1e-9)
    rest = work_s - whole * interval_s
    return whole, rest if rest > 1e-9 * interval_s else 0.0


def in_whole_steps(interval_s: float, step_s: float) -> tuple[int, float]:
    """Steps between checkpoints, at least one, and the time that they take; seconds."""
    steps = max(1, round(interval_s / step_s))
    return steps, steps * step_s
