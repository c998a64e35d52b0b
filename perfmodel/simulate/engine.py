"""Runs a StepPlan in simulated time. It knows tasks, streams and collectives, and no strategy.

Each stream of each rank class is a SimPy process that takes its tasks in plan order. A task starts
when its predecessors have ended and its stream is free; a collective starts when every class of its
communicator has reached it. Two things that happen at the same time happen in plan order.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import simpy
from numpy.typing import NDArray

from perfmodel.errors import SimulationError
from perfmodel.library.carry import Group, Machine
from perfmodel.simulate.device import Device
from perfmodel.simulate.estimate import Estimator
from perfmodel.simulate.flow import FlowNetwork
from perfmodel.simulate.message import MessageNetwork
from perfmodel.simulate.network import Network
from perfmodel.timeline import Span, Timeline
from perfmodel.training.plan import Collective, Compute, RankClass, StepPlan, Stream, Task

Fidelity = Literal["flow", "message"]


@dataclass(frozen=True, slots=True)
class Run:
    """A simulated run.

    Parameters
    ----------
    timeline : Timeline
        All spans; times since the start of the run.
    step_ends_s : tuple of float
        When the last task of each step that is not the host's ended.
    bytes_on_arc : ndarray of float, shape (arcs,)
        Wire bytes over each directed link, whole run.
    """

    timeline: Timeline
    step_ends_s: tuple[float, ...]
    bytes_on_arc: NDArray[np.float64]

    @property
    def step_time_s(self) -> float:
        """Duration of the last step, end to end; seconds."""
        ends = (0.0, *self.step_ends_s)
        return ends[-1] - ends[-2]


def simulate(
    plan: StepPlan,
    machine: Machine,
    *,
    steps: int = 1,
    fidelity: Fidelity = "flow",
    overlap_slowdown: float | None = None,
    estimator: Estimator | None = None,
) -> Run:
    """Run a plan for some steps, one after the other as the plan links them.

    Parameters
    ----------
    plan : StepPlan
    machine : Machine
    steps : int
    fidelity : {"flow", "message"}
        "flow": a few events per collective. "message": every send is an event.
    overlap_slowdown : float, optional
        Factor by which compute is slower while its class communicates; default: the GPU's.
    estimator : Estimator, optional
        Of the same machine, so that several runs share what it has worked out.

    Raises
    ------
    SimulationError
        The plan cannot finish; the message names the tasks that wait.
    """
    env = simpy.Environment()
    known = estimator or Estimator(machine)
    network: Network = (FlowNetwork if fidelity == "flow" else MessageNetwork)(env, known)
    slowdown = (
        machine.topology.gpu.overlap_slowdown if overlap_slowdown is None else overlap_slowdown
    )
    return _Engine(env, network, plan, steps, slowdown).run()


class _Engine:
    """The state of one run."""

    def __init__(
        self, env: simpy.Environment, network: Network, plan: StepPlan, steps: int, slowdown: float
    ) -> None:
        self._env, self._network, self._plan, self._steps = env, network, plan, steps
        self._devices = {c.name: Device(env, slowdown) for c in plan.classes}
        self._groups = {c.name: c.groups for c in plan.communicators}
        self._members = {c.name: _classes_in(c.groups, plan.classes) for c in plan.communicators}
        self._ended = [[env.event() for _ in plan.tasks] for _ in range(steps)]
        self._arrived: dict[tuple[int, str], int] = {}
        self._meeting: dict[tuple[int, str], simpy.Event] = {}
        self._free = {
            (c.name, name): simpy.Container(env, capacity, init=capacity)
            for c in plan.classes
            for name, capacity in plan.semaphores
        }
        self._spans: list[Span] = []

    def run(self) -> Run:
        workers = [
            self._env.process(self._work(stream, queue))
            for rank_class in self._plan.classes
            for stream in self._plan.streams
            for queue in [self._queue(rank_class, stream)]
            for _ in range(stream.workers)
        ]
        try:
            self._env.run(until=self._env.all_of(workers))
        except RuntimeError as error:
            raise SimulationError(self._stuck()) from error
        host = {stream.name for stream in self._plan.streams if stream.kind == "host"}
        ends = [
            max(
                (s.end_s for s in self._spans if s.step == step and s.stream not in host),
                default=0.0,
            )
            for step in range(self._steps)
        ]
        spans = tuple(sorted(self._spans, key=lambda span: (span.start_s, span.end_s)))
        return Run(Timeline(spans), tuple(ends), self._network.bytes_on_arc)

    def _queue(self, rank_class: RankClass, stream: Stream) -> Iterator[tuple[int, int]]:
        """Tasks of one stream, step after step; its workers take turns at it."""
        mine = [
            index
            for index, task in enumerate(self._plan.tasks)
            if task.rank_class == rank_class.name and task.stream == stream.name
        ]
        return ((step, index) for step in range(self._steps) for index in mine)

    def _work(
        self, stream: Stream, queue: Iterator[tuple[int, int]]
    ) -> Generator[simpy.Event, Any, None]:
        """One worker of a stream."""
        env = self._env
        for step, index in queue:
            task = self._plan.tasks[index]
            ready_s = 0.0
            for event in self._waits(task, step):
                if not event.processed:
                    yield event
                ready_s = max(ready_s, float(event.value or 0.0))
            if task.acquires:
                yield self._free[task.rank_class, task.acquires].get(1)
            start_s = env.now
            if isinstance(task.work, Compute):
                device = self._devices[task.rank_class]
                if stream.kind == "compute":
                    yield device.compute(task.work.duration_s)
                else:
                    yield env.timeout(task.work.duration_s)
                nbytes, work_s = 0, task.work.duration_s
            else:
                nbytes, work_s = task.work.nbytes, 0.0
                start_s = yield self._meet(task, step)
            if task.releases:
                yield self._free[task.rank_class, task.releases].put(1)
            self._spans.append(
                Span(
                    task.name,
                    task.kind,
                    task.rank_class,
                    task.stream,
                    step,
                    start_s,
                    env.now,
                    ready_s,
                    nbytes,
                    task.bucket,
                    task.micro_batch,
                    work_s,
                )  # fmt: skip
            )
            self._ended[step][index].succeed(env.now)

    def _waits(self, task: Task, step: int) -> list[simpy.Event]:
        events = [self._ended[step][index] for index in task.after]
        if step:
            events += [self._ended[step - 1][index] for index in task.after_previous]
        return events

    def _meet(self, task: Task, step: int) -> simpy.Event:
        """Wait for the other classes of a collective, then for its end.

        The event's value is the time at which the collective started.
        """
        work = task.work
        assert not isinstance(work, Compute)
        key = (step, work.key)
        meeting = self._meeting.setdefault(key, self._env.event())
        self._arrived[key] = self._arrived.get(key, 0) + 1
        expected = 2
        if isinstance(work, Collective):
            expected = len(self._members[work.communicator])
        if self._arrived[key] < expected:
            return meeting
        if isinstance(work, Collective):
            groups: tuple[Group, ...] = self._groups[work.communicator]
            classes = self._members[work.communicator]
            ended = self._network.collective(work.op, work.nbytes, groups, work.root)
        else:
            classes = _owners(self._plan.classes, (work.src_rank, work.dst_rank))
            ended = self._network.message(work.src_rank, work.dst_rank, work.nbytes)
        start_s = self._env.now
        for name in classes:
            self._devices[name].communicate(+1)

        def finish(_: simpy.Event) -> None:
            for name in classes:
                self._devices[name].communicate(-1)
            meeting.succeed(start_s)

        if ended.callbacks is None:
            finish(ended)
        else:
            ended.callbacks.append(finish)
        return meeting

    def _stuck(self) -> str:
        """Name what waits for what."""
        waiting = [
            f"{task.name} (step {step})"
            for step in range(self._steps)
            for index, task in enumerate(self._plan.tasks)
            if not self._ended[step][index].triggered
            and all(event.triggered for event in self._waits(task, step))
        ]
        return f"the plan {self._plan.name!r} cannot finish; waiting: {', '.join(waiting[:8])}"


def _classes_in(groups: tuple[Group, ...], classes: tuple[RankClass, ...]) -> tuple[str, ...]:
    """Classes with members in any of the groups."""
    members = [_as_set(group) for group in groups]
    return tuple(c.name for c in classes if any(_meets(c.ranks, group) for group in members))


def _as_set(group: Group) -> range | frozenset[int]:
    return group if isinstance(group, range) else frozenset(group)


def _meets(ranks: range | tuple[int, ...], group: range | frozenset[int]) -> bool:
    if isinstance(ranks, range) and isinstance(group, range) and ranks.step == group.step == 1:
        return max(ranks.start, group.start) < min(ranks.stop, group.stop)
    return any(rank in group for rank in ranks)


def _owners(classes: tuple[RankClass, ...], ranks: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(c.name for c in classes if any(rank in c.ranks for rank in ranks))
