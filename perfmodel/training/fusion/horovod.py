"""Horovod: one training step as a StepPlan.

The order of events is that of horovod 0.28.1. A hook hands each gradient over as soon as its kernel
has been issued (``torch/optimizer.py``); a thread fuses, in cycles, what all ranks have handed over
(`perfmodel.training.fusion.cycles`), and issues copies into the buffer, the all-reduce and copies
out of it, one reduction after the other on one stream (``ops/nccl_operations.cc``). ``step()``
waits for all of them on the host. On CPUs the thread itself runs each all-reduce, and begins no
cycle meanwhile (``ops/gloo_operations.cc``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfmodel.errors import Fault, InputError
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.fusion.cycles import (
    BATCH_PADDING,
    Cycle,
    FusionRules,
    bit_vector_bytes,
    buffer_bytes,
    run_cycles,
)
from perfmodel.training.fusion.options import HorovodOptions
from perfmodel.training.plan.builder import COMPUTE, HOST, TaskList
from perfmodel.training.plan.forward_backward import (
    Segment,
    Step,
    add_backward_segment,
    add_forward,
    add_local_backward,
    backward_segments,
)
from perfmodel.training.plan.step_plan import Communicator, RankClass, StepPlan, Stream
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import ITEM_BYTES

RANKS = "ranks"
GROUP, HOSTS, ACROSS = "data parallel", "hosts", "across hosts"
"""Communicators: of all ranks, of those of each host, and of one rank of each host."""

THREAD, BUFFER = Stream("horovod thread", "host"), Stream("fusion buffer", "copy")
COMM = Stream("comm", "comm")

BATCH = 160
"""Tensors that one kernel copies (BATCHED_D2D_CAPACITY, horovod 0.28.1, cuda_kernels.h)."""
REQUEST_BYTES = 100
"""Of a request: name, dtype, shape and device of a tensor, as flatbuffers has them; assumption."""


@dataclass(slots=True)
class _Reducing:
    """The backward that communicates, under construction.

    `handed`, `ready`: by tensor, the tasks after which its hook runs, and its value is there.
    `reduced`: last task of each reduction, with its tensors.
    """

    step: Step
    options: HorovodOptions
    order: tuple[int, ...]
    rules: FusionRules
    handed: dict[int, int] = field(default_factory=dict)
    ready: dict[int, int] = field(default_factory=dict)
    reduced: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)


def horovod_plan(request: StepRequest, options: HorovodOptions) -> StepPlan:
    """Return one step under Horovod; of plain training for one rank.

    Raises `InputError`: a torus through host memory.
    Raises `ScheduleError`: times that do not fit the workload.
    """
    if request.blocking_wait and options.allreduce == "torus":
        actual = "'torus', which is NCCL's, with another library"
        raise InputError(Fault("strategy.allreduce", actual, "'flat', or library.name: nccl"))
    if request.bucket_copy_Bps is not None:
        request = replace(request, times=replace(request.times, copy_Bps=request.bucket_copy_Bps))
    tasks = TaskList(request.times.launch_s, request.kernel_s, request.times.copy_Bps)
    step = Step(request, DdpOptions(accumulate=options.accumulate), tasks, RANKS)
    for micro_batch in range(step.last_micro_batch):
        add_forward(step, micro_batch)
        add_local_backward(step, micro_batch)
    add_forward(step, step.last_micro_batch)
    if request.ranks == 1:
        add_local_backward(step, step.last_micro_batch)
        _add_optimizer(step, ())
    else:
        _add_optimizer(step, _add_reducing_backward(step, options))
    used = {task.stream for task in tasks.tasks}
    streams = (HOST, COMPUTE, THREAD, BUFFER, COMM)
    return StepPlan(
        name=f"Horovod, {request.workload.name}, {request.iteration} iteration",
        classes=(RankClass(RANKS, range(request.ranks)),),
        streams=tuple(stream for stream in streams if stream.name in used),
        communicators=_communicators(request, options),
        tasks=tuple(tasks.tasks),
        samples=request.ranks * request.batch_per_gpu * options.accumulate,
    )


def _communicators(request: StepRequest, options: HorovodOptions) -> tuple[Communicator, ...]:
    ranks, size = request.ranks, request.ranks_per_host
    if ranks == 1:
        return ()
    if not _by_hosts(request, options):
        return (Communicator(GROUP, (range(ranks),)),)
    hosts = tuple(range(first, first + size) for first in range(0, ranks, size))
    across = tuple(range(first, ranks, size) for first in range(size))
    return (Communicator(HOSTS, hosts), Communicator(ACROSS, across))


def _by_hosts(request: StepRequest, options: HorovodOptions) -> bool:
    """Whether reductions go host by host; not on a single host (operations.cc)."""
    return options.allreduce == "torus" and 1 < request.ranks_per_host < request.ranks


# ---------------------------------------------------------------- what is fused


def fusion_rules(request: StepRequest, options: HorovodOptions) -> FusionRules:
    """Sizes and times that the cycles of a job depend on."""
    tensors = [request.workload.tensors[index] for index in hand_over_order(request)]
    dtypes = tuple("fp16" if _is_cast(options, t.dtype) else t.dtype for t in tensors)
    nbytes = tuple(t.numel * ITEM_BYTES[d] for t, d in zip(tensors, dtypes, strict=True))
    rules = FusionRules(
        nbytes=nbytes,
        dtypes=dtypes,
        padding=1 if request.blocking_wait else BATCH_PADDING,
        limit=buffer_bytes(options.fusion_threshold_bytes, request.ranks_per_host),
        cycle_s=options.cycle_s,
        agreement_s=agreement_s(request, options),
    )
    if not request.blocking_wait:
        return rules

    def reduction_s(members: tuple[int, ...]) -> float:
        size = rules.fused_bytes(members)
        copies_s = 2 * _copy_s(request, size, len(members))
        return copies_s + request.collective_s("all_reduce", size, None)

    return replace(rules, reduction_s=reduction_s)


def _is_cast(options: HorovodOptions, dtype: str) -> bool:
    return options.compression == "fp16" and ITEM_BYTES[dtype] > ITEM_BYTES["fp16"]


def agreement_s(request: StepRequest, options: HorovodOptions) -> float:
    """Time in which the threads of all ranks agree on what is ready, by the controller's library.

    With all tensors in the cache that is an all-reduce of a bit for each; else rank 0 also gathers
    sizes and requests, and broadcasts sizes and answers (``ComputeResponseList``).
    """
    tensors, library = len(request.workload.ready_order), options.controller
    bits = bit_vector_bytes(tensors) if options.cache_capacity else 0
    time_s = request.collective_s("all_reduce", bits, library) if bits else 0.0
    if request.iteration == "steady" and _is_cached(request, options):
        return time_s
    for nbytes in (ITEM_BYTES["int32"], tensors * REQUEST_BYTES):
        time_s += request.collective_s("gather", nbytes * request.ranks, library)
        time_s += request.collective_s("broadcast", nbytes, library)
    return time_s


def _is_cached(request: StepRequest, options: HorovodOptions) -> bool:
    """Whether the answers of all tensors stay in the cache, least recently used out first."""
    return len(request.workload.ready_order) <= options.cache_capacity


def hand_over_order(request: StepRequest) -> tuple[int, ...]:
    """Tensors in the order in which backward hands them over."""
    return tuple(index for layer in reversed(request.workload.layers) for index in layer.tensors)


def handed_over_s(request: StepRequest, options: HorovodOptions) -> tuple[float, ...]:
    """When each gradient is handed over, since the last backward began; seconds.

    That is when the host has issued its kernels; where issuing takes no time, or the thread copies
    gradients to the host, when the device has computed it.
    """
    times, tensors = request.times, request.workload.tensors
    handed: list[float] = []
    now = 0.0
    for index in range(len(request.workload.layers) - 1, -1, -1):
        members = request.workload.layers[index].tensors
        if _follows_device(request):
            now += times.backward_s[index]
            if options.accumulate > 1:
                nbytes = sum(tensors[member].nbytes for member in members)
                now += 1.5 * nbytes / times.copy_Bps + len(members) * request.kernel_s
            now += _casts_s(request, options, members)
        else:
            casts = sum(_is_cast(options, tensors[member].dtype) for member in members)
            sums = len(members) if options.accumulate > 1 else 0
            now += (times.backward_kernels[index] + sums + casts) * times.launch_s
        handed += [float(now)] * len(members)
    return tuple(handed)


def _follows_device(request: StepRequest) -> bool:
    return request.times.launch_s <= 0 or request.blocking_wait


def _casts_s(request: StepRequest, options: HorovodOptions, members: Iterable[int]) -> float:
    """Time to convert gradients to 16 bits, a kernel each."""
    cast = [t for m in members if _is_cast(options, (t := request.workload.tensors[m]).dtype)]
    moved = sum((t.nbytes + t.numel * ITEM_BYTES["fp16"]) / 2 for t in cast)
    return moved / request.times.copy_Bps + len(cast) * request.kernel_s


def _copy_s(request: StepRequest, nbytes: int, count: int) -> float:
    """Time to copy tensors to or from the buffer; none for a tensor alone."""
    if count == 1:
        return 0.0
    kernels = count if request.blocking_wait else -(-count // BATCH)
    return nbytes / request.times.copy_Bps + kernels * request.kernel_s


# ---------------------------------------------------------------- tasks


def _add_reducing_backward(step: Step, options: HorovodOptions) -> tuple[int, ...]:
    """Add backward and its reductions; returns what the optimizer waits for."""
    request = step.request
    rules, order = fusion_rules(request, options), hand_over_order(request)
    steady = request.iteration == "steady" and _is_cached(request, options)
    cycles = run_cycles(rules, handed_over_s(request, options), steady=steady)
    reducing = _Reducing(step, options, order, rules)
    parts = backward_segments(
        request.workload, request.times, at_most=step.resolution(step.last_micro_batch),
        cut_after=frozenset(order[cycle.last] for cycle in cycles),
    )  # fmt: skip
    following = 0
    for part in parts:
        _add_segment(reducing, part)
        while following < len(cycles) and order[cycles[following].last] in reducing.ready:
            _add_cycle(reducing, following, cycles[following])
            following += 1
    return _add_casts_back(reducing)


def _add_segment(reducing: _Reducing, part: Segment) -> None:
    """Add backward of a segment, and what its hooks do."""
    step, request, tasks = reducing.step, reducing.step.request, reducing.step.tasks
    tensors = request.workload.tensors
    cast = [t for t in part.tensors if _is_cast(reducing.options, tensors[t].dtype)]
    end = add_backward_segment(step, part, step.last_micro_batch, copy_kernels=len(cast))
    issued = tasks.tasks[end].after
    if cast:
        end = tasks.compute(
            f"compress {part.name}", "copy", _casts_s(request, reducing.options, cast), RANKS,
            after=(end,), micro_batch=step.last_micro_batch,
        )  # fmt: skip
    handed = end if _follows_device(request) or not issued else issued[-1]
    for tensor in part.tensors:
        reducing.handed[tensor], reducing.ready[tensor] = handed, end


def _add_cycle(reducing: _Reducing, number: int, cycle: Cycle) -> None:
    """Add a cycle: the wait until all have agreed, then its reductions one after the other."""
    step = reducing.step
    after = [reducing.handed[reducing.order[cycle.last]]]
    if step.request.blocking_wait and reducing.reduced:
        after.append(reducing.reduced[-1][0])
    agreed = step.tasks.compute(
        f"cycle {number}", "wait", cycle.waits_s, RANKS, after=after, stream=THREAD.name,
        micro_batch=step.last_micro_batch,
    )  # fmt: skip
    for members in cycle.fused:
        _add_reduction(reducing, members, agreed)


def _add_reduction(reducing: _Reducing, members: tuple[int, ...], agreed: int) -> None:
    """Add copies into the buffer, the all-reduce, and copies out of it."""
    step, tasks, number = reducing.step, reducing.step.tasks, len(reducing.reduced)
    marks: dict[str, Any] = {"bucket": number, "micro_batch": step.last_micro_batch}
    tensors = tuple(reducing.order[member] for member in members)
    nbytes = reducing.rules.fused_bytes(members)
    copy_s = _copy_s(step.request, nbytes, len(members))
    waits = {agreed: None, max(reducing.ready[tensor] for tensor in tensors): None}
    if reducing.reduced:
        waits[reducing.reduced[-1][0]] = None
    end = -1
    if copy_s > 0:
        end = tasks.compute(
            f"copy in buffer {number}", "copy", copy_s, RANKS, after=waits, stream=BUFFER.name,
            **marks,
        )  # fmt: skip
    end = _add_all_reduce(reducing, number, nbytes, (end,) if end >= 0 else tuple(waits), marks)
    if copy_s > 0:
        end = tasks.compute(
            f"copy out buffer {number}", "copy", copy_s, RANKS, after=(end,), stream=BUFFER.name,
            **marks,
        )  # fmt: skip
    reducing.reduced.append((end, tensors))


def _add_all_reduce(
    reducing: _Reducing, number: int, nbytes: int, after: Sequence[int], marks: dict[str, Any]
) -> int:
    step, name = reducing.step, f"buffer {number}"
    if not _by_hosts(step.request, reducing.options):
        return step.tasks.collective(
            f"all-reduce {name}", "all_reduce", nbytes, RANKS, communicator=GROUP, key=name,
            after=after, **marks,
        )  # fmt: skip
    share = -(-nbytes // step.request.ranks_per_host)
    scattered = step.tasks.collective(
        f"reduce-scatter {name}", "reduce_scatter", nbytes, RANKS, communicator=HOSTS,
        key=f"{name} reduce-scatter", after=after, **marks,
    )  # fmt: skip
    summed = step.tasks.collective(
        f"all-reduce {name}", "all_reduce", share, RANKS, communicator=ACROSS, key=name,
        after=(scattered,), **marks,
    )  # fmt: skip
    return step.tasks.collective(
        f"all-gather {name}", "all_gather", nbytes, RANKS, communicator=HOSTS,
        key=f"{name} all-gather", after=(summed,), **marks,
    )  # fmt: skip


def _add_casts_back(reducing: _Reducing) -> tuple[int, ...]:
    """Convert gradients back, each once the host has waited for it; returns the last tasks."""
    step = reducing.step
    ends = []
    for number, (reduced, members) in enumerate(reducing.reduced):
        tensors = step.request.workload.tensors
        cast = [m for m in members if _is_cast(reducing.options, tensors[m].dtype)]
        end = reduced
        if cast:
            name = f"decompress buffer {number}"
            issued = step.tasks.issue(name, len(cast), RANKS, after=(reduced,))
            cast_s = _casts_s(step.request, reducing.options, cast)
            after = dict.fromkeys((*issued, reduced))
            end = step.tasks.compute(name, "copy", cast_s, RANKS, after=after)
        ends.append(end)
    return tuple(ends)


def _add_optimizer(step: Step, reduced: tuple[int, ...]) -> None:
    """Add the optimizer, which the host issues when all is reduced; the next step follows it."""
    tasks, request = step.tasks, step.request
    marks: dict[str, Any] = {"micro_batch": step.last_micro_batch}
    issued = tasks.issue(
        "optimizer", request.times.optimizer_kernels, RANKS, after=reduced, **marks
    )
    end = tasks.compute(
        "optimizer", "optimizer", request.times.optimizer_s, RANKS,
        after=dict.fromkeys((*issued, *reduced)), **marks,
    )  # fmt: skip
    if request.host_s > 0:
        end = tasks.compute("end of the step", "copy", request.host_s, RANKS, after=(end,), **marks)
    first = next(at for at, task in enumerate(tasks.tasks) if task.stream == COMPUTE.name)
    tasks.tasks[first] = replace(tasks.tasks[first], after_previous=(end,))
