"""How much longer the slowest of several GPUs of one model computes than one of them does.

GPUs of one model differ in speed, in what a chip needs of its power limit and in how it is cooled.
A synchronous step waits for the slowest. With speeds that are independent draws from a normal
distribution it is behind the mean by its standard deviation times what the largest of N standard
normal numbers is expected to be: 0 for 1, 0.56 for 2, 1.42 for 8, 2.07 for 32, 3.2 for 1,000.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from perfmodel.arrays import FloatArray, round_bits
from perfmodel.topology.model import Gpu
from perfmodel.workload.compute_spread import gpu_speeds

FARTHEST, STEP = 8.0, 0.02
"""Range of the integral, in standard deviations, and its step: exact to 1e-12 to a billion GPUs."""


def spread_of(gpu: Gpu, stated: float | None = None) -> float:
    """Standard deviation of the speeds of GPUs of one model, over their mean.

    `stated`: instead of the usual one. Processes on CPUs have none: they share their machine, and
    their times are measured on it.
    """
    if stated is not None:
        return stated
    return 0.0 if gpu.generation == "cpu" else gpu_speeds()


def slowest_factor(ranks: int, spread: float) -> float:
    """Time of the slowest of `ranks` GPUs over the mean of all, as is to be expected.

    Examples
    --------
    >>> round(slowest_factor(8, 0.01), 5)
    1.01424
    """
    return 1.0 + spread * largest_of(ranks)


def slowest_factors(ranks: int, spread: float) -> tuple[float, float]:
    """Low and high end, 80 %, of the time of the slowest of `ranks` GPUs over the mean of all."""
    normal = NormalDist()
    low, high = (normal.inv_cdf(share ** (1 / ranks)) for share in (0.1, 0.9))
    return 1.0 + spread * low, 1.0 + spread * high


@lru_cache(maxsize=1024)
def largest_of(count: int) -> float:
    """Expectation of the largest of `count` independent standard normal numbers.

    That of a variable with the distribution function F is the integral of 1 - F above zero less
    that of F below; F is the normal one to the power of `count`.
    """
    if count == 1:
        return 0.0
    grid, below = _normal()
    largest = below**count
    integrand = np.where(grid > 0, 1.0 - largest, -largest)
    integrand[grid == 0] = 0.5 - largest[grid == 0]
    return float(round_bits(np.array(integrand.sum() * STEP)))


@lru_cache(maxsize=1)
def _normal() -> tuple[FloatArray, FloatArray]:
    """Points of the integral, and the normal distribution function at each."""
    grid = np.arange(-FARTHEST, FARTHEST + STEP / 2, STEP)
    grid[np.abs(grid) < STEP / 2] = 0.0
    return grid, np.array([0.5 * math.erfc(-x / math.sqrt(2.0)) for x in grid.tolist()])
