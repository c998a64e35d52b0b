"""A run timed again with other durations, many at once: who waits for whom stays as it was.

Every task starts when the last of what it waits for has ended, so that a step is a longest path
through its tasks. Where each collective has its links for itself this is what a simulation gives. A
collective that met others takes as many times longer than alone as it did in the run, and those
that would meet with the other durations only are not slowed: `Retimed.overlaps` says whether.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.memo import grouped
from perfmodel.simulate.engine.outcome import Run, TaskExecution
from perfmodel.simulate.engine.task_graph import participants_of
from perfmodel.training.plan.step_plan import Collective, Compute, StepPlan, Task


@dataclass(frozen=True, slots=True, eq=False)
class Durations:
    """Durations of the tasks of a plan.

    `work_s`: of work without slowdown, 0 of collectives; seconds, shape (tasks,).
    `factors`: on the time that each collective took in the run, 1 for work; shape (tasks,).
    `slowdown`: of compute whose class communicates; 1 or more.
    """

    work_s: FloatArray
    factors: FloatArray
    slowdown: float


def works_s(plan: StepPlan) -> FloatArray:
    """Return the duration of each piece of work of a plan, 0 for collectives; seconds."""
    works = (task.work for task in plan.tasks)
    return np.array([work.duration_s if isinstance(work, Compute) else 0.0 for work in works])


def can_be_retimed(plan: StepPlan) -> bool:
    """Whether tasks of a plan wait for nothing but other tasks and their turn."""
    one_by_one = all(stream.workers == 1 for stream in plan.streams)
    return one_by_one and not any(task.acquires or task.core_s for task in plan.tasks)


Call = tuple[str, str, int, str]
"""Which collective it is, whenever it runs: communicator, operation, bytes, first class."""


@dataclass(frozen=True, slots=True)
class Retimed:
    """A run with other durations.

    `step_ends_s`: when its steps end; seconds, shape (steps, changes).
    """

    step_ends_s: FloatArray
    _calls: Sequence[tuple[Call, FloatArray, FloatArray]]

    def overlaps(self, change: int) -> frozenset[frozenset[Call]]:
        """Return the pairs of collectives that are in progress at the same time.

        `change`: number of the durations.
        """
        pairs, active = set[frozenset[Call]](), list[tuple[float, Call]]()
        intervals = ((float(a[change]), float(b[change]), call) for call, a, b in self._calls)
        for start_s, end_s, call in sorted(intervals):
            active = [each for each in active if each[0] > start_s]
            pairs.update(frozenset((call, other)) for _, other in active)
            active.append((end_s, call))
        return frozenset(pairs)


def retime(plan: StepPlan, run: Run, changes: Sequence[Durations]) -> Retimed:
    """Return what a run takes with other durations.

    Parameters
    ----------
    plan : StepPlan
        Of the run; see `can_be_retimed`.
    run : Run
        Without jitter, on a machine that did not change, with no other traffic.
    changes : sequence of Durations
        In place of the run's own.
    """
    work_s = np.array([each.work_s for each in changes]).T.copy()
    factors = np.array([each.factors for each in changes]).T.copy()
    slowdowns = np.array([each.slowdown for each in changes])
    on_host = {stream.name for stream in plan.streams if stream.kind == "host"}
    slowed = {stream.name for stream in plan.streams if stream.kind == "compute"}
    overlaps = _Overlaps(slowdowns) if (slowdowns > 1.0).any() else None
    none_s = np.zeros(len(changes))
    ends_s = [none_s] * (len(plan.tasks) * len(run.step_ends_s))
    step_ends_s = np.zeros((len(run.step_ends_s), len(changes)))
    calls = list[tuple[Call, FloatArray, FloatArray]]()
    for node in _nodes(plan, run):
        first, *others = node.waits or (-1,)
        start_s = ends_s[first] if node.waits else none_s
        for other in others:
            start_s = np.maximum(start_s, ends_s[other])
        task, began_s, ended_s, stretch = node.task, *node.execution[2:4], node.execution[5]
        if isinstance(work := task.work, Collective):
            end_s = start_s + (ended_s - began_s) * factors[node.index]
            call = (work.communicator, work.op, work.nbytes, node.classes[0])
            calls.append((call, start_s, end_s))
            if overlaps is not None:
                overlaps.add(node.classes, _Interval(began_s, ended_s, start_s, end_s))
        else:
            end_s = start_s + work_s[node.index] * stretch
            if overlaps is not None and task.stream in slowed:
                end_s = overlaps.slow(task.rank_class, (began_s, ended_s), start_s, end_s)
        for place in node.places:
            ends_s[place] = end_s
        if task.stream not in on_host:
            np.maximum(step_ends_s[node.step], end_s, out=step_ends_s[node.step])
    return Retimed(step_ends_s, calls)


# ---------------------------------------------------------------- who waits for whom


class _Node(NamedTuple):
    """A piece of work, or a collective with the tasks of all classes that take part.

    `places`: of its tasks among those of all steps; `waits`: of those that it waits for.
    `index`: of its first task in the plan.
    """

    task: Task
    step: int
    index: int
    execution: TaskExecution
    classes: tuple[str, ...]
    places: tuple[int, ...]
    waits: tuple[int, ...]


def _nodes(plan: StepPlan, run: Run) -> Iterator[_Node]:
    """Yield what ran, work by its end and collectives by their start: causes before effects.

    When work is timed, all collectives that may have slowed it down have been.
    """
    waits, together, tasks = _waits(plan), _members(plan), len(plan.tasks)
    done = set[int]()
    for index, execution in sorted(_indexed(plan, run), key=lambda each: _moment(each[1])):
        task, step = execution[:2]
        first = step * tasks
        if first + index in done:
            continue
        members = together.get(index, (index,))
        places = tuple(first + member for member in members)
        own = [waits[member] for member in members]
        needs = dict.fromkeys(
            chain(
                (first + at for same, _ in own for at in same),
                (first - tasks + at for _, before in own for at in before if step),
            )
        )
        classes = tuple(plan.tasks[member].rank_class for member in members)
        done.update(places)
        yield _Node(task, step, index, execution, classes, places, tuple(needs))


def _moment(execution: TaskExecution) -> float:
    task, _, began_s, ended_s, *_ = execution
    return began_s if isinstance(task.work, Collective) else ended_s


def _indexed(plan: StepPlan, run: Run) -> Iterator[tuple[int, TaskExecution]]:
    """Yield what ran with the index of its task: tasks of a stream end in their order."""
    queues = grouped(((task.rank_class, task.stream), at) for at, task in enumerate(plan.tasks))
    turns = dict.fromkeys(queues, 0)
    for execution in run.executions:
        stream = execution[0].rank_class, execution[0].stream
        queue, turn = queues[stream], turns[stream]
        turns[stream] = (turn + 1) % len(queue)
        yield queue[turn], execution


def _waits(plan: StepPlan) -> list[tuple[list[int], list[int]]]:
    """Return what each task waits for, in its own step and in the one before.

    Of its own stream that is the task ahead of it, which has waited for those before.
    """
    newest: dict[tuple[str, str], int] = {}
    waits = list[tuple[list[int], list[int]]]()
    streams = [(task.rank_class, task.stream) for task in plan.tasks]
    for task, stream in zip(plan.tasks, streams, strict=True):
        same = [at for at in task.after if streams[at] != stream]
        before = [at for at in task.after_previous if streams[at] != stream]
        if stream in newest:
            same.append(newest[stream])
        newest[stream] = len(waits)
        waits.append((same, before))
    for at, stream in enumerate(streams):  # the first of a step waits for the last before
        if stream in newest and not any(streams[each] == stream for each in waits[at][0]):
            waits[at][1].append(newest[stream])
    return waits


def _members(plan: StepPlan) -> dict[int, tuple[int, ...]]:
    """Return the tasks that are the same collective, by each of them."""
    participants = participants_of(plan)
    calls = grouped(
        ((work.key, participants[work.communicator][task.rank_class].classes[0]), at)
        for at, task in enumerate(plan.tasks)
        if isinstance(work := task.work, Collective)
    )
    return {at: tuple(members) for members in calls.values() for at in members}


# ---------------------------------------------------------------- slowdown


class _Interval(NamedTuple):
    """A collective in the run, and with the other durations; the latter have shape (changes,)."""

    began_s: float
    ended_s: float
    start_s: FloatArray
    end_s: FloatArray


@dataclass
class _Overlaps:
    """Collectives that may slow compute of their classes down.

    `slowdowns`: shape (changes,).
    """

    slowdowns: FloatArray

    def __post_init__(self) -> None:
        self._of_class = defaultdict[str, list[_Interval]](list)

    def add(self, classes: Sequence[str], interval: _Interval) -> None:
        """Note a collective of some classes, in the order of their starts in the run."""
        for name in classes:
            self._of_class[name].append(interval)

    def slow(
        self, rank_class: str, ran_s: tuple[float, float], start_s: FloatArray, end_s: FloatArray
    ) -> FloatArray:
        """Delay work by the collectives that are in progress meanwhile.

        `ran_s`: start and end in the run. `end_s`: when it ends without collectives.
        """
        intervals = self._of_class[rank_class]
        intervals[:] = [
            each
            for each in intervals
            if each.ended_s > ran_s[0] or bool((each.end_s > start_s).any())
        ]
        until_s = start_s
        for each in intervals:
            begin_s = np.maximum(each.start_s, until_s)  # of those at once, each its own part
            slow_s = (end_s - begin_s) * (self.slowdowns - 1.0)
            most_s = (each.end_s - begin_s) * (1.0 - 1.0 / self.slowdowns)
            end_s = end_s + np.maximum(0.0, np.minimum(slow_s, most_s))
            until_s = np.maximum(until_s, each.end_s)
        return end_s
