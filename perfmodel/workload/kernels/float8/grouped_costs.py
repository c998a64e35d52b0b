"""Time of products of experts in fp8: casts of rows and weights, padded rows, grouped kernels."""

from __future__ import annotations

import math
from dataclasses import replace

from perfmodel.workload.kernels.device import Device
from perfmodel.workload.kernels.float8.cast_costs import (
    Float8Cost,
    Float8Pricing,
    NarrowProducts,
    float8_cost,
    narrow_gradient_s,
    narrow_product_s,
)
from perfmodel.workload.kernels.shapes import GroupedProduct, MatrixProduct


def grouped_float8_cost(
    grouped: GroupedProduct, pricing: Float8Pricing, *, passes: int, frozen: bool = False
) -> Float8Cost:
    """Add up casts and products of experts of a whole micro-batch; as `float8_cost`."""
    mean = padded_mean(grouped, pricing)
    products = _single_kernel(mean, pricing) if grouped.single_kernel else _each(mean, pricing)
    return float8_cost(
        mean, pricing, shares_input=False, passes=passes, frozen=frozen, products=products
    )  # fmt: skip


def padded_mean(grouped: GroupedProduct, pricing: Float8Pricing) -> MatrixProduct:
    """Product of a group with its mean share of the rows, filled up to the recipe's multiple.

    Rows are filled up where they are gathered (``--moe-router-padding-for-quantization``, fused
    permutation with padding), which no kernel of its own does.
    """
    casts = pricing.casts.grouped
    multiple = casts.single_kernel_rows if grouped.single_kernel else casts.row_multiple
    mean = grouped.mean
    return replace(mean, rows=math.ceil(mean.rows / multiple) * multiple)


def _single_kernel(mean: MatrixProduct, pricing: Float8Pricing) -> NarrowProducts:
    rate = pricing.casts.grouped.rate
    slower = replace(
        pricing,
        narrow=_slower(pricing.narrow, rate),
        gradients=_slower(pricing.gradients, rate),
    )
    return NarrowProducts(
        narrow_product_s(mean, slower),
        narrow_gradient_s(mean.weight_gradient, slower),
        narrow_gradient_s(mean.input_gradient, slower),
    )


def _slower(device: Device, rate: float) -> Device:
    return replace(device, matrix_flops=device.matrix_flops * rate)


def _each(mean: MatrixProduct, pricing: Float8Pricing) -> NarrowProducts:
    """A product, and a cast of a weight, for each group."""
    constants, one = pricing.wide.constants.grouped, replace(mean, count=1)

    def all_s(own_s: float) -> float:
        return mean.count * max(constants.dispatch_s, constants.own_kernel_slowdown * own_s)

    return NarrowProducts(
        all_s(narrow_product_s(one, pricing)),
        all_s(narrow_gradient_s(one.weight_gradient, pricing)),
        all_s(narrow_gradient_s(one.input_gradient, pricing)),
        kernels=mean.count,
        cast_kernels=(1 if pricing.casts.grouped.joined else mean.count, mean.count),
    )
