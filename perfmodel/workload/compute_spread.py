"""How far measured times of computing lie from predicted ones: factors with 80 % between them.

Of steps predicted by kernels, ``kernels/spread.yaml`` has the half widths that hold eight tenths of
published steps, made without their GPU; ``compute_spread.yaml`` has the rest, with sources.

GPUs of one model differ in speed, in what a chip needs of its power limit and in how it is cooled.
A synchronous step waits for the slowest. With speeds that are independent draws from a normal
distribution it is behind the mean by its standard deviation times what the largest of N standard
normal numbers is expected to be: 0 for 1, 0.56 for 2, 1.42 for 8, 2.07 for 32, 3.2 for 1,000.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from perfmodel.arrays import Z80, FloatArray, round_bits
from perfmodel.files import read_yaml
from perfmodel.topology.model import Gpu
from perfmodel.workload.model import Workload

Factors = tuple[float, float]
"""Low and high end of 80 %, as factors on the likely value."""


@cache
def _shipped(name: str) -> Any:
    return read_yaml(Path(__file__).parent / f"{name}.yaml")


def roofline_factors(
    workload: Workload, gpu: Gpu, precision: str, narrow_share: float = 0.0
) -> Factors:
    """Factors on a step that is predicted from a data sheet.

    No step in fp8 is among those that widths of steps come from: the share `narrow_share` of one
    that multiplies in fp8 is as much less sure as recorded products in fp8 are than those in bf16.

    Steps of one family of models (with attention or with convolutions) share a width, because
    precisions rest on few tables each; a model of neither takes the wider one. Models with
    attention have one of their generation of GPU, where enough tables have such steps. GPUs of a
    generation of which few steps were published take that of generations left out. Guessed
    efficiencies and guessed work add to it, and what a power limit leaves of products; a GPU of
    which only a data sheet is known has a width of its own. So has what frameworks do and state
    nowhere: strangers' steps lie farther away than those that the other widths come from.
    """
    kinds = {layer.kind for layer in workload.layers}
    spread = _shipped("kernels/spread")
    steps: Mapping[str, Any] = spread["steps"]
    rest = "convolutional" if "conv" in kinds else None
    family = "transformer" if "attention" in kinds else rest
    half = float(steps[family] if family else max(steps["transformer"], steps["convolutional"]))
    if family == "transformer" and gpu.generation in steps["transformer_generations"]:
        half = float(steps["transformer_generations"][gpu.generation])
    elif gpu.generation not in steps["seen_generations"]:
        half = max(half, float(steps["unseen"]))
    if "matmul_efficiency" in gpu.estimated:  # measured of whole steps: of kernels it is part
        half = max(half, float(_shipped("compute_spread")["data_sheet"]["width"]))
    parts = [half, float(_shipped("compute_spread")["frameworks"]["whole"])]
    if gpu.efficiency_assumed and "matmul_efficiency" not in gpu.estimated:
        parts.append(Z80 * float(spread["kinds"][f"product {precision}"]["unseen"]["log_sd"]))
    if narrow_share:
        sds = {
            name: float(spread["kinds"][f"product {name}"]["seen"]["log_sd"])
            for name in ("fp8", "bf16")
        }
        parts.append(Z80 * math.sqrt(max(0.0, sds["fp8"] ** 2 - sds["bf16"] ** 2)) * narrow_share)
    if workload.is_estimated:
        parts.append(float(_shipped("compute_spread")["estimated"]["width"]))
    if gpu.limited_width:
        parts.append(gpu.limited_width)
    return _factors(math.hypot(*parts))


def split_factors(factors: Factors, *, experts: bool) -> Factors:
    """Return factors on predicted times of layers, of a model that is split over GPUs.

    `experts`: whether it has experts.
    """
    width = float(
        _shipped("compute_spread")["frameworks"]["split"]["experts" if experts else "dense"]
    )
    low, high = (math.hypot(math.log(factor), width) for factor in factors)
    return math.exp(-low), math.exp(high)


def measured_factors(batch: int = 1, measured_batch: int = 1) -> Factors:
    """Factors on a time that follows from a measured one, at the same batch or another."""
    measured = _shipped("compute_spread")["measured"]
    apart = abs(math.log(batch / measured_batch))
    return _factors(math.hypot(measured["again"]["width"], measured["per_batch"]["width"] * apart))


def overlap_slowdowns() -> Factors:
    """Low and high end of the slowdown of computing beside a collective on the same GPU."""
    low, high = _shipped("compute_spread")["overlap"]["slowdowns"]
    return float(low), float(high)


def host_factors() -> Factors:
    """Factors on the time of the host to issue a kernel."""
    return _factors(_shipped("compute_spread")["host"]["width"])


def run_factors() -> Factors:
    """Factors on a step for the run in which it is measured, whatever its GPUs are."""
    return _factors(_shipped("compute_spread")["measured"]["another_run"]["width"])


def gpu_speeds() -> float:
    """Standard deviation, over their mean, of the speeds of GPUs of one model."""
    return float(_shipped("compute_spread")["gpus"]["speeds"])


def _factors(width: float) -> Factors:
    return math.exp(-width), math.exp(width)


# ---------------------------------------------------------------- the slowest of several GPUs

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
    low, high = (NormalDist().inv_cdf(share ** (1 / ranks)) for share in (0.1, 0.9))
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
