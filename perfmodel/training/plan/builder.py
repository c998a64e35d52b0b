"""Build a StepPlan task by task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Compute,
    Op,
    RankClass,
    StepPlan,
    Stream,
    Task,
)
from perfmodel.training.strategy import StepRequest

HOST = Stream("host", "host")
COMPUTE = Stream("compute", "compute")
COMM = Stream("comm", "comm")
"""Stream of collectives: one at a time, as NCCL runs those of a communicator."""

RANKS = "ranks"
"""Name of the only rank class of most plans."""
GROUP = "data parallel"
"""Name of the communicator of all ranks."""
EXPERT_COPIES = "holders of the same experts"
"""Communicator of ranks that average the gradients of the same experts."""


@dataclass(slots=True)
class TaskList:
    """Tasks of a plan in the order in which the host issues them.

    `launch_s`: host time to issue an operation alone; seconds. Zero leaves out the host.
    `kernel_s`: least device time of one copy kernel, added per kernel; seconds.
    `copy_Bps`: rate of device copies, each byte read and written once; bytes per second.
    """

    launch_s: float
    kernel_s: float
    copy_Bps: float
    tasks: list[Task] = field(default_factory=list)

    @staticmethod
    def of(request: StepRequest) -> TaskList:
        """Begin an empty list, at the rates of a step that was asked for."""
        return TaskList(request.times.launch_s, request.kernel_s, request.times.copy_Bps)

    def add(self, task: Task) -> int:
        """Append a task and return its index."""
        self.tasks.append(task)
        return len(self.tasks) - 1

    def issue(
        self, name: str, kernels: float, rank_class: str, *, after: Iterable[int] = (), **marks: Any
    ) -> tuple[int, ...]:
        """Let the host launch kernels; return the tasks that device work has to wait for.

        `kernels`: operations alone, or as many as take the host as long.
        """
        if self.launch_s <= 0 or kernels <= 0:
            return tuple(after)
        return (
            self.add(
                Task(
                    f"issue {name}",
                    "issue",
                    rank_class,
                    HOST.name,
                    Compute(kernels * self.launch_s),
                    tuple(after),
                    issues=name,
                    **marks,
                )
            ),
        )

    def compute(
        self,
        name: str,
        kind: str,
        duration_s: float,
        rank_class: str,
        *,
        after: Iterable[int] = (),
        stream: str = COMPUTE.name,
        **marks: Any,
    ) -> int:
        """Run kernels on the device."""
        return self.add(
            Task(name, kind, rank_class, stream, Compute(duration_s), tuple(after), **marks)
        )

    def launch(
        self,
        name: str,
        kind: str,
        duration_s: float,
        kernels: float,
        rank_class: str,
        *,
        issue_after: Iterable[int] = (),
        after: Iterable[int] = (),
        micro_batch: int = 0,
        **marks: Any,
    ) -> int:
        """Let the host launch kernels, and run them after that and what else they wait for.

        `issue_after`: what the host waits for before it launches them.
        """
        waits = dict.fromkeys(
            (
                *self.issue(name, kernels, rank_class, after=issue_after, micro_batch=micro_batch),
                *after,
            )
        )
        return self.compute(
            name, kind, duration_s, rank_class, after=waits, micro_batch=micro_batch, **marks
        )

    def wait(self, name: str, rank_class: str, *, after: Iterable[int], **marks: Any) -> int:
        """Let the host wait, as a synchronisation or the reading of a value does.

        Where no host issues kernels, the device waits in its stead.
        """
        stream = HOST if self.launch_s > 0 else COMPUTE
        return self.add(
            Task(name, "wait", rank_class, stream.name, Compute(0.0), tuple(after), **marks)
        )

    def copy_s(self, nbytes: float, kernels: int) -> float:
        """Time of copies within a device; seconds."""
        return nbytes / self.copy_Bps + kernels * self.kernel_s

    def copy(
        self,
        name: str,
        nbytes: float,
        kernels: int,
        rank_class: str,
        *,
        after: Iterable[int] = (),
        **marks: Any,
    ) -> int:
        """Copy `nbytes` within a device, in `kernels` kernels."""
        return self.compute(
            name, "copy", self.copy_s(nbytes, kernels), rank_class, after=after, **marks
        )

    def collective(
        self,
        name: str,
        op: Op,
        nbytes: int,
        rank_class: str,
        *,
        communicator: str,
        key: str,
        after: Iterable[int] = (),
        stream: str = "comm",
        dtype: str | None = None,
        times: int = 1,
        root: int = 0,
        **marks: Any,
    ) -> int:
        """Take part in a collective."""
        return self.add(
            Task(
                name,
                "communication",
                rank_class,
                stream,
                Collective(op, nbytes, communicator, key, root, dtype, times),
                tuple(after),
                **marks,
            )
        )

    def begin_after(self, end: int, streams: Iterable[str] = ()) -> None:
        """Let the first task on each stream follow task `end` of the step before.

        `streams`: names; none: all but the host's.
        """
        own = set(streams) or {task.stream for task in self.tasks} - {HOST.name}
        for index, task in enumerate(self.tasks):
            if task.stream in own and index != end:
                own.remove(task.stream)
                self.tasks[index] = replace(task, after_previous=(end,))

    def plan(
        self,
        name: str,
        classes: Iterable[RankClass],
        streams: Iterable[Stream],
        communicators: Iterable[Communicator],
        samples: int,
    ) -> StepPlan:
        """Return the tasks as a plan, with those streams that they use."""
        used = {task.stream for task in self.tasks}
        return StepPlan(
            name=name,
            classes=tuple(classes),
            streams=tuple(stream for stream in streams if stream.name in used),
            communicators=tuple(communicators),
            tasks=tuple(self.tasks),
            samples=samples,
        )
