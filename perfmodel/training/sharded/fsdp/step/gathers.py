"""When units are gathered and freed, as torch 2.13 does.

Version 1: ``_unshard``, ``_pre_forward_unshard``, ``_prefetch_handle`` and ``_reshard`` in
torch/distributed/fsdp/_runtime_utils.py. Version 2: ``unshard``, ``wait_for_unshard`` and
``reshard`` in torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py.
"""

from __future__ import annotations

from perfmodel.training.sharded.fsdp.step.sharded_step import (
    GATHER_COPIES,
    GATHERS,
    REGATHERED,
    ShardedStep,
    beside,
    communicate,
    copy_s,
    host_copy_s,
    issue,
    run,
)
from perfmodel.training.sharded.fsdp.step.weight_scales import agree_on_scales
from perfmodel.training.sharded.shard_units import ShardUnit

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
        duration_s += host_copy_s(step, own)
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
