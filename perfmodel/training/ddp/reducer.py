"""DDP's reducer during backward: copy in, all-reduce in bucket order, copy out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from perfmodel.training.ddp.buckets import Bucket
from perfmodel.training.plan.forward_backward import Step, add_backward_segment, backward_segments

GROUP = "data parallel"
"""Name of the communicator of all ranks."""

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
    ):
        add_backward_segment(step, part, step.last_micro_batch, copy_kernels=len(part.tensors))
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
    parts = backward_segments(step.request.workload, step.request.times, at_most=at_most)
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

    Nothing is copied where gradients are views of their bucket.
    """
    if step.options.gradient_as_bucket_view:
        return reduced
    ends = []
    for bucket, done in zip(buckets, reduced, strict=False):
        name, kernels = f"copy out bucket {bucket.index}", len(bucket.tensors)
        marks: dict[str, Any] = {"bucket": bucket.index, "micro_batch": step.last_micro_batch}
        waits = (done,) if step.request.blocking_wait else ()
        issued = step.tasks.issue(name, kernels, step.rank_class, after=waits, **marks)
        after = dict.fromkeys((*issued, done))
        ends.append(
            step.tasks.copy(name, bucket.nbytes, kernels, step.rank_class, after=after, **marks)
        )
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
        filling.copied[index] = step.tasks.copy(
            f"copy in {name}", step.nbytes(members), len(members), step.rank_class,
            after=after, bucket=index, micro_batch=step.last_micro_batch,
        )  # fmt: skip
        filling.missing[index] -= len(members)


def _add_all_reduce(step: Step, bucket: Bucket, filling: _Filling) -> int:
    """All-reduce a bucket, compressed if there is a hook; return its last task.

    It waits for its own last copy and for those of the buckets before it, which one worker's
    order implies and two workers' does not.
    """
    tasks, name, tensors = step.tasks, f"bucket {bucket.index}", step.request.workload.tensors
    marks: dict[str, Any] = {"bucket": bucket.index, "micro_batch": step.last_micro_batch}
    complete = filling.copied[bucket.index], max(filling.copied[: bucket.index + 1])
    ready, nbytes = tuple(dict.fromkeys(complete)), bucket.nbytes
    item_bytes = step.options.sent_item_bytes
    if item_bytes is not None:  # one cast, then one division in place (default_hooks.py)
        nbytes = item_bytes * sum(tensors[tensor].numel for tensor in bucket.tensors)
        ready = (_add_compression(step, bucket, nbytes, ready, marks),)
    done = tasks.collective(
        f"all-reduce {name}", "all_reduce", nbytes, step.rank_class,
        communicator=GROUP, key=name, after=ready,
        dtype=bucket.dtype if item_bytes is None else step.options.hook, **marks,
    )  # fmt: skip
    if item_bytes is not None:
        done = tasks.copy(
            f"decompress {name}", (bucket.nbytes + nbytes) / 2, 1, step.rank_class,
            after=(done,), stream="hook", **marks,
        )  # fmt: skip
    return done


def _add_compression(
    step: Step, bucket: Bucket, nbytes: int, ready: tuple[int, ...], marks: dict[str, Any]
) -> int:
    """Convert a bucket to 16 bits, on the device or on the host."""
    name = f"compress bucket {bucket.index}"
    if step.request.cast_Bps is not None:
        cast_s = bucket.nbytes / step.request.cast_Bps
        return step.tasks.compute(
            name, "copy", cast_s, step.rank_class, after=ready, stream="cast", **marks
        )
    issued = step.tasks.issue(name, 2, step.rank_class, **marks)
    cast_bytes = (bucket.nbytes + nbytes) / 2 + nbytes
    after = (*issued, *ready)
    return step.tasks.copy(name, cast_bytes, 2, step.rank_class, after=after, **marks)


def _add_used_map_reduction(step: Step, *, after: int) -> int:
    trained = len(step.request.workload.ready_order)
    return step.tasks.collective(
        "all-reduce used-parameter map", "all_reduce", USED_MAP_ITEM_BYTES * trained,
        step.rank_class, communicator=GROUP, key="used map", after=(after,), dtype="int32",
        micro_batch=step.last_micro_batch,
    )  # fmt: skip


def _empty_buckets(buckets: Sequence[Bucket]) -> _Filling:
    owner = {tensor: bucket.index for bucket in buckets for tensor in bucket.tensors}
    return _Filling(owner, [len(each.tensors) for each in buckets], [0] * len(buckets))


def _last_gradients(step: Step, owner: dict[int, int]) -> frozenset[int]:
    """Return the tensor of each bucket whose gradient gets ready last."""
    last: dict[int, int] = {}
    for tensor in step.request.workload.ready_order:
        last[owner[tensor]] = tensor
    return frozenset(last.values())
