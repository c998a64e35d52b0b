"""Megatron-Core's data parallelism: one training step as a StepPlan.

The order of events is that of Megatron-Core 0.16 (megatron/core/distributed):

- Gradients are added to one buffer (``main_grad``), which is zeroed at the start of the step.
- A bucket is scaled and reduced: with `overlap_grad_reduce` as soon as the last micro-batch has
  made its gradients, whatever the others do; otherwise after backward. The optimizer waits for all.
- The host reads the norm of the gradients; each rank updates its part.
- Parameters are gathered bucket by bucket: after the update, or with `overlap_param_gather` from
  the hooks of the next forward: a module waits for its bucket, and the one after it is sent
  (``finish_param_sync``), so that nothing overlaps with the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from perfmodel.errors import Fault, InputError
from perfmodel.training.plan.builder import EXPERT_COPIES
from perfmodel.training.plan.forward_backward import (
    Segment,
    backward_segments,
    forward_segments,
    visit_segments,
)
from perfmodel.training.plan.step_plan import Communicator, Op, StepPlan, neighbours, strides
from perfmodel.training.sharded.megatron.gradient_buffer import BufferBucket, buffer_buckets
from perfmodel.training.sharded.megatron.options import MegatronOptions
from perfmodel.training.sharded.zero.zero_passes import (
    EVERYONE,
    ShardingStep,
    add_agreement,
    add_collective,
    add_segment,
    add_update,
    add_work,
    begin_sharding_step,
    finish_plan,
)
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import ITEM_BYTES, Workload

INSTANCE, TWINS = "optimizer instance", "holders of the same part"
"""Communicators: of the ranks that hold all states between them, and of those with the same."""

NORM_DTYPE = "fp32"


@dataclass(slots=True)
class _Sharing:
    """What a step shares with the other ranks.

    `fused`: parameters whose kernels add their gradients to the buffer.
    `gathered`, `awaited`: buckets whose gather was sent, with its task, and that layers wait for
        no more.
    """

    step: ShardingStep[MegatronOptions]
    buckets: tuple[BufferBucket, ...]
    shard_ranks: int
    fused: frozenset[int]
    gathered: dict[int, int] = field(default_factory=dict)
    awaited: set[int] = field(default_factory=set)
    reduced: list[int] = field(default_factory=list)

    @property
    def splits(self) -> bool:
        """Whether a rank updates a part of the parameters: an instance may be one rank."""
        return self.step.options.use_distributed_optimizer and self.shard_ranks > 1

    @property
    def gradient_dtype(self) -> str:
        """What the gradient buffer holds."""
        return "fp32" if self.step.options.grad_reduce_in_fp32 else self.step.dtype

    @property
    def gradient_bytes(self) -> int:
        """Bytes of an element of the gradient buffer."""
        return ITEM_BYTES[self.gradient_dtype]

    @property
    def shards(self) -> str:
        """Communicator of an optimizer instance."""
        return INSTANCE if self.shard_ranks < self.step.request.ranks else EVERYONE

    def sharers(self, bucket: BufferBucket) -> str:
        """Communicator of the ranks that hold parts of a bucket's states."""
        return EXPERT_COPIES if bucket.of_experts else self.shards

    def shard_count(self, bucket: BufferBucket) -> int:
        """Ranks that update parts of a bucket."""
        if not bucket.of_experts:
            return self.shard_ranks
        copies = self.step.request.expert_copies
        return self.step.options.shard_ranks(copies) if copies else 1


