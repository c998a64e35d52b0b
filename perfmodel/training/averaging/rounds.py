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

from perfmodel.training.averaging.options import LocalSgdOptions
from perfmodel.training.ddp.bucket_reduction import GROUP
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.plan.builder import COMPUTE, TaskList
from perfmodel.training.plan.forward_backward import MANY_MICRO_BATCHES
from perfmodel.training.plan.step_plan import Collective, Communicator, StepPlan, Stream, Task
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor

RANKS = "ranks"

GRADIENTS = "gradient groups"
"""Communicator of the ranks that all-reduce gradients in each step."""

TENSORS_PER_LAUNCH = 128
"""Tensors that a kernel of ``torch.cat`` copies (``CAT_ARRAY_BATCH_SIZE``, Shape.cu)."""

SEGMENTS_PER_STEP = 4
"""Tasks of a pass of a long round, where nothing overlaps."""


def local_sgd_plan(request: StepRequest, options: LocalSgdOptions) -> StepPlan:
    """Return a round of local SGD: optimizer steps until the pattern of averages repeats.

    The first iteration is one step: of the warm-up where there is one.

    Raises `InputError`: groups that do not divide the ranks.
    """
    if request.iteration == "first" and options.warmup_steps and request.ranks > 1:
        return ddp_plan(request, options.hooked)
    steps = 1 if request.iteration == "first" else options.accumulate
    single = _single_step(request, options, steps)
    groups = _groups(request.ranks, options, steps)
    tasks = TaskList.of(request)
    ends: list[int] = []
    for step in range(steps):
        end = _repeat(tasks, single.tasks, step, ends)
        size = options.averaged_ranks(step, request.ranks)
        if size is not None and request.ranks > 1:
            end = _average(tasks, request, step, f"average of {size}", end)
        ends.append(end)
    tasks.begin_after(ends[-1], (COMPUTE.name,))
    streams = single.streams
    if request.ranks > 1 and all(stream.name != "comm" for stream in streams):
        streams = (*streams, Stream("comm", "comm", request.comm_workers))
    return StepPlan(
        name=f"local SGD, {request.workload.name}, {steps} steps",
        classes=single.classes,
        streams=streams,
        communicators=groups,
        tasks=tuple(tasks.tasks),
        samples=steps * request.ranks * request.batch_per_gpu,
    )


def _single_step(request: StepRequest, options: LocalSgdOptions, steps: int) -> StepPlan:
    """One optimizer step of every rank, with the gradients of its group."""
    if options.gradient_ranks is None or request.ranks == 1:
        fewest = SEGMENTS_PER_STEP if steps <= MANY_MICRO_BATCHES else 1
        at_most = max(fewest, request.segments // steps)
        alone = ddp_plan(replace(request, ranks=1, segments=at_most), options.ddp)
        return replace(alone, classes=(replace(alone.classes[0], ranks=range(request.ranks)),))
    plan = ddp_plan(request, options.hooked)
    return replace(plan, tasks=tuple(_in_group(task) for task in plan.tasks))


def _in_group(task: Task) -> Task:
    """Let buckets be reduced in groups; buffers still come from rank 0 of all."""
    if isinstance(task.work, Collective) and task.bucket is not None:
        return replace(task, work=replace(task.work, communicator=GRADIENTS))
    return task


def _groups(ranks: int, options: LocalSgdOptions, steps: int) -> tuple[Communicator, ...]:
    if ranks == 1:
        return ()
    sizes = {options.averaged_ranks(step, ranks) for step in range(steps)}
    named = [
        Communicator(f"average of {size}", options.groups(size, ranks, "levels"))
        for size in sorted(size for size in sizes if size is not None)
    ]
    if options.gradient_ranks is None:
        return tuple(named)
    small = options.groups(options.gradient_ranks, ranks, "gradient_gpus")
    return (Communicator(GROUP, (range(ranks),)), Communicator(GRADIENTS, small), *named)


def _first_device_task(tasks: Sequence[Task]) -> int:
    return next(index for index, task in enumerate(tasks) if task.stream == COMPUTE.name)


def _repeat(tasks: TaskList, single: Sequence[Task], step: int, ends: Sequence[int]) -> int:
    """Append the tasks of a step after the last; returns the task that ends it."""
    offset, first = len(tasks.tasks), _first_device_task(single)
    (end,) = single[first].after_previous
    for index, task in enumerate(single):
        work, after = task.work, tuple(offset + other for other in task.after)
        if isinstance(work, Collective):
            work = replace(work, key=f"{work.key}, step {step}")
        if index == first:
            after = (*after, *ends[-1:])
        tasks.add(replace(task, work=work, after=after, after_previous=(), micro_batch=step))
    return offset + end


def _average(tasks: TaskList, request: StepRequest, step: int, group: str, after: int) -> int:
    """Average the parameters of a group's ranks; returns the last task."""
    trained = [request.workload.tensors[i] for i in request.workload.ready_order]
    nbytes, dtype = averaged_bytes(trained)
    joins = -(-len(trained) // TENSORS_PER_LAUNCH)
    name = f"parameters, step {step}"
    issued = tasks.issue(name, joins + 1, RANKS, micro_batch=step)
    flat = tasks.copy(
        f"flatten {name}", 2 * nbytes, joins + 1, RANKS, after=(*issued, after), micro_batch=step
    )
    waited = tasks.wait(f"wait for {name}", RANKS, after=(flat,), micro_batch=step)
    end = tasks.collective(
        f"average {name}",
        "all_reduce",
        nbytes,
        RANKS,
        communicator=group,
        key=name,
        after=(waited,),
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
