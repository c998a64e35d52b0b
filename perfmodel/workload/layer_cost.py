"""Time and kernels of one layer: its matrix kernel by shape, its other kernels by their bytes."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.kernels.float8_casts import float8_cost, grouped_float8_cost
from perfmodel.workload.kernels.float8_layers import shares_input
from perfmodel.workload.kernels.kernel_times import (
    CAST_BYTES,
    CASTS,
    KernelCost,
    busy_s,
    convolution_passes_s,
    elementwise_s,
    feature_map_s,
    fused_attention_s,
    grouped_passes_s,
    map_copy_s,
    norm_s,
    product_s,
    unfused_products_s,
)
from perfmodel.workload.kernels.scans import scan_pass
from perfmodel.workload.kernels.shapes import (
    ALIGNED,
    Attention,
    Convolution,
    GroupedProduct,
    LayerKernel,
    MatrixProduct,
    Scan,
    batched,
)
from perfmodel.workload.model import ELEMENT_BYTES, Layer
from perfmodel.workload.pricing import Pricing


def layer_cost(
    layer: Layer, pricing: Pricing, *, first: bool, is_float8: bool = False
) -> KernelCost:
    """Add up the kernels of a layer.

    `is_float8`: whether it is one of those that run in fp8.
    """
    device = pricing.device
    if not layer.gradients:
        return replace(
            layer_cost(replace(layer, gradients=2), pricing, first=first, is_float8=is_float8),
            backward_s=0.0,
            backward_kernels=0,
        )
    vector = _vector_cost(layer, pricing)
    if not layer.matmul_flops:
        # a table: forward gathers its rows, backward zeroes and writes its whole gradient
        table_s = layer.weight_elements * ELEMENT_BYTES / device.memory_Bps
        return replace(vector, backward_s=vector.backward_s + table_s)
    matrix = (_float8_cost if is_float8 else _matrix_cost)(layer, pricing, first=first)
    parts = (vector, matrix, _casts(layer, pricing, is_float8=is_float8))
    return KernelCost(
        sum(part.forward_s for part in parts),
        sum(part.backward_s for part in parts),
        sum(part.forward_kernels for part in parts),
        sum(part.backward_kernels for part in parts),
    )


def _casts(layer: Layer, pricing: Pricing, *, is_float8: bool) -> KernelCost:
    """Casts of autocast: of weight, bias and an input in fp32, and of their gradients back.

    A parameter is cast once in forward, another input for each product that reads it
    (ATen/autocast_mode.cpp). In fp32 is what a normalisation puts out: its first reader is counted
    with it. A compiler fuses all casts but those of weights.
    """
    if not pricing.casts or not layer.weight_elements:
        return KernelCost(0.0, 0.0, 0, 0)
    parameters, inputs, elements = 1, 0, 0.0
    each_bytes = ELEMENT_BYTES + pricing.device.item_bytes
    if isinstance(layer.matrix, MatrixProduct) and not pricing.compiled and not is_float8:
        product, normed = layer.matrix, layer.norm_bytes > 0
        parameters += product.has_bias
        inputs = normed + shares_input(layer)
        width = min(product.depth, product.columns)
        elements = layer.copied_elements + product.count * product.rows * width * normed

    def cost(weights: int) -> tuple[float, int]:
        moved = (weights * layer.weight_elements + pricing.batch * elements) * each_bytes
        kernels = weights * parameters + inputs
        return elementwise_s(moved, kernels, pricing.device), kernels

    # what is cast to fp8 needs no copy in bf16, but its gradient is cast back, if it has one
    forward, backward = cost(not is_float8), cost(not _is_frozen(layer))
    return KernelCost(forward[0], backward[0], forward[1], backward[1])


def matrix_seconds(
    layer: Layer, pricing: Pricing, *, first: bool, is_float8: bool = False
) -> tuple[float, float]:
    """Time of a layer's matrix kernels without casts, forward and backward; seconds."""
    if not layer.matmul_flops:
        return 0.0, 0.0
    forward_s, backward_s = (_float8_cost if is_float8 else _matrix_cost)(
        layer, pricing, first=first
    ).products_s
    return forward_s, backward_s * (layer.gradients > 0)


def weight_gradient_s(layer: Layer, pricing: Pricing, *, is_float8: bool = False) -> float:
    """Part of a layer's backward that the gradient of its weight takes; seconds.

    That is all that the first layer's matrix kernels make in backward. Gains and biases of
    normalisations and tables of embeddings are not counted: their kernels make both gradients.
    """
    if not layer.matmul_flops or not layer.weight_elements or _is_frozen(layer):
        return 0.0
    cast_bytes = layer.weight_elements * (ELEMENT_BYTES + pricing.device.item_bytes)
    return (_float8_cost if is_float8 else _matrix_cost)(layer, pricing, first=True).backward_s + (
        elementwise_s(cast_bytes, 1, pricing.device) if pricing.casts else 0.0
    )