def megatron_step(request: StepRequest, options: MegatronOptions) -> StepPlan:
    """Return one step.

    Raises `InputError`: instances that do not divide the ranks.
    Raises `ScheduleError`: times that do not fit the workload.
    """
    step = begin_sharding_step(request, options)
    shard_ranks = options.shard_ranks(request.ranks)
    buckets = buffer_buckets(
        request.workload, options, request.ranks, request.gathered_narrow, request.expert_copies
    )
    _check_instances(request, options)
    fused = _products(request.workload) if options.gradient_accumulation_fusion else frozenset()
    sharing = _Sharing(step, buckets, shard_ranks, fused)
    elements = sum(bucket.elements for bucket in buckets)
    zeroed = elements * sharing.gradient_bytes / 2
    add_work(step, "zero gradients", "copy", step.tasks.copy_s(zeroed, 1), 1)
    for micro_batch in range(options.accumulate):
        _add_forward(sharing, micro_batch)
        _add_backward(sharing, micro_batch)
    if not options.overlap_grad_reduce:
        for bucket in buckets:
            step.device_waits = (_add_reduction(sharing, bucket),)
    step.device_waits = (*step.device_waits, *sharing.reduced)
    end = _add_optimizer(sharing)
    others = _instances(request.ranks, shard_ranks)
    if any(bucket.of_experts for bucket in buckets):
        copies = range(request.expert_copies or 1)
        others += (Communicator(EXPERT_COPIES, (copies,), "expert_copies"),)
    return finish_plan(step, end, "Megatron", others)


def _check_instances(request: StepRequest, options: MegatronOptions) -> None:
    instances = options.num_distributed_optimizer_instances
    if request.expert_copies is not None and instances > 1:
        field = "strategy.num_distributed_optimizer_instances"
        raise InputError(Fault(field, str(instances), "1 with parallel.expert of 2 or more"))


def _instances(ranks: int, shard_ranks: int) -> tuple[Communicator, ...]:
    if shard_ranks in (1, ranks):
        return ()
    instances = Communicator(INSTANCE, neighbours(ranks, shard_ranks))
    return instances, Communicator(TWINS, strides(ranks, shard_ranks))


# ---------------------------------------------------------------- forward


def _add_forward(sharing: _Sharing, micro_batch: int) -> None:
    """Add forward; in the first one modules wait for the gather of their parameters."""
    step = sharing.step
    workload, times = step.request.workload, step.request.times
    if not (step.options.overlap_param_gather and sharing.splits) or micro_batch > 0:
        for part in forward_segments(workload, times, at_most=step.resolution()):
            add_segment(step, part, "forward", micro_batch)
        return
    owner = {tensor: bucket.index for bucket in sharing.buckets for tensor in bucket.tensors}
    run: list[int] = []
    for index, layer in enumerate(workload.layers):
        fresh = {owner[tensor] for tensor in layer.tensors} - sharing.awaited
        if fresh and run:
            _add_layers(step, run)
            run = []
        for bucket in sorted(fresh, reverse=True):
            _await_parameters(sharing, bucket)
        run.append(index)
    _add_layers(step, run)


