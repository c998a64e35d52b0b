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
- With Muon, matrices are laid out by themselves, and have a norm and a gather of their own. Each
  rank that owns a piece of one gets its whole gradient, which it makes orthogonal
  (``get_flat_partition``): such pieces are all-reduced even where others go to their owners.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby
from operator import itemgetter
from typing import Any

from perfmodel.memo import grouped
from perfmodel.scenario.strategies.deepspeed import ZeroStrategy
from perfmodel.training.frameworks import fixed_in
from perfmodel.training.plan.builder import COMPUTE, RANKS
from perfmodel.training.plan.step_plan import Op, StepPlan
from perfmodel.training.sharding_step import REDUCTION, ShardingStep, full_groups
from perfmodel.training.strategy import StepRequest
from perfmodel.training.zero.offload import add_host_update, own_gradient_seconds
from perfmodel.workload.memory.optimizer_states import parameter_groups
from perfmodel.workload.model import ITEM_BYTES, Workload

NORM_DTYPE, OVERFLOW_DTYPE = "fp32", "uint8"


def sharded_states_plan(request: StepRequest, options: ZeroStrategy) -> StepPlan:
    """Return one step of stage 1 or 2.

    Raises `ScheduleError`: times that do not fit the workload.
    """
    step = ShardingStep.begin(request, options)
    layout = partition(request.workload, options, request.ranks, request.optimizer)
    for micro_batch in range(options.accumulate):
        step.micro_batch = micro_batch
        step.forward()
        if options.stage == 2 or (options.overlaps_backward and step.is_last):
            _add_reducing_backward(step, layout)
        else:
            _add_local_backward(step, layout, reduces=step.is_last)
    step.micro_batch = 0
    return step.plan(_add_optimizer(step, layout), f"ZeRO-{options.stage}")


def sent_dtype(step: ShardingStep[ZeroStrategy]) -> str:
    """Return what gradients travel in."""
    return step.options.communication_data_type or step.dtype


def _add_local_backward(
    step: ShardingStep[ZeroStrategy], layout: FlatPartition, *, reduces: bool
) -> None:
    """Add backward whose gradients are added up on each rank.

    `reduces`: whether all are reduced after it, in the order of the parameters.
    """
    workload, ended = step.request.workload, None
    for part in step.backward_parts():
        step.segment(part, "backward")
        if step.micro_batch > 0 and part.tensors:
            step.copy(
                f"add {part.name}",
                1.5 * step.numel(part.tensors) * step.item_bytes,
                len(part.tensors),
            )
    if not reduces:
        return
    for bucket in gradient_buckets(
        workload,
        step.options,
        layout,
        [*chain(*parameter_groups(workload, step.request.optimizer).values())],
    ):
        _add_copies_in(step, bucket.tensors, bucket)
        ended = _add_reduction(step, bucket, ended)
    if step.options.offload_optimizer:
        _add_own_part(step, layout)


def _add_reducing_backward(step: ShardingStep[ZeroStrategy], layout: FlatPartition) -> None:
    """Add the backward that sends a bucket when the next gradient does not fit into it."""
    workload = step.request.workload
    buckets = gradient_buckets(workload, step.options, layout, workload.ready_order)
    owner = {tensor: bucket for bucket in buckets for tensor in bucket.tensors}
    current, ended = buckets[0], None
    for part in step.backward_parts({bucket.tensors[0] for bucket in buckets[1:]}):
        step.segment(part, "backward")
        for bucket in dict.fromkeys(owner[tensor] for tensor in part.tensors):
            if bucket is not current:
                ended = _add_reduction(step, current, ended)
                current = bucket
            _add_copies_in(
                step, [tensor for tensor in part.tensors if owner[tensor] is bucket], bucket
            )
    ended = _add_reduction(step, current, ended)
    if step.options.overlaps_backward and ended is not None:
        step.device_waits = step.host_waits = (ended,)
    _add_own_part(step, layout)


