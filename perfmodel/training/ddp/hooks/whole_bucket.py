"""Hooks that all-reduce whole buckets: PyTorch's default, its ``allreduce_hook``, 16 bits."""

from __future__ import annotations

from perfmodel.scenario.strategies.ddp import CastHook
from perfmodel.training.ddp.hooks.bucket_reduction import CAST, BucketReduction
from perfmodel.workload.model import ITEM_BYTES


def reduce_whole(reduction: BucketReduction, hook: CastHook) -> int:
    """All-reduce a bucket, converted to 16 bits if the hook does; returns the last task."""
    bucket = reduction.bucket
    if hook.kind == "none":
        return reduction.send("", "all_reduce", bucket.nbytes, bucket.dtype, after=reduction.ready)
    if hook.kind == "allreduce":  # div_ in place (_allreduce_fut in default_hooks.py)
        divided = reduction.compress(2 * bucket.nbytes, 1)
        return reduction.send("", "all_reduce", bucket.nbytes, bucket.dtype, after=(divided,))
    nbytes = ITEM_BYTES[hook.kind] * reduction.numel
    converted = _convert(reduction, nbytes)
    sent = reduction.send("", "all_reduce", nbytes, hook.kind, after=(converted,))
    return reduction.step.tasks.copy(
        f"decompress {reduction.name}",
        (bucket.nbytes + nbytes) / 2,
        1,
        reduction.step.rank_class,
        after=(sent,),
        stream="hook",
        **reduction.marks,
    )


def _convert(reduction: BucketReduction, nbytes: int) -> int:
    """Convert a bucket to 16 bits and divide it, on the device or on the host."""
    step, name = reduction.step, f"compress {reduction.name}"
    if step.request.cast_Bps is not None:
        cast_s = reduction.bucket.nbytes / step.request.cast_Bps
        return step.tasks.compute(
            name,
            "copy",
            cast_s,
            step.rank_class,
            after=reduction.ready,
            stream=CAST,
            role="compress",
            **reduction.marks,
        )
    issued = step.tasks.issue(name, 2, step.rank_class, **reduction.marks)
    cast_bytes = (reduction.bucket.nbytes + nbytes) / 2 + nbytes
    after = (*issued, *reduction.ready)
    return step.tasks.copy(
        name, cast_bytes, 2, step.rank_class, after=after, role="compress", **reduction.marks
    )