def _add_layers(step: ShardingStep[MegatronOptions], layers: list[int]) -> None:
    workload, times = step.request.workload, step.request.times
    share = max(1, step.resolution() * len(layers) // len(workload.layers))
    for part in visit_segments(workload, times, layers, at_most=share, backward=False):
        add_segment(step, part, "forward", 0)


def _await_parameters(sharing: _Sharing, index: int) -> None:
    """Wait for a bucket of parameters, and send the next one."""
    if index not in sharing.gathered:
        _add_gather(sharing, index, ())
    sharing.awaited.add(index)
    step = sharing.step
    step.device_waits = (*step.device_waits, sharing.gathered[index])
    if index > 0 and index - 1 not in sharing.gathered:
        _add_gather(sharing, index - 1, () if step.last is None else (step.last,))


def _add_gather(sharing: _Sharing, index: int, after: tuple[int, ...]) -> None:
    step, bucket = sharing.step, sharing.buckets[index]
    issued = step.tasks.issue(f"gather bucket {index}", 1, "ranks", after=step.host_waits)
    # parameters in fp8 and others are sent together, as bytes
    wide = (bucket.elements - bucket.narrow_elements) * step.item_bytes
    elements, dtype = bucket.elements, step.dtype
    if bucket.narrow_elements:
        elements, dtype = bucket.narrow_elements + wide, "uint8" if wide else "fp8"
    sharing.gathered[index] = add_collective(
        step,
        f"gather bucket {index}",
        "all_gather",
        elements,
        dtype=dtype,
        after=(*issued, *after),
        communicator=sharing.sharers(bucket),
        bucket=index,
    )


# ---------------------------------------------------------------- backward


def _add_backward(sharing: _Sharing, micro_batch: int) -> None:
    """Add backward, in the last micro-batch with the reduction of each bucket that is complete."""
    step = sharing.step
    workload, times = step.request.workload, step.request.times
    overlaps = step.options.overlap_grad_reduce and micro_batch == step.options.accumulate - 1
    owner = {tensor: bucket.index for bucket in sharing.buckets for tensor in bucket.tensors}
    last = {owner[tensor]: tensor for tensor in workload.ready_order}
    missing = {bucket.index: len(bucket.tensors) for bucket in sharing.buckets}
    for part in backward_segments(
        workload,
        times,
        at_most=step.resolution(),
        cut_after=set(last.values()) if overlaps else (),
    ):
        add_segment(step, part, "backward", micro_batch)
        _add_to_buffer(sharing, part, micro_batch)
        for tensor in part.tensors if overlaps else ():
            missing[owner[tensor]] -= 1
            if missing[owner[tensor]] == 0:
                bucket = sharing.buckets[owner[tensor]]
                sharing.reduced.append(_add_reduction(sharing, bucket))


def _add_to_buffer(sharing: _Sharing, part: Segment, micro_batch: int) -> None:
    """Add gradients to the buffer, or let the kernels that make them do it.

    Such a kernel reads the buffer beside writing it.
    """
    step, tensors = sharing.step, sharing.step.request.workload.tensors
    fused = [each for each in part.tensors if each in sharing.fused]
    others = [each for each in part.tensors if each not in set(fused)]
    nbytes = sum(tensors[each].numel * sharing.gradient_bytes for each in fused) / 2
    for each in others:
        added = 2 * sharing.gradient_bytes + step.item_bytes
        nbytes += tensors[each].numel * added / 2
    if part.tensors:
        add_work(
            step,
            f"add {part.name}",
            "copy",
            step.tasks.copy_s(nbytes, len(others)),
            len(others),
            micro_batch,
        )


def _products(workload: Workload) -> frozenset[int]:
    """Weights of linear layers: an embedding has no matrix product."""
    return frozenset(
        tensor
        for layer in workload.layers
        if layer.matmul_flops > 0
        for tensor in layer.tensors
        if len(workload.tensors[tensor].shape) == 2
    )


def _add_reduction(sharing: _Sharing, bucket: BufferBucket) -> int:
    """Scale a bucket and reduce it; return the last task."""
    step, options = sharing.step, sharing.step.options
    nbytes = bucket.elements * sharing.gradient_bytes
    name, micro_batch = f"bucket {bucket.index}", options.accumulate - 1
    if not options.average_in_collective:
        add_work(step, f"scale {name}", "copy", step.tasks.copy_s(nbytes, 1), 1, micro_batch)
    after = (*step.device_waits, *(() if step.last is None else (step.last,)))
    op: Op = "reduce_scatter" if sharing.splits else "all_reduce"
    sent = add_collective(
        step,
        f"reduce {name}",
        op,
        bucket.elements,
        dtype=sharing.gradient_dtype,
        after=after,
        communicator=sharing.sharers(bucket) if sharing.splits or bucket.of_experts else EVERYONE,
        bucket=bucket.index,
        micro_batch=micro_batch,
    )
    if sharing.splits and sharing.shard_ranks < step.request.ranks and not bucket.of_experts:
        sent = add_collective(
            step,
            f"add up {name}",
            "all_reduce",
            bucket.elements // sharing.shard_ranks,
            dtype=sharing.gradient_dtype,
            after=(sent,),
            communicator=TWINS,
            bucket=bucket.index,
            micro_batch=micro_batch,
        )
    return sent


def _add_optimizer(sharing: _Sharing) -> int:
    """Agree on the norm, update a part, gather what is not gathered beside the next forward."""
    step, options = sharing.step, sharing.step.options
    part = sum(bucket.elements // sharing.shard_count(bucket) for bucket in sharing.buckets)
    add_agreement(
        step,
        "gradient norm",
        NORM_DTYPE,
        part * sharing.gradient_bytes,
        sharing.shards if sharing.splits else None,
    )
    end = add_update(step, part)
    if not sharing.splits or options.overlap_param_gather:
        return end
    for bucket in sharing.buckets:
        _add_gather(sharing, bucket.index, (end,))
        end = sharing.gathered[bucket.index]
    return end
