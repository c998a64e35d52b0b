"""A GPU whose board may draw less than its data sheet says: what is left of its matrix products.

A board lowers its clock until it draws no more than it may (``nvidia-smi --power-limit``, or what
an operator fixed). Large matrix products draw all of the data sheet's power; kernels that wait for
memory draw less than half of it, and memory keeps its clock, so that they take as long as ever.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError
from perfmodel.files import read_yaml
from perfmodel.topology.model import Gpu


@cache
def _constants() -> Any:
    return read_yaml(Path(__file__).with_suffix(".yaml"))


def rate_at(share: float, generation: str = "other") -> float:
    """Rate of matrix products under a power limit, over that at full power.

    With the static share s, power is s + (1 - s) f^n at the clock f, as voltage falls with the
    clock; from the clock at which voltage is the lowest it is linear in f down to s.

    `share`: the limit over the data sheet's power, at most 1. `generation`: of the GPU.

    Examples
    --------
    >>> round(rate_at(500 / 700, "hopper"), 3)
    0.815
    """
    constants = _constants()
    chip = constants.get(generation, constants["other"])
    chip = constants[chip["as"]] if "as" in chip else chip
    static, exponent = constants["static_share"]["value"], chip["exponent"]
    lowest = chip["lowest_voltage_rate"]
    turning = static + (1 - static) * lowest**exponent
    if share >= turning:
        return float(((share - static) / (1 - static)) ** (1 / exponent))
    return float(lowest * (share - static) / (turning - static))


def limit_power(gpu: Gpu, limit_W: float | None) -> Gpu:
    """Return a GPU as fast as a limit on its board's power leaves it.

    `limit_W`: watts; None: none beside its data sheet's.
    Raises `InputError`: no data sheet says what it draws, or a limit out of the law's range.
    """
    if limit_W is None:
        return gpu
    if gpu.power_W is None:
        raise InputError(
            Fault(
                "power_limit",
                f"{limit_W:g} W",
                f"nothing: no data sheet says what a {gpu.name} draws",
            )
        )
    least_W = _constants()["least_share"]["value"] * gpu.power_W
    if not least_W <= limit_W <= gpu.power_W:
        raise InputError(
            Fault(
                "power_limit", f"{limit_W:g} W", f"{least_W:g} to {gpu.power_W:g} W on a {gpu.name}"
            )
        )
    rate = rate_at(limit_W / gpu.power_W, gpu.generation)
    return replace(
        gpu,
        matmul_efficiency={name: share * rate for name, share in gpu.matmul_efficiency.items()},
        power_W=limit_W,
        limited_rate=rate,
        limited_width=-_constants()["width"]["value"] * math.log(rate),
    )


def describe_limit(gpu: Gpu) -> str:
    """Say what a limited GPU loses, as an assumption; empty: nothing."""
    if gpu.limited_rate == 1:
        return ""
    return (
        f"assumption: matrix products at {100 * gpu.limited_rate:.0f} % of their rate at full "
        f"power under {gpu.power_W:g} W, fitted to published measurements of limited boards"
    )
