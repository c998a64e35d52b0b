"""Times of kernels: matrix products, convolutions, attention, experts, and what memory limits.

A product is cut into tiles of its result, of which each multiprocessor computes one at a time, so
that it takes whole waves of tiles. A tile steps through the depth; small tiles load more operands
per operation. Where tiles are too few, the depth is split and partial sums are added in memory.
The library's choice is taken to be the fastest of its tiles and splits.

Products of experts have one weight per group, and rows that routing gives to each group. One
kernel can run the tiles of all groups together; a library without such a kernel runs a product per
group, each of which the host has to prepare and issue.

A kernel that does little per element runs at the memory's rate. One that waits for sums or strides
through memory takes time of its multiprocessors for each element on top, which shows the more, the
faster the memory and the narrower the element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from perfmodel.workload.kernels.device import Device
from perfmodel.workload.kernels.shapes import (
    ALIGNED,
    WIDE_BYTES,
    Attention,
    Convolution,
    GroupedProduct,
    MatrixProduct,
)


@dataclass(frozen=True, slots=True)
class KernelCost:
    """Time on the device, in seconds, and kernels, of a layer or of its matrix kernels.

    `products`: seconds of matrix products alone, forward and backward, where that is not all.
    """

    forward_s: float
    backward_s: float
    forward_kernels: int
    backward_kernels: int
    products: tuple[float, float] | None = None

    @property
    def products_s(self) -> tuple[float, float]:
        """Seconds of matrix products alone, forward and backward."""
        return (self.forward_s, self.backward_s) if self.products is None else self.products


TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
"""Rows and columns of the tiles that cuBLAS has for every precision."""
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Parts of the depth that are summed apart."""
DEPTH_STEP_BYTES = 128
"""Bytes of the depth that a tile loads at once."""
LOAD_BYTES = 16
"""Of the widest load instruction of a thread."""
FULL_WAVES = 16
"""Waves from which on no further split pays."""


def product_s(product: MatrixProduct, device: Device) -> float:
    """Return the time of a matrix product on a device, the ramp of its kernel included; seconds."""
    return device.constants.product.ramp_s + busy_s(
        product, device.item_bytes * product.elements, _as_aligned(product, device)
    )


def _as_aligned(product: MatrixProduct, device: Device) -> Device:
    """Return the device with the rate at which rows that begin at odd places can be loaded.

    A load instruction moves as many bytes as every row's begin is a multiple of, up to 16; kernels
    for less issue the more of them.
    """
    aligned_bytes = product.alignment * device.item_bytes
    if aligned_bytes % LOAD_BYTES == 0:
        return device
    load_bytes = math.gcd(aligned_bytes, LOAD_BYTES)
    rate = device.constants.product.flops_per_load_byte * load_bytes * device.multiprocessors
    return replace(device, matrix_flops=min(device.matrix_flops, rate))


