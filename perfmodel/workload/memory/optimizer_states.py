"""Device memory of optimizer states, and traffic and launches of an optimizer step."""

from __future__ import annotations

from typing import Literal

from perfmodel.workload.kernels.device import kernel_constants
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor, Workload

OptimizerKernels = Literal["foreach", "fused", "for-loop"]
"""How an optimizer runs: an operation at a time on all tensors (PyTorch's default from 2.0 on), all
of it in one pass (``fused=True``, Apex, DeepSpeed), or tensor by tensor (PyTorch before 2.0)."""

STATE_BYTES = 4
"""Optimizer state and master weights are fp32."""


def optimizer_state_bytes(
    workload: Workload, optimizer: str, *, master_weights: bool = True
) -> int:
    """Bytes of the optimizer's state over all trained parameters.

    fp32 states per element (momentum 1, Adam 2), and fp32 master weights where parameters are
    narrower (Rajbhandari et al. 2019, arXiv 1910.02054, section 3.1: K = 12 for Adam).

    `master_weights`: False: states of the parameters' own dtype and no copies, as torch.optim has.
    """
    states = kernel_constants().optimizer(optimizer).state_tensors
    if not master_weights:
        return sum(tensor.nbytes * states for tensor in _trained_tensors(workload))
    return sum(
        tensor.numel * STATE_BYTES * (states + _has_master_weights(tensor))
        for tensor in _trained_tensors(workload)
    )


def temporary_share(workload: Workload, optimizer: str) -> float:
    """Copies that a step makes operation by operation, over all of the optimizer's states."""
    copies = kernel_constants().optimizer(optimizer).copies
    states_bytes = optimizer_state_bytes(workload, optimizer)
    if not states_bytes:
        return 0.0
    elements = sum(tensor.numel for tensor in _trained_tensors(workload))
    return copies * STATE_BYTES * elements / states_bytes


def optimizer_bytes(
    workload: Workload,
    optimizer: str,
    kernels: OptimizerKernels = "foreach",
    *,
    master_weights: bool = True,
) -> int:
    """Memory traffic of one optimizer step; bytes.

    Fused, per fp32 element: gradient read, weight read and written, each state read and written; so
    12 bytes for SGD, 20 with momentum, 28 for Adam. Narrow parameters are only written, and their
    master weights read and written. Not fused, each operation reads and writes its tensors.

    `master_weights`: as for `optimizer_state_bytes`.
    """
    constants = kernel_constants()
    kind = constants.optimizer(optimizer)
    states = kind.state_tensors
    passes = 0 if kernels == "fused" else kind.passes - (3 + 2 * states)
    passes += constants.for_loop.passes if kernels == "for-loop" else 0
    if not master_weights:
        return sum(t.nbytes * (3 + 2 * states + passes) for t in _trained_tensors(workload))
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
    each, times = (
        (constants.tensors_per_operation, kind.operations)
        if kernels == "foreach"
        else (kind.tensors_per_launch, 1)
    )
    return times * (-(-len(trained) // each) + elements // constants.elements_per_launch)


def optimizer_operations(
    workload: Workload, optimizer: str, kernels: OptimizerKernels = "foreach"
) -> int:
    """Operations alone that take the host as long as one optimizer step: launches, and lists."""
    constants = kernel_constants()
    corrects = constants.optimizer(optimizer).corrections and kernels != "fused"
    lists = constants.host.tensor + constants.host.corrections * corrects
    launches = optimizer_launches(workload, optimizer, kernels)
    return round(launches + lists * len(workload.ready_order))


def _step_bytes(tensor: ParameterTensor, states: int) -> int:
    """Bytes that a step moves per element of one tensor."""
    own = ITEM_BYTES[tensor.dtype]
    weight = 2 * STATE_BYTES + own if _has_master_weights(tensor) else 2 * own
    return own + weight + 2 * STATE_BYTES * states


def _trained_tensors(workload: Workload) -> list[ParameterTensor]:
    return [workload.tensors[index] for index in workload.ready_order]


def _has_master_weights(tensor: ParameterTensor) -> bool:
    return ITEM_BYTES[tensor.dtype] < STATE_BYTES
