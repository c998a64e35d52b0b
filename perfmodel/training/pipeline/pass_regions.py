"""The passes of a plain plan: which of its tasks belong to forward or backward of a micro-batch.

A pipeline runs the same passes in another order. Passes without communication become one task.
Where a schedule asks for it, backward is split into gradients of inputs and of weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from perfmodel.errors import Fault, InputError, ScheduleError
from perfmodel.training.pipeline.pass_actions import SECTION
from perfmodel.training.plan.builder import COMPUTE, HOST
from perfmodel.training.plan.step_plan import (
    Collective,
    CommunicatorRole,
    Compute,
    StepPlan,
    Task,
)
from perfmodel.workload.model import LayerTimes


def check_split(plan: StepPlan, regions: Regions, times: LayerTimes) -> None:
    """Raise `InputError` where backward cannot be split.

    Times do not tell its parts apart, or parameters are gathered again for it.
    """
    field = f"{SECTION}.schedule"
    if times.weight_gradient_s is None:
        text = f"one that splits backward, with times from {times.source!r}"
        allowed = "one that does not, where times do not tell gradients of weights apart"
        raise InputError(Fault(field, text, allowed))
    gathers = any(
        isinstance(work.task.work, Collective)
        and work.task.work.op == "all_gather"
        and not work.task.layers
        for (kind, _), works in regions.passes.items()
        for work in works
        if kind == "backward"
    )
    if gathers:
        text = f"one that splits backward, beside {plan.name!r}"
        allowed = "one that does not, where backward gathers parameters"
        raise InputError(Fault(field, text, allowed))


def split_backward(works: Sequence[Work], times: LayerTimes) -> tuple[list[Work], list[Work]]:
    """Return gradients of inputs, with the collectives that layers call, and those of weights.

    Adding gradients up, copying them to buckets and reducing these follows the weights'.
    """
    inputs: list[Work] = []
    weights: list[Work] = []
    issues = {m for work in works if work.task.stream == HOST.name for m in work.members}
    for work in works:
        task = work.task
        if task.kind == "backward" and isinstance(task.work, Compute):
            weight_s = _weight_seconds(task, task.work.duration_s, times)
            input_s = task.work.duration_s - weight_s
            inputs.append(
                replace(
                    work, task=replace(task, name=f"inputs of {task.name}", work=Compute(input_s))
                )
            )
            after = tuple(source for source in task.after if source in issues)
            part = replace(
                task,
                name=f"weights of {task.name}",
                role="weight_gradient",
                work=Compute(weight_s),
                after=after,
                core_s=0.0,
            )
            weights.append(replace(work, task=part))
        elif task.stream == HOST.name:
            first, second = _split_issue(work, works, times)
            inputs.append(first)
            weights.append(second)
        elif task.layers:
            inputs.append(work)
        else:
            weights.append(work)
    return inputs, weights


def _weight_seconds(task: Task, duration_s: float, times: LayerTimes) -> float:
    """Part of a task's time: that of its layers, and whatever is done beside their backward."""
    assert times.weight_gradient_s is not None
    layers = list(task.layers)
    other_s = max(0.0, duration_s - float(times.backward_s[layers].sum()))
    return min(duration_s, float(times.weight_gradient_s[layers].sum()) + other_s)


def _split_issue(work: Work, works: Sequence[Work], times: LayerTimes) -> tuple[Work, Work]:
    """Kernels of weights' gradients, one a layer, are issued with them."""
    assert times.weight_gradient_s is not None
    assert isinstance(work.task.work, Compute)
    total_s = work.task.work.duration_s
    users = [each.task for each in works if not set(work.members).isdisjoint(each.task.after)]
    layers = [layer for task in users if task.kind == "backward" for layer in task.layers]
    kernels = int((times.weight_gradient_s[layers] > 0).sum())
    total = int(times.backward_kernels[layers].sum())
    if not users:  # what the host issues while the first kernels run
        kernels, total = int((times.weight_gradient_s > 0).sum()), int(times.backward_kernels.sum())
    weight_s = total_s * min(kernels, total) / total if total else 0.0
    first = replace(work, task=replace(work.task, work=Compute(total_s - weight_s)))
    name = f"{work.task.name}, weights"
    second = replace(work.task, name=name, work=Compute(weight_s), after=(), issues="")
    return first, replace(work, task=second)


PASSES = ("forward", "backward")

PassKind = Literal["forward", "backward"]
PassKey = tuple[PassKind, int]


@dataclass(frozen=True, slots=True)
class Work:
    """A task of a plan, or several merged; `after` are indices of the plain plan.

    `members`: the tasks of the plain plan that it stands for.
    """

    task: Task
    members: tuple[int, ...]


