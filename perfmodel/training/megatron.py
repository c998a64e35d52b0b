"""Megatron-Core's data parallelism: its gradient buffer, one training step, and its memory.

The order of events is that of Megatron-Core 0.16 (megatron/core/distributed), the buffer and the
buckets that it is cut into are those of ``_ParamAndGradBuffer`` in param_and_grad_buffer.py:

- Gradients are added to one buffer (``main_grad``), which is zeroed at the start of the step.
- A bucket is scaled and reduced: with `overlap_grad_reduce` as soon as the last micro-batch has
  made its gradients, whatever the others do; otherwise after backward. The optimizer waits for all.
- The host reads the norm of the gradients; each rank updates its part.
- Parameters are gathered bucket by bucket: after the update, or with `overlap_param_gather` from
  the hooks of the next forward: a module waits for its bucket, and the one after it is sent
  (``finish_param_sync``), so that nothing overlaps with the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from perfmodel.arrays import IntArray, round_up
from perfmodel.errors import refuse_if
from perfmodel.scenario.strategies.sharded import (
    MegatronStrategy,
    default_bucket_elements,
)
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.frameworks import fixed_in
from perfmodel.training.memory_use import MemoryUse, Setup, replicated
from perfmodel.training.plan.builder import EXPERT_COPIES, GROUP
from perfmodel.training.plan.forward_backward import visit_segments
from perfmodel.training.plan.step_plan import Communicator, Op, StepPlan, neighbours, strides
from perfmodel.training.sharding_step import ShardingStep
from perfmodel.training.strategy import Setting, StepRequest, Strategy, updating_share
from perfmodel.workload.kernels.shapes import WIDE_BYTES, GroupedProduct, MatrixProduct
from perfmodel.workload.memory.optimizer_states import layer_wise_shares
from perfmodel.workload.model import ITEM_BYTES, Workload


@dataclass(frozen=True, slots=True)
class BufferBucket:
    """Part of the buffer.

    `tensors`: in the order of the buffer; `starts`: their first elements, from that of the bucket.
    `elements`: padding included; `narrow_elements`: of these, parameters that are gathered in fp8.
    `of_experts`: whether these are experts, whose gradients fewer ranks average.
    """

    index: int
    tensors: tuple[int, ...]
    starts: tuple[int, ...]
    elements: int
    narrow_elements: int = 0
    of_experts: bool = False


def buffer_buckets(
    workload: Workload,
    options: MegatronStrategy,
    ranks: int,
    narrow: frozenset[int] = frozenset(),
    expert_copies: int | None = None,
) -> tuple[BufferBucket, ...]:
    """Lay out gradients from the last parameter to the first, and close buckets that are full.

    `narrow`: parameters that are kept in fp8. They have a buffer of their own, and all buckets of
    the other one travel with its last (``partition_buckets``).
    `expert_copies`: ranks that hold the same experts, where ranks share experts: these have buffers
    of their own, after the others (``expert_parallel_buffers``).
    """
    trained = frozenset(workload.ready_order)
    if expert_copies is None:
        return _buffers(workload, options, ranks, trained, narrow)
    experts = frozenset(tensor for tensor in trained if workload.tensors[tensor].of_experts)
    dense = _buffers(workload, options, ranks, trained - experts, narrow - experts)
    shared = _buffers(workload, options, expert_copies, experts, narrow & experts)
    return dense + tuple(
        replace(bucket, index=len(dense) + bucket.index, of_experts=True) for bucket in shared
    )


def _buffers(
    workload: Workload,
    options: MegatronStrategy,
    ranks: int,
    trained: frozenset[int],
    narrow: frozenset[int],
) -> tuple[BufferBucket, ...]:
    """Buckets of some parameters, of which some are kept in fp8."""
    if not narrow:
        return _one_buffer(workload, options, ranks, trained)
    *first, last = _one_buffer(workload, options, ranks, narrow)
    joined = replace(last, narrow_elements=last.elements)
    for bucket in _one_buffer(workload, options, ranks, trained - narrow):
        end = joined.elements
        joined = replace(
            joined,
            tensors=joined.tensors + bucket.tensors,
            starts=(*joined.starts, *(end + start for start in bucket.starts)),
            elements=end + bucket.elements,
        )
    return (*(replace(each, narrow_elements=each.elements) for each in first), joined)


def _one_buffer(
    workload: Workload, options: MegatronStrategy, ranks: int, trained: Iterable[int]
) -> tuple[BufferBucket, ...]:
    """Buckets of the buffer of some parameters."""
    aligned, divisor, least = 1, 1, options.bucket_elements(ranks)
    if options.use_distributed_optimizer:
        busbw = (
            fixed_in("megatron", "busbw_multiple") if options.pad_buckets_for_high_nccl_busbw else 1
        )
        aligned = fixed_in("megatron", "start_multiple")
        divisor = math.lcm(options.shard_ranks(ranks), fixed_in("megatron", "end_multiple"), busbw)
    buckets: list[BufferBucket] = []
    starts: dict[int, int] = {}
    end, order = 0, sorted(trained, reverse=True)
    for tensor in order:
        starts[tensor] = round_up(end, aligned)
        end = starts[tensor] + workload.tensors[tensor].numel
        if (least is not None and end >= least) or tensor == order[-1]:
            places = tuple(starts), tuple(starts.values())
            buckets.append(BufferBucket(len(buckets), *places, round_up(end, divisor)))
            starts, end = {}, 0
    return tuple(buckets)


def owned_elements(
    workload: Workload, buckets: Iterable[BufferBucket], shard_ranks: int
) -> IntArray:
    """Elements of parameters, without padding, in each rank's parts of the buckets."""
    owned = np.zeros(shard_ranks, dtype=np.int64)
    for bucket in buckets:
        part = bucket.elements // shard_ranks
        for tensor, start in zip(bucket.tensors, bucket.starts, strict=True):
            stop = start + workload.tensors[tensor].numel
            first, last = start // part, (stop - 1) // part
            owned[first : last + 1] += part
            owned[first] -= start - first * part
            owned[last] -= (last + 1) * part - stop
    return owned


