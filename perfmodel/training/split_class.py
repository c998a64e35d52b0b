"""A few odd ranks: a plan's class of like ranks cut into several.

It knows nothing of strategies: every part gets its own copy of its class's tasks, collectives keep
their keys, and what waited for the class waits for all of its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.errors import ScheduleError
from perfmodel.training.plan import Compute, RankClass, StepPlan, Task


@dataclass(frozen=True, slots=True)
class ClassPart:
    """Some ranks of a class.

    Parameters
    ----------
    name : str
        Of the new class.
    ranks : range or tuple of int
    scale : float
        How many times longer their work on the device takes; the host's stays.
    like : StepPlan, optional
        Take the work from this plan, which has the same tasks with other durations (another GPU).
    """

    name: str
    ranks: range | tuple[int, ...]
    scale: float = 1.0
    like: StepPlan | None = None


def split(plan: StepPlan, name: str, parts: Sequence[ClassPart]) -> StepPlan:
    """Cut a class into parts; ranks that no part names stay in the class.

    Parameters
    ----------
    plan : StepPlan
    name : str
        The class.
    parts : sequence of ClassPart
        With ranks of that class, each in one part at most.

    Raises
    ------
    ScheduleError
        An unknown class, ranks that it does not have, or a plan that is not alike.
    """
    whole = _class_of(plan, name)
    rest = _rest(whole, parts)
    for part in parts:
        _check_alike(plan, part)
    all_parts = [*([ClassPart(name, rest)] if len(rest) else []), *parts]
    on_host = {stream.name for stream in plan.streams if stream.kind == "host"}
    copies: list[dict[str, int]] = []  # of each task, where its copy for each part is
    tasks: list[Task] = []
    for index, task in enumerate(plan.tasks):
        if task.rank_class != name:
            copies.append({task.rank_class: len(tasks)})
            tasks.append(task)
            continue
        copies.append({})
        for part in all_parts:
            copies[-1][part.name] = len(tasks)
            tasks.append(_of_part(task, index, part, task.stream in on_host))
    return replace(
        plan,
        classes=tuple(
            new
            for each in plan.classes
            for new in (
                [RankClass(part.name, part.ranks) for part in all_parts]
                if each.name == name
                else [each]
            )
        ),
        tasks=tuple(
            replace(
                task,
                after=_copied(copies, task.after, task.rank_class),
                after_previous=_copied(copies, task.after_previous, task.rank_class),
            )
            for task in tasks
        ),
    )


def one_class_per_rank(plan: StepPlan) -> StepPlan:
    """Cut every class into its single ranks, named "rank 0", "rank 1" and so on."""
    for each in plan.classes:
        if len(each.ranks) > 1:
            plan = split(plan, each.name, [ClassPart(f"rank {r}", (r,)) for r in each.ranks])
    return plan


def _class_of(plan: StepPlan, name: str) -> RankClass:
    for each in plan.classes:
        if each.name == name:
            return each
    known = ", ".join(repr(each.name) for each in plan.classes)
    raise ScheduleError(f"plan {plan.name!r} has no class {name!r}; its classes: {known}")


def _rest(whole: RankClass, parts: Sequence[ClassPart]) -> range | tuple[int, ...]:
    """Ranks of a class that no part names."""
    empty = np.array([], dtype=np.int64)
    named = np.concatenate([empty, *(np.asarray(part.ranks, dtype=np.int64) for part in parts)])
    everyone = np.asarray(whole.ranks, dtype=np.int64)
    strange = np.setdiff1d(named, everyone)
    if len(strange) or len(np.unique(named)) != len(named):
        found = f"ranks {strange[:8].tolist()} not of it" if len(strange) else "a rank twice"
        raise ScheduleError(f"parts of class {whole.name!r} name {found}")
    if not len(named):
        return whole.ranks
    return tuple(everyone[~np.isin(everyone, named)].tolist())


def _check_alike(plan: StepPlan, part: ClassPart) -> None:
    if part.like is None:
        return
    mine, other = (
        [(task.name, task.rank_class, task.stream, task.after) for task in each.tasks]
        for each in (plan, part.like)
    )
    if mine != other:
        raise ScheduleError(f"{part.like.name!r} has other tasks than {plan.name!r}")


def _of_part(task: Task, index: int, part: ClassPart, on_host: bool) -> Task:
    """Copy a task for a part; its `after` still points at the plan before the cut."""
    source = task if part.like is None else part.like.tasks[index]
    work = task.work
    if isinstance(source.work, Compute):
        work = Compute(source.work.duration_s * (1.0 if on_host else part.scale))
    return replace(task, rank_class=part.name, work=work)


def _copied(copies: Sequence[dict[str, int]], after: Sequence[int], owner: str) -> tuple[int, ...]:
    """What a copy waits for: its own part's copies, or all copies of another class's task."""
    found: list[int] = []
    for index in after:
        mine = copies[index].get(owner)
        found += list(copies[index].values()) if mine is None else [mine]
    return tuple(found)
