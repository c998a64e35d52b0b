"""Time of a linear layer's kernels in fp8, or of experts': three products, casts of operands."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from perfmodel.errors import refuse_if
from perfmodel.topology.model import Gpu
from perfmodel.workload.kernels.device import Device, make_device
from perfmodel.workload.kernels.float8_layers import Cast, Casts, Float8, float8_casts
from perfmodel.workload.kernels.kernel_times import KernelCost, busy_s, elementwise_s, product_s
from perfmodel.workload.kernels.shapes import GroupedProduct, MatrixProduct

NARROW_BYTES = 1
"""Of an fp8 element."""


@dataclass(frozen=True, slots=True)
class Float8Pricing:
    """Rates of fp8 on one GPU.

    `narrow`: the GPU at the rate of the recipe's products; `gradients`: at that of backward's.
    `wide`: the same GPU in bf16.
    `weight_bytes`: of an element of a weight that is cast.
    `weight_share`: casts of weights per micro-batch: one over the micro-batches of a step where
        only the first one casts them.
    """

    casts: Casts
    narrow: Device
    gradients: Device
    wide: Device
    weight_bytes: int
    weight_share: float


@dataclass(frozen=True, slots=True)
class NarrowProducts:
    """Device times of a layer's three products, in seconds, and the kernels of each.

    `cast_kernels`: of a cast of rows, and of one of weights, over those of a single operand.
    `issued`: time of the host to issue one of these kernels, over that of a kernel of a layer.
    """

    output_s: float
    weight_gradient_s: float
    input_gradient_s: float
    kernels: int = 1
    cast_kernels: tuple[int, int] = (1, 1)
    issued: float = 1.0


def make_float8_pricing(
    gpu: Gpu, float8: Float8, wide: Device, *, compiled: bool, weight_bytes: int, accumulate: int
) -> Float8Pricing:
    """Look up what all fp8 layers of one prediction share.

    Raises `InputError`: a GPU without the recipe.
    """
    casts = float8_casts(float8, gpu, compiled=compiled)
    tensorwise = make_device(gpu, "fp8", NARROW_BYTES)
    narrow = replace(
        tensorwise,
        matrix_flops=tensorwise.matrix_flops * casts.rate,
        # a tile fills its pipeline with as many bytes, whatever an element has
        prologue=tensorwise.prologue * NARROW_BYTES / casts.operand_bytes,
    )
    share = 1 / accumulate if casts.weights_once else 1.0
    return Float8Pricing(
        casts, narrow, tensorwise if casts.rescale.kernels else narrow, wide, weight_bytes, share
    )


def narrow_product_s(product: MatrixProduct, pricing: Float8Pricing) -> float:
    """Device time of a forward product of fp8 operands, whose result is bf16; seconds."""
    return product_of_casts_s(
        product,
        pricing.narrow,
        result_bytes=pricing.wide.item_bytes,
        operand_bytes=pricing.casts.operand_bytes,
    )


def narrow_gradient_s(product: MatrixProduct, pricing: Float8Pricing) -> float:
    """Device time of a gradient product of fp8 operands, scaled afterwards or not; seconds."""
    wide, rescale = pricing.wide, pricing.casts.rescale
    elements = float(product.count * product.rows * product.columns)
    return product_of_casts_s(
        product,
        pricing.gradients,
        result_bytes=wide.item_bytes,
        operand_bytes=pricing.casts.operand_bytes,
    ) + elementwise_s(rescale.nbytes(elements, wide.item_bytes), rescale.kernels, wide)


def product_of_casts_s(
    product: MatrixProduct,
    device: Device,
    *,
    result_bytes: int,
    operand_bytes: float = NARROW_BYTES,
) -> float:
    """Device time of a product whose result has other elements than its operands; seconds."""
    m, n, k = product.rows, product.columns, product.depth
    return device.constants.product.ramp_s + busy_s(
        product,
        operand_bytes * product.count * (m * k + k * n) + result_bytes * product.count * m * n,
        device,
    )


def float8_cost(
    product: MatrixProduct,
    pricing: Float8Pricing,
    *,
    shares_input: bool,
    passes: int,
    frozen: bool = False,
    products: NarrowProducts | None = None,
) -> KernelCost:
    """Add up casts and products of a layer.

    `product`: of a whole micro-batch: rows of activations, the weight's columns and depth; of
        several weights with rows of their own, so many of them.
    `shares_input`: whether a layer before it has the same input.
    `passes`: gradients in backward: 1 where the input has none.
    `frozen`: whether the one gradient is the input's, as the weight has none. Casts then write no
        transposed copies, which the weight's gradient alone multiplies with.
    `products`: their times; None: those of products of one weight.
    """
    casts, wide = pricing.casts, pricing.wide
    products = products or _plain_products(product, pricing)
    if frozen:
        casts = _without_copies(casts)
    cast_inputs = not (shares_input and casts.inputs_once)
    inputs = float(product.count * product.rows * product.depth) * cast_inputs
    weights = float(product.count * product.columns * product.depth) * pricing.weight_share
    of_rows, of_weights = products.cast_kernels
    forward_bytes, backward_bytes = (
        of_input.nbytes(inputs, wide.item_bytes) + of_weight.nbytes(weights, pricing.weight_bytes)
        for of_input, of_weight in zip(casts.input, casts.weight, strict=True)
    )
    forward_kernels, backward_kernels = (
        of_input.kernels * cast_inputs * of_rows
        + of_weight.kernels * pricing.weight_share * of_weights
        for of_input, of_weight in zip(casts.input, casts.weight, strict=True)
    )
    outputs = float(product.count * product.rows * product.columns)
    backward_bytes += casts.gradient.nbytes(outputs, wide.item_bytes)
    backward_kernels += casts.gradient.kernels * of_rows
    if product.has_bias and not frozen:
        backward_bytes += wide.item_bytes * outputs
        backward_kernels += 1
    gradients_s = 0.0 if frozen else products.weight_gradient_s
    backward_kernels += casts.rescale.kernels * (passes - casts.wide_weight_gradient * (not frozen))
    if passes > 1 or frozen:
        gradients_s += products.input_gradient_s
    return KernelCost(
        forward_s=products.output_s + _elementwise_s(forward_bytes, forward_kernels, wide),
        backward_s=gradients_s + _elementwise_s(backward_bytes, backward_kernels, wide),
        forward_kernels=round(products.issued * (products.kernels + forward_kernels)),
        backward_kernels=round(products.issued * (passes * products.kernels + backward_kernels)),
        products=(products.output_s, gradients_s),
    )


def _plain_products(product: MatrixProduct, pricing: Float8Pricing) -> NarrowProducts:
    gradient, is_wide = product.weight_gradient, pricing.casts.wide_weight_gradient
    return NarrowProducts(
        narrow_product_s(product, pricing),
        product_s(gradient, pricing.wide) if is_wide else narrow_gradient_s(gradient, pricing),
        narrow_gradient_s(product.input_gradient, pricing),
    )


def _without_copies(casts: Casts) -> Casts:
    """Casts that write each element once: the second one, if there is, is a transposed copy.

    Temporaries of casts that are not fused stay.
    """
    forward, backward, gradient = (
        replace(cast, bytes=cast.bytes / 2)
        if NARROW_BYTES * 2 <= cast.bytes < NARROW_BYTES * 3
        else cast
        for cast in (*casts.input, casts.gradient)
    )
    return replace(casts, input=(forward, backward), gradient=gradient)


def _elementwise_s(nbytes: float, kernels: float, device: Device) -> float:
    """Time of casts, of which a share of a step's may count."""
    return elementwise_s(nbytes, 0, device) + kernels * device.ramp_s


