"""DDP's reducer during backward: copy in, all-reduce in bucket order, copy out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from perfmodel.training.ddp.bucket_hooks import hook_at, reduce_bucket
from perfmodel.training.ddp.bucket_reduction import GROUP, BucketReduction
from perfmodel.training.ddp.buckets import Bucket
from perfmodel.training.ddp.mixed_precision import reduce_and_upcast, returned_bytes
from perfmodel.training.plan.forward_backward import Step, add_backward_segment, backward_segments

USED_MAP_ITEM_BYTES = 4
"""Bytes per parameter of the used-parameter map (int32 ``local_used_map_``, reducer.cpp)."""


@dataclass(slots=True)
class _Filling:
    """Progress of each bucket: gradients missing, and its last copy."""

    owner: dict[int, int]
    missing: list[int]
    copied: list[int] = field(default_factory=list)


def add_reducing_backward(step: Step, buckets: Sequence[Bucket]) -> tuple[int, ...]:
    """Add the backward that launches each bucket once it and all before it are complete.

    Returns per bucket the task after which it is reduced; then that of the used-parameter map.
    """
    if step.options.static_graph and step.request.iteration == "first":
        return _add_delayed_reduction(step, buckets)
    filling = _empty_buckets(buckets)
    reduced: list[int] = []
    for part in backward_segments(
        step.request.workload,
        step.request.times,
        at_most=step.resolution(step.last_micro_batch),
        cut_after=_last_gradients(step, filling.owner),
        devices=step.options.layer_devices,
    ):
        kernels = _copy_kernels(step, part.tensors, filling)
        add_backward_segment(step, part, step.last_micro_batch, copy_kernels=kernels)
        _add_copies_in(step, part.name, part.tensors, filling)
        while len(reduced) < len(buckets) and filling.missing[len(reduced)] == 0:
            bucket = buckets[len(reduced)]
            reduced.append(_add_all_reduce(step, bucket, filling))
    if step.options.find_unused_parameters and not step.options.static_graph:
        reduced.append(_add_used_map_reduction(step, after=filling.copied[-1]))
    return tuple(reduced)


def _add_delayed_reduction(step: Step, buckets: Sequence[Bucket]) -> tuple[int, ...]:
    """First iteration of a static graph: everything after backward, the map first."""
    at_most = step.resolution(step.last_micro_batch)
    parts = backward_segments(
        step.request.workload,
        step.request.times,
        at_most=at_most,
        devices=step.options.layer_devices,
    )
    ends = [add_backward_segment(step, part, step.last_micro_batch) for part in parts]
    used_map = _add_used_map_reduction(step, after=ends[-1])
    filling = _empty_buckets(buckets)
    tensors = [tensor for part in parts for tensor in part.tensors]
    issued = step.tasks.issue("copy in all gradients", len(tensors), step.rank_class)
    _add_copies_in(step, "all gradients", tensors, filling, after=issued)
    return (*(_add_all_reduce(step, each, filling) for each in buckets), used_map)


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
        nbytes = bucket.nbytes if mixed is None else returned_bytes(step, bucket, mixed)
        copied = step.tasks.copy(
            name, nbytes, kernels, step.rank_class, after=after, role="copy_out", **marks
        )
        ends.append(copied)
    return (*ends, *reduced[len(buckets) :])


def _add_copies_in(
    step: Step,
    name: str,
    tensors: Sequence[int],
    filling: _Filling,
    *,
    after: tuple[int, ...] = (),
) -> None:
    """Scale gradients into their buckets: one task per bucket that the segment touches."""
    for index in sorted({filling.owner[tensor] for tensor in tensors}):
        members = [tensor for tensor in tensors if filling.owner[tensor] == index]
        if step.options.batched_grad_copy:
            _add_batched_copy(step, name, index, members, filling, after=after)
            continue
        filling.copied[index] = step.tasks.copy(
            f"copy in {name}",
            step.gradient_bytes(members),
            len(members),
            step.rank_class,
            after=after,
            bucket=index,
            micro_batch=step.last_micro_batch,
        )
        filling.missing[index] -= len(members)


def _copy_kernels(step: Step, tensors: Sequence[int], filling: _Filling) -> int:
    """Kernels that copy gradients of a segment: one each, or two for each bucket that is full."""
    if not step.options.batched_grad_copy:
        return len(tensors)
    owners = [filling.owner[tensor] for tensor in tensors]
    return sum(2 for index in set(owners) if filling.missing[index] == owners.count(index))


def _add_batched_copy(
    step: Step,
    name: str,
    index: int,
    members: Sequence[int],
    filling: _Filling,
    *,
    after: tuple[int, ...],
) -> None:
    """Fill a bucket once all of its gradients are ready: a copy, and a division in place."""
    filling.missing[index] -= len(members)
    if filling.missing[index]:
        return
    tensors = [tensor for tensor, owner in filling.owner.items() if owner == index]
    passes = 1 if step.options.has_hook else 2
    filling.copied[index] = step.tasks.copy(
        f"copy in {name}",
        passes * step.gradient_bytes(tensors),
        passes,
        step.rank_class,
        after=after,
        bucket=index,
        micro_batch=step.last_micro_batch,
    )


def add_shadow_reduction(
    step: Step, buckets: Sequence[Bucket], after: tuple[int, ...]
) -> tuple[int, ...]:
    """Reduce zeros in place of gradients, as a rank does that has run out of inputs."""
    hook = hook_at(step.options.hook, step.request.iteration)
    reduced = [reduce_bucket(BucketReduction(step, bucket, after), hook) for bucket in buckets]
    if step.options.find_unused_parameters and not step.options.static_graph:
        reduced.append(_add_used_map_reduction(step, after=reduced[-1]))
    return tuple(reduced)


def _add_all_reduce(step: Step, bucket: Bucket, filling: _Filling) -> int:
    """Reduce a bucket as the hook does; return its last task.

    It waits for its own last copy and for those of the buckets before it, which one worker's
    order implies and two workers' does not.
    """
    complete = filling.copied[bucket.index], max(filling.copied[: bucket.index + 1])
    reduction = BucketReduction(step, bucket, tuple(dict.fromkeys(complete)))
    if step.options.mixed_precision is not None:
        return reduce_and_upcast(reduction, step.options.mixed_precision)
    return reduce_bucket(reduction, hook_at(step.options.hook, step.request.iteration))


def _add_used_map_reduction(step: Step, *, after: int) -> int:
    trained = len(step.request.workload.ready_order)
    return step.tasks.collective(
        "all-reduce used-parameter map",
        "all_reduce",
        USED_MAP_ITEM_BYTES * trained,
        step.rank_class,
        communicator=GROUP,
        key="used map",
        after=(after,),
        dtype="int32",
        micro_batch=step.last_micro_batch,
    )


def _empty_buckets(buckets: Sequence[Bucket]) -> _Filling:
    owner = {tensor: bucket.index for bucket in buckets for tensor in bucket.tensors}
    return _Filling(owner, [len(each.tensors) for each in buckets], [0] * len(buckets))


def _last_gradients(step: Step, owner: dict[int, int]) -> frozenset[int]:
    """Return the tensor of each bucket whose gradient gets ready last."""
    last: dict[int, int] = {}
    for tensor in step.request.workload.ready_order:
        last[owner[tensor]] = tensor
    return frozenset(last.values())
