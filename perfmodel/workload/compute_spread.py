"""How far measured times of computing lie from predicted ones: factors with 80 % between them.

``compute_spread.yaml`` has the numbers with their sources.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.files import read_yaml
from perfmodel.workload.model import Workload

Factors = tuple[float, float]
"""Low and high end of 80 %, as factors on the likely value."""


@cache
def _shipped() -> Any:
    return read_yaml(Path(__file__).with_suffix(".yaml"))


def roofline_factors(workload: Workload) -> Factors:
    """Factors on a time that is predicted from a data sheet, by the kind of model."""
    kinds = {layer.kind for layer in workload.layers}
    rest = "convolution" if "conv" in kinds else "other"
    family = "transformer" if "attention" in kinds else rest
    low, high = _shipped()["roofline"][family]["factors"]
    return float(low), float(high)


def measured_factors(batch: int = 1, measured_batch: int = 1) -> Factors:
    """Factors on a time that follows from a measured one, at the same batch or another."""
    measured = _shipped()["measured"]
    apart = abs(math.log(batch / measured_batch))
    width = math.hypot(measured["again"]["width"], measured["per_batch"]["width"] * apart)
    return math.exp(-width), math.exp(width)


def overlap_slowdowns() -> Factors:
    """Low and high end of the slowdown of computing beside a collective on the same GPU."""
    low, high = _shipped()["overlap"]["slowdowns"]
    return float(low), float(high)