# ---------------------------------------------------------------- experts


def grouped_float8_cost(
    grouped: GroupedProduct, pricing: Float8Pricing, *, passes: int, frozen: bool = False
) -> KernelCost:
    """Add up casts and products of experts of a whole micro-batch; as `float8_cost`."""
    if grouped.cast_before is not None:
        pricing = _fused(pricing, grouped.cast_before)
    mean = padded_mean(grouped, pricing)
    products = _single_kernel(mean, pricing) if grouped.single_kernel else _each(mean, pricing)
    cost = float8_cost(
        mean, pricing, shares_input=False, passes=passes, frozen=frozen, products=products
    )
    copies = int(grouped.padded_elements > 0)
    copied_s = elementwise_s(
        2 * pricing.wide.item_bytes * grouped.padded_elements, copies, pricing.wide
    )
    return replace(
        cost,
        forward_s=cost.forward_s + copied_s,
        backward_s=cost.backward_s + copied_s,
        forward_kernels=cost.forward_kernels + copies,
        backward_kernels=cost.backward_kernels + copies,
    )


def _fused(pricing: Float8Pricing, cast_before: Literal["input", "gradient"]) -> Float8Pricing:
    """Prices of kernels of all experts that are fused with their activation and its casts."""
    casts, rate = pricing.casts, pricing.casts.grouped.fused_rate
    allowed = "'grouped' or 'per-expert': NVIDIA's Blackwell alone has kernels that are fused"
    refuse_if(rate == 0.0, "experts.implementation", "'fused'", allowed)
    return replace(
        pricing,
        casts=replace(
            casts,
            grouped=replace(casts.grouped, rate=rate),
            input=(Cast(), Cast()) if cast_before == "input" else casts.input,
            gradient=Cast() if cast_before == "gradient" else casts.gradient,
        ),
    )


def padded_mean(grouped: GroupedProduct, pricing: Float8Pricing) -> MatrixProduct:
    """Product of a group with its mean share of the rows, filled up to the recipe's multiple.

    Rows are filled up where they are gathered (``--moe-router-padding-for-quantization``, fused
    permutation with padding), or by a copy (`GroupedProduct.padded_elements`).
    """
    casts = pricing.casts.grouped
    multiple = casts.single_kernel_rows if grouped.single_kernel else casts.row_multiple
    return replace(grouped.mean, rows=math.ceil(grouped.mean.rows / multiple) * multiple)


def _single_kernel(mean: MatrixProduct, pricing: Float8Pricing) -> NarrowProducts:
    narrow, gradients = (
        replace(device, matrix_flops=device.matrix_flops * pricing.casts.grouped.rate)
        for device in (pricing.narrow, pricing.gradients)
    )
    return _plain_products(mean, replace(pricing, narrow=narrow, gradients=gradients))


def _each(mean: MatrixProduct, pricing: Float8Pricing) -> NarrowProducts:
    """A product, and a cast of a weight, for each group."""
    plain, count = _plain_products(replace(mean, count=1), pricing), mean.count
    all_s = pricing.wide.constants.grouped.own_kernels_s
    return NarrowProducts(
        all_s(plain.output_s, count),
        all_s(plain.weight_gradient_s, count),
        all_s(plain.input_gradient_s, count),
        kernels=count,
        cast_kernels=(1 if pricing.casts.grouped.joined else count, count),
        issued=pricing.wide.constants.issued_in_loop(count) / count,
    )
