"""A StepPlan in progress: its streams, collectives and steps.

Each stream of each rank class runs its tasks in plan order. A task starts when its predecessors
have ended and its stream is free; a collective starts when all participating classes have reached
it. Simultaneous events happen in plan order.

A collective is the events of the network. Work whose end is known when it starts, such as that of
the host, needs no event, and work of a compute stream one for as many pieces in a row as nobody
else waits for: tasks that wait are counted down as the ends of their predecessors become known.
A host that waits for nobody is not stepped through at all: a step is as far from the one before as
its tasks are long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import accumulate
from math import isnan, nan

import numpy as np
import simpy
from numpy.typing import NDArray

from perfmodel.errors import SimulationError, TopologyError
from perfmodel.simulate.engine.background import CollectiveArrivals, arrivals_of
from perfmodel.simulate.engine.outcome import TaskExecution
from perfmodel.simulate.engine.task_graph import (
    ComputeResource,
    Member,
    Participants,
    Rendezvous,
    Semaphores,
    StepState,
    StreamState,
    Work,
    calls_of,
    class_factor,
    collective_text,
    participants_of,
    task_graph,
)
from perfmodel.simulate.network import Network
from perfmodel.training.plan.step_plan import Collective, Compute, StepPlan, Stream, Task

Stretch = Callable[[int, int], float | NDArray[np.float64]]
"""Factor on a task's work, by step and index: for its class, or for each of its ranks."""

MAX_STEPS_AHEAD = 8
"""Steps that a job without an end may be ahead of its slowest stream, to bound memory."""


