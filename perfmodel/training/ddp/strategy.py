"""DistributedDataParallel as a row of the table of strategies."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.scenario.sections.strategies.ddp import DdpStrategy
from perfmodel.training.ddp.buckets import ddp_buckets
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.memory.use import MemoryUse, Setup, replicated
from perfmodel.training.strategy import Strategy


def ddp_memory(setup: Setup) -> MemoryUse:
    """Add up what DDP keeps on a GPU.

    Buckets are a second copy of all gradients, unless gradients are views of them; a compressing
    hook adds its 16-bit copy of every bucket (all may be in flight). One rank has no buckets.

    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer.
    """
    use = replicated(setup)
    if setup.ranks == 1:
        return use
    options = setup.options
    assert isinstance(options, DdpOptions)
    elements = sum(tensor.numel for tensor in setup.trained)
    compressed = (options.sent_item_bytes or 0) * elements
    copies = 0.0 if options.gradient_as_bucket_view else use.gradients_bytes
    return replace(use, buckets_bytes=compressed + copies)


def ddp_options(section: DdpStrategy) -> DdpOptions:
    """What DistributedDataParallel is called with."""
    return DdpOptions(
        bucket_cap_bytes=section.bucket_cap,
        first_bucket_bytes=section.first_bucket,
        caps_list_bytes=section.bucket_caps,
        find_unused_parameters=section.find_unused_parameters,
        static_graph=section.static_graph,
        gradient_as_bucket_view=section.gradient_as_bucket_view,
        broadcast_buffers=section.broadcast_buffers,
        accumulate=section.accumulate,
        hook=section.hook,
    )


DDP = Strategy(
    "DistributedDataParallel", ddp_options, ddp_plan, ddp_memory, ddp_buckets,
    lighter=({"gradient_as_bucket_view": True},),
)  # fmt: skip
