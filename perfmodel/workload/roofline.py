"""Compute time of each layer from the datasheet: the roofline with measured efficiencies.

A matrix kernel of F operations and Q bytes needs c = F / (eta P) of compute and m = Q / (eta_m B)
of memory, which overlap partly: it takes (c^p + m^p)^(1/p) plus a fixed ramp t0
(`Gpu.kernel_overhead_s`). With the ramp the efficiency of a product saturates with its size:
c + t0 is an efficiency of eta F / (F + eta P t0), the shape of LLMCompass's A100 matrix products
(github.com/PrincetonUniversity/LLMCompass, figure 5). Element-wise kernels take Q / (eta_m B)
plus the ramp. Backward repeats the matrix work twice (gradient of the input, gradient of the
weight), except in the first layer, whose input is data.

Half precision means autocast where parameters are fp32: matrix kernels and convolutional
networks move 2 bytes per element, a transformer's normalisations, additions and losses stay in
fp32, every weight is cast once per step and its gradient cast back, and the optimizer works in
fp32. Convolutions on tensor cores want channels last: with PyTorch's default layout each operand
is copied first; where TF32 would lose by that, cuDNN's fp32 kernels are taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.topology.model import Gpu
from perfmodel.workload.compute_spread import roofline_factors
from perfmodel.workload.kernel_constants import KernelConstants, kernel_constants
from perfmodel.workload.memory import activation_bytes, cast_weights, optimizer_bytes
from perfmodel.workload.model import ITEM_BYTES, Layer, LayerTimes, Workload

STATED_BYTES = 4
"""Bytes per element at which layers state their traffic."""

TENSOR_CORE_PRECISIONS = frozenset({"tf32", "fp16", "bf16", "fp8"})
"""Precisions whose convolutions want channels last and copy their operands otherwise."""


@dataclass(frozen=True, slots=True)
class _Roofline:
    """Rates and settings of one prediction, the same for all layers; bytes are per element."""

    constants: KernelConstants
    matmul_flops: float
    plain_conv_flops: float  # fp32 kernels that compete with TF32 and its copies; else 0
    traffic_Bps: float
    ramp_s: float
    batch: int
    item_bytes: int
    vector_item_bytes: int  # of element-wise kernels outside convolutional networks
    transposes: bool
    fused_attention: bool
    casts: bool


@dataclass(frozen=True, slots=True)
class _Cost:
    """Time and kernels of one layer."""

    forward_s: float
    backward_s: float
    forward_kernels: int
    backward_kernels: int


def layer_times(
    workload: Workload,
    gpu: Gpu,
    *,
    batch: int,
    precision: str,
    optimizer: str = "sgd-momentum",
    channels_last: bool = False,
    fused_attention: bool = True,
    matmul_efficiency: float | None = None,
    memory_efficiency: float | None = None,
) -> LayerTimes:
    """Predict the time of every layer on one GPU.

    Parameters
    ----------
    workload : Workload
    gpu : Gpu
    batch : int
        Samples of one micro-batch.
    precision : str
        "fp32", "tf32", "fp16" or "bf16", as far as the GPU has it.
    optimizer : str
        "sgd", "sgd-momentum", "adam" or "adamw".
    channels_last : bool
        Whether convolutions run in NHWC. PyTorch's default, contiguous NCHW, costs tensor-core
        convolutions a transposed copy of each operand.
    fused_attention : bool
        Whether attention is one kernel (PyTorch's scaled_dot_product_attention) or materialises
        its scores.
    matmul_efficiency, memory_efficiency : float, optional
        Instead of the GPU's.

    Returns
    -------
    LayerTimes

    Raises
    ------
    InputError
        A model without work, an unknown optimizer, a precision that the GPU does not have, a batch
        or an efficiency out of range.
    """
    _check_arguments(workload, gpu, batch, precision, matmul_efficiency, memory_efficiency)
    gpu = _with_efficiencies(gpu, precision, matmul_efficiency, memory_efficiency)
    roofline = _make_roofline(
        gpu,
        batch,
        precision,
        casts=cast_weights(workload, precision),
        channels_last=channels_last,
        fused_attention=fused_attention,
    )
    costs = [_layer_cost(layer, roofline, first=i == 0) for i, layer in enumerate(workload.layers)]
    launches = optimizer_launches(workload, optimizer)
    optimizer_traffic = optimizer_bytes(workload, optimizer)
    return LayerTimes(
        forward_s=np.array([cost.forward_s for cost in costs]),
        backward_s=np.array([cost.backward_s for cost in costs]),
        forward_kernels=np.array([cost.forward_kernels for cost in costs], dtype=np.int64),
        backward_kernels=np.array([cost.backward_kernels for cost in costs], dtype=np.int64),
        launch_s=gpu.launch_s,
        optimizer_s=optimizer_traffic / roofline.traffic_Bps + launches * gpu.kernel_overhead_s,
        optimizer_kernels=launches,
        copy_Bps=roofline.traffic_Bps / 2,
        activation_bytes=activation_bytes(
            workload, batch, precision, fused_attention=fused_attention
        ),
        source=f"roofline on {gpu.name}",
        spread=roofline_factors(workload),
    )


def _with_efficiencies(gpu: Gpu, precision: str, matmul: float | None, memory: float | None) -> Gpu:
    of_precision = {precision: matmul or gpu.matmul_efficiency[precision]}
    return replace(
        gpu,
        matmul_efficiency={**gpu.matmul_efficiency, **of_precision},
        memory_efficiency=memory or gpu.memory_efficiency,
    )


def _make_roofline(
    gpu: Gpu,
    batch: int,
    precision: str,
    *,
    casts: bool,
    channels_last: bool,
    fused_attention: bool,
) -> _Roofline:
    fp32 = gpu.peak_flops.get("fp32", 0.0) * gpu.matmul_efficiency.get("fp32", 0.0)
    return _Roofline(
        constants=kernel_constants(),
        matmul_flops=gpu.peak_flops[precision] * gpu.matmul_efficiency[precision],
        plain_conv_flops=fp32 if precision == "tf32" else 0.0,
        traffic_Bps=gpu.memory_Bps * gpu.memory_efficiency,
        ramp_s=gpu.kernel_overhead_s,
        batch=batch,
        item_bytes=ITEM_BYTES[precision],
        vector_item_bytes=STATED_BYTES if casts else ITEM_BYTES[precision],
        transposes=precision in TENSOR_CORE_PRECISIONS and not channels_last,
        fused_attention=fused_attention,
        casts=casts,
    )


def optimizer_launches(workload: Workload, optimizer: str) -> int:
    """Kernels of one optimizer step: a launch has a limit of tensors and one of elements.

    Source: ATen/native/cuda/MultiTensorApply.cuh.
    """
    constants = kernel_constants()
    trained = workload.ready_order
    elements = sum(workload.tensors[index].numel for index in trained)
    by_tensors = math.ceil(len(trained) / constants.optimizer(optimizer).tensors_per_launch)
    return by_tensors + elements // constants.elements_per_launch


def step_s(times: LayerTimes) -> float:
    """Time of a training step on one GPU: the host issues kernels, the device runs them in order.

    A layer starts when the device is free and its first kernel is issued, and cannot end before
    its last kernel is issued.

    In seconds, from forward to the end of the optimizer step.
    """
    host = device = 0.0
    for duration, kernels in _issue_order(times):
        begin = max(device, host + min(kernels, 1) * times.launch_s)
        host += kernels * times.launch_s
        device = max(begin + duration, host)
    return device


def _issue_order(times: LayerTimes) -> Iterator[tuple[float, int]]:
    yield from zip(times.forward_s.tolist(), times.forward_kernels.tolist(), strict=True)
    backward = zip(times.backward_s.tolist(), times.backward_kernels.tolist(), strict=True)
    yield from reversed(list(backward))
    yield times.optimizer_s, times.optimizer_kernels


def _check_arguments(
    workload: Workload,
    gpu: Gpu,
    batch: int,
    precision: str,
    matmul: float | None,
    memory: float | None,
) -> None:
    faults = []
    if not any(layer.matmul_flops or layer.vector_bytes for layer in workload.layers):
        model_text = f"{workload.name!r}, whose file states no work per layer"
        allowed = "a model of the zoo, or a file with times or matmul_flops per layer"
        faults.append(Fault("model", model_text, allowed))
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        faults.append(Fault("batch", repr(batch), "a whole number of samples above zero"))
    supported = [name for name in gpu.peak_flops if name in gpu.matmul_efficiency]
    if precision not in supported:
        allowed = f"{allowed_names(supported, str(precision))}, which {gpu.name} has"
        faults.append(Fault("precision", repr(precision), allowed))
    for field, value in (("matmul_efficiency", matmul), ("memory_efficiency", memory)):
        if value is not None and not 0 < value <= 1:
            faults.append(Fault(field, repr(value), "a fraction above 0 and up to 1"))
    if faults:
        raise InputError(faults)


def _layer_cost(layer: Layer, roofline: _Roofline, *, first: bool) -> _Cost:
    """Add up the kernels of a layer."""
    vector, kernels = _vector_work(layer, roofline)
    vector_backward = vector * roofline.constants.vector_backward
    if not layer.matmul_flops:
        # a table: forward gathers its rows, backward zeroes and writes its whole gradient
        vector_backward += layer.weight_elements * STATED_BYTES
        ramps = kernels * roofline.ramp_s
        return _Cost(
            vector / roofline.traffic_Bps + ramps,
            vector_backward / roofline.traffic_Bps + ramps,
            kernels,
            kernels,
        )
    passes = 1 if first else 2
    cast = layer.weight_elements * (STATED_BYTES + roofline.item_bytes) * roofline.casts
    copies = 2 * (roofline.transposes and layer.kind == "conv")
    forward_kernels = kernels + (cast > 0) + copies
    backward_kernels = kernels - 1 + (cast > 0) + passes * (1 + copies)
    matmul_s, matmul_backward_s = _matmul_s(layer, roofline, passes, copies)
    return _Cost(
        matmul_s + (vector + cast) / roofline.traffic_Bps + forward_kernels * roofline.ramp_s,
        matmul_backward_s
        + (vector_backward + cast) / roofline.traffic_Bps
        + backward_kernels * roofline.ramp_s,
        forward_kernels,
        backward_kernels,
    )


def _vector_work(layer: Layer, roofline: _Roofline) -> tuple[float, int]:
    """Bytes and kernels of the element-wise work, forward."""
    item = roofline.item_bytes if layer.kind == "conv" else roofline.vector_item_bytes
    traffic = layer.vector_bytes * roofline.batch * item / STATED_BYTES
    if not layer.score_elements or roofline.fused_attention:
        return traffic, layer.kernels
    # products of the scores in the matrix kernels' precision, softmax in the other
    per_score = (
        roofline.constants.unfused_passes * (roofline.item_bytes + roofline.vector_item_bytes) / 2
    )
    traffic += per_score * layer.score_elements * roofline.batch
    return traffic, layer.kernels + roofline.constants.unfused_kernels


def _matmul_s(layer: Layer, roofline: _Roofline, passes: int, copies: int) -> tuple[float, float]:
    """Time of the matrix kernels, forward and backward, with copies of their operands."""
    work = roofline.batch * layer.matmul_flops
    activations = roofline.batch * layer.matmul_bytes * roofline.item_bytes / STATED_BYTES
    traffic = activations + layer.weight_elements * roofline.item_bytes
    rate, backward_passes = roofline.matmul_flops, float(passes)
    if layer.kind == "attention" and roofline.fused_attention:
        work *= 0.5 if layer.causal else 1.0
        rate *= roofline.constants.attention_efficiency
        backward_passes = roofline.constants.fused_attention_backward
    copied_s = copies * activations / roofline.traffic_Bps
    forward_s = _overlapped_s(work / rate, traffic / roofline.traffic_Bps, roofline) + copied_s
    backward_s = (
        _overlapped_s(
            backward_passes * work / rate, passes * traffic / roofline.traffic_Bps, roofline
        )
        + passes * copied_s
    )
    if copies and roofline.plain_conv_flops:
        compute_s, memory_s = work / roofline.plain_conv_flops, traffic / roofline.traffic_Bps
        plain_s = _overlapped_s(compute_s, memory_s, roofline)
        return min(forward_s, plain_s), min(backward_s, passes * plain_s)
    return forward_s, backward_s


def _overlapped_s(compute_s: float, memory_s: float, roofline: _Roofline) -> float:
    exponent = roofline.constants.overlap_exponent
    return float((compute_s**exponent + memory_s**exponent) ** (1 / exponent))
