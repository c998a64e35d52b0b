"""Results of a simulated run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any

from perfmodel.simulate.engine.background import CollectiveArrivals
from perfmodel.simulate.engine.step_graph import StepGraph
from perfmodel.simulate.flow.approximation import ApproximationNote
from perfmodel.simulate.network import LinkCounters, Network
from perfmodel.timeline import Span, Timeline
from perfmodel.training.plan.step_plan import Compute, Task

TaskExecution = tuple[Task, int, float, float, float, float]
"""A task as it ran, as `span_of` takes it: task, step, start, end, ready and stretch."""


@dataclass(frozen=True)
class Observations:
    """What was noted of a network."""

    counted: LinkCounters
    notes: tuple[ApproximationNote, ...]


@dataclass(frozen=True)
class Run:
    """A simulated run.

    Parameters
    ----------
    executions : sequence of TaskExecution
        All tasks, in the order in which they ended; times since the start of the run.
    step_ends_s : tuple of float
        When the last task of each step off the host ended.
    observed : Network or Observations
        What its network has seen, asked when somebody wants to know: most runs are for their time
        only.
    arrivals : tuple of CollectiveArrivals
        When the ranks of each collective arrived; empty where all ranks are alike.
    others_step_ends_s : mapping of str to tuple of float
        Of the background jobs, by the name of their plan.
    graph : StepGraph, optional
        Who waited for whom, where that is known.
    is_uncontended : bool
        Whether collectives left each other their links, so that nothing had to be simulated.
    """

    executions: Sequence[TaskExecution] = field(repr=False)
    step_ends_s: tuple[float, ...]
    observed: Network | Observations = field(repr=False)
    arrivals: tuple[CollectiveArrivals, ...] = ()
    others_step_ends_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    graph: StepGraph | None = field(default=None, repr=False, compare=False)
    is_uncontended: bool = False

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: of the network, what it has seen."""
        seen = Observations(self.counted, self.notes)
        return {**self.__dict__, "observed": seen, "graph": None}

    @cached_property
    def counted(self) -> LinkCounters:
        """Bytes over each directed link, whole run."""
        return self.observed.counted

    @cached_property
    def notes(self) -> tuple[ApproximationNote, ...]:
        """Where fidelity "flow" was an approximation, and how far off it may be."""
        return self.observed.notes

    @cached_property
    def timeline(self) -> Timeline:
        """All spans; made when they are looked at first, as most runs are for their time only."""
        ordered = sorted(self.executions, key=itemgetter(2, 3))
        return Timeline(tuple(span_of(*execution) for execution in ordered))

    @property
    def step_time_s(self) -> float:
        """Duration of the last step, end to end; seconds."""
        return self.step_times_s[-1]

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """Duration of each step, from the end of the one before to its own; seconds."""
        starts = (0.0, *self.step_ends_s[:-1])
        return tuple(end - start for start, end in zip(starts, self.step_ends_s, strict=True))


def span_of(
    task: Task, step: int, start_s: float, end_s: float, ready_s: float, stretch: float = 1.0
) -> Span:
    """Return the span of a task; `stretch` is the factor on its planned work."""
    work = task.work
    placed = (task.name, task.kind, task.rank_class, task.stream, step, start_s, end_s, ready_s)
    if isinstance(work, Compute):
        return Span(
            *placed,
            0,
            task.bucket,
            task.micro_batch,
            work.duration_s * stretch,
            role=task.role,
            issues=task.issues,
        )
    nbytes, moved = work.nbytes * work.times, (work.op, work.communicator, work.dtype)
    return Span(*placed, nbytes, task.bucket, task.micro_batch, 0.0, *moved)
