"""A stream is a process that starts its tasks in order; a task waits for its events.

When a DDP bucket starts stands in the plan: its task waits for those of its hooks, and its stream
has all buckets of a communicator in the order in which they are launched.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from perfmodel.simulate.engine.background import CollectiveArrivals, arrivals_of
from perfmodel.simulate.engine.outcome import Run, TaskExecution
from perfmodel.simulate.engine.rank_class import class_factor, participants_of
from perfmodel.simulate.network import Network, run_until
from perfmodel.simulate.reference.shared_links import Process
from perfmodel.simulate.uncontended.messages import root_in
from perfmodel.training.plan.step_plan import Collective, StepPlan, Stream, Task


def time_of(event: simpy.Event) -> float:
    """When something happened, which is the event's value."""
    return float(event.value)  # type: ignore[arg-type]  # SimPy: Any or None


@dataclass(eq=False)
class PlanProcesses:
    """A plan that runs for some steps; `stretch`: factor on a task's work, by step and index."""

    network: Network
    plan: StepPlan
    steps: int
    slowdown: float
    stretch: Callable[[int, int], Any] | None = None

    def __post_init__(self) -> None:
        env = self.env = self.network.env
        self.participants = participants_of(self.plan)
        self.classes = {each.name: each for each in self.plan.classes}
        self.groups = {each.name: each.groups for each in self.plan.communicators}
        self.semaphores = {
            (each.name, name): simpy.Container(env, init=capacity)
            for each in self.plan.classes
            for name, capacity in self.plan.semaphores
        }
        self.ended: dict[tuple[int, int], Any] = defaultdict(env.event)
        self.arrived: dict[Any, Any] = defaultdict(env.event)  # by collective and class
        self.collectives = dict[Any, simpy.Process]()
        self.communicating = Counter[str]()  # collectives in progress, by class
        self.turned: dict[str, simpy.Event] = defaultdict(env.event)  # a class, to another pace
        self.executions, self.arrivals = list[TaskExecution](), list[CollectiveArrivals]()
        self.step_ends_s = [0.0] * self.steps

    def run(self) -> Run:
        """Run the streams of all classes until every task of every step has ended."""
        for rank_class in self.plan.classes:
            for stream in self.plan.streams:
                self.env.process(self.stream(rank_class.name, stream))
        tasks = [(step, at) for step in range(self.steps) for at in range(len(self.plan.tasks))]
        run_until(self.env, self.env.all_of([self.ended[task] for task in tasks]), self.deadlock)
        return Run(self.executions, tuple(self.step_ends_s), self.network, tuple(self.arrivals))

    def stream(self, rank_class: str, stream: Stream) -> Process:
        """Start tasks in plan order, as many at a time as the stream has workers."""
        own, workers = (rank_class, stream.name), simpy.Resource(self.env, stream.workers)
        queue = [(at, t) for at, t in enumerate(self.plan.tasks) if (t.rank_class, t.stream) == own]
        for step in range(self.steps):
            for index, task in queue:
                yield (worker := workers.request())
                before = [self.ended[step, each] for each in task.after]
                before += [self.ended[step - 1, each] for each in task.after_previous if step]
                for event in before:  # noqa: UP028  # a list takes no values of events
                    yield event
                if task.acquires:
                    yield self.semaphores[rank_class, task.acquires].get(1)
                ready_s = max(map(time_of, before), default=0.0)
                self.env.process(self.task(step, index, ready_s, stream, worker))

    def task(self, step: int, index: int, ready_s: float, stream: Stream, worker: Any) -> Process:
        """Work or communicate; then free the stream, and let go on what waits for it."""
        task, start_s, factor = self.plan.tasks[index], self.env.now, 1.0
        if isinstance(task.work, Collective):
            start_s = yield from self.collective(step, task, task.work)
        else:
            factor = class_factor(task, self.stretch(step, index)) if self.stretch else 1.0
            slowdown = self.slowdown if stream.kind == "compute" else 1.0
            yield from self.compute(task.rank_class, task.work.duration_s * factor, slowdown)
        self.executions.append((task, step, start_s, self.env.now, ready_s, factor))
        if stream.kind != "host":
            self.step_ends_s[step] = self.env.now
        worker.resource.release(worker)
        if task.releases:
            self.semaphores[task.rank_class, task.releases].put(1)
        self.ended[step, index].succeed(self.env.now)

    def compute(self, rank_class: str, work_s: float, slowdown: float) -> Process:
        """Work, more slowly while a collective of the class is in progress."""
        while True:
            factor, since_s = slowdown if self.communicating[rank_class] else 1.0, self.env.now
            end = self.env.timeout(work_s * factor)
            yield end | self.turned[rank_class]
            if end.processed:
                return
            work_s = max(0.0, work_s - (self.env.now - since_s) / factor)

    def collective(self, step: int, task: Task, work: Collective) -> Process:
        """Arrive, and wait until all is over; return when it began."""
        key = step, work.key, self.participants[work.communicator][task.rank_class]
        if key not in self.collectives:
            self.collectives[key] = self.env.process(self.communicate(key, task, work))
        self.arrived[key, task.rank_class].succeed(self.env.now)
        return (yield self.collectives[key])

    def communicate(self, key: Any, task: Task, work: Collective) -> Process:
        """Start a collective when all of its classes have arrived; return when that was."""
        step, _, (classes, groups) = key
        for name in classes:
            yield self.arrived[key, name]
        start_s = self.env.now
        root = root_in(groups[0], self.groups[work.communicator], work.root)
        if len(classes) > 1:
            arrived_s = {name: time_of(self.arrived[key, name]) for name in classes}
            self.arrivals.append(arrivals_of(task, step, arrived_s, self.classes, start_s))
        self.turn(classes, +1)
        yield self.network.collective(work.op, work.nbytes, groups, root, work.times)
        self.turn(classes, -1)
        return start_s

    def turn(self, classes: Sequence[str], collectives: int) -> None:
        """Note that a collective of some classes begins or ends."""
        for name in classes:
            self.communicating[name] += collectives
            self.turned.pop(name, self.env.event()).succeed()

    def deadlock(self) -> str:
        """Name the tasks that wait."""
        waiting = [node for node, event in self.ended.items() if not event.triggered]
        names = [f"{self.plan.tasks[index].name} (step {step})" for step, index in waiting[:8]]
        return f"the plan {self.plan.name!r} cannot finish; waiting: {', '.join(names)}"
