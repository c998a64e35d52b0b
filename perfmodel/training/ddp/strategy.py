"""DistributedDataParallel as a row of the table of strategies, and with ZeroRedundancyOptimizer.

PyTorch's ZeroRedundancyOptimizer is DDP with the optimizer's states split by parameter. Written
after ``torch/distributed/optim/zero_redundancy_optimizer.py`` of torch 2.13: after its own update
each rank broadcasts its parameters, one by one or in one buffer, and all wait for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from perfmodel.scenario.strategies.ddp import (
    DdpStrategy,
    MixedPrecisionSection,
    PowerSgdHook,
    ZeroRedundancyStrategy,
)
from perfmodel.training.ddp.bucket_hooks import hook_bytes
from perfmodel.training.ddp.buckets import Bucket, ddp_buckets
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan, kept_buffers
from perfmodel.training.memory_use import MemoryUse, Setup, held_in_backward, replicated
from perfmodel.training.plan.builder import GROUP, RANKS, TaskList
from perfmodel.training.plan.step_plan import Collective, StepPlan, Task
from perfmodel.training.strategy import Setting, StepRequest, Strategy, updating_share
from perfmodel.workload.memory.optimizer_states import gathered_matrices
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor


def ddp_memory(setup: Setup) -> MemoryUse:
    """Add up what DDP keeps on a GPU.

    Buckets are a second copy of all gradients that stays from step to step, unless gradients are
    views of them, which stay then; a hook adds what it keeps and sends (all buckets may be in
    flight). One rank has no buckets.

    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer.
    """
    options: DdpOptions = setup.options
    if setup.ranks == 1:
        return replicated(setup)
    if options.mixed_precision is not None:
        buckets = ddp_buckets(setup.workload, options)
        return _mixed_memory(setup, options, options.mixed_precision, buckets)
    use = replicated(setup, grows=not options.gradient_as_bucket_view)
    compressed = hook_bytes(
        options.hook,
        setup.workload,
        ddp_buckets(setup.workload, options),
        options.ranks_of_group(setup.ranks),
    )
    copies = 0.0 if options.gradient_as_bucket_view else use.gradients_bytes
    return replace(use, buckets_bytes=compressed + copies)


def _mixed_memory(
    setup: Setup, options: DdpOptions, mixed: MixedPrecisionSection, buckets: Sequence[Bucket]
) -> MemoryUse:
    """Add up what a GPU keeps: cast copies until their bucket is reduced, and gradients twice.

    Copies and cast gradients come from the allocator's pools of their own streams, which keep what
    is free at the fullest moment.
    """
    use = replicated(setup)
    workload, held = setup.workload, ITEM_BYTES[mixed.param_dtype]
    trained = sum(tensor.numel for tensor in setup.trained)
    copies_bytes = float(held) * sum(tensor.numel for tensor in workload.tensors)
    activations = held_in_backward(setup)
    layers = zip(
        reversed(activations.of_layers),
        _gradients_in_backward(setup, options, buckets, mixed),
        strict=True,
    )
    moments = (
        (activations.of_loss, copies_bytes, 0.0, 0.0),
        *((held_bytes, copies_bytes - freed, *both) for held_bytes, (freed, *both) in layers),
        (0.0, 0.0, 0.0, use.gradients_bytes),
    )
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
    setup: Setup, options: DdpOptions, buckets: Sequence[Bucket], mixed: MixedPrecisionSection
) -> Iterator[tuple[float, float, float]]:
    """For each layer of backward: bytes of copies freed, and of gradients not cast yet and cast."""
    tensors, item = setup.workload.tensors, ITEM_BYTES[mixed.param_dtype]
    apart = 0 if options.gradient_as_bucket_view else item
    missing = [set(bucket.tensors) for bucket in buckets]
    freed = narrow = wide = 0.0
    launched = 0
    for layer in reversed(setup.workload.layers):
        narrow += apart * sum(tensors[index].numel for index in layer.tensors)
        for members in missing:
            members.difference_update(layer.tensors)
        yield freed, narrow, wide
        while launched < len(buckets) and not missing[launched]:
            reduced = [tensors[index] for index in buckets[launched].tensors]
            numel = sum(tensor.numel for tensor in reduced)
            freed += item * numel
            narrow -= apart * numel
            wide += sum(tensor.nbytes for tensor in reduced)
            launched += 1


# ---------------------------------------------------------------- what ranks share


def shared_plan(request: StepRequest, options: DdpOptions) -> StepPlan:
    """Return one step of DDP, whose ranks may share matrices out.

    Each rank updates one matrix of a list; then all gather them, and the next list follows. Updates
    and gathers wait for each other, so that here all updates come first.

    Raises as `ddp_plan`.
    """
    if request.ranks == 1 or not options.distributed_optimizer:
        return ddp_plan(request, options)
    ranks = options.ranks_of_group(request.ranks)
    own = updating_share(request, ranks)
    return _exchanging_plan(own, options, _gathers(request, ranks))


def _gathers(request: StepRequest, ranks: int) -> Iterator[tuple[str, Collective]]:
    """Gather the matrices of a list, which is filled up with as large ones as its last."""
    tensors = request.workload.tensors
    for shared in gathered_matrices(request.workload, request.optimizer, ranks):
        members = [tensors[i] for i in (*shared, *shared[-1:] * (ranks - len(shared)))]
        name = f"{members[0].name} and {len(shared) - 1} more"
        yield (
            name,
            Collective(
                "all_gather",
                sum(each.nbytes for each in members),
                GROUP,
                name,
                dtype=members[0].dtype,
            ),
        )


def _exchanging_plan(
    request: StepRequest, options: DdpOptions, calls: Iterable[tuple[str, Collective]]
) -> StepPlan:
    """Return one step of DDP at whose end ranks exchange what each has updated, call by call."""
    plan = ddp_plan(request, options)
    end = max(i for task in plan.tasks for i in task.after_previous)
    tasks, last = TaskList.of(request), end
    tasks.tasks = list(plan.tasks)
    for name, call in calls:
        after = tuple(dict.fromkeys((*tasks.issue(f"{call.op} {name}", 1, RANKS), end)))
        last = tasks.add(Task(f"{call.op} {name}", "communication", RANKS, "comm", call, after))
    return replace(
        plan,
        tasks=tuple(
            replace(task, after_previous=(last,)) if task.after_previous == (end,) else task
            for task in tasks.tasks
        ),
    )


# ---------------------------------------------------------------- the row


def ddp_options(section: DdpStrategy) -> DdpOptions:
    """What DistributedDataParallel is called with."""
    return DdpOptions(**dict(section))


def _bucket_sizes(section: DdpStrategy, _: int) -> Setting | None:
    """``bucket_cap_mb``, where no cap is stated; by default 25 MiB."""
    if section.model_fields_set & {"bucket_cap", "first_bucket", "bucket_caps"}:
        return None
    smaller, larger = ("5 MiB", "10 MiB"), ("50 MiB", "100 MiB", "200 MiB", "400 MiB", "1 GiB")
    return Setting("bucket_cap", (*smaller, None, *larger))


def _remarks(options: DdpOptions) -> tuple[str, ...]:
    hook = options.hook
    late = hook.start_iteration if isinstance(hook, PowerSgdHook) else 0
    remarks = (
        (
            late,
            (
                f"PowerSGD has started: the {late:,} steps before it reduce whole buckets, as the "
                "first step does. It waits for the device in each bucket, so backward does not "
                "overlap what it reduces."
            ),
        ),
        (
            options.mixed_precision,
            (
                "PyTorch's casts of parameters wait for no optimizer, which may still write what "
                "they read; here they do."
            ),
        ),
        (
            options.distributed_optimizer,
            (
                "GPUs share matrices out as Keller Jordan's Muon does, the largest first, in turn; "
                "all updates come before the first gather here."
            ),
        ),
        (
            options.joined_gpus,
            (
                f"{options.joined_gpus} GPUs have run out of inputs: they reduce zeros, and their "
                "samples do not count."
            ),
        ),
        (
            options.layer_devices,
            (
                "One process drives the GPUs of a replica in turn; its copies from GPU to GPU take "
                "as long as messages of the collective library."
            ),
        ),
    )
    return tuple(sentence for applies, sentence in remarks if applies)


DDP = Strategy(
    "DistributedDataParallel",
    shared_plan,
    ddp_memory,
    ddp_buckets,
    remarks=_remarks,
    held_dtype=lambda options: options.mixed_precision and options.mixed_precision.param_dtype,
    lighter=({"gradient_as_bucket_view": True},),
    bucket_sizes=_bucket_sizes,
    options=ddp_options,
)


# ---------------------------------------------------------------- ZeroRedundancyOptimizer


def partition_parameters(
    tensors: Sequence[ParameterTensor], ranks: int
) -> tuple[tuple[int, ...], ...]:
    """Give each parameter, the largest first, to the rank that has the fewest elements.

    Returns the places of each rank's parameters (``_partition_parameters``).
    """
    owned: list[list[int]] = [[] for _ in range(ranks)]
    sizes = [0] * ranks
    for place in sorted(range(len(tensors)), key=lambda at: tensors[at].numel, reverse=True):
        rank = sizes.index(min(sizes))
        owned[rank].append(place)
        sizes[rank] += tensors[place].numel
    return tuple(map(tuple, owned))


def zero_redundancy_plan(request: StepRequest, options: ZeroRedundancyStrategy) -> StepPlan:
    """Return one step of DDP whose optimizer updates a part and broadcasts it.

    All ranks take as long as the one with most parameters.

    Raises `InputError`: a bad ready order.
    Raises `ScheduleError`: times that do not fit the workload.
    """
    wrapped = ddp_options(options.ddp)
    if request.ranks == 1:
        return ddp_plan(request, wrapped)
    trained = [request.workload.tensors[index] for index in sorted(request.workload.ready_order)]
    owned = partition_parameters(trained, wrapped.ranks_of_group(request.ranks))
    update_s = request.times.optimizer_s * _fullest_share(trained, owned)
    request = replace(request, times=replace(request.times, optimizer_s=update_s))
    plan = _exchanging_plan(request, wrapped, _broadcasts(trained, owned, options))
    return replace(plan, name=f"ZeroRedundancyOptimizer, {plan.name}")


def _fullest_share(tensors: Sequence[ParameterTensor], owned: Sequence[Sequence[int]]) -> float:
    return max(sum(tensors[place].numel for place in places) for places in owned) / sum(
        tensor.numel for tensor in tensors
    )


def _broadcasts(
    tensors: Sequence[ParameterTensor],
    owned: Sequence[Sequence[int]],
    options: ZeroRedundancyStrategy,
) -> Iterator[tuple[str, Collective]]:
    """Broadcast the parameters of one rank after the other."""
    for rank, places in enumerate(owned):
        views = options.parameters_as_bucket_view
        for group in [places] if views else [(place,) for place in places]:
            members = [tensors[place] for place in group]
            name = f"parameters of rank {rank}" if views else members[0].name
            dtype = members[0].dtype if members else "fp32"
            nbytes = sum(each.nbytes for each in members) or 4  # an empty buffer holds one element
            yield name, Collective("broadcast", nbytes, GROUP, f"updated {name}", rank, dtype)


def zero_redundancy_memory(setup: Setup) -> MemoryUse:
    """Add up what DDP keeps, with the optimizer states of the fullest rank.

    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer.
    """
    options: ZeroRedundancyStrategy = setup.options
    use = ddp_memory(replace(setup, options=ddp_options(options.ddp)))
    share = _fullest_share(setup.trained, partition_parameters(setup.trained, setup.ranks))
    return replace(use, optimizer_bytes=use.optimizer_bytes * share)


ZERO_REDUNDANCY = Strategy(
    "DistributedDataParallel with ZeroRedundancyOptimizer",
    zero_redundancy_plan,
    zero_redundancy_memory,
    # bucket caps are tuned with ``kind: ddp``
    settings=lambda *_: (Setting("parameters_as_bucket_view", (False, True)),),
    lighter=({},),
)
