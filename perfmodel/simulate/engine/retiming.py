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
from functools import cache, cached_property
from heapq import heapify, heappop, heappush
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.collectives.timing import compiled_loops
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

LEFT_OUT, OTHER, COMPUTE, COLLECTIVE = range(4)
"""Kinds of nodes: not timed, of other streams, work that collectives may slow down, collectives."""


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
    return np.array([t.work.duration_s if isinstance(t.work, Compute) else 0.0 for t in plan.tasks])


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
    _calls: Sequence[CollectiveCall]
    _times_s: Sequence[tuple[FloatArray, FloatArray]]
    """When each call begins and ends, by change."""

    def overlaps(self, change: int) -> frozenset[frozenset[CollectiveCall]]:
        """Return the pairs of collectives that are in progress at the same time.

        `change`: number of the durations.
        """
        pairs, active = set[frozenset[CollectiveCall]](), list[tuple[float, CollectiveCall]]()
        begins_s, ends_s = (times_s.tolist() for times_s in self._times_s[change])
        rows = zip(begins_s, ends_s, self._calls, strict=True)
        for start_s, end_s, call in sorted(rows, key=itemgetter(0, 1)):
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
    def _nodes(self) -> _Nodes:
        return _columns_of(_nodes(self.plan, self.run))

    def collectives(self) -> tuple[IntArray, FloatArray]:
        """Return the first task of each collective that ran, and how long it took; seconds."""
        own, ran = self._nodes, self._nodes.kinds == COLLECTIVE
        return own.first[ran], own.took_s[ran]

    def alone_at_last(self, alone_s: FloatArray) -> FloatArray:
        """Return factors of a first step whose collectives meet none of those of later steps.

        Those in progress when the first of these began take as long as alone, the others what they
        took. `alone_s`: of each task; seconds, shape (tasks,).
        """
        own, factors = self._nodes, np.ones(len(alone_s))
        began_s, ran = own.columns.began_s, own.kinds == COLLECTIVE
        from_s = began_s[ran & (own.steps > 0)].min(initial=np.inf)
        late = ran & (own.steps == 0) & (own.columns.ended_s > np.maximum(from_s, began_s))
        factors[own.first[late]] = alone_s[own.first[late]] / own.took_s[late]
        return factors

    def retime(self, changes: Sequence[Durations], steps: int | None = None) -> Retimed:
        """Return what the run takes with other durations; of its first `steps` only, if given."""
        own, steps = self._nodes, len(self.run.step_ends_s) if steps is None else steps
        kinds = np.where(own.steps < steps, own.kinds, LEFT_OUT)
        ran, counts = kinds == COLLECTIVE, (kinds != LEFT_OUT) & ~own.on_host
        step_ends_s, in_order = np.zeros((steps, len(changes))), np.zeros(len(changes), np.bool_)
        times_s = list[tuple[FloatArray, FloatArray]]()
        for at, change in enumerate(changes):
            own_s = own.took_s * change.factors[own.first]
            own_s = np.where(own.kinds == COLLECTIVE, own_s, change.work_s[own.first] * own.stretch)
            begins_s, ends_s, in_order[at] = own.columns.times_s(own_s, kinds, change.slowdown)
            np.maximum.at(step_ends_s[:, at], own.steps[counts], ends_s[counts])
            times_s.append((begins_s[ran], ends_s[ran]))
        calls = [call for call, is_timed in zip(own.calls, ran, strict=True) if is_timed and call]
        return Retimed(step_ends_s, in_order, calls, times_s)