def megatron_memory(setup: Setup) -> MemoryUse:
    """Add up what a rank keeps: the whole gradient buffer, and its part of the optimizer's states.

    Gradients are views of the buffer, so that there are no others. With the distributed optimizer
    parameters lie in a buffer with the same padding.

    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer, instances that
        do not divide the ranks.
    """
    options: MegatronStrategy = setup.options
    use = replicated(setup, grows=False)
    if options.gradient_accumulation_fusion:
        use = replace(use, temporary_bytes=_stand_in_bytes(setup.workload))
    item = ITEM_BYTES[setup.trained[0].dtype]
    gradient_item = WIDE_BYTES if options.grad_reduce_in_fp32 else item
    trained = sum(tensor.numel for tensor in setup.trained)
    if setup.ranks == 1:  # of a replica split over GPUs, and of a plain model: the buffer, too
        return replace(use, gradients_bytes=trained * gradient_item)
    ranks, copies = setup.ranks, setup.expert_copies
    buckets = buffer_buckets(setup.workload, options, ranks, setup.gathered_narrow, copies)
    shard_ranks = options.shard_ranks(ranks)
    elements = sum(bucket.elements for bucket in buckets)
    use = replace(use, gradients_bytes=elements * gradient_item)
    if not options.use_distributed_optimizer:
        return use
    fullest = 0
    for of_experts, sharers in ((False, shard_ranks), (True, options.shard_ranks(copies or 1))):
        held = [bucket for bucket in buckets if bucket.of_experts == of_experts]
        fullest += int(owned_elements(setup.workload, held, sharers).max())
    return replace(
        use,
        parameters_bytes=use.parameters_bytes + (elements - trained) * item,
        optimizer_bytes=use.optimizer_bytes * fullest / trained,
    )