def busy_s(product: MatrixProduct, nbytes: float, device: Device) -> float:
    """Return the time of a matrix product with operands of `nbytes`, without its ramp; seconds."""
    memory_s = nbytes / device.memory_Bps
    partials_s = WIDE_BYTES * product.count * product.rows * product.columns / device.memory_Bps
    step = DEPTH_STEP_BYTES // device.item_bytes
    shortest = math.inf
    for height, width, depth_s in _tile_costs(device):
        tiles = -(-product.rows // height) * -(-product.columns // width) * product.count
        for split in SPLITS:
            waves = -(-tiles * split // device.multiprocessors)
            depth = -(-product.depth // (split * step)) * step
            tiles_s = max(
                waves * (depth + device.prologue) * depth_s,
                memory_s + split * partials_s if split > 1 else memory_s,
            )
            # another kernel adds the parts (cuBLAS's splitKreduce)
            sum_s = device.constants.product.ramp_s if split > 1 else 0.0
            shortest = min(shortest, tiles_s + sum_s)
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


def grouped_passes_s(grouped: GroupedProduct, device: Device) -> tuple[float, float, float]:
    """Device times of forward, of the gradient of the weights, and of that of the rows; seconds."""
    return (
        _groups_s(grouped.mean, device, grouped.single_kernel),
        _groups_s(grouped.mean.weight_gradient, device, grouped.single_kernel),
        _groups_s(grouped.mean.input_gradient, device, grouped.single_kernel),
    )


def _groups_s(mean: MatrixProduct, device: Device, single_kernel: bool) -> float:
    constants = device.constants.grouped
    if single_kernel:
        return product_s(
            mean, replace(device, matrix_flops=device.matrix_flops * constants.single_kernel_rate)
        )
    return constants.own_kernels_s(product_s(replace(mean, count=1), device), mean.count)


CHANNEL_STEP = 4
"""Input channels are padded to a multiple of this: images have three."""


def forward_product(conv: Convolution) -> MatrixProduct:
    """Return the product: one row per output pixel, depth over channels and kernel positions."""
    channels = -(-conv.in_channels // conv.groups // CHANNEL_STEP) * CHANNEL_STEP
    return MatrixProduct(
        conv.images * math.prod(conv.out_size),
        conv.out_channels,
        channels * math.prod(conv.kernel),
        strides=ALIGNED,
    )


def input_gradient_product(conv: Convolution) -> MatrixProduct:
    """One row per input pixel; kernel positions that a stride skips take no work."""
    stride = math.prod(conv.in_size) / math.prod(conv.out_size)
    return MatrixProduct(
        conv.images * math.prod(conv.in_size),
        conv.in_channels,
        math.ceil((conv.out_channels // conv.groups) * math.prod(conv.kernel) / max(1.0, stride)),
        strides=ALIGNED,
    )


def weight_gradient_product(conv: Convolution) -> MatrixProduct:
    """One row per output channel, summed over all output pixels."""
    forward = forward_product(conv)
    return MatrixProduct(forward.columns, forward.depth, forward.rows, strides=ALIGNED)


def convolution_s(conv: Convolution, product: MatrixProduct, device: Device) -> float:
    """Device time of one pass over a convolution, given as its product; seconds.

    The operands in memory are the images, not the unfolded product.
    """
    return device.constants.product.ramp_s + busy_s(
        product,
        float(device.item_bytes * (conv.in_elements + conv.out_elements + conv.weight_elements)),
        device,
    )


def convolution_passes_s(conv: Convolution, device: Device) -> tuple[float, float, float]:
    """Device times of forward, of the gradient of the weight, and of that of the input; seconds."""
    if conv.is_depthwise:
        return _depthwise_passes_s(conv, device)
    products = forward_product(conv), weight_gradient_product(conv), input_gradient_product(conv)
    forward_s, weight_s, input_s = (convolution_s(conv, each, device) for each in products)
    return forward_s, weight_s, input_s


def _depthwise_passes_s(conv: Convolution, device: Device) -> tuple[float, float, float]:
    """The same where each channel is filtered by itself, which leaves tensor cores no product.

    Each multiplication loads an element. In 32 bits every weight's gradient is the sum of one
    block of threads.
    """
    constants, multiplications = device.constants.convolution, conv.flops / 2
    moved = conv.in_elements + conv.out_elements + conv.weight_elements
    loads_s = multiplications * device.item_bytes / constants.depthwise_Bps
    sums_s = multiplications / constants.wide_sums_per_s if device.item_bytes > 2 else 0.0
    ramp_s = device.constants.product.ramp_s
    pass_s = max(device.item_bytes * moved / device.memory_Bps, loads_s / device.multiprocessors)
    return (
        ramp_s + pass_s,
        ramp_s + max(pass_s, sums_s / device.multiprocessors),
        ramp_s + pass_s,
    )


def map_copy_s(elements: float, device: Device) -> float:
    """Device time of transposing so many elements, no ramps; seconds."""
    return 2.0 * elements * (device.item_bytes / device.memory_Bps + device.copy_s)


def elementwise_s(nbytes: float, kernels: int, device: Device) -> float:
    """Device time of element-wise kernels that move `nbytes` together; seconds."""
    return nbytes / device.memory_Bps + kernels * device.ramp_s


def feature_map_s(nbytes: float, item_bytes: int, device: Device) -> float:
    """Device time of kernels over feature maps (batch normalisation, ReLU), no ramps; seconds."""
    return nbytes * (1 / device.memory_Bps + device.map_s / item_bytes)


def multi_tensor_s(nbytes: float, item_bytes: int, kernels: int, device: Device) -> float:
    """Device time of kernels over lists of tensors that move `nbytes` together; seconds.

    A thread loads four elements at once (ATen/native/cuda/MultiTensorApply.cuh, ``kILP``): with
    narrow ones not the widest load, so that multiprocessors add time as over feature maps.
    """
    wide = 4 * item_bytes >= LOAD_BYTES
    moved_s = elementwise_s(nbytes, kernels, device)
    return moved_s if wide else moved_s + nbytes * device.map_s / item_bytes


def norm_s(nbytes: float, item_bytes: int, device: Device, *, backward: bool = False) -> float:
    """Device time of normalisations over rows whose forward moves `nbytes`, no ramps; seconds.

    `backward`: of their backward, which also sums the gradients of gain and bias over all rows.
    """
    per_byte_s = 1 / device.memory_Bps + device.norm_s / item_bytes
    return nbytes * per_byte_s * (device.constants.norm.backward if backward else 1.0)


CAST_BYTES, CASTS = 3, 2
"""Bytes that a cast between bf16 and fp8 moves per element, and such kernels of a pass: queries,
keys and values together, and the result; in backward the result's gradient, and theirs
(TransformerEngine 2, ``dot_product_attention/backends.py``, ``FusedAttnFunc``)."""


TILE, KEY_BLOCK = 128, 64
"""Queries of a tile, and keys that it looks at together, at least (Dao-AILab/flash-attention,
``flash_fwd_launch_template.h``)."""


def fused_attention_s(
    attention: Attention, device: Device, *, backward: bool = False, narrow: bool = False
) -> float:
    """Device time of one fused kernel; seconds.

    `narrow`: with fp8 operands, without their casts.

    Multiprocessors take whole tiles of queries one after another. A tile takes time for each block
    of keys that it sees, and for its start, for each kernel anew where keys come in blocks; the
    starts of the kernels after the first are no part of it. At the end they wait for half of a tile
    that sees all keys. Backward sums the gradient of queries in fp32, between a kernel that
    multiplies the result with its gradient and one that casts it.
    """
    constants, rate = device.constants.attention, device.attention
    tiles = -(-attention.tokens // TILE)
    waves = attention.sequences * attention.heads * tiles / device.multiprocessors
    start = (rate.half_rate_keys or constants.half_rate_keys) * attention.blocks
    whole = -(-attention.all_keys // KEY_BLOCK) * KEY_BLOCK / attention.all_keys
    longest = whole * min(attention.all_keys, attention.window or math.inf) + start
    keys = max(longest, waves * (whole * attention.seen_keys + start) + longest / 2)
    work = attention.flops / attention.all_keys * tiles * TILE / attention.tokens * keys / waves
    work *= constants.backward_flops if backward else 1.0
    share = rate.at(attention.head_size) * (rate.backward if backward else 1.0)
    if narrow:
        share *= (rate.narrow_backward if backward else rate.narrow) or 1.0
    passes = constants.backward_passes if backward else 1.0
    around_s = 0.0
    if backward:
        queries = attention.sequences * attention.heads * attention.tokens * attention.head_size
        around_s = elementwise_s(queries * (3 * device.item_bytes + 2 * WIDE_BYTES), 2, device)
    return (
        device.constants.product.ramp_s
        + around_s
        + max(
            work / (device.matrix_flops * share),
            passes * device.item_bytes * attention.elements / device.memory_Bps,
        )
    )


def unfused_products_s(attention: Attention, device: Device, *, backward: bool = False) -> float:
    """Device time of the two products forward, of four backward; seconds."""
    pair_s = product_s(attention.scores, device) + product_s(attention.weighted_sum, device)
    return 2 * pair_s if backward else pair_s
