"""Device memory of activations and optimizer state, and the traffic of an optimizer step."""

from __future__ import annotations

from typing import Literal

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.workload.kernels.kernel_constants import kernel_constants
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor, Workload

OptimizerKernels = Literal["foreach", "fused", "for-loop"]
"""How an optimizer runs: an operation at a time on all tensors (PyTorch's default from 2.0 on), all
of it in one pass (``fused=True``, Apex, DeepSpeed), or tensor by tensor (PyTorch before 2.0)."""

STATE_BYTES = 4
"""Optimizer state and master weights are fp32."""


def activation_bytes(
    workload: Workload, batch: int, precision: str, *, fused_attention: bool = True,
    kept_share: float = 1.0, held_dtype: str | None = None,
) -> float:  # fmt: skip
    """Bytes that forward keeps for backward: activations, and weights cast by autocast.

    `batch`: samples of one micro-batch.
    `precision`: of the compute; "fp16" and "bf16" keep 2 bytes per element.
    `fused_attention`: otherwise softmax and dropout of all attention scores are kept too.
    `kept_share`: factor on what layers keep, for an end of `Workload.kept_range`.
    `held_dtype`: of the parameters that layers run with, where it is not their own.
    """
    if precision not in ITEM_BYTES:
        raise InputError(
            Fault("precision", repr(precision), allowed_names(ITEM_BYTES, str(precision)))
        )
    item = ITEM_BYTES[precision]
    saved = kept_share * sum(layer.saved_elements for layer in workload.layers)
    if not fused_attention:
        scores = sum(layer.score_elements for layer in workload.layers)
        saved += kernel_constants().attention.unfused_saved * scores
    weights = 0.0
    if cast_weights(workload, precision, held_dtype):
        weights = sum(layer.weight_elements for layer in workload.layers if layer.matmul_flops)
    return item * (batch * saved + weights)


def cast_weights(workload: Workload, precision: str, held_dtype: str | None = None) -> bool:
    """Whether compute in this precision works on cast copies of the weights (autocast).

    `held_dtype`: of the parameters that layers run with, where it is not their own.
    """
    if held_dtype is not None:
        return ITEM_BYTES[held_dtype] > ITEM_BYTES[precision]
    widest = max((ITEM_BYTES[tensor.dtype] for tensor in workload.tensors), default=0)
    return widest > ITEM_BYTES[precision]


def optimizer_state_bytes(workload: Workload, optimizer: str) -> int:
    """Bytes of the optimizer's state over all trained parameters.

    fp32 states per element (momentum 1, Adam 2), and fp32 master weights where parameters are
    narrower (Rajbhandari et al. 2019, arXiv 1910.02054, section 3.1: K = 12 for Adam).
    """
    states = kernel_constants().optimizer(optimizer).state_tensors
    return sum(
        tensor.numel * STATE_BYTES * (states + _has_master_weights(tensor))
        for tensor in _trained_tensors(workload)
    )


def optimizer_bytes(
    workload: Workload, optimizer: str, kernels: OptimizerKernels = "foreach"
) -> int:
    """Memory traffic of one optimizer step; bytes.

    Fused, per fp32 element: gradient read, weight read and written, each state read and written; so
    12 bytes for SGD, 20 with momentum, 28 for Adam. Narrow parameters are only written, and their
    master weights read and written. Not fused, each operation reads and writes its tensors.
    """
    constants = kernel_constants()
    kind = constants.optimizer(optimizer)
    states = kind.state_tensors
    passes = 0 if kernels == "fused" else kind.passes - (3 + 2 * states)
    passes += constants.for_loop.passes if kernels == "for-loop" else 0
    return sum(
        tensor.numel * (_step_bytes(tensor, states) + passes * STATE_BYTES)
        for tensor in _trained_tensors(workload)
    )


def optimizer_launches(
    workload: Workload, optimizer: str, kernels: OptimizerKernels = "foreach"
) -> int:
    """Kernels of one optimizer step: a launch has a limit of tensors and one of elements.

    Source: ATen/native/cuda/MultiTensorApply.cuh.
    """
    constants = kernel_constants()
    kind = constants.optimizer(optimizer)
    trained = _trained_tensors(workload)
    if kernels == "for-loop":
        return len(trained) * (kind.operations + constants.for_loop.operations)
    elements = sum(tensor.numel for tensor in trained)
    each, times = kind.tensors_per_launch, 1
    if kernels == "foreach":
        each, times = constants.tensors_per_operation, kind.operations
    return times * (-(-len(trained) // each) + elements // constants.elements_per_launch)


def _step_bytes(tensor: ParameterTensor, states: int) -> int:
    """Bytes that a step moves per element of one tensor."""
    own = ITEM_BYTES[tensor.dtype]
    weight = 2 * STATE_BYTES + own if _has_master_weights(tensor) else 2 * own
    return own + weight + 2 * STATE_BYTES * states


def _trained_tensors(workload: Workload) -> list[ParameterTensor]:
    return [workload.tensors[index] for index in workload.ready_order]


def _has_master_weights(tensor: ParameterTensor) -> bool:
    return ITEM_BYTES[tensor.dtype] < STATE_BYTES
