"""How far measured times of computing lie from predicted ones: factors with 80 % between them.

Of steps predicted by kernels, ``kernels/spread.yaml`` has the half widths that hold eight tenths of
published steps, made without their GPU; ``compute_spread.yaml`` has the rest, with sources.
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

    Steps of one family of models (with attention or with convolutions) share a width, because
    precisions rest on few tables each; a model of neither takes the wider one. GPUs of a generation
    of which few steps were published take that of generations left out. Guessed efficiencies and
    guessed work add to it.
    """
    kinds = {layer.kind for layer in workload.layers}
    spread = _shipped("kernels/spread")
    steps: Mapping[str, Any] = spread["steps"]
    rest = "convolutional" if "conv" in kinds else None
    family = "transformer" if "attention" in kinds else rest
    half = float(steps[family] if family else max(steps["transformer"], steps["convolutional"]))
    if gpu.generation not in steps["seen_generations"]:
        half = max(half, float(steps["unseen"]))
    parts = [half]
    if gpu.efficiency_assumed:
        parts.append(Z80 * float(spread["kinds"][f"product {precision}"]["unseen"]["log_sd"]))
    if workload.notes:
        parts.append(float(_shipped("compute_spread")["estimated"]["width"]))
    return _factors(math.hypot(*parts))


def measured_factors(batch: int = 1, measured_batch: int = 1) -> Factors:
    """Factors on a time that follows from a measured one, at the same batch or another."""
    measured = _shipped("compute_spread")["measured"]
    apart = abs(math.log(batch / measured_batch))
    return _factors(math.hypot(measured["again"]["width"], measured["per_batch"]["width"] * apart))


def overlap_slowdowns() -> Factors:
    """Low and high end of the slowdown of computing beside a collective on the same GPU."""
    low, high = _shipped("compute_spread")["overlap"]["slowdowns"]
    return float(low), float(high)


def _factors(width: float) -> Factors:
    return math.exp(-width), math.exp(width)
