"""Tasks of a plan as the engine steps through them: queues of streams, and who waits for whom."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perfmodel.errors import SimulationError
from perfmodel.training.plan.step_plan import StepPlan, Stream


class StreamTasks(NamedTuple):
    """Tasks of one stream of one rank class (indices of the plan), in order."""

    rank_class: str
    stream: Stream
    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """What does not change from one step of a plan to the next.

    Lists are by task.

    `queues`: of all streams that have tasks, class by class.
    `queue_of`: which of them a task stands in.
    `users`, `users_later`: tasks that wait for a task, in its own step and in the next one.
    `waits`, `waits_first`: how many tasks a task waits for, and how many in the first step.

    A stream that does one task after the other keeps their order by itself, so that tasks of its
    own are no users.

    `own`, `own_before`: the last task of its own stream that a task waits for, in its step and in
    the one before; -1: none.
    `is_last`: whether nothing of the same stream follows at once: others wait for the task, or it
    is the last of the step, or has to do with more than time.
    """

    queues: tuple[StreamTasks, ...]
    queue_of: list[int]
    users: list[list[int]]
    users_later: list[list[int]]
    waits: list[int]
    waits_first: list[int]
    own: list[int]
    own_before: list[int]
    is_last: list[bool]


def task_graph(plan: StepPlan) -> TaskGraph:
    """Return who waits for whom in a plan.

    Raises `SimulationError`: a task of a class or a stream that the plan does not have.
    """
    streams = {(each.name, s.name): (each.name, s) for each in plan.classes for s in plan.streams}
    by_place: dict[tuple[str, str], list[int]] = {place: [] for place in streams}
    for index, task in enumerate(plan.tasks):
        place = (task.rank_class, task.stream)
        if place not in by_place:
            raise SimulationError(f"{task.name}: the plan has no stream {' '.join(place)!r}")
        by_place[place].append(index)
    queues = tuple(
        StreamTasks(*streams[place], tuple(tasks)) for place, tasks in by_place.items() if tasks
    )
    places = _places(len(plan.tasks), queues)

    def keeps_order(source: int, index: int) -> bool:
        number = places[index][0]
        return places[source][0] == number and queues[number].stream.workers == 1

    graph = _nobody_waits(len(plan.tasks), queues, [number for number, _ in places])
    for index, task in enumerate(plan.tasks):
        for source in task.after:
            if keeps_order(source, index) and places[source] < places[index]:
                graph.own[index] = _later(source, graph.own[index], places)
            else:
                graph.users[source].append(index)
                graph.waits[index] += 1
                graph.waits_first[index] += 1
        for source in task.after_previous:
            if keeps_order(source, index):
                graph.own_before[index] = _later(source, graph.own_before[index], places)
            else:
                graph.users_later[source].append(index)
                graph.waits[index] += 1
    for index, task in enumerate(plan.tasks):
        used = graph.users[index] or graph.users_later[index]
        graph.is_last[index] |= bool(used or task.releases or task.core_s)
    return graph


def _places(tasks: int, queues: Sequence[StreamTasks]) -> list[tuple[int, int]]:
    """Queue of each task, and its place there."""
    places = [(0, 0)] * tasks
    for number, queue in enumerate(queues):
        for place, index in enumerate(queue.tasks):
            places[index] = number, place
    return places


def _nobody_waits(tasks: int, queues: tuple[StreamTasks, ...], queue_of: list[int]) -> TaskGraph:
    """A graph of tasks that do not wait for each other."""
    ends = {queue.tasks[-1] for queue in queues}
    return TaskGraph(
        queues,
        queue_of,
        users=[[] for _ in range(tasks)],
        users_later=[[] for _ in range(tasks)],
        waits=[0] * tasks,
        waits_first=[0] * tasks,
        own=[-1] * tasks,
        own_before=[-1] * tasks,
        is_last=[index in ends for index in range(tasks)],
    )


def _later(source: int, other: int, places: Sequence[tuple[int, int]]) -> int:
    """The later of two tasks of a stream; `other` may be -1: none."""
    return source if other < 0 or places[source] > places[other] else other


@dataclass(slots=True)
class StepState:
    """How far one step of a plan is.

    `waits`: tasks that each task still waits for. `ready_s`: when the last so far ended.
    `end_s`: when each task ends, where that is known; nan where not.
    `tasks_left`: tasks whose end is not known. `last_s`: the latest end that is known.
    """

    waits: list[int]
    ready_s: list[float]
    end_s: list[float]
    tasks_left: int
    last_s: float = 0.0


def begin_step(graph: TaskGraph, *, is_first: bool) -> StepState:
    """Return the state of a step of which no task has ended."""
    count = len(graph.waits)
    waits = graph.waits_first if is_first else graph.waits
    return StepState(list(waits), [0.0] * count, [math.nan] * count, count)


@dataclass(slots=True, eq=False)
class StreamState:
    """How far one stream is: the next task is `tasks[at]` of `step`.

    `free`: of its workers. `is_blocked`: whether its next task waits for a semaphore.
    `free_s`: when its only worker is free. `wakes_s`: when it is looked at again.
    """

    tasks: tuple[int, ...]
    rank_class: str
    stream: Stream
    free: int
    step: int = 0
    at: int = 0
    is_blocked: bool = False
    free_s: float = 0.0
    wakes_s: float = -1.0


@dataclass(slots=True)
class Semaphores:
    """Semaphores of all classes, and the streams that wait for each in turn."""

    capacity: dict[str, int]
    _taken: Counter[tuple[str, str]]
    _waiting: dict[tuple[str, str], list[StreamState]]

    def take(self, state: StreamState, name: str) -> bool:
        """Take one for the next task of a stream, or let the stream wait for it."""
        key = (state.rank_class, name)
        if self._taken[key] < self.capacity[name] and not self._waiting.get(key):
            self._taken[key] += 1
            return True
        state.is_blocked = True
        self._waiting.setdefault(key, []).append(state)
        return False

    def give_back(self, rank_class: str, name: str) -> StreamState | None:
        """Give one back; return the stream whose next task has it now."""
        key = (rank_class, name)
        if self._waiting.get(key):
            state = self._waiting[key].pop(0)
            state.is_blocked = False
            return state
        self._taken[key] -= 1
        return None


def semaphores_of(plan: StepPlan) -> Semaphores:
    """Return the semaphores of a plan, of which none is taken."""
    return Semaphores(dict(plan.semaphores), Counter(), {})
