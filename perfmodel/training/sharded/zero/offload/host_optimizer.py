"""ZeRO-Offload: the optimizer's states in the memory of the host, and its step on the host's CPUs.

As in DeepSpeed 0.19 with ``offload_optimizer.device: cpu`` and pinned memory:

- Stages 1 and 2 (``copy_grads_in_partition`` in stage_1_and_2.py): a rank's own gradients go down
  in fp32 when the last micro-batch has reduced them. Until then they are added up in host memory
  by way of the GPU (``async_accumulate_grad_in_cpu_via_gpu``): up, added, down. Which rank's part
  is reduced last depends on the order of backward: here it is the one that the step waits for, and
  copies at the rate that all GPUs of a host reach together.
- Stage 3 (``partition_grads`` in stage3.py): parts of each bucket go down in their own dtype, and
  up again unless they are added up; at the last micro-batch they go down once more, in fp32.
- The step scales the gradients, runs ``DeepSpeedCPUAdam`` (one pass, all cores), converts the
  parameters and copies them up. The device has nothing to do meanwhile.

Copies are issued on the stream of the reductions, so that copies down and up do not overlap.
"""

from __future__ import annotations

from typing import Any

from perfmodel.training.sharded.zero.options import ZeroOptions
from perfmodel.training.sharded.zero.zero_passes import MASTER_BYTES, ShardingStep, add_work
from perfmodel.workload.kernels.device import kernel_constants

SCALED_BYTES = 8
"""Of an fp32 gradient that ``unscale_and_clip_grads`` reads and writes."""


def host_copy_seconds(step: ShardingStep[Any], nbytes: float) -> float:
    """Time of a copy between the GPU and the memory of its host, while all others copy too."""
    assert step.request.host_link_Bps is not None
    return nbytes / step.request.host_link_Bps


def host_bytes(item_bytes: int, optimizer: str) -> int:
    """Bytes of host memory that a step reads and writes, per element of a rank's part.

    Examples
    --------
    >>> host_bytes(2, "adamw")  # 8 scaled, 28 updated, 6 converted
    42
    """
    states = kernel_constants().optimizer(optimizer).state_tensors
    updated = MASTER_BYTES * (1 + 2 + 2 * states)
    return SCALED_BYTES + updated + MASTER_BYTES + item_bytes


def own_gradient_seconds(step: ShardingStep[ZeroOptions], elements: float, micro: int) -> float:
    """Time of the copies of a rank's own gradients after a micro-batch, of stages 1 and 2."""
    accumulate = step.options.accumulate if step.options.stage == 2 else 1
    nbytes = 0.0
    if accumulate > 1:  # down, and up before that from the second on
        nbytes += step.item_bytes * elements * (1 + (micro > 0))
    if micro == step.options.accumulate - 1:
        nbytes += MASTER_BYTES * elements
    return host_copy_seconds(step, nbytes)


def part_seconds(step: ShardingStep[ZeroOptions], elements: float, micro: int) -> float:
    """Time of the copies of a rank's part of a bucket after its reduction, of stage 3."""
    nbytes = 2 * step.item_bytes * elements
    if micro == step.options.accumulate - 1:
        nbytes += MASTER_BYTES * elements
    return host_copy_seconds(step, nbytes)


def add_host_update(step: ShardingStep[ZeroOptions], elements: float) -> int:
    """Update a rank's part on the CPUs and copy its parameters up, unless they lie on the host."""
    request = step.request
    moved = host_bytes(step.item_bytes, request.optimizer) * elements
    seconds = moved / request.host_memory_Bps
    updated = add_work(step, "optimizer on CPUs", "optimizer", seconds, 0)
    if step.options.offload_param:
        return updated
    up_s = host_copy_seconds(step, step.item_bytes * elements)
    return add_work(step, "copy parameters up", "copy", up_s, 1)
