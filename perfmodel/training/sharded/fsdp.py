"""FullyShardedDataParallel and fully_shard: one training step as a StepPlan.

The order of events is that of torch 2.13 (``torch/distributed/fsdp/_runtime_utils.py`` and
``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``).
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.training.plan.builder import COMPUTE, HOST
from perfmodel.training.plan.step_plan import Communicator, RankClass, StepPlan, Stream
from perfmodel.training.sharded.options import FsdpOptions
from perfmodel.training.sharded.step import (
    COPIES,
    RANKS,
    REGATHERED,
    REPLICA_STREAM,
    SHARDS,
    ShardedStep,
    add_backward,
    add_forward,
    begin_step,
)
from perfmodel.training.strategy import StepRequest

STREAMS = (
    HOST, COMPUTE, Stream("gather copy", "copy"), Stream("comm", "comm"),
    Stream(REPLICA_STREAM, "comm"),
)  # fmt: skip


def fsdp_plan(request: StepRequest, options: FsdpOptions) -> StepPlan:
    """Return one step of fully sharded training.

    One communicator carries gathers and reductions, one after the other in the order in which they
    are issued, as NCCL does.

    Raises `ScheduleError`: times that do not fit the workload.
    """
    step = begin_step(request, options)
    for micro_batch in range(options.accumulate):
        add_forward(step, micro_batch)
        add_backward(step, micro_batch)
    _add_optimizer(step)
    used = {task.stream for task in step.tasks.tasks}
    return StepPlan(
        name=f"FSDP{options.version}, {request.workload.name}",
        classes=(RankClass(RANKS, range(request.ranks)),),
        streams=tuple(stream for stream in STREAMS if stream.name in used),
        communicators=communicators(request.ranks, step.shard_ranks, options.regather_ranks),
        tasks=tuple(step.tasks.tasks),
        samples=request.ranks * request.batch_per_gpu * options.accumulate,
    )


def communicators(
    ranks: int, shard_ranks: int, regather_ranks: int | None
) -> tuple[Communicator, ...]:
    """Groups of neighbours that share shards, and of the holders of the same shard."""
    result = [Communicator(SHARDS, _neighbours(ranks, shard_ranks))]
    if regather_ranks is not None:
        result.append(Communicator(REGATHERED, _neighbours(ranks, regather_ranks)))
    if shard_ranks < ranks:
        strides = tuple(range(first, ranks, shard_ranks) for first in range(shard_ranks))
        result.append(Communicator(COPIES, strides))
    return tuple(result)


def _neighbours(ranks: int, size: int) -> tuple[range, ...]:
    return tuple(range(first, first + size) for first in range(0, ranks, size))


def _add_optimizer(step: ShardedStep) -> None:
    """Each rank updates its shard; the next step's first gather and kernel follow."""
    times = step.request.times
    issued = step.tasks.issue("optimizer", times.optimizer_kernels, RANKS)
    end = step.tasks.compute(
        "optimizer", "optimizer", times.optimizer_s / step.shard_ranks, RANKS,
        after=dict.fromkeys((*issued, *step.reduced)),
    )  # fmt: skip
    streams: set[str] = {HOST.name}
    for index, task in enumerate(step.tasks.tasks):
        if task.stream not in streams and index != end:
            streams.add(task.stream)
            step.tasks.tasks[index] = replace(task, after_previous=(end,))