# ---------------------------------------------------------------- who waits for whom


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Nodes of a run, causes before effects. Arrays have shape (nodes,).

    `columns`: what they wait for, and when. `calls`: None of work.
    `first`, `steps`, `stretch`: see `_Node`. `kinds`: as numbered above. `on_host`: streams of it.
    `took_s`: in the run.
    """

    columns: _NodeColumns
    calls: Sequence[CollectiveCall | None]
    first: IntArray
    steps: IntArray
    kinds: IntArray
    on_host: NDArray[np.bool_]
    stretch: FloatArray

    @property
    def took_s(self) -> FloatArray:
        return self.columns.ended_s - self.columns.began_s


def _columns_of(nodes: Sequence[_Node]) -> _Nodes:
    """Return nodes in arrays, which wait for all but those that others wait for."""
    number_of = {place: at for at, node in enumerate(nodes) for place in node.places}
    names, waits = dict[str, int](), list[tuple[int, ...]]()
    for node in nodes:
        before = {number_of[place] for place in node.waits}
        waits.append(tuple(before.difference(*[waits[number] for number in before])))
    classes = [[names.setdefault(name, len(names)) for name in node.classes] for node in nodes]
    kinds = [
        COLLECTIVE if node.call else COMPUTE if node.kind == "compute" else OTHER for node in nodes
    ]
    numbers = [(n.began_s, n.ended_s, n.stretch, n.first, n.step, n.kind == "host") for n in nodes]
    began_s, ended_s, stretch, *counts = np.array(numbers, float).reshape(-1, 6).T.copy()
    first, steps, on_host = (column.astype(np.int64) for column in counts)
    return _Nodes(
        _NodeColumns(*_flat(waits), *_flat(classes), began_s, ended_s),
        [node.call for node in nodes],
        first,
        steps,
        np.array(kinds),
        on_host > 0,
        stretch,
    )


def _flat(rows: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    """Return where each of some rows begins, and all of them in a row."""
    pointers = np.cumsum([0, *map(len, rows)])
    return pointers, np.fromiter(chain.from_iterable(rows), np.int64, pointers[-1])


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

    @cache
    def members_of(index: int) -> tuple[tuple[int, ...], tuple[str, ...], list[int]]:
        """Tasks of a node, their classes, and what they wait for, of the step before below 0."""
        members = together.get(index, (index,))
        before = [at - tasks for member in members for at in waits[member][1]]
        needs = [at for member in members for at in waits[member][0]] + before
        return members, tuple([plan.tasks[member].rank_class for member in members]), needs

    for index, (task, step, began_s, ended_s, _, stretch) in _indexed(plan, run):
        first = step * tasks
        if first + index in done:
            continue
        members, classes, needs = members_of(index)
        places = tuple([first + member for member in members])
        waits_for = tuple([first + at for at in needs if first + at >= 0])
        done.update(places)
        kind, times_s = kinds[task.stream], (began_s, ended_s, stretch)
        nodes.append(_Node(kind, step, index, calls[index], *times_s, classes, places, waits_for))
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


# ---------------------------------------------------------------- times of nodes


@dataclass(frozen=True, slots=True)
class _NodeColumns:
    """Nodes, each behind what it waits for.

    A node waits for ``waits[waits_from[n]:waits_from[n + 1]]`` and is of the classes
    ``classes[classes_from[n]:classes_from[n + 1]]``; it was in progress from `began_s` to `ended_s`
    in the run.
    """

    waits_from: IntArray
    waits: IntArray
    classes_from: IntArray
    classes: IntArray
    began_s: FloatArray
    ended_s: FloatArray

    def times_s(
        self, own_s: FloatArray, kinds: IntArray, slowdown: float
    ) -> tuple[FloatArray, FloatArray, bool]:
        """Return when nodes begin and end that take `own_s`, and whether they are in order.

        They are where work was slowed by all collectives in progress meanwhile: each is the last to
        start of its classes, and after work that is timed.
        """
        of_class = np.bincount(self.classes, minlength=1)
        values: list[Any] = [getattr(self, name) for name in self.__slots__]
        values += [own_s, kinds, np.cumsum(of_class) - of_class, np.zeros(len(of_class), np.int64)]
        values += [np.zeros((4, len(self.classes))), np.zeros((2, len(own_s)))]
        loop = compiled_loops.compiled(time_nodes)
        if loop is None:
            loop, values = time_nodes, [each.tolist() for each in values]
        in_order = loop(slowdown, *values)
        begins_s, ends_s = np.asarray(values[-1])
        return begins_s, ends_s, in_order


def time_nodes(  # noqa: C901  (numba caches a function without those that it calls)
    slowdown: float,
    waits_from: Sequence[int],
    waits: Sequence[int],
    classes_from: Sequence[int],
    classes: Sequence[int],
    began_s: Sequence[float],
    ended_s: Sequence[float],
    own_s: Sequence[float],
    kinds: Sequence[int],
    rooms: Sequence[int],
    used: Any,
    room: Any,
    times_s: Any,
) -> bool:
    """Work out in place when nodes begin and end, in `times_s`; see `_NodeColumns.times_s`.

    The collectives that may slow the work of a class down are `used` of it in `room`, from `rooms`
    on: when each ended in the run, and when it begins and ends now. The last row, by class, is the
    time until which work is timed.
    """
    was_s, from_s, to_s, timed_s = room[0], room[1], room[2], room[3]
    in_order, begins_s, ends_s = True, times_s[0], times_s[1]
    for node in range(len(own_s)):
        if kinds[node] == 0:
            continue
        start_s = 0.0
        for at in range(waits_from[node], waits_from[node + 1]):
            start_s = max(start_s, ends_s[waits[at]])
        end_s = start_s + own_s[node]
        if kinds[node] == 3 and slowdown > 1.0:
            for at in range(classes_from[node], classes_from[node + 1]):
                name = classes[at]
                if start_s < timed_s[name] and end_s > start_s:
                    in_order = False
                timed_s[name] = max(timed_s[name], start_s)
                place = rooms[name] + used[name]
                was_s[place], from_s[place], to_s[place] = ended_s[node], start_s, end_s
                used[name] += 1
        elif kinds[node] == 2:
            name = classes[classes_from[node]]
            kept = begin = rooms[name]
            until_s = start_s
            for place in range(begin, begin + used[name]):
                if was_s[place] <= began_s[node] and to_s[place] <= start_s:
                    continue
                was_s[kept], from_s[kept], to_s[kept] = was_s[place], from_s[place], to_s[place]
                if from_s[kept] < end_s:  # others begin after the work
                    since_s = max(from_s[kept], until_s)  # each its own part, as in delay_work
                    most_s = (to_s[kept] - since_s) * (1.0 - 1.0 / slowdown)
                    end_s += max(0.0, min((end_s - since_s) * (slowdown - 1.0), most_s))
                    until_s = max(until_s, to_s[kept])
                kept += 1
            used[name] = kept - begin
            timed_s[name] = max(timed_s[name], end_s)
        begins_s[node], ends_s[node] = start_s, end_s
    return in_order