class PlanRun:
    """A plan that runs `steps` times, or over and over for None.

    `done` fires when the last step has ended; never for None.
    """

    def __init__(
        self,
        env: simpy.Environment,
        network: Network,
        plan: StepPlan,
        steps: int | None,
        slowdown: float,
        *,
        start_s: float = 0.0,
        stretch: Stretch | None = None,
    ) -> None:
        self.plan, self.executions = plan, list[TaskExecution]()
        self.arrivals: list[CollectiveArrivals] = []
        self.step_ends_s: list[float] = []
        self.done = env.event()
        self.on_idle: Callable[[], object] | None = None
        self.on_collective: Callable[[Task], None] | None = None
        """Called with the task of each collective that starts."""
        self._env, self._network, self._steps = env, network, steps
        self._stretch, self._slowdown, self._busy = stretch, slowdown, 0
        self._startable, self._advancing = deque[StreamState](), False
        self._graph = task_graph(plan)
        self._rows: dict[int, tuple[int, ...]] = {}
        self._end_by_themselves = [
            self._ends_by_itself(self._graph.queues[queue][1], task)
            for queue, task in zip(self._graph.queue_of, plan.tasks, strict=True)
        ]
        hosts = [
            number for number in range(len(self._graph.queues)) if self._waits_for_nobody(number)
        ]
        # They pass when another stream begins a step: without one, each steps as a device does.
        self._hosts = hosts if len(hosts) < len(self._graph.queues) else []
        self._participants = participants_of(plan)
        self._classes = {each.name: each for each in plan.classes}
        self._compute_resources = {c.name: ComputeResource(env, slowdown) for c in plan.classes}
        self._semaphores = Semaphores(dict(plan.semaphores))
        self._streams = [StreamState(*queue, queue[1].workers) for queue in self._graph.queues]
        self._step_states: dict[int, StepState] = {}
        self._rendezvous = Rendezvous(self._participants, plan.classes)
        self._calls = calls_of(plan, self._participants)
        self._call_after(env.timeout(start_s), self._start_all)

    def _start_all(self) -> None:
        if not self._streams or self._steps == 0:
            self.done.succeed()
        for state in self._streams:
            state.free_s = self._env.now
        self._advance_all(
            state for number, state in enumerate(self._streams) if number not in self._hosts
        )

    # ------------------------------------------------------------ steps

    def _step_state(self, step: int) -> StepState:
        if step not in self._step_states:
            waits = self._graph.waits if step else self._graph.waits_first
            none, count = [0.0] * len(waits), len(waits)
            self._step_states[step] = StepState(list(waits), none, [nan] * count, count)
            for number in self._hosts:
                self._pass(self._streams[number], step)
            if self._steps is None:
                self._step_states.pop(step - 2 * MAX_STEPS_AHEAD, None)
        return self._step_states[step]

    def _waits_for_nobody(self, number: int) -> bool:
        """Whether a stream of the host waits for nobody, so that only time passes there."""
        _, stream, queue = self._graph.queues[number]
        return stream.kind == "host" and all(
            self._end_by_themselves[index]
            and not self._graph.waits[index]
            and not self._graph.users_later[index]
            for index in queue
        )

    def _pass(self, state: StreamState, step: int) -> None:
        """Let the time of a step pass on a host that waits for nobody."""
        own, users = self._step_states[step], self._graph.users
        durations_s = (self._stretched(step, index)[1] for index in state.tasks)
        times_s = list(accumulate(durations_s, initial=state.free_s))
        for index, start_s, end_s in zip(state.tasks, times_s, times_s[1:], strict=False):
            own.end_s[index] = end_s
            for user in users[index]:
                own.waits[user] -= 1
                own.ready_s[user] = max(own.ready_s[user], end_s)
            self._record(step, index, start_s, end_s)
        state.free_s = times_s[-1]
        own.last_s = max(own.last_s, times_s[-1])
        own.tasks_left -= len(state.tasks)

    def _end(self, state: StreamState, step: int, index: int, end_s: float) -> None:
        """Note when a task ends; what waited for it is looked at by `_advance_all`."""
        own = self._step_states[step]
        own.end_s[index] = end_s
        own.last_s = max(own.last_s, end_s)
        own.tasks_left -= 1
        if state.stream.kind != "host":
            while len(self.step_ends_s) <= step:
                self.step_ends_s.append(0.0)
            self.step_ends_s[step] = max(self.step_ends_s[step], end_s)
        self._count_down(own, step, self._graph.users[index], end_s)
        later = self._graph.users_later[index]
        if later and step + 1 != self._steps:
            self._count_down(self._step_state(step + 1), step + 1, later, end_s)
        if own.tasks_left:
            return
        if own.last_s > self._env.now:
            self._call_after(
                self._env.timeout(own.last_s - self._env.now), lambda: self._end_step(step)
            )
        else:
            self._end_step(step)

    def _count_down(self, own: StepState, step: int, users: list[int], end_s: float) -> None:
        """Count a predecessor of some tasks as ended; note the streams whose next one can go."""
        for user in users:
            own.ready_s[user] = max(own.ready_s[user], end_s)
            own.waits[user] -= 1
            if not own.waits[user]:
                waiting = self._streams[self._graph.queue_of[user]]
                if waiting.step == step and waiting.tasks[waiting.at] == user:
                    self._startable.append(waiting)

    def _end_step(self, step: int) -> None:
        if self._steps is None:
            self._advance_all(  # which may have been too far ahead
                state for state in self._streams if state.step >= step + MAX_STEPS_AHEAD
            )
        elif step + 1 == self._steps:
            self.done.succeed()

    @property
    def completed_s(self) -> tuple[float, ...]:
        """Ends of the steps of which all tasks have ended; seconds since the start of the run."""
        states, now_s = sorted(self._step_states.items()), self._env.now
        last = next((s for s, state in states if state.tasks_left or state.last_s > now_s), None)
        return tuple(self.step_ends_s[:last])

    # ------------------------------------------------------------ streams

    def _advance_all(self, states: Iterable[StreamState]) -> None:
        """Start what some streams can start, and what becomes startable by that."""
        self._startable += states
        if self._advancing:
            return
        self._advancing = True
        while self._startable:
            self._advance(self._startable.popleft())
        self._advancing = False

    def _advance(self, state: StreamState) -> None:
        """Start the next tasks of a stream: nothing overtakes at the head of its queue."""
        tasks, now_s = self.plan.tasks, self._env.now
        while state.free and state.step != self._steps and not state.is_blocked:
            step, index = state.step, state.tasks[state.at]
            own = self._step_states.get(step) or self._step_state(step)
            if own.waits[index] or (self._steps is None and self._is_ahead(step)):
                return
            task, start_s = tasks[index], max(self._ready_s(own, step, index), state.free_s)
            if self._end_by_themselves[index]:
                self._pop(state)
                stretch, duration_s = self._stretched(step, index)
                self._finish(state, step, index, start_s, start_s + duration_s, stretch)
                continue
            if start_s > now_s:
                self._wake(state, start_s)
                return
            if task.acquires and not self._semaphores.take(state, task.acquires):
                return
            self._start(state)

    def _ready_s(self, own: StepState, step: int, index: int) -> float:
        """Return when the last of the tasks that a task waits for has ended."""
        ready_s, before = own.ready_s[index], self._graph.own_before[index]
        if self._graph.own[index] >= 0:
            ready_s = max(ready_s, own.end_s[self._graph.own[index]])
        if before >= 0 and step:
            ready_s = max(ready_s, self._step_states[step - 1].end_s[before])
        return ready_s

    def _ends_by_itself(self, stream: Stream, task: Task) -> bool:
        """Whether the end of a task is known as soon as its start is."""
        may_be_slowed = stream.kind == "compute" and self._slowdown != 1.0
        is_plain = not (task.acquires or task.releases or task.core_s or may_be_slowed)
        return is_plain and stream.workers == 1 and isinstance(task.work, Compute)

    def _wake(self, state: StreamState, at_s: float) -> None:
        """Look at a stream again when its next task can start."""
        if state.wakes_s == at_s:
            return
        state.wakes_s = at_s

        def wake() -> None:
            state.wakes_s = -1.0  # a sum of times may be short of the time in its last bit
            self._advance_all([state])

        self._call_after(self._env.timeout(at_s - self._env.now), wake)

    def _pop(self, state: StreamState, tasks: int = 1) -> None:
        """Go on by some tasks of a stream."""
        state.at += tasks
        if state.at == len(state.tasks):
            state.at, state.step = 0, state.step + 1

    def _is_ahead(self, step: int) -> bool:
        """Whether a step of a job without an end has to wait for slower streams."""
        if step < MAX_STEPS_AHEAD:
            return False
        behind = self._step_states.get(step - MAX_STEPS_AHEAD)
        return behind is not None and (behind.tasks_left > 0 or behind.last_s > self._env.now)

    def _start(self, state: StreamState) -> None:
        """Start the next task of a stream now."""
        step, index = state.step, state.tasks[state.at]
        state.free -= 1
        self._pop(state)
        work = self.plan.tasks[index].work
        if not isinstance(work, Compute):
            self._join(state, step, index, work)
        elif state.stream.kind == "compute":
            self._compute(state, step, index)
        else:
            self._take_time(state, step, index)

    def _finish(
        self,
        state: StreamState,
        step: int,
        index: int,
        start_s: float,
        end_s: float,
        stretch: float = 1.0,
    ) -> None:
        """Record a task whose end is known, and free its stream."""
        state.free_s = end_s
        self._record(step, index, start_s, end_s, stretch)
        self._end(state, step, index, end_s)

    def _record(
        self, step: int, index: int, start_s: float, end_s: float, stretch: float = 1.0
    ) -> None:
        """Record a task of a job that has an end."""
        if self._steps is not None:
            ready_s = self._ready_s(self._step_states[step], step, index)
            self.executions.append((self.plan.tasks[index], step, start_s, end_s, ready_s, stretch))

    def _free(self, state: StreamState, index: int) -> None:
        """Free the stream of a task that ends now, give back its semaphore, and start others."""
        state.free += 1
        self._startable.appendleft(state)
        task = self.plan.tasks[index]
        if task.core_s > 0:
            self._network.occupy(task.core_s, len(self._classes[task.rank_class].ranks))
        if task.releases:
            waiting = self._semaphores.give_back(task.rank_class, task.releases)
            if waiting is not None:
                self._start(waiting)
                self._startable.appendleft(waiting)
        self._advance_all(())

    # ------------------------------------------------------------ compute

    def _compute(self, state: StreamState, step: int, index: int) -> None:
        """Start work on the device, and what follows it while nobody else waits for an end.

        A stream that has several workers starts each piece by itself.
        """
        own, row = self._step_states[step], self._rows.get(index) or self._row(state, index)
        waits = (at for at, each in enumerate(row) if at and own.waits[each])
        pieces = row[: next(waits, len(row))]
        self._pop(state, len(pieces) - 1)
        stretches, durations_s = zip(*(self._stretched(step, each) for each in pieces), strict=True)
        readies_s, copies = [own.ready_s[each] for each in pieces], 1
        if self._steps is None and max(readies_s) <= self._env.now:  # only its end is asked for
            readies_s, durations_s, copies = [0.0], (sum(durations_s),), len(pieces)
        work = Work(readies_s, list(durations_s))

        def end() -> None:
            times_s = work.start_s * copies, work.end_s * copies
            *before, last = zip(pieces, *times_s, stretches, strict=True)
            for number, start_s, end_s, stretch in before:  # for which nobody waits
                own.end_s[number] = end_s
                self._record(step, number, start_s, end_s, stretch)
            own.tasks_left -= len(before)
            self._finish(state, step, *last)
            self._free(state, last[0])

        self._call_after(self._compute_resources[state.rank_class].compute(work), end)

    def _row(self, state: StreamState, index: int) -> tuple[int, ...]:
        """Return a task that starts, with those behind it up to one that others wait for."""
        row, behind, tasks = [index], state.at, self.plan.tasks
        while state.stream.workers == 1 and not self._graph.is_last[row[-1]]:
            task = tasks[state.tasks[behind]]
            if task.acquires or not isinstance(task.work, Compute):
                break
            row.append(state.tasks[behind])
            behind += 1
        self._rows[index] = tuple(row)
        return self._rows[index]

    def _take_time(self, state: StreamState, step: int, index: int) -> None:
        """Start a piece of work that nothing slows down, on the host or of a copy."""
        start_s, (stretch, duration_s) = self._env.now, self._stretched(step, index)

        def end() -> None:
            self._finish(state, step, index, start_s, self._env.now, stretch)
            self._free(state, index)

        self._call_after(self._env.timeout(duration_s), end)

    def _stretched(self, step: int, index: int) -> tuple[float, float]:
        """Factor on a task's work for its class, whose ranks have to be alike, and its duration."""
        work = self.plan.tasks[index].work
        assert isinstance(work, Compute)
        if self._stretch is None:
            return 1.0, work.duration_s
        factor = class_factor(self.plan.tasks[index], self._stretch(step, index))
        return factor, work.duration_s * factor

    # ------------------------------------------------------------ collectives

    def _join(self, state: StreamState, step: int, index: int, work: Collective) -> None:
        """Reach a collective, and start it once all of its classes have."""
        participants, now_s = self._participants[work.communicator][state.rank_class], self._env.now
        members, meets = [(state, index, now_s)], len(participants.classes) > 1
        if meets:
            members = self._rendezvous.reach(step, work, participants, members[0])
        if not members:
            return
        self._launch(step, work, participants, members)
        if meets and self._steps is not None:
            arrived_s = {each.rank_class: at_s for each, _, at_s in members}
            task = self.plan.tasks[index]
            self.arrivals.append(arrivals_of(task, step, arrived_s, self._classes, now_s))

    def _launch(
        self, step: int, work: Collective, participants: Participants, members: list[Member]
    ) -> None:
        """Start a collective on the network; its tasks end with it."""
        start_s, classes = self._env.now, participants.classes
        for name in classes:
            self._compute_resources[name].communicate(+1)
        instance = (step, work.key, classes[0])
        self._rendezvous.in_progress[instance] = (self.plan.tasks[members[-1][1]], classes)

        def finish() -> None:
            del self._rendezvous.in_progress[instance]
            for name in classes:
                self._compute_resources[name].communicate(-1)
            for state, index, _ in members:
                self._finish(state, step, index, start_s, self._env.now)
                self._free(state, index)

        call = self._calls[members[-1][1]]
        assert call is not None
        try:
            ended = self._network.collective(*call)
        except TopologyError as error:
            name = collective_text(*self._rendezvous.in_progress[instance])
            raise SimulationError(f"{name} cannot start: {error}") from error
        self._call_after(ended, finish)
        if self.on_collective is not None:
            self.on_collective(self.plan.tasks[members[-1][1]])

    def names_in_progress(self) -> list[str]:
        """Return the names of the collectives in progress, with the first of their classes."""
        return [collective_text(*each) for each in self._rendezvous.in_progress.values()]

    # ------------------------------------------------------------ deadlocks

    def _call_after(self, event: simpy.Event, call: Callable[[], None]) -> None:
        """Call when an event has happened; events are counted, to detect deadlocks."""
        self._busy += 1

        def happen(_: simpy.Event) -> None:
            call()
            self._busy -= 1
            if not self._busy and self.on_idle is not None:
                self.on_idle()

        assert event.callbacks is not None  # not processed before this instant is over
        event.callbacks.append(happen)

    @property
    def is_deadlocked(self) -> bool:
        """Whether nothing is in progress although the plan has not ended."""
        return not self._busy and not self.done.triggered

    def describe_deadlock(self) -> str:
        """Name the tasks that wait, and for what."""
        waiting = [
            f"{task.name} (step {step}){self._rendezvous.missing(task, step)}"
            for step, state in sorted(self._step_states.items())
            for index, task in enumerate(self.plan.tasks)
            if self._could_start(state, step, index)
        ]
        return f"the plan {self.plan.name!r} cannot finish; waiting: {', '.join(waiting[:8])}"

    def _could_start(self, own: StepState, step: int, index: int) -> bool:
        """Whether a task has not ended although nothing that it waits for is missing."""
        before, earlier = self._graph.own[index], self._graph.own_before[index]
        return not (
            own.waits[index]
            or not isnan(own.end_s[index])
            or (before >= 0 and isnan(own.end_s[before]))
            or (earlier >= 0 and step and isnan(self._step_states[step - 1].end_s[earlier]))
        )
