"""Megatron-Core's data parallelism as a row of the table of strategies, and its memory."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.scenario.strategies.sharded import (
    MegatronStrategy,
    default_bucket_elements,
)
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.memory.use import MemoryUse, Setup, replicated
from perfmodel.training.plan.step_plan import StepPlan
from perfmodel.training.sharded.megatron.gradient_buffer import buffer_buckets, owned_elements
from perfmodel.training.sharded.megatron.step_plan import megatron_step
from perfmodel.training.sharded.sharding_step import MASTER_BYTES
from perfmodel.training.strategy import Setting, StepRequest, Strategy
from perfmodel.workload.model import ITEM_BYTES, Workload


def megatron_plan(request: StepRequest, options: MegatronStrategy) -> StepPlan:
    """Return one step of training with Megatron-Core; of plain training for one rank.

    Raises `InputError`: instances that do not divide the ranks.
    Raises `ScheduleError`: times that do not fit the workload.
    """
    if request.ranks == 1:
        return ddp_plan(request, DdpOptions(accumulate=options.accumulate))
    return megatron_step(request, options)


def megatron_memory(setup: Setup) -> MemoryUse:
    """Add up what a rank keeps: the whole gradient buffer, and its part of the optimizer's states.

    Gradients are views of the buffer, so that there are no others. With the distributed optimizer
    parameters lie in a buffer with the same padding.

    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer, instances that
        do not divide the ranks.
    """
    options, workload = setup.options, setup.workload
    assert isinstance(options, MegatronStrategy)
    use = replicated(setup, grows=False)
    item = ITEM_BYTES[setup.trained[0].dtype]
    gradient_item = MASTER_BYTES if options.grad_reduce_in_fp32 else item
    trained = sum(tensor.numel for tensor in setup.trained)
    if setup.ranks == 1:  # of a replica split over GPUs, and of a plain model: the buffer, too
        return replace(use, gradients_bytes=trained * gradient_item)
    ranks, copies = setup.ranks, setup.expert_copies
    buckets = buffer_buckets(workload, options, ranks, setup.gathered_narrow, copies)
    shard_ranks = options.shard_ranks(ranks)
    elements = sum(bucket.elements for bucket in buckets)
    use = replace(use, gradients_bytes=elements * gradient_item)
    if not options.use_distributed_optimizer:
        return use
    fullest = 0
    for of_experts, sharers in ((False, shard_ranks), (True, options.shard_ranks(copies or 1))):
        held = [bucket for bucket in buckets if bucket.of_experts == of_experts]
        fullest += int(owned_elements(workload, held, sharers).max())
    return replace(
        use,
        parameters_bytes=use.parameters_bytes + (elements - trained) * item,
        optimizer_bytes=use.optimizer_bytes * fullest / trained,
    )


def _settings(_: Workload, section: MegatronStrategy) -> tuple[Setting, ...]:
    """What goes on beside backward and forward, and in pieces of which size."""
    gathers = (False, True) if section.use_distributed_optimizer else (False,)
    millions = (1, 5, 10, 20, 40, 80, 160, 320)
    return (
        Setting("overlap_grad_reduce", (False, True)),
        Setting("overlap_param_gather", gathers),
        Setting("bucket_size", (None, *(n * 1_000_000 for n in millions)), "elements"),
    )


def _bucket_sizes(section: MegatronStrategy, ranks: int) -> Setting | None:
    """Elements, where they are not stated: shares and multiples of what they are by default."""
    if section.bucket_size is not None or not section.overlap_grad_reduce:
        return None
    usual = default_bucket_elements(ranks)
    sizes = (usual // 8, usual // 4, usual // 2, None, usual * 2, usual * 4, usual * 8)
    return Setting("bucket_size", sizes, "elements")


def _own_words(section: MegatronStrategy) -> tuple[str, ...]:
    """Flags of Megatron-LM."""
    flags = {
        "--use-distributed-optimizer": section.use_distributed_optimizer,
        "--overlap-grad-reduce": section.overlap_grad_reduce,
        "--overlap-param-gather": section.overlap_param_gather,
        f"--ddp-bucket-size {section.bucket_size}": section.bucket_size is not None,
    }
    return tuple(flag for flag, is_set in flags.items() if is_set)


MEGATRON = Strategy(
    "Megatron-Core data parallel",
    megatron_plan,
    megatron_memory,
    settings=_settings,
    own_words=_own_words,
    bucket_sizes=_bucket_sizes,
)
