"""DistributedDataParallel as a row of the table of strategies."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.scenario.sections.strategies.ddp import DdpStrategy
from perfmodel.scenario.sections.strategies.gradient_hooks import (
    OneBitHook,
    PowerSgdHook,
    TopKHook,
)
from perfmodel.training.ddp.bucket_hooks import hook_bytes
from perfmodel.training.ddp.buckets import ddp_buckets
from perfmodel.training.ddp.mixed_precision import mixed_memory
from perfmodel.training.ddp.options import DdpOptions, MixedPrecision
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.memory.use import MemoryUse, Setup, replicated
from perfmodel.training.strategy import Setting, Strategy


def ddp_memory(setup: Setup) -> MemoryUse:
    """Add up what DDP keeps on a GPU.

    Buckets are a second copy of all gradients that stays from step to step, unless gradients are
    views of them, which stay then; a hook adds
    what it keeps and sends (all buckets may be in flight). One rank has no buckets.

    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer.
    """
    options = setup.options
    assert isinstance(options, DdpOptions)
    if setup.ranks == 1:
        return replicated(setup)
    if options.mixed_precision is not None:
        return mixed_memory(setup, options, ddp_buckets(setup.workload, options))
    use = replicated(setup, grows=not options.gradient_as_bucket_view)
    ranks = options.ranks_of_group(setup.ranks)
    buckets = ddp_buckets(setup.workload, options)
    compressed = hook_bytes(options.hook, setup.workload, buckets, ranks)
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
        sync_buffers_at_start=section.broadcast_buffers,
        accumulate=section.accumulate,
        hook=section.hook,
        batched_grad_copy=section.batched_grad_copy,
        group_ranks=section.process_group_gpus,
        join=section.join,
        throw_on_early_termination=section.throw_on_early_termination,
        joined_ranks=section.joined_gpus,
        mixed_precision=_mixed_precision(section),
    )


def _mixed_precision(section: DdpStrategy) -> MixedPrecision | None:
    mixed = section.mixed_precision
    if mixed is None:
        return None
    return MixedPrecision(mixed.param_dtype, mixed.reduce_dtype, mixed.buffer_dtype)


def _held_dtype(options: DdpOptions) -> str | None:
    return None if options.mixed_precision is None else options.mixed_precision.param_dtype


def _bucket_sizes(section: DdpStrategy, _: int) -> Setting | None:
    """``bucket_cap_mb``, where no cap is stated; by default 25 MiB."""
    if section.model_fields_set & {"bucket_cap", "first_bucket", "bucket_caps"}:
        return None
    smaller, larger = ("5 MiB", "10 MiB"), ("50 MiB", "100 MiB", "200 MiB", "400 MiB", "1 GiB")
    return Setting("bucket_cap", (*smaller, None, *larger))


def _remarks(options: DdpOptions) -> tuple[str, ...]:
    hook = options.hook
    lines = []
    if isinstance(hook, PowerSgdHook) and hook.start_iteration:
        lines.append(
            f"PowerSGD has started: the {hook.start_iteration:,} steps before it reduce whole "
            "buckets, as the first step does. It waits for the device in each bucket, so backward "
            "does not overlap what it reduces."
        )
    if isinstance(hook, TopKHook | OneBitHook):
        lines.append(
            f"PyTorch has no hook {hook.kind!r}: its kernels read and write memory as often as "
            "the algorithm needs, none measured."
        )
    if options.mixed_precision is not None:
        lines.append(
            "PyTorch's casts of parameters wait for no optimizer, which may still write what they "
            "read; here they do."
        )
    if options.joined_ranks:
        lines.append(
            f"{options.joined_ranks} GPUs have run out of inputs: they reduce zeros, and their "
            "samples do not count."
        )
    if options.layer_devices:
        lines.append(
            "One process drives the GPUs of a replica in turn; its copies from GPU to GPU take as "
            "long as messages of the collective library."
        )
    return tuple(lines)


DDP = Strategy(
    "DistributedDataParallel",
    ddp_options,
    ddp_plan,
    ddp_memory,
    ddp_buckets,
    remarks=_remarks,
    held_dtype=_held_dtype,
    lighter=({"gradient_as_bucket_view": True},),
    bucket_sizes=_bucket_sizes,
)
