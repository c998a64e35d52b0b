"""A run timed again with other durations: who waits for whom stays as it was.

Every task starts when the last of what it waits for has ended, so that a step is a longest path
through its tasks. Where each collective has its links for itself this is what a simulation gives. A
collective that met others takes as many times longer than alone as it did in the run, and those
that would meet with the other durations only are not slowed: `Retimed.overlaps` says whether.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush, heappushpop
from itertools import chain, compress
from operator import itemgetter
from typing import Any

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

    `step_ends_s`: when its steps end; seconds, shape (steps,).
    """

    step_ends_s: FloatArray
    _calls: Sequence[CollectiveCall | None]
    _ran: NDArray[np.bool_]
    _begins_s: FloatArray
    _ends_s: FloatArray

    def overlaps(self) -> frozenset[frozenset[CollectiveCall]]:
        """Return the pairs of collectives that are in progress at the same time."""
        pairs, active = set[frozenset[Any]](), list[tuple[float, CollectiveCall | None]]()
        times_s = self._begins_s[self._ran].tolist(), self._ends_s[self._ran].tolist()
        rows = zip(*times_s, compress(self._calls, self._ran), strict=True)
        for start_s, end_s, call in sorted(rows, key=itemgetter(0, 1)):
            active = [each for each in active if each[0] > start_s]
            pairs.update(frozenset((call, other)) for _, other in active)
            active.append((end_s, call))
        return frozenset(pairs)


@dataclass(frozen=True)
class RunOrder:
    """What ran, to be timed again.

    `plan`: of the run; see `can_be_retimed`.
    `run`: without jitter, on a machine that did not change, with no other traffic.
    """

    plan: StepPlan
    run: Run

    @cached_property
    def _nodes(self) -> _Nodes:
        return _nodes_of(self.plan, self.run)

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
        began_s, ran = own.began_s, own.kinds == COLLECTIVE
        from_s = began_s[ran & (own.steps > 0)].min(initial=np.inf)
        late = ran & (own.steps == 0) & (own.ended_s > np.maximum(from_s, began_s))
        factors[own.first[late]] = alone_s[own.first[late]] / own.took_s[late]
        return factors

    def retime(self, change: Durations, steps: int | None = None) -> Retimed:
        """Return what the run takes with other durations; of its first `steps` only, if given."""
        own, steps = self._nodes, len(self.run.step_ends_s) if steps is None else steps
        kinds = np.where(own.steps < steps, own.kinds, LEFT_OUT)
        counts, step_ends_s = (kinds != LEFT_OUT) & ~own.on_host, np.zeros(steps)
        own_s = own.took_s * change.factors[own.first]
        own_s = np.where(own.kinds == COLLECTIVE, own_s, change.work_s[own.first] * own.stretch)
        begins_s, ends_s = own.times_s(own_s, kinds, change.slowdown)
        np.maximum.at(step_ends_s, own.steps[counts], ends_s[counts])
        return Retimed(step_ends_s, own.calls, kinds == COLLECTIVE, begins_s, ends_s)


# ---------------------------------------------------------------- who waits for whom


def _nodes_of(plan: StepPlan, run: Run) -> _Nodes:
    """Return the nodes of a run: those of a step, once for each step."""
    participants, tasks, steps = participants_of(plan), plan.tasks, len(run.step_ends_s)
    together, calls = _members(plan, participants), calls_of(plan, participants)
    nodes = [own for at in range(len(tasks)) if (own := together.get(at, (at,)))[0] == at]
    first = np.array([own[0] for own in nodes], np.int64)
    began_s, ended_s, stretch = _times_of(plan, run)[:, first].reshape(-1, 3).T.copy()
    on = [plan.stream_kinds[tasks[at].stream] for at in first]
    kinds = np.tile(
        [
            COLLECTIVE if calls[at] else COMPUTE if kind == "compute" else OTHER
            for at, kind in zip(first, on, strict=True)
        ],
        steps,
    )
    names = {name: at for at, name in enumerate(dict.fromkeys(task.rank_class for task in tasks))}
    classes = [[names[tasks[at].rank_class] for at in own] for own in nodes]
    return _Nodes(
        *_users_of(_waits_of(plan, nodes), steps),
        np.cumsum([0, *[len(own) for own in classes] * steps]),
        np.array([*chain.from_iterable(classes)] * steps),
        [calls[at] for at in first] * steps,
        np.tile(first, steps),
        np.repeat(np.arange(steps), len(nodes)),
        kinds,
        np.tile(np.array(on) == "host", steps),
        began_s,
        ended_s,
        stretch,
    )