@dataclass(slots=True)
class Regions:
    """Tasks of a plan by where they stand in a step.

    `begin`, `end`: before the first pass and after the last one.
    `passes`: by kind and micro-batch; in the last backward with what reduces its gradients.
    `waited_for`: tasks that another stream than the computing one waits for.
    `expert_calls`: communicators of what experts exchange.
    """

    begin: list[Work] = field(default_factory=list)
    passes: dict[PassKey, list[Work]] = field(default_factory=dict)
    end: list[Work] = field(default_factory=list)
    waited_for: frozenset[int] = frozenset()
    expert_calls: frozenset[str] = frozenset()


def plan_regions(plan: StepPlan, *, overlap_reduction: bool = True) -> Regions:
    """Sort the tasks of a plan into passes.

    `overlap_reduction`: whether gradients are reduced once those of the plan are ready, rather than
        after all passes.
    Raises `ScheduleError`: several rank classes, or no passes.
    """
    if len(plan.classes) != 1:
        names = ", ".join(repr(each.name) for each in plan.classes)
        raise ScheduleError(f"plan {plan.name!r} has classes {names}; a pipeline needs one")
    users = _first_users(plan.tasks)
    keys = _with_calls(plan.tasks, [_pass_of(task) for task in plan.tasks], users)
    places = [index for index, key in enumerate(keys) if key is not None]
    if not places:
        raise ScheduleError(f"plan {plan.name!r} has neither forward nor backward")
    regions = Regions(
        passes={key: [] for key in keys if key is not None},
        waited_for=_waited_for(plan),
        expert_calls=frozenset(
            each.name for each in plan.communicators if each.role in EXPERT_CALLS
        ),
    )
    last, newest, ended = places[-1], None, False
    owners: list[list[Work]] = []
    for index, task in enumerate(plan.tasks):
        key = keys[index]
        newest = newest if key is None else key
        ended = ended or (index > last and (not overlap_reduction or _consumes(plan, task)))
        if key is not None:
            owner = regions.passes[key]
        elif newest is None:
            owner = regions.begin
        elif ended:
            owner = regions.end
        else:
            owner = regions.passes[newest]
        owners.append(owner)
    for index in reversed(range(len(plan.tasks))):  # the host issues what follows it
        if plan.tasks[index].stream == HOST.name and index in users:
            owners[index] = owners[users[index]]
    for index, task in enumerate(plan.tasks):
        owners[index].append(Work(task, (index,)))
    return regions


def _pass_of(task: Task) -> PassKey | None:
    for kind in PASSES:
        if task.kind == kind and isinstance(task.work, Compute):
            return kind, task.micro_batch  # type: ignore[return-value]
    return None


def _with_calls(
    tasks: Sequence[Task], keys: list[PassKey | None], users: Mapping[int, int]
) -> list[PassKey | None]:
    """Give calls of layers the pass of their kernels, which they follow or are waited for by."""

    def is_call(index: int) -> bool:
        return isinstance(tasks[index].work, Collective) and bool(tasks[index].layers)

    def alike(index: int, other: int) -> bool:
        return (tasks[index].layers, tasks[index].micro_batch) == (
            tasks[other].layers,
            tasks[other].micro_batch,
        )

    calls = [index for index in range(len(tasks)) if is_call(index)]
    for index in calls:
        sources = [keys[source] for source in tasks[index].after if alike(index, source)]
        keys[index] = next((key for key in sources if key is not None), None)
    for index in reversed(calls):
        if keys[index] is None and index in users:
            keys[index] = keys[users[index]]
    return keys


def _first_users(tasks: Sequence[Task]) -> dict[int, int]:
    """For each task the first one that waits for it."""
    users: dict[int, int] = {}
    for index, task in enumerate(tasks):
        for source in task.after:
            users.setdefault(source, index)
    return users


def _consumes(plan: StepPlan, task: Task) -> bool:
    """Whether a task after the last pass is what follows the reduction of gradients."""
    if task.kind == "optimizer":
        return True
    waits = any(isinstance(plan.tasks[source].work, Collective) for source in task.after)
    return task.stream == COMPUTE.name and waits


# ---------------------------------------------------------------- merging


def merge_pass(works: Sequence[Work], waited_for: frozenset[int]) -> list[Work]:
    """Merge kernels that run one after the other, without anything else that waits between them.

    The device waits until the host has issued the first kernels of a pass; the host then issues the
    others while these run.
    `waited_for`: tasks that others than the computing stream wait for.
    """
    if len(works) == 1:
        return list(works)
    merged: list[Work] = []
    run: list[Work] = []
    issued: list[Work] = []

    def flush() -> None:
        if run:
            merged.extend([*issued[:1], _joined(run, issued), *_rest(issued)])
        else:
            merged.extend(issued)
        run.clear()
        issued.clear()

    for work in works:
        task = work.task
        mine = {member for each in (*run, *issued) for member in each.members}
        plain = task.acquires is None and task.releases is None and isinstance(task.work, Compute)
        if task.stream == HOST.name and plain and not set(task.after) - mine:
            issued.append(work)
            continue
        if not plain or task.stream != COMPUTE.name or (run and set(task.after) - mine):
            flush()
            if not plain or task.stream != COMPUTE.name:
                merged.append(work)
                continue
        run.append(work)
        if not waited_for.isdisjoint(work.members):
            flush()
    flush()
    return merged


