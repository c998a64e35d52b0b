"""Bytes that a rank keeps in the memory of its host, and on the host's drives.

By element of a rank's part, in mixed precision with Adam: 4 of the fp32 parameter, 8 of its moments
and 4 of its gradient, 2 of the gradient in 16 bits where it is kept for accumulation, and 2 of the
parameter with ``offload_param``: the 20 bytes of ZeRO-Infinity's equation 2 (arXiv 2104.07857).
"""

from __future__ import annotations

from perfmodel.scenario.strategies.deepspeed import ZeroStrategy
from perfmodel.training.memory.use import Setup
from perfmodel.training.sharded.zero.offload.drive_parts import (
    STATE_ITEM_BYTES,
    SWAPPED_STATES,
    drive_tensors,
    swaps_states,
)
from perfmodel.training.sharded.zero.partition import part_elements, partition, sub_groups
from perfmodel.workload.model import ITEM_BYTES


def host_bytes(setup: Setup, options: ZeroStrategy) -> tuple[float, float]:
    """Bytes in the memory of the host, and on its drives, of one rank."""
    item = ITEM_BYTES[setup.trained[0].dtype]
    if options.stage < 3:
        part = partition(setup.workload, options, setup.ranks).part_elements
        accumulated = item if options.stage == 2 and options.accumulate > 1 else 0
        return ((1 + SWAPPED_STATES) * STATE_ITEM_BYTES + accumulated) * part, 0.0
    states = _state_bytes(setup, options)
    parts = _parameter_bytes(setup, options, item)
    gradients = 0.0
    if options.offload_optimizer:
        gradients = item * part_elements(setup.workload, setup.workload.ready_order, setup.ranks)
    return states[0] + parts[0] + gradients, states[1] + parts[1]


def _state_bytes(setup: Setup, options: ZeroStrategy) -> tuple[float, float]:
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


def _parameter_bytes(setup: Setup, options: ZeroStrategy, item: int) -> tuple[float, float]:
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
