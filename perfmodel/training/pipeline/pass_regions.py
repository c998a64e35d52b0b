"""The passes of a plain plan: which of its tasks belong to forward or backward of a micro-batch.

A pipeline runs the same passes in another order. Passes without communication become one task.
Where a schedule asks for it, backward is split into gradients of inputs and of weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from perfmodel.errors import check_schedule, refuse_if
from perfmodel.training.pipeline.pass_actions import SECTION
from perfmodel.training.plan.builder import COMPUTE, HOST
from perfmodel.training.plan.step_plan import (
    PASSES,
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
    refuse_if(
        times.weight_gradient_s is None,
        field,
        f"one that splits backward, with times from {times.source!r}",
        "one that does not, where times do not tell gradients of weights apart",
    )
    refuse_if(
        any(
            isinstance(work.task.work, Collective)
            and work.task.work.op == "all_gather"
            and not work.task.layers
            for (kind, _), works in regions.passes.items()
            for work in works
            if kind == "backward"
        ),
        field,
        f"one that splits backward, beside {plan.name!r}",
        "one that does not, where backward gathers parameters",
    )


def split_backward(works: Sequence[Work], times: LayerTimes) -> tuple[list[Work], list[Work]]:
    """Return gradients of inputs, with the collectives that layers call, and those of weights.

    Adding gradients up, copying them to buckets and reducing these follows the weights'.
    """
    inputs: list[Work] = []
    weights: list[Work] = []
    issues = members_of(work for work in works if work.task.stream == HOST.name)
    for work in works:
        task = work.task
        if task.kind == "backward" and isinstance(task.work, Compute):
            weight_s = _weight_seconds(task, task.work.duration_s, times)
            inputs.append(
                work.changed(
                    name=f"inputs of {task.name}", work=Compute(task.work.duration_s - weight_s)
                )
            )
            part = work.changed(
                name=f"weights of {task.name}",
                role="weight_gradient",
                work=Compute(weight_s),
                after=tuple(source for source in task.after if source in issues),
                core_s=0.0,
            )
            weights.append(part)
        elif task.stream == HOST.name:
            weight_s = _weight_issue_s(work, works, times)
            inputs.append(work.changed(work=Compute(seconds_of(task) - weight_s)))
            weights.append(
                work.changed(
                    name=f"{task.name}, weights", work=Compute(weight_s), after=(), issues=""
                )
            )
        else:
            (inputs if task.layers else weights).append(work)
    return inputs, weights


def _weight_seconds(task: Task, duration_s: float, times: LayerTimes) -> float:
    """Return what of a task's time belongs to gradients of weights; seconds.

    That is the time of its layers for them, and of all that the task does beside their backward.
    """
    assert times.weight_gradient_s is not None
    layers = list(task.layers)
    other_s = max(0.0, duration_s - float(times.backward_s[layers].sum()))
    return min(duration_s, float(times.weight_gradient_s[layers].sum()) + other_s)


def _weight_issue_s(work: Work, works: Sequence[Work], times: LayerTimes) -> float:
    """Time in which the host issues kernels of weights' gradients, one a layer, with them."""
    assert times.weight_gradient_s is not None
    users = [each.task for each in works if not set(work.members).isdisjoint(each.task.after)]
    layers: Any = [at for task in users if task.kind == "backward" for at in task.layers]
    if not users:  # what the host issues while the first kernels run
        layers = slice(None)
    kernels = int((times.weight_gradient_s[layers] > 0).sum())
    total = int(times.backward_kernels[layers].sum())
    return seconds_of(work.task) * min(kernels, total) / total if total else 0.0


PassKind = Literal["forward", "backward"]
PassKey = tuple[PassKind, int]


@dataclass(frozen=True, slots=True)
class Work:
    """A task of a plan, or several merged; `after` are indices of the plain plan.

    `members`: the tasks of the plain plan that it stands for.
    `ends_pass`: whether what the pass makes waits for it although no task of the plan does.
    """

    task: Task
    members: tuple[int, ...]
    ends_pass: bool = False

    def changed(self, **fields: Any) -> Work:
        """Return the work with other fields of its task."""
        return replace(self, task=replace(self.task, **fields))

    def without(self, sources: AbstractSet[int]) -> Work:
        """Return the work that waits for some tasks of the plain plan no more."""
        if sources.isdisjoint(self.task.after):
            return self
        return self.changed(after=tuple(each for each in self.task.after if each not in sources))


def members_of(works: Iterable[Work]) -> set[int]:
    """Return the tasks of the plain plan that some works stand for."""
    return {member for work in works for member in work.members}


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
    names = ", ".join(repr(each.name) for each in plan.classes)
    several = f"plan {plan.name!r} has classes {names}; a pipeline needs one"
    check_schedule((len(plan.classes) != 1, several))
    # for each task the first one that waits for it
    waits = [(source, index) for index, task in enumerate(plan.tasks) for source in task.after]
    users = dict(reversed(waits))
    passes: list[Any] = [
        (task.kind, task.micro_batch)
        if task.kind in PASSES and isinstance(task.work, Compute)
        else None
        for task in plan.tasks
    ]
    keys = _with_calls(plan.tasks, passes, users)
    places = [index for index, key in enumerate(keys) if key is not None]
    check_schedule((not places, f"plan {plan.name!r} has neither forward nor backward"))
    regions = Regions(
        passes={key: [] for key in keys if key is not None},
        waited_for=frozenset(
            source for task in plan.tasks if task.stream != COMPUTE.name for source in task.after
        ),
        expert_calls=frozenset(
            each.name for each in plan.communicators if each.role in EXPERT_CALLS
        ),
    )
    last, newest, ended = places[-1], None, False
    owners: list[list[Work]] = []
    for index, task in enumerate(plan.tasks):
        newest = keys[index] or newest
        ended = ended or (index > last and (not overlap_reduction or _consumes(plan, task)))
        outside = regions.begin if newest is None else regions.end
        owners.append(outside if newest is None or ended else regions.passes[newest])
    for index in reversed(range(len(plan.tasks))):  # the host issues what follows it
        if plan.tasks[index].stream == HOST.name and index in users:
            owners[index] = owners[users[index]]
    for index, task in enumerate(plan.tasks):
        owners[index].append(Work(task, (index,)))
    return regions