def _add_own_part(step: ShardingStep[ZeroStrategy], layout: FlatPartition) -> None:
    """Copy a rank's own part of the gradients, or add it to that of the micro-batches before."""
    kernels = max(1, len(step.request.workload.ready_order) // step.request.ranks)
    if step.options.offload_optimizer:
        copied_s = own_gradient_seconds(step, layout.part_elements)
        step.work("own gradients to host", "copy", copied_s, kernels)
    else:
        adds = 1.5 if step.micro_batch > 0 else 1.0
        step.copy("own gradients", adds * layout.part_elements * step.item_bytes, kernels)


def _add_copies_in(
    step: ShardingStep[ZeroStrategy], tensors: Sequence[int], bucket: GradientBucket
) -> None:
    """Copy gradients into the bucket's buffer."""
    contiguous = step.options.contiguous_gradients or step.options.offload_optimizer
    if contiguous and not bucket.is_oversized:
        step.copy(
            f"copy in bucket {bucket.index}", step.numel(tensors) * step.item_bytes, len(tensors)
        )


def _add_reduction(
    step: ShardingStep[ZeroStrategy], bucket: GradientBucket, before: int | None
) -> int | None:
    """Average a bucket and send it, on the reducing stream or on the computing one.

    Returns the last task. `before`: that of the reduction before.
    """
    name, ended, after = f"bucket {bucket.index}", before, step.behind
    dtype, item = sent_dtype(step), step.item_bytes
    casts = 0 if ITEM_BYTES[dtype] == item else item + ITEM_BYTES[dtype]
    for elements, owner in bucket.sendings:
        # divided in place, and copied together where it is sent by owners; then cast
        copied = elements * item * (2 if step.options.reduce_scatter else 1) + elements * casts // 2
        ready = _add_copy(step, f"average {name}", copied, 3, after, bucket.index)
        op: Op = "all_reduce" if owner is None else "reduce"
        target = "" if owner is None else f" to rank {owner}"
        sent = step.collective(
            f"{op.replace('_', '-')} {name}{target}",
            op,
            elements,
            dtype=dtype,
            after=(ready,),
            root=owner or 0,
            bucket=bucket.index,
        )
        share = elements * item // step.request.ranks
        ended = _add_copy(step, f"copy out {name}", 2 * share, 2, (sent,), bucket.index)
        after = (ended,)
    if step.options.overlaps_backward:
        step.device_waits = () if before is None else (before,)
    return ended


def _add_copy(
    step: ShardingStep[ZeroStrategy],
    name: str,
    nbytes: int,
    kernels: int,
    after: tuple[int, ...],
    bucket: int,
) -> int:
    """Copy beside the layers, or between them where nothing overlaps."""
    marks: dict[str, Any] = {"bucket": bucket, "micro_batch": step.micro_batch}
    issued = step.tasks.issue(name, kernels, RANKS, after=step.host_waits, **marks)
    marks["stream"] = REDUCTION if step.options.overlaps_backward else COMPUTE.name
    copied = step.tasks.copy(
        name, nbytes, kernels, RANKS, after=dict.fromkeys((*issued, *after)), **marks
    )
    if not step.options.overlaps_backward:
        step.last = copied
    return copied


def _add_optimizer(step: ShardingStep[ZeroStrategy], layout: FlatPartition) -> int:
    """Agree on the gradients, update a part of the parameters, gather all of them."""
    part = layout.part_elements
    if step.dtype != "fp32":
        step.agree("overflow", OVERFLOW_DTYPE, part * step.item_bytes)
    for elements in layout.groups.values():
        step.agree("gradient norm", NORM_DTYPE, elements // layout.ranks * step.item_bytes)
    end = add_host_update(step, part) if step.options.offload_optimizer else step.update(part)
    for elements in layout.groups.values():
        end = step.collective("gather parameters", "all_gather", elements, after=(end,))
    return end


# ---------------------------------------------------------------- what each rank owns


@dataclass(frozen=True, slots=True)
class FlatPartition:
    """Groups of parameters, those of each one after the other in equal parts.

    `starts`: group of each tensor, and its first element in that.
    `groups`: elements of each group, padding included.
    """

    starts: dict[int, tuple[str, int]]
    groups: dict[str, int]
    ranks: int

    @property
    def part_elements(self) -> int:
        """Elements that each rank owns."""
        return sum(self.groups.values()) // self.ranks

    def owners(self, tensor: int, numel: int) -> Iterator[tuple[int, int]]:
        """Yield rank and number of elements of each piece of a tensor."""
        name, first = self.starts[tensor]
        while numel > 0:
            rank, offset = divmod(first, self.groups[name] // self.ranks)
            piece = min(numel, self.groups[name] // self.ranks - offset)
            yield rank, piece
            first, numel = first + piece, numel - piece


def partition(
    workload: Workload, options: ZeroStrategy, ranks: int, optimizer: str = "adam"
) -> FlatPartition:
    """Lay out the trained parameters as ``DeepSpeedZeroOptimizer`` does.

    `optimizer`: by which they are groups (see `parameter_groups`).
    """
    layout, unit = FlatPartition({}, {}, ranks), fixed_in("deepspeed", "aligned_elements") * ranks
    for name, group in parameter_groups(workload, optimizer).items():
        order = (
            [tensor for rank in range(ranks) for tensor in group[rank::ranks]]
            if options.round_robin_gradients
            else group
        )
        ends = list(accumulate([workload.tensors[tensor].numel for tensor in order], initial=0))
        layout.starts.update(zip(order, ((name, end) for end in ends), strict=False))
        layout.groups[name] = -(-ends[-1] // unit) * unit
    return layout


@dataclass(frozen=True, slots=True)
class GradientBucket:
    """Gradients that are reduced together.

    `is_oversized`: one gradient that is larger than a bucket, and is not copied into one.
    `sendings`: its collectives: the elements of each, and the rank that they go to; None: all.
    """

    index: int
    tensors: tuple[int, ...]
    elements: int
    is_oversized: bool
    sendings: tuple[tuple[int, int | None], ...]


def gradient_buckets(
    workload: Workload, options: ZeroStrategy, layout: FlatPartition | None, order: Sequence[int]
) -> tuple[GradientBucket, ...]:
    """Fill buckets in some order of gradients: one is closed before it would hold too much.

    `layout`: None: buckets are sent whole.
    """
    most = options.reduce_bucket_size
    owned = layout if options.reduce_scatter and options.contiguous_gradients else None
    buckets = []
    for index, tensors in enumerate(full_groups(order, workload, most, exceeds=False)):
        elements = sum(workload.tensors[tensor].numel for tensor in tensors)
        sendings = (
            ((elements, None),)
            if owned is None
            else tuple(_to_owners(workload, options, owned, tensors))
        )
        buckets.append(GradientBucket(index, tensors, elements, elements > most, sendings))
    return tuple(buckets)


def _to_owners(
    workload: Workload, options: ZeroStrategy, layout: FlatPartition, tensors: Sequence[int]
) -> Iterator[tuple[int, int | None]]:
    """Send the pieces of a bucket, of one owner after the other, or of all owners at once.

    A collective is closed once it holds more than a bucket (``average_tensor`` and
    ``allreduce_and_scatter`` in stage_1_and_2.py).
    """
    owned = (
        (rank, {each for each, _ in pieces} if layout.starts[t][0] == "matrices" else {rank}, numel)
        for t in tensors
        for pieces in [tuple(layout.owners(t, workload.tensors[t].numel))]
        for rank, numel in pieces
    )
    pieces = grouped(
        (
            None if options.use_multi_rank_bucket_allreduce or len(receivers) > 1 else rank,
            sum(numel for *_, numel in alike),
        )
        for (rank, receivers), alike in groupby(owned, key=itemgetter(0, 1))
    )
    for owner, sizes in pieces.items():
        elements = 0
        for number, numel in enumerate(sizes, 1):
            elements += numel
            if elements > options.reduce_bucket_size or (elements and number == len(sizes)):
                yield elements, owner
                elements = 0