def _times_of(plan: StepPlan, run: Run) -> FloatArray:
    """Return when tasks began and ended, and their stretch; shape (steps, tasks, 3)."""
    ran = [(each[1], at, *each[2:4], each[5]) for at, each in _indexed(plan, run)]
    rows = np.array(ran, float).reshape(-1, 5)
    times = np.zeros((len(run.step_ends_s), len(plan.tasks), 3))
    times[tuple(rows[:, :2].T.astype(np.int64))] = rows[:, 2:]
    return times


def _waits_of(plan: StepPlan, nodes: Sequence[Sequence[int]]) -> list[set[int]]:
    """Return what nodes of a step wait for, but for what others do that they wait for.

    `nodes`: tasks of each. Those of the step before are numbered below 0.
    """
    number_of = {at: number for number, own in enumerate(nodes) for at in own}
    tasks, count = dependencies(plan), len(nodes)
    waits = [
        {number_of[at] for task in own for at in tasks[task][0]}
        | {number_of[at] - count for task in own for at in tasks[task][1]}
        for own in nodes
    ]
    return [own.difference(*[waits[at] for at in own if at >= 0]) for own in waits]


def _users_of(waits: Sequence[Collection[int]], steps: int) -> tuple[IntArray, IntArray, IntArray]:
    """Return who waits for each node of some steps, and for how many nodes each waits.

    `waits`: of the nodes of a step, as of `_waits_of`.
    """
    count = len(waits)
    begin = count * np.arange(steps)[:, None]
    causes = begin + np.fromiter(chain.from_iterable(waits), np.int64)
    users = begin + np.repeat(np.arange(count), [len(own) for own in waits])
    exist = causes >= 0  # the first step waits for none before it
    causes, users = causes[exist], users[exist]
    numbers = np.bincount(causes, minlength=steps * count)
    missing = np.bincount(users, minlength=steps * count)
    return np.cumsum([0, *numbers]), users[np.argsort(causes, kind="stable")], missing


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


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Nodes of a run: pieces of work, or collectives with all tasks that take part.

    Those that wait for one are ``users[users_from[n]:users_from[n + 1]]``, and it is of the classes
    ``classes[classes_from[n]:classes_from[n + 1]]``. Other arrays have shape (nodes,).

    `missing`: for how many nodes each waits.
    `calls`: None of work. `first`: of its tasks, in the plan. `kinds`: as numbered above.
    `on_host`: whether on a stream of it.
    `began_s`, `ended_s`: in the run. `stretch`: on the work.
    """

    users_from: IntArray
    users: IntArray
    missing: IntArray
    classes_from: IntArray
    classes: IntArray
    calls: Sequence[CollectiveCall | None]
    first: IntArray
    steps: IntArray
    kinds: IntArray
    on_host: NDArray[np.bool_]
    began_s: FloatArray
    ended_s: FloatArray
    stretch: FloatArray

    @property
    def took_s(self) -> FloatArray:
        """How long nodes took in the run; seconds."""
        return self.ended_s - self.began_s

    def times_s(
        self, own_s: FloatArray, kinds: IntArray, slowdown: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return when nodes begin and end that take `own_s`; seconds."""
        values: list[Any] = [self.missing.copy(), own_s, kinds]
        values += [np.zeros(len(self.rooms), np.int64), np.zeros((2, len(self.classes)))]
        values.append(np.zeros((2, len(own_s))))
        loop, graph = compiled_loops.compiled(time_nodes), self._graph
        if loop is None:
            loop, graph, values = time_nodes, self._lists, [each.tolist() for each in values]
        loop(slowdown, *graph, *values)
        begins_s, ends_s = np.asarray(values[-1])
        return begins_s, ends_s

    @cached_property
    def rooms(self) -> IntArray:
        """Where the collectives of each class are kept while they are in progress."""
        of_class = np.bincount(self.classes, minlength=1)
        return np.cumsum(of_class) - of_class

    @property
    def _graph(self) -> Sequence[Any]:
        return self.users_from, self.users, self.classes_from, self.classes, self.rooms

    @cached_property
    def _lists(self) -> Sequence[Any]:
        """The same for a loop that is not compiled."""
        return [each.tolist() for each in self._graph]


