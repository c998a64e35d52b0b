"""What kernels see of a GPU: the rates of one precision, and the constants of its generation."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.topology.model import Gpu
from perfmodel.workload.kernels.kernel_constants import (
    AttentionRate,
    KernelConstants,
    kernel_constants,
)


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU at one precision.

    `matrix_flops`: operations per second of large matrix products.
    `memory_Bps`: that large element-wise kernels reach.
    `norm_s`, `map_s`, `copy_s`: that multiprocessors add per element of a normalisation over rows,
        of a kernel over feature maps, and of a transposing copy; seconds.
    `ramp_s`: device time of a memory-bound kernel beyond its bytes.
    `tile_edge`, `prologue`: of a tile of a product, in elements (`ProductConstants`).
    `item_bytes`: per element of matrix kernels.
    `attention`: of fused attention, of this generation.
    """

    multiprocessors: int
    matrix_flops: float
    memory_Bps: float
    norm_s: float
    map_s: float
    copy_s: float
    ramp_s: float
    item_bytes: int
    tile_edge: float
    prologue: float
    attention: AttentionRate
    constants: KernelConstants


def make_device(gpu: Gpu, precision: str, item_bytes: int, attention: str = "") -> Device:
    """Look the rates of a GPU up.

    `attention`: whose kernels of fused attention run, where they are not the usual ones.
    """
    constants = kernel_constants()
    memory_Bps = gpu.memory_Bps * gpu.memory_efficiency
    multiprocessors = gpu.streaming_multiprocessors
    # bytes that a multiprocessor's operations need, against those of the GPUs of the fit
    demand_Bps = gpu.peak_flops[precision] / multiprocessors * item_bytes
    share = min(1.0, demand_Bps / constants.product.demand_Bps)
    return Device(
        multiprocessors=multiprocessors,
        matrix_flops=gpu.peak_flops[precision] * gpu.matmul_efficiency[precision],
        memory_Bps=memory_Bps,
        norm_s=1 / (constants.norm.elements_per_s * multiprocessors),
        map_s=1 / (constants.convolution.map_elements_per_s * multiprocessors),
        copy_s=1 / (constants.convolution.copy_elements_per_s * multiprocessors),
        ramp_s=gpu.kernel_overhead_s,
        item_bytes=item_bytes,
        tile_edge=constants.product.tile_edge * share,
        prologue=constants.product.prologue_bytes / item_bytes * share,
        attention=constants.attention_rate(gpu.name, gpu.generation, attention),
        constants=constants,
    )
