"""FullyShardedDataParallel and fully_shard: one training step as a StepPlan.

The order of events is that of torch 2.13 (``torch/distributed/fsdp/_runtime_utils.py`` and
``torch/distributed/fsdp/_fully_shard``), and with version "megatron" that of Megatron-FSDP in
Megatron-Core 0.16.1 (megatron/core/distributed/fsdp/src/megatron_fsdp: ``megatron_fsdp.py``,
``param_and_grad_buffer.py``). Streams of layers, gathers, reductions and averages over
copies are those of PyTorch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, product

from perfmodel.errors import Fault, failed, raise_faults
from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.training.ddp.buckets import assign_buckets
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.frameworks import fixed_in
from perfmodel.training.fsdp.budgets import bucket_bytes, window
from perfmodel.training.fsdp.sharded_step import (
    AVERAGES,
    COPIES,
    GATHER_COPIES,
    GATHERS,
    REDUCTION_COPIES,
    REDUCTIONS,
    REGATHERED,
    SHARDS,
    ShardedStep,
    close_step,
    communicate,
    copy,
    copy_s,
    issue,
)
from perfmodel.training.fsdp.unit_traffic import (
    add_scales,
    free_after_backward,
    free_after_forward,
    gather,
    reduce,
    wait_for,
)
from perfmodel.training.fsdp.units import BY_LAYER, Moment, SizedUnit, sized_units, walk_units
from perfmodel.training.plan.builder import COMPUTE, EXPERT_COPIES, HOST, RANKS
from perfmodel.training.plan.forward_backward import visit_segments
from perfmodel.training.plan.step_plan import (
    Communicator,
    RankClass,
    StepPlan,
    Stream,
    neighbours,
    strides,
)
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.kernels.device import kernel_constants
from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.memory.optimizer_states import calls_of_matrices, undivided_products_s
from perfmodel.workload.model import ITEM_BYTES

NORM_DTYPE = "fp32"
"""Version 1 computes norms in it (``_get_grad_norm`` in fully_sharded_data_parallel.py)."""

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
    no_way = options.offload and request.host_link_Bps is None
    raise_faults(
        [
            *group_faults(request.ranks, options),
            *_expert_faults(request, options),
            *failed((no_way, "offload", "true", "a node whose topology connects GPUs with CPUs")),
        ]
    )
    step = _add_step(request, options, 0)
    if step.free_events:  # in the steady state, the queue begins as the step before left it
        step = _add_step(request, options, len(step.free_events))
    return step.tasks.plan(
        name=f"FSDP{' of Megatron' if options.version == 'megatron' else options.version}, "
        f"{request.workload.name}",
        classes=(RankClass(RANKS, range(request.ranks)),),
        streams=STREAMS,
        communicators=_communicators(request, step.shard_ranks, options.regather_gpus),
        samples=request.ranks * request.batch_per_gpu * options.accumulate,
    )


def _add_step(request: StepRequest, options: FsdpStrategy, freed_before: int) -> ShardedStep:
    """Add a step; `freed_before`: units that the one before left in the queue of version 1."""
    ranks = options.shard_ranks(request.ranks)
    units = sized_units(
        request.workload,
        options,
        ranks,
        request.gathered_narrow,
        request.expert_copies,
        cap_bytes=bucket_bytes(
            options, ranks, request.gpu.generation if request.gpu else "", request.ranks_per_host
        ),
    )
    step = ShardedStep.begin(
        request,
        options,
        shard_ranks=ranks,
        units=units,
        walk=walk_units(request.workload, units, by_layer=options.wrap in BY_LAYER),
        free_events=deque(range(-freed_before, 0)),
    )
    if request.iteration == "first" and options.sync_module_states:
        _add_broadcasts(step)
    for micro_batch in range(options.accumulate):
        step.micro_batch = micro_batch
        _add_forward(step)
        _add_backward(step)
    close_step(step, _add_update(step))
    return step


def _add_forward(step: ShardedStep) -> None:
    """Add forward: each unit is gathered when it is entered, and freed when it is left.

    Its first gathers wait for all that the layers wait for.
    """
    step.gathers_wait = (*step.behind, *step.device_waits)
    following = deque(each.unit for each in step.walk if each.kind == "enter" and each.unit)
    step.views.clear()
    for place, moment in enumerate(step.walk):
        if moment.kind == "layers":
            _add_layers(step, moment, backward=False)
        elif moment.unit is not None and moment.kind == "enter":
            following.popleft()
            _enter(step, moment.unit, following, place)
        elif moment.unit is not None:
            free_after_forward(step, moment.unit)
    if step.held is not None:
        step.gathers_wait, step.held = (step.held,), None


def _enter(step: ShardedStep, unit: SizedUnit, following: Iterable[SizedUnit], place: int) -> None:
    """Gather a unit, unless it was gathered ahead, and units ahead of their use."""

    def gather_here(each: SizedUnit) -> None:
        gather(step, each, backward=False)
        step.views.append((each, place))

    if step.options.version != "megatron" and unit.name not in step.prefetched:
        gather_here(unit)
    step.prefetched.discard(unit.name)
    wait_for(step, unit, backward=False)
    for ahead in islice(following, step.options.forward_prefetch):
        if ahead.name not in step.prefetched:
            gather_here(ahead)
            step.prefetched.add(ahead.name)


def _gather_window(step: ShardedStep, unit: SizedUnit, *, backward: bool) -> None:
    """Gather what Megatron-FSDP does before layers of a unit, in the order of registration.

    What forward gathered ahead for backward is freed where backward first gathers anything
    (``recycle_unused_buckets``).
    """
    missing = [
        each
        for each in window(step.options, step.units, unit, backward=backward)
        if each.name not in step.whole
    ]
    if backward and missing and not step.prefetched:
        step.whole = {name: at for name, at in step.whole.items() if name in step.entered}
    step.prefetched.update(each.name for each in missing if backward)
    step.gathers_wait = (*step.behind, *step.device_waits)
    for each in sorted(missing, key=lambda each: each.tensors):
        gather(step, each, backward=backward, at=f" behind {step.last}")
    wait_for(step, unit, backward=backward)


def _add_layers(step: ShardedStep, moment: Moment[SizedUnit], *, backward: bool) -> None:
    """Add layers of a pass; without synchronisation their gradients are added up from then on."""
    workload, times = step.request.workload, step.request.times
    if step.options.version == "megatron" and moment.unit:
        _gather_window(step, moment.unit, backward=backward)
    kind = "backward" if backward else "forward"
    adds = backward and step.micro_batch > 0 and step.options.sync == "last"
    at_most = max(1, step.request.segments // len(step.units))
    for part in visit_segments(workload, times, moment.layers, at_most=at_most, backward=backward):
        name, duration_s, kernels = f"{kind} {part.name}", part.duration_s, part.kernels
        if adds:
            tensors = [workload.tensors[tensor] for tensor in part.tensors]
            own = step.options.param_dtype
            nbytes = sum(each.numel * ITEM_BYTES[own or each.dtype] for each in tensors)
            duration_s += copy_s(step, passes_of("addition") / 2 * nbytes, len(tensors))
            kernels += len(tensors)
        step.run(name, kind, duration_s, after=issue(step, name, kernels), layers=part.indices)


# ---------------------------------------------------------------- backward


def _add_backward(step: ShardedStep) -> None:
    """Add backward: units are gathered again, ahead of their layers, and reduced behind them.

    Whatever follows waits for all reductions of the micro-batch.
    """
    step.reduced = []
    step.entered.clear()
    order = [each.unit for each in step.walk if each.kind == "leave" and each.unit]
    behind: list[SizedUnit] = []
    for place in reversed(range(len(step.walk))):
        moment = step.walk[place]
        if moment.kind == "layers":
            _add_layers(step, moment, backward=True)
        elif moment.unit is not None and moment.kind == "enter":
            for unit in _units_left(step, moment.unit, place, behind):
                _leave(step, unit, order)
        elif moment.unit is not None and moment.has_output_grad:
            step.entered.add(moment.unit.name)
            if step.options.version != "megatron" and moment.unit.name not in step.prefetched:
                gather(step, moment.unit, backward=True)
            wait_for(step, moment.unit, backward=True)
            _gather_ahead(step, moment.unit, order, step.options.units_ahead)
    for unit in behind:
        _leave(step, unit, order)
    step.device_waits += (*step.reduced, *step.reduce_inputs)
    step.reduce_inputs.clear()
    step.prefetched.clear()


def _units_left(
    step: ShardedStep, unit: SizedUnit, place: int, behind: list[SizedUnit]
) -> list[SizedUnit]:
    """Return the units whose gradients are complete where backward passes forward's entry of one.

    Version 1 reduces a flat gradient once autograd comes to the views of it, which forward made
    when it gathered the unit: with `forward_prefetch`, in the unit before. Version 2 waits for the
    gradient of a unit's input; where the input is not trained, for the end of backward: such units
    are put into `behind`.
    """
    moment = step.walk[place]
    if step.options.version == 1:
        return [each for each, viewed_at in reversed(step.views) if viewed_at == place]
    if moment.is_first and not moment.has_input_grad:
        behind.insert(0, unit)
    return [unit] if moment.is_first and moment.has_input_grad else []


def _gather_ahead(
    step: ShardedStep, unit: SizedUnit, order: Sequence[SizedUnit], units: int
) -> None:
    """Gather so many units that forward left before this one."""
    place = order.index(unit)
    for before in reversed(order[max(0, place - units) : place]):
        if before.name not in step.prefetched | step.entered:
            gather(step, before, backward=True)
            if step.options.version == 1:
                step.prefetched.add(before.name)


def _leave(step: ShardedStep, unit: SizedUnit, order: Sequence[SizedUnit]) -> None:
    """Free a unit and reduce its gradients.

    Version 1 copies gradients of a unit's views into the one of its flat parameter: forward takes
    its views by ``torch.split`` (``_get_unflat_views_unaligned`` in
    torch/distributed/fsdp/_flat_param.py), whose backward is a ``cat`` of all gradients. Version 2
    has gradients of its own parameters, and copies them where it reduces them (``chunk_cat``).
    """
    if step.options.version == 1 and unit.gradient_bytes:
        copy(step, f"join gradients of {unit.name}", unit.gradient_bytes)
    free_after_backward(step, unit)
    _gather_ahead(step, unit, order, step.options.backward_prefetch == "post")
    if step.reduces:
        reduce(step, unit)


def _add_update(step: ShardedStep) -> int:
    """Clip the gradients and update each rank's shard; return the task that ends the step."""
    if step.options.clip_norm:
        _add_clipping(step)
    times, units, share = step.request.times, step.entered_units, 1 / step.shard_ranks
    if any(unit.of_experts for unit in units):  # of these a rank updates more than of all others
        own = sum(unit.reduced_elements / unit.ranks for unit in units)
        share = own / sum(unit.reduced_elements for unit in units)
    issued = issue(step, "optimizer", times.optimizer_kernels)
    optimizer_s = step.request.host_optimizer_s if step.options.offload else times.optimizer_s
    workload, optimizer, gpu = step.request.workload, step.request.optimizer, step.request.gpu
    whole_s = undivided_products_s(workload, optimizer, gpu) if gpu else 0.0
    update_s = share * optimizer_s + (1 - share) * whole_s
    end = add_scales(step, step.run("optimizer", "optimizer", update_s, after=issued))
    # Products and calls wait for each other, so that here all products come first.
    calls = calls_of_matrices(workload, optimizer) if step.shard_ranks > 1 else ()
    for number, (name, op, elements, alike) in enumerate(calls):
        issued = issue(step, name, round(kernel_constants().host.sharded_call * alike))
        end = communicate(
            step,
            f"{op} {number} of {name}",
            op,
            ITEM_BYTES["bf16"] * elements,
            dtype="bf16",
            stream=REDUCTIONS,
            after=(*issued, end),
            times=alike,
        )
    if step.request.host_s > 0:
        end = step.run("end of the step", "copy", step.request.host_s, after=(end,))
    return end


