"""When units of FSDP are gathered, freed and reduced, and how scales of fp8 weights are agreed on.

Units are gathered, freed and reduced as torch 2.13 does. Version 1: ``_unshard``,
``_pre_forward_unshard``, ``_prefetch_handle``, ``_reshard`` and ``_reduce_grad`` in
torch/distributed/fsdp/_runtime_utils.py. Version 2: ``unshard``, ``wait_for_unshard``, ``reshard``
and ``post_backward`` in torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, and
``foreach_reduce`` in _fsdp_collectives.py.

Scales of weights that are gathered in fp8 are torchao's (torchao/float8/fsdp_utils.py). Before a
gather each rank casts its shard of each weight by the greatest value of the whole weight: an
all-reduce of one number for each weight, every time it is gathered (``fsdp_pre_all_gather``); or,
after the optimizer, one all-reduce for all of them
(``precompute_float8_dynamic_scale_for_fsdp``).
"""

from __future__ import annotations

from perfmodel.training.frameworks import fixed_in
from perfmodel.training.fsdp.budgets import inputs_kept
from perfmodel.training.fsdp.sharded_step import (
    AVERAGES,
    COPIES,
    GATHER_COPIES,
    GATHERS,
    REDUCTION_COPIES,
    REDUCTIONS,
    REGATHERED,
    ShardedStep,
    beside,
    communicate,
    copy,
    copy_s,
    issue,
    sharers,
)
from perfmodel.training.fsdp.units import SizedUnit
from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.model import ITEM_BYTES

HALVES_RANGE = "fp16"
"""Version 2 divides before and after the reduction in this dtype; others are averaged by NCCL
(``_get_gradient_divide_factors``)."""


def gather(step: ShardedStep, unit: SizedUnit, *, backward: bool, at: str = "") -> None:
    """Begin to gather a unit, unless it is whole.

    Version 1's host waits for a freed unit even where there is nothing to gather. A unit that
    nobody shares is copied where it is.
    """
    if len(step.free_events) >= fixed_in("fsdp", "units_in_flight"):
        step.host_waits += (step.free_events.popleft(),)
    if unit.name in step.whole:
        return
    if unit.ranks == 1:
        step.whole[unit.name] = None
        return
    name, phase = f"gather {unit.name}", f"{'backward' if backward else 'forward'}{at}"
    smaller = step.options.regather_gpus if unit.name in step.regathered else None
    ready = (*issue(step, name, 3 if step.options.version == 2 else 1), *step.gathers_wait)
    if not smaller:
        ready = _agree_on_scales(step, unit, ready, phase)
    step.whole[unit.name] = communicate(
        step,
        name,
        "all_gather",
        unit.gathered_bytes,
        dtype=unit.sent_dtype,
        communicator=REGATHERED if smaller else sharers(unit),
        stream=GATHERS,
        after=beside(
            step, f"copy in {unit.name}", _copy_in_s(step, unit, smaller), GATHER_COPIES, ready
        ),
        phase=phase,
    )


def _agree_on_scales(
    step: ShardedStep, unit: SizedUnit, ready: tuple[int, ...], phase: str
) -> tuple[int, ...]:
    """Let ranks agree on the scale of each weight of a unit; return what its cast waits for."""
    if step.request.float8 is None or step.request.float8.precompute_float8_dynamic_scale_for_fsdp:
        return ready
    kernels = fixed_in("fsdp", "amax_kernels")
    for weight in unit.narrow:
        name = f"greatest value of {weight.name}"
        # read for its absolute values, which are written and read
        agreed = communicate(
            step,
            f"agree on the {name}",
            "all_reduce",
            ITEM_BYTES[unit.own_dtype],
            dtype=unit.own_dtype,
            stream=GATHERS,
            after=beside(
                step,
                name,
                copy_s(step, 1.5 * weight.nbytes / step.shard_ranks, kernels),
                GATHER_COPIES,
                (*issue(step, name, kernels), *ready),
            ),
            phase=phase,
        )
        ready = (agreed,)
    return ready


