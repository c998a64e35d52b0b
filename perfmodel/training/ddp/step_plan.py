"""DistributedDataParallel: one training step as a StepPlan.

The order of events is that of torch 2.13 (``torch/nn/parallel/distributed.py`` and
``torch/csrc/distributed/c10d/reducer.cpp``): broadcast of buffers, forward, backward with the
gradients of each layer copied into their bucket as soon as they are ready, an all-reduce per
bucket strictly in bucket order on one stream, then bucket by bucket the copy back into the
gradients, then the optimizer.

In the join context, ranks that run out of inputs shadow the collectives of the others. The order is
that of torch 2.13: ``Join`` in torch/distributed/algorithms/join.py, ``_pre_forward`` and
``_DDPJoinHook`` in torch/nn/parallel/distributed.py. Each rank that still has inputs notifies the
others before forward, agrees with them on whose buffers count, and says whether this backward
synchronises. A rank that has none waits for each of these, then reduces zeros bucket by bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.errors import refuse_if
from perfmodel.scenario.strategies.ddp import MixedPrecisionSection
from perfmodel.training.ddp.bucket_hooks import check_library
from perfmodel.training.ddp.buckets import ddp_buckets
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.reducer import (
    CASTS,
    add_copy_out,
    add_parameter_casts,
    add_reducing_backward,
    add_shadow_reduction,
)
from perfmodel.training.frameworks import fixed_in
from perfmodel.training.plan.builder import COMPUTE, GROUP, HOST, RANKS, TaskList
from perfmodel.training.plan.forward_backward import (
    Step,
    add_forward,
    add_local_backward,
    add_optimizer,
)
from perfmodel.training.plan.step_plan import Communicator, RankClass, StepPlan, Stream
from perfmodel.training.plan.table_servers import RPC, latest, server_communicators
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import ITEM_BYTES, Buffers

JOINED = "joined"
"""Class of the ranks that have run out of inputs."""


def _wait_for_flag(
    step: Step, name: str, sent: int, micro_batch: int, *, waits: bool = False
) -> tuple[int, ...]:
    """Let ranks without inputs wait for the answer; with `waits` all ranks."""
    if not waits and step.rank_class != JOINED:
        return ()
    return (step.tasks.wait(name, step.rank_class, after=(sent,), micro_batch=micro_batch),)


def _flag(step: Step, key: str, micro_batch: int, *, after: tuple[int, ...] = ()) -> int:
    return step.tasks.collective(
        f"all-reduce of {key}",
        "all_reduce",
        fixed_in("torch", "flag_bytes"),
        step.rank_class,
        communicator=GROUP,
        key=key,
        after=after,
        dtype="fp32",
        micro_batch=micro_batch,
    )


HOOKS = (CASTS, Stream("cast", "copy"), Stream("hook", "copy"))


def ddp_plan(request: StepRequest, options: DdpOptions) -> StepPlan:
    """Return one step of DDP training; of plain training for one rank.

    Gradients have the dtype of the workload's tensors. One rank runs without DDP, so that scaling
    is measured against a GPU that neither copies nor communicates.

    Raises `InputError`: a bad ready order.
    Raises `ScheduleError`: times that do not fit the workload.
    """
    if request.bucket_copy_Bps is not None:
        request = replace(request, times=replace(request.times, copy_Bps=request.bucket_copy_Bps))
    ranks, tasks = request.ranks, TaskList.of(request)
    step = Step(request, options, tasks, RANKS)
    if ranks == 1:
        for micro_batch in range(options.accumulate):
            add_forward(step, micro_batch)
            add_local_backward(step, micro_batch)
        _add_update(step, ())
    else:
        _add_reduced_step(step)
    comm = Stream("comm", "comm", request.comm_workers)
    kind = "one GPU" if ranks == 1 else "DDP"
    return tasks.plan(
        name=f"{kind}, {request.workload.name}, {request.iteration} iteration",
        classes=_classes(request, options),
        streams=(HOST, COMPUTE, comm, *HOOKS, RPC),
        communicators=(
            *[Communicator(GROUP, options.groups(ranks))] * (ranks > 1),
            *server_communicators(request),
        ),
        samples=(ranks - _joined(request, options)) * request.batch_per_gpu * options.accumulate,
    )


def _joined(request: StepRequest, options: DdpOptions) -> int:
    """Ranks without inputs; none in the first iteration, nor where there is one rank only."""
    return 0 if request.ranks == 1 or request.iteration == "first" else options.joined_gpus


def _classes(request: StepRequest, options: DdpOptions) -> tuple[RankClass, ...]:
    ranks, joined = request.ranks, _joined(request, options)
    refuse_if(
        joined >= ranks,
        "strategy.joined_gpus",
        str(joined),
        f"at most {ranks - 1} of {ranks} ranks: one at least has inputs",
    )
    active = RankClass(RANKS, range(ranks - joined))
    return (active, RankClass(JOINED, range(ranks - joined, ranks))) if joined else (active,)


def _add_reduced_step(step: Step) -> None:
    request, last = step.request, step.last_micro_batch
    buckets = ddp_buckets(
        request.workload,
        step.options,
        iteration=request.iteration,
        ready_order=request.ready_order,
    )
    check_library(step.options.hook, request, buckets)
    for micro_batch in range(last):
        add_forward(step, micro_batch, after=_add_synchronisation(step, micro_batch))
        add_local_backward(step, micro_batch)
    add_forward(step, last, after=_add_synchronisation(step, last), casts=add_parameter_casts(step))
    _add_update(step, add_copy_out(step, buckets, add_reducing_backward(step, buckets)))
    if _joined(request, step.options):  # ranks that have run out of inputs join the collectives
        shadow = replace(step, rank_class=JOINED)
        after = [_add_synchronisation(shadow, micro_batch) for micro_batch in range(last + 1)]
        add_shadow_reduction(shadow, buckets, after[-1])


def _add_synchronisation(step: Step, micro_batch: int) -> tuple[int, ...]:
    """Add what precedes forward; return what it waits for.

    Within ``join()`` each rank says that it has inputs, agrees with the others on the rank whose
    buffers count, which the host reads, and says whether this backward synchronises. With
    ``throw_on_early_termination`` the host also reads whether any rank has no inputs.
    """
    joins, throws = step.options.join, step.options.throw_on_early_termination
    notified, synced = tuple[int, ...](), tuple[int, ...]()
    if joins:
        sent = _flag(step, f"join notice {micro_batch}", micro_batch)
        if throws:
            sent = _flag(step, f"join exception {micro_batch}", micro_batch, after=(sent,))
        notified = _wait_for_flag(step, "wait for join", sent, micro_batch, waits=throws)
    if step.options.broadcast_buffers and micro_batch == 0 and step.request.workload.buffers:
        after = notified
        if joins:
            sent = step.tasks.collective(
                "all-reduce of authoritative rank",
                "all_reduce",
                fixed_in("torch", "rank_bytes"),
                step.rank_class,
                communicator=GROUP,
                key="authoritative rank",
                after=notified,
                dtype="int64",
            )
            after = (
                step.tasks.wait("wait for authoritative rank", step.rank_class, after=(sent,)),
            )
        synced = _add_buffer_broadcasts(step, after)
    if not joins:
        return synced
    key = f"join synchronises {micro_batch}"
    sent = _flag(step, key, micro_batch, after=synced or notified)
    return (*synced, *_wait_for_flag(step, "wait for the kind of backward", sent, micro_batch))


def kept_buffers(
    buffers: Sequence[Buffers], mixed: MixedPrecisionSection | None
) -> tuple[Buffers, ...]:
    """Return buffers as mixed precision keeps them: as one group, if it states their dtype."""
    dtype = mixed and mixed.buffer_dtype
    if not dtype or not buffers:
        return tuple(buffers)
    elements = sum(group.nbytes // ITEM_BYTES[group.dtype] for group in buffers)
    return (Buffers(dtype, sum(group.tensors for group in buffers), ITEM_BYTES[dtype] * elements),)


def _add_buffer_broadcasts(step: Step, after: tuple[int, ...]) -> tuple[int, ...]:
    """Broadcast rank 0's running statistics before forward, which waits for them.

    One broadcast per dtype, and a kernel per buffer to copy it back
    (``broadcast_coalesced`` in torch/csrc/distributed/c10d/comm.cpp).
    """
    most = fixed_in("torch", "broadcast_bytes")
    pending: list[tuple[int, int, int]] = []  # collective, bytes, kernels to copy back
    for group in kept_buffers(step.request.workload.buffers, step.options.mixed_precision):
        for piece in range(-(-group.nbytes // most)):
            nbytes = min(group.nbytes - piece * most, most)
            copies, key = group.tensors if piece == 0 else 1, f"buffers {group.dtype} {piece}"
            issued = step.tasks.issue("broadcast of buffers", 2 + copies, step.rank_class)
            flat = step.tasks.copy(
                "flatten buffers", nbytes, 1, step.rank_class, after=(*issued, *after)
            )
            sent = step.tasks.collective(
                f"broadcast buffers ({group.dtype})",
                "broadcast",
                nbytes,
                step.rank_class,
                communicator=GROUP,
                key=key,
                after=(flat,),
                dtype=group.dtype,
            )
            pending.append((sent, nbytes, copies))
    return tuple(
        step.tasks.copy("copy buffers back", nbytes, copies, step.rank_class, after=(sent,))
        for sent, nbytes, copies in pending
    )


def _add_update(step: Step, reduced: tuple[int, ...]) -> None:
    add_optimizer(
        step,
        (*reduced, *latest(step.tasks, RPC)),
        host_waits=step.request.blocking_wait,
        streams=(COMPUTE.name, CASTS.name),
    )