EXPERT = "expert"
"""Stream of what experts exchange beside the kernels of another pass."""
EXPERT_CALLS: tuple[CommunicatorRole, ...] = ("expert", "expert_rail", "expert_node")
"""Roles of communicators of these calls (`perfmodel.workload.shards.calls`)."""


def part_calls(
    works: Sequence[Work], expert_calls: frozenset[str]
) -> tuple[list[Work], list[Work]]:
    """Take what experts exchange out of a pass, to run beside the kernels of another one.

    Calls and kernels of a pass are many in a row, of one block after the other, between which those
    of the other pass stand (DeepSeek-V3 report, arXiv:2412.19437, 3.2.1: all-to-alls of one are
    hidden by the other). Kernels then wait for no call as long as both passes last.

    `expert_calls`: communicators of what experts exchange.
    """
    calls = [
        work
        for work in works
        if isinstance(work.task.work, Collective) and work.task.work.communicator in expert_calls
    ]
    moving = {member for work in calls for member in work.members}
    on_host = {m for work in works if work.task.stream == HOST.name for m in work.members}
    mine = {member for work in works for member in work.members} - on_host - moving
    moved = [
        replace(
            work,
            task=replace(
                work.task,
                stream=EXPERT if work.task.stream == COMPUTE.name else work.task.stream,
                after=tuple(each for each in work.task.after if each not in mine | on_host),
            ),
        )
        for work in calls
    ]
    others = [
        replace(
            work,
            task=replace(
                work.task, after=tuple(each for each in work.task.after if each not in moving)
            ),
        )
        for work in works
        if moving.isdisjoint(work.members)
    ]
    return moved, others


def drop_host_ahead(works: Sequence[Work]) -> list[Work]:
    """Leave out what the host issues for a pass that takes the device longer than it.

    Once ahead it stays so, and waits for nothing: its tasks would change no time.
    """
    issues = [work for work in works if work.task.stream == HOST.name]
    issued_s = sum(_seconds(work.task) for work in issues)
    device_s = sum(_seconds(w.task) for w in works if w.task.kind in PASSES)
    others = any(w.task.kind not in PASSES and w.task.stream != HOST.name for w in works)
    if others or issued_s > device_s or any(w.task.kind != "issue" for w in issues):
        return list(works)
    dropped = {member for work in issues for member in work.members}
    return [
        replace(
            work,
            task=replace(
                work.task,
                after=tuple(source for source in work.task.after if source not in dropped),
            ),
        )
        for work in works
        if work.task.stream != HOST.name
    ]


def _joined(run: Sequence[Work], issued: Sequence[Work]) -> Work:
    """One task for several; it waits for the first issue, and for what the first one waits for."""
    if len(run) == 1:
        return run[0]
    tasks = [work.task for work in run]
    first = next((task for task in tasks if task.kind in PASSES), tasks[0])
    later = {member for work in issued[1:] for member in work.members}
    mine = {member for work in run for member in work.members}
    after = dict.fromkeys(a for task in tasks for a in task.after if a not in mine | later)
    joined = replace(
        first,
        name=_span([task.name for task in tasks if task.kind == first.kind]),
        work=Compute(sum(_seconds(task) for task in tasks)),
        after=tuple(after),
        after_previous=tuple(dict.fromkeys(a for t in tasks for a in t.after_previous)),
        core_s=sum(task.core_s for task in tasks),
        layers=tuple(layer for task in tasks for layer in task.layers),
    )
    return Work(joined, tuple(member for work in run for member in work.members))


def _span(names: Sequence[str]) -> str:
    """Names of the first and the last layer of several tasks: "forward a .. b"."""
    last = names[-1].rpartition(" .. ")[2].rpartition(" ")[2]
    first = names[0].partition(" .. ")[0]
    return first if first.endswith(f" {last}") else f"{first} .. {last}"


def _rest(issued: Sequence[Work]) -> list[Work]:
    """What the host issues while the first kernels run, as one task."""
    if len(issued) < 2:
        return []
    tasks = [work.task for work in issued[1:]]
    work = Compute(sum(_seconds(task) for task in tasks))
    joined = replace(tasks[0], name=f"{tasks[0].name} ..", work=work, after=(), issues="")
    return [Work(joined, tuple(member for each in issued[1:] for member in each.members))]


def _seconds(task: Task) -> float:
    assert isinstance(task.work, Compute)
    return task.work.duration_s


def _waited_for(plan: StepPlan) -> frozenset[int]:
    """Tasks that another stream than the computing one waits for."""
    return frozenset(
        source for task in plan.tasks if task.stream != COMPUTE.name for source in task.after
    )
