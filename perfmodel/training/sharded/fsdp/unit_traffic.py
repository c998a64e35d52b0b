"""When units of FSDP are gathered, freed and reduced, and how scales of fp8 weights are agreed on.

Scales of weights that torchao gathers in fp8 (torchao/float8/fsdp_utils.py).

Before a gather each rank casts its shard of each weight by the greatest value of the whole weight:
an all-reduce of one number for each weight, every time it is gathered (``fsdp_pre_all_gather``);
or, after the optimizer, one all-reduce for all of them
(``precompute_float8_dynamic_scale_for_fsdp``).

When units are gathered and freed, as torch 2.13 does.

Version 1: ``_unshard``, ``_pre_forward_unshard``, ``_prefetch_handle`` and ``_reshard`` in
torch/distributed/fsdp/_runtime_utils.py. Version 2: ``unshard``, ``wait_for_unshard`` and
``reshard`` in torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py.

How gradients of a unit are reduced, as torch 2.13 does.

Version 1: ``_reduce_grad`` in torch/distributed/fsdp/_runtime_utils.py. Version 2:
``post_backward`` in torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and ``foreach_reduce``
in _fsdp_collectives.py.
"""

from __future__ import annotations

from perfmodel.training.sharded.fsdp.sharded_step import (
    AVERAGES,
    COPIES,
    GATHER_COPIES,
    GATHERS,
    REDUCTION_COPIES,
    REDUCTIONS,
    REGATHERED,
    SHARDS,
    ShardedStep,
    beside,
    communicate,
    copy_s,
    issue,
    run,
)
from perfmodel.training.sharded.fsdp.units import ShardUnit
from perfmodel.workload.model import ITEM_BYTES

AMAX_KERNELS = 7
"""Of one weight: absolute values, their maximum, and its scale in five kernels."""


def agree_on_scales(
    step: ShardedStep, unit: ShardUnit, ready: tuple[int, ...], *, backward: bool
) -> tuple[int, ...]:
    """Let ranks agree on the scale of each weight of a unit; returns what its cast waits for."""
    float8 = step.request.float8
    if float8 is None or float8.precompute_float8_dynamic_scale_for_fsdp:
        return ready
    item = ITEM_BYTES[step.sizes.own_dtype(unit)]
    phase = "backward" if backward else "forward"
    for weight in step.sizes.narrow_tensors(unit):
        name = f"greatest value of {weight.name}"
        issued = issue(step, name, AMAX_KERNELS)
        # read for its absolute values, which are written and read
        shard = 1.5 * weight.nbytes / step.shard_ranks
        ready = beside(
            step, name, copy_s(step, shard, AMAX_KERNELS), GATHER_COPIES, (*issued, *ready)
        )
        agreed = communicate(
            step,
            f"agree on the {name}",
            "all_reduce",
            item,
            dtype=step.sizes.own_dtype(unit),
            communicator=SHARDS,
            stream=GATHERS,
            after=ready,
            phase=phase,
        )
        ready = (agreed,)
    return ready


def add_scales(step: ShardedStep, end: int) -> int:
    """Agree on the scales of all weights, after the optimizer; returns the last task."""
    float8 = step.request.float8
    if float8 is None or not float8.precompute_float8_dynamic_scale_for_fsdp:
        return end
    units = [moment.unit for moment in step.walk if moment.kind == "enter" and moment.is_first]
    whole = [unit for unit in units if unit is not None]
    weights = [weight for unit in whole for weight in step.sizes.narrow_tensors(unit)]
    dtype = weights[0].dtype
    shards = sum(weight.nbytes for weight in weights) / step.shard_ranks
    name = "greatest values of weights"
    issued = issue(step, name, len(weights) + 1)
    norms = run(
        step, name, "copy", copy_s(step, shards / 2, len(weights) + 1), after=(*issued, end)
    )
    agreed = communicate(
        step,
        f"agree on {name}",
        "all_reduce",
        len(weights) * ITEM_BYTES[dtype],
        dtype=dtype,
        communicator=SHARDS,
        stream=REDUCTIONS,
        after=(norms,),
    )
    return run(
        step,
        "scales of weights",
        "copy",
        step.tasks.kernel_s * SCALE_KERNELS,
        after=(*issue(step, "scales", SCALE_KERNELS), agreed),
    )


SCALE_KERNELS = 4
"""Clamped, widened, divided into the greatest number of fp8, narrowed."""


IN_FLIGHT = 2
"""Version 1's host waits for the oldest freed unit once so many are queued (``_FreeEventQueue`` in
torch/distributed/fsdp/_limiter_utils.py)."""


