"""When gradients are handed over to Horovod, and what agreeing, copies and conversions take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from perfmodel.scenario.strategies.fusion import HorovodStrategy
from perfmodel.training.fusion.cycles import (
    BATCH_PADDING,
    FusionRules,
    bit_vector_bytes,
    buffer_bytes,
)
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import ITEM_BYTES

BATCH = 160
"""Tensors that one kernel copies (BATCHED_D2D_CAPACITY, horovod 0.28.1, cuda_kernels.h)."""
REQUEST_BYTES = 100
"""Of a request: name, dtype, shape and device of a tensor, as flatbuffers has them; assumption."""


def fusion_rules(request: StepRequest, options: HorovodStrategy) -> FusionRules:
    """Sizes and times that the cycles of a job depend on."""
    tensors = [request.workload.tensors[index] for index in hand_over_order(request)]
    dtypes = tuple("fp16" if is_cast(options, t.dtype) else t.dtype for t in tensors)
    nbytes = tuple(t.numel * ITEM_BYTES[d] for t, d in zip(tensors, dtypes, strict=True))
    rules = FusionRules(
        nbytes=nbytes,
        dtypes=dtypes,
        padding=1 if request.blocking_wait else BATCH_PADDING,
        limit=buffer_bytes(options.fusion_threshold, request.ranks_per_host),
        cycle_s=options.cycle_time,
        agreement_s=agreement_s(request, options),
    )
    if not request.blocking_wait:
        return rules

    def reduction_s(members: tuple[int, ...]) -> float:
        size = rules.fused_bytes(members)
        copies_s = 2 * copy_s(request, size, len(members))
        return copies_s + request.collective_s("all_reduce", size, None)

    return replace(rules, reduction_s=reduction_s)


def is_cast(options: HorovodStrategy, dtype: str) -> bool:
    """Whether gradients of a dtype are converted to 16 bits before they travel."""
    return options.compression == "fp16" and ITEM_BYTES[dtype] > ITEM_BYTES["fp16"]


def agreement_s(request: StepRequest, options: HorovodStrategy) -> float:
    """Time in which the threads of all ranks agree on what is ready, by the controller's library.

    With all tensors in the cache that is an all-reduce of a bit for each; else rank 0 also gathers
    sizes and requests, and broadcasts sizes and answers (``ComputeResponseList``).
    """
    tensors, library = len(request.workload.ready_order), options.controller
    bits = bit_vector_bytes(tensors) if options.cache_capacity else 0
    time_s = request.collective_s("all_reduce", bits, library) if bits else 0.0
    if request.iteration == "steady" and is_cached(request, options):
        return time_s
    for nbytes in (ITEM_BYTES["int32"], tensors * REQUEST_BYTES):
        time_s += request.collective_s("gather", nbytes * request.ranks, library)
        time_s += request.collective_s("broadcast", nbytes, library)
    return time_s


def is_cached(request: StepRequest, options: HorovodStrategy) -> bool:
    """Whether the answers of all tensors stay in the cache, least recently used out first."""
    return len(request.workload.ready_order) <= options.cache_capacity


def hand_over_order(request: StepRequest) -> tuple[int, ...]:
    """Tensors in the order in which backward hands them over."""
    return tuple(index for layer in reversed(request.workload.layers) for index in layer.tensors)


def handed_over_s(request: StepRequest, options: HorovodStrategy) -> tuple[float, ...]:
    """When each gradient is handed over, since the last backward began; seconds.

    That is when the host has issued its kernels; where issuing takes no time, or the thread copies
    gradients to the host, when the device has computed it.
    """
    times, tensors = request.times, request.workload.tensors
    handed: list[float] = []
    now = 0.0
    for index in range(len(request.workload.layers) - 1, -1, -1):
        members = request.workload.layers[index].tensors
        if follows_device(request):
            now += times.backward_s[index]
            if options.accumulate > 1:
                nbytes = sum(tensors[member].nbytes for member in members)
                now += 1.5 * nbytes / times.copy_Bps + len(members) * request.kernel_s
            now += casts_s(request, options, members)
        else:
            casts = sum(is_cast(options, tensors[member].dtype) for member in members)
            sums = len(members) if options.accumulate > 1 else 0
            now += (times.backward_kernels[index] + sums + casts) * times.launch_s
        handed += [float(now)] * len(members)
    return tuple(handed)


def follows_device(request: StepRequest) -> bool:
    """Whether gradients are handed over when the device has computed them."""
    return request.times.launch_s <= 0 or request.blocking_wait


def casts_s(request: StepRequest, options: HorovodStrategy, members: Iterable[int]) -> float:
    """Time to convert gradients to 16 bits, a kernel each."""
    cast = [t for m in members if is_cast(options, (t := request.workload.tensors[m]).dtype)]
    moved = sum((t.nbytes + t.numel * ITEM_BYTES["fp16"]) / 2 for t in cast)
    return moved / request.times.copy_Bps + len(cast) * request.kernel_s


def copy_s(request: StepRequest, nbytes: int, count: int) -> float:
    """Time to copy tensors to or from the buffer; none for a tensor alone."""
    if count == 1:
        return 0.0
    kernels = count if request.blocking_wait else -(-count // BATCH)
    return nbytes / request.times.copy_Bps + kernels * request.kernel_s
