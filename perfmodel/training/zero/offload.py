"""ZeRO-Offload and ZeRO-Infinity: states in the memory of the host or on drives, and their update.

The optimizer's states lie in the memory of the host, and its step runs on the host's CPUs, as in
DeepSpeed 0.19 with ``offload_optimizer.device: cpu`` and pinned memory:

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

ZeRO-Infinity updates one sub-group after the other, from drives and back, as ``step`` of stage3.py
in DeepSpeed 0.19 with ``PartitionedOptimizerSwapper`` or, with a pipeline,
``PipelinedOptimizerSwapper``: the states of a sub-group and its fp32 gradients are read, updated by
the CPUs, and the states written, before the next is begun. With ``pipeline_read`` the next one is
read meanwhile; with ``pipeline_write`` the next one does not wait until the last is written, but
its own write does. Gradients were written in backward, beside it; the first read waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain

from perfmodel.errors import Fault, failed, raise_faults
from perfmodel.scenario.strategies.deepspeed import OffloadOptimizer, ZeroStrategy
from perfmodel.training.frameworks import fixed_in
from perfmodel.training.plan.builder import RANKS
from perfmodel.training.sharding_step import DRIVE_READS, DRIVE_WRITES, ShardingStep, full_groups
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.kernels.device import kernel_constants
from perfmodel.workload.kernels.shapes import WIDE_BYTES
from perfmodel.workload.memory.optimizer_states import parameter_groups
from perfmodel.workload.model import ITEM_BYTES, Workload

SWAPPED_STATES = 3
"""Tensors of a sub-group that are read and written: parameters, and Adam's two moments."""