def gather(step: ShardedStep, unit: ShardUnit, *, backward: bool) -> None:
    """Begin to gather a unit, unless it is whole.

    Version 1's host waits for a freed unit even where there is nothing to gather.
    """
    if len(step.free_events) >= IN_FLIGHT:
        step.host_waits.append(step.free_events.popleft())
    if unit.name in step.whole:
        return
    name = f"gather {unit.name}"
    if (
        step.sizes.ranks_of(unit) == 1
    ):  # nobody to gather from: parameters are copied where they are
        step.whole[unit.name] = None
        return
    smaller = step.options.regather_gpus if unit.name in step.regathered else None
    issued = issue(step, name, 1 if step.options.version == 1 else 3)
    ready = (*issued, *step.gathers_wait)
    if not smaller:
        ready = agree_on_scales(step, unit, ready, backward=backward)
    ready = beside(
        step, f"copy in {unit.name}", _copy_in_s(step, unit, smaller), GATHER_COPIES, ready
    )
    step.whole[unit.name] = communicate(
        step,
        name,
        "all_gather",
        step.sizes.gathered_bytes(unit),
        dtype=step.sizes.sent_dtype(unit),
        communicator=REGATHERED if smaller else step.sharers(unit),
        stream=GATHERS,
        after=ready,
        phase="backward" if backward else "forward",
    )


def _copy_in_s(step: ShardedStep, unit: ShardUnit, smaller: int | None) -> float:
    """Time until a rank's share can be sent: from the host, cast, copied to its place.

    Version 1 sends the shard where it lies.
    """
    sizes, options = step.sizes, step.options
    ranks = smaller or sizes.ranks_of(unit)
    own, sent = sizes.own_bytes(unit) / ranks, sizes.gathered_bytes(unit) / ranks
    casts = options.param_dtype not in (None, sizes.own_dtype(unit)) and not smaller
    casts = casts or (bool(sizes.narrow_tensors(unit)) and not smaller)
    duration_s = copy_s(step, (own + sent) / 2) if casts else 0.0
    if options.offload and not smaller:
        duration_s += step.request.host_copy_s(own)
    return duration_s + (copy_s(step, sent) if options.version == 2 else 0.0)


def wait_for(step: ShardedStep, unit: ShardUnit, *, backward: bool) -> None:
    """Let the layers wait for a unit; version 2 copies its parameters to their places."""
    if unit.name not in step.whole or unit.name in step.copied:
        return
    gathered = step.whole[unit.name]
    step.copied.add(unit.name)
    if gathered is None:
        nbytes = (step.sizes.own_bytes(unit) + step.sizes.gathered_bytes(unit)) / 2
        name = f"copy {unit.name}"
        run(step, name, "copy", copy_s(step, nbytes), after=issue(step, name, 1))
        return
    step.layers_wait.append(gathered)
    if step.options.version == 1:
        return
    if not backward and step.held is not None:
        step.gathers_wait, step.held = (step.held,), None
    name = f"copy out {unit.name}"
    issued = issue(step, name, 1)
    placed = run(step, name, "copy", copy_s(step, step.sizes.gathered_bytes(unit)), after=issued)
    if backward:
        step.gathers_wait = (placed,)
    else:
        step.held = placed


def free_after_forward(step: ShardedStep, unit: ShardUnit) -> None:
    """Free a unit when forward leaves it; or keep a larger share of it."""
    options = step.options
    if not options.reshard_after_forward or (unit.is_root and not options.reshard_root):
        return
    _free(step, unit)
    if options.regather_gpus is not None:
        step.regathered.add(unit.name)
        share = step.sizes.gathered_bytes(unit) / options.regather_gpus
        name = f"keep a share of {unit.name}"
        run(step, name, "copy", copy_s(step, share), after=issue(step, name, 1))


def free_after_backward(step: ShardedStep, unit: ShardUnit) -> None:
    """Free a unit when backward has left it, unless the next micro-batch finds it whole."""
    step.prefetched.discard(unit.name)
    if step.options.version == 1:
        keeps = not step.reduces and not step.options.reshard_after_forward
    else:
        keeps = not step.reduces and not step.options.reshard_after_backward
    step.regathered.discard(unit.name)
    if not keeps:
        _free(step, unit)


def _free(step: ShardedStep, unit: ShardUnit) -> None:
    step.whole.pop(unit.name, None)
    step.copied.discard(unit.name)
    step.prefetched.discard(unit.name)
    if step.options.version == 1 and step.options.limit_all_gathers:
        step.free_events.append(step.newest_layer or 0)


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
        duration_s += step.request.host_copy_s(shard)
    return beside(step, f"keep {unit.name}", duration_s, REDUCTION_COPIES, (sent,))
