"""Give the passes of a plan the collectives that their layers call.

A task of several layers keeps one compute task, or one for each kind of call that runs beside
kernels, and one collective for each kind of call, so many times in a row. Its time is the sum of
its layers' times, and exact as long as nothing else uses the same links or slows the same GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from perfmodel.memo import once
from perfmodel.training.plan.builder import COMPUTE
from perfmodel.training.plan.step_plan import (
    PASSES,
    Collective,
    Communicator,
    Compute,
    Op,
    StepPlan,
    Stream,
    Task,
    follow_previous,
)
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.kernels.float8_layers import narrow_calls, wide_precision
from perfmodel.workload.layer_calls import CallGroup, CallPhase, LayerCall
from perfmodel.workload.memory.recompute import (
    NO_RECOMPUTE,
    Recompute,
    partly_recomputed_blocks,
    recomputed_blocks,
    recomputed_layers,
    spared_results,
)
from perfmodel.workload.model import ITEM_BYTES, LayerTimes, Workload


@dataclass(frozen=True, slots=True)
class PassCall:
    """A call of one pass.

    `is_after`: whether it follows the kernels of its layer.
    `window_s`: kernels that run while it does; seconds. 0: it is exposed.
    """

    call: LayerCall
    is_after: bool
    window_s: float


def forward_calls(
    workload: Workload, times: LayerTimes, layers: Sequence[int]
) -> tuple[PassCall, ...]:
    """Return calls of the forward of some layers, in order."""
    return tuple(
        each for layer in layers for each in _layer_calls(workload, times, layer, "forward")
    )


def backward_calls(
    workload: Workload, times: LayerTimes, layers: Sequence[int], again: RepeatedCalls
) -> tuple[PassCall, ...]:
    """Return calls of the backward of some layers, in order, and of what runs forward again.

    `again`: as of `repeated_calls`.

    A checkpoint of Megatron runs its block before the block's backward begins. One of torch does
    when a kept tensor is first asked for, which is after the gradient of the block's result was
    gathered, and stops when it has the last one, before that result is.
    """
    is_torch = workload.shard.library == "torch"
    calls: list[PassCall] = []
    for layer in layers:
        own = _layer_calls(workload, times, layer, "backward")
        first = sum(not each.is_after for each in own) if is_torch else 0
        repeated = again.get(layer, ())
        calls += own[:first]
        calls += [_pass_call(call, times, at, "forward", is_after=False) for at, call in repeated]
        calls += own[first:]
    return tuple(calls)


def _layer_calls(
    workload: Workload, times: LayerTimes, layer: int, phase: CallPhase
) -> list[PassCall]:
    return [
        _pass_call(call, times, layer, phase, is_after=call.place == "after")
        for call in workload.layers[layer].calls
        if call.phase == phase
    ]


def _pass_call(
    call: LayerCall, times: LayerTimes, layer: int, phase: CallPhase, *, is_after: bool
) -> PassCall:
    """Put a call beside the matrix kernels of its layer, or all where they are not known apart."""
    kernels_s = times.forward_s if phase == "forward" else times.backward_s
    matrix_s = times.matrix_forward_s if phase == "forward" else times.matrix_backward_s
    return PassCall(
        call, is_after, call.overlap * float((kernels_s if matrix_s is None else matrix_s)[layer])
    )


# ---------------------------------------------------------------- recomputation


RepeatedCalls = Mapping[int, tuple[tuple[int, LayerCall], ...]]
"""By the layer whose backward begins with it: calls of forward that are repeated, by layer."""


def repeated_calls(workload: Workload, recompute: Recompute) -> RepeatedCalls:
    """Return what recomputation calls once more.

    Operations whose results torchtitan's selective checkpoint keeps are attention and the
    reduce-scatter; where results are named, layers that keep theirs call nothing again.
    """
    stops_early = workload.shard.library == "torch"
    repeated = {
        block[-1]: tuple(
            (layer, call)
            for layer, call in _forward(workload, block)
            if not (stops_early and layer == block[-1] and call.place == "after")
        )
        for block in recomputed_blocks(workload, recompute)
    }
    repeated |= {
        layer: tuple(_forward(workload, (layer,)))
        for layer in recomputed_layers(workload, recompute)
    }
    for block in partly_recomputed_blocks(workload, recompute):
        spared = spared_results(workload, block, recompute) if recompute.keep else ()
        repeated[block[-1]] = tuple(
            (layer, call)
            for layer, call in _forward(workload, block)
            if (
                layer not in spared
                if recompute.keep
                else call.group != "context" and call.op != "reduce_scatter"
            )
            and not (layer == block[-1] and call.place == "after")
        )
    return repeated


def _forward(workload: Workload, layers: Iterable[int]) -> Iterator[tuple[int, LayerCall]]:
    calls = ((layer, call) for layer in layers for call in workload.layers[layer].calls)
    return ((layer, call) for layer, call in calls if call.phase == "forward")


RESULT_OPS = ("all_reduce", "reduce_scatter")
"""Operations that send a result of their layers, where others fetch an input."""


@dataclass(slots=True)
class _Calls:
    """So many alike calls, and the work beside all of them.

    `call_window_s`: work beside each of them; seconds, 0: none.
    `joins_previous`: whether they begin with the calls before them.
    """

    group: CallGroup
    op: Op
    nbytes: int
    dtype: str
    call_window_s: float = 0.0
    joins_previous: bool = False
    times: int = field(default=0, compare=False)
    window_s: float = field(default=0.0, compare=False)


@dataclass(slots=True)
class _Adding:
    """A plan under construction: tasks, and where each of the plan's own begins and ends.

    `known`: calls of passes through the same layers, by whether they are forward.
    """

    request: StepRequest
    dtype: str
    again: RepeatedCalls
    tasks: list[Task] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    calls: int = 0
    known: dict[tuple[bool, tuple[int, ...]], list[list[_Calls]]] = field(default_factory=dict)


def add_layer_calls(
    plan: StepPlan, request: StepRequest, dtype: str, recompute: Recompute = NO_RECOMPUTE
) -> StepPlan:
    """Return the plan with its layers' calls; the same plan where no layer calls anything.

    Exposed calls run on the compute stream, before or after their kernels; others on a stream of
    their group, beside a part of the kernels. The communicators of `CallGroup` have one group of as
    many ranks as share a layer: placement puts their real groups in its place.

    `request`: that the plan was made from; its workload is that of one rank.
    `dtype`: precision of the compute; activations travel in it, beside fp8 in bf16 but for
        what is gathered to be multiplied in fp8.
    `recompute`: what backward runs forward of once more.
    """
    if not any(layer.calls for layer in request.workload.layers):
        return plan
    if request.float8 is not None:
        request = replace(request, workload=narrow_calls(request.workload, request.float8))
    layers = request.workload.layers
    adding = _Adding(
        request,
        "fp32" if dtype == "tf32" else wide_precision(dtype),
        repeated_calls(request.workload, recompute),
    )
    updates = ((at, task) for at, task in enumerate(plan.tasks) if task.kind == "optimizer")
    first_updates = {task.rank_class: at for at, task in reversed([*updates])}
    for index, task in enumerate(plan.tasks):
        moved = task.moved(after=tuple(adding.ends[each] for each in task.after))
        if first_updates.get(task.rank_class) == index:
            _add_step_calls(adding, moved)
        if task.kind in PASSES and task.layers and isinstance(task.work, Compute):
            _add_pass(adding, moved, task.work.duration_s)
        else:
            adding.tasks.append(moved)
        adding.ends.append(len(adding.tasks) - 1)
    follow_previous(adding.tasks, adding.ends)
    ranks = {call.group: call.ranks for layer in layers for call in layer.calls}
    streams = {stream.name for stream in plan.streams}
    used = dict.fromkeys(task.stream for task in adding.tasks if task.stream not in streams)
    return replace(
        plan,
        tasks=tuple(adding.tasks),
        streams=(*plan.streams, *(Stream(name, "comm") for name in used)),
        communicators=(
            *plan.communicators,
            *(Communicator(group, (range(size),), group) for group, size in ranks.items()),
        ),
    )


# ---------------------------------------------------------------- passes


def _add_pass(adding: _Adding, task: Task, duration_s: float) -> None:
    """Add a task of some layers with their calls; the last task added ends them all."""
    tasks = adding.tasks
    calls = once(
        adding.known, (task.kind == "forward", task.layers), lambda: _find_calls(adding, task)
    )
    if not any(calls):
        tasks.append(task)
        return
    _issue(adding, task, sum(each.times for alike in calls for each in alike))
    start = len(tasks)
    marked = task.acquires or task.releases or task.core_s or task.after_previous
    plain = task
    if marked:
        plain = replace(task, acquires=None, releases=None, core_s=0.0, after_previous=())
    _add_around(adding, plain, duration_s, calls)
    if marked:
        # the first piece waits for what the task waited for, the last one has what it gave back
        tasks[start] = replace(
            tasks[start], acquires=task.acquires, after_previous=task.after_previous
        )
        tasks[-1] = replace(tasks[-1], releases=task.releases)
        end = max(i for i in range(start, len(tasks)) if isinstance(tasks[i].work, Compute))
        tasks[end] = replace(tasks[end], core_s=task.core_s)


def _find_calls(adding: _Adding, task: Task) -> list[list[_Calls]]:
    """Return the exposed calls before kernels, those beside parts of these, and those after."""
    workload, times = adding.request.workload, adding.request.times
    if task.kind == "forward":
        calls = forward_calls(workload, times, task.layers)
    else:
        calls = backward_calls(workload, times, task.layers, adding.again)
    return [
        _alike(adding, chosen, merges=len(task.layers) > 1)
        for chosen in (
            [each for each in calls if not each.window_s and not each.is_after],
            [each for each in calls if each.window_s],
            [each for each in calls if not each.window_s and each.is_after],
        )
    ]


def _add_around(
    adding: _Adding, task: Task, duration_s: float, calls: Sequence[Sequence[_Calls]]
) -> None:
    """Add exposed calls before and after kernels, and others beside parts of these."""
    head, hidden, tail = calls
    windows_s = sum(each.window_s for each in hidden)
    shorten = min(1.0, duration_s / windows_s) if windows_s else 0.0
    rest_s = max(0.0, duration_s - shorten * windows_s)
    waits = _add_exposed(adding, task, head, task.after)
    if hidden and not head:
        # a call on another stream begins when the kernels beside it can
        waits = (_piece(adding, task, 0.0, waits),)
    # what sends a result of its layers follows the kernels, what fetches an input precedes them
    results = [each for each in hidden if each.op in RESULT_OPS]
    waits = _add_windows(
        adding, task, [each for each in hidden if each.op not in RESULT_OPS], shorten, waits
    )
    if rest_s > 0 or not hidden:
        waits = (_piece(adding, task, rest_s, waits),)
    waits = _add_windows(adding, task, results, shorten, waits)
    waits = _add_exposed(adding, task, tail, waits)
    if len(waits) > 1:  # what follows waits for the kernels and for the call beside them
        _piece(adding, task, 0.0, waits)


def _add_exposed(
    adding: _Adding, task: Task, calls: Iterable[_Calls], waits: tuple[int, ...]
) -> tuple[int, ...]:
    """Add calls one after the other, but for those beside the one before; returns what follows."""
    begun = waits
    for each in calls:
        if each.joins_previous:
            waits = (*waits, _call(adding, task, each, each.group, begun))
        else:
            begun = waits
            waits = (_call(adding, task, each, COMPUTE.name, waits),)
    return waits


def _add_windows(
    adding: _Adding, task: Task, calls: Iterable[_Calls], shorten: float, waits: tuple[int, ...]
) -> tuple[int, ...]:
    """Add calls, each beside its part of the kernels; returns what follows them."""
    for each in calls:
        waits = (
            _piece(adding, task, shorten * each.window_s, waits),
            _call(adding, task, each, each.group, waits),
        )
    return waits


def _alike(adding: _Adding, calls: Iterable[PassCall], *, merges: bool) -> list[_Calls]:
    """Join alike calls; those of one layer only where one directly follows the other."""
    joined: list[_Calls] = []
    for each in calls:
        call, dtype = each.call, each.call.dtype or adding.dtype
        nbytes = round(call.elements * adding.request.batch_per_gpu) * ITEM_BYTES[dtype]
        alike = _Calls(call.group, call.op, nbytes, dtype, each.window_s, call.joins_previous)
        candidates = joined if merges else joined[-1:]
        same = next((other for other in candidates if other == alike), None)
        if same is None:
            joined.append(same := alike)
        same.times += call.times
        same.window_s += each.window_s
    return joined


def _piece(adding: _Adding, task: Task, duration_s: float, waits: Sequence[int]) -> int:
    """Add a part of a task's kernels."""
    adding.tasks.append(task.moved(Compute(duration_s), tuple(waits)))
    return len(adding.tasks) - 1


