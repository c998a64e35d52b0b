"""Forward and backward of fully sharded training."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.training.plan.forward_backward import visit_segments
from perfmodel.training.sharded.fsdp.step.gathers import (
    free_after_backward,
    free_after_forward,
    gather,
    wait_for,
)
from perfmodel.training.sharded.fsdp.step.reductions import ADDED, reduce
from perfmodel.training.sharded.fsdp.step.sharded_step import (
    ShardedStep,
    copy_s,
    issue,
    run,
    unit_before,
)
from perfmodel.training.sharded.fsdp.walk import Moment
from perfmodel.training.sharded.shard_units import ShardUnit
from perfmodel.workload.model import ITEM_BYTES


def add_forward(step: ShardedStep) -> None:
    """Add forward: each unit is gathered when it is entered, and freed when it is left."""
    _follow_layers(step)
    order = [moment.unit for moment in step.walk if moment.kind == "enter" and moment.unit]
    entered = 0
    step.views.clear()
    for place, moment in enumerate(step.walk):
        if moment.kind == "layers":
            _add_layers(step, moment, backward=False)
        elif moment.unit is not None and moment.kind == "enter":
            entered += 1
            _enter(step, moment.unit, order[entered:], place)
        elif moment.unit is not None:
            free_after_forward(step, moment.unit)
    if step.held is not None:
        step.gathers_wait, step.held = (step.held,), None


def _follow_layers(step: ShardedStep) -> None:
    """Let the first gathers of a pass wait for all that the layers wait for."""
    newest = () if step.newest_layer is None else (step.newest_layer,)
    step.gathers_wait = (*newest, *step.layers_wait)


def _enter(step: ShardedStep, unit: ShardUnit, following: Sequence[ShardUnit], place: int) -> None:
    if unit.name not in step.prefetched:
        gather(step, unit, backward=False)
        step.views.append((unit, place))
    step.prefetched.discard(unit.name)
    wait_for(step, unit, backward=False)
    for ahead in following[: step.options.forward_prefetch]:
        if ahead.name not in step.prefetched:
            gather(step, ahead, backward=False)
            step.prefetched.add(ahead.name)
            step.views.append((ahead, place))


def _add_layers(step: ShardedStep, moment: Moment, *, backward: bool) -> None:
    workload, times = step.request.workload, step.request.times
    kind = "backward" if backward else "forward"
    at_most = max(1, step.request.segments // step.units)
    for part in visit_segments(workload, times, moment.layers, at_most=at_most, backward=backward):
        name = f"{kind} {part.name}"
        duration_s, kernels = part.duration_s, part.kernels
        if backward and step.micro_batch > 0 and step.options.sync == "last":
            added = _gradient_bytes(step, part.tensors)
            duration_s += copy_s(step, ADDED * added, len(part.tensors))
            kernels += len(part.tensors)
        run(step, name, kind, duration_s, after=issue(step, name, kernels), layers=part.indices)


def _gradient_bytes(step: ShardedStep, tensors: Sequence[int]) -> int:
    """Bytes of some gradients as backward makes them."""
    members = [step.request.workload.tensors[tensor] for tensor in tensors]
    return sum(each.numel * ITEM_BYTES[step.options.param_dtype or each.dtype] for each in members)


# ---------------------------------------------------------------- backward


def add_backward(step: ShardedStep) -> None:
    """Add backward: units are gathered again, ahead of their layers, and reduced behind them."""
    step.reduced = []
    step.entered.clear()
    order = [moment.unit for moment in step.walk if moment.kind == "leave" and moment.unit]
    behind: list[ShardUnit] = []
    for place in range(len(step.walk) - 1, -1, -1):
        moment = step.walk[place]
        if moment.kind == "layers":
            _add_layers(step, moment, backward=True)
        elif moment.unit is not None and moment.kind == "leave":
            if moment.has_output_grad:
                _enter_backward(step, moment.unit, order)
        elif moment.unit is not None:
            for unit in _units_left(step, moment.unit, place, behind):
                _leave(step, unit, order)
    for unit in behind:
        _leave(step, unit, order)
    _end_backward(step)


def _units_left(
    step: ShardedStep, unit: ShardUnit, place: int, behind: list[ShardUnit]
) -> list[ShardUnit]:
    """Units that backward has left when it comes to where forward entered `unit`.

    Version 1 reduces a flat gradient once autograd comes to the views of it, which forward made
    when it gathered the unit: with `forward_prefetch`, in the unit before. Version 2 waits for the
    gradient of a unit's input; where that is not trained, for the end of backward (`behind`).
    """
    if step.options.version == 1:
        return [each for each, viewed_at in reversed(step.views) if viewed_at == place]
    moment = step.walk[place]
    if not moment.is_first:
        return []
    if moment.has_input_grad:
        return [unit]
    behind.insert(0, unit)
    return []


def _enter_backward(step: ShardedStep, unit: ShardUnit, order: Sequence[ShardUnit]) -> None:
    step.entered.add(unit.name)
    if unit.name not in step.prefetched:
        gather(step, unit, backward=True)
    wait_for(step, unit, backward=True)
    if step.options.backward_prefetch == "pre":
        _gather_ahead(step, unit, order)


def _gather_ahead(step: ShardedStep, unit: ShardUnit, order: Sequence[ShardUnit]) -> None:
    """Gather the unit that forward left before this one."""
    ahead = unit_before(order, unit)
    if ahead is None or ahead.name in step.prefetched | step.entered:
        return
    gather(step, ahead, backward=True)
    if step.options.version == 1:
        step.prefetched.add(ahead.name)


def _leave(step: ShardedStep, unit: ShardUnit, order: Sequence[ShardUnit]) -> None:
    if step.options.version == 1:
        _join_gradients(step, unit)
    free_after_backward(step, unit)
    if step.options.backward_prefetch == "post":
        _gather_ahead(step, unit, order)
    if step.reduces:
        reduce(step, unit)


def _join_gradients(step: ShardedStep, unit: ShardUnit) -> None:
    """Copy gradients of a unit's views into the one of its flat parameter.

    Forward takes its views by ``torch.split`` (``_get_unflat_views_unaligned`` in
    torch/distributed/fsdp/_flat_param.py), whose backward is a ``cat`` of all gradients. Version 2
    has gradients of its own parameters, and copies them where it reduces them (``chunk_cat``).
    """
    nbytes = step.sizes.gradient_bytes(unit)
    if nbytes:
        name = f"join gradients of {unit.name}"
        run(step, name, "copy", copy_s(step, nbytes), after=issue(step, name, 1))


def _end_backward(step: ShardedStep) -> None:
    """Let whatever follows wait for all reductions of this micro-batch."""
    step.layers_wait += step.reduced
    step.layers_wait += step.reduce_inputs
    step.reduce_inputs.clear()
    step.prefetched.clear()