def _stand_in_bytes(workload: Workload) -> float:
    """Bytes of what stands for gradients that kernels have added to the buffer themselves.

    Autograd gets an empty tensor for each, and Transformer Engine keeps one of each shape and dtype
    (``get_dummy_wgrad`` in transformer_engine/pytorch/module/base.py, which Megatron's output layer
    takes them from, too: megatron/core/tensor_parallel/layers.py).
    """
    kernels = (layer.matrix for layer in workload.layers if layer.gradients > 1)
    products = (each for each in kernels if isinstance(each, MatrixProduct | GroupedProduct))
    shapes = {(each.depth, each.columns) for each in products}
    item = ITEM_BYTES[workload.tensors[workload.ready_order[0]].dtype]
    return float(item * sum(depth * columns for depth, columns in shapes))


def _settings(section: MegatronStrategy, *_: int) -> tuple[Setting, ...]:
    """What goes on beside backward and forward, and in pieces of which size."""
    gathers = (False, True) if section.use_distributed_optimizer else (False,)
    millions = (1, 5, 10, 20, 40, 80, 160, 320)
    return (
        Setting("overlap_grad_reduce", (False, True)),
        Setting("overlap_param_gather", gathers),
        Setting("bucket_size", (None, *(n * 1_000_000 for n in millions)), "elements"),
    )