def add_scales(step: ShardedStep, end: int) -> int:
    """Agree on the scales of all weights, after the optimizer; return the last task."""
    float8 = step.request.float8
    weights = [weight for unit in step.entered_units for weight in unit.narrow]
    if float8 is None or not float8.precompute_float8_dynamic_scale_for_fsdp or not weights:
        return end
    dtype, name, kernels = weights[0].dtype, "greatest values of weights", len(weights) + 1
    read_bytes = sum(weight.nbytes for weight in weights) / step.shard_ranks / 2
    after = (*issue(step, name, kernels), end)
    norms = step.run(name, "copy", copy_s(step, read_bytes, kernels), after=after)
    agreed = communicate(
        step,
        f"agree on {name}",
        "all_reduce",
        len(weights) * ITEM_BYTES[dtype],
        dtype=dtype,
        stream=REDUCTIONS,
        after=(norms,),
    )
    kernels = fixed_in("fsdp", "scale_kernels")
    after = (*issue(step, "scales", kernels), agreed)
    return step.run("scales of weights", "copy", step.tasks.kernel_s * kernels, after=after)


def _copy_in_s(step: ShardedStep, unit: SizedUnit, smaller: int | None) -> float:
    """Time until a rank's share can be sent: from the host, cast, copied to its place.

    Version 1 sends the shard where it lies; of what smaller groups hold, nothing is cast. So does
    Megatron-FSDP, which keeps a share in the dtype that it sends.
    """
    options, ranks = step.options, smaller or unit.ranks
    own, sent = unit.own_bytes / ranks, unit.gathered_bytes / ranks
    casts = options.version != "megatron" and (
        options.param_dtype not in (None, unit.own_dtype) or unit.narrow
    )
    duration_s = copy_s(step, (own + sent) / 2) if casts and not smaller else 0.0
    if options.offload and not smaller:
        duration_s += step.request.host_copy_s(own)
    return duration_s + (copy_s(step, sent) if options.version == 2 else 0.0)


def wait_for(step: ShardedStep, unit: SizedUnit, *, backward: bool) -> None:
    """Let the layers wait for a unit; version 2 copies its parameters to their places."""
    if unit.name not in step.whole or unit.name in step.copied:
        return
    gathered = step.whole[unit.name]
    step.copied.add(unit.name)
    if gathered is None:
        copy(step, f"copy {unit.name}", (unit.own_bytes + unit.gathered_bytes) / 2)
        return
    step.device_waits += (gathered,)
    if step.options.version != 2:
        return
    if not backward and step.held is not None:
        step.gathers_wait, step.held = (step.held,), None
    placed = copy(step, f"copy out {unit.name}", unit.gathered_bytes)
    if backward:
        step.gathers_wait = (placed,)
    else:
        step.held = placed


def free_after_forward(step: ShardedStep, unit: SizedUnit) -> None:
    """Free a unit when forward leaves it; or keep a larger share of it."""
    options = step.options
    if not options.reshard_after_forward or (unit.is_root and not options.reshard_root):
        return
    _free(step, unit)
    if options.regather_gpus is not None:
        step.regathered.add(unit.name)
        copy(step, f"keep a share of {unit.name}", unit.gathered_bytes / options.regather_gpus)


def free_after_backward(step: ShardedStep, unit: SizedUnit) -> None:
    """Free a unit when backward has left it, unless the next micro-batch finds it whole."""
    step.prefetched.discard(unit.name)
    step.regathered.discard(unit.name)
    options = step.options
    if (
        step.reduces
        or (
            options.reshard_after_forward
            if options.version == 1
            else options.reshard_after_backward
        )
    ) and (options.version != "megatron" or not unit.is_root or step.is_last):
        _free(step, unit)


def _free(step: ShardedStep, unit: SizedUnit) -> None:
    step.whole.pop(unit.name, None)
    step.copied.discard(unit.name)
    step.prefetched.discard(unit.name)
    if step.options.version == 1 and step.options.limit_all_gathers:
        step.free_events.append(step.last or 0)


