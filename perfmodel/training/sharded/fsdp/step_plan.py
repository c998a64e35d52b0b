"""FullyShardedDataParallel and fully_shard: one training step as a StepPlan.

The order of events is that of torch 2.13 (``torch/distributed/fsdp/_runtime_utils.py`` and
``torch/distributed/fsdp/_fully_shard``). Streams of layers, gathers, reductions and averages over
copies are those of PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.errors import Fault, InputError
from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.plan.builder import COMPUTE, EXPERT_COPIES, HOST
from perfmodel.training.plan.step_plan import Communicator, RankClass, StepPlan, Stream
from perfmodel.training.sharded.fsdp.step.passes import add_backward, add_forward
from perfmodel.training.sharded.fsdp.step.sharded_step import (
    AVERAGES,
    COPIES,
    GATHER_COPIES,
    GATHERS,
    RANKS,
    REDUCTION_COPIES,
    REDUCTIONS,
    REGATHERED,
    SHARDS,
    ShardedStep,
    begin_step,
    close_step,
)
from perfmodel.training.sharded.fsdp.step.updates import add_broadcasts, add_update
from perfmodel.training.strategy import StepRequest

STREAMS = (
    HOST,
    COMPUTE,
    Stream(GATHER_COPIES, "copy"),
    Stream(GATHERS, "comm"),
    Stream(REDUCTIONS, "comm"),
    Stream(REDUCTION_COPIES, "copy"),
    Stream(AVERAGES, "comm"),
)


def fsdp_plan(request: StepRequest, options: FsdpStrategy) -> StepPlan:
    """Return one step of fully sharded training; of plain training for one rank.

    Raises `InputError`: groups that do not divide the ranks, or units that the model lacks.
    Raises `ScheduleError`: times that do not fit the workload.
    """
    if request.ranks == 1:
        return ddp_plan(request, DdpOptions(accumulate=options.accumulate))
    faults = [*group_faults(request.ranks, options), *_expert_faults(request, options)]
    if options.offload and request.host_link_Bps is None:
        faults.append(Fault("offload", "true", "a node whose topology connects GPUs with CPUs"))
    if faults:
        raise InputError(faults)
    step = _add_step(request, options, 0)
    if step.free_events:  # in the steady state, the queue begins as the step before left it
        step = _add_step(request, options, len(step.free_events))
    used = {task.stream for task in step.tasks.tasks}
    return StepPlan(
        name=f"FSDP{options.version}, {request.workload.name}",
        classes=(RankClass(RANKS, range(request.ranks)),),
        streams=tuple(stream for stream in STREAMS if stream.name in used),
        communicators=(
            *communicators(request.ranks, step.shard_ranks, options.regather_gpus),
            *_expert_copies(request),
        ),
        tasks=tuple(step.tasks.tasks),
        samples=request.ranks * request.batch_per_gpu * options.accumulate,
    )


def _add_step(request: StepRequest, options: FsdpStrategy, freed_before: int) -> ShardedStep:
    step = begin_step(request, options, freed_before)
    if request.iteration == "first" and options.sync_module_states:
        add_broadcasts(step)
    for micro_batch in range(options.accumulate):
        step.micro_batch = micro_batch
        add_forward(step)
        add_backward(step)
    close_step(step, add_update(step))
    return step


def group_faults(ranks: int, options: FsdpStrategy) -> Iterator[Fault]:
    """What is wrong with the groups that share shards."""
    shards = options.shard_ranks(ranks)
    if ranks % shards:
        yield Fault("shard_gpus", str(shards), f"a divisor of the {ranks} GPUs{_divisors(ranks)}")
    elif shards == 1 and ranks > 1:
        yield Fault("shard_gpus", "1", "2 or more; `kind: ddp` keeps all parameters on each GPU")
    if options.sync == "shards" and (options.shard_gpus or ranks) == ranks:
        allowed = f"'each' or 'last', or shard_gpus below the {ranks} GPUs: there are no copies"
        yield Fault("sync", "'shards'", allowed)
    inner = options.regather_gpus
    if inner is not None and (shards % inner or inner in (1, shards)):
        allowed = f"a divisor of the {shards} GPUs of a shard group{_divisors(shards)}"
        if inner == shards:
            allowed += f", or true, which is {shards}"
        yield Fault("reshard_after_forward", str(inner), allowed)


def _expert_faults(request: StepRequest, options: FsdpStrategy) -> Iterator[Fault]:
    """What fully sharded training with shared experts does not go with."""
    if request.expert_copies is None:
        return
    with_experts = "with parallel.expert of 2 or more"
    if options.version == 1:
        yield Fault("version", "1", f"2 {with_experts}: one mesh for each unit")
    if options.shard_gpus is not None:
        yield Fault("shard_gpus", str(options.shard_gpus), f"nothing {with_experts}")
    if options.regather_gpus is not None:
        allowed = f"true or false {with_experts}"
        yield Fault("reshard_after_forward", str(options.regather_gpus), allowed)


def _expert_copies(request: StepRequest) -> tuple[Communicator, ...]:
    """Ranks that share units of experts; placement puts their real groups in its place."""
    copies = request.expert_copies or 1
    if copies < 2:
        return ()
    return (Communicator(EXPERT_COPIES, (range(copies),), "expert_copies"),)


def _divisors(number: int) -> str:
    divisors = [each for each in range(2, number) if number % each == 0]
    return f": {', '.join(map(str, divisors))}" if divisors else ", of which there is none"


def communicators(
    ranks: int, shard_ranks: int, regather_ranks: int | None
) -> tuple[Communicator, ...]:
    """Groups of neighbours that share shards, and of the holders of the same shard.

    Ranks stand in the order of a ``DeviceMesh`` of copies by shards: those of a shard group have
    consecutive numbers, so that a node's GPUs are in one group where it is as large.
    """
    result = [Communicator(SHARDS, _neighbours(ranks, shard_ranks))]
    if regather_ranks is not None:
        result.append(Communicator(REGATHERED, _neighbours(ranks, regather_ranks)))
    if shard_ranks < ranks:
        strides = tuple(range(first, ranks, shard_ranks) for first in range(shard_ranks))
        result.append(Communicator(COPIES, strides))
    return tuple(result)


def _neighbours(ranks: int, size: int) -> tuple[range, ...]:
    return tuple(range(first, first + size) for first in range(0, ranks, size))
