"""Device memory of optimizer states, and traffic and launches of an optimizer step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Literal

from perfmodel.errors import refuse_if
from perfmodel.memo import grouped
from perfmodel.topology.model import Gpu, fp32_peak
from perfmodel.workload.kernels.device import OptimizerKind, kernel_constants, make_device
from perfmodel.workload.kernels.kernel_times import product_s
from perfmodel.workload.kernels.shapes import WIDE_BYTES, MatrixProduct
from perfmodel.workload.memory.blocks import block_of
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor, Workload

OptimizerKernels = Literal["foreach", "fused", "for-loop"]
"""How an optimizer runs: an operation at a time on all tensors (PyTorch's default from 2.0 on), all
of it in one pass (``fused=True``, Apex, DeepSpeed), or tensor by tensor (PyTorch before 2.0)."""

PRODUCTS_OF_ROUND = 3
"""Of Newton and Schulz."""


def optimizer_state_bytes(
    workload: Workload, optimizer: str, *, master_weights: bool = True
) -> int:
    """Bytes of the optimizer's state over all trained parameters.

    fp32 states per element (momentum 1, Adam 2), and fp32 master weights where parameters are
    narrower (Rajbhandari et al. 2019, arXiv 1910.02054, section 3.1: K = 12 for Adam).

    `master_weights`: False: states of the parameters' own dtype and no copies, as torch.optim has.
    """
    return round(
        sum(
            _states_bytes(tensor, kind, wide)
            + wide * tensor.numel * (wide > ITEM_BYTES[tensor.dtype])
            for tensor, kind, wide in _updates(workload, optimizer, master_weights)
        )
    )


def _updates(
    workload: Workload, optimizer: str, master_weights: bool = True
) -> list[tuple[ParameterTensor, OptimizerKind, int]]:
    """Trained tensors, each with what updates it, and bytes of an element that is updated."""
    kind = kernel_constants().optimizer(optimizer)
    return [
        (
            tensor,
            kind.matrices if kind.matrices and _is_matrix(tensor, kind.matrices) else kind,
            WIDE_BYTES if master_weights else ITEM_BYTES[tensor.dtype],
        )
        for tensor in (workload.tensors[index] for index in workload.ready_order)
    ]


def _is_matrix(tensor: ParameterTensor, kind: OptimizerKind) -> bool:
    """Whether a tensor is updated as a matrix; by products only within repeated blocks."""
    return len(tensor.shape) > 1 and (kind.rounds == 0 or block_of(tensor.name) is not None)


def _states_bytes(tensor: ParameterTensor, kind: OptimizerKind, wide_bytes: int) -> float:
    """Bytes of one tensor's state, without a copy of its elements."""
    full = kind.state_tensors * kind.item_bytes(tensor.numel, wide_bytes) * tensor.numel
    return full + kind.edges * wide_bytes * sum(tensor.numel / n for n in tensor.shape[-2:])


def optimizer_unhidden_s(workload: Workload, optimizer: str, gpu: Gpu) -> float:
    """Time of what traffic does not hide: work on elements, waits of the host, products; seconds.

    Products make matrices of updates orthogonal. Of a matrix X, whose rows are the shorter side,
    each round of Newton and Schulz is A = X X', B = b A + c A A and a X + B X
    (torch/optim/_muon.py). Experts in one tensor are a batch.

    Raises `InputError`: the GPU has no bf16, in which they are.
    """
    updates = _updates(workload, optimizer)
    flops = sum(kind.element_flops * tensor.numel for tensor, kind, _ in updates)
    waits = sum(kind.tensor_operations for _, kind, _ in updates if kind.waits)
    elements_s = flops / fp32_peak(gpu.peak_flops) + waits * gpu.launch_s
    shapes = Counter((*_sides(tensor), kind.rounds) for tensor, kind, _ in updates if kind.rounds)
    if not shapes:
        return elements_s
    lacks = "bf16" not in gpu.matmul_efficiency
    refuse_if(lacks, "optimizer", f"{optimizer!r} on {gpu.name}", "a GPU that has bf16")
    device = make_device(gpu, "bf16", ITEM_BYTES["bf16"])
    return elements_s + sum(
        times * rounds * product_s(MatrixProduct(m, columns, depth, count), device)
        for (count, m, n, rounds), times in shapes.items()
        for columns, depth in ((m, n), (m, m), (n, m))
    )


def _sides(tensor: ParameterTensor) -> tuple[int, int, int]:
    """Matrices of a tensor, and the shorter and the longer side of each; kernels lie flat."""
    is_batch = tensor.of_experts and len(tensor.shape) > 2
    count, height, *width = tensor.shape if is_batch else (1, *tensor.shape)
    return count, min(height, prod(width)), max(height, prod(width))


def temporary_share(workload: Workload, optimizer: str) -> float:
    """Copies that a step makes operation by operation, over all of the optimizer's states."""
    updates = _updates(workload, optimizer)
    copies_bytes = sum(kind.copies * WIDE_BYTES * tensor.numel for tensor, kind, _ in updates)
    return copies_bytes / (optimizer_state_bytes(workload, optimizer) or 1)


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
    return round(
        sum(
            _moved_bytes(tensor, kind, wide_bytes, kernels)
            for tensor, kind, wide_bytes in _updates(workload, optimizer, master_weights)
        )
    )


def _moved_bytes(
    tensor: ParameterTensor, kind: OptimizerKind, wide_bytes: int, kernels: OptimizerKernels
) -> float:
    """Bytes that a step moves of one tensor and its state."""
    own, once = ITEM_BYTES[tensor.dtype], 3 + 2 * kind.state_tensors
    is_fused = kernels == "fused" and not kind.tensor_kernels
    passes = max(kind.fused_passes if is_fused else kind.passes, once) - once
    passes += kernel_constants().for_loop.passes if kernels == "for-loop" else 0
    weight = 2 * wide_bytes + own if wide_bytes > own else 2 * own
    states = 2 * _states_bytes(tensor, kind, wide_bytes)
    return tensor.numel * (own + weight + passes * max(wide_bytes, kind.work_bytes)) + states


def optimizer_launches(
    workload: Workload, optimizer: str, kernels: OptimizerKernels = "foreach"
) -> int:
    """Kernels of one optimizer step: a launch has a limit of tensors and one of elements.

    Source: ATen/native/cuda/MultiTensorApply.cuh.
    """
    updated = grouped((kind, tensor.numel) for tensor, kind, _ in _updates(workload, optimizer))
    return sum(_launches(kind, sizes, kernels) for kind, sizes in updated.items())


def _launches(kind: OptimizerKind, sizes: Sequence[int], kernels: OptimizerKernels) -> int:
    """Kernels over tensors of some sizes, in elements."""
    constants = kernel_constants()
    if kernels == "for-loop" or kind.tensor_kernels:
        more = constants.for_loop.operations if kernels == "for-loop" else 0
        return len(sizes) * (_tensor_kernels(kind) + more)
    each, times = (
        (constants.tensors_per_operation, kind.operations)
        if kernels == "foreach"
        else (kind.tensors_per_launch, 1)
    )
    return times * (-(-len(sizes) // each) + sum(sizes) // constants.elements_per_launch)


def _tensor_kernels(kind: OptimizerKind) -> int:
    """Kernels of one tensor where none is over several."""
    return kind.tensor_kernels + PRODUCTS_OF_ROUND * kind.rounds or kind.operations


def optimizer_operations(
    workload: Workload, optimizer: str, kernels: OptimizerKernels = "foreach"
) -> int:
    """Operations alone that take the host as long as one optimizer step: launches, and lists."""
    host, updates = kernel_constants().host, _updates(workload, optimizer)
    lists = host.tensor * len(updates)
    lists += (
        host.corrections * sum(kind.corrections for _, kind, _ in updates) * (kernels != "fused")
    )
    slow = sum(
        max(0, kind.tensor_operations - _tensor_kernels(kind))
        for _, kind, _ in updates
        if not kind.waits
    )
    return round(optimizer_launches(workload, optimizer, kernels) + lists + slow)