def _add_clipping(step: ShardedStep) -> None:
    """Add the norm of each shard, its sum over the shard group, and the scaling of gradients.

    Of experts, whose norms add up over two groups, the sum is taken to take no longer.
    """
    shard = sum(unit.kept_gradient_bytes / unit.ranks for unit in step.entered_units)
    squared = copy(step, "norm of gradients", shard / 2, kernels=2)
    numbers, dtype = 1, NORM_DTYPE
    if step.options.version == 2:  # a norm of each parameter, in its own dtype
        numbers, dtype = len(step.request.workload.ready_order), step.entered_units[0].own_dtype
    summed = communicate(
        step,
        "sum of norms",
        "all_reduce",
        numbers * ITEM_BYTES[dtype],
        dtype=dtype,
        stream=REDUCTIONS,
        after=(squared,),
    )
    step.device_waits += (summed,)
    copy(step, "clip gradients", shard, issued_as="clip", kernels=2)


def _add_broadcasts(step: ShardedStep) -> None:
    """Broadcast rank 0's parameters and buffers, unit by unit, before the first step.

    With copies, to the first rank of each shard group and then within (``_init_param_handle_from_
    module`` in torch/distributed/fsdp/_init_utils.py). Assumption: all buffers are of the root.
    """
    groups = [SHARDS] if step.shard_ranks == step.request.ranks else [COPIES, SHARDS]
    left = [each.unit for each in step.walk if each.kind == "leave" and each.unit]
    for unit in dict.fromkeys(left):
        buffers = step.request.workload.buffers if unit.is_root else ()
        joined = (
            [unit.parameters[index] for index in piece]
            for piece in assign_buckets(unit.parameters, (fixed_in("torch", "broadcast_bytes"),))
        )
        pieces = [
            *((group.nbytes, group.dtype) for group in buffers),
            *((sum(each.nbytes for each in part), part[0].dtype) for part in joined),
        ]
        for communicator, (number, sent) in product(groups, enumerate(pieces)):
            _broadcast(step, f"broadcast {unit.name} {number}", *sent, communicator)


