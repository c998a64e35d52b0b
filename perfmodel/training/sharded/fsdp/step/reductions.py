"""How gradients of a unit are reduced, as torch 2.13 does.

Version 1: ``_reduce_grad`` in torch/distributed/fsdp/_runtime_utils.py. Version 2:
``post_backward`` in torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and ``foreach_reduce``
in _fsdp_collectives.py.
"""

from __future__ import annotations

from perfmodel.training.sharded.fsdp.step.sharded_step import (
    AVERAGES,
    COPIES,
    REDUCTION_COPIES,
    REDUCTIONS,
    ShardedStep,
    beside,
    communicate,
    copy_s,
    host_copy_s,
    issue,
    run,
)
from perfmodel.training.sharded.shard_units import ShardUnit

ADDED = 1.5
"""Adding in place reads two values and writes one, where a copy reads one and writes one."""

HALVES_RANGE = "fp16"
"""Version 2 divides before and after the reduction in this dtype; others are averaged by NCCL
(``_get_gradient_divide_factors``)."""


def reduce(step: ShardedStep, unit: ShardUnit) -> None:
    """Reduce the gradients of a unit to the ranks that hold its shards."""
    nbytes = step.sizes.reduced_bytes(unit)
    if step.options.version == 2:
        _free_inputs(step)
    if not nbytes:
        return
    name = f"reduce {unit.name}"
    issued = issue(step, name, 3)
    if step.options.version == 2:
        copied_s = copy_s(step, (step.sizes.gradient_bytes(unit) + nbytes) / 2)
        ready: tuple[int, ...] = (run(step, f"copy in {name}", "copy", copied_s, after=issued),)
    else:
        behind = () if step.newest_layer is None else (step.newest_layer,)
        ready = (*issued, *behind)
    divided_s = _divisions_s(step, unit)
    ready = beside(step, f"scale {unit.name}", divided_s, REDUCTION_COPIES, ready)
    if step.sizes.ranks_of(unit) == 1:  # copied where it would be sent
        moved = f"move gradients of {unit.name}"
        (sent,) = beside(step, moved, copy_s(step, nbytes), REDUCTION_COPIES, ready)
    else:
        sent = communicate(
            step,
            name,
            "reduce_scatter",
            nbytes,
            dtype=step.sizes.reduced_dtype(unit),
            communicator=step.sharers(unit),
            stream=REDUCTIONS,
            after=ready,
        )
    if step.options.version == 2:
        step.reduce_inputs.append(sent)
    if step.shard_ranks < step.request.ranks and (step.is_last or step.options.sync == "each"):
        sent = communicate(
            step,
            f"average {unit.name}",
            "all_reduce",
            nbytes // step.shard_ranks,
            dtype=step.sizes.reduced_dtype(unit),
            communicator=COPIES,
            stream=AVERAGES,
            after=(sent,),
        )
    step.reduced += _keep(step, unit, sent)


def _free_inputs(step: ShardedStep) -> None:
    """Let the layers wait until inputs of earlier reductions can be freed."""
    while len(step.reduce_inputs) >= step.options.reduce_buffers:
        step.layers_wait.append(step.reduce_inputs.popleft())


def _divisions_s(step: ShardedStep, unit: ShardUnit) -> float:
    """Time of what happens to whole gradients before they are sent.

    Version 1 casts them, pads them, and divides them by about the root of the number of ranks.
    """
    sizes = step.sizes
    nbytes = sizes.reduced_bytes(unit)
    if step.options.version == 2:
        return copy_s(step, nbytes) if sizes.reduced_dtype(unit) == HALVES_RANGE else 0.0
    own = sizes.gradient_bytes(unit)
    duration_s = (
        0.0
        if sizes.reduced_dtype(unit) == sizes.gathered_dtype(unit)
        else (copy_s(step, (own + nbytes) / 2))
    )
    if sizes.is_padded(unit):
        duration_s += copy_s(step, nbytes)
    return duration_s + (copy_s(step, nbytes) if predivide_factor(step.request.ranks) > 1 else 0.0)


def predivide_factor(ranks: int) -> float:
    """What version 1 divides gradients by before it reduces them.

    ``DefaultState._get_gradient_predivide_factor`` in
    torch/distributed/algorithms/_comm_hooks/default_hooks.py.
    """
    factor = 1
    while ranks % factor == 0 and ranks / factor > factor:
        factor *= 2
    return float(factor)


def _keep(step: ShardedStep, unit: ShardUnit, sent: int) -> tuple[int, ...]:
    """Cast and add up the shard of the gradients; with offloading, copy it to the host."""
    sizes, ranks = step.sizes, step.sizes.ranks_of(unit)
    received, shard = sizes.reduced_bytes(unit) / ranks, sizes.kept_gradient_bytes(unit) / ranks
    duration_s = 0.0
    if step.options.version == 1 and step.request.ranks / predivide_factor(step.request.ranks) > 1:
        duration_s += copy_s(step, received)
    if sizes.reduced_dtype(unit) != sizes.own_dtype(unit):
        duration_s += copy_s(step, (received + shard) / 2)
    if step.micro_batch > 0 and step.options.sync != "last" and not step.options.offload:
        duration_s += copy_s(step, ADDED * shard)
    if step.options.offload:
        duration_s += host_copy_s(step, shard)
    return beside(step, f"keep {unit.name}", duration_s, REDUCTION_COPIES, (sent,))
