"""The order in which a recurrence computes the tasks of a plan: dependencies first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from perfmodel.errors import SimulationError
from perfmodel.training.plan.step_plan import Collective, StepPlan

Node = tuple[int, int]
"""A task of a step: (step, index)."""


def why_unsuited(plan: StepPlan) -> str | None:
    """Say why a recurrence over rank clocks would not be exact; None if it is.

    It is where at most one collective is in progress at a time and all ranks take part in it.
    """
    used = {task.stream for task in plan.tasks}
    collective_streams = {task.stream for task in plan.tasks if isinstance(task.work, Collective)}
    used_communicators = {
        task.work.communicator for task in plan.tasks if isinstance(task.work, Collective)
    }
    all_ranks = {rank for each in plan.classes for rank in each.ranks}
    reasons = (
        (bool(plan.semaphores), "semaphores bound what is in flight"),
        (
            any(stream.workers > 1 for stream in plan.streams if stream.name in used),
            "a stream has several workers, so that collectives share links",
        ),
        (
            len(collective_streams) > 1 and not _take_turns(plan),
            "collectives run on several streams, so that they share links",
        ),
        *(
            (
                len(each.groups) > 1 or set(each.groups[0]) != all_ranks,
                f"not all ranks meet in each collective of {each.name!r}",
            )
            for each in plan.communicators
            if each.name in used_communicators
        ),
    )
    return next((reason for holds, reason in reasons if holds), None)


def _take_turns(plan: StepPlan) -> bool:
    """Whether each collective waits for the one before it, also from one step to the next."""
    for each in plan.classes:
        members = [
            index
            for index, task in enumerate(plan.tasks)
            if task.rank_class == each.name and isinstance(task.work, Collective)
        ]
        for before, index in pairwise(members):
            task = plan.tasks[index]
            if before not in task.after and task.stream != plan.tasks[before].stream:
                return False
        first = plan.tasks[members[0]] if members else None
        if first is not None and not any(
            members[-1] in _ancestors_in_step(plan, index) for index in first.after_previous
        ):
            return False
    return True


def _ancestors_in_step(plan: StepPlan, index: int) -> set[int]:
    """Tasks of the same step that a task waits for, and itself."""
    ancestors = {index}
    pending = [index]
    while pending:
        for other in plan.tasks[pending.pop()].after:
            if other not in ancestors:
                ancestors.add(other)
                pending.append(other)
    return ancestors


def execution_order(plan: StepPlan, steps: int) -> Iterator[tuple[Node, ...]]:
    """Tasks of some steps, each after its dependencies; those of a collective together.

    A collective comes as early as possible, right behind its dependencies: when a piece of compute
    is timed, every collective that may slow it down has been.

    Raises `SimulationError`: tasks that wait for each other.
    """
    dependencies, keys = _dependencies(plan), _keys(plan)
    done: set[Node] = set()
    for step in range(steps):
        for key, members in keys.items():
            together = tuple((step, index) for index in members)
            needed = _ancestors(dependencies, together, done)
            if any(isinstance(plan.tasks[index].work, Collective) for _, index in needed):
                raise SimulationError(
                    f"the plan {plan.name!r} cannot finish; waiting: {key!r} (step {step}) for a "
                    f"collective behind it"
                )
            for node in needed:
                yield (node,)
            done.update(needed, together)
            yield together
    for step in range(steps):
        for index in range(len(plan.tasks)):
            if (step, index) not in done:
                yield ((step, index),)


def _keys(plan: StepPlan) -> dict[str, list[int]]:
    keys: dict[str, list[int]] = {}
    for index, task in enumerate(plan.tasks):
        if isinstance(task.work, Collective):
            keys.setdefault(task.work.key, []).append(index)
    return keys


def _dependencies(plan: StepPlan) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """For each task its predecessors in its own step, and in the step before."""
    newest: dict[tuple[str, str], int] = {}
    queue: list[int | None] = []
    for index, task in enumerate(plan.tasks):
        place = (task.rank_class, task.stream)
        queue.append(newest.get(place))
        newest[place] = index
    dependencies = []
    for task, ahead in zip(plan.tasks, queue, strict=True):
        if ahead is None:
            last = newest[task.rank_class, task.stream]
            dependencies.append((task.after, (*task.after_previous, last)))
        else:
            dependencies.append(((*task.after, ahead), task.after_previous))
    return dependencies


def _ancestors(
    dependencies: list[tuple[tuple[int, ...], tuple[int, ...]]],
    targets: tuple[Node, ...],
    done: set[Node],
) -> list[Node]:
    """Tasks that have to precede some others and are not done, by step and plan order."""
    visited = set(targets)
    stack = list(targets)
    while stack:
        step, index = stack.pop()
        same, previous = dependencies[index]
        nodes = [(step, other) for other in same]
        nodes += [(step - 1, other) for other in previous] if step else []
        for node in nodes:
            if node not in visited and node not in done:
                visited.add(node)
                stack.append(node)
    return sorted(visited.difference(targets))