def _broadcast(step: ShardedStep, name: str, nbytes: int, dtype: str, communicator: str) -> None:
    sent = communicate(
        step,
        name,
        "broadcast",
        nbytes,
        dtype=dtype,
        communicator=communicator,
        stream=GATHERS,
        after=(copy(step, f"flatten {name}", nbytes, issued_as=name, kernels=3),),
        phase=communicator,
    )
    step.device_waits += (sent,)
    step.run(f"copy back {name}", "copy", copy_s(step, nbytes))


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


def _expert_faults(request: StepRequest, options: FsdpStrategy) -> list[Fault]:
    """What fully sharded training with shared experts does not go with."""
    rows = (
        (
            "version",
            None if options.version == 2 else options.version,
            "2",
            ": one mesh for each unit",
        ),
        ("shard_gpus", options.shard_gpus, "nothing", ""),
        ("reshard_after_forward", options.regather_gpus, "true or false", ""),
    )
    return [
        Fault(name, str(found), f"{allowed} with parallel.expert of 2 or more{why}")
        for name, found, allowed, why in rows
        if found is not None and request.expert_copies is not None
    ]


def _divisors(number: int) -> str:
    divisors = [each for each in range(2, number) if number % each == 0]
    return f": {', '.join(map(str, divisors))}" if divisors else ", of which there is none"


def _communicators(
    request: StepRequest, shard_ranks: int, regather_ranks: int | None
) -> tuple[Communicator, ...]:
    """Groups of neighbours that share shards, and of the holders of the same shard.

    Ranks stand in the order of a ``DeviceMesh`` of copies by shards: those of a shard group have
    consecutive numbers, so that a node's GPUs are in one group where it is as large. Placement puts
    the real groups in place of that of the ranks that share units of experts.
    """
    ranks, copies = request.ranks, request.expert_copies or 1
    result = [Communicator(SHARDS, neighbours(ranks, shard_ranks))]
    if regather_ranks is not None:
        result.append(Communicator(REGATHERED, neighbours(ranks, regather_ranks)))
    if shard_ranks < ranks:
        result.append(Communicator(COPIES, strides(ranks, shard_ranks)))
    if copies > 1:
        result.append(Communicator(EXPERT_COPIES, (range(copies),), "expert_copies"))
    return tuple(result)
