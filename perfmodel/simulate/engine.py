"""Runs a StepPlan in simulated time. It knows tasks, streams and collectives, and no strategy.

Each stream of each rank class is a SimPy process that takes its tasks in plan order. A task starts
when its predecessors have ended and its stream is free; a collective starts when every class of its
communicator has reached it. Two things that happen at the same time happen in plan order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
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
from perfmodel.simulate.free import FreeNetwork
from perfmodel.simulate.message import MessageNetwork
from perfmodel.simulate.network import Network
from perfmodel.timeline import Span, Timeline
from perfmodel.training.plan import (
    Collective,
    Compute,
    RankClass,
    StepPlan,
    Stream,
    Task,
    Transfer,
)

Fidelity = Literal["flow", "message"]
NETWORKS: Mapping[str, Callable[[simpy.Environment, Estimator], Network]] = {
    "flow": FlowNetwork,
    "message": MessageNetwork,
    "free": FreeNetwork,
}
Steps = Generator[simpy.Event, Any, None]


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
    fidelity: Fidelity | Literal["free"] = "flow",
    overlap_slowdown: float | None = None,
    estimator: Estimator | None = None,
) -> Run:
    """Run a plan for some steps, one after the other as the plan links them.

    Parameters
    ----------
    plan : StepPlan
    machine : Machine
    steps : int
    fidelity : {"flow", "message", "free"}
        "flow": a few events per collective. "message": every send is an event. "free":
        communication takes no time.
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
    network: Network = NETWORKS[fidelity](env, known)
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
        self._ended: list[list[Any]] = [[env.event() for _ in plan.tasks] for _ in range(steps)]
        self._arrived: dict[tuple[int, str], int] = {}
        self._meeting: dict[tuple[int, str], simpy.Event] = {}
        self._free = {
            (c.name, name): simpy.Container(env, capacity, init=capacity)
            for c in plan.classes
            for name, capacity in plan.semaphores
        }
        self._spans: list[Span] = []

    def run(self) -> Run:
        env, plan = self._env, self._plan
        streams = [
            env.process(self._serve(stream, self._queue(rank_class, stream)))
            for rank_class in plan.classes
            for stream in plan.streams
        ]
        try:
            env.run(until=env.all_of(streams))
        except RuntimeError as error:
            raise SimulationError(self._stuck()) from error
        host = {stream.name for stream in plan.streams if stream.kind == "host"}
        ends = [0.0] * self._steps
        for span in self._spans:
            if span.stream not in host:
                ends[span.step] = max(ends[span.step], span.end_s)
        spans = tuple(sorted(self._spans, key=lambda span: (span.start_s, span.end_s)))
        return Run(Timeline(spans), tuple(ends), self._network.bytes_on_arc)

    def _queue(self, rank_class: RankClass, stream: Stream) -> Iterator[tuple[int, int]]:
        """Tasks of one stream, step after step."""
        mine = [
            index
            for index, task in enumerate(self._plan.tasks)
            if task.rank_class == rank_class.name and task.stream == stream.name
        ]
        return ((step, index) for step in range(self._steps) for index in mine)

    def _serve(self, stream: Stream, queue: Iterator[tuple[int, int]]) -> Steps:
        """Start the tasks of one stream in order, as many at a time as it has workers."""
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
        task, ready_s = self._plan.tasks[index], 0.0
        for event in self._waits(task, step):
            if not event.processed:
                yield event
            ended_s: float = event.value  # type: ignore[assignment]  # succeeded with a time
            ready_s = max(ready_s, ended_s)
        if task.acquires:
            yield self._free[task.rank_class, task.acquires].get(1)
        if begun:
            begun.succeed()
        start_s = self._env.now
        if isinstance(task.work, Compute):
            yield self._compute(task, task.work, stream)
        else:
            start_s = yield self._meet(task.work, step)
        if task.releases:
            yield self._free[task.rank_class, task.releases].put(1)
        self._spans.append(_span(task, step, start_s, self._env.now, ready_s))
        self._ended[step][index].succeed(self._env.now)

    def _waits(self, task: Task, step: int) -> list[simpy.Event]:
        events = [self._ended[step][index] for index in task.after]
        if step:
            events += [self._ended[step - 1][index] for index in task.after_previous]
        return events

    def _compute(self, task: Task, work: Compute, stream: Stream) -> simpy.Event:
        """Start work on the device, or on the host, which communication does not slow down."""
        if stream.kind == "compute":
            return self._devices[task.rank_class].compute(work.duration_s)
        return self._env.timeout(work.duration_s)

    def _meet(self, work: Collective | Transfer, step: int) -> simpy.Event:
        """Wait for the other classes of a collective, then for its end.

        The event's value is the time at which the collective started.
        """
        key = (step, work.key)
        meeting = self._meeting.setdefault(key, self._env.event())
        self._arrived[key] = self._arrived.get(key, 0) + 1
        if isinstance(work, Collective):
            classes = self._members[work.communicator]
            expected = len(classes)
        else:
            classes = _owners(self._plan.classes, (work.src_rank, work.dst_rank))
            expected = 2
        if self._arrived[key] == expected:
            self._begin(work, classes, meeting)
        return meeting

    def _begin(
        self, work: Collective | Transfer, classes: tuple[str, ...], meeting: simpy.Event
    ) -> None:
        """Put a collective or a message on the network; `meeting` fires when it has ended."""
        start_s = self._env.now
        for name in classes:
            self._devices[name].communicate(+1)

        def finish(_: simpy.Event) -> None:
            for name in classes:
                self._devices[name].communicate(-1)
            meeting.succeed(start_s)

        if isinstance(work, Collective):
            groups: tuple[Group, ...] = self._groups[work.communicator]
            ended = self._network.collective(work.op, work.nbytes, groups, work.root)
        else:
            ended = self._network.message(work.src_rank, work.dst_rank, work.nbytes)
        assert ended.callbacks is not None  # not processed before this instant is over
        ended.callbacks.append(finish)

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


def _span(task: Task, step: int, start_s: float, end_s: float, ready_s: float) -> Span:
    work = task.work
    nbytes, work_s = (0, work.duration_s) if isinstance(work, Compute) else (work.nbytes, 0.0)
    return Span(
        task.name, task.kind, task.rank_class, task.stream, step, start_s, end_s, ready_s,
        nbytes, task.bucket, task.micro_batch, work_s,
    )  # fmt: skip


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
