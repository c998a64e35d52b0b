"""How far measured times of computing lie from predicted ones: factors with 80 % between them.

Of whole steps predicted by kernels, ``kernels/spread.yaml`` has the standard deviations with each
GPU left out of the fit; ``compute_spread.yaml`` has the rest, with sources.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.arrays import Z80
from perfmodel.files import read_yaml
from perfmodel.topology.model import Gpu
from perfmodel.workload.model import Workload

Factors = tuple[float, float]
"""Low and high end of 80 %, as factors on the likely value."""


@cache
def _shipped(name: str) -> Any:
    return read_yaml(Path(__file__).parent / f"{name}.yaml")


def roofline_factors(workload: Workload, gpu: Gpu, precision: str) -> Factors:
    """Factors on a step that is predicted from a data sheet.

    Steps of one family of models (with attention or with convolutions) share a spread, the root
    mean square over precisions, because some of these rest on few GPUs; a model of neither takes
    the wider one. Guessed efficiencies and guessed work add to it.
    """
    kinds = {layer.kind for layer in workload.layers}
    spread: Mapping[str, Any] = _shipped("kernels/spread")["kinds"]
    transformer, convolutional = (
        _step_sd(spread, family) for family in ("transformer", "convolutional")
    )
    rest = convolutional if "conv" in kinds else max(transformer, convolutional)
    parts = [Z80 * (transformer if "attention" in kinds else rest)]
    if gpu.efficiency_assumed:
        parts.append(Z80 * float(spread[f"product {precision}"]["unseen"]["log_sd"]))
    if workload.notes:
        parts.append(float(_shipped("compute_spread")["estimated"]["width"]))
    return _factors(math.hypot(*parts))


def _step_sd(spread: Mapping[str, Any], family: str) -> float:
    """Standard deviation of the logarithm of steps of a family, over precisions."""
    sds = [each["seen"]["log_sd"] for kind, each in spread.items() if f"step {family}" in kind]
    return math.hypot(*sds) / math.sqrt(len(sds))


def measured_factors(batch: int = 1, measured_batch: int = 1) -> Factors:
    """Factors on a time that follows from a measured one, at the same batch or another."""
    measured = _shipped("compute_spread")["measured"]
    apart = abs(math.log(batch / measured_batch))
    return _factors(math.hypot(measured["again"]["width"], measured["per_batch"]["width"] * apart))


def overlap_slowdowns() -> Factors:
    """Low and high end of the slowdown of computing beside a collective on the same GPU."""
    low, high = _shipped("compute_spread")["overlap"]["slowdowns"]
    return float(low), float(high)


def run_factors() -> Factors:
    """Factors on a step for the run in which it is measured, whatever its GPUs are."""
    return _factors(_shipped("compute_spread")["measured"]["another_run"]["width"])


def gpu_speeds() -> float:
    """Standard deviation, over their mean, of the speeds of GPUs of one model."""
    return float(_shipped("compute_spread")["gpus"]["speeds"])


def _factors(width: float) -> Factors:
    return math.exp(-width), math.exp(width)
