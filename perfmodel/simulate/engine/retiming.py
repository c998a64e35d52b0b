"""A run timed again with other durations: who waits for whom stays as it was.

Every task starts when the last of what it waits for has ended, so that a step is a longest path
through its tasks. Where each collective has its links for itself this is what a simulation gives. A
collective that met others takes as many times longer than alone as it did in the run, and those
that would meet with the other durations only are not slowed: `Retimed.overlaps` says whether.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray
from perfmodel.memo import grouped
from perfmodel.simulate.engine.outcome import Run, TaskExecution
from perfmodel.simulate.engine.task_graph import (
    Participants,
    calls_of,
    dependencies,
    participants_of,
)
from perfmodel.simulate.network import CollectiveCall
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
    """Whether tasks of a plan wait for nothing but other tasks and their turn.

    And whether work that communication slows down is done one piece after the other in each class.
    """
    used = {task.stream for task in plan.tasks}
    streams = [stream for stream in plan.streams if stream.name in used]
    in_turn = all(stream.workers == 1 for stream in streams)
    in_turn &= sum(stream.kind == "compute" for stream in streams) < 2
    return in_turn and not any(task.acquires or task.core_s for task in plan.tasks)


def have_same_order(plan: StepPlan, other: StepPlan) -> bool:
    """Whether the tasks of two plans differ in the durations of work only.

    A library that fuses what is ready at its next cycle sends other buckets at other durations.
    """
    return plan.tasks is other.tasks or (
        len(plan.tasks) == len(other.tasks)
        and all(
            one is its
            or (one.after == its.after and (one.work == its.work or _are_works(one, its)))
            for one, its in zip(plan.tasks, other.tasks, strict=True)
        )
    )


def _are_works(*tasks: Task) -> bool:
    return all(isinstance(task.work, Compute) for task in tasks)


@dataclass(frozen=True, slots=True)
class Retimed:
    """A run with other durations.

    `step_ends_s`: when its steps end; seconds, shape (steps, changes).
    `are_in_order`: whether work was slowed by all collectives in progress meanwhile, as far as each
        has its links for itself; shape (changes,).
    """

    step_ends_s: FloatArray
    are_in_order: NDArray[np.bool_]
    _intervals: Sequence[Sequence[tuple[float, float, CollectiveCall]]]

    def overlaps(self, change: int) -> frozenset[frozenset[CollectiveCall]]:
        """Return the pairs of collectives that are in progress at the same time.

        `change`: number of the durations.
        """
        pairs, active = set[frozenset[CollectiveCall]](), list[tuple[float, CollectiveCall]]()
        for start_s, end_s, call in sorted(self._intervals[change], key=itemgetter(0, 1)):
            active = [each for each in active if each[0] > start_s]
            pairs.update(frozenset((call, other)) for _, other in active)
            active.append((end_s, call))
        return frozenset(pairs)


@dataclass(frozen=True)
class RunOrder:
    """What ran, causes before effects, to be timed again.

    `plan`: of the run; see `can_be_retimed`.
    `run`: without jitter, on a machine that did not change, with no other traffic.
    """

    plan: StepPlan
    run: Run

    @cached_property
    def _nodes(self) -> list[_Node]:
        return _nodes(self.plan, self.run)

    @cached_property
    def _waits(self) -> list[tuple[int, ...]]:
        """Numbers of the nodes that each node waits for, but for those that others wait for."""
        number_of = {place: at for at, node in enumerate(self._nodes) for place in node.places}
        waits = list[tuple[int, ...]]()
        for node in self._nodes:
            before = {number_of[place] for place in node.waits}
            waits.append(tuple(before.difference(*[waits[number] for number in before])))
        return waits

    @cached_property
    def _rows(self) -> tuple[NDArray[np.int64], FloatArray, FloatArray]:
        """First task of each node, and how long it took, 0 for work, and what work is scaled by."""
        rows = [
            (n.first, n.ended_s - n.began_s, 0.0) if n.call else (n.first, 0.0, n.stretch)
            for n in self._nodes
        ]
        first, took_s, stretch = np.array(rows, float).reshape(-1, 3).T
        return first.astype(np.int64), took_s, stretch

    def collectives(self) -> list[tuple[int, float]]:
        """Return the first task of each collective that ran, and how long it took; seconds."""
        return [(n.first, n.ended_s - n.began_s) for n in self._nodes if n.call is not None]

    def alone_at_last(self, alone_s: FloatArray) -> FloatArray:
        """Return factors of a first step whose collectives meet none of those of later steps.

        Those in progress when the first of these began take as long as alone, the others what they
        took. `alone_s`: of each task; seconds, shape (tasks,).
        """
        calls = [node for node in self._nodes if node.call is not None]
        from_s = min((node.began_s for node in calls if node.step), default=np.inf)
        factors = np.ones(len(alone_s))
        for node in calls:
            if not node.step and node.ended_s > max(from_s, node.began_s):
                factors[node.first] = alone_s[node.first] / (node.ended_s - node.began_s)
        return factors

    def retime(self, changes: Sequence[Durations], steps: int | None = None) -> Retimed:
        """Return what the run takes with other durations; of its first `steps` only, if given."""
        steps = len(self.run.step_ends_s) if steps is None else steps
        retimed = [self._retime(each, steps) for each in changes]
        steps_s, in_order, intervals = zip(*retimed, strict=True)
        return Retimed(np.array(steps_s).T, np.array(in_order), intervals)

    def _retime(
        self, durations: Durations, steps: int
    ) -> tuple[list[float], bool, list[tuple[float, float, CollectiveCall]]]:
        first, took_s, stretch = self._rows
        own_s = took_s * durations.factors[first] + durations.work_s[first] * stretch
        overlaps, ends_s = _Overlaps(durations.slowdown), list[float]()
        step_ends_s = [0.0] * steps
        intervals = list[tuple[float, float, CollectiveCall]]()
        for node, waits, node_s in zip(self._nodes, self._waits, own_s.tolist(), strict=True):
            if node.step >= steps:
                ends_s.append(0.0)  # for which no earlier step waits
                continue
            if len(waits) == 1:
                start_s = ends_s[waits[0]]
            else:
                start_s = max([ends_s[number] for number in waits], default=0.0)
            end_s = start_s + node_s
            if node.call is not None:
                intervals.append((start_s, end_s, node.call))
                overlaps.add(node, start_s, end_s)
            elif node.kind == "compute":
                end_s = overlaps.slow(node, start_s, end_s)
            ends_s.append(end_s)
            if end_s > step_ends_s[node.step] and node.kind != "host":
                step_ends_s[node.step] = end_s
        return step_ends_s, overlaps.are_in_order, intervals


# ---------------------------------------------------------------- who waits for whom


class _Node(NamedTuple):
    """A piece of work, or a collective with the tasks of all classes that take part.

    `first`: of its tasks, in the plan. `call`: what a collective is; None for work.
    `began_s`, `ended_s`: in the run. `stretch`: on the work.
    `kind`: of its stream. `places`: of its tasks among those of all steps; `waits`: of those that
    it waits for.
    """

    kind: str
    step: int
    first: int
    call: CollectiveCall | None
    began_s: float
    ended_s: float
    stretch: float
    classes: tuple[str, ...]
    places: tuple[int, ...]
    waits: tuple[int, ...]


def _nodes(plan: StepPlan, run: Run) -> list[_Node]:
    """List what ran, causes before effects, and collectives as soon as what they wait for.

    When work is timed, most collectives that may slow it down have been.
    """
    waits, participants, tasks = dependencies(plan), participants_of(plan), len(plan.tasks)
    together, calls = _members(plan, participants), calls_of(plan, participants)
    done, nodes, kinds = set[int](), list[_Node](), plan.stream_kinds
    for index, (task, step, began_s, ended_s, _, stretch) in _indexed(plan, run):
        first = step * tasks
        if first + index in done:
            continue
        members = together.get(index, (index,))
        places = tuple([first + member for member in members])
        needs = [first + at for member in members for at in waits[member][0]]
        if step:
            needs += [first - tasks + at for member in members for at in waits[member][1]]
        classes = tuple([plan.tasks[member].rank_class for member in members])
        done.update(places)
        kind, times_s = kinds[task.stream], (began_s, ended_s, stretch)
        nodes.append(
            _Node(kind, step, index, calls[index], *times_s, classes, places, tuple(needs))
        )
    return _in_order(nodes)


def _in_order(nodes: Sequence[_Node]) -> list[_Node]:
    """Put nodes behind what they wait for: collectives first, then what ended first in the run."""
    node_of = {place: number for number, node in enumerate(nodes) for place in node.places}
    missing, users = [len(node.waits) for node in nodes], defaultdict[int, list[int]](list)
    keys = [
        (0, node.began_s, at) if node.call is not None else (1, node.ended_s, at)
        for at, node in enumerate(nodes)
    ]
    for number, node in enumerate(nodes):
        for place in node.waits:
            users[node_of[place]].append(number)
    ready = [key for key, waits_for in zip(keys, missing, strict=True) if not waits_for]
    heapify(ready)
    ordered = list[_Node]()
    while ready:
        *_, number = heappop(ready)
        ordered.append(nodes[number])
        for user in users[number]:
            missing[user] -= 1
            if not missing[user]:
                heappush(ready, keys[user])
    return ordered


def _indexed(plan: StepPlan, run: Run) -> Iterator[tuple[int, TaskExecution]]:
    """Yield what ran with the index of its task: tasks of a stream end in their order."""
    queues = grouped(((task.rank_class, task.stream), at) for at, task in enumerate(plan.tasks))
    turns = dict.fromkeys(queues, 0)
    for execution in run.executions:
        stream = execution[0].rank_class, execution[0].stream
        queue, turn = queues[stream], turns[stream]
        turns[stream] = (turn + 1) % len(queue)
        yield queue[turn], execution


def _members(
    plan: StepPlan, participants: Mapping[str, Mapping[str, Participants]]
) -> dict[int, tuple[int, ...]]:
    """Return the tasks that are the same collective, by each of them."""
    same = grouped(
        ((work.key, participants[work.communicator][task.rank_class].classes), at)
        for at, task in enumerate(plan.tasks)
        if isinstance(work := task.work, Collective)
    )
    return {at: tuple(members) for members in same.values() for at in members}


# ---------------------------------------------------------------- slowdown


@dataclass
class _Overlaps:
    """Collectives that may slow compute of their classes down."""

    slowdown: float

    def __post_init__(self) -> None:
        self.are_in_order = True
        self._of_class = defaultdict[str, list[tuple[float, float, float]]](list)
        """When each collective ended in the run, and when it starts and ends now; seconds."""
        self._timed_s = defaultdict[str, float](float)

    def add(self, node: _Node, start_s: float, end_s: float) -> None:
        """Note a collective: in order if it is the last to start, and after work that is timed."""
        for name in node.classes if self.slowdown > 1.0 else ():
            timed_s = self._timed_s[name]
            self.are_in_order &= start_s >= timed_s or end_s <= start_s
            self._timed_s[name] = max(timed_s, start_s)
            self._of_class[name].append((node.ended_s, start_s, end_s))

    def slow(self, node: _Node, start_s: float, end_s: float) -> float:
        """Delay work, which ends at `end_s` by itself, by the collectives in progress meanwhile."""
        (name,), until_s = node.classes, start_s
        intervals = self._of_class[name]
        if intervals:
            intervals[:] = [
                each for each in intervals if each[0] > node.began_s or each[2] > start_s
            ]
        for _, from_s, to_s in intervals:
            if from_s < end_s:  # others begin after the work
                begin_s = max(from_s, until_s)  # each its own part, as in delay_work
                most_s = (to_s - begin_s) * (1.0 - 1.0 / self.slowdown)
                end_s += max(0.0, min((end_s - begin_s) * (self.slowdown - 1.0), most_s))
                until_s = max(until_s, to_s)
        self._timed_s[name] = max(self._timed_s[name], end_s)
        return end_s
