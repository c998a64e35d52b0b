"""What the constructor of DistributedDataParallel communicates, once, before the first step.

Ranks compare the number and the shapes of their parameters, then rank 0 broadcasts its parameters
and buffers (``_verify_param_shape_across_processes`` and ``_sync_module_states`` in
torch/distributed/utils.py, ``verify_params_across_processes`` in reducer.cpp). The host reads what
it received.
"""

from __future__ import annotations

from perfmodel.training.ddp.buckets import assign_buckets
from perfmodel.training.ddp.hooks.bucket_reduction import GROUP
from perfmodel.training.ddp.options import MIB, DdpOptions
from perfmodel.training.plan.builder import COMPUTE, HOST, TaskList
from perfmodel.training.plan.forward_backward import Step
from perfmodel.training.plan.step_plan import Communicator, RankClass, StepPlan, Stream
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor

COALESCED_BYTES = 250 * MIB
"""Tensors are broadcast in pieces of this size (broadcast_bucket_size, distributed.py)."""

COUNT_BYTES = 8
"""An int64 of each rank: how many parameters it has."""

NUMBERS_PER_DIMENSION = 2
"""Size and stride, int64 each."""


RANKS = "ranks"


def start_plan(request: StepRequest, options: DdpOptions) -> StepPlan:
    """Return the collectives of the constructor as a plan; without ``init_sync`` it has none."""
    tasks = TaskList(request.times.launch_s, request.kernel_s, request.times.copy_Bps)
    if options.init_sync:
        _add_collectives(Step(request, options, tasks, RANKS))
    return StepPlan(
        name=f"start of DDP, {request.workload.name}",
        classes=(RankClass(RANKS, range(request.ranks)),),
        streams=(HOST, COMPUTE, Stream("comm", "comm", request.comm_workers)),
        communicators=(Communicator(GROUP, options.groups(request.ranks)),),
        tasks=tuple(tasks.tasks),
        samples=request.ranks * request.batch_per_gpu,
    )


def _add_collectives(step: Step) -> None:
    tasks, rank_class = step.tasks, step.rank_class
    ranks = step.options.ranks_of_group(step.request.ranks)
    counted = tasks.collective(
        "all-gather parameter counts",
        "all_gather",
        COUNT_BYTES * ranks,
        rank_class,
        communicator=GROUP,
        key="parameter counts",
        dtype="int64",
    )
    trained = [step.request.workload.tensors[i] for i in step.request.workload.ready_order]
    numbers = NUMBERS_PER_DIMENSION * sum(len(tensor.shape) for tensor in trained)
    sent = tasks.collective(
        "broadcast shapes",
        "broadcast",
        COUNT_BYTES * numbers,
        rank_class,
        communicator=GROUP,
        key="shapes",
        after=(counted,),
        dtype="int64",
    )
    compared = tasks.wait("wait for shapes", rank_class, after=(sent,))
    for number, (nbytes, dtype, tensors) in enumerate(state_pieces(step)):
        issued = tasks.issue("broadcast of parameters", 2 + tensors, rank_class)
        flat = tasks.copy("flatten parameters", nbytes, 1, rank_class, after=(*issued, compared))
        sent = tasks.collective(
            f"broadcast parameters ({dtype})",
            "broadcast",
            nbytes,
            rank_class,
            communicator=GROUP,
            key=f"parameters {number}",
            after=(flat,),
            dtype=dtype,
        )
        tasks.copy("copy parameters back", nbytes, tensors, rank_class, after=(sent,))


def state_pieces(step: Step) -> tuple[tuple[int, str, int], ...]:
    """Bytes, dtype and tensors of each broadcast of parameters and buffers."""
    workload = step.request.workload
    states = [*workload.tensors]
    tensors = [1] * len(states)
    if step.options.sync_buffers_at_start:
        for group in workload.buffers:
            elements = group.nbytes // ITEM_BYTES[group.dtype]
            states.append(ParameterTensor("buffers", (elements,), group.dtype))
            tensors.append(group.tensors)
    pieces = assign_buckets(states, (COALESCED_BYTES,))
    return tuple(
        (
            sum(states[i].nbytes for i in piece),
            states[piece[0]].dtype,
            sum(tensors[i] for i in piece),
        )
        for piece in pieces
    )
