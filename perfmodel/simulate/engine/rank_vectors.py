"""Ranks that differ, as vectors: a recurrence over their clocks instead of a process for each.

Every stream of a class has a clock for each of its ranks. Compute advances each clock by its time
on that rank; a collective starts when the last rank has arrived, takes the time that the network
needs for it then, and leaves all clocks equal. That is what the engine does with one class for
every rank, as long as at most one collective of the plan is in progress at a time (see
`why_unsuited`).

The order in which a recurrence computes the tasks of a plan: dependencies first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import Literal

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.errors import SimulationError
from perfmodel.library.machine import Machine
from perfmodel.memo import grouped
from perfmodel.simulate.engine.background import CollectiveArrivals, arrivals_of
from perfmodel.simulate.engine.collective_times import CollectiveTimes, TimesAlone, TimesAmongOthers
from perfmodel.simulate.engine.engine import (
    Fidelity,
    Surroundings,
    expect_changes,
    on_network,
)
from perfmodel.simulate.engine.outcome import Observations, Run, TaskExecution
from perfmodel.simulate.engine.plan_run import Stretch
from perfmodel.simulate.engine.task_graph import Clock, Dependencies, delay_work, dependencies
from perfmodel.simulate.network import Network
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.training.plan.step_plan import Collective, Compute, StepPlan, Task

ALONE = Surroundings()

FEW_COLLECTIVES = 4
"""Collectives during a piece of work up to which it is delayed by one after the other."""


def simulate_ranks(
    plan: StepPlan,
    machine: Machine,
    *,
    steps: int = 1,
    fidelity: Fidelity | Literal["free"] = "flow",
    overlap_slowdown: float | None = None,
    timer: UncontendedTimer | None = None,
    stretch: Stretch | None = None,
    surroundings: Surroundings = ALONE,
) -> Run:
    """Run a plan whose ranks differ for some steps.

    Parameters
    ----------
    plan, machine, steps, fidelity, overlap_slowdown, timer
        As for `perfmodel.simulate.engine.engine.simulate`.
    stretch : callable, optional
        Factor on a task's work on each rank of its class, by step and index.
    surroundings : Surroundings
        Changes of the machine, other traffic and other jobs.

    Returns
    -------
    Run
        Its spans are those of the first rank of each class.

    Raises
    ------
    SimulationError
        The recurrence would not be exact for this plan, or the plan cannot finish.
    """
    reason = why_unsuited(plan)
    if reason:
        raise SimulationError(f"ranks of {plan.name!r} cannot be a vector: {reason}")
    slowdown = (
        machine.topology.gpu.overlap_slowdown if overlap_slowdown is None else overlap_slowdown
    )
    timer = timer or UncontendedTimer(machine)
    if not surroundings:
        return _Recurrence(plan, TimesAlone(plan, timer, fidelity), steps, slowdown, stretch).run()
    expect_changes(timer, plan, steps, surroundings)

    def run(network: Network) -> Run:
        return _Recurrence(
            plan, TimesAmongOthers(plan, machine, network, surroundings), steps, slowdown, stretch
        ).run()

    return on_network(timer, fidelity, run, changes=surroundings.change_network)


class _Recurrence:
    """A run of a plan in which each stream of a rank class has one clock per rank, as arrays."""

    def __init__(
        self,
        plan: StepPlan,
        times: CollectiveTimes,
        steps: int,
        slowdown: float,
        stretch: Stretch | None,
    ) -> None:
        self._plan, self._times, self._steps = plan, times, steps
        self._slowdown, self._stretch = slowdown, stretch
        self._kind = {stream.name: stream.kind for stream in plan.streams}
        self._classes = {c.name: c for c in plan.classes}
        self._clock: dict[tuple[str, str], Clock] = {}
        self._end: dict[Node, Clock] = {}
        self._uses = Counter(i for task in plan.tasks for i in (*task.after, *task.after_previous))
        self._uses_left: dict[Node, int] = {}
        self._from_s: list[float] = []  # of the collectives so far, which never overlap
        self._to_s: list[float] = []
        self._executions: list[TaskExecution] = []
        self._arrivals_seen: list[CollectiveArrivals] = []
        self._step_ends = [0.0] * steps
        self._end_s = 0.0
        # of those on one stream the last ends last
        self._last_tasks = {(t.rank_class, t.stream): at for at, t in enumerate(plan.tasks)}

    def run(self) -> Run:
        for nodes in execution_order(self._plan, self._steps):
            step, index = nodes[0]
            task = self._plan.tasks[index]
            if isinstance(task.work, Compute):
                self._compute(step, index, task, task.work.duration_s)
            elif isinstance(task.work, Collective):
                self._run_collective(nodes, task.work)
        return Run(
            self._executions,
            tuple(self._step_ends),
            Observations(self._times.counted(self._end_s), self._times.notes),
            tuple(self._arrivals_seen),
            self._times.others_step_ends_s,
        )

    # ------------------------------------------------------------ tasks

    def _compute(self, step: int, index: int, task: Task, duration_s: float) -> None:
        stretch = 1.0 if self._stretch is None else self._stretch(step, index)
        ready = self._ready(step, task)
        start = _later(ready, self._clock.get((task.rank_class, task.stream), 0.0))
        end = start + duration_s * stretch
        if self._kind[task.stream] == "compute" and self._slowdown > 1.0:
            end = self._slowed(start, end)
        self._record(step, index, task, ready, start, end, stretch)

    def _run_collective(self, nodes: tuple[Node, ...], work: Collective) -> None:
        """Start a collective when the last rank has arrived; it ends for all ranks at once."""
        step = nodes[0][0]
        tasks = [self._plan.tasks[index] for _, index in nodes]
        ready = [self._ready(step, task) for task in tasks]
        arrived = [
            _later(at, self._clock.get((task.rank_class, task.stream), 0.0))
            for task, at in zip(tasks, ready, strict=True)
        ]
        start_s = max(_last(at) for at in arrived)
        end_s = start_s + self._times.takes_s(tasks, work, start_s)
        if self._to_s and start_s == self._to_s[-1]:
            self._to_s[-1] = end_s
        elif end_s > start_s:
            self._from_s.append(start_s)
            self._to_s.append(end_s)
        for (_, index), task, at in zip(nodes, tasks, ready, strict=True):
            self._record(step, index, task, at, start_s, end_s)
        if sum(len(self._classes[task.rank_class].ranks) for task in tasks) > 1:
            task, at = max(zip(tasks, arrived, strict=True), key=lambda each: _last(each[1]))
            means_s = {
                each.rank_class: float(np.mean(own))
                for each, own in zip(tasks, arrived, strict=True)
            }
            self._arrivals_seen.append(
                arrivals_of(task, step, means_s, self._classes, start_s)._replace(
                    last=task.rank_class,
                    last_rank=self._classes[task.rank_class].ranks[int(np.argmax(at))],
                    longest_s=start_s - min(_soonest(at) for at in arrived),
                )
            )

    def _ready(self, step: int, task: Task) -> Clock:
        """Return when all dependencies of a task have ended, on each rank."""
        ready: Clock = 0.0
        waits = [
            *((step, index) for index in task.after),
            *((step - 1, index) for index in (task.after_previous if step else ())),
        ]
        for node in waits:
            ended = self._end[node]
            if self._plan.tasks[node[1]].rank_class != task.rank_class:
                ended = _last(ended)
            ready = _later(ready, ended)
            self._uses_left[node] -= 1
            if not self._uses_left[node]:
                del self._end[node], self._uses_left[node]
        return ready

    def _record(
        self,
        step: int,
        index: int,
        task: Task,
        ready: Clock,
        start: Clock,
        end: Clock,
        stretch: Clock = 1.0,
    ) -> None:
        """Update the clocks of a task's stream, and record the span of the first rank."""
        self._clock[task.rank_class, task.stream] = end
        if self._uses[index]:
            self._end[step, index] = end
            self._uses_left[step, index] = self._uses[index]
        if self._last_tasks[task.rank_class, task.stream] == index:
            last_s = _last(end)
            self._end_s = max(self._end_s, last_s)
            if self._kind[task.stream] != "host":
                self._step_ends[step] = max(self._step_ends[step], last_s)
        self._executions.append(
            (task, step, _first(start), _first(end), _first(ready), _first(stretch))
        )

    def _slowed(self, start: Clock, end: Clock) -> Clock:
        """Delay compute by the collectives that were in progress meanwhile.

        During a collective, work runs at 1 / slowdown of its speed. `end` is when the work ends
        without further collectives; each one delays it.
        """
        if not self._to_s or self._to_s[-1] <= (earliest := _soonest(start)):
            return end
        latest, first = _last(end), bisect_right(self._to_s, earliest)
        slowest = self._slowdown * latest - (self._slowdown - 1.0) * earliest
        past = bisect_left(self._from_s, slowest, lo=first)
        if past - first > FEW_COLLECTIVES:
            from_s = np.maximum(self._from_s[first:past], earliest)
            return _delay_by_many(start, end, from_s, self._to_s[first:past], self._slowdown)
        for begin_s, stop_s in zip(self._from_s[first:past], self._to_s[first:past], strict=True):
            overlap = _later(start, begin_s) if begin_s > earliest else start
            end = delay_work(end, (overlap, stop_s), self._slowdown)
        return end


