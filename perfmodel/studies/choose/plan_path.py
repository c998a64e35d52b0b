"""Least time of a step by the longest path through its plan.

A stream does its tasks one after the other, so that its first task comes again no sooner than all
that leads from the one to the other takes: tasks that wait for each other in a step, collectives
that all their classes have to reach, and what the next step waits for in the step before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise
from math import inf

from perfmodel.simulate.engine.task_graph import participants_of, task_graph
from perfmodel.training.plan.step_plan import Collective, StepPlan

Waits = list[list[int]]
"""By piece of work: pieces that it waits for."""


def longest_path_s(plan: StepPlan, least_s: Sequence[float]) -> float:
    """Return the least time of a settled step; seconds.

    `least_s`: of each task, once it has begun.
    """
    queues, places = task_graph(plan).queues, _pieces(plan)
    waits, waits_before = [list[int]() for _ in plan.tasks], [list[int]() for _ in plan.tasks]
    works_s = [0.0] * len(plan.tasks)
    for at, task, work_s in zip(places, plan.tasks, least_s, strict=True):
        works_s[at] = max(works_s[at], work_s)
        waits[at] += [places[each] for each in task.after]
        waits_before[at] += [places[each] for each in task.after_previous]
    for _, stream, queue in queues:
        if stream.workers == 1:
            waits_before[places[queue[0]]].append(places[queue[-1]])
            for before, each in pairwise(queue):
                waits[places[each]].append(places[before])
    order = list(_in_order(waits))
    firsts = [places[queue[0]] for _, stream, queue in queues if stream.kind == "compute"]
    return max(
        (_cycle_s(first, order, works_s, waits, waits_before) for first in firsts), default=0
    )


def _pieces(plan: StepPlan) -> list[int]:
    """Return the piece of work that each task is: classes that meet do a collective as one."""
    participants, first = participants_of(plan), dict[Hashable, int]()
    return [
        first.setdefault((task.work.key, participants[task.work.communicator][task.rank_class]), at)
        if isinstance(task.work, Collective)
        else at
        for at, task in enumerate(plan.tasks)
    ]


def _in_order(waits: Waits) -> Iterator[int]:
    """Yield all pieces of work, each after those that it waits for."""
    users: Waits = [[] for _ in waits]
    for at, sources in enumerate(waits):
        for source in sources:
            users[source].append(at)
    left = [len(sources) for sources in waits]
    ready = [at for at, count in enumerate(left) if not count]
    for at in ready:
        yield at
        for user in users[at]:
            left[user] -= 1
            if not left[user]:
                ready.append(user)


def _cycle_s(
    first: int, order: list[int], works_s: list[float], waits: Waits, waits_before: Waits
) -> float:
    """Return the time from the start of a piece of work to that in the next step; seconds."""
    ends_s, later_s = [-inf] * len(waits), [-inf] * len(waits)
    ends_s[first] = works_s[first]
    for at in order:
        if waits[at] and at != first:
            ends_s[at] = works_s[at] + max([ends_s[each] for each in waits[at]])
    for at in order:
        starts_s = [later_s[each] for each in waits[at]]
        start_s = max([*starts_s, *(ends_s[each] for each in waits_before[at])], default=-inf)
        if at == first:
            return start_s
        later_s[at] = start_s + works_s[at]
    return 0.0
