"""Time of products of experts: one weight per group, and rows that routing gives to each group.

One kernel can run the tiles of all groups together; a library without such a kernel runs a product
per group, each of which the host has to prepare and issue.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.workload.kernels.device import Device
from perfmodel.workload.kernels.products import busy_s, product_s
from perfmodel.workload.kernels.shapes import GroupedProduct, MatrixProduct


def grouped_passes_s(grouped: GroupedProduct, device: Device) -> tuple[float, float, float]:
    """Device times of forward, of the gradient of the weights, and of that of the rows; seconds."""
    mean = grouped.mean
    forward, weights, rows = (
        _groups_s(each, device, grouped.single_kernel)
        for each in (mean, mean.weight_gradient, mean.input_gradient)
    )
    return forward, weights, rows


def _groups_s(mean: MatrixProduct, device: Device, single_kernel: bool) -> float:
    constants = device.constants.grouped
    if single_kernel:
        slower = replace(device, matrix_flops=device.matrix_flops * constants.single_kernel_rate)
        nbytes = device.item_bytes * mean.elements
        return device.constants.product.ramp_s + busy_s(mean, nbytes, slower)
    own_s = product_s(replace(mean, count=1), device)
    return constants.own_kernels_s(own_s, mean.count)