def _with_calls(
    tasks: Sequence[Task], keys: list[PassKey | None], users: Mapping[int, int]
) -> list[PassKey | None]:
    """Give calls of layers the pass of their kernels, which they follow or are waited for by."""
    calls = [at for at, task in enumerate(tasks) if isinstance(task.work, Collective)]
    calls = [at for at in calls if tasks[at].layers]
    for index in calls:
        own = tasks[index].layers, tasks[index].micro_batch
        alike = (
            at for at in tasks[index].after if (tasks[at].layers, tasks[at].micro_batch) == own
        )
        keys[index] = next((keys[source] for source in alike if keys[source] is not None), None)
    for index in reversed(calls):
        if keys[index] is None and index in users:
            keys[index] = keys[users[index]]
    return keys


def _consumes(plan: StepPlan, task: Task) -> bool:
    """Whether a task after the last pass is what follows the reduction of gradients."""
    waits = any(isinstance(plan.tasks[source].work, Collective) for source in task.after)
    return task.kind == "optimizer" or (task.stream == COMPUTE.name and waits)


# ---------------------------------------------------------------- alike micro-batches

SHOWN = 3
"""Micro-batches of a plan that shows more: the first, the last, and one for all between."""


def can_show_more(plan: StepPlan) -> bool:
    """Whether the passes between the first and the last micro-batch's are one again and again.

    So they are where the one in the middle reduces nothing, waits for no other pass and for no
    step before, and nothing else waits for it.

    `plan`: of `SHOWN` micro-batches.
    """
    regions = plan_regions(plan)
    begun, middle = members_of(regions.begin), set[int]()
    for own in (members_of(regions.passes.get((kind, 1), ())) for kind in get_args(PassKind)):
        tasks = [plan.tasks[at] for at in own]
        waits = {source for task in tasks for source in task.after}
        marked = any(task.after_previous or task.bucket is not None for task in tasks)
        if not own or marked or not waits <= own | begun:
            return False
        middle |= own
    others = (task for at, task in enumerate(plan.tasks) if at not in middle)
    return all(middle.isdisjoint(task.after + task.after_previous) for task in others)


def with_micro_batches(plan: StepPlan, count: int) -> StepPlan:
    """Return a plan of `SHOWN` micro-batches as one of more, whose second shows the others.

    Its last has the number that it has among so many.
    """
    tasks = (
        replace(task, micro_batch=count - 1) if task.micro_batch == SHOWN - 1 else task
        for task in plan.tasks
    )
    return replace(plan, tasks=tuple(tasks), samples=plan.samples // SHOWN * count)


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
        merged.extend([*issued[:1], _joined(run, issued), *_rest(issued)] if run else issued)
        run.clear()
        issued.clear()

    for work in works:
        task = work.task
        plain = task.acquires is None and task.releases is None and isinstance(task.work, Compute)
        waits = not members_of((*run, *issued)).issuperset(task.after)
        if plain and task.stream == HOST.name and not waits:
            issued.append(work)
        elif not plain or task.stream != COMPUTE.name:
            flush()
            merged.append(work)
        else:
            if run and waits:
                flush()
            run.append(work)
            if not waited_for.isdisjoint(work.members):
                flush()
    flush()
    return merged


EXPERT = "expert"
"""Stream of what experts exchange beside the kernels of another pass."""
EXPERT_CALLS: tuple[CommunicatorRole, ...] = ("expert", "expert_rail", "expert_node")
"""Roles of communicators of these calls (`perfmodel.workload.layer_calls`)."""


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
    moving = members_of(calls)
    dropped = members_of(works) - moving
    moved = [
        work.without(dropped).changed(
            stream=EXPERT if work.task.stream == COMPUTE.name else work.task.stream
        )
        for work in calls
    ]
    return moved, [work.without(moving) for work in works if moving.isdisjoint(work.members)]


def _joined(run: Sequence[Work], issued: Sequence[Work]) -> Work:
    """One task for several; it waits for the first issue, and for what the first one waits for."""
    if len(run) == 1:
        return run[0]
    tasks = [work.task for work in run]
    first = next((task for task in tasks if task.kind in PASSES), tasks[0])
    known = members_of((*run, *issued[1:]))
    after = dict.fromkeys(each for task in tasks for each in task.after if each not in known)
    joined = replace(
        first,
        name=_span([task.name for task in tasks if task.kind == first.kind]),
        work=Compute(sum(map(seconds_of, tasks))),
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
    first, work = issued[1].task, Compute(sum(seconds_of(each.task) for each in issued[1:]))
    joined = replace(first, name=f"{first.name} ..", work=work, after=(), issues="")
    members = tuple(member for each in issued[1:] for member in each.members)
    return [Work(joined, members, ends_pass=True)]


def seconds_of(task: Task) -> float:
    """Duration of a task that computes or issues; seconds."""
    assert isinstance(task.work, Compute)
    return task.work.duration_s
