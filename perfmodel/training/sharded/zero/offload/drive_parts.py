"""Which parts of parameters and states lie on drives, and what DeepSpeed refuses."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.errors import Fault, InputError
from perfmodel.scenario.strategies.deepspeed import OffloadOptimizer, ZeroStrategy
from perfmodel.training.sharded.zero.partition import part_elements, sub_groups
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import ITEM_BYTES, Workload

LEAST_SWAPPED_BYTES = 2**20
"""What is smaller stays in memory (``MIN_AIO_BYTES`` in runtime/swap_tensor/utils.py, and as large
as the default ``block_size`` of ``aio``)."""

STATE_ITEM_BYTES = 4
"""Of an element of each state of the optimizer: fp32."""

SWAPPED_STATES = 3
"""Tensors of a sub-group that are read and written: parameters, and Adam's two moments."""


def swaps_states(elements: int) -> bool:
    """Whether states of a sub-group's part lie on drives (``is_swappable_tensor``)."""
    return elements * STATE_ITEM_BYTES >= LEAST_SWAPPED_BYTES


def drive_tensors(workload: Workload, options: ZeroStrategy, ranks: int) -> frozenset[int]:
    """Parameters whose parts lie on drives.

    Sub-groups stay in host memory while they fit into ``max_in_cpu`` elements, small parts always
    (``_create_fp16_partitions_with_defragmentation``, ``swappable_tensor``). Frozen parameters,
    which have no sub-group, lie on drives, too.
    """
    offload = options.offload_param
    if offload is None or not offload.nvme:
        return frozenset()
    in_memory: set[int] = set()
    end = 0
    for group in sub_groups(workload, options, ranks):
        end += part_elements(workload, group, ranks)
        if end <= offload.max_in_cpu:
            in_memory.update(group)
    return frozenset(
        tensor
        for tensor, each in enumerate(workload.tensors)
        if tensor not in in_memory
        and each.numel > options.stage3_param_persistence_threshold
        and part_elements(workload, (tensor,), ranks) * ITEM_BYTES[each.dtype]
        >= LEAST_SWAPPED_BYTES
    )


def check_offload(request: StepRequest, options: ZeroStrategy) -> None:
    """Raise `InputError`: what the machine has no way for, or DeepSpeed stops at; every fault."""
    if options.offloads:
        faults = [*_machine_faults(request, options), *_buffer_faults(request, options)]
        if faults:
            raise InputError(faults)


def _machine_faults(request: StepRequest, options: ZeroStrategy) -> Iterator[Fault]:
    for name in ("offload_optimizer", "offload_param"):
        offload = getattr(options, name)
        if offload is None:
            continue
        if request.host_link_Bps is None:
            allowed = "a node whose topology connects GPUs with CPUs"
            yield Fault(name, "device: nvme" if offload.nvme else "device: cpu", allowed)
        if offload.nvme and request.drives is None:
            allowed = (
                "'device: cpu', or a node with `nvme: {read: 25 GB/s, write: 20 GB/s}`: the rates "
                "of all drives of a host together"
            )
            yield Fault(name, "device: nvme", allowed)
    if options.offload_optimizer and request.optimizer not in ("adam", "adamw"):
        allowed = "'adam' or 'adamw' with strategy.offload_optimizer, as DeepSpeedCPUAdam is"
        yield Fault("compute.optimizer", repr(request.optimizer), allowed)


def _buffer_faults(request: StepRequest, options: ZeroStrategy) -> Iterator[Fault]:
    states, parts = options.offload_optimizer, options.offload_param
    if states is not None and states.nvme and states.buffer_count < buffers_needed(states):
        yield Fault(
            "offload_optimizer.buffer_count",
            str(states.buffer_count),
            f"{buffers_needed(states)} or more: a sub-group has {SWAPPED_STATES} states and "
            "gradients, and so has each that is read or written beside it",
        )
    if parts is None or not parts.nvme:
        return
    swapped = drive_tensors(request.workload, options, request.ranks)
    largest = max(
        (part_elements(request.workload, (each,), request.ranks) for each in swapped), default=0
    )
    if largest > parts.buffer_size:
        allowed = f"{largest:,} or more: the elements of the largest part"
        yield Fault("offload_param.buffer_size", f"{parts.buffer_size:,}", allowed)


def buffers_needed(offload: OffloadOptimizer) -> int:
    """Buffers of the sub-group that is updated, and of those that are read or written meanwhile."""
    return (SWAPPED_STATES + 1) * (1 + offload.pipeline_read + offload.pipeline_write)
