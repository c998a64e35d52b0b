"""Compute time of each layer: its matrix kernel by shape, its other kernels by their bytes.

`perfmodel.workload.kernels` has the time of one kernel; here layers become kernels. A layer runs
its matrix kernel (product, convolution or attention) and element-wise and normalising kernels
around it, one after the other. Backward repeats the matrix work twice (gradient of the input,
gradient of the weight), except in the first layer, whose input is data.

Half precision means autocast where parameters are fp32: matrix kernels and convolutional
networks move 2 bytes per element, a transformer's normalisations, additions and losses stay in
fp32, every weight is cast once per step and its gradient cast back, and the optimizer works in
fp32. Convolutions on tensor cores want channels last: with PyTorch's default layout each operand
is copied first; where TF32 would lose by that, cuDNN's fp32 kernels are taken.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from perfmodel.errors import allowed_names, failed, raise_faults, refuse_if
from perfmodel.topology.model import Gpu
from perfmodel.workload.compute_spread import roofline_factors
from perfmodel.workload.kernels.device import kernel_constants
from perfmodel.workload.kernels.float8_layers import (
    Float8,
    check_float8,
    float8_layers,
    wide_precision,
)
from perfmodel.workload.kernels.kernel_times import elementwise_s, multi_tensor_s
from perfmodel.workload.layer_cost import layer_cost, matrix_seconds, weight_gradient_s
from perfmodel.workload.memory.activations import cast_weights
from perfmodel.workload.memory.optimizer_states import (
    OptimizerKernels,
    optimizer_bytes,
    optimizer_launches,
    optimizer_operations,
    optimizer_unhidden_s,
)
from perfmodel.workload.model import ELEMENT_BYTES, ITEM_BYTES, LayerTimes, Workload, scaled_fields
from perfmodel.workload.pricing import make_pricing


def layer_times(
    workload: Workload,
    gpu: Gpu,
    *,
    batch: int,
    precision: str,
    optimizer: str = "sgd-momentum",
    optimizer_kernels: OptimizerKernels = "foreach",
    channels_last: bool = False,
    fused_attention: bool | Literal["flash_2", "flash_3", "flash_4", "cudnn"] = True,
    compiled: bool = False,
    held_dtype: str | None = None,
    master_weights: bool = True,
    matmul_efficiency: float | None = None,
    memory_efficiency: float | None = None,
    float8: Float8 | None = None,
    accumulate: int = 1,
) -> LayerTimes:
    """Predict the time of every layer on one GPU.

    Parameters
    ----------
    workload : Workload
    gpu : Gpu
    batch : int
        Samples of one micro-batch.
    precision : str
        "fp32", "tf32", "fp16", "bf16" or "fp8", as far as the GPU has it. With "fp8" linear layers
        of repeated blocks multiply in fp8, and everything else runs as with "bf16".
    optimizer : str
        One that `kernel_constants.yaml` lists.
    optimizer_kernels : str
        "foreach" (PyTorch's default), "fused" or "for-loop" (before PyTorch 2.0).
    channels_last : bool
        Whether convolutions run in NHWC. PyTorch's default, contiguous NCHW, costs tensor-core
        convolutions a transposed copy of each operand.
    fused_attention : bool, "flash_2", "flash_3", "flash_4" or "cudnn"
        Whether attention is one kernel (PyTorch's scaled_dot_product_attention, by the library
        that it takes or by this one) or materialises its scores.
    compiled : bool
        Whether a compiler (torch.compile) makes one kernel of each chain of element-wise kernels.
    held_dtype : str, optional
        Of the parameters that layers run with, where it is not their own: fully sharded training
        gathers them in another one. Layers then cast nothing that is as narrow as the compute.
    master_weights : bool
        Whether narrow parameters have fp32 copies and states; else states are as narrow as they.
    matmul_efficiency, memory_efficiency : float, optional
        Instead of the GPU's.
    float8 : Float8, optional
        How layers run with "fp8"; delayed scaling of Transformer Engine if not given.
    accumulate : int
        Micro-batches of a step, of which the first casts weights to fp8 where a library keeps them.

    Returns
    -------
    LayerTimes

    Raises
    ------
    InputError
        A model without work, an unknown optimizer or one whose products the GPU has not, a
        precision that it does not have, a batch or an efficiency out of range, `compiled` for a
        model that does not state what fuses; fp8 that the GPU or the model has nothing for.
    """
    _check_arguments(workload, gpu, batch, precision, matmul_efficiency, memory_efficiency)
    _check_blocks(workload, bool(fused_attention))
    fuses = any(
        layer.fused_bytes is not None or (layer.score_elements and not fused_attention)
        for layer in workload.layers
    )
    refuse_if(
        compiled and not fuses,
        "compiled",
        f"true for {workload.name!r}, whose file does not state what can be fused",
        "false, or a model of the zoo",
    )
    gpu = replace(
        gpu,
        matmul_efficiency={
            **gpu.matmul_efficiency,
            precision: matmul_efficiency or gpu.matmul_efficiency[precision],
        },
        memory_efficiency=memory_efficiency or gpu.memory_efficiency,
    )
    pricing = make_pricing(
        gpu,
        batch,
        precision,
        casts=cast_weights(workload, wide_precision(precision), held_dtype),
        channels_last=channels_last,
        fused_attention=fused_attention,
        compiled=compiled,
        float8=float8,
        accumulate=accumulate,
    )
    narrow = frozenset[int]()
    if precision == "fp8":
        check_float8(workload, float8 or Float8())
        narrow = float8_layers(workload, float8 or Float8())
    costs = [
        layer_cost(layer, pricing, first=i == 0, is_float8=i in narrow)
        for i, layer in enumerate(workload.layers)
    ]
    products = [
        matrix_seconds(layer, pricing, first=i == 0, is_float8=i in narrow)
        for i, layer in enumerate(workload.layers)
    ]
    total_s = sum(cost.forward_s + cost.backward_s for cost in costs)
    narrow_share = sum(sum(products[layer]) for layer in narrow) / total_s if narrow else 0.0
    launches = optimizer_launches(workload, optimizer, optimizer_kernels)
    gradients_bytes = sum(workload.tensors[index].nbytes for index in workload.ready_order)
    return LayerTimes(
        forward_s=np.array([cost.forward_s for cost in costs]),
        backward_s=np.array([cost.backward_s for cost in costs]),
        forward_kernels=np.array([cost.forward_kernels for cost in costs], dtype=np.int64),
        backward_kernels=np.array([cost.backward_kernels for cost in costs], dtype=np.int64),
        launch_s=gpu.launch_s,
        layer_launches=kernel_constants().host.layer_kernel,
        optimizer_s=optimizer_unhidden_s(workload, optimizer, gpu)
        + multi_tensor_s(
            optimizer_bytes(workload, optimizer, optimizer_kernels, master_weights=master_weights),
            ELEMENT_BYTES if master_weights else ITEM_BYTES[workload.tensors[0].dtype],
            launches,
            pricing.device,
        ),
        optimizer_kernels=optimizer_operations(workload, optimizer, optimizer_kernels),
        optimizer_lists=round(kernel_constants().host.tensor * len(workload.ready_order)),
        # each gradient is read and written
        unscale_s=(precision == "fp16") * elementwise_s(2 * gradients_bytes, 1, pricing.device),
        copy_Bps=pricing.device.memory_Bps / 2,
        source=f"roofline on {gpu.name}",
        spread=roofline_factors(workload, gpu, precision, narrow_share),
        matrix_forward_s=np.array([forward_s for forward_s, _ in products]),
        matrix_backward_s=np.array([backward_s for _, backward_s in products]),
        weight_gradient_s=np.array(
            [
                weight_gradient_s(layer, pricing, is_float8=i in narrow)
                for i, layer in enumerate(workload.layers)
            ]
        ),
    )


def _check_blocks(workload: Workload, fused_attention: bool) -> None:
    """Raise InputError where unfused attention would see keys of other ranks.

    Transformer Engine and torch have rings and gathers of fused kernels alone, whose sums of rows
    join the blocks.
    """
    shard = workload.shard
    refuse_if(
        shard.context > 1 and shard.context_kind != "ulysses" and not fused_attention,
        "fused_attention",
        "false",
        f"true with context_kind: {shard.context_kind}",
    )


def step_s(times: LayerTimes) -> float:
    """Time of a training step on one GPU: the host issues kernels, the device runs them in order.

    A layer starts when the device is free and its first kernel is issued, and cannot end before
    its last kernel is issued.

    In seconds, from forward to the end of the optimizer step.
    """
    host = device = 0.0
    durations_s = [*times.forward_s.tolist(), *times.backward_s[::-1].tolist()]
    kernels_of = (times.forward_kernels, times.backward_kernels[::-1])
    issued = [kernels * times.layer_launches for of in kernels_of for kernels in of.tolist()]
    for duration, kernels in zip(durations_s, issued, strict=True):
        begin = max(device, host + min(kernels, 1) * times.launch_s)
        host += kernels * times.launch_s
        device = max(begin + duration, host)
    if times.unscale_s:
        host = device = device + times.unscale_s
    begin = max(device, host + max(1, times.optimizer_lists) * times.launch_s)
    return max(begin + times.optimizer_s, host + times.optimizer_kernels * times.launch_s)


def _check_arguments(
    workload: Workload,
    gpu: Gpu,
    batch: int,
    precision: str,
    matmul: float | None,
    memory: float | None,
) -> None:
    supported = [name for name in gpu.peak_flops if name in gpu.matmul_efficiency]
    raise_faults(
        failed(
            (
                not any(layer.matmul_flops or layer.vector_bytes for layer in workload.layers),
                "model",
                f"{workload.name!r}, whose file states no work per layer",
                (
                    "a model of the zoo, a shape (model.transformer) or a configuration "
                    "(model.config), or a file with times or matmul_flops per layer"
                ),
            ),
            (
                isinstance(batch, bool) or not isinstance(batch, int) or batch < 1,
                "batch",
                repr(batch),
                "a whole number of samples above zero",
            ),
            (
                precision not in supported,
                "precision",
                repr(precision),
                f"{allowed_names(supported)}, which {gpu.name} has",
            ),
            *(
                (
                    value is not None and not 0 < value <= 1,
                    field,
                    repr(value),
                    "a fraction above 0 and up to 1",
                )
                for field, value in (("matmul_efficiency", matmul), ("memory_efficiency", memory))
            ),
        )
    )


def by_first_flash(workload: Workload, times: LayerTimes) -> LayerTimes:
    """Return times with fused attention as FlashAttention 1 runs it instead of the second."""
    rate = kernel_constants().attention.first_flash_rate
    return scaled_fields(
        times,
        np.array([1 / rate if layer.kind == "attention" else 1.0 for layer in workload.layers]),
        ("forward_s", "backward_s", "matrix_forward_s", "matrix_backward_s"),
    )
