"""Time of convolutions as implicit products, and of the copies that another layout costs."""

from __future__ import annotations

import math

from perfmodel.workload.kernels.device import Device
from perfmodel.workload.kernels.products import busy_s
from perfmodel.workload.kernels.shapes import Convolution, MatrixProduct

CHANNEL_STEP = 4
"""Input channels are padded to a multiple of this: images have three."""


def forward_product(conv: Convolution) -> MatrixProduct:
    """Return the product: one row per output pixel, depth over channels and kernel positions."""
    channels = -(-conv.in_channels // conv.groups // CHANNEL_STEP) * CHANNEL_STEP
    return MatrixProduct(
        conv.images * math.prod(conv.out_size),
        conv.out_channels,
        channels * math.prod(conv.kernel),
    )


def input_gradient_product(conv: Convolution) -> MatrixProduct:
    """One row per input pixel; kernel positions that a stride skips take no work."""
    stride = math.prod(conv.in_size) / math.prod(conv.out_size)
    channels = conv.out_channels // conv.groups
    depth = math.ceil(channels * math.prod(conv.kernel) / max(1.0, stride))
    return MatrixProduct(conv.images * math.prod(conv.in_size), conv.in_channels, depth)


def weight_gradient_product(conv: Convolution) -> MatrixProduct:
    """One row per output channel, summed over all output pixels."""
    forward = forward_product(conv)
    return MatrixProduct(forward.columns, forward.depth, forward.rows)


def convolution_s(conv: Convolution, product: MatrixProduct, device: Device) -> float:
    """Device time of one pass over a convolution, given as its product; seconds.

    The operands in memory are the images, not the unfolded product.
    """
    elements = conv.in_elements + conv.out_elements + conv.weight_elements
    busy = busy_s(product, float(device.item_bytes * elements), device)
    return device.constants.product.ramp_s + busy


def layout_copy_s(conv: Convolution, device: Device) -> float:
    """Device time of transposing both feature maps of a pass, there or back; seconds."""
    return map_copy_s(conv.in_elements + conv.out_elements, device) + 2 * device.ramp_s


def map_copy_s(elements: float, device: Device) -> float:
    """Device time of transposing so many elements, no ramps; seconds."""
    passes = 2.0 * elements
    return passes * (device.item_bytes / device.memory_Bps + device.copy_s)
