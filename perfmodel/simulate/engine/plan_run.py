"""One StepPlan on its way through simulated time: its streams, its meetings, its steps.

Each stream of each rank class is a SimPy process that takes its tasks in plan order. A task starts
when its predecessors have ended and its stream is free; a collective starts when every class of its
party has reached it. Two things that happen at the same time happen in plan order.
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
from perfmodel.simulate.engine.background import Meeting
from perfmodel.simulate.engine.rank_class import Device, parties
from perfmodel.simulate.engine.run import span_of
from perfmodel.simulate.network import Network
from perfmodel.timeline import Span
from perfmodel.training.plan import Collective, Compute, RankClass, StepPlan, Stream, Task, Transfer

Steps = Generator[simpy.Event, Any, None]
Stretch = Callable[[int, int], float | NDArray[np.float64]]
"""How much longer a task's work is, by step and index: for its class, or for each of its ranks."""

AHEAD = 8
"""Steps that a job without an end may run ahead of its slowest stream: bounds what is kept."""


@dataclass(slots=True)
class _Gathering:
    """Classes on their way to one collective."""

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
        self.plan, self.spans = plan, list[Span]()
        self.meetings: list[Meeting] = []
        self.step_ends_s: list[float] = []
        self._env, self._network, self._steps = env, network, steps
        self._start_s, self._stretch = start_s, stretch
        self._devices = {c.name: Device(env, slowdown) for c in plan.classes}
        self._parties = parties(plan)
        self._ranks = {c.name: c.ranks for c in plan.classes}
        self._ended: dict[int, list[Any]] = {}
        self._left: dict[int, int] = {}
        self._over: dict[int, simpy.Event] = {}
        self._gathering: dict[tuple[int, str, str], _Gathering] = {}
        self._free = {
            (c.name, name): simpy.Container(env, capacity, init=capacity)
            for c in plan.classes
            for name, capacity in plan.semaphores
        }
        self._on_host = {stream.name for stream in plan.streams if stream.kind == "host"}
        self._busy = 0
        self.idle: Callable[[], None] | None = None
        self.under_way: dict[tuple[int, str, str], str] = {}
        self.done = self._start()

    def _start(self) -> simpy.Event:
        return self._env.all_of(
            [
                self._env.process(self._serve(stream, self._queue(rank_class, stream)))
                for rank_class in self.plan.classes
                for stream in self.plan.streams
            ]
        )

    # ------------------------------------------------------------ steps

    def _queue(self, rank_class: RankClass, stream: Stream) -> Iterator[tuple[int, int]]:
        """Tasks of one stream, step after step."""
        mine = [
            index
            for index, task in enumerate(self.plan.tasks)
            if task.rank_class == rank_class.name and task.stream == stream.name
        ]
        steps = itertools.count() if self._steps is None else range(self._steps)
        return ((step, index) for step in (steps if mine else ()) for index in mine)

    def _events(self, step: int) -> list[Any]:
        """One event per task of a step; fires with the time at which the task ended."""
        if step not in self._ended:
            self._ended[step] = [self._env.event() for _ in self.plan.tasks]
            self._left[step] = len(self.plan.tasks)
            self._over[step] = self._env.event()
            if self._steps is None:
                self._forget(step - 2 * AHEAD)
        return self._ended[step]

    def _forget(self, step: int) -> None:
        for kept in (self._ended, self._left, self._over):
            kept.pop(step, None)

    def _end(self, task: Task, step: int, index: int) -> None:
        """Say that a task has ended, and with the last one of a step that the step has."""
        now = self._env.now
        self._events(step)[index].succeed(now)
        self._left[step] -= 1
        if task.stream not in self._on_host:
            while len(self.step_ends_s) <= step:
                self.step_ends_s.append(0.0)
            self.step_ends_s[step] = now
        if not self._left[step]:
            self._over[step].succeed()

    @property
    def completed_s(self) -> tuple[float, ...]:
        """When each step ended that has ended as a whole; seconds since the start of the run."""
        last = next((s for s, left in sorted(self._left.items()) if left), len(self.step_ends_s))
        return tuple(self.step_ends_s[:last])

    # ------------------------------------------------------------ streams

    def _serve(self, stream: Stream, queue: Iterator[tuple[int, int]]) -> Steps:
        """Start the tasks of one stream in order, as many at a time as it has workers."""
        if self._start_s:
            yield self._hold(self._env.timeout(self._start_s))
        if stream.workers == 1:
            for step, index in queue:
                yield from self._do(stream, step, index)
            return
        free = simpy.Resource(self._env, stream.workers)
        started: list[simpy.Event] = []
        for step, index in queue:
            worker = free.request()
            yield worker
            begun = self._env.event()
            started.append(self._env.process(self._lend(free, worker, stream, step, index, begun)))
            yield begun  # nothing overtakes at the head of the queue
            started = [one for one in started if not one.processed]
        yield self._env.all_of(started)

    def _lend(
        self,
        free: simpy.Resource,
        worker: simpy.resources.resource.Request,
        stream: Stream,
        step: int,
        index: int,
        begun: simpy.Event,
    ) -> Steps:
        """Do a task with a worker, which is free again afterwards."""
        yield from self._do(stream, step, index, begun)
        free.release(worker)

    def _do(self, stream: Stream, step: int, index: int, begun: simpy.Event | None = None) -> Steps:
        """Wait for what a task depends on, do it, and say that it has ended."""
        task, ready_s = self.plan.tasks[index], 0.0
        if self._steps is None and step >= AHEAD and not self._over[step - AHEAD].processed:
            yield self._over[step - AHEAD]
        for event in self._waits(task, step):
            if not event.processed:
                yield event
            ended_s: float = event.value  # type: ignore[assignment]  # succeeded with a time
            ready_s = max(ready_s, ended_s)
        if task.acquires:
            yield self._free[task.rank_class, task.acquires].get(1)
        if begun:
            begun.succeed()
        start_s, stretch = self._env.now, 1.0
        if isinstance(task.work, Compute):
            stretch = 1.0 if self._stretch is None else self._of_class(step, index)
            yield self._compute(task, task.work.duration_s * stretch, stream)
            if task.core_s > 0:
                self._network.occupy(task.core_s, len(self._ranks[task.rank_class]))
        else:
            start_s = yield self._meet(task, task.work, step)
        if task.releases:
            yield self._free[task.rank_class, task.releases].put(1)
        if self._steps is not None:
            self.spans.append(span_of(task, step, start_s, self._env.now, ready_s, stretch))
        self._end(task, step, index)

    def _waits(self, task: Task, step: int) -> list[simpy.Event]:
        now = self._events(step)
        events = [now[index] for index in task.after]
        if step and task.after_previous:
            before = self._events(step - 1)
            events += [before[index] for index in task.after_previous]
        return events

    def _of_class(self, step: int, index: int) -> float:
        """How much longer a task's work is for its class, whose ranks have to be alike."""
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
            return self._hold(self._devices[task.rank_class].compute(duration_s))
        return self._hold(self._env.timeout(duration_s))

    # ------------------------------------------------------------ meetings

    def _meet(self, task: Task, work: Collective | Transfer, step: int) -> simpy.Event:
        """Wait for the other classes of a collective, then for its end.

        The event's value is the time at which the collective started.
        """
        classes = self._who(task, work)
        key = (step, work.key, classes[0])
        gathering = self._gathering.setdefault(key, _Gathering(self._env.event()))
        name = task.rank_class
        if isinstance(work, Transfer) and classes[0] == classes[1]:
            name = f"{name}, {len(gathering.arrived_s)}"  # both ends are of one class
        gathering.arrived_s[name] = self._env.now
        if len(gathering.arrived_s) == len(classes):
            del self._gathering[key]
            self._begin(key, task, work, classes, gathering.started)
            if len(set(classes)) > 1 and self._steps is not None:
                self._note(task, step, gathering.arrived_s)
        return gathering.started

    def _owner(self, rank: int) -> str:
        return next(name for name, ranks in self._ranks.items() if rank in ranks)

    def _begin(
        self,
        key: tuple[int, str, str],
        task: Task,
        work: Collective | Transfer,
        classes: tuple[str, ...],
        meeting: simpy.Event,
    ) -> None:
        """Put a collective or a message on the network; `meeting` fires when it has ended."""
        start_s, members = self._env.now, set(classes)
        for name in members:
            self._devices[name].communicate(+1)
        self.under_way[key] = f"{task.name} ({', '.join(classes[:4])})"

        def finish(_: simpy.Event) -> None:
            del self.under_way[key]
            for name in members:
                self._devices[name].communicate(-1)
            meeting.succeed(start_s)

        try:
            if isinstance(work, Collective):
                groups = self._parties[work.communicator][task.rank_class].groups
                ended = self._network.collective(work.op, work.nbytes, groups, work.root)
            else:
                ended = self._network.message(work.src_rank, work.dst_rank, work.nbytes)
        except TopologyError as error:
            raise SimulationError(f"{self.under_way[key]} cannot start: {error}") from error
        assert ended.callbacks is not None  # not processed before this instant is over
        ended.callbacks.append(finish)
        self._hold(ended)

    def _note(self, task: Task, step: int, arrived_s: dict[str, float]) -> None:
        """Write down who came last and how long the others waited."""
        now = self._env.now
        last = max(arrived_s, key=lambda name: arrived_s[name])
        waits = [(len(self._ranks[name]), now - at) for name, at in arrived_s.items()]
        waited_s = sum(n * wait for n, wait in waits) / (sum(n for n, _ in waits) - 1)
        longest_s = max(wait for _, wait in waits)
        rank = self._ranks[last][0]
        self.meetings.append(
            Meeting(step, task.name, task.bucket, now, last, rank, waited_s, longest_s)
        )

    # ------------------------------------------------------------ what cannot go on

    def _hold(self, event: simpy.Event) -> simpy.Event:
        """Count what is under way, where somebody wants to know that nothing is."""
        if self.idle is not None:
            self._busy += 1
            assert event.callbacks is not None
            event.callbacks.append(self._let_go)
        return event

    def _let_go(self, _: simpy.Event) -> None:
        self._busy -= 1
        if not self._busy and self.idle is not None:
            self.idle()

    @property
    def is_stuck(self) -> bool:
        """Whether nothing is under way although the plan has not ended."""
        return not self._busy and not self.done.triggered

    def waiting(self) -> str:
        """Name what waits for what."""
        found = [
            f"{self.plan.tasks[index].name} (step {step})"
            f"{self._missing(self.plan.tasks[index], step)}"
            for step in sorted(self._ended)
            for index, event in enumerate(self._ended[step])
            if not event.triggered
            and all(e.triggered for e in self._waits(self.plan.tasks[index], step))
        ]
        return f"the plan {self.plan.name!r} cannot finish; waiting: {', '.join(found[:8])}"

    def _missing(self, task: Task, step: int) -> str:
        """Say which class a task is of, and which classes it has met a collective without."""
        mine = f" of {task.rank_class!r}" if len(self.plan.classes) > 1 else ""
        if isinstance(task.work, Compute):
            return mine
        classes = self._who(task, task.work)
        gathering = self._gathering.get((step, task.work.key, classes[0]))
        if gathering is None or task.rank_class not in gathering.arrived_s:
            return mine
        gone = [repr(name) for name in classes if name not in gathering.arrived_s]
        return f"{mine} for {', '.join(gone[:4])}"

    def _who(self, task: Task, work: Collective | Transfer) -> tuple[str, ...]:
        """Classes that meet in a collective or a message, in a fixed order."""
        if isinstance(work, Collective):
            return self._parties[work.communicator][task.rank_class].classes
        return tuple(self._owner(rank) for rank in (work.src_rank, work.dst_rank))