def _bucket_sizes(section: MegatronStrategy, ranks: int) -> Setting | None:
    """Elements, where they are not stated: shares and multiples of what they are by default."""
    if section.bucket_size is not None or not section.overlap_grad_reduce:
        return None
    usual = default_bucket_elements(ranks)
    return Setting(
        "bucket_size",
        (usual // 8, usual // 4, usual // 2, None, usual * 2, usual * 4, usual * 8),
        "elements",
    )


INSTANCE, TWINS = "optimizer instance", "holders of the same part"
"""Communicators: of the ranks that hold all states between them, and of those with the same."""

NORM_DTYPE = "fp32"


def megatron_plan(request: StepRequest, options: MegatronStrategy) -> StepPlan:
    """Return one step of training with Megatron-Core; of plain training for one rank.

    Raises `InputError`: instances that do not divide the ranks.
    Raises `ScheduleError`: times that do not fit the workload.
    """
    if request.ranks == 1:
        return ddp_plan(request, DdpOptions(accumulate=options.accumulate))
    step = _begin(
        updating_share(request, request.ranks, layer_wise=True)
        if options.layer_wise_distributed_optimizer
        else request,
        options,
    )
    zeroed = sum(bucket.elements for bucket in step.buckets) * step.gradient_bytes
    step.copy("zero gradients", zeroed / 2, 1)
    for micro_batch in range(options.accumulate):
        step.micro_batch = micro_batch
        step.add_forward()
        step.add_backward()
    if not options.overlap_grad_reduce:
        for bucket in step.buckets:
            step.device_waits = (step.add_reduction(bucket),)
    step.device_waits += tuple(step.reduced)
    step.micro_batch = 0
    end, others = step.add_optimizer(), []
    if 1 < step.shard_ranks < request.ranks:
        others.append(Communicator(INSTANCE, neighbours(request.ranks, step.shard_ranks)))
        others.append(Communicator(TWINS, strides(request.ranks, step.shard_ranks)))
    if any(bucket.of_experts for bucket in step.buckets):
        others.append(
            Communicator(EXPERT_COPIES, (range(request.expert_copies or 1),), "expert_copies")
        )
    return step.plan(end, "Megatron", others)


def _begin(request: StepRequest, options: MegatronStrategy) -> _MegatronStep:
    """Lay out the gradients of a step."""
    shard_ranks = options.shard_ranks(request.ranks)
    refuse_if(
        request.expert_copies is not None and options.num_distributed_optimizer_instances > 1,
        "strategy.num_distributed_optimizer_instances",
        str(options.num_distributed_optimizer_instances),
        "1 with parallel.expert of 2 or more",
    )
    buckets = buffer_buckets(
        request.workload, options, request.ranks, request.gathered_narrow, request.expert_copies
    )
    step = _MegatronStep.begin(
        request,
        options,
        buckets=buckets,
        owner={tensor: each.index for each in buckets for tensor in each.tensors},
        shard_ranks=shard_ranks,
        splits=options.use_distributed_optimizer and shard_ranks > 1,
        shards=INSTANCE if shard_ranks < request.ranks else GROUP,
        # weights of matrix products: of linear layers, and of no embedding
        fused=frozenset(
            tensor
            for layer in request.workload.layers
            if options.gradient_accumulation_fusion and layer.matmul_flops > 0
            for tensor in layer.tensors
            if len(request.workload.tensors[tensor].shape) == 2
        ),
    )
    step.gradient_dtype = "fp32" if options.grad_reduce_in_fp32 else step.dtype
    return step


@dataclass(slots=True, kw_only=True)
class _MegatronStep(ShardingStep[MegatronStrategy]):
    """A step under construction, with what it shares with the other ranks.

    `shard_ranks`: ranks that hold all states between them.
    `owner`: bucket of each parameter.
    `splits`: whether a rank updates a part of the parameters: an instance may be one rank.
    `shards`: communicator of an optimizer instance.
    `fused`: parameters whose kernels add their gradients to the buffer.
    `gradient_dtype`: what the gradient buffer holds.
    `gathered`, `awaited`: buckets whose gather was sent, with its task, and that layers wait for
        no more.
    `reduced`: reductions beside backward.
    """

    buckets: tuple[BufferBucket, ...]
    owner: dict[int, int]
    shard_ranks: int
    splits: bool
    shards: str
    fused: frozenset[int]
    gradient_dtype: str = "fp32"
    gathered: dict[int, int] = field(default_factory=dict)
    awaited: set[int] = field(default_factory=set)
    reduced: list[int] = field(default_factory=list)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of an element of the gradient buffer."""
        return ITEM_BYTES[self.gradient_dtype]

    def add_forward(self) -> None:
        """Add forward; in the first one modules wait for the gather of their parameters.

        A module that waits for a bucket sends the next one.
        """
        if not (self.options.overlap_param_gather and self.splits) or self.micro_batch > 0:
            self.forward()
            return
        run: list[int] = []
        for place, layer in enumerate(self.request.workload.layers):
            fresh = {self.owner[tensor] for tensor in layer.tensors} - self.awaited
            if fresh and run:
                self._add_layers(run)
                run = []
            for index in sorted(fresh, reverse=True):
                if index not in self.gathered:
                    self._gather(index, ())
                self.device_waits += (self.gathered[index],)
                if index > 0 and index - 1 not in self.gathered:
                    self._gather(index - 1, self.behind)
            self.awaited |= fresh
            run.append(place)
        self._add_layers(run)

    def _add_layers(self, layers: Sequence[int]) -> None:
        workload, times = self.request.workload, self.request.times
        share = max(1, self.resolution * len(layers) // len(workload.layers))
        for part in visit_segments(workload, times, layers, at_most=share, backward=False):
            self.segment(part, "forward")

    def _gather(self, index: int, after: tuple[int, ...]) -> None:
        bucket, name = self.buckets[index], f"gather bucket {index}"
        issued = self.tasks.issue(name, 1, "ranks", after=self.host_waits)
        # parameters in fp8 and others are sent together, as bytes
        wide = (bucket.elements - bucket.narrow_elements) * self.item_bytes
        elements, dtype = bucket.elements, self.dtype
        if bucket.narrow_elements:
            elements, dtype = bucket.narrow_elements + wide, "uint8" if wide else "fp8"
        self.gathered[index] = self.collective(
            name,
            "all_gather",
            elements,
            dtype=dtype,
            after=(*issued, *after),
            communicator=EXPERT_COPIES if bucket.of_experts else self.shards,
            bucket=index,
        )

    def add_backward(self) -> None:
        """Add backward, in the last micro-batch with the reduction of each complete bucket.

        Gradients are added to the buffer, or by the kernels that make them, which read it beside
        writing it.
        """
        owner, overlaps = self.owner, self.options.overlap_grad_reduce and self.is_last
        last = {owner[tensor]: tensor for tensor in self.request.workload.ready_order}
        for part in self.backward_parts(set(last.values()) if overlaps else ()):
            self.segment(part, "backward")
            if part.tensors:
                others = [tensor for tensor in part.tensors if tensor not in self.fused]
                fused_bytes = (self.numel(part.tensors) - self.numel(others)) * self.gradient_bytes
                added_bytes = self.numel(others) * (2 * self.gradient_bytes + self.item_bytes)
                self.copy(f"add {part.name}", (fused_bytes + added_bytes) / 2, len(others))
            ended = [owner[each] for each in part.tensors if last[owner[each]] == each]
            if overlaps:
                self.reduced += [self.add_reduction(self.buckets[index]) for index in ended]

    def add_reduction(self, bucket: BufferBucket) -> int:
        """Scale a bucket and reduce it; return the last task."""
        name, splits = f"bucket {bucket.index}", self.splits
        if not self.options.average_in_collective:
            self.copy(f"scale {name}", bucket.elements * self.gradient_bytes, 1)
        op: Op = "reduce_scatter" if splits else "all_reduce"
        shards = self.shards if splits else GROUP
        sent = self.collective(
            f"reduce {name}",
            op,
            bucket.elements,
            dtype=self.gradient_dtype,
            after=(*self.device_waits, *self.behind),
            communicator=EXPERT_COPIES if bucket.of_experts else shards,
            bucket=bucket.index,
        )
        if splits and self.shard_ranks < self.request.ranks and not bucket.of_experts:
            sent = self.collective(
                f"add up {name}",
                "all_reduce",
                bucket.elements // self.shard_ranks,
                dtype=self.gradient_dtype,
                after=(sent,),
                communicator=TWINS,
                bucket=bucket.index,
            )
        return sent

    def _part(self, bucket: BufferBucket) -> int:
        """Elements of a bucket that a rank updates."""
        copies = self.request.expert_copies
        ranks = self.options.shard_ranks(copies) if copies else 1
        return bucket.elements // (ranks if bucket.of_experts else self.shard_ranks)

    def add_optimizer(self) -> int:
        """Agree on the norm, update a part, gather what is not gathered beside the next forward."""
        if self.options.layer_wise_distributed_optimizer:
            return self._add_layer_wise_optimizer()
        part = sum(map(self._part, self.buckets))
        group = self.shards if self.splits else None
        self.agree("gradient norm", NORM_DTYPE, part * self.gradient_bytes, group)
        end = self.update(part)
        if self.splits and not self.options.overlap_param_gather:
            for bucket in self.buckets:
                self._gather(bucket.index, (end,))
                end = self.gathered[bucket.index]
        return end

    def _add_layer_wise_optimizer(self) -> int:
        """Update a share of whole tensors, and gather all, which are copied there and back.

        As ``allgather_params`` of layer_wise_optimizer.py: one call, of as many elements of each
        rank as it has.
        """
        workload, item = self.request.workload, self.item_bytes
        own = layer_wise_shares(workload, self.request.ranks)[0]
        elements, total = self.numel(own), self.numel(workload.ready_order)
        self.agree("gradient norm", NORM_DTYPE, elements * self.gradient_bytes)
        self.update(elements, elements)
        self.device_waits = (
            self.collective(
                "gather parameters",
                "all_gather",
                total,
                after=(self.copy("join parameters", elements * item, 1),),
            ),
        )
        return self.copy(
            "copy parameters", (total - elements) * item, len(workload.ready_order) - len(own)
        )


MEGATRON = Strategy(
    "Megatron-Core data parallel",
    megatron_plan,
    megatron_memory,
    settings=_settings,
    bucket_sizes=_bucket_sizes,
    first_differs=lambda _options: False,
)