def reduce(step: ShardedStep, unit: SizedUnit) -> None:
    """Reduce the gradients of a unit to the ranks that hold its shards.

    Version 2 first lets the layers wait until inputs of earlier reductions can be freed.
    """
    nbytes, dtype, second = unit.reduced_bytes, unit.reduced_dtype, step.options.version != 1
    while second and len(step.reduce_inputs) >= inputs_kept(step.options, step.units, unit):
        step.device_waits += (step.reduce_inputs.popleft(),)
    if not nbytes:
        return
    name, gathered_bytes = f"reduce {unit.name}", (unit.gradient_bytes + nbytes) / 2
    ready = (
        (copy(step, f"copy in {name}", gathered_bytes, issued_as=name, kernels=3),)
        if second
        else (*issue(step, name, 3), *step.behind)
    )
    ready = beside(step, f"scale {unit.name}", _divisions_s(step, unit), REDUCTION_COPIES, ready)
    if unit.ranks == 1:  # copied where it would be sent
        name, moved_s = f"move gradients of {unit.name}", copy_s(step, nbytes)
        (sent,) = beside(step, name, moved_s, REDUCTION_COPIES, ready)
    else:
        sent = communicate(
            step,
            name,
            "reduce_scatter",
            nbytes,
            dtype=dtype,
            communicator=sharers(unit),
            stream=REDUCTIONS,
            after=ready,
        )
    if second:
        step.reduce_inputs.append(sent)
    if step.shard_ranks < step.request.ranks and (step.is_last or step.options.sync == "each"):
        sent = communicate(
            step,
            f"average {unit.name}",
            "all_reduce",
            nbytes // step.shard_ranks,
            dtype=dtype,
            communicator=COPIES,
            stream=AVERAGES,
            after=(sent,),
        )
    kept_s = _keep_s(step, unit)
    step.reduced += beside(step, f"keep {unit.name}", kept_s, REDUCTION_COPIES, (sent,))


def _divisions_s(step: ShardedStep, unit: SizedUnit) -> float:
    """Time of what happens to whole gradients before they are sent.

    Version 1 casts them, pads them, and divides them by about the root of the number of ranks.
    """
    nbytes = unit.reduced_bytes
    if step.options.version != 1:
        return copy_s(step, nbytes) if unit.reduced_dtype == HALVES_RANGE else 0.0
    moved = (
        (unit.gradient_bytes + nbytes) / 2 if unit.reduced_dtype != unit.gathered_dtype else 0,
        nbytes if unit.is_padded else 0,
        nbytes if predivide_factor(step.request.ranks) > 1 else 0,
    )
    return sum(copy_s(step, each) for each in moved)


def predivide_factor(ranks: int) -> float:
    """Return what version 1 divides gradients by before it reduces them.

    ``DefaultState._get_gradient_predivide_factor`` in
    torch/distributed/algorithms/_comm_hooks/default_hooks.py.
    """
    factor = 1
    while ranks % factor == 0 and ranks / factor > factor:
        factor *= 2
    return float(factor)


def _keep_s(step: ShardedStep, unit: SizedUnit) -> float:
    """Time to divide, cast and add up the shard of the gradients; offloaded, to copy it down."""
    options, ranks, request = step.options, unit.ranks, step.request
    received, shard = unit.reduced_bytes / ranks, unit.kept_gradient_bytes / ranks
    divides = options.version == 1 and request.ranks / predivide_factor(request.ranks) > 1
    adds = step.micro_batch > 0 and options.sync != "last" and not options.offload
    moved = (
        received if divides else 0,
        (received + shard) / 2 if unit.reduced_dtype != unit.own_dtype else 0,
        passes_of("addition") / 2 * shard if adds else 0,
    )
    return sum(copy_s(step, each) for each in moved) + (
        request.host_copy_s(shard) if options.offload else 0.0
    )
