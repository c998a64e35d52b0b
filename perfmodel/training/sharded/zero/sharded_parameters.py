"""ZeRO stage 3: one training step as a StepPlan.

The order of events is that of DeepSpeed 0.19 (``deepspeed/runtime/zero/stage3.py`` and
``partitioned_param_coordinator.py``):

- Parameters of a module are gathered before it, and ahead of it as the queue of later uses allows
  (`perfmodel.training.sharded.zero.fetches`); several in one collective, whose result is copied out
  on the gathering stream. Collectives run one after the other in the order of their issue.
- Gradients are copied into a bucket on the reducing stream (``__add_grad_to_ipg_bucket``). It is
  reduced once the next one does not fit, the last one at the end of each backward, for which the
  host waits (``independent_gradient_partition_epilogue``).
- The step agrees on the norm of each sub-group (and on an overflow in fp16), updates a part of the
  parameters, and gathers the persistent ones, one by one (``_post_step``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from perfmodel.training.plan.builder import COMPUTE
from perfmodel.training.plan.forward_backward import visit_segments
from perfmodel.training.plan.step_plan import Communicator, Op, StepPlan, neighbours
from perfmodel.training.sharded.zero.fetches import (
    Arrival,
    DriveRead,
    DriveWait,
    Fetch,
    Gather,
    LayerRun,
    persistent_tensors,
    trace_fetches,
)
from perfmodel.training.sharded.zero.offload import (
    add_drive_task,
    add_grouped_update,
    add_host_update,
    drive_tensors,
    gradient_bytes,
    part_seconds,
)
from perfmodel.training.sharded.zero.options import ZeroOptions
from perfmodel.training.sharded.zero.partition import (
    GradientBucket,
    gradient_buckets,
    part_elements,
    sub_groups,
)
from perfmodel.training.sharded.zero.sharded_states import sent_dtype
from perfmodel.training.sharded.zero.zero_passes import (
    EVERYONE,
    GATHERING,
    RANKS,
    REDUCTION,
    ShardingStep,
    add_agreement,
    add_collective,
    add_segment,
    add_update,
    add_work,
    begin_sharding_step,
    finish_plan,
)
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import ITEM_BYTES, Workload

NORM_DTYPE, OVERFLOW_DTYPE = "fp64", "uint8"

SECONDARY = "holders of second copies"
"""Communicator of the ranks that hold a second copy of the parameters between them."""


@dataclass(slots=True)
class _Gathering:
    """A gather that is on its way.

    `sent`: its collective; `copied_out`: after which its parameters can be used.
    """

    gather: Gather
    sent: int
    copied_out: int | None = None


@dataclass(slots=True)
class _Passes:
    """Forward and backward of the step.

    `run`: layers that have met no event since the last one.
    `places`: of each gradient, its place in the order in which they get ready, and its bucket.
    `pending`: the bucket that is being filled.
    `blocked`: what the host waited for last, to copy parameters from its memory or to read them.
    `reading`: the last read of parameters from drives.
    `written`: writes of gradients to drives.
    """

    step: ShardingStep[ZeroOptions]
    buckets: Sequence[GradientBucket]
    places: dict[int, tuple[int, int]]
    gatherings: list[_Gathering] = field(default_factory=list)
    run: list[int] = field(default_factory=list)
    backward: bool = False
    micro_batch: int = 0
    pending: int = 0
    reduced: int | None = None
    blocked: tuple[int, ...] = ()
    reading: int | None = None
    written: list[int] = field(default_factory=list)


def sharded_parameters_plan(request: StepRequest, options: ZeroOptions) -> StepPlan:
    """Return one step of stage 3.

    Raises `ScheduleError`: times that do not fit the workload.
    """
    step = begin_sharding_step(request, options)
    workload = request.workload
    buckets = gradient_buckets(workload, options, None, gradient_order(workload))
    order = enumerate((each, bucket) for bucket in buckets for each in bucket.tensors)
    passes = _Passes(step, buckets, {each: (place, b.index) for place, (each, b) in order})
    trace = trace_fetches(workload, options, drive_tensors(workload, options, request.ranks))
    for micro_batch, fetches in enumerate(trace.micro_batches):
        passes.micro_batch, passes.pending = micro_batch, 0
        _add_micro_batch(passes, fetches)
    end = _add_optimizer(step, passes.written)
    holders = neighbours(request.ranks, options.hpz_ranks)
    others = (Communicator(SECONDARY, holders),) if options.hpz_ranks > 1 else ()
    return finish_plan(step, end, "ZeRO-3", others)


def gradient_order(workload: Workload) -> tuple[int, ...]:
    """Gradients in the order in which they get ready, weights before biases.

    Stage 3 replaces PyTorch's linear function by its own (``memory_efficient_linear``), whose
    backward returns them in the order of its arguments.
    """
    return tuple(tensor for layer in reversed(workload.layers) for tensor in sorted(layer.tensors))


def _add_micro_batch(passes: _Passes, fetches: Sequence[Fetch]) -> None:
    for event in fetches:
        if isinstance(event, LayerRun):
            _add_layer(passes, event)
            continue
        _add_run(passes)
        if isinstance(event, Gather):
            _add_gather(passes, event)
        elif isinstance(event, Arrival):
            _add_arrival(passes, event)
        else:
            _add_drive_event(passes, event)
    _add_run(passes)
    _add_reduction(passes)
    if passes.reduced is not None:
        passes.step.host_waits = (passes.reduced,)


def _add_layer(passes: _Passes, event: LayerRun) -> None:
    """Add a layer to the run, which ends where the pass or the bucket does."""
    if event.backward != passes.backward:
        _add_run(passes)
        passes.backward = event.backward
    passes.run.append(event.layer)
    tensors = passes.step.request.workload.layers[event.layer].tensors
    if event.backward and any(passes.places[each][1] != passes.pending for each in tensors):
        _add_run(passes)


def _add_run(passes: _Passes) -> None:
    """Add the layers of the run as one task, then what their gradients cause."""
    step, run, backward = passes.step, passes.run, passes.backward
    if not run:
        return
    layers = list(reversed(run)) if backward else run
    kind = "backward" if backward else "forward"
    (part,) = visit_segments(
        step.request.workload, step.request.times, layers, at_most=1, backward=backward
    )
    add_segment(step, part, kind, passes.micro_batch)
    passes.run = []
    if backward and part.tensors:
        _add_gradients(passes, sorted(part.tensors, key=passes.places.__getitem__))


# ---------------------------------------------------------------- parameters


def _add_gather(passes: _Passes, gather: Gather) -> None:
    """Gather parameters, copied together first where there are several."""
    step, options = passes.step, passes.step.options
    ranks = step.request.ranks
    holders = options.hpz_ranks if gather.secondary else ranks
    elements = part_elements(step.request.workload, gather.tensors, ranks) * ranks
    number = len(passes.gatherings)
    name = f"gather {number}"
    stream = GATHERING if options.overlaps else COMPUTE.name
    issued = step.tasks.issue(name, 2, RANKS, after=step.host_waits)
    own_bytes = elements // holders * step.item_bytes
    seconds = step.tasks.copy_s(own_bytes, 1) if len(gather.tensors) > 1 else 0.0
    if options.offload_param:
        seconds += step.request.host_copy_s(own_bytes)
    copied = step.tasks.compute(
        f"copy in {name}",
        "copy",
        seconds,
        RANKS,
        after=dict.fromkeys((*issued, *step.host_waits)),
        stream=stream,
        micro_batch=passes.micro_batch,
    )
    if options.offload_param:  # `.to(device)` returns when the copy is done
        step.host_waits = passes.blocked = (copied,)
    sent = add_collective(
        step,
        name,
        "all_gather",
        elements,
        dtype=step.dtype,
        after=(copied,),
        communicator=SECONDARY if gather.secondary else EVERYONE,
        micro_batch=passes.micro_batch,
    )
    passes.gatherings.append(_Gathering(gather, sent))


def _add_drive_event(passes: _Passes, event: DriveRead | DriveWait) -> None:
    """Read parts of parameters, or let the host wait until all reads are done."""
    step = passes.step
    if isinstance(event, DriveWait):
        if passes.reading is not None:
            passes.blocked = (passes.reading,)
            step.host_waits = (*step.host_waits, passes.reading)
        return
    workload, ranks = step.request.workload, step.request.ranks
    nbytes = step.item_bytes * part_elements(workload, event.tensors, ranks)
    passes.reading = add_drive_task(
        step,
        "read parameters",
        nbytes,
        (*step.host_waits, *passes.blocked),
        micro_batch=passes.micro_batch,
    )


def _add_arrival(passes: _Passes, arrival: Arrival) -> None:
    """Copy gathered parameters out, for which the next layer waits."""
    step, gathering = passes.step, passes.gatherings[arrival.gather]
    end = gathering.sent
    if len(gathering.gather.tensors) > 1:
        elements = step.numel(gathering.gather.tensors)
        name, kernels = f"copy out gather {arrival.gather}", len(gathering.gather.tensors)
        issued = step.tasks.issue(name, kernels, RANKS, after=step.host_waits)
        end = step.tasks.compute(
            name,
            "copy",
            step.tasks.copy_s(elements * step.item_bytes, kernels),
            RANKS,
            after=dict.fromkeys((*issued, end)),
            stream=GATHERING if step.options.overlaps else COMPUTE.name,
            micro_batch=passes.micro_batch,
        )
    step.device_waits = (*step.device_waits, end)


# ---------------------------------------------------------------- gradients


def _add_gradients(passes: _Passes, tensors: Sequence[int]) -> None:
    """Copy gradients into their buckets, each of which is reduced before the next is begun."""
    remaining = list(tensors)
    while remaining:
        bucket = passes.buckets[passes.pending]
        members = [each for each in remaining if passes.places[each][1] == bucket.index]
        if members and passes.step.options.contiguous_gradients and not bucket.is_oversized:
            nbytes = passes.step.numel(members) * passes.step.item_bytes
            _add_copy(passes, f"copy in bucket {bucket.index}", nbytes, len(members))
        remaining = [each for each in remaining if passes.places[each][1] != bucket.index]
        if remaining:
            _add_reduction(passes)
            passes.pending += 1


def _add_reduction(passes: _Passes) -> None:
    """Reduce the bucket to the owners of its parts."""
    step, bucket = passes.step, passes.buckets[passes.pending]
    options, ranks = step.options, step.request.ranks
    part = part_elements(step.request.workload, bucket.tensors, ranks)
    whole = options.contiguous_gradients and not options.reduce_scatter and not bucket.is_oversized
    op: Op = "all_reduce" if whole else "reduce_scatter"
    sent_elements = bucket.elements if whole else part * ranks
    name, dtype = f"bucket {bucket.index}", sent_dtype(step)
    sent_bytes = ITEM_BYTES[dtype]
    copied = sent_elements * step.item_bytes * (1 if whole else 2)
    if sent_bytes != step.item_bytes:
        copied += sent_elements * (sent_bytes + step.item_bytes) // 2
    ready = _add_copy(passes, f"average {name}", copied, 3)
    sent = add_collective(
        step,
        f"{op.replace('_', '-')} {name}",
        op,
        sent_elements,
        dtype=dtype,
        after=(ready,),
        bucket=bucket.index,
        micro_batch=passes.micro_batch,
    )
    adds = 1.5 if passes.micro_batch > 0 else 1.0
    passes.reduced = _add_copy(
        passes, f"copy out {name}", int(adds * part * step.item_bytes), len(bucket.tensors), (sent,)
    )
    if options.offload_optimizer:
        copied_s = part_seconds(step, part, passes.micro_batch)
        passes.reduced = _add_copy(passes, f"{name} to host", 0, 0, more_s=copied_s)
        if options.offload_optimizer.nvme and passes.micro_batch == options.accumulate - 1:
            nbytes = gradient_bytes(step, bucket.tensors)
            passes.written.append(
                add_drive_task(
                    step,
                    f"write gradients of {name}",
                    nbytes,
                    (passes.reduced,),
                    write=True,
                    micro_batch=passes.micro_batch,
                )
            )


def _add_copy(
    passes: _Passes,
    name: str,
    nbytes: int,
    kernels: int,
    after: tuple[int, ...] = (),
    *,
    more_s: float = 0.0,
) -> int:
    """Copy on the reducing stream, which follows the computing one.

    `more_s`: of copies to the host and back.
    """
    step = passes.step
    seconds = step.tasks.copy_s(nbytes, kernels) + more_s
    if not step.options.overlaps:
        step.device_waits = (*step.device_waits, *after)
        return add_work(step, name, "copy", seconds, kernels, passes.micro_batch)
    return step.tasks.launch(
        name,
        "copy",
        seconds,
        kernels,
        RANKS,
        after=(*after, *(() if step.last is None else (step.last,))),
        stream=REDUCTION,
        micro_batch=passes.micro_batch,
    )


def _add_optimizer(step: ShardingStep[ZeroOptions], written: Sequence[int]) -> int:
    """Agree on the gradients, update the parts, gather the persistent parameters."""
    workload, ranks = step.request.workload, step.request.ranks
    groups = sub_groups(workload, step.options, ranks)
    parts = [part_elements(workload, group, ranks) for group in groups]
    if step.dtype == "fp16":
        add_agreement(step, "overflow", OVERFLOW_DTYPE, sum(parts) * step.item_bytes)
    for number, part in enumerate(parts):
        add_agreement(step, f"norm of sub-group {number}", NORM_DTYPE, part * step.item_bytes)
    if step.options.offload_param or step.options.uses_drives:
        end = add_grouped_update(step, groups, written)
    elif step.options.offload_optimizer:
        end = add_host_update(step, sum(parts))
    else:
        end = add_update(step, sum(parts))
    for tensor in persistent_tensors(workload, step.options):
        name = workload.tensors[tensor].name
        issued = step.tasks.issue(f"gather {name}", 1, RANKS)
        part = part_elements(workload, (tensor,), ranks)
        if step.options.offload_param:
            up_s = step.request.host_copy_s(part * step.item_bytes)
            step.device_waits = (end,)
            end = add_work(step, f"copy {name} up", "copy", up_s, 1)
        elements = part * ranks
        end = add_collective(
            step, f"gather {name}", "all_gather", elements, dtype=step.dtype, after=(*issued, end)
        )
    return end