def time_nodes(  # noqa: C901, PLR0912  (numba caches a function without those that it calls)
    slowdown: float,
    users_from: Sequence[int],
    users: Sequence[int],
    classes_from: Sequence[int],
    classes: Sequence[int],
    rooms: Sequence[int],
    missing: Any,
    own_s: Sequence[float],
    kinds: Sequence[int],
    used: Any,
    room: Any,
    times_s: Any,
) -> None:
    """Work out in place when nodes begin and end, in `times_s`; see `_Nodes.times_s`.

    Collectives come in the order in which they begin, and work in that in which it ends: it is put
    off while a collective that began before has it end later. Nothing slows what is neither.

    The collectives that may slow the work of a class down are `used` of it in `room`, from `rooms`
    on: when each begins and ends.
    """
    from_s, to_s, begins_s, ends_s = room[0], room[1], times_s[0], times_s[1]
    later = [(0.0, 0)][:0]  # empty; a compiled loop has to know of what
    now = [node for node in range(len(own_s)) if missing[node] == 0 and kinds[node] > 0]
    while now or later:
        if now:
            node = now.pop()
            at_s = begins_s[node]
            if kinds[node] > 1 and slowdown > 1.0:
                at_s += own_s[node] if kinds[node] == 2 else 0.0
                if now:
                    heappush(later, (at_s, node))
                    continue
                at_s, node = heappushpop(later, (at_s, node))
        else:
            at_s, node = heappop(later)
        start_s = begins_s[node]
        end_s = start_s + own_s[node]
        if kinds[node] == 3 and slowdown > 1.0:
            for name in classes[classes_from[node] : classes_from[node + 1]]:
                place = rooms[name] + used[name]
                from_s[place], to_s[place] = start_s, end_s
                used[name] += 1
        elif kinds[node] == 2 and slowdown > 1.0:
            name = classes[classes_from[node]]
            kept = begin = rooms[name]
            until_s = start_s
            for place in range(begin, begin + used[name]):
                if to_s[place] <= start_s:  # work of a class is done piece after piece
                    continue
                from_s[kept], to_s[kept] = from_s[place], to_s[place]
                if from_s[kept] < end_s:
                    since_s = max(from_s[kept], until_s)  # each its own part, as in delay_work
                    most_s = (to_s[kept] - since_s) * (1.0 - 1.0 / slowdown)
                    end_s += max(0.0, min((end_s - since_s) * (slowdown - 1.0), most_s))
                    until_s = max(until_s, to_s[kept])
                kept += 1
            used[name] = kept - begin
            if end_s > at_s:
                heappush(later, (end_s, node))
                continue
        ends_s[node] = end_s
        for user in users[users_from[node] : users_from[node + 1]]:
            if begins_s[user] < end_s:  # noqa: PLR1730  (max() is slow where it is not compiled)
                begins_s[user] = end_s
            missing[user] -= 1
            if missing[user] == 0 and kinds[user] > 0:
                now.append(user)
