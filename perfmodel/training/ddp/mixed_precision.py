"""Mixed precision of DDP: parameters cast before forward, gradients cast back once reduced.

As in torch 2.13 (``_root_copy_hook`` and ``_module_wait_for_copy_hook`` in
torch/nn/parallel/distributed.py, ``_reducer_allreduce_and_upcast_hook`` in
torch/distributed/algorithms/ddp_comm_hooks/mixed_precision_hooks.py): before forward the host
issues a cast of each parameter on a stream of its own, and each module waits for its own. Gradients
lie in buckets of `param_dtype`, whose sizes are still those of the parameters' own dtype. A bucket
is converted to `reduce_dtype` if that is another, reduced, divided, and its gradients are cast back
on another stream, for all of which the end of backward waits before it copies buckets back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfmodel.training.ddp.bucket_reduction import BucketReduction
from perfmodel.training.ddp.buckets import Bucket
from perfmodel.training.ddp.options import DdpOptions, MixedPrecision
from perfmodel.training.memory.use import MemoryUse, Setup, held_in_backward, replicated
from perfmodel.training.plan.forward_backward import Step, forward_segments
from perfmodel.training.plan.step_plan import Stream
from perfmodel.workload.model import ITEM_BYTES, Buffers, ParameterTensor

CASTS = Stream("parameter casts", "copy")


def kept_buffers(buffers: Sequence[Buffers], mixed: MixedPrecision | None) -> tuple[Buffers, ...]:
    """Return buffers as they are kept: with a dtype for them all, in one group."""
    if mixed is None or mixed.buffer_dtype is None or not buffers:
        return tuple(buffers)
    elements = sum(group.nbytes // ITEM_BYTES[group.dtype] for group in buffers)
    nbytes = ITEM_BYTES[mixed.buffer_dtype] * elements
    return (Buffers(mixed.buffer_dtype, sum(group.tensors for group in buffers), nbytes),)


def add_parameter_casts(step: Step) -> tuple[int, ...]:
    """Cast all parameters; returns a task for each segment of forward, none without casts.

    Parameters that no layer has (which are not trained) are cast first.
    """
    mixed, workload = step.options.mixed_precision, step.request.workload
    if mixed is None:
        return ()
    parts = forward_segments(
        workload, step.request.times, at_most=step.resolution(step.last_micro_batch)
    )
    of_layers = {tensor for layer in workload.layers for tensor in layer.tensors}
    others = [tensor for tensor in range(len(workload.tensors)) if tensor not in of_layers]
    issued = step.tasks.issue("casts of parameters", len(workload.tensors), step.rank_class)
    ends: list[int] = []
    for part in parts:
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


def _moved(tensors: Sequence[ParameterTensor], dtype: str) -> int:
    """Bytes that a conversion between their own dtype and another reads and writes."""
    return sum((ITEM_BYTES[tensor.dtype] + ITEM_BYTES[dtype]) * tensor.numel for tensor in tensors)


def reduce_and_upcast(reduction: BucketReduction, mixed: MixedPrecision) -> int:
    """Reduce a bucket and cast its gradients back; returns the last task.

    The thread of backward waits where a wait for the reduction blocks it (Gloo).
    """
    numel = reduction.numel
    held, reduced = ITEM_BYTES[mixed.param_dtype], ITEM_BYTES[mixed.reduced_dtype]
    after = reduction.ready
    if mixed.casts_buckets:
        after = (reduction.compress((held + reduced) * numel, 1),)
    sent = reduction.send("", "all_reduce", reduced * numel, mixed.reduced_dtype, after=after)
    if reduction.step.request.blocking_wait:
        reduction.hold_host((sent,))
    tensors = reduction.tensors
    moved = 2 * reduced * numel + _moved(tensors, mixed.param_dtype)
    return reduction.call_back("divide and cast", moved, 1 + len(tensors), after=(sent,))


def returned_bytes(step: Step, bucket: Bucket, mixed: MixedPrecision) -> float:
    """Bytes of the copy of a bucket to its gradients, each of which is read and written once.

    Gradients have their parameters' own dtype again; views stay in the bucket.
    """
    tensors = [step.request.workload.tensors[index] for index in bucket.tensors]
    if not step.options.gradient_as_bucket_view:
        return _moved(tensors, mixed.reduced_dtype) / 2
    both = ITEM_BYTES[mixed.param_dtype] + ITEM_BYTES[mixed.reduced_dtype]
    return both * sum(tensor.numel for tensor in tensors) / 2


# ---------------------------------------------------------------- memory


def mixed_memory(setup: Setup, options: DdpOptions, buckets: Sequence[Bucket]) -> MemoryUse:
    """Add up what a GPU keeps: cast copies until their bucket is reduced, and gradients twice.

    Copies and cast gradients come from the allocator's pools of their own streams, which keep what
    is free at the fullest moment.
    """
    use, mixed = replicated(setup), options.mixed_precision
    assert mixed is not None
    workload, held = setup.workload, ITEM_BYTES[mixed.param_dtype]
    trained = sum(tensor.numel for tensor in setup.trained)
    copies_bytes = float(held) * sum(tensor.numel for tensor in workload.tensors)
    activations = held_in_backward(setup)
    moments = [(activations.of_loss, copies_bytes, 0.0, 0.0)]
    in_backward = _gradients_in_backward(setup, options, buckets, mixed)
    layers = reversed(activations.of_layers)
    moments += [
        (layer_bytes, copies_bytes - freed, narrow, wide)
        for layer_bytes, (freed, narrow, wide) in zip(layers, in_backward, strict=True)
    ]
    moments.append((0.0, 0.0, 0.0, use.gradients_bytes))
    fullest = max(moments, key=sum)
    rest = sum(fullest) - use.gradients_bytes
    buffers = kept_buffers(workload.buffers, mixed)
    item = held + ITEM_BYTES[mixed.reduced_dtype] * mixed.casts_buckets
    return replace(
        use,
        parameters_bytes=workload.nbytes + sum(group.nbytes for group in buffers),
        gathered_bytes=min(fullest[1], max(0.0, rest)),
        activations_bytes=max(0.0, rest - fullest[1]),
        buckets_bytes=float(item * trained),
        idle_bytes=copies_bytes - fullest[1] + use.gradients_bytes - fullest[3],
    )


def _gradients_in_backward(
    setup: Setup, options: DdpOptions, buckets: Sequence[Bucket], mixed: MixedPrecision
) -> Iterator[tuple[float, float, float]]:
    """For each layer of backward: bytes of copies freed, and of gradients not cast yet and cast."""
    tensors, item = setup.workload.tensors, ITEM_BYTES[mixed.param_dtype]
    missing = [set(bucket.tensors) for bucket in buckets]
    freed = narrow = wide = 0.0
    launched = 0
    for layer in reversed(setup.workload.layers):
        elements = item * sum(tensors[index].numel for index in layer.tensors)
        narrow += 0 if options.gradient_as_bucket_view else elements
        for members in missing:
            members.difference_update(layer.tensors)
        yield freed, narrow, wide
        while launched < len(buckets) and not missing[launched]:
            reduced = [tensors[index] for index in buckets[launched].tensors]
            numel = sum(tensor.numel for tensor in reduced)
            freed += item * numel
            narrow -= 0 if options.gradient_as_bucket_view else item * numel
            wide += sum(tensor.nbytes for tensor in reduced)
            launched += 1