def _call(adding: _Adding, task: Task, calls: _Calls, stream: str, waits: Iterable[int]) -> int:
    """Add calls as one task."""
    adding.calls += 1
    adding.tasks.append(
        Task(
            f"{calls.group} {calls.op.replace('_', '-')}, {task.name}",
            "communication",
            task.rank_class,
            stream,
            Collective(
                calls.op,
                calls.nbytes,
                calls.group,
                f"{task.rank_class}, call {adding.calls}",
                dtype=calls.dtype,
                times=calls.times,
            ),
            tuple(waits),
            micro_batch=task.micro_batch,
            layers=task.layers,
        )
    )
    return len(adding.tasks) - 1


def _issue(adding: _Adding, task: Task, calls: int) -> None:
    """Let the host issue calls with the kernels of their task."""
    for at in task.after:
        issue = adding.tasks[at]
        if issue.kind == "issue" and isinstance(issue.work, Compute):
            times = adding.request.times
            calls_s = calls * times.layer_launches * times.launch_s
            adding.tasks[at] = issue.moved(Compute(issue.work.duration_s + calls_s))
            return


# ---------------------------------------------------------------- step


def _add_step_calls(adding: _Adding, optimizer: Task) -> None:
    """Add what a step calls once, when gradients are there: sums of replicated tensors' parts.

    Megatron joins those of one dtype, torch sends each.
    """
    workload = adding.request.workload
    sizes: dict[tuple[CallGroup, str, int], int] = {}
    for layer in workload.layers:
        dtype = workload.tensors[layer.tensors[0]].dtype if layer.tensors else "fp32"
        for call in layer.calls:
            if call.phase == "step":
                alone = round(call.elements) if workload.shard.library == "torch" else 0
                at = (call.group, call.dtype or dtype, alone)
                sizes[at] = sizes.get(at, 0) + round(call.elements)
    waits = optimizer.after
    for (group, dtype, alone), elements in sizes.items():
        nbytes, times = (alone or elements) * ITEM_BYTES[dtype], elements // alone if alone else 1
        calls = _Calls(group, "all_reduce", nbytes, dtype, times=times)
        waits = (_call(adding, replace(optimizer, layers=()), calls, COMPUTE.name, waits),)
