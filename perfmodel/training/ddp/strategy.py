"""DistributedDataParallel as a row of the table of strategies."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.scenario.sections.strategy import DdpStrategy
from perfmodel.training.ddp.buckets import Bucket, ddp_buckets
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.memory import MemoryUse, Setup, replicated
from perfmodel.training.step_plan import StepPlan
from perfmodel.training.strategy import StepRequest, Strategy
from perfmodel.workload.model import ITEM_BYTES, Workload


def ddp_memory(setup: Setup) -> MemoryUse:
    """Add up what DDP keeps on a GPU.

    Buckets are a second copy of all gradients, unless gradients are views of them; a compressing
    hook adds its 16-bit copy of every bucket (all may be in flight). One rank has no buckets.

    Raises
    ------
    InputError
        Ranks or batch below 1, an unknown precision or optimizer.
    """
    use = replicated(setup)
    if setup.ranks == 1:
        return use
    elements = sum(tensor.numel for tensor in setup.trained)
    compressed = 0 if setup.hook == "none" else ITEM_BYTES[setup.hook] * elements
    copies = 0.0 if setup.options.gradient_as_bucket_view else use.gradients_bytes
    return replace(use, buckets_bytes=compressed + copies)


def _options(section: DdpStrategy) -> DdpOptions:
    return DdpOptions(
        bucket_cap_bytes=section.bucket_cap,
        first_bucket_bytes=section.first_bucket,
        caps_list_bytes=section.bucket_caps,
        find_unused_parameters=section.find_unused_parameters,
        static_graph=section.static_graph,
        gradient_as_bucket_view=section.gradient_as_bucket_view,
        broadcast_buffers=section.broadcast_buffers,
        accumulate=section.accumulate,
    )


def _plan(request: StepRequest, options: DdpOptions) -> StepPlan:
    times = request.times
    if request.bucket_copy_Bps is not None:
        times = replace(times, copy_Bps=request.bucket_copy_Bps)
    return ddp_plan(
        request.workload,
        times,
        ranks=request.ranks,
        batch_per_gpu=request.batch_per_gpu,
        options=options,
        iteration=request.iteration,
        hook=request.hook,
        comm_workers=request.comm_workers,
        blocking_wait=request.blocking_wait,
        kernel_s=request.kernel_s,
        segments=request.segments,
        host_s=request.host_s,
        cast_Bps=request.cast_Bps,
        core=request.core,
    )


def _buckets(workload: Workload, options: DdpOptions) -> tuple[Bucket, ...]:
    return ddp_buckets(workload, options, iteration="steady")


DDP = Strategy("DistributedDataParallel", _options, _plan, ddp_memory, _buckets)
