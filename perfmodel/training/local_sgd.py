"""Local SGD: a round of optimizer steps with averages of parameters, as a StepPlan.

As in torch 2.13: after ``optimizer.step()`` all parameters are copied into one flat tensor, which
is divided, the device is waited for, and one all-reduce sums it; the parameters then are views of
it (``average_parameters`` in torch/distributed/algorithms/model_averaging/utils.py). With groups
that average gradients, DistributedDataParallel runs each step with ``post_localSGD_hook``; buffers
still come from rank 0 of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.errors import refuse_if
from perfmodel.scenario.strategies.ddp import CastHook, LocalSgdStrategy
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.ddp.strategy import ddp_memory
from perfmodel.training.frameworks import fixed_in
from perfmodel.training.memory_use import MemoryUse, Setup, replicated
from perfmodel.training.plan.builder import COMPUTE, GROUP, RANKS, TaskList
from perfmodel.training.plan.forward_backward import MANY_MICRO_BATCHES
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    StepPlan,
    Stream,
    Task,
    neighbours,
)
from perfmodel.training.strategy import StepRequest, Strategy
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor

GRADIENTS = "gradient groups"
"""Communicator of the ranks that all-reduce gradients in each step."""


SEGMENTS_PER_STEP = 4
"""Tasks of a pass of a long round, where nothing overlaps."""


def local_sgd_plan(request: StepRequest, options: LocalSgdStrategy) -> StepPlan:
    """Return a round of local SGD: optimizer steps until the pattern of averages repeats.

    The first iteration is one step: of the warm-up where there is one.

    Raises `InputError`: groups that do not divide the ranks.
    """
    if request.iteration == "first" and options.warmup_steps and request.ranks > 1:
        return ddp_plan(request, _hooked(options))
    steps = 1 if request.iteration == "first" else options.accumulate
    single = _single_step(request, options, steps)
    groups = _groups(request.ranks, options, steps)
    tasks = TaskList.of(request)
    begins_after: tuple[int, ...] = ()
    for step in range(steps):
        end = _repeat(tasks, single.tasks, step, begins_after)
        size = options.averaged_ranks(step, request.ranks)
        if size is not None and request.ranks > 1:
            end = _average(tasks, request, step, f"average of {size}", end)
        begins_after = (end,)
    tasks.begin_after(begins_after[0], (COMPUTE.name,))
    streams = {each.name: each for each in single.streams}
    if request.ranks > 1:
        streams.setdefault("comm", Stream("comm", "comm", request.comm_workers))
    return StepPlan(
        name=f"local SGD, {request.workload.name}, {steps} steps",
        classes=single.classes,
        streams=tuple(streams.values()),
        communicators=groups,
        tasks=tuple(tasks.tasks),
        samples=steps * request.ranks * request.batch_per_gpu,
    )


def _wrapped(options: LocalSgdStrategy) -> DdpOptions:
    """Options of DistributedDataParallel, which holds the buckets."""
    return DdpOptions(
        bucket_cap=options.bucket_cap,
        gradient_as_bucket_view=options.gradient_as_bucket_view,
        broadcast_buffers=options.broadcast_buffers,
    )


def _hooked(options: LocalSgdStrategy) -> DdpOptions:
    """Options of DistributedDataParallel with the hook of post-local SGD."""
    return _wrapped(options).model_copy(update={"hook": CastHook(kind="allreduce")})


def _consecutive(size: int, ranks: int, field: str) -> tuple[range, ...]:
    """Consecutive groups of a size.

    Raises `InputError`: ranks that cannot be split into them.
    """
    size = min(size, ranks)
    refuse_if(
        ranks % size, f"strategy.{field}", str(size), f"a number that divides the {ranks} GPUs"
    )
    return neighbours(ranks, size)


def _single_step(request: StepRequest, options: LocalSgdStrategy, steps: int) -> StepPlan:
    """One optimizer step of every rank, with the gradients of its group.

    Buckets are reduced in groups; buffers still come from rank 0 of all.
    """
    if options.gradient_gpus is None or request.ranks == 1:
        fewest = SEGMENTS_PER_STEP if steps <= MANY_MICRO_BATCHES else 1
        alone = ddp_plan(
            replace(request, ranks=1, segments=max(fewest, request.segments // steps)),
            _wrapped(options),
        )
        return replace(alone, classes=(replace(alone.classes[0], ranks=range(request.ranks)),))
    plan = ddp_plan(request, _hooked(options))
    tasks = (
        replace(task, work=replace(task.work, communicator=GRADIENTS))
        if isinstance(task.work, Collective) and task.bucket is not None
        else task
        for task in plan.tasks
    )
    return replace(plan, tasks=tuple(tasks))


def _groups(ranks: int, options: LocalSgdStrategy, steps: int) -> tuple[Communicator, ...]:
    if ranks == 1:
        return ()
    sizes = {options.averaged_ranks(step, ranks) for step in range(steps)}
    named = tuple(
        Communicator(f"average of {size}", _consecutive(size, ranks, "levels"))
        for size in sorted(size for size in sizes if size is not None)
    )
    if options.gradient_gpus is None:
        return named
    small = _consecutive(options.gradient_gpus, ranks, "gradient_gpus")
    return (Communicator(GROUP, (range(ranks),)), Communicator(GRADIENTS, small), *named)


def _repeat(tasks: TaskList, single: Sequence[Task], step: int, waits: tuple[int, ...]) -> int:
    """Append the tasks of a step after `waits`; return the task that ends it."""
    offset = len(tasks.tasks)
    first = next(index for index, task in enumerate(single) if task.stream == COMPUTE.name)
    for index, task in enumerate(single):
        work, after = task.work, tuple(offset + other for other in task.after)
        if isinstance(work, Collective):
            work = replace(work, key=f"{work.key}, step {step}")
        after = (*after, *waits) if index == first else after
        tasks.add(replace(task, work=work, after=after, after_previous=(), micro_batch=step))
    return offset + single[first].after_previous[0]


def _average(tasks: TaskList, request: StepRequest, step: int, group: str, after: int) -> int:
    """Average the parameters of a group's ranks; return the last task."""
    trained = [request.workload.tensors[i] for i in request.workload.ready_order]
    nbytes, dtype = averaged_bytes(trained)
    name, most = f"parameters, step {step}", fixed_in("torch", "tensors_per_concatenation")
    kernels = 1 - (-len(trained) // most)
    joined, waits = f"flatten {name}", (*tasks.issue(name, kernels, RANKS, micro_batch=step), after)
    flat = tasks.copy(joined, 2 * nbytes, kernels, RANKS, after=waits, micro_batch=step)
    end = tasks.collective(
        f"average {name}",
        "all_reduce",
        nbytes,
        RANKS,
        communicator=group,
        key=name,
        after=(tasks.wait(f"wait for {name}", RANKS, after=(flat,), micro_batch=step),),
        dtype=dtype,
        micro_batch=step,
    )
    if len({tensor.dtype for tensor in trained}) > 1:  # back to their own dtypes
        end = tasks.copy(
            f"convert {name}", nbytes, len(trained), RANKS, after=(end,), micro_batch=step
        )
    return end


def averaged_bytes(trained: Sequence[ParameterTensor]) -> tuple[int, str]:
    """Bytes and dtype of all parameters in one tensor: the widest dtype of theirs."""
    dtype = max((tensor.dtype for tensor in trained), key=lambda name: ITEM_BYTES[name])
    if {"fp16", "bf16"} <= {tensor.dtype for tensor in trained}:
        dtype = max((dtype, "fp32"), key=lambda name: ITEM_BYTES[name])
    return ITEM_BYTES[dtype] * sum(tensor.numel for tensor in trained), dtype


# ---------------------------------------------------------------- the row


def local_sgd_memory(setup: Setup) -> MemoryUse:
    """Add up what local SGD keeps on a GPU.

    The flat copy of all parameters is made after the optimizer, where activations are gone: what
    it takes beyond their room counts. The warm-up has the buckets of all gradients, too.
    """
    options: LocalSgdStrategy = setup.options
    if setup.ranks == 1:
        return replicated(setup)
    with_buckets = options.gradient_gpus is not None or options.warmup_steps > 0
    use = (
        ddp_memory(replace(setup, options=_hooked(options))) if with_buckets else replicated(setup)
    )
    nbytes, _ = averaged_bytes(setup.trained)
    return replace(use, gathered_bytes=max(0.0, nbytes - use.activations_bytes))


def _remarks(options: LocalSgdStrategy) -> tuple[str, ...]:
    steps, late = options.accumulate, options.warmup_steps
    unit = "one optimizer step" if steps == 1 else f"a round of {steps:,} optimizer steps"
    sentences = (
        f"A step is {unit}, with the averages of parameters in it; its samples are of all.",
        f"The {late:,} steps of the warm-up are not in it." if late else "",
        "How many more samples training needs with fewer averages is not modelled.",
    )
    return (" ".join(filter(None, sentences)),)


LOCAL_SGD = Strategy("local SGD", local_sgd_plan, local_sgd_memory, remarks=_remarks)