def part_elements(workload: Workload, tensors: Sequence[int], ranks: int) -> int:
    """Elements of a rank's part of some parameters, each of them padded."""
    return sum(-(-workload.tensors[tensor].numel // ranks) for tensor in tensors)


def sub_groups(
    workload: Workload, options: ZeroStrategy, ranks: int, optimizer: str = "adam"
) -> tuple[tuple[int, ...], ...]:
    """Parameters that the optimizer updates at once (``_create_fp16_sub_groups``)."""
    return tuple(
        each
        for group in parameter_groups(workload, optimizer).values()
        for each in full_groups(group, workload, options.sub_group_size, ranks=ranks, exceeds=True)
    )


def swaps_states(elements: int) -> bool:
    """Return whether states of a sub-group's part lie on drives (``is_swappable_tensor``)."""
    return elements * WIDE_BYTES >= fixed_in("deepspeed", "least_swapped_bytes")


def drive_tensors(workload: Workload, options: ZeroStrategy, ranks: int) -> frozenset[int]:
    """Return the parameters whose parts lie on drives.

    Sub-groups stay in host memory while they fit into ``max_in_cpu`` elements, small parts always
    (``_create_fp16_partitions_with_defragmentation``, ``swappable_tensor``). Frozen parameters,
    which have no sub-group, lie on drives, too.
    """
    offload = options.offload_param
    if offload is None or not offload.nvme:
        return frozenset()
    groups = sub_groups(workload, options, ranks)
    ends = accumulate(part_elements(workload, group, ranks) for group in groups)
    kept = (group for group, end in zip(groups, ends, strict=True) if end <= offload.max_in_cpu)
    in_memory = frozenset(chain.from_iterable(kept))
    return frozenset(
        tensor
        for tensor, each in enumerate(workload.tensors)
        if tensor not in in_memory
        and each.numel > options.stage3_param_persistence_threshold
        and part_elements(workload, (tensor,), ranks) * ITEM_BYTES[each.dtype]
        >= fixed_in("deepspeed", "least_swapped_bytes")
    )


def check_offload(request: StepRequest, options: ZeroStrategy) -> None:
    """Raise `InputError`: what the machine has no way for, or DeepSpeed stops at; every fault."""
    if options.offloads:
        raise_faults([*_machine_faults(request, options), *_buffer_faults(request, options)])


def _machine_faults(request: StepRequest, options: ZeroStrategy) -> Iterator[Fault]:
    for name in ("offload_optimizer", "offload_param"):
        if offload := getattr(options, name):
            yield from failed(
                (
                    request.host_link_Bps is None,
                    name,
                    f"device: {offload.device}",
                    "a node whose topology connects GPUs with CPUs",
                ),
                (
                    offload.nvme and request.drives is None,
                    name,
                    "device: nvme",
                    (
                        "'device: cpu', or a node with `nvme: {read: 25 GB/s, write: 20 GB/s}`: "
                        "the rates of all drives of a host together"
                    ),
                ),
            )


def _buffer_faults(request: StepRequest, options: ZeroStrategy) -> Iterator[Fault]:
    states, parts = options.offload_optimizer, options.offload_param
    if states is not None and states.nvme and states.buffer_count < buffers_needed(states):
        yield Fault(
            "offload_optimizer.buffer_count",
            str(states.buffer_count),
            f"{buffers_needed(states)} or more: {SWAPPED_STATES + 1} (parameters, two moments, "
            "gradients) for each sub-group that is updated, read or written at a time",
        )
    largest = max(
        (
            part_elements(request.workload, (each,), request.ranks)
            for each in drive_tensors(request.workload, options, request.ranks)
        ),
        default=0,
    )
    if parts is not None and largest > parts.buffer_size:
        yield Fault(
            "offload_param.buffer_size",
            f"{parts.buffer_size:,}",
            f"{largest:,} or more: the elements of the largest part",
        )


def buffers_needed(offload: OffloadOptimizer) -> int:
    """Return the buffers of the sub-group that is updated, and of those that move meanwhile."""
    return (SWAPPED_STATES + 1) * (1 + offload.pipeline_read + offload.pipeline_write)


def host_bytes(item_bytes: int, optimizer: str) -> int:
    """Return the bytes of host memory that a step moves, per element of a rank's part.

    Examples
    --------
    >>> host_bytes(2, "adamw")  # 8 scaled, 28 updated, 6 converted
    42
    """
    updated = WIDE_BYTES * (1 + 2 + 2 * kernel_constants().optimizer(optimizer).state_tensors)
    return fixed_in("deepspeed", "scaled_bytes") + updated + WIDE_BYTES + item_bytes


def own_gradient_seconds(step: ShardingStep[ZeroStrategy], elements: float) -> float:
    """Return the time of the copies of own gradients after a micro-batch.

    Where gradients of several micro-batches are added up, they go down, and from the second on up
    before that; in stage 3, parts of buckets go both ways. After the last micro-batch they go down
    in fp32.
    """
    adds = step.options.accumulate > 1 and step.options.stage == 2
    trips = 2 if step.options.stage == 3 else (1 + (step.micro_batch > 0)) if adds else 0
    item_bytes = trips * step.item_bytes + (WIDE_BYTES if step.is_last else 0)
    return step.request.host_copy_s(item_bytes * elements)


def add_host_update(step: ShardingStep[ZeroStrategy], elements: float) -> int:
    """Update a rank's part on the CPUs and copy its parameters up, unless they lie on the host."""
    updated_s = (
        host_bytes(step.item_bytes, step.request.optimizer) * elements
    ) / step.request.host_memory_Bps
    updated = step.work("optimizer on CPUs", "optimizer", updated_s, 0)
    if step.options.offload_param:
        return updated
    return step.work(
        "copy parameters up", "copy", step.request.host_copy_s(step.item_bytes * elements), 1
    )


def add_drive_task(
    step: ShardingStep[ZeroStrategy],
    name: str,
    nbytes: float,
    after: Sequence[int],
    *,
    write: bool = False,
) -> int:
    """Read or write a file, at this GPU's share of the drives' rate."""
    assert step.request.drives is not None
    return step.tasks.compute(
        name,
        "copy",
        nbytes / (step.request.drives.write_Bps if write else step.request.drives.read_Bps),
        RANKS,
        after=dict.fromkeys(after),
        stream=DRIVE_WRITES if write else DRIVE_READS,
        micro_batch=step.micro_batch,
    )


def gradient_bytes(step: ShardingStep[ZeroStrategy], tensors: Sequence[int]) -> int:
    """Return the bytes of a rank's fp32 gradients on drives: small parts stay in memory."""
    model, ranks = step.request.workload, step.request.ranks
    parts = (part_elements(model, (tensor,), ranks) for tensor in tensors)
    return sum(WIDE_BYTES * part for part in parts if swaps_states(part))


def add_grouped_update(
    step: ShardingStep[ZeroStrategy], groups: Sequence[Sequence[int]], written: Sequence[int]
) -> int:
    """Update one sub-group after the other; return the last task.

    `written`: tasks that wrote gradients.
    """
    options, workload, ranks = step.options, step.request.workload, step.request.ranks
    offload = options.offload_optimizer or OffloadOptimizer()
    parts = [part_elements(workload, group, ranks) for group in groups]
    swapped = [*(offload.nvme and swaps_states(part) for part in parts), False]
    on_drives = drive_tensors(workload, options, ranks)
    reading: int | None = None
    writing: tuple[int, ...] = ()
    waits, end = (*written, *step.host_waits), -1

    def read(number: int, after: Sequence[int]) -> int:
        state_bytes = SWAPPED_STATES * WIDE_BYTES * parts[number]
        nbytes = state_bytes + gradient_bytes(step, groups[number])
        return add_drive_task(step, f"read states of sub-group {number}", nbytes, after)

    for number, (group, part) in enumerate(zip(groups, parts, strict=True)):
        follows = swapped[number + 1]
        if swapped[number]:
            waits = (read(number, waits) if reading is None else reading, *waits)
            step.device_waits = step.host_waits = waits
            reading = read(number + 1, waits) if offload.pipeline_read and follows else None
        end = _add_one_update(step, part)
        away = [tensor for tensor in group if tensor in on_drives]
        if away:
            nbytes = step.item_bytes * part_elements(workload, away, ranks)
            name = f"write parameters of sub-group {number}"
            end = add_drive_task(step, name, nbytes, (end,), write=True)
        waits = (end,)
        if swapped[number]:
            nbytes = SWAPPED_STATES * WIDE_BYTES * part
            name, waits = f"write states of sub-group {number}", (end, *writing)
            writing = (add_drive_task(step, name, nbytes, waits, write=True),)
            if not (offload.pipeline_write and follows):
                end = writing[0]
                waits, writing = writing, ()
        step.device_waits = step.host_waits = waits
    step.device_waits = step.host_waits = ()
    return end


def _add_one_update(step: ShardingStep[ZeroStrategy], part: int) -> int:
    """Update a sub-group where its states are, and bring its parameters to where they lie."""
    if step.options.offload_optimizer:
        return add_host_update(step, part)
    end = step.update(part)
    if step.options.offload_param:
        end = step.work(
            "copy parameters down", "copy", step.request.host_copy_s(step.item_bytes * part), 1
        )
    return end
