"""What a step does before its first forward and after its last backward."""

from __future__ import annotations

from perfmodel.training.ddp.buckets import assign_buckets
from perfmodel.training.plan.builder import COMPUTE
from perfmodel.training.sharded.fsdp.step.sharded_step import (
    COPIES,
    GATHERS,
    RANKS,
    REDUCTIONS,
    SHARDS,
    ShardedStep,
    communicate,
    copy_s,
    issue,
    run,
)
from perfmodel.training.sharded.fsdp.step.weight_scales import add_scales
from perfmodel.training.sharded.shard_units import ShardUnit
from perfmodel.workload.model import ITEM_BYTES

BROADCAST_BYTES = 250 * 1024 * 1024
"""Pieces in which states are broadcast (``PARAM_BROADCAST_BUCKET_SIZE``, _init_utils.py)."""

NORM_DTYPE = "fp32"
"""Version 1 computes norms in it (``_get_grad_norm`` in fully_sharded_data_parallel.py)."""


def add_update(step: ShardedStep) -> int:
    """Clip the gradients and update each rank's shard; returns the task that ends the step."""
    if step.options.clip_norm:
        _add_clipping(step)
    times, options = step.request.times, step.options
    issued = issue(step, "optimizer", times.optimizer_kernels)
    duration_s = times.optimizer_s * _own_share(step)
    if options.offload:
        duration_s = step.request.host_optimizer_s * _own_share(step)
    waits = dict.fromkeys((*issued, *step.layers_wait))
    step.layers_wait.clear()
    end = step.tasks.compute(
        "optimizer", "optimizer", duration_s, RANKS, after=waits, stream=COMPUTE.name, **step.marks
    )
    end = add_scales(step, end)
    if step.request.host_s > 0:
        end = run(step, "end of the step", "copy", step.request.host_s, after=(end,))
    return end


def _own_share(step: ShardedStep) -> float:
    """Share of the parameters that a rank updates: of experts more than of all others."""
    sizes = step.sizes
    units = {moment.unit.name: moment.unit for moment in step.walk if moment.unit}.values()
    if not any(unit.of_experts for unit in units):
        return 1 / step.shard_ranks
    own = sum(sizes.reduced_elements(unit) / sizes.ranks_of(unit) for unit in units)
    return own / sum(map(sizes.reduced_elements, units))


def _add_clipping(step: ShardedStep) -> None:
    """Add the norm of each shard, its sum over the shard group, and the scaling of gradients.

    Of experts, whose norms add up over two groups, the sum is taken to take no longer.
    """
    units = [moment.unit for moment in step.walk if moment.kind == "enter" and moment.is_first]
    sizes = step.sizes
    shard = sum(sizes.kept_gradient_bytes(unit) / sizes.ranks_of(unit) for unit in units if unit)
    issued = issue(step, "norm of gradients", 2)
    squared = run(step, "norm of gradients", "copy", copy_s(step, shard / 2), after=issued)
    numbers, dtype = 1, NORM_DTYPE
    if step.options.version == 2:  # a norm of each parameter, in its own dtype
        numbers, dtype = len(step.sizes.ready), step.sizes.own_dtype(next(filter(None, units)))
    summed = communicate(
        step,
        "sum of norms",
        "all_reduce",
        numbers * ITEM_BYTES[dtype],
        dtype=dtype,
        communicator=SHARDS,
        stream=REDUCTIONS,
        after=(squared,),
    )
    step.layers_wait.append(summed)
    run(step, "clip gradients", "copy", copy_s(step, shard), after=issue(step, "clip", 2))


def add_broadcasts(step: ShardedStep) -> None:
    """Broadcast rank 0's parameters and buffers, unit by unit, before the first step.

    With copies, to the first rank of each shard group and then within (``_init_param_handle_from_
    module`` in torch/distributed/fsdp/_init_utils.py). Assumption: all buffers are of the root.
    """
    units = [moment.unit for moment in step.walk if moment.kind == "leave" and moment.unit]
    groups = [SHARDS] if step.shard_ranks == step.request.ranks else [COPIES, SHARDS]
    for unit in dict.fromkeys(units):
        pieces = _pieces(step, unit)
        for communicator in groups:
            for number, (nbytes, dtype) in enumerate(pieces):
                _broadcast(step, f"broadcast {unit.name} {number}", nbytes, dtype, communicator)


def _pieces(step: ShardedStep, unit: ShardUnit) -> list[tuple[int, str]]:
    """Bytes and dtype of each broadcast of a unit's states."""
    tensors = step.sizes.tensors(unit)
    buffers = step.request.workload.buffers if unit.is_root else ()
    return [
        *((group.nbytes, group.dtype) for group in buffers),
        *(
            (sum(tensors[index].nbytes for index in piece), tensors[piece[0]].dtype)
            for piece in assign_buckets(tensors, (BROADCAST_BYTES,))
        ),
    ]


def _broadcast(step: ShardedStep, name: str, nbytes: int, dtype: str, communicator: str) -> None:
    flat = run(step, f"flatten {name}", "copy", copy_s(step, nbytes), after=issue(step, name, 3))
    sent = communicate(
        step,
        name,
        "broadcast",
        nbytes,
        dtype=dtype,
        communicator=communicator,
        stream=GATHERS,
        after=(flat,),
        phase=communicator,
    )
    step.layers_wait.append(sent)
    run(step, f"copy back {name}", "copy", copy_s(step, nbytes))
