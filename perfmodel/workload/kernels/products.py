"""Time of matrix products, from tiles, waves of multiprocessors, split depth and memory.

A product is cut into tiles of its result, of which each multiprocessor computes one at a time, so
that it takes whole waves of tiles. A tile steps through the depth; small tiles load more operands
per operation. Where tiles are too few, the depth is split and partial sums are added in memory.
The library's choice is taken to be the fastest of its tiles and splits.
"""

from __future__ import annotations

import math
from functools import lru_cache

from perfmodel.workload.kernels.device import Device
from perfmodel.workload.kernels.shapes import MatrixProduct

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
"""Rows and columns of the tiles that cuBLAS has for every precision."""
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Parts of the depth that are summed apart."""
DEPTH_STEP_BYTES = 128
"""Bytes of the depth that a tile loads at once."""
PARTIAL_BYTES = 4
"""Partial sums are fp32."""
FULL_WAVES = 16
"""Waves from which on no further split pays."""


def product_s(product: MatrixProduct, device: Device) -> float:
    """Device time of a product; seconds."""
    nbytes = device.item_bytes * product.elements
    return device.constants.product.ramp_s + busy_s(product, nbytes, device)


def busy_s(product: MatrixProduct, nbytes: float, device: Device) -> float:
    """Time without the ramp, for operands of `nbytes`; seconds."""
    memory_s = nbytes / device.memory_Bps
    partials_s = PARTIAL_BYTES * product.count * product.rows * product.columns / device.memory_Bps
    step = DEPTH_STEP_BYTES // device.item_bytes
    shortest = math.inf
    for height, width, depth_s in _tile_costs(device):
        tiles = -(-product.rows // height) * -(-product.columns // width) * product.count
        for split in SPLITS:
            waves = -(-tiles * split // device.multiprocessors)
            depth = -(-product.depth // (split * step)) * step
            compute_s = waves * (depth + device.prologue) * depth_s
            moved_s = memory_s + split * partials_s if split > 1 else memory_s
            shortest = min(shortest, max(compute_s, moved_s))
            if waves >= FULL_WAVES:
                break
    return shortest


@lru_cache(maxsize=64)
def _tile_costs(device: Device) -> tuple[tuple[int, int, float], ...]:
    """Rows, columns and seconds per element of the depth of each tile."""
    edge, rate = device.tile_edge, device.matrix_flops / device.multiprocessors
    largest = 1 + edge / 256 + edge / 128
    return tuple(
        (height, width, 2.0 * height * width / rate * (1 + edge / height + edge / width) / largest)
        for height, width in TILES
    )
