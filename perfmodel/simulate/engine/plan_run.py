"""A StepPlan in progress: its streams, collectives and steps.

Each stream of each rank class is a SimPy process that runs its tasks in plan order. A task starts
when its predecessors have ended and its stream is free; a collective starts when all participating
classes have reached it. Simultaneous events happen in plan order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from perfmodel.errors import SimulationError, TopologyError
from perfmodel.simulate.engine.background import CollectiveArrivals
from perfmodel.simulate.engine.outcome import TaskExecution
from perfmodel.simulate.engine.rank_class import ComputeResource, participants_of
from perfmodel.simulate.network import Network
from perfmodel.training.plan.step_plan import (
    Collective,
    Compute,
    RankClass,
    StepPlan,
    Stream,
    Task,
)

Steps = Generator[simpy.Event, Any, None]
Stretch = Callable[[int, int], float | NDArray[np.float64]]
"""Factor on a task's work, by step and index: for its class, or for each of its ranks."""

MAX_STEPS_AHEAD = 8
"""Steps that a job without an end may be ahead of its slowest stream, to bound memory."""


@dataclass(slots=True)
class _PendingCollective:
    """A collective that not all classes have reached yet."""

    started: simpy.Event
    arrived_s: dict[str, float] = field(default_factory=dict)


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
        self._env, self._network, self._steps = env, network, steps
        self._start_s, self._stretch = start_s, stretch
        self._compute_resources = {c.name: ComputeResource(env, slowdown) for c in plan.classes}
        self._participants = participants_of(plan)
        self._ranks = {c.name: c.ranks for c in plan.classes}
        self._depended_on = {i for task in plan.tasks for i in (*task.after, *task.after_previous)}
        self._task_ends: dict[int, dict[int, simpy.Event]] = {}
        self._has_ended: dict[int, bytearray] = {}
        self._tasks_left: dict[int, int] = {}
        self._step_ends: dict[int, simpy.Event] = {}
        self._pending: dict[tuple[int, str, str], _PendingCollective] = {}
        self._semaphores = {
            (c.name, name): simpy.Container(env, capacity, init=capacity)
            for c in plan.classes
            for name, capacity in plan.semaphores
        }
        self._host_streams = {stream.name for stream in plan.streams if stream.kind == "host"}
        self._queues: dict[tuple[str, str], list[int]] = {}
        self._busy = 0
        self.on_idle: Callable[[], None] | None = None
        self.in_progress: dict[tuple[int, str, str], str] = {}
        self.done = self._start()

    def _start(self) -> simpy.Event:
        for index, task in enumerate(self.plan.tasks):
            self._queues.setdefault((task.rank_class, task.stream), []).append(index)
        return self._env.all_of(
            [
                self._env.process(self._run_stream(stream, self._queue(rank_class, stream)))
                for rank_class in self.plan.classes
                for stream in self.plan.streams
            ]
        )

    # ------------------------------------------------------------ steps

    def _queue(self, rank_class: RankClass, stream: Stream) -> Iterator[tuple[int, int]]:
        """Tasks of one stream, step after step."""
        mine = self._queues.get((rank_class.name, stream.name), ())
        steps = itertools.count() if self._steps is None else range(self._steps)
        return ((step, index) for step in (steps if mine else ()) for index in mine)

    def _events(self, step: int) -> dict[int, simpy.Event]:
        """Return events of a step that fire with the time at which a task ended.

        By index, of the tasks that others depend on.
        """
        if step not in self._task_ends:
            self._task_ends[step] = {index: self._env.event() for index in self._depended_on}
            self._has_ended[step] = bytearray(len(self.plan.tasks))
            self._tasks_left[step] = len(self.plan.tasks)
            self._step_ends[step] = self._env.event()
            if self._steps is None:
                self._forget(step - 2 * MAX_STEPS_AHEAD)
        return self._task_ends[step]

    def _forget(self, step: int) -> None:
        for records in (self._task_ends, self._has_ended, self._tasks_left, self._step_ends):
            records.pop(step, None)

    def _end(self, task: Task, step: int, index: int, now: float) -> None:
        """Fire the event of a task, and with the last task of a step that of the step."""
        if index in self._depended_on:
            self._task_ends[step][index].succeed(now)
        self._has_ended[step][index] = True
        self._tasks_left[step] -= 1
        if task.stream not in self._host_streams:
            while len(self.step_ends_s) <= step:
                self.step_ends_s.append(0.0)
            self.step_ends_s[step] = now
        if not self._tasks_left[step]:
            self._step_ends[step].succeed()

    @property
    def completed_s(self) -> tuple[float, ...]:
        """Ends of the steps of which all tasks have ended; seconds since the start of the run."""
        last = next(
            (s for s, tasks in sorted(self._tasks_left.items()) if tasks), len(self.step_ends_s)
        )
        return tuple(self.step_ends_s[:last])

    # ------------------------------------------------------------ streams

    def _run_stream(self, stream: Stream, queue: Iterator[tuple[int, int]]) -> Steps:
        """Start the tasks of one stream in order, as many at a time as it has workers."""
        if self._start_s:
            yield self._track(self._env.timeout(self._start_s))
        if stream.workers == 1:
            for step, index in queue:
                yield from self._run_task(stream, step, index)
            return
        free = simpy.Resource(self._env, stream.workers)
        started: list[simpy.Event] = []
        for step, index in queue:
            worker = free.request()
            yield worker
            begun = self._env.event()
            started.append(
                self._env.process(self._run_on_worker(free, worker, stream, step, index, begun))
            )
            yield begun  # nothing overtakes at the head of the queue
            started = [task for task in started if not task.processed]
        yield self._env.all_of(started)

    def _run_on_worker(
        self,
        free: simpy.Resource,
        worker: simpy.resources.resource.Request,
        stream: Stream,
        step: int,
        index: int,
        begun: simpy.Event,
    ) -> Steps:
        """Run a task on a worker, and release it."""
        yield from self._run_task(stream, step, index, begun)
        free.release(worker)

    def _run_task(
        self, stream: Stream, step: int, index: int, begun: simpy.Event | None = None
    ) -> Steps:
        """Wait for the dependencies of a task, run it, and fire its event."""
        task, ready_s = self.plan.tasks[index], 0.0
        work = task.work
        if (
            self._steps is None
            and step >= MAX_STEPS_AHEAD
            and not self._step_ends[step - MAX_STEPS_AHEAD].processed
        ):
            yield self._step_ends[step - MAX_STEPS_AHEAD]
        for event in self._dependencies(task, step):
            if not event.processed:
                yield event
            ended_s: float = event.value  # type: ignore[assignment]  # succeeded with a time
            ready_s = max(ready_s, ended_s)
        if task.acquires:
            yield self._semaphores[task.rank_class, task.acquires].get(1)
        if begun:
            begun.succeed()
        start_s, stretch = self._env.now, 1.0
        if isinstance(work, Compute):
            stretch = 1.0 if self._stretch is None else self._class_stretch(step, index)
            yield self._compute(task, work.duration_s * stretch, stream)
            if task.core_s > 0:
                self._network.occupy(task.core_s, len(self._ranks[task.rank_class]))
        else:
            start_s = yield self._join(task, work, step)
        if task.releases:
            yield self._semaphores[task.rank_class, task.releases].put(1)
        now = self._env.now
        if self._steps is not None:
            self.executions.append((task, step, start_s, now, ready_s, stretch))
        self._end(task, step, index, now)

    def _dependencies(self, task: Task, step: int) -> list[simpy.Event]:
        ends = self._events(step)
        events = [ends[index] for index in task.after]
        if step and task.after_previous:
            ends_before = self._events(step - 1)
            events += [ends_before[index] for index in task.after_previous]
        return events

    def _class_stretch(self, step: int, index: int) -> float:
        """Factor on a task's work for its class, whose ranks have to be alike."""
        assert self._stretch is not None
        factor = np.asarray(self._stretch(step, index))
        if factor.size > 1 and (factor != factor.flat[0]).any():
            task = self.plan.tasks[index]
            raise SimulationError(
                f"{task.name}: ranks of class {task.rank_class!r} differ; split the class first"
            )
        return float(factor.flat[0])

    def _compute(self, task: Task, duration_s: float, stream: Stream) -> simpy.Event:
        """Start work on the device, or on the host, which communication does not slow down."""
        if stream.kind == "compute":
            return self._track(self._compute_resources[task.rank_class].compute(duration_s))
        return self._track(self._env.timeout(duration_s))

    # ------------------------------------------------------------ collectives

    def _join(self, task: Task, work: Collective, step: int) -> simpy.Event:
        """Wait for the other classes of a collective, then for its end.

        The event's value is the time at which the collective started.
        """
        classes = self._classes_of(task, work)
        key = (step, work.key, classes[0])
        pending = self._pending.setdefault(key, _PendingCollective(self._env.event()))
        pending.arrived_s[task.rank_class] = self._env.now
        if len(pending.arrived_s) == len(classes):
            del self._pending[key]
            self._launch(key, task, work, classes, pending.started)
            if len(classes) > 1 and self._steps is not None:
                self._record_arrivals(task, step, pending.arrived_s)
        return pending.started

    def _launch(
        self,
        key: tuple[int, str, str],
        task: Task,
        work: Collective,
        classes: tuple[str, ...],
        started: simpy.Event,
    ) -> None:
        """Start a collective on the network; `started` fires when it has ended."""
        start_s = self._env.now
        for name in classes:
            self._compute_resources[name].communicate(+1)
        self.in_progress[key] = f"{task.name} ({', '.join(classes[:4])})"

        def finish(_: simpy.Event) -> None:
            del self.in_progress[key]
            for name in classes:
                self._compute_resources[name].communicate(-1)
            started.succeed(start_s)

        try:
            groups = self._participants[work.communicator][task.rank_class].groups
            ended = self._network.collective(work.op, work.nbytes, groups, work.root, work.times)
        except TopologyError as error:
            raise SimulationError(f"{self.in_progress[key]} cannot start: {error}") from error
        assert ended.callbacks is not None  # not processed before this instant is over
        ended.callbacks.append(finish)
        self._track(ended)

    def _record_arrivals(self, task: Task, step: int, arrived_s: dict[str, float]) -> None:
        """Record which class arrived last and how long the others waited."""
        now = self._env.now
        last = max(arrived_s, key=lambda name: arrived_s[name])
        waits = [(len(self._ranks[name]), now - at) for name, at in arrived_s.items()]
        waited_s = sum(n * wait for n, wait in waits) / (sum(n for n, _ in waits) - 1)
        longest_s = max(wait for _, wait in waits)
        rank = self._ranks[last][0]
        self.arrivals.append(
            CollectiveArrivals(step, task.name, task.bucket, now, last, rank, waited_s, longest_s)
        )

    # ------------------------------------------------------------ deadlocks

    def _track(self, event: simpy.Event) -> simpy.Event:
        """Count events in progress, where deadlocks have to be detected."""
        if self.on_idle is not None:
            self._busy += 1
            assert event.callbacks is not None
            event.callbacks.append(self._untrack)
        return event

    def _untrack(self, _: simpy.Event) -> None:
        self._busy -= 1
        if not self._busy and self.on_idle is not None:
            self.on_idle()

    @property
    def is_deadlocked(self) -> bool:
        """Whether nothing is in progress although the plan has not ended."""
        return not self._busy and not self.done.triggered

    def describe_deadlock(self) -> str:
        """Name the tasks that wait, and for what."""
        waiting = [
            f"{self.plan.tasks[index].name} (step {step})"
            f"{self._missing_classes(self.plan.tasks[index], step)}"
            for step in sorted(self._task_ends)
            for index, has_ended in enumerate(self._has_ended[step])
            if not has_ended
            and all(e.triggered for e in self._dependencies(self.plan.tasks[index], step))
        ]
        return f"the plan {self.plan.name!r} cannot finish; waiting: {', '.join(waiting[:8])}"

    def _missing_classes(self, task: Task, step: int) -> str:
        """Name the class of a task, and the classes that its collective waits for."""
        mine = f" of {task.rank_class!r}" if len(self.plan.classes) > 1 else ""
        if isinstance(task.work, Compute):
            return mine
        classes = self._classes_of(task, task.work)
        pending = self._pending.get((step, task.work.key, classes[0]))
        if pending is None or task.rank_class not in pending.arrived_s:
            return mine
        missing = [repr(name) for name in classes if name not in pending.arrived_s]
        return f"{mine} for {', '.join(missing[:4])}"

    def _classes_of(self, task: Task, work: Collective) -> tuple[str, ...]:
        """Classes that take part in a collective, in a fixed order."""
        return self._participants[work.communicator][task.rank_class].classes
