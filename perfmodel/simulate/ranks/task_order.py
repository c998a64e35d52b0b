"""In which order a recurrence can work a plan out: what a collective waits for, then it."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.errors import SimulationError
from perfmodel.training.plan import Collective, StepPlan, Transfer

Node = tuple[int, int]
"""A task of a step: (step, index)."""


def unsuited(plan: StepPlan) -> str | None:
    """Say why a recurrence over rank clocks would not be exact; None if it is.

    It is where at most one collective is under way at a time, and everybody takes part in it.
    """
    used = {task.stream for task in plan.tasks}
    meets = {task.stream for task in plan.tasks if isinstance(task.work, Collective)}
    spoken = {task.work.communicator for task in plan.tasks if isinstance(task.work, Collective)}
    if any(isinstance(task.work, Transfer) for task in plan.tasks):
        return "it sends messages from rank to rank"
    if plan.semaphores:
        return "semaphores bound what is in flight"
    if any(stream.workers > 1 for stream in plan.streams if stream.name in used):
        return "a stream has several workers, so that collectives share links"
    if len(meets) > 1:
        return "collectives run on several streams, so that they share links"
    everyone = {rank for each in plan.classes for rank in each.ranks}
    for each in plan.communicators:
        if each.name in spoken and (len(each.groups) > 1 or set(each.groups[0]) != everyone):
            return f"not all ranks meet in each collective of {each.name!r}"
    return None


def order(plan: StepPlan, steps: int) -> Iterator[tuple[Node, ...]]:
    """Tasks of some steps in an order in which each can be worked out; a collective's together.

    A collective comes as early as it can: right behind what its tasks wait for. So when a piece of
    compute is worked out, every collective that may slow it down has been.

    Raises
    ------
    SimulationError
        Tasks that wait for each other.
    """
    before, keys = _before(plan), _keys(plan)
    done: set[Node] = set()
    for step in range(steps):
        for key, members in keys.items():
            together = tuple((step, index) for index in members)
            needed = _needed(before, together, done)
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


def _before(plan: StepPlan) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """For each task what comes before it in its own step, and in the step before."""
    newest: dict[tuple[str, str], int] = {}
    queue: list[int | None] = []
    for index, task in enumerate(plan.tasks):
        place = (task.rank_class, task.stream)
        queue.append(newest.get(place))
        newest[place] = index
    found = []
    for task, ahead in zip(plan.tasks, queue, strict=True):
        if ahead is None:
            last = newest[task.rank_class, task.stream]
            found.append((task.after, (*task.after_previous, last)))
        else:
            found.append(((*task.after, ahead), task.after_previous))
    return found


def _needed(
    before: list[tuple[tuple[int, ...], tuple[int, ...]]],
    wanted: tuple[Node, ...],
    done: set[Node],
) -> list[Node]:
    """What has to be worked out before some tasks, in the order of steps and of the plan."""
    seen = set(wanted)
    stack = list(wanted)
    while stack:
        step, index = stack.pop()
        same, previous = before[index]
        nodes = [(step, other) for other in same]
        nodes += [(step - 1, other) for other in previous] if step else []
        for node in nodes:
            if node not in seen and node not in done:
                seen.add(node)
                stack.append(node)
    return sorted(seen.difference(wanted))
