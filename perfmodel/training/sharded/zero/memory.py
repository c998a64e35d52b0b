"""Memory that ZeRO takes on a GPU during backward, in the memory of its host and on drives.

Off the GPU, by element of a rank's part, in mixed precision with Adam: 4 of the fp32 parameter, 8
of its moments and 4 of its gradient, 2 of the gradient in 16 bits where it is kept for
accumulation, and 2 of the parameter with ``offload_param``: the 20 bytes of ZeRO-Infinity's
equation 2 (arXiv 2104.07857).
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.training.memory.use import MemoryUse, Setup, replicated
from perfmodel.training.sharded.zero.fetches import persistent_tensors, trace_fetches
from perfmodel.training.sharded.zero.offload import (
    STATE_ITEM_BYTES,
    SWAPPED_STATES,
    drive_tensors,
    swaps_states,
)
from perfmodel.training.sharded.zero.options import ZeroOptions
from perfmodel.training.sharded.zero.partition import part_elements, partition, sub_groups
from perfmodel.training.sharded.zero.zero_passes import MASTER_BYTES
from perfmodel.workload.memory import optimizer_state_bytes
from perfmodel.workload.model import ITEM_BYTES


def host_bytes(setup: Setup, options: ZeroOptions) -> tuple[float, float]:
    """Bytes in the memory of the host, and on its drives, of one rank."""
    item = ITEM_BYTES[setup.trained[0].dtype]
    if options.stage < 3:
        part = partition(setup.workload, options, setup.ranks).part_elements
        accumulated = item if options.stage == 2 and options.accumulate > 1 else 0
        return ((1 + SWAPPED_STATES) * STATE_ITEM_BYTES + accumulated) * part, 0.0
    states = _states_off_gpu(setup, options)
    parts = _parameter_bytes(setup, options, item)
    gradients = 0.0
    if options.offload_optimizer:
        gradients = item * part_elements(setup.workload, setup.workload.ready_order, setup.ranks)
    return states[0] + parts[0] + gradients, states[1] + parts[1]


def _states_off_gpu(setup: Setup, options: ZeroOptions) -> tuple[float, float]:
    """States and fp32 gradients, by sub-group in memory or on drives, and the buffers for these."""
    offload = options.offload_optimizer
    if offload is None:
        return 0.0, 0.0
    groups = sub_groups(setup.workload, options, setup.ranks)
    parts = [part_elements(setup.workload, group, setup.ranks) for group in groups]
    away = [part for part in parts if offload.nvme and swaps_states(part)]
    each = (1 + SWAPPED_STATES) * STATE_ITEM_BYTES
    buffers = offload.buffer_count * STATE_ITEM_BYTES * max(parts) if away else 0.0
    return each * (sum(parts) - sum(away)) + buffers, float(each * sum(away))


def _parameter_bytes(setup: Setup, options: ZeroOptions, item: int) -> tuple[float, float]:
    """Parts of parameters, and buffers: to read them, and to write those of one sub-group."""
    offload, workload = options.offload_param, setup.workload
    if offload is None:
        return 0.0, 0.0
    on_drives = drive_tensors(workload, options, setup.ranks)
    everything = part_elements(workload, range(len(workload.tensors)), setup.ranks)
    away = part_elements(workload, sorted(on_drives), setup.ranks)
    buffers = 0
    if offload.nvme:
        groups = sub_groups(workload, options, setup.ranks)
        written = [group for group in groups if on_drives.intersection(group)]
        # DeepSpeed 0.19 reserves whole parameters of the largest sub-group, not a rank's parts
        whole = [sum(workload.tensors[each].numel for each in group) for group in written]
        buffers = offload.buffer_count * offload.buffer_size + max(whole, default=0)
    return float(item * (everything - away + buffers)), float(item * away)


def zero_memory(setup: Setup) -> MemoryUse:
    """Add up what a rank keeps: parameters, its part of the states, and buffers.

    Buffers of gradients are allocated whole, `reduce_bucket_size` elements each, however small the
    model is (``setup_buckets``). Master copies in fp32 are kept whatever the model's dtype.

    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer.
    """
    options = setup.options
    assert isinstance(options, ZeroOptions)
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


def _states(setup: Setup, options: ZeroOptions, use: MemoryUse) -> MemoryUse:
    """Stages 1 and 2: parameters are whole, in one flat buffer."""
    item = ITEM_BYTES[setup.trained[0].dtype]
    layout = partition(setup.workload, options, setup.ranks)
    trained = sum(tensor.nbytes for tensor in setup.trained)
    buffers = (2 if options.overlaps else 1) * options.reduce_bucket_size * item
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


def _bucket_bytes(setup: Setup, options: ZeroOptions) -> int:
    """Gradients that are held for a bucket, and their copy when it is sent."""
    trained = [tensor.numel for tensor in setup.trained]
    most = min(sum(trained), max(options.reduce_bucket_size, *trained))
    return 2 * most * ITEM_BYTES[setup.trained[0].dtype]


def _sharded_parameters(setup: Setup, options: ZeroOptions, use: MemoryUse) -> MemoryUse:
    """Stage 3: parts of parameters, persistent ones whole, and those that are gathered."""
    workload, ranks = setup.workload, setup.ranks
    item = ITEM_BYTES[setup.trained[0].dtype]
    persistent = persistent_tensors(workload, options)
    part = part_elements(workload, range(len(workload.tensors)), ranks)
    own = part_elements(workload, workload.ready_order, ranks)
    secondary = 0
    if options.hpz_ranks > 1:
        secondary = part * ranks // options.hpz_ranks
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
        gathered_bytes=(live + min(live, options.prefetch_bucket_size)) * item,
    )