def _float8_cost(layer: Layer, pricing: Pricing, *, first: bool) -> KernelCost:
    """Time of a linear layer's kernels in fp8."""
    return _priced_float8(
        batched(layer.matrix, pricing.batch)
        if isinstance(layer.matrix, MatrixProduct | GroupedProduct)
        else likely_product(layer, pricing.batch),
        pricing,
        shares_input(layer),
        len(_gradients(layer, first=first)),
        _is_frozen(layer),
    )


@lru_cache(maxsize=4096)
def _priced_float8(
    product: LayerKernel, pricing: Pricing, shared: bool, passes: int, frozen: bool
) -> KernelCost:
    """Time of the fp8 kernels of a shape, once for all layers that have it."""
    assert pricing.float8 is not None
    if isinstance(product, GroupedProduct):
        return grouped_float8_cost(product, pricing.float8, passes=passes, frozen=frozen)
    assert isinstance(product, MatrixProduct)
    return float8_cost(product, pricing.float8, shares_input=shared, passes=passes, frozen=frozen)


def _vector_cost(layer: Layer, pricing: Pricing) -> KernelCost:
    """Time and number of the element-wise and normalising kernels."""
    device = pricing.device
    item = device.item_bytes if layer.kind == "conv" else pricing.vector_item_bytes
    scale = pricing.batch * item / ELEMENT_BYTES
    vector_bytes, norm_bytes, wide_bytes = layer.vector_bytes, layer.norm_bytes, layer.wide_bytes
    kernels = layer.kernels
    if pricing.compiled and layer.fused_bytes is not None:
        vector_bytes, norm_bytes, wide_bytes = layer.fused_bytes, 0.0, 0.0
        kernels = layer.fused_kernels
    kernels -= int(layer.matmul_flops > 0)
    nbytes = (vector_bytes - norm_bytes - wide_bytes) * scale + wide_bytes * pricing.batch
    if layer.score_elements and not pricing.fused_attention:
        unfused = device.constants.attention
        # products of the scores in the matrix kernels' precision, softmax in the other
        score_bytes = layer.score_elements * (device.item_bytes + pricing.vector_item_bytes) / 2
        passes = unfused.compiled_passes if pricing.compiled else unfused.unfused_passes
        apart = pricing.compiled and layer.score_dropout and layer.dropout_apart
        passes += unfused.dropout_passes * apart
        nbytes += passes * score_bytes * pricing.batch
        kernels += 1 + apart if pricing.compiled else unfused.unfused_kernels
    # single operations in fp32 stream as others do, but their backward is that of a norm
    single_s = norm_bytes * pricing.batch / device.memory_Bps if layer.wide_norm else 0.0
    norm_bytes *= 0.0 if layer.wide_norm else scale
    backward_kernels = round(kernels * device.constants.norm.backward) if single_s else kernels
    plain_s = (
        feature_map_s(nbytes, item, device) if layer.kind == "conv" else nbytes / device.memory_Bps
    )
    waits_s = passes_of("norm") * layer.statistics_elements * pricing.batch * device.norm_s
    waits_s *= pricing.waits_for_statistics
    return KernelCost(
        plain_s + single_s + norm_s(norm_bytes, item, device) + kernels * device.ramp_s + waits_s,
        (
            plain_s * device.constants.elementwise_backward
            + single_s * device.constants.norm.backward
            + norm_s(norm_bytes, item, device, backward=True)
            + backward_kernels * device.ramp_s
            + waits_s
        ),
        kernels,
        backward_kernels,
    )


_WEIGHT, _INPUT = 0, 1
"""Products of backward for each of forward: gradients of the weight and of the input."""


def _is_frozen(layer: Layer) -> bool:
    """Whether the weight of a layer is not trained."""
    return layer.gradients < 2 and not layer.tensors


def _gradients(layer: Layer, *, first: bool) -> tuple[int, ...]:
    """Products that backward runs; one at least."""
    if _is_frozen(layer):
        return (_INPUT,)
    return (_WEIGHT,) if first or layer.gradients < 2 else (_WEIGHT, _INPUT)


def _matrix_cost(layer: Layer, pricing: Pricing, *, first: bool) -> KernelCost:
    """Time of the matrix kernels, forward and backward."""
    gradients = _gradients(layer, first=first)
    if layer.matrix is None:
        return _stated_cost(layer, pricing, len(gradients))
    return _shaped_cost(layer.matrix, pricing, gradients)


@lru_cache(maxsize=4096)
def _shaped_cost(matrix: LayerKernel, pricing: Pricing, gradients: tuple[int, ...]) -> KernelCost:
    """Time of the matrix kernels of a shape, once for all layers that have it."""
    match batched(matrix, pricing.batch):
        case Attention() as attention:
            return _attention_cost(attention, pricing)
        case Convolution() as conv:
            return _convolution_cost(conv, pricing, gradients)
        case GroupedProduct() as grouped:
            return _grouped_cost(grouped, pricing, gradients)
        case Scan() as scan:
            forward_s, forward = scan_pass(scan, pricing.device, "forward")
            last_s, backward = scan_pass(scan, pricing.device, "backward")
            return KernelCost(forward_s, last_s, forward, backward)
        case MatrixProduct() as product:
            if pricing.compiled:  # torch.compile pads what is not aligned (config.shape_padding)
                product = replace(product, strides=ALIGNED)
            device, both = pricing.device, (product.weight_gradient, product.input_gradient)
            backward_s = sum(product_s(both[each], device) for each in gradients)
            sums_bias = product.has_bias and _WEIGHT in gradients
            if sums_bias:
                summed = device.item_bytes * product.rows * product.columns
                backward_s += elementwise_s(summed, 1, device)
            return KernelCost(product_s(product, device), backward_s, 1, len(gradients) + sums_bias)


