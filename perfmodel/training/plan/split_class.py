"""Split a rank class of a plan, so that some of its ranks can differ.

Independent of the strategy: every part gets its own copy of the tasks of its class, collectives
keep their keys, and tasks that waited for the class wait for all of its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from perfmodel.errors import ScheduleError, check_schedule
from perfmodel.training.plan.step_plan import Compute, RankClass, StepPlan, Task


@dataclass(frozen=True, slots=True)
class ClassPart:
    """Some ranks of a class.

    `name`: of the new class.
    `scale`: factor on the time of their work on the device; that on the host stays.
    `like`: plan to take the work from: the same tasks with other durations (another GPU).
    """

    name: str
    ranks: range | tuple[int, ...]
    scale: float = 1.0
    like: StepPlan | None = None


def split(plan: StepPlan, name: str, parts: Sequence[ClassPart]) -> StepPlan:
    """Split a class into parts; ranks that no part names stay in the class.

    `name`: the class.
    `parts`: with ranks of that class, each in one part at most.
    Raises `ScheduleError`: an unknown class, ranks that it does not have, or a plan that is not
        alike.
    """
    whole = next((each for each in plan.classes if each.name == name), None)
    if whole is None:
        names = ", ".join(repr(each.name) for each in plan.classes)
        raise ScheduleError(f"plan {plan.name!r} has no class {name!r}; its classes: {names}")
    rest = _remaining_ranks(whole, parts)
    for part in parts:
        if part.like is not None and _outline(part.like) != _outline(plan):
            raise ScheduleError(f"{part.like.name!r} has other tasks than {plan.name!r}")
    all_parts = [*([ClassPart(name, rest)] if len(rest) else []), *parts]
    on_host = {stream.name for stream in plan.streams if stream.kind == "host"}
    copies: list[dict[str, int]] = []  # of each task, the index of its copy for each part
    tasks: list[Task] = []
    for index, task in enumerate(plan.tasks):
        if task.rank_class != name:
            copies.append({task.rank_class: len(tasks)})
            tasks.append(task)
            continue
        copies.append({part.name: len(tasks) + at for at, part in enumerate(all_parts)})
        tasks += [_copy_task(task, index, part, task.stream in on_host) for part in all_parts]
    own = [RankClass(part.name, part.ranks) for part in all_parts]
    classes = [part for each in plan.classes for part in (own if each.name == name else [each])]
    waiting = (
        task.moved(
            after=_copied_dependencies(copies, task.after, task.rank_class),
            after_previous=_copied_dependencies(copies, task.after_previous, task.rank_class),
        )
        for task in tasks
    )
    return replace(plan, classes=tuple(classes), tasks=tuple(waiting))


def _outline(plan: StepPlan) -> list[tuple[object, ...]]:
    """What plans that differ in durations alone have alike."""
    return [(task.name, task.rank_class, task.stream, task.after) for task in plan.tasks]


def one_class_per_rank(plan: StepPlan) -> StepPlan:
    """Split every class into its single ranks, named "rank 0", "rank 1" and so on."""
    for each in plan.classes:
        if len(each.ranks) > 1:
            plan = split(plan, each.name, [ClassPart(f"rank {r}", (r,)) for r in each.ranks])
    return plan


def _remaining_ranks(whole: RankClass, parts: Sequence[ClassPart]) -> range | tuple[int, ...]:
    """Ranks of a class that no part names."""
    named = np.concatenate(
        [np.array([], dtype=np.int64), *(np.asarray(part.ranks, dtype=np.int64) for part in parts)]
    )
    members = np.asarray(whole.ranks, dtype=np.int64)
    foreign = np.setdiff1d(named, members)
    fault = f"ranks {foreign[:8].tolist()} not of it" if len(foreign) else "a rank twice"
    odd = len(foreign) or len(np.unique(named)) != len(named)
    check_schedule((odd, f"parts of class {whole.name!r} name {fault}"))
    if not len(named):
        return whole.ranks
    return tuple(members[~np.isin(members, named)].tolist())


def _copy_task(task: Task, index: int, part: ClassPart, on_host: bool) -> Task:
    """Copy a task for a part; its `after` still refers to the plan before the split."""
    source = task if part.like is None else part.like.tasks[index]
    work = task.work
    if isinstance(source.work, Compute):
        work = Compute(source.work.duration_s * (1.0 if on_host else part.scale))
    return task.moved(work, rank_class=part.name)


def _copied_dependencies(
    copies: Sequence[dict[str, int]], after: Sequence[int], owner: str
) -> tuple[int, ...]:
    """Dependencies of a copy: copies of its own part, or all copies of another class's task."""
    held = (copies[index] for index in after)
    own = ([each[owner]] if owner in each else each.values() for each in held)
    return tuple(chain.from_iterable(own))
