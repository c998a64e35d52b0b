"""Memory that ZeRO takes on a GPU during backward."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.scenario.strategies.deepspeed import ZeroStrategy
from perfmodel.training.memory.use import MemoryUse, Setup, replicated
from perfmodel.training.sharded.zero.fetches import persistent_tensors, trace_fetches
from perfmodel.training.sharded.zero.offload.drive_parts import drive_tensors
from perfmodel.training.sharded.zero.offload.host_bytes import host_bytes
from perfmodel.training.sharded.zero.partition import part_elements, partition
from perfmodel.training.sharded.zero.zero_passes import MASTER_BYTES
from perfmodel.workload.memory import optimizer_state_bytes
from perfmodel.workload.model import ITEM_BYTES


def zero_memory(setup: Setup) -> MemoryUse:
    """Add up what a rank keeps: parameters, its part of the states, and buffers.

    Buffers of gradients are allocated whole, `reduce_bucket_size` elements each, however small the
    model is (``setup_buckets``). Master copies in fp32 are kept whatever the model's dtype.

    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer.
    """
    options = setup.options
    assert isinstance(options, ZeroStrategy)
    if setup.ranks == 1 and not options.offloads:
        return replicated(setup)
    # stage 1 keeps each gradient where autograd put it; the others copy parts to a buffer
    use = replicated(setup, grows=options.stage == 1)
    options = options.within(setup.ranks)
    rule = _sharded_parameters if options.stage == 3 else _states
    use = rule(setup, options, use)
    if not options.offloads:
        return use
    in_memory, on_drives = host_bytes(setup, options)
    return replace(use, host_bytes=in_memory, drive_bytes=on_drives)


def _state_bytes(setup: Setup, elements: float) -> float:
    """Optimizer states of so many elements, and their fp32 copies."""
    trained = setup.trained
    total = sum(tensor.numel for tensor in trained)
    narrow = sum(tensor.numel for tensor in trained if ITEM_BYTES[tensor.dtype] < MASTER_BYTES)
    states = optimizer_state_bytes(setup.workload, setup.optimizer) - narrow * MASTER_BYTES
    return elements * (states / total + MASTER_BYTES)


def _states(setup: Setup, options: ZeroStrategy, use: MemoryUse) -> MemoryUse:
    """Stages 1 and 2: parameters are whole, in one flat buffer."""
    item = ITEM_BYTES[setup.trained[0].dtype]
    layout = partition(setup.workload, options, setup.ranks)
    trained = sum(tensor.nbytes for tensor in setup.trained)
    buffers = (2 if options.overlaps_backward else 1) * options.reduce_bucket_size * item
    offloaded = options.offload_optimizer
    # offloaded, a buffer of the largest gradient stands for the own part
    largest = max(tensor.nbytes for tensor in setup.trained)
    own = largest if offloaded else layout.part_elements * item
    return replace(
        use,
        parameters_bytes=use.parameters_bytes - trained + layout.elements * item,
        gradients_bytes=own if options.stage == 2 else trained + own,
        optimizer_bytes=0.0 if offloaded else _state_bytes(setup, layout.part_elements),
        buckets_bytes=(
            buffers if options.contiguous_gradients or offloaded else _bucket_bytes(setup, options)
        ),
    )


def _bucket_bytes(setup: Setup, options: ZeroStrategy) -> int:
    """Gradients that are held for a bucket, and their copy when it is sent."""
    trained = [tensor.numel for tensor in setup.trained]
    most = min(sum(trained), max(options.reduce_bucket_size, *trained))
    return 2 * most * ITEM_BYTES[setup.trained[0].dtype]


def _sharded_parameters(setup: Setup, options: ZeroStrategy, use: MemoryUse) -> MemoryUse:
    """Stage 3: parts of parameters, persistent ones whole, and those that are gathered."""
    workload, ranks = setup.workload, setup.ranks
    item = ITEM_BYTES[setup.trained[0].dtype]
    persistent = persistent_tensors(workload, options)
    part = part_elements(workload, range(len(workload.tensors)), ranks)
    own = part_elements(workload, workload.ready_order, ranks)
    secondary = 0
    if options.zero_hpz_partition_size > 1:
        secondary = part * ranks // options.zero_hpz_partition_size
    if options.offload_param:
        part = secondary = 0
    whole = sum(workload.tensors[tensor].numel for tensor in persistent)
    largest = max(tensor.numel for tensor in setup.trained)
    live = trace_fetches(workload, options, drive_tensors(workload, options, ranks)).most_live
    return replace(
        use,
        parameters_bytes=(part + whole + secondary) * item + workload.buffer_bytes,
        gradients_bytes=0.0 if options.offload_optimizer else own * item,
        optimizer_bytes=0.0 if options.offload_optimizer else _state_bytes(setup, own),
        buckets_bytes=options.reduce_bucket_size * item + largest * item,
        gathered_bytes=(live + min(live, options.stage3_prefetch_bucket_size)) * item,
    )
