"""Tasks of a plan as the engine steps through them: queues of streams, and who waits for whom."""

from __future__ import annotations

from collections import Counter
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
    """

    queues: tuple[StreamTasks, ...]
    queue_of: list[int]
    users: list[list[int]]
    users_later: list[list[int]]
    waits: list[int]
    waits_first: list[int]


def task_graph(plan: StepPlan) -> TaskGraph:
    """Return who waits for whom in a plan.

    Raises `SimulationError`: a task of a class or a stream that the plan does not have.
    """
    places = {(each.name, s.name): (each.name, s) for each in plan.classes for s in plan.streams}
    by_place: dict[tuple[str, str], list[int]] = {place: [] for place in places}
    users: list[list[int]] = [[] for _ in plan.tasks]
    users_later: list[list[int]] = [[] for _ in plan.tasks]
    for index, task in enumerate(plan.tasks):
        place = (task.rank_class, task.stream)
        if place not in by_place:
            raise SimulationError(f"{task.name}: the plan has no stream {' '.join(place)!r}")
        by_place[place].append(index)
        for source in task.after:
            users[source].append(index)
        for source in task.after_previous:
            users_later[source].append(index)
    queues = tuple(
        StreamTasks(*places[place], tuple(tasks)) for place, tasks in by_place.items() if tasks
    )
    queue_of = [0] * len(plan.tasks)
    for number, queue in enumerate(queues):
        for index in queue.tasks:
            queue_of[index] = number
    return TaskGraph(
        queues, queue_of, users, users_later,
        [len(task.after) + len(task.after_previous) for task in plan.tasks],
        [len(task.after) for task in plan.tasks],
    )  # fmt: skip


@dataclass(slots=True)
class StepState:
    """How far one step of a plan is.

    `waits`: tasks that each task still waits for. `ready_s`: when the last so far ended.
    `tasks_left`: tasks that have not ended.
    """

    waits: list[int]
    ready_s: list[float]
    has_ended: bytearray
    tasks_left: int


def begin_step(graph: TaskGraph, *, is_first: bool) -> StepState:
    """Return the state of a step of which no task has ended."""
    count = len(graph.waits)
    waits = graph.waits_first if is_first else graph.waits
    return StepState(list(waits), [0.0] * count, bytearray(count), count)


@dataclass(slots=True, eq=False)
class StreamState:
    """How far one stream is: the next task is `tasks[at]` of `step`.

    `free`: of its workers. `is_blocked`: whether its next task waits for a semaphore.
    """

    tasks: tuple[int, ...]
    rank_class: str
    stream: Stream
    free: int
    step: int = 0
    at: int = 0
    is_blocked: bool = False


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