def _delay_by_many(
    start: Clock, end: Clock, from_s: FloatArray, to_s: Sequence[float], slowdown: float
) -> Clock:
    """Delay work as `delay_work` does by one collective after the other, by all of them at once.

    What a rank could have done by a time is the same function of time for all of them, of straight
    lines: it is read at a rank's start, and from there on in the other direction.
    """
    origin_s = _soonest(start)
    times_s = np.empty(2 * len(from_s) + 2)
    times_s[0], times_s[1:-1:2], times_s[2:-1:2] = origin_s, from_s, to_s
    times_s[-1] = max(to_s[-1], slowdown * _last(end) - (slowdown - 1.0) * origin_s)
    speeds = np.ones(len(times_s) - 1)
    speeds[1::2] = 1.0 / slowdown
    done_s = np.concatenate([[0.0], np.cumsum(np.diff(times_s) * speeds)])
    delayed_s = np.interp(np.interp(start, times_s, done_s) + (end - start), done_s, times_s)
    return delayed_s if isinstance(delayed_s, np.ndarray) else float(delayed_s)


def _later(a: Clock, b: Clock) -> Clock:
    return max(a, b) if isinstance(a, float) and isinstance(b, float) else np.maximum(a, b)


def _last(at: Clock) -> float:
    return at if isinstance(at, float) else float(at.max())


