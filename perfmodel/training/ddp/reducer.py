"""DDP's reducer during backward: copy in, all-reduce in bucket order, copy out.

With mixed precision parameters are cast before forward, and gradients are cast back once they are
reduced, as in torch 2.13 (``_root_copy_hook`` and ``_module_wait_for_copy_hook`` in
torch/nn/parallel/distributed.py, ``_reducer_allreduce_and_upcast_hook`` in
torch/distributed/algorithms/ddp_comm_hooks/mixed_precision_hooks.py): before forward the host
issues a cast of each parameter on a stream of its own, and each module waits for its own. Gradients
lie in buckets of `param_dtype`, whose sizes are still those of the parameters' own dtype. A bucket
is converted to `reduce_dtype` if that is another, reduced, divided, and its gradients are cast back
on another stream, for all of which the end of backward waits before it copies buckets back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfmodel.scenario.strategies.ddp import MixedPrecisionSection
from perfmodel.training.ddp.bucket_hooks import hook_at, reduce_bucket
from perfmodel.training.ddp.bucket_reduction import BucketReduction
from perfmodel.training.ddp.buckets import Bucket
from perfmodel.training.frameworks import fixed_in
from perfmodel.training.plan.builder import GROUP
from perfmodel.training.plan.forward_backward import (
    Step,
    add_backward_segment,
    backward_segments,
    forward_segments,
)
from perfmodel.training.plan.step_plan import Stream
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor

CASTS = Stream("parameter casts", "copy")


@dataclass(slots=True)
class _Filling:
    """Buckets while backward fills them.

    `owner`: bucket of each gradient. `missing`: gradients that each bucket still waits for.
    `copied`: the last copy into each.
    """

    step: Step
    buckets: Sequence[Bucket]
    owner: dict[int, int] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    copied: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.owner = {tensor: each.index for each in self.buckets for tensor in each.tensors}
        self.missing = [len(each.tensors) for each in self.buckets]
        self.copied = [0] * len(self.buckets)

    def copy_kernels(self, tensors: Sequence[int]) -> int:
        """Return kernels that copy gradients: one each, or two for each bucket that is full."""
        owners = [self.owner[tensor] for tensor in tensors]
        if not self.step.options.batched_grad_copy:
            return len(tensors)
        return sum(2 for index in set(owners) if self.missing[index] == owners.count(index))

    def add_copies(self, name: str, tensors: Sequence[int], *, after: tuple[int, ...] = ()) -> None:
        """Scale gradients into their buckets: one task per bucket that the segment touches.

        With batched copies a bucket is filled once all of its gradients are ready: by a copy, and a
        division in place.
        """
        step = self.step
        for index in sorted({self.owner[tensor] for tensor in tensors}):
            members = [tensor for tensor in tensors if self.owner[tensor] == index]
            self.missing[index] -= len(members)
            passes, kernels = 1, len(members)
            if step.options.batched_grad_copy and self.missing[index]:
                continue
            if step.options.batched_grad_copy:
                members = [tensor for tensor, owner in self.owner.items() if owner == index]
                passes = kernels = 1 if step.options.has_hook else 2
            self.copied[index] = step.tasks.copy(
                f"copy in {name}",
                passes * step.gradient_bytes(members),
                kernels,
                step.rank_class,
                after=after,
                bucket=index,
                micro_batch=step.last_micro_batch,
            )

    def reduce(self, bucket: Bucket) -> int:
        """Reduce a bucket as the hook does; return its last task.

        It waits for its own last copy and for those of the buckets before it, which one worker's
        order implies and two workers' does not.
        """
        step, mixed = self.step, self.step.options.mixed_precision
        complete = self.copied[bucket.index], max(self.copied[: bucket.index + 1])
        reduction = BucketReduction(step, bucket, tuple(dict.fromkeys(complete)))
        if mixed is not None:
            return _reduce_and_upcast(reduction, mixed)
        return reduce_bucket(reduction, hook_at(step.options.hook, step.request.iteration))


def add_reducing_backward(step: Step, buckets: Sequence[Bucket]) -> tuple[int, ...]:
    """Add the backward that launches each bucket once it and all before it are complete.

    Returns per bucket the task after which it is reduced; then that of the used-parameter map. In
    the first iteration of a static graph everything follows backward, the map first.
    """
    filling, workload, reduced = _Filling(step, buckets), step.request.workload, list[int]()
    delayed = step.options.static_graph and step.request.iteration == "first"
    last = {filling.owner[tensor]: tensor for tensor in workload.ready_order}
    parts = backward_segments(
        workload,
        step.request.times,
        at_most=step.resolution(step.last_micro_batch),
        cut_after=() if delayed else frozenset(last.values()),
        devices=step.options.layer_devices,
    )
    if delayed:
        ends = [add_backward_segment(step, part, step.last_micro_batch) for part in parts]
        used_map = _add_used_map_reduction(step, after=ends[-1])
        tensors = [tensor for part in parts for tensor in part.tensors]
        issued = step.tasks.issue("copy in all gradients", len(tensors), step.rank_class)
        filling.add_copies("all gradients", tensors, after=issued)
        return (*map(filling.reduce, buckets), used_map)
    for part in parts:
        add_backward_segment(
            step, part, step.last_micro_batch, copy_kernels=filling.copy_kernels(part.tensors)
        )
        filling.add_copies(part.name, part.tensors)
        while len(reduced) < len(buckets) and filling.missing[len(reduced)] == 0:
            reduced.append(filling.reduce(buckets[len(reduced)]))
    if step.options.find_unused_parameters and not step.options.static_graph:
        reduced.append(_add_used_map_reduction(step, after=filling.copied[-1]))
    return tuple(reduced)


def add_copy_out(
    step: Step, buckets: Sequence[Bucket], reduced: tuple[int, ...]
) -> tuple[int, ...]:
    """Copy buckets back into the gradients, in bucket order; return what the optimizer waits for.

    Nothing is copied where gradients are views of their bucket, but to a bucket that was converted
    for its reduction. With mixed precision all conversions of gradients come first.
    """
    mixed = step.options.mixed_precision
    if step.options.gradient_as_bucket_view and not (mixed and mixed.casts_buckets):
        return reduced
    ends = []
    for bucket, done in zip(buckets, reduced, strict=False):
        name, kernels = f"copy out bucket {bucket.index}", len(bucket.tensors)
        marks: dict[str, Any] = {"bucket": bucket.index, "micro_batch": step.last_micro_batch}
        waits = (done,) if step.request.blocking_wait else ()
        issued = step.tasks.issue(name, kernels, step.rank_class, after=waits, **marks)
        after = dict.fromkeys((*issued, *((done,) if mixed is None else reduced)))
        nbytes = bucket.nbytes if mixed is None else _returned_bytes(step, bucket, mixed)
        marks["role"] = "copy_out"
        ends.append(step.tasks.copy(name, nbytes, kernels, step.rank_class, after=after, **marks))
    return (*ends, *reduced[len(buckets) :])


def add_shadow_reduction(
    step: Step, buckets: Sequence[Bucket], after: tuple[int, ...]
) -> tuple[int, ...]:
    """Reduce zeros in place of gradients, as a rank does that has run out of inputs."""
    hook = hook_at(step.options.hook, step.request.iteration)
    reduced = [reduce_bucket(BucketReduction(step, bucket, after), hook) for bucket in buckets]
    if step.options.find_unused_parameters and not step.options.static_graph:
        reduced.append(_add_used_map_reduction(step, after=reduced[-1]))
    return tuple(reduced)


def _add_used_map_reduction(step: Step, *, after: int) -> int:
    return step.tasks.collective(
        "all-reduce used-parameter map",
        "all_reduce",
        fixed_in("torch", "used_map_item_bytes") * len(step.request.workload.ready_order),
        step.rank_class,
        communicator=GROUP,
        key="used map",
        after=(after,),
        dtype="int32",
        micro_batch=step.last_micro_batch,
    )


# ---------------------------------------------------------------- mixed precision


def add_parameter_casts(step: Step) -> tuple[int, ...]:
    """Cast all parameters; return a task for each segment of forward, none without casts.

    Parameters that no layer has (which are not trained) are cast first.
    """
    mixed, workload = step.options.mixed_precision, step.request.workload
    if mixed is None:
        return ()
    at_most = step.resolution(step.last_micro_batch)
    of_layers = {tensor for layer in workload.layers for tensor in layer.tensors}
    others = [tensor for tensor in range(len(workload.tensors)) if tensor not in of_layers]
    issued = step.tasks.issue("casts of parameters", len(workload.tensors), step.rank_class)
    ends: list[int] = []
    for part in forward_segments(workload, step.request.times, at_most=at_most):
        members = [tensor for layer in part.indices for tensor in workload.layers[layer].tensors]
        tensors = [workload.tensors[index] for index in (*members, *([] if ends else others))]
        ends.append(
            step.tasks.copy(
                f"cast {part.name}",
                _moved(tensors, mixed.param_dtype) / 2,
                len(tensors),
                step.rank_class,
                after=issued,
                stream=CASTS.name,
            )
        )
    return tuple(ends)


def _moved(tensors: Iterable[ParameterTensor], dtype: str) -> int:
    """Bytes that a conversion between their own dtype and another reads and writes."""
    return sum((ITEM_BYTES[tensor.dtype] + ITEM_BYTES[dtype]) * tensor.numel for tensor in tensors)


def _reduce_and_upcast(reduction: BucketReduction, mixed: MixedPrecisionSection) -> int:
    """Reduce a bucket and cast its gradients back; return the last task.

    The thread of backward waits where a wait for the reduction blocks it (Gloo).
    """
    numel, tensors, after = reduction.numel, reduction.tensors, reduction.ready
    held, reduced = ITEM_BYTES[mixed.param_dtype], ITEM_BYTES[mixed.reduced_dtype]
    if mixed.casts_buckets:
        after = (reduction.compress((held + reduced) * numel, 1),)
    sent = reduction.send("", "all_reduce", reduced * numel, mixed.reduced_dtype, after=after)
    if reduction.step.request.blocking_wait:
        reduction.hold_host((sent,))
    moved = 2 * reduced * numel + _moved(tensors, mixed.param_dtype)
    return reduction.call_back("divide and cast", moved, 1 + len(tensors), after=(sent,))


def _returned_bytes(step: Step, bucket: Bucket, mixed: MixedPrecisionSection) -> float:
    """Bytes of the copy of a bucket to its gradients, each of which is read and written once.

    Gradients have their parameters' own dtype again; views stay in the bucket.
    """
    tensors = [step.request.workload.tensors[index] for index in bucket.tensors]
    if not step.options.gradient_as_bucket_view:
        return _moved(tensors, mixed.reduced_dtype) / 2
    return (
        (ITEM_BYTES[mixed.param_dtype] + ITEM_BYTES[mixed.reduced_dtype])
        * sum(tensor.numel for tensor in tensors)
        / 2
    )
