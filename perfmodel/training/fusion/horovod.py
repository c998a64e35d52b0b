"""Horovod: one training step as a StepPlan.

The order of events is that of horovod 0.28.1. A hook hands each gradient over as soon as its kernel
has been issued (``torch/optimizer.py``); a thread fuses, in cycles, what all ranks have handed over
(`perfmodel.training.fusion.cycles`), and issues copies into the buffer, the all-reduce and copies
out of it, one reduction after the other on one stream (``ops/nccl_operations.cc``). ``step()``
waits for all of them on the host. On CPUs the thread itself runs each all-reduce, and begins no
cycle meanwhile (``ops/gloo_operations.cc``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfmodel.errors import Fault, InputError
from perfmodel.scenario.strategies.strategy import HorovodStrategy
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.fusion.cycles import (
    Cycle,
    FusionRules,
    casts_s,
    copy_s,
    follows_device,
    fusion_rules,
    hand_over_order,
    handed_over_s,
    is_cached,
    is_cast,
    run_cycles,
)
from perfmodel.training.plan.builder import COMPUTE, HOST, TaskList
from perfmodel.training.plan.forward_backward import (
    Segment,
    Step,
    add_backward_segment,
    add_forward,
    add_local_backward,
    add_optimizer,
    backward_segments,
)
from perfmodel.training.plan.step_plan import (
    Communicator,
    RankClass,
    StepPlan,
    Stream,
    neighbours,
    strides,
)
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import ITEM_BYTES

RANKS = "ranks"
GROUP, HOSTS, ACROSS = "data parallel", "hosts", "across hosts"
"""Communicators: of all ranks, of those of each host, and of one rank of each host."""

THREAD, BUFFER = Stream("horovod thread", "host"), Stream("fusion buffer", "copy")
COMM = Stream("comm", "comm")


@dataclass(slots=True)
class _Reducing:
    """The backward that communicates, under construction.

    `handed`, `ready`: by tensor, the tasks after which its hook runs, and its value is there.
    `reduced`: last task of each reduction, with its tensors.
    """

    step: Step
    options: HorovodStrategy
    order: tuple[int, ...]
    rules: FusionRules
    handed: dict[int, int] = field(default_factory=dict)
    ready: dict[int, int] = field(default_factory=dict)
    reduced: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)


def horovod_plan(request: StepRequest, options: HorovodStrategy) -> StepPlan:
    """Return one step under Horovod; of plain training for one rank.

    Raises `InputError`: a torus through host memory.
    Raises `ScheduleError`: times that do not fit the workload.
    """
    if request.blocking_wait and options.allreduce == "torus":
        actual = "'torus', which is NCCL's, with another library"
        raise InputError(Fault("strategy.allreduce", actual, "'flat', or library.name: nccl"))
    if request.bucket_copy_Bps is not None:
        request = replace(request, times=replace(request.times, copy_Bps=request.bucket_copy_Bps))
    tasks = TaskList.of(request)
    step = Step(request, DdpOptions(accumulate=options.accumulate), tasks, RANKS)
    for micro_batch in range(step.last_micro_batch):
        add_forward(step, micro_batch)
        add_local_backward(step, micro_batch)
    add_forward(step, step.last_micro_batch)
    if request.ranks == 1:
        add_local_backward(step, step.last_micro_batch)
        add_optimizer(step, (), host_waits=True)
    else:
        add_optimizer(step, _add_reducing_backward(step, options), host_waits=True)
    return tasks.plan(
        name=f"Horovod, {request.workload.name}, {request.iteration} iteration",
        classes=(RankClass(RANKS, range(request.ranks)),),
        streams=(HOST, COMPUTE, THREAD, BUFFER, COMM),
        communicators=_communicators(request, options),
        samples=request.ranks * request.batch_per_gpu * options.accumulate,
    )


def _communicators(request: StepRequest, options: HorovodStrategy) -> tuple[Communicator, ...]:
    ranks, size = request.ranks, request.ranks_per_host
    if ranks == 1:
        return ()
    if not _by_hosts(request, options):
        return (Communicator(GROUP, (range(ranks),)),)
    return (
        Communicator(HOSTS, neighbours(ranks, size)),
        Communicator(ACROSS, strides(ranks, size)),
    )


def _by_hosts(request: StepRequest, options: HorovodStrategy) -> bool:
    """Whether reductions go host by host; not on a single host (operations.cc)."""
    return options.allreduce == "torus" and 1 < request.ranks_per_host < request.ranks


# ---------------------------------------------------------------- tasks


def _add_reducing_backward(step: Step, options: HorovodStrategy) -> tuple[int, ...]:
    """Add backward and its reductions; returns what the optimizer waits for."""
    request = step.request
    rules, order = fusion_rules(request, options), hand_over_order(request)
    steady = request.iteration == "steady" and is_cached(request, options)
    cycles = run_cycles(rules, handed_over_s(request, options), steady=steady)
    reducing = _Reducing(step, options, order, rules)
    parts = backward_segments(
        request.workload,
        request.times,
        at_most=step.resolution(step.last_micro_batch),
        cut_after=frozenset(order[member] for member in _last_members(cycles)),
    )
    following = 0
    for part in parts:
        _add_segment(reducing, part)
        while following < len(cycles) and order[cycles[following].last] in reducing.ready:
            _add_cycle(reducing, following, cycles[following])
            following += 1
    return _add_casts_back(reducing)


def _last_members(cycles: Iterable[Cycle]) -> Iterator[int]:
    """Positions where backward is cut, so that merging layers delays nothing."""
    for cycle in cycles:
        yield cycle.last
        yield from map(max, cycle.fused)


def _add_segment(reducing: _Reducing, part: Segment) -> None:
    """Add backward of a segment, and what its hooks do."""
    step, request, tasks = reducing.step, reducing.step.request, reducing.step.tasks
    tensors = request.workload.tensors
    cast = [t for t in part.tensors if is_cast(reducing.options, tensors[t].dtype)]
    end = add_backward_segment(step, part, step.last_micro_batch, copy_kernels=len(cast))
    issued = tasks.tasks[end].after
    if cast:
        end = tasks.compute(
            f"compress {part.name}",
            "copy",
            casts_s(request, reducing.options, cast),
            RANKS,
            after=(end,),
            micro_batch=step.last_micro_batch,
            role="compress",
        )
    handed = end if follows_device(request) or not issued else issued[-1]
    for tensor in part.tensors:
        reducing.handed[tensor], reducing.ready[tensor] = handed, end


def _add_cycle(reducing: _Reducing, number: int, cycle: Cycle) -> None:
    """Add a cycle: the wait until all have agreed, then its reductions one after the other."""
    step = reducing.step
    after = [reducing.handed[reducing.order[cycle.last]]]
    if step.request.blocking_wait and reducing.reduced:
        after.append(reducing.reduced[-1][0])
    agreed = step.tasks.compute(
        f"cycle {number}",
        "wait",
        cycle.waits_s,
        RANKS,
        after=after,
        stream=THREAD.name,
        micro_batch=step.last_micro_batch,
    )
    for members in cycle.fused:
        _add_reduction(reducing, members, agreed)


def _add_reduction(reducing: _Reducing, members: tuple[int, ...], agreed: int) -> None:
    """Add copies into the buffer, the all-reduce, and copies out of it."""
    step, tasks, number = reducing.step, reducing.step.tasks, len(reducing.reduced)
    marks: dict[str, Any] = {"bucket": number, "micro_batch": step.last_micro_batch}
    tensors = tuple(reducing.order[member] for member in members)
    nbytes = reducing.rules.fused_bytes(members)
    copied_s = copy_s(step.request, nbytes, len(members))
    waits = {agreed: None, max(reducing.ready[tensor] for tensor in tensors): None}
    if reducing.reduced:
        waits[reducing.reduced[-1][0]] = None
    end = -1
    if copied_s > 0:
        end = tasks.compute(
            f"copy in buffer {number}",
            "copy",
            copied_s,
            RANKS,
            after=waits,
            stream=BUFFER.name,
            **marks,
        )
    marks_of_data = marks | {"dtype": reducing.rules.dtypes[members[0]]}
    waits_of_data = (end,) if end >= 0 else tuple(waits)
    end = _add_all_reduce(reducing, number, nbytes, waits_of_data, marks_of_data)
    if copied_s > 0:
        end = tasks.compute(
            f"copy out buffer {number}",
            "copy",
            copied_s,
            RANKS,
            after=(end,),
            stream=BUFFER.name,
            role="copy_out",
            **marks,
        )
    reducing.reduced.append((end, tensors))


def _add_all_reduce(
    reducing: _Reducing, number: int, nbytes: int, after: Sequence[int], marks: dict[str, Any]
) -> int:
    step, name = reducing.step, f"buffer {number}"
    if not _by_hosts(step.request, reducing.options):
        return step.tasks.collective(
            f"all-reduce {name}",
            "all_reduce",
            nbytes,
            RANKS,
            communicator=GROUP,
            key=name,
            after=after,
            **marks,
        )
    item = ITEM_BYTES[marks["dtype"]]
    share = -(-nbytes // (item * step.request.ranks_per_host)) * item
    nbytes = share * step.request.ranks_per_host  # padded, so that ranks can split it
    scattered = step.tasks.collective(
        f"reduce-scatter {name}",
        "reduce_scatter",
        nbytes,
        RANKS,
        communicator=HOSTS,
        key=f"{name} reduce-scatter",
        after=after,
        **marks,
    )
    summed = step.tasks.collective(
        f"all-reduce {name}",
        "all_reduce",
        share,
        RANKS,
        communicator=ACROSS,
        key=name,
        after=(scattered,),
        **marks,
    )
    return step.tasks.collective(
        f"all-gather {name}",
        "all_gather",
        nbytes,
        RANKS,
        communicator=HOSTS,
        key=f"{name} all-gather",
        after=(summed,),
        **marks,
    )


def _add_casts_back(reducing: _Reducing) -> tuple[int, ...]:
    """Convert gradients back, each once the host has waited for it; returns the last tasks."""
    step = reducing.step
    ends = []
    for number, (reduced, members) in enumerate(reducing.reduced):
        tensors = step.request.workload.tensors
        cast = [m for m in members if is_cast(reducing.options, tensors[m].dtype)]
        end = reduced
        if cast:
            name = f"decompress buffer {number}"
            issued = step.tasks.issue(name, len(cast), RANKS, after=(reduced,))
            cast_s = casts_s(step.request, reducing.options, cast)
            after = dict.fromkeys((*issued, reduced))
            end = step.tasks.compute(name, "copy", cast_s, RANKS, after=after)
        ends.append(end)
    return tuple(ends)