def _attention_cost(attention: Attention, pricing: Pricing) -> KernelCost:
    device = pricing.device
    if pricing.narrow_attention:
        casts_s = elementwise_s(CAST_BYTES * attention.elements, CASTS, device)
        forward_s, backward_s = (
            casts_s + fused_attention_s(attention, device, backward=backward, narrow=True)
            for backward in (False, True)
        )
        return KernelCost(forward_s, backward_s, 1 + CASTS, 2 + CASTS)
    if pricing.fused_attention and pricing.plain is not None:
        device = pricing.plain  # no fused kernel of fp32 operands runs in TF32
    cost = fused_attention_s if pricing.fused_attention else unfused_products_s
    kernels = 1 if pricing.fused_attention else 2
    return KernelCost(
        cost(attention, device), cost(attention, device, backward=True), kernels, 2 * kernels
    )


def _grouped_cost(
    grouped: GroupedProduct, pricing: Pricing, gradients: tuple[int, ...]
) -> KernelCost:
    forward_s, *both_s = grouped_passes_s(grouped, pricing.device)
    count = 1 if grouped.single_kernel else grouped.groups
    kernels = round(pricing.device.constants.issued_in_loop(count))
    return KernelCost(
        forward_s, sum(both_s[each] for each in gradients), kernels, len(gradients) * kernels
    )


def _convolution_cost(
    conv: Convolution, pricing: Pricing, gradients: tuple[int, ...]
) -> KernelCost:
    """Choose between kernels with copies of their operands and, beside TF32, plain fp32 ones."""
    device = pricing.device
    passes_s: tuple[float, ...] = convolution_passes_s(conv, device)
    if pricing.transposes and not (conv.channels_last or conv.is_depthwise):
        # both feature maps of a pass are transposed, there or back
        copied_s = map_copy_s(conv.in_elements + conv.out_elements, device) + 2 * device.ramp_s
        passes_s = tuple(each + copied_s for each in passes_s)
        if pricing.plain is not None:
            passes_s = tuple(map(min, passes_s, convolution_passes_s(conv, pricing.plain)))
    forward_s, *both_s = passes_s
    backward_s = sum(both_s[each] for each in gradients)
    adds_bias = conv.has_bias and not pricing.compiled
    sums_bias = conv.has_bias and _WEIGHT in gradients
    bias_s = feature_map_s(device.item_bytes * conv.out_elements, device.item_bytes, device)
    # one call issues copies and bias, too, and one all gradients (aten::convolution_backward)
    return KernelCost(
        forward_s + adds_bias * (2 * bias_s + device.ramp_s),
        backward_s + sums_bias * (bias_s + device.ramp_s),
        1,
        1,
    )


def _stated_cost(layer: Layer, pricing: Pricing, passes: int) -> KernelCost:
    """Time of a kernel of which operations alone are stated: that of a product as large."""
    device = pricing.device
    product = likely_product(layer, pricing.batch)
    moved = pricing.batch * layer.matmul_bytes / ELEMENT_BYTES
    nbytes = device.item_bytes * (moved + layer.weight_elements)
    copies = 2 * (pricing.transposes and layer.kind == "conv")
    copied_s = map_copy_s(moved, device) + copies * device.ramp_s if copies else 0.0
    plain = [pricing.plain] if copies and pricing.plain is not None else []
    each_s = min(
        on.constants.product.ramp_s + busy_s(product, nbytes, on) + copied_s * (on is device)
        for on in (device, *plain)
    )
    return KernelCost(each_s, passes * each_s, 1, passes)


def likely_product(layer: Layer, batch: int) -> MatrixProduct:
    """Return a product with a layer's operations, weight and operands.

    A weight of n elements takes 2 p n operations, so that p = operations / 2n rows go through it.
    Its sides follow from the operands, p times their sum; where they are not stated, it is square.
    Without a weight, a cube is taken.
    """
    flops = batch * layer.matmul_flops
    weight = min(layer.weight_elements, flops / 2)
    if not weight:
        side = max(1, round((flops / 2) ** (1 / 3)))
        rows = max(1, round(flops / (2 * side * side)))
        return MatrixProduct(rows, side, side, strides=ALIGNED)
    rows = flops / (2 * weight)
    half_sum = batch * layer.matmul_bytes / ELEMENT_BYTES / rows / 2
    root = math.sqrt(max(0.0, half_sum**2 - weight))
    side = min(weight, half_sum + root) if root else math.sqrt(weight)
    columns, depth = max(1, round(side)), max(1, round(weight / side))
    return MatrixProduct(round(rows), columns, depth, strides=ALIGNED)
