"""A run timed again with other durations: who waits for whom stays as it was.

Every task starts when the last of what it waits for has ended, so that a step is a longest path
through its tasks. Where each collective has its links for itself this is what a simulation gives. A
collective that met others takes as many times longer than alone as it did in the run, and those
that would meet with the other durations only are not slowed: `Retimed.together` says which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from operator import itemgetter
from typing import Any

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.memo import grouped
from perfmodel.simulate.engine.outcome import Run, TaskExecution
from perfmodel.simulate.engine.step_graph import COLLECTIVE, LEFT_OUT, StepGraph, step_graph
from perfmodel.simulate.network import CollectiveCall
from perfmodel.training.plan.step_plan import Compute, StepPlan


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
            or (
                one.after == its.after
                and (one.work == its.work or {type(one.work), type(its.work)} == {Compute})
            )
            for one, its in zip(plan.tasks, other.tasks, strict=True)
        )
    )


@dataclass(frozen=True, slots=True)
class Retimed:
    """Steps whose nodes begin and end at some times.

    `graph`: of these steps, or of more. `kinds`: of its nodes, `LEFT_OUT` those of other steps.
    `begins_s`, `ends_s`: of its nodes; seconds, shape (nodes,).
    """

    graph: StepGraph
    kinds: IntArray
    begins_s: FloatArray
    ends_s: FloatArray

    @property
    def step_ends_s(self) -> FloatArray:
        """When the last task of each step off the host ends; seconds, shape (steps,)."""
        counts, steps = (self.kinds != LEFT_OUT) & ~self.graph.on_host, self.graph.steps
        ends_s = np.zeros(1 + steps[self.kinds != LEFT_OUT].max(initial=-1))
        np.maximum.at(ends_s, steps[counts], self.ends_s[counts])
        return ends_s

    def together(self) -> Iterator[tuple[CollectiveCall, ...]]:
        """Yield which collectives are in progress whenever one begins, that one last; once each."""
        found, active = set[tuple[Any, ...]](), list[tuple[float, Any]]()
        ran = self.kinds == COLLECTIVE
        times_s = self.begins_s[ran].tolist(), self.ends_s[ran].tolist()
        rows = zip(*times_s, compress(self.graph.calls, ran), strict=True)
        for start_s, end_s, call in sorted(rows, key=itemgetter(0, 1)):
            active = [each for each in active if each[0] > start_s]
            active.append((end_s, call))
            calls = tuple([each for _, each in active])
            if len(calls) > 1 and calls not in found:
                found.add(calls)
                yield calls


@dataclass(frozen=True)
class RunOrder:
    """What ran, to be timed again.

    `plan`: of the run; see `can_be_retimed`.
    `run`: without jitter, on a machine that did not change, with no other traffic.
    """

    plan: StepPlan
    run: Run

    @cached_property
    def _graph(self) -> StepGraph:
        return self.run.graph or step_graph(self.plan, len(self.run.step_ends_s))

    @cached_property
    def _times(self) -> FloatArray:
        """When nodes began and ended, and the factor on their work; shape (3, nodes)."""
        first = [own[0] for own in self._graph.tasks]
        return _times_of(self.plan, self.run)[:, first].reshape(-1, 3).T.copy()

    @property
    def _took_s(self) -> FloatArray:
        took_s: FloatArray = self._times[1] - self._times[0]
        return took_s

    def collectives(self) -> tuple[IntArray, FloatArray]:
        """Return the first task of each collective that ran, and how long it took; seconds."""
        ran = self._graph.kinds == COLLECTIVE
        return self._graph.first[ran], self._took_s[ran]

    def alone_at_last(self, alone_s: FloatArray) -> FloatArray:
        """Return factors of a first step whose collectives meet none of those of later steps.

        Those in progress when the first of these began take as long as alone, the others what they
        took. `alone_s`: of each task; seconds, shape (tasks,).
        """
        own, factors, (began_s, ended_s, _) = self._graph, np.ones(len(alone_s)), self._times
        ran = own.kinds == COLLECTIVE
        from_s = began_s[ran & (own.steps > 0)].min(initial=np.inf)
        late = ran & (own.steps == 0) & (ended_s > np.maximum(from_s, began_s))
        factors[own.first[late]] = alone_s[own.first[late]] / self._took_s[late]
        return factors

    def retime(self, change: Durations, steps: int | None = None) -> Retimed:
        """Return what the run takes with other durations; of its first `steps` only, if given."""
        own, steps = self._graph, len(self.run.step_ends_s) if steps is None else steps
        kinds = np.where(own.steps < steps, own.kinds, LEFT_OUT)
        own_s = np.where(
            own.kinds == COLLECTIVE,
            self._took_s * change.factors[own.first],
            change.work_s[own.first] * self._times[2],
        )
        return Retimed(own, kinds, *own.times_s(own_s, kinds, change.slowdown))


def _times_of(plan: StepPlan, run: Run) -> FloatArray:
    """Return when tasks began and ended, and their stretch; shape (steps, tasks, 3)."""
    ran = [(each[1], at, *each[2:4], each[5]) for at, each in _indexed(plan, run)]
    rows = np.array(ran, float).reshape(-1, 5)
    times = np.zeros((len(run.step_ends_s), len(plan.tasks), 3))
    times[tuple(rows[:, :2].T.astype(np.int64))] = rows[:, 2:]
    return times


def _indexed(plan: StepPlan, run: Run) -> Iterator[tuple[int, TaskExecution]]:
    """Yield what ran with the index of its task: tasks of a stream end in their order."""
    queues = grouped(((task.rank_class, task.stream), at) for at, task in enumerate(plan.tasks))
    turns = dict.fromkeys(queues, 0)
    for execution in run.executions:
        stream = execution[0].rank_class, execution[0].stream
        queue, turn = queues[stream], turns[stream]
        turns[stream] = (turn + 1) % len(queue)
        yield queue[turn], execution
