"""Rates of fp8 products, fitted together with the cast that the recorded times contain.

    python -m reports.kernels.float8

Recorded layers cast their bf16 input (read two bytes, write one) before they multiply. The cast is
an inference library's, which training does not run, and its rate is fitted beside that of the
products. Each is fitted to one half of a table's rows and judged by the other; "unseen" takes the
mean rates of the other GPUs. Constants of tiles are those of 16-bit products.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload.kernels.device import make_device
from perfmodel.workload.kernels.float8_casts import product_of_casts_s
from perfmodel.workload.kernels.shapes import MatrixProduct
from reports.kernels.records import read

RATES = np.arange(0.40, 0.92, 0.02)
"""Of large products, over the peak."""
CASTS = np.geomspace(0.2, 1.6, 13)
"""Rates of the cast over the memory's; above 1 where its tensor stays in a cache."""
CAST_BYTES = 3


@dataclass(frozen=True)
class Layer:
    """A recorded linear layer."""

    gpu: str
    recipe: str
    product: MatrixProduct
    time_s: float


def layers() -> list[Layer]:
    """Rows of the table."""
    return [
        Layer(
            cells["gpu"],
            cells["recipe"],
            MatrixProduct(int(cells["rows"]), int(cells["columns"]), int(cells["depth"])),
            float(cells["time_us"]) * 1e-6,
        )
        for cells in read("float8_products")
    ]


def errors(rows: Sequence[Layer], rate: float, cast: float) -> list[float]:
    """Logarithms of predicted over measured times."""
    gpu = load_gpu(rows[0].gpu)
    gpu = replace(gpu, matmul_efficiency={**gpu.matmul_efficiency, "fp8": rate})
    device = make_device(gpu, "fp8", 1)
    return [
        math.log(
            (
                product_of_casts_s(row.product, device, result_bytes=2)
                + CAST_BYTES * row.product.rows * row.product.depth / (cast * device.memory_Bps)
                + device.ramp_s
            )
            / row.time_s
        )
        for row in rows
    ]


def fit(rows: Sequence[Layer]) -> tuple[float, float]:
    """Rate of products and of the cast with the least mean error."""
    tried = [
        (statistics.fmean(map(abs, errors(rows, rate, cast))), rate, cast)
        for rate in RATES.tolist()
        for cast in CASTS.tolist()
    ]
    return min(tried)[1:]


def by_table() -> dict[tuple[str, str], list[Layer]]:
    """Rows of each GPU and recipe."""
    tables: dict[tuple[str, str], list[Layer]] = {}
    for row in layers():
        tables.setdefault((row.gpu, row.recipe), []).append(row)
    return tables


def float8_errors() -> dict[tuple[str, str, str], list[float]]:
    """Errors of tensorwise layers by kind, GPU and whether the GPU's own rate is known.

    Rates are fitted to half of the weights, and rows of the others judged; or those of other GPUs.
    """
    tables = {gpu: rows for (gpu, recipe), rows in by_table().items() if recipe == "tensorwise"}
    fits = {gpu: fit(_half(rows, 0)) for gpu, rows in tables.items()}
    result = {}
    for gpu, rows in tables.items():
        rate = statistics.fmean(fits[other][0] for other in fits if other != gpu)
        result["product fp8", gpu, "seen"] = errors(_half(rows, 1), *fits[gpu])
        result["product fp8", gpu, "unseen"] = errors(rows, rate, fits[gpu][1])
    return result


def main() -> None:
    """Print fits and errors."""
    tables = by_table()
    fits = {key: fit(_half(own, 0)) for key, own in tables.items()}
    print(f"{'':32}  rate  cast   bias  median  90 %  spread")
    for key, own in tables.items():
        _print(" ".join(key), fits[key], errors(_half(own, 1), *fits[key]))
        _print("  all rows", fit(own), errors(own, *fit(own)))
        others = [fits[other] for other in fits if other[1] == key[1] and other != key]
        if others:
            mean = (statistics.fmean(rate for rate, _ in others), fits[key][1])
            _print("  unseen", mean, errors(own, *mean))


ROWS_OF_WEIGHT = 6
"""Batches that each weight was multiplied with, at most."""


def _half(rows: Sequence[Layer], which: int) -> list[Layer]:
    """Every second weight, with about all batches."""
    return [row for place, row in enumerate(rows) if place // ROWS_OF_WEIGHT % 2 == which]


def _print(name: str, fitted: tuple[float, float], values: Sequence[float]) -> None:
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    sizes = np.abs(values)
    print(
        f"{name:32} {fitted[0]:5.2f} {fitted[1]:5.2f} {middle:+6.1%} {np.median(sizes):7.1%}"
        f" {np.quantile(sizes, 0.9):5.1%} {(high - low) / 2.563:7.3f}"
    )


if __name__ == "__main__":
    main()
