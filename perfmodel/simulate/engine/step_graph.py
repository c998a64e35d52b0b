"""Steps of a plan as a graph: who waits for whom, and when everything begins and ends.

A node is a piece of work, or a collective with all tasks that take part. It begins when the last of
what it waits for has ended, so that a step is a longest path through the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush, heappushpop
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.collectives.timing import compiled_loops
from perfmodel.memo import grouped
from perfmodel.simulate.engine.task_graph import (
    Dependencies,
    Participants,
    calls_of,
    dependencies,
    participants_of,
)
from perfmodel.simulate.network import CollectiveCall
from perfmodel.training.plan.step_plan import Collective, StepPlan

LEFT_OUT, OTHER, COMPUTE, COLLECTIVE = range(4)
"""Kinds of nodes: not timed, of other streams, work that collectives may slow down, collectives."""


def step_graph(plan: StepPlan, steps: int) -> StepGraph:
    """Return the nodes of some steps: those of one step, once for each.

    Raises `SimulationError`: a task of a class or a stream that the plan does not have.
    """
    participants, tasks, waits = participants_of(plan), plan.tasks, dependencies(plan)
    together, calls = _members(plan, participants), calls_of(plan, participants)
    nodes = [own for at in range(len(tasks)) if (own := together.get(at, (at,)))[0] == at]
    number_of = {at: number for number, own in enumerate(nodes) for at in own}
    first = np.array([own[0] for own in nodes], np.int64)
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
    return StepGraph(
        *_users_of(_waits_of(waits, nodes, number_of), steps),
        np.cumsum([0, *[len(own) for own in classes] * steps]),
        np.array([*chain.from_iterable(classes)] * steps),
        [calls[at] for at in first] * steps,
        np.tile(first, steps),
        np.repeat(np.arange(steps), len(nodes)),
        kinds,
        np.tile(np.array(on) == "host", steps),
        np.array([number_of[at] for at in range(len(tasks))], np.int64),
        nodes,
        waits,
    )


def _waits_of(
    tasks: Dependencies, nodes: Sequence[Sequence[int]], number_of: Mapping[int, int]
) -> list[set[int]]:
    """Return what nodes of a step wait for, but for what others do that they wait for.

    `nodes`: tasks of each, and `number_of` each task. Those of the step before are numbered below
    0.
    """
    count = len(nodes)
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
class StepGraph:
    """Nodes of some steps: pieces of work, or collectives with all tasks that take part.

    Those that wait for one are ``users[users_from[n]:users_from[n + 1]]``, and it is of the classes
    ``classes[classes_from[n]:classes_from[n + 1]]``. Other arrays have shape (nodes,).

    `missing`: for how many nodes each waits.
    `calls`: None of work. `first`: of its tasks, in the plan. `kinds`: as numbered above.
    `on_host`: whether on a stream of it.
    `node_of`: of each task, in the first step. `tasks`: of each node of a step.
    `dependencies`: of the tasks.
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
    node_of: IntArray
    tasks: Sequence[Sequence[int]]
    dependencies: Dependencies

    def times_s(
        self, own_s: FloatArray, kinds: IntArray, slowdown: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return when nodes begin and end that take `own_s`; seconds, nan if one never does.

        `kinds`: as the field, or `LEFT_OUT`.
        """
        values: list[Any] = [self.missing.copy(), own_s, kinds]
        values += [np.zeros(len(self.rooms), np.int64), np.zeros((2, len(self.classes)))]
        values.append(np.stack([np.zeros(len(own_s)), np.full(len(own_s), np.nan)]))
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
    """Work out in place when nodes begin and end, in `times_s`; see `StepGraph.times_s`.

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
