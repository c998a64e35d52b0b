"""ZeRO-Infinity: the step of the optimizer, one sub-group after the other from drives and back.

As ``step`` of stage3.py in DeepSpeed 0.19 with ``PartitionedOptimizerSwapper`` or, with a pipeline,
``PipelinedOptimizerSwapper``: the states of a sub-group and its fp32 gradients are read, updated by
the CPUs, and the states written, before the next is begun. With ``pipeline_read`` the next one is
read meanwhile; with ``pipeline_write`` the next one does not wait until the last is written, but
its own write does. Gradients were written in backward, beside it; the first read waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.scenario.strategies.deepspeed import OffloadOptimizer, ZeroStrategy
from perfmodel.training.sharded.zero.offload.drive_parts import (
    STATE_ITEM_BYTES,
    SWAPPED_STATES,
    drive_tensors,
    swaps_states,
)
from perfmodel.training.sharded.zero.offload.host_optimizer import (
    add_host_update,
    host_copy_seconds,
)
from perfmodel.training.sharded.zero.partition import part_elements
from perfmodel.training.sharded.zero.zero_passes import (
    DRIVE_READS,
    DRIVE_WRITES,
    RANKS,
    ShardingStep,
    add_update,
    add_work,
)


def add_drive_task(
    step: ShardingStep[ZeroStrategy],
    name: str,
    nbytes: float,
    after: Sequence[int],
    *,
    write: bool = False,
    micro_batch: int = 0,
) -> int:
    """Read or write a file, at this GPU's share of the drives' rate."""
    drives = step.request.drives
    assert drives is not None
    rate_Bps = drives.write_Bps if write else drives.read_Bps
    return step.tasks.compute(
        name,
        "copy",
        nbytes / rate_Bps,
        RANKS,
        after=dict.fromkeys(after),
        stream=DRIVE_WRITES if write else DRIVE_READS,
        micro_batch=micro_batch,
    )


def gradient_bytes(step: ShardingStep[ZeroStrategy], tensors: Sequence[int]) -> int:
    """Bytes of a rank's fp32 gradients that go through drives: small parts stay in memory."""
    model, ranks = step.request.workload, step.request.ranks
    parts = (part_elements(model, (tensor,), ranks) for tensor in tensors)
    return sum(STATE_ITEM_BYTES * part for part in parts if swaps_states(part))


def add_grouped_update(
    step: ShardingStep[ZeroStrategy], groups: Sequence[Sequence[int]], written: Sequence[int]
) -> int:
    """Update one sub-group after the other; return the last task.

    `written`: tasks that wrote gradients.
    """
    options, workload, ranks = step.options, step.request.workload, step.request.ranks
    offload = options.offload_optimizer or OffloadOptimizer()
    parts = [part_elements(workload, group, ranks) for group in groups]
    swapped = [offload.nvme and swaps_states(part) for part in parts]
    on_drives = drive_tensors(workload, options, ranks)
    reading: int | None = None
    writing: int | None = None
    waits = tuple(written) + step.host_waits
    end = -1
    for number, (group, part) in enumerate(zip(groups, parts, strict=True)):
        follows = number + 1 < len(groups) and swapped[number + 1]
        if swapped[number]:
            if reading is None:
                reading = _add_read(step, number, group, part, waits)
            step.device_waits = step.host_waits = (reading, *waits)
            ahead = offload.pipeline_read and follows
            reading = (
                _add_read(
                    step, number + 1, groups[number + 1], parts[number + 1], (reading, *waits)
                )
                if ahead
                else None
            )
        end = _add_one_update(step, part)
        away = [tensor for tensor in group if tensor in on_drives]
        if away:
            nbytes = step.item_bytes * part_elements(workload, away, ranks)
            end = add_drive_task(
                step, f"write parameters of sub-group {number}", nbytes, (end,), write=True
            )
        waits = (end,)
        if swapped[number]:
            before = () if writing is None else (writing,)
            nbytes = SWAPPED_STATES * STATE_ITEM_BYTES * part
            name = f"write states of sub-group {number}"
            writing = add_drive_task(step, name, nbytes, (end, *before), write=True)
            if offload.pipeline_write and follows:
                waits = (end, *before)
            else:
                end, waits, writing = writing, (writing,), None
        step.device_waits = step.host_waits = waits
    step.device_waits = step.host_waits = ()
    return end


def _add_read(
    step: ShardingStep[ZeroStrategy],
    number: int,
    group: Sequence[int],
    part: int,
    after: Sequence[int],
) -> int:
    nbytes = SWAPPED_STATES * STATE_ITEM_BYTES * part + gradient_bytes(step, group)
    return add_drive_task(step, f"read states of sub-group {number}", nbytes, after)


def _add_one_update(step: ShardingStep[ZeroStrategy], part: int) -> int:
    """Update a sub-group where its states are, and bring its parameters to where they lie."""
    if step.options.offload_optimizer:
        return add_host_update(step, part)
    end = add_update(step, part)
    if step.options.offload_param:
        down_s = host_copy_seconds(step, step.item_bytes * part)
        end = add_work(step, "copy parameters down", "copy", down_s, 1)
    return end