def _soonest(at: Clock) -> float:
    return at if isinstance(at, float) else float(at.min())


def _first(at: Clock) -> float:
    return at if isinstance(at, float) else float(at[0])


Node = tuple[int, int]
"""A task of a step: (step, index)."""


def why_unsuited(plan: StepPlan) -> str | None:
    """Say why a recurrence over rank clocks would not be exact; None if it is.

    It is where at most one collective is in progress at a time and all ranks take part in it.
    """
    used = {task.stream for task in plan.tasks}
    collective_streams = {task.stream for task in plan.tasks if isinstance(task.work, Collective)}
    used_communicators = {
        task.work.communicator for task in plan.tasks if isinstance(task.work, Collective)
    }
    all_ranks = {rank for each in plan.classes for rank in each.ranks}
    reasons = (
        (bool(plan.semaphores), "semaphores bound what is in flight"),
        (
            any(stream.workers > 1 for stream in plan.streams if stream.name in used),
            "a stream has several workers, so that collectives share links",
        ),
        (
            len(collective_streams) > 1 and not _take_turns(plan),
            "collectives run on several streams, so that they share links",
        ),
        *(
            (
                len(each.groups) > 1 or set(each.groups[0]) != all_ranks,
                f"not all ranks meet in each collective of {each.name!r}",
            )
            for each in plan.communicators
            if each.name in used_communicators
        ),
    )
    return next((reason for holds, reason in reasons if holds), None)


def _take_turns(plan: StepPlan) -> bool:
    """Whether each collective waits for the one before it, also from one step to the next."""
    in_step: Dependencies = [(task.after, ()) for task in plan.tasks]
    for each in plan.classes:
        members = [
            index
            for index, task in enumerate(plan.tasks)
            if task.rank_class == each.name and isinstance(task.work, Collective)
        ]
        for before, index in pairwise(members):
            task = plan.tasks[index]
            if before not in task.after and task.stream != plan.tasks[before].stream:
                return False
        if members:
            ends = tuple((0, index) for index in plan.tasks[members[0]].after_previous)
            if (0, members[-1]) not in {*ends, *_ancestors(in_step, ends, set())}:
                return False
    return True


def execution_order(plan: StepPlan, steps: int) -> Iterator[tuple[Node, ...]]:
    """Return the tasks of some steps, each after its dependencies; those of a collective together.

    A collective comes as early as possible, right behind its dependencies: when a piece of compute
    is timed, every collective that may slow it down has been.

    Raises `SimulationError`: tasks that wait for each other.
    """
    keys = grouped(
        (task.work.key, index)
        for index, task in enumerate(plan.tasks)
        if isinstance(task.work, Collective)
    )
    waits, done = dependencies(plan), set[Node]()
    for step in range(steps):
        for key, members in keys.items():
            together = tuple((step, index) for index in members)
            needed = _ancestors(waits, together, done)
            if any(isinstance(plan.tasks[index].work, Collective) for _, index in needed):
                raise SimulationError(
                    f"the plan {plan.name!r} cannot finish; waiting: {key!r} (step {step}), for a "
                    f"collective that is launched after it"
                )
            yield from ((node,) for node in needed)
            done.update(needed, together)
            yield together
    yield from (
        (node,) for node in product(range(steps), range(len(plan.tasks))) if node not in done
    )


def _ancestors(waits: Dependencies, targets: tuple[Node, ...], done: set[Node]) -> list[Node]:
    """Tasks that have to precede some others and are not done, by step and plan order."""
    visited = set(targets)
    stack = list(targets)
    while stack:
        step, index = stack.pop()
        same, previous = waits[index]
        nodes = [
            *((step, other) for other in same),
            *((step - 1, other) for other in (previous if step else ())),
        ]
        for node in nodes:
            if node not in visited and node not in done:
                visited.add(node)
                stack.append(node)
    return sorted(visited.difference(targets))
