"""Tasks of a plan as the engine steps through them: queues of streams, and who waits for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, starmap
from typing import NamedTuple

import numpy as np
import simpy

from perfmodel.arrays import FloatArray, RankGroup
from perfmodel.collectives.catalog import ROOTED
from perfmodel.errors import SimulationError
from perfmodel.simulate.network import CollectiveCall
from perfmodel.simulate.uncontended import MESSAGES, root_in
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Compute,
    RankClass,
    StepPlan,
    Stream,
    Task,
)

StreamTasks = tuple[str, Stream, tuple[int, ...]]
"""A rank class, one of its streams, and the tasks of both (indices of the plan), in order."""


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
    queues = tuple((*streams[place], tuple(tasks)) for place, tasks in by_place.items() if tasks)
    places = {
        index: (number, place)
        for number, (_, _, queue) in enumerate(queues)
        for place, index in enumerate(queue)
    } | {-1: (-1, -1)}  # of no task: before all

    def keeps_order(source: int, index: int) -> bool:
        number = places[index][0]
        return places[source][0] == number and queues[number][1].workers == 1

    graph = _nobody_waits(queues, [places[index][0] for index in range(len(plan.tasks))])
    for index, task in enumerate(plan.tasks):
        for source in task.after:
            if keeps_order(source, index) and places[source] < places[index]:
                graph.own[index] = max(source, graph.own[index], key=places.__getitem__)
            else:
                graph.users[source].append(index)
                graph.waits[index] += 1
                graph.waits_first[index] += 1
        for source in task.after_previous:
            if keeps_order(source, index):
                before = graph.own_before[index]
                graph.own_before[index] = max(source, before, key=places.__getitem__)
            else:
                graph.users_later[source].append(index)
                graph.waits[index] += 1
    for index, task in enumerate(plan.tasks):
        used = graph.users[index] or graph.users_later[index]
        graph.is_last[index] |= bool(used or task.releases or task.core_s)
    return graph


def _nobody_waits(queues: tuple[StreamTasks, ...], queue_of: list[int]) -> TaskGraph:
    """Return a graph of tasks that do not wait for each other."""
    ends, tasks = {queue[-1] for _, _, queue in queues}, len(queue_of)
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


Dependencies = list[tuple[tuple[int, ...], tuple[int, ...]]]
"""For each task its predecessors in its own step, and in the step before."""


def dependencies(plan: StepPlan) -> Dependencies:
    """Return what each task waits for, where streams do one task after the other.

    Of its own stream that is the task ahead of it, which has waited for those before.
    """
    newest: dict[tuple[str, str], int] = {}
    streams, waits = [(task.rank_class, task.stream) for task in plan.tasks], Dependencies()
    ahead = list[int | None]()
    for at, stream in enumerate(streams):
        ahead.append(newest.get(stream))
        newest[stream] = at
    for task, stream, own in zip(plan.tasks, streams, ahead, strict=True):
        same = tuple([at for at in task.after if streams[at] != stream])
        before = tuple([at for at in task.after_previous if streams[at] != stream])
        waits.append((same, (*before, newest[stream])) if own is None else ((*same, own), before))
    return waits


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


@dataclass(slots=True, eq=False)
class StreamState:
    """How far one stream is: the next task is `tasks[at]` of `step`.

    `free`: of its workers. `is_blocked`: whether its next task waits for a semaphore.
    `free_s`: when its only worker is free. `wakes_s`: when it is looked at again.
    """

    rank_class: str
    stream: Stream
    tasks: tuple[int, ...]
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
    _taken: Counter[tuple[str, str]] = field(default_factory=Counter)
    _waiting: dict[tuple[str, str], list[StreamState]] = field(default_factory=dict)

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


class RankGroups(tuple[RankGroup, ...]):  # noqa: SLOT001  # it keeps its hash
    """Groups of ranks, a key of caches: many groups are hashed once."""

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash


class Participants(NamedTuple):
    """Classes that take part in a collective, and the groups that start once all have arrived.

    Groups that have a class in common start together, because a class is simulated as one; others
    start independently.
    """

    classes: tuple[str, ...]
    groups: RankGroups


def participants_of(plan: StepPlan) -> Mapping[str, Mapping[str, Participants]]:
    """Return the participants by communicator and class; none for classes without members."""
    if len(plan.classes) == 1:
        alone = (plan.classes[0].name,)
        return {
            c.name: {alone[0]: Participants(alone, RankGroups(c.groups))}
            for c in plan.communicators
        }
    class_of = {rank: number for number, c in enumerate(plan.classes) for rank in c.ranks}
    return {c.name: _of_communicator(c, plan.classes, class_of) for c in plan.communicators}


def _of_communicator(
    communicator: Communicator, classes: tuple[RankClass, ...], class_of: Mapping[int, int]
) -> Mapping[str, Participants]:
    """Return the participants of each class; `class_of`: number of the class of each rank."""
    kinds = [frozenset(map(class_of.get, group)) - {None} for group in communicator.groups]
    together: list[set[int | None]] = []
    for kind in dict.fromkeys(kinds):
        meeting = [members for members in together if not members.isdisjoint(kind)]
        together = [members for members in together if members.isdisjoint(kind)]
        together.append(set(kind).union(*meeting))
    place_of = {number: place for place, members in enumerate(together) for number in members}
    names, groups = [list[str]() for _ in together], [list[RankGroup]() for _ in together]
    for number, each in enumerate(classes):
        if number in place_of:
            names[place_of[number]].append(each.name)
    for group, kind in zip(communicator.groups, kinds, strict=True):
        for member in islice(kind, 1):
            groups[place_of[member]].append(group)
    both = zip(map(tuple, names), map(RankGroups, groups), strict=True)
    return {name: part for part in starmap(Participants, both) for name in part.classes}


def calls_of(
    plan: StepPlan, participants: Mapping[str, Mapping[str, Participants]]
) -> list[CollectiveCall | None]:
    """Return what a network is asked for by each task of a plan; None for work.

    `participants`: those of the plan.
    """
    groups_of = plan.groups_of

    def call_of(task: Task, work: Collective) -> CollectiveCall:
        groups, root = participants[work.communicator][task.rank_class].groups, work.root
        if work.op in ROOTED - MESSAGES:
            # its root may be of other classes, which start by themselves
            root = root_in(groups[0], groups_of[work.communicator], root)
        return work.op, work.nbytes, groups, root, work.times

    return [call_of(t, t.work) if isinstance(t.work, Collective) else None for t in plan.tasks]


def class_factor(task: Task, factors: float | FloatArray) -> float:
    """Return the factor on a task's work for its class, given that of each rank, or of all.

    Raises `SimulationError`: ranks differ.
    """
    if isinstance(factors, float):  # of most ranks that are simulated one by one
        return float(factors)
    each = np.asarray(factors)
    if each.size > 1 and (each != each.flat[0]).any():
        raise SimulationError(
            f"{task.name}: ranks of class {task.rank_class!r} differ; split the class first"
        )
    return float(each.flat[0])


Clock = float | FloatArray
"""A time, or one for each rank or for each change of durations; seconds."""


def delay_work(end_s: Clock, communicating: tuple[Clock, Clock], slowdown: Clock) -> FloatArray:
    """Return when work ends that is `slowdown` times slower while its class communicates.

    `end_s`: when it would end otherwise. `communicating`: from when, not before the work has begun,
    to when.
    """
    from_s, to_s = communicating
    slow_s, most_s = (end_s - from_s) * (slowdown - 1.0), (to_s - from_s) * (1.0 - 1.0 / slowdown)
    delayed_s: FloatArray = end_s + np.maximum(0.0, np.minimum(slow_s, most_s))
    return delayed_s


@dataclass(slots=True, eq=False)
class Work:
    """Pieces of work that one stream of a class does in a row; times of the simulation.

    Lists are by piece. `ready_s`: before which it does not start. `left_s`: what is left of it, in
    seconds without slowdown. `start_s`, `end_s`: of those that have started, and ended.
    `since_s`: when this was last brought up to date. `done`: fires when all of it is done.
    """

    ready_s: list[float]
    left_s: list[float]
    start_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)
    since_s: float = 0.0
    done: simpy.Event | None = None

    def go_on(self, since_s: float, until_s: float, factor: float) -> None:
        """Work from one time to another, `factor` times slower; the last piece ends at the end."""
        at, now_s, last = len(self.end_s), since_s, len(self.left_s) - 1
        while at <= last:
            if len(self.start_s) == at:
                start_s = max(now_s, self.ready_s[at])
                if start_s >= until_s:
                    return
                self.start_s.append(start_s)
                now_s = start_s
            end_s = now_s + self.left_s[at] * factor
            if end_s > until_s or (end_s == until_s and at == last):
                self.left_s[at] = max(0.0, self.left_s[at] - (until_s - now_s) / factor)
                return
            self.end_s.append(end_s)
            now_s, at = end_s, at + 1

    def ends_s(self, now_s: float, factor: float) -> float:
        """Return when the last piece ends, `factor` times slower from now on."""
        ended = len(self.end_s)
        for ready_s, left_s in zip(self.ready_s[ended:], self.left_s[ended:], strict=True):
            now_s = max(now_s, ready_s) + left_s * factor
        return now_s


@dataclass(slots=True, eq=False)
class ComputeResource:
    """Compute of a rank class, `slowdown` times slower while a collective of it is in progress."""

    env: simpy.Environment
    slowdown: float
    """1 or more."""
    _factor: float = 1.0
    _communicating: int = 0
    _running: dict[simpy.Event, Work] = field(default_factory=dict)

    def compute(self, work: Work) -> simpy.Event:
        """Start some work; the event fires when it is done."""
        work.since_s, work.done = self.env.now, self.env.event()
        self._schedule(work)
        return work.done

    def communicate(self, change: int) -> None:
        """Count collectives in progress: +1 when one starts, -1 when one ends."""
        before = self._factor
        self._communicating += change
        self._factor = self.slowdown if self._communicating else 1.0
        if self._factor != before:
            others, self._running = self._running, {}
            for work in others.values():
                work.go_on(work.since_s, self.env.now, before)
                work.since_s = self.env.now
                self._schedule(work)

    def _schedule(self, work: Work) -> None:
        now_s = self.env.now
        end = self.env.timeout(max(0.0, work.ends_s(now_s, self._factor) - now_s))
        self._running[end] = work
        end.callbacks.append(self._finish)

    def _finish(self, end: simpy.Event) -> None:
        """Finish the work that ends now, unless it has been scheduled again since."""
        work = self._running.pop(end, None)
        if work is not None and work.done is not None:
            work.go_on(work.since_s, np.inf, self._factor)
            work.end_s[-1] = self.env.now
            work.done.succeed()


Member = tuple[StreamState, int, float]
"""A task of a collective: its stream, its index, and when it reached it."""

CollectiveInstance = tuple[int, str, str]
"""A collective of a step: step, key, first class that takes part."""


class Rendezvous:
    """Who has reached which collective, and which of them are in progress.

    Parameters
    ----------
    participants : mapping
        By communicator and rank class: who takes part with it.
    classes : iterable of RankClass
        All rank classes of the plan.
    """

    def __init__(
        self, participants: Mapping[str, Mapping[str, Participants]], classes: Iterable[RankClass]
    ) -> None:
        self.in_progress: dict[CollectiveInstance, tuple[Task, tuple[str, ...]]] = {}
        self._participants = participants
        self._classes = {each.name: each for each in classes}
        self._pending: dict[CollectiveInstance, list[Member]] = {}

    def reach(
        self, step: int, work: Collective, participants: Participants, member: Member
    ) -> list[Member]:
        """Note that a class has reached a collective; return all members once all classes have."""
        instance = (step, work.key, participants.classes[0])
        members = self._pending.setdefault(instance, [])
        members.append(member)
        most = len(participants.classes)
        reached = len(members) >= most and len({each.rank_class for each, *_ in members}) == most
        return self._pending.pop(instance) if reached else []

    def missing(self, task: Task, step: int) -> str:
        """Name the class of a task, and the classes that its collective waits for."""
        mine = f" of {task.rank_class!r}" if len(self._classes) > 1 else ""
        if isinstance(task.work, Compute):
            return mine
        classes = self._participants[task.work.communicator][task.rank_class].classes
        members = self._pending.get((step, task.work.key, classes[0]), [])
        reached = {state.rank_class for state, *_ in members}
        missing = ", ".join([repr(name) for name in classes if name not in reached][:4])
        return f"{mine} for {missing}" if task.rank_class in reached else mine


def collective_text(task: Task, classes: tuple[str, ...]) -> str:
    """Name a collective, with the first of its classes."""
    return f"{task.name} ({', '.join(classes[:4])})"
