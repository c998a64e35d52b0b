"""Which hook reduces a bucket how, what it keeps in memory, and what it needs of the library."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.errors import Fault, InputError
from perfmodel.scenario.strategies.ddp import (
    CastHook,
    Hook,
    OneBitHook,
    PowerSgdHook,
    QuantizationHook,
    TopKHook,
)
from perfmodel.training.ddp.buckets import Bucket
from perfmodel.training.ddp.hooks.bucket_reduction import BucketReduction
from perfmodel.training.ddp.hooks.gathered_bucket import (
    largest_elements,
    packed_bytes,
    quantised_channels,
    reduce_largest,
    reduce_quantised,
    reduce_signs,
)
from perfmodel.training.ddp.hooks.power_sgd import kept_bytes, passing_bytes, reduce_factors
from perfmodel.training.ddp.hooks.whole_bucket import reduce_whole
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import ITEM_BYTES, Workload


def reduce_bucket(reduction: BucketReduction, hook: Hook) -> int:
    """Reduce a bucket; returns the task after which its gradients are reduced."""
    match hook:
        case CastHook():
            return reduce_whole(reduction, hook)
        case PowerSgdHook():
            return reduce_factors(reduction, hook)
        case TopKHook():
            return reduce_largest(reduction, hook)
        case OneBitHook():
            return reduce_signs(reduction, hook)
        case QuantizationHook():
            return reduce_quantised(reduction, hook)


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
    if isinstance(hook, QuantizationHook):
        allowed = "a hook that all-reduces: PyTorch's quantisation hooks fail on Gloo and MPI"
        raise InputError(Fault("strategy.hook", repr(hook.kind), allowed))
    threads = request.comm_workers
    if isinstance(hook, PowerSgdHook) and len(buckets) >= threads:
        needed = max(threads - 1, 0)
        allowed = (
            f"at most {needed} with the {threads} threads of this library, such as one bucket by a "
            "large bucket_cap, or NCCL: callbacks of PowerSGD wait in these threads for all-reduces"
        )
        raise InputError(Fault("strategy.hook", f"'powersgd' and {len(buckets)} buckets", allowed))


def hook_bytes(hook: Hook, workload: Workload, buckets: Sequence[Bucket], ranks: int) -> float:
    """Bytes on a GPU beside buckets and gradients.

    What hooks keep, of all buckets; what they need in passing, of the largest; for hooks that do
    not wait, all buckets may be in flight.
    """
    staying, passing = [0], [0]
    for bucket in buckets:
        tensors = tuple(workload.tensors[index] for index in bucket.tensors)
        numel = sum(tensor.numel for tensor in tensors)
        item = ITEM_BYTES[bucket.dtype]
        match hook:
            case CastHook():
                staying.append(ITEM_BYTES[hook.kind] * numel if hook.kind in ITEM_BYTES else 0)
            case PowerSgdHook():
                staying.append(kept_bytes(hook, bucket, tensors))
                passing.append(passing_bytes(hook, bucket, tensors))
            case TopKHook():
                each = item + ITEM_BYTES[hook.index_dtype]
                gathered = (ranks + 1) * largest_elements(hook, numel) * each
                staying.append(gathered + bucket.nbytes * (1 + hook.use_error_feedback))
            case OneBitHook():
                gathered = (ranks + 1) * packed_bytes(numel)
                staying.append(gathered + bucket.nbytes * (1 + hook.use_error_feedback))
            case QuantizationHook():
                channels, padded = quantised_channels(hook, numel)
                # lists of gathered scales and bytes, the flat buffer, the sum
                staying.append((ranks + 1) * 8 * channels + (2 * ranks + 1) * padded + 4 * padded)
    return float(sum(staying) + max(passing))
