"""ZeRO stages 1 and 2: one training step as a StepPlan.

The order of events is that of DeepSpeed 0.19 (``deepspeed/runtime/zero/stage_1_and_2.py``):

- Stage 2 reduces the gradients of every micro-batch as backward makes them
  (``reduce_ready_partitions_and_remove_grads``). Stage 1 reduces those of the last one: with
  `overlap_comm` as backward makes them, else after it, in the order of the parameters
  (``reduce_gradients``).
- A bucket is sent once the next gradient does not fit into it, the last one at the end of backward.
- Without overlap the computing stream waits for each reduction. With it, it waits for the reduction
  before, so that two are in progress at most (``average_tensor``), and the host waits at the end of
  backward (``independent_gradient_partition_epilogue``).
- The step agrees on an overflow (not in fp32) and on the norm of the gradients, updates a part,
  and gathers all parameters in one collective: `allgather_bucket_size` and `allgather_partitions`
  count for PyTorch before 1.13 alone (``all_gather_dp_groups`` in deepspeed/runtime/utils.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from perfmodel.training.plan.forward_backward import backward_segments, forward_segments
from perfmodel.training.plan.step_plan import Op, StepPlan
from perfmodel.training.sharded.zero.offload import (
    add_host_update,
    own_gradient_seconds,
)
from perfmodel.training.sharded.zero.options import ZeroOptions
from perfmodel.training.sharded.zero.partition import (
    FlatPartition,
    GradientBucket,
    gradient_buckets,
    partition,
)
from perfmodel.training.sharded.zero.zero_passes import (
    RANKS,
    REDUCTION,
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
from perfmodel.workload.model import ITEM_BYTES

NORM_DTYPE, OVERFLOW_DTYPE = "fp32", "uint8"


@dataclass(slots=True)
class _Reducing:
    """Reductions of one backward.

    `pending`: the bucket that is being filled.
    `ended`: last task of the reduction before.
    """

    layout: FlatPartition
    micro_batch: int
    ended: int | None = None
    outputs: list[int] = field(default_factory=list)


def sharded_states_plan(request: StepRequest, options: ZeroOptions) -> StepPlan:
    """Return one step of stage 1 or 2.

    Raises `ScheduleError`: times that do not fit the workload.
    """
    step = begin_sharding_step(request, options)
    layout = partition(request.workload, options, request.ranks)
    for micro_batch in range(options.accumulate):
        _add_forward(step, micro_batch)
        reducing = _Reducing(layout, micro_batch)
        last = micro_batch == options.accumulate - 1
        if options.stage == 2 or (options.overlaps and last):
            _add_reducing_backward(step, reducing)
        else:
            _add_local_backward(step, micro_batch)
            if last:
                _add_reductions_after(step, reducing)
                if options.offload_optimizer:
                    _add_own_part(step, reducing)
    end = _add_optimizer(step, layout)
    return finish_plan(step, end, f"ZeRO-{options.stage}")


def sent_dtype(step: ShardingStep[ZeroOptions]) -> str:
    """What gradients travel in."""
    return step.options.communication_data_type or step.dtype


def _add_forward(step: ShardingStep[ZeroOptions], micro_batch: int) -> None:
    workload, times = step.request.workload, step.request.times
    for part in forward_segments(workload, times, at_most=step.resolution()):
        add_segment(step, part, "forward", micro_batch)


def _add_local_backward(step: ShardingStep[ZeroOptions], micro_batch: int) -> None:
    """Add backward whose gradients are added up on each rank."""
    workload, times = step.request.workload, step.request.times
    for part in backward_segments(workload, times, at_most=step.resolution()):
        add_segment(step, part, "backward", micro_batch)
        if micro_batch > 0 and part.tensors:
            nbytes = 1.5 * step.numel(part.tensors) * step.item_bytes
            kernels = len(part.tensors)
            add_work(
                step,
                f"add {part.name}",
                "copy",
                step.tasks.copy_s(nbytes, kernels),
                kernels,
                micro_batch,
            )


def _add_reductions_after(step: ShardingStep[ZeroOptions], reducing: _Reducing) -> None:
    """Reduce all gradients after backward, in the order of the parameters."""
    workload = step.request.workload
    order = sorted(workload.ready_order)
    for bucket in gradient_buckets(workload, step.options, reducing.layout, order):
        _add_copies_in(step, bucket.tensors, bucket, reducing.micro_batch)
        _add_reduction(step, reducing, bucket)


def _add_reducing_backward(step: ShardingStep[ZeroOptions], reducing: _Reducing) -> None:
    """Add the backward that sends a bucket when the next gradient does not fit into it."""
    workload, times = step.request.workload, step.request.times
    buckets = gradient_buckets(workload, step.options, reducing.layout, workload.ready_order)
    owner = {tensor: bucket for bucket in buckets for tensor in bucket.tensors}
    firsts = {bucket.tensors[0] for bucket in buckets[1:]}
    current = buckets[0]
    for part in backward_segments(workload, times, at_most=step.resolution(), cut_after=firsts):
        add_segment(step, part, "backward", reducing.micro_batch)
        for bucket in dict.fromkeys(owner[tensor] for tensor in part.tensors):
            if bucket is not current:
                _add_reduction(step, reducing, current)
                current = bucket
            members = [tensor for tensor in part.tensors if owner[tensor] is bucket]
            _add_copies_in(step, members, bucket, reducing.micro_batch)
    _add_reduction(step, reducing, current)
    if step.options.overlaps and reducing.ended is not None:
        step.device_waits = step.host_waits = (reducing.ended,)
    _add_own_part(step, reducing)


def _add_own_part(step: ShardingStep[ZeroOptions], reducing: _Reducing) -> None:
    """Copy a rank's own part of the gradients, or add it to that of the micro-batches before."""
    if step.options.offload_optimizer:
        elements, micro_batch = reducing.layout.part_elements, reducing.micro_batch
        copied_s = own_gradient_seconds(step, elements, micro_batch)
        kernels = max(1, len(step.request.workload.ready_order) // step.request.ranks)
        add_work(step, "own gradients to host", "copy", copied_s, kernels, micro_batch)
        return
    nbytes = reducing.layout.part_elements * step.item_bytes
    kernels = max(1, len(step.request.workload.ready_order) // step.request.ranks)
    adds = 1.5 if reducing.micro_batch > 0 else 1.0
    add_work(
        step,
        "own gradients",
        "copy",
        step.tasks.copy_s(adds * nbytes, kernels),
        kernels,
        reducing.micro_batch,
    )


def _add_copies_in(
    step: ShardingStep[ZeroOptions],
    tensors: list[int] | tuple[int, ...],
    bucket: GradientBucket,
    micro_batch: int,
) -> None:
    """Copy gradients into the bucket's buffer."""
    contiguous = step.options.contiguous_gradients or step.options.offload_optimizer
    if not contiguous or bucket.is_oversized:
        return
    nbytes = step.numel(tensors) * step.item_bytes
    add_work(
        step,
        f"copy in bucket {bucket.index}",
        "copy",
        step.tasks.copy_s(nbytes, len(tensors)),
        len(tensors),
        micro_batch,
    )


def _add_reduction(
    step: ShardingStep[ZeroOptions], reducing: _Reducing, bucket: GradientBucket
) -> None:
    """Average a bucket and send it, on the reducing stream or on the computing one."""
    marks = {"bucket": bucket.index, "micro_batch": reducing.micro_batch}
    name, before = f"bucket {bucket.index}", reducing.ended
    after = [] if step.last is None else [step.last]
    dtype = sent_dtype(step)
    sent_bytes = ITEM_BYTES[dtype]
    for sending in bucket.sendings:
        # divided in place, and copied together where it is sent by owners; then cast
        copied = sending.elements * step.item_bytes * (2 if step.options.reduce_scatter else 1)
        if sent_bytes != step.item_bytes:
            copied += sending.elements * (step.item_bytes + sent_bytes) // 2
        ready = _add_copy(step, f"average {name}", copied, 3, after, marks)
        op: Op = "all_reduce" if sending.owner is None else "reduce"
        target = "" if sending.owner is None else f" to rank {sending.owner}"
        sent = add_collective(
            step,
            f"{op.replace('_', '-')} {name}{target}",
            op,
            sending.elements,
            dtype=dtype,
            after=(ready,),
            root=sending.owner or 0,
            bucket=bucket.index,
            micro_batch=reducing.micro_batch,
        )
        share = sending.elements * step.item_bytes // step.request.ranks
        reducing.ended = _add_copy(step, f"copy out {name}", 2 * share, 2, [sent], marks)
        after = [reducing.ended]
    if step.options.overlaps:
        step.device_waits = () if before is None else (before,)


def _add_copy(
    step: ShardingStep[ZeroOptions],
    name: str,
    nbytes: int,
    kernels: int,
    after: list[int],
    marks: dict[str, int],
) -> int:
    """Copy beside the layers, or between them where nothing overlaps."""
    issued = step.tasks.issue(name, kernels, RANKS, after=step.host_waits, **marks)
    waits = dict.fromkeys((*issued, *after))
    if step.options.overlaps:
        duration_s = step.tasks.copy_s(nbytes, kernels)
        return step.tasks.compute(
            name, "copy", duration_s, RANKS, after=waits, stream=REDUCTION, **marks
        )
    step.last = step.tasks.copy(name, nbytes, kernels, RANKS, after=waits, **marks)
    return step.last


def _add_optimizer(step: ShardingStep[ZeroOptions], layout: FlatPartition) -> int:
    """Agree on the gradients, update a part of the parameters, gather all of them."""
    part = layout.part_elements
    if step.dtype != "fp32":
        add_agreement(step, "overflow", OVERFLOW_DTYPE, part * step.item_bytes)
    add_agreement(step, "gradient norm", NORM_DTYPE, part * step.item_bytes)
    offloaded = step.options.offload_optimizer
    updated = add_host_update(step, part) if offloaded else add_update(step, part)
    return add_collective(
        step,
        "gather parameters",
        "all_gather",
        layout.elements,
        dtype=step.dtype,
        after=(updated,),
    )
