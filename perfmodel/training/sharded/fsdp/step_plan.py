"""FullyShardedDataParallel and fully_shard: one training step as a StepPlan.

The order of events is that of torch 2.13 (``torch/distributed/fsdp/_runtime_utils.py`` and
``torch/distributed/fsdp/_fully_shard``). Streams of layers, gathers, reductions and averages over
copies are those of PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfmodel.errors import Fault, InputError
from perfmodel.training.ddp.buckets import assign_buckets
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.plan.builder import COMPUTE, EXPERT_COPIES, HOST
from perfmodel.training.plan.forward_backward import visit_segments
from perfmodel.training.plan.step_plan import (
    Communicator,
    RankClass,
    StepPlan,
    Stream,
    neighbours,
    strides,
)
from perfmodel.training.sharded.fsdp.options import FsdpOptions
from perfmodel.training.sharded.fsdp.sharded_step import (
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
    communicate,
    copy_s,
    issue,
    run,
    unit_before,
)
from perfmodel.training.sharded.fsdp.unit_traffic import (
    ADDED,
    add_scales,
    free_after_backward,
    free_after_forward,
    gather,
    reduce,
    wait_for,
)
from perfmodel.training.sharded.fsdp.units import Moment, ShardUnit
from perfmodel.training.strategy import StepRequest
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
    end = run(step, "optimizer", "optimizer", duration_s, after=issued)
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


STREAMS = (
    HOST,
    COMPUTE,
    Stream(GATHER_COPIES, "copy"),
    Stream(GATHERS, "comm"),
    Stream(REDUCTIONS, "comm"),
    Stream(REDUCTION_COPIES, "copy"),
    Stream(AVERAGES, "comm"),
)


def fsdp_plan(request: StepRequest, options: FsdpOptions) -> StepPlan:
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
    return step.tasks.plan(
        name=f"FSDP{options.version}, {request.workload.name}",
        classes=(RankClass(RANKS, range(request.ranks)),),
        streams=STREAMS,
        communicators=(
            *communicators(request.ranks, step.shard_ranks, options.regather_gpus),
            *_expert_copies(request),
        ),
        samples=request.ranks * request.batch_per_gpu * options.accumulate,
    )


def _add_step(request: StepRequest, options: FsdpOptions, freed_before: int) -> ShardedStep:
    step = begin_step(request, options, freed_before)
    if request.iteration == "first" and options.sync_module_states:
        add_broadcasts(step)
    for micro_batch in range(options.accumulate):
        step.micro_batch = micro_batch
        add_forward(step)
        add_backward(step)
    close_step(step, add_update(step))
    return step


def group_faults(ranks: int, options: FsdpOptions) -> Iterator[Fault]:
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


def _expert_faults(request: StepRequest, options: FsdpOptions) -> Iterator[Fault]:
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
    result = [Communicator(SHARDS, neighbours(ranks, shard_ranks))]
    if regather_ranks is not None:
        result.append(Communicator(REGATHERED, neighbours(ranks, regather_ranks)))
    if shard_ranks < ranks:
        result.append(Communicator(COPIES, strides(ranks, shard_ranks)))
    return tuple(result)
