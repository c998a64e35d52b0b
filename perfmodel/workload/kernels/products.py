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


def product_s(product: MatrixProduct, device: Device) -> float:
    """Device time of a product; seconds."""
    nbytes = device.item_bytes * product.elements
    return device.constants.product.ramp_s + busy_s(product, nbytes, device)


@lru_cache(maxsize=8192)
def busy_s(product: MatrixProduct, nbytes: float, device: Device) -> float:
    """Time without the ramp, for operands of `nbytes`; seconds."""
    result = product.count * product.rows * product.columns
    shortest = math.inf
    for split in SPLITS:
        memory = nbytes + (PARTIAL_BYTES * split * result if split > 1 else 0)
        memory_s = memory / device.memory_Bps
        if memory_s >= shortest:
            break
        for tile in TILES:
            compute_s = _compute_s(product, tile, split, device)
            shortest = min(shortest, max(compute_s, memory_s))
        if split * product.rows * product.columns * product.count > _FULL * device.multiprocessors:
            break
    return shortest


_FULL = 16 * 256 * 128
"""Elements of the result per multiprocessor beyond which no further split pays: 16 waves."""


def _compute_s(product: MatrixProduct, tile: tuple[int, int], split: int, device: Device) -> float:
    """Time of all waves of one choice of tile and split."""
    (height, width), edge = tile, device.tile_edge
    across = -(-product.rows // height) * -(-product.columns // width)
    waves = -(-across * split * product.count // device.multiprocessors)
    step = DEPTH_STEP_BYTES // device.item_bytes
    depth = -(-product.depth // (split * step)) * step
    slower = (1 + edge / height + edge / width) / (1 + edge / 256 + edge / 128)
    tile_flops = 2.0 * height * width * (depth + device.prologue) * slower
    return waves * tile_flops * device.multiprocessors / device.matrix_flops
