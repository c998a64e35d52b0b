"""Least time of a step by the longest path through its plan.

A stream does its tasks one after the other, so that its first task comes again no sooner than all
that leads from the one to the other takes: tasks that wait for each other in a step, collectives
that all their classes have to reach, and what the next step waits for in the step before.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise
from math import inf

from perfmodel.simulate.engine.task_graph import participants_of, task_graph
from perfmodel.training.plan.step_plan import Collective, StepPlan

_Waits = dict[int, list[int]]
"""By piece of work: those that it waits for, in its step or in the step before."""


def longest_path_s(plan: StepPlan, least_s: Sequence[float]) -> float:
    """Return the least time of a settled step; seconds.

    `least_s`: of each task, once it has begun.
    """
    queues, places = task_graph(plan).queues, _pieces(plan)
    works_s, waits, waits_before = dict[int, float](), _Waits(), _Waits()
    for at, task, work_s in zip(places, plan.tasks, least_s, strict=True):
        works_s[at] = max(works_s.get(at, 0.0), work_s)
        waits.setdefault(at, []).extend(places[each] for each in task.after)
        waits_before.setdefault(at, []).extend(places[each] for each in task.after_previous)
    for queue in (tasks for _, stream, tasks in queues if stream.workers == 1):
        waits_before[places[queue[0]]].append(places[queue[-1]])
        for before, each in pairwise(queue):
            waits[places[each]].append(places[before])
    meet = len(works_s) < len(places)  # else tasks wait for earlier ones alone
    order = list(TopologicalSorter(waits).static_order()) if meet else places
    firsts = (places[tasks[0]] for _, stream, tasks in queues if stream.kind == "compute")
    return max(
        (_cycle_s(first, order, works_s, waits, waits_before) for first in firsts), default=0.0
    )


def _pieces(plan: StepPlan) -> list[int]:
    """Return the piece of work that each task is: classes that meet do a collective as one."""
    participants, first = participants_of(plan), dict[Hashable, int]()
    return [
        first.setdefault(
            (task.work.key, participants[task.work.communicator][task.rank_class].classes[0]), at
        )
        if isinstance(task.work, Collective)
        else at
        for at, task in enumerate(plan.tasks)
    ]


def _cycle_s(
    first: int, order: list[int], works_s: dict[int, float], waits: _Waits, waits_before: _Waits
) -> float:
    """Return the time from the start of a piece of work to that in the next step; seconds."""
    ends_s, before_s = dict[int, float](), dict[int, float]()
    for is_next in (False, True):
        for at in order:
            ready_s = [ends_s[each] for each in waits[at]]
            ready_s += [before_s.get(each, -inf) for each in waits_before[at]]
            if at == first and is_next:
                return max(ready_s, default=-inf)
            ends_s[at] = works_s[at] + (0.0 if at == first else max(ready_s, default=-inf))
        ends_s, before_s = {}, ends_s
    return 0.0
