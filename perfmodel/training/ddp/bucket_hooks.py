"""Communication hooks: how each reduces a bucket, and what it keeps in memory.

Hooks that all-reduce whole buckets are PyTorch's default, its ``allreduce_hook``, and 16 bits. With
hooks that gather what each rank compressed to 8 bits, each rank receives what all others send, and
adds it up itself. PowerSGD has a module of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfmodel.errors import refuse_if
from perfmodel.scenario.strategies.ddp import (
    CastHook,
    Hook,
    PowerSgdHook,
    QuantizationHook,
)
from perfmodel.training.ddp.bucket_reduction import CALLBACK, CAST, BucketReduction
from perfmodel.training.ddp.buckets import Bucket
from perfmodel.training.ddp.power_sgd import held_bytes, reduce_factors
from perfmodel.training.frameworks import fixed_in
from perfmodel.training.plan.builder import COMPUTE
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor, Workload


def reduce_bucket(reduction: BucketReduction, hook: Hook) -> int:
    """Reduce a bucket; return the task after which its gradients are reduced."""
    return _REDUCTIONS[type(hook)](reduction, hook)


def _quantised_channels(hook: QuantizationHook, numel: int) -> tuple[int, int]:
    """Scales of a bucket, and its elements with padding: a whole channel where none is needed."""
    if hook.kind == "quantization_pertensor":
        return 1, numel
    size = hook.bucket_size or 512  # PyTorch's default
    channels = (numel + size - numel % size) // size
    return channels, channels * size


def _reduce_quantised(reduction: BucketReduction, hook: QuantizationHook) -> int:
    """Gather scales, then 8-bit elements, and add them up.

    Every operation is a pass of its own, per rank; with channels, operations of each channel are
    (``torch/distributed/algorithms/ddp_comm_hooks/quantization_hooks.py``). Python reads the
    scale, for which it waits.
    """
    ranks = reduction.ranks
    channels, padded = _quantised_channels(hook, reduction.numel)
    pad, observers, quantisers, adders = 0, fixed_in("torch", "observer_kernels"), 5, 1 + 4
    if hook.kind == "quantization_perchannel":
        pad, observers = 2 * 4 * padded, observers + 1
        quantisers, adders = 4 * channels + 3, 1 + 3 * channels + 3
    ready = reduction.compress(reduction.bucket.nbytes + pad, observers)
    reduction.hold_host((ready,))
    scales = reduction.send(
        "scales of", "all_gather", ranks * 2 * channels * 4, "fp32", after=(ready,)
    )
    # division, rounding, zero point, clamp: 4 bytes read and written; then to 8 bits
    moved = (4 * 8 + 5) * padded + ranks * padded
    quantised = reduction.call_back("quantise", moved, quantisers + ranks, after=(scales,))
    data = reduction.send("data of", "all_gather", ranks * padded, "uint8", after=(quantised,))
    # out of the gathered whole; to 32 bits, zero point, scale, sum; then the mean
    moved = 4 * padded + ranks * (2 + 5 + 8 + 8 + 12) * padded + 8 * padded
    return reduction.call_back("add up", moved, 2 + ranks * adders, after=(data,))


def _reduce_whole(reduction: BucketReduction, hook: CastHook) -> int:
    """All-reduce a bucket, converted to 16 bits if the hook does."""
    bucket, nbytes, dtype = reduction.bucket, reduction.bucket.nbytes, reduction.bucket.dtype
    if hook.kind in ("none", "allreduce"):
        ready = reduction.ready
        if hook.kind == "allreduce":  # div_ in place (_allreduce_fut in default_hooks.py)
            ready = (reduction.compress(2 * nbytes, 1),)
        return reduction.send("", "all_reduce", nbytes, dtype, after=ready)
    nbytes = ITEM_BYTES[hook.kind] * reduction.numel
    converted = _convert(reduction, nbytes)
    sent = reduction.send("", "all_reduce", nbytes, hook.kind, after=(converted,))
    name, moved = f"decompress {reduction.name}", (bucket.nbytes + nbytes) / 2
    return reduction.copy(name, moved, 1, after=(sent,), stream=CALLBACK)


def _convert(reduction: BucketReduction, nbytes: int) -> int:
    """Convert a bucket to 16 bits and divide it, on the device or on the host."""
    step, name = reduction.step, f"compress {reduction.name}"
    if step.request.cast_Bps is not None:
        return step.tasks.compute(
            name,
            "copy",
            reduction.bucket.nbytes / step.request.cast_Bps,
            step.rank_class,
            after=reduction.ready,
            stream=CAST,
            role="compress",
            **reduction.marks,
        )
    issued = step.tasks.issue(name, 2, step.rank_class, **reduction.marks)
    moved, after = (reduction.bucket.nbytes + nbytes) / 2 + nbytes, (*issued, *reduction.ready)
    return reduction.copy(name, moved, 2, after=after, stream=COMPUTE.name, role="compress")


_REDUCTIONS: Mapping[type[Hook], Callable[[BucketReduction, Any], int]] = {
    CastHook: _reduce_whole,
    PowerSgdHook: reduce_factors,
    QuantizationHook: _reduce_quantised,
}
"""What reduces a bucket with each kind of hook."""


def hook_at(hook: Hook, iteration: str) -> Hook:
    """Return what reduces in an iteration: PowerSGD starts late, after whole buckets."""
    if iteration == "first" and isinstance(hook, PowerSgdHook) and hook.start_iteration > 0:
        return CastHook(kind=hook.wrapper or "allreduce")
    return hook


def check_library(hook: Hook, request: StepRequest, buckets: Sequence[Bucket]) -> None:
    """Refuse hooks that cannot run with a library whose threads run callbacks.

    Raises `InputError`: PowerSGD waits in its callbacks for all-reduces, for which no thread is
    free (seen to hang: torch 2.13, Gloo, two threads, several buckets); the quantisation hooks
    index what NCCL's gathers return (seen to fail on Gloo with an IndexError).
    """
    if not request.blocking_wait or request.ranks == 1:
        return
    refuse_if(
        isinstance(hook, QuantizationHook),
        "strategy.hook",
        repr(hook.kind),
        "a hook that all-reduces: PyTorch's quantisation hooks fail on Gloo and MPI",
    )
    refuse_if(
        isinstance(hook, PowerSgdHook) and len(buckets) >= request.comm_workers,
        "strategy.hook",
        f"'powersgd' and {len(buckets)} buckets",
        f"at most {max(request.comm_workers - 1, 0)} with the {request.comm_workers} threads of "
        "this library, such as one bucket by a large bucket_cap, or NCCL: callbacks of PowerSGD "
        "wait in these threads for all-reduces",
    )


def hook_bytes(hook: Hook, workload: Workload, buckets: Sequence[Bucket], ranks: int) -> float:
    """Bytes on a GPU beside buckets and gradients.

    What hooks keep, of all buckets; what they need in passing, of the largest; for hooks that do
    not wait, all buckets may be in flight.
    """
    held = [
        _held_bytes(hook, each, tuple(workload.tensors[index] for index in each.tensors), ranks)
        for each in buckets
    ]
    return float(sum(kept for kept, _ in held) + max((passing for _, passing in held), default=0))


def _held_bytes(
    hook: Hook, bucket: Bucket, tensors: tuple[ParameterTensor, ...], ranks: int
) -> tuple[int, int]:
    """Bytes of a bucket that stay, and that are there while it is reduced."""
    numel = sum(tensor.numel for tensor in tensors)
    if isinstance(hook, CastHook):
        return ITEM_BYTES.get(hook.kind, 0) * numel, 0
    if isinstance(hook, PowerSgdHook):
        return held_bytes(hook, bucket, tensors)
    channels, padded = _quantised_channels(hook, numel)
    # lists of gathered scales and bytes, the flat buffer, the sum
    return (ranks + 1) * 8 * channels + (2 * ranks + 1) * padded + 4 * padded, 0
