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
    `peak_flops`: of the datasheet.
    `memory_Bps`: that large element-wise kernels reach.
    `norm_Bps`, `copy_Bps`: that normalisations reach, and transposing copies.
    `ramp_s`: device time of a memory-bound kernel beyond its bytes.
    `tile_edge`, `prologue`: of a tile of a product, in elements (`ProductConstants`).
    `item_bytes`: per element of matrix kernels.
    `attention`: of fused attention, of this generation.
    """

    multiprocessors: int
    peak_flops: float
    matrix_flops: float
    memory_Bps: float
    norm_Bps: float
    copy_Bps: float
    ramp_s: float
    item_bytes: int
    tile_edge: float
    prologue: float
    attention: AttentionRate
    constants: KernelConstants


def make_device(gpu: Gpu, precision: str, item_bytes: int) -> Device:
    """Look the rates of a GPU up."""
    constants = kernel_constants()
    memory_Bps = gpu.memory_Bps * gpu.memory_efficiency
    share = constants.product.plain_share if precision == "fp32" else 1.0
    return Device(
        multiprocessors=gpu.streaming_multiprocessors,
        peak_flops=gpu.peak_flops[precision],
        matrix_flops=gpu.peak_flops[precision] * gpu.matmul_efficiency[precision],
        memory_Bps=memory_Bps,
        norm_Bps=_limited_Bps(gpu, memory_Bps, constants.norm.multiprocessor_Bps),
        copy_Bps=_limited_Bps(gpu, memory_Bps, constants.convolution.copy_multiprocessor_Bps),
        ramp_s=gpu.kernel_overhead_s,
        item_bytes=item_bytes,
        tile_edge=constants.product.tile_edge * share,
        prologue=constants.product.prologue_bytes / item_bytes * share,
        attention=constants.attention_rate(gpu.generation),
        constants=constants,
    )


def _limited_Bps(gpu: Gpu, memory_Bps: float, multiprocessor_Bps: float) -> float:
    """Rate of kernels whose multiprocessors wait between loads: both times add up."""
    return 1 / (1 / memory_Bps + 1 / (gpu.streaming_multiprocessors * multiprocessor_Bps))
