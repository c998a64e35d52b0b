"""Forward and backward of one rank class, as tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.training.builder import TaskList
from perfmodel.training.ddp.buckets import Iteration
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.segments import Segment, backward_segments, forward_segments
from perfmodel.workload.model import LayerTimes, Workload


@dataclass(frozen=True, slots=True)
class CoreWork:
    """Work of backward on a core of its process, where layers run elsewhere.

    Parameters
    ----------
    layer_s : float
        For each layer: Python, autograd.
    gradient_s : float
        For each gradient: autograd, DDP's hook.
    copies_Bps : float
        Rate at which gradients are copied to their buckets.
    """

    layer_s: float = 0.0
    gradient_s: float = 0.0
    copies_Bps: float = math.inf

    def of(self, layers: int, gradients: int, nbytes: float) -> float:
        """Work for some layers and their gradients; seconds."""
        return layers * self.layer_s + gradients * self.gradient_s + nbytes / self.copies_Bps


NO_CORE_WORK = CoreWork()


@dataclass(frozen=True, slots=True)
class Step:
    """Settings of a data-parallel step, and the list of tasks that it is written to.

    Parameters
    ----------
    workload : Workload
    times : LayerTimes
    options : DdpOptions
    tasks : TaskList
        To which tasks are added.
    rank_class : str
    iteration : {"first", "steady"}
    item_bytes : int or None
        Bytes per element that a compressing hook sends; None without a hook.
    blocking_wait : bool
        The host waits for each all-reduce.
    segments : int
        Tasks per pass at most.
    host_s : float
        Work of the process at the end of a step.
    cast_Bps : float, optional
        Rate at which a hook converts gradients beside the device's work.
    core : CoreWork
    """

    workload: Workload
    times: LayerTimes
    options: DdpOptions
    tasks: TaskList
    rank_class: str
    iteration: Iteration
    item_bytes: int | None
    blocking_wait: bool
    segments: int
    host_s: float = 0.0
    cast_Bps: float | None = None
    core: CoreWork = NO_CORE_WORK

    @property
    def last_micro_batch(self) -> int:
        """Index of the micro-batch whose backward communicates."""
        return self.options.accumulate - 1

    def nbytes(self, tensors: Sequence[int]) -> int:
        """Bytes of some gradients."""
        return sum(self.workload.tensors[tensor].nbytes for tensor in tensors)

    def resolution(self, micro_batch: int) -> int:
        """Segments per pass: fewer for micro-batches that no communication overlaps with."""
        if micro_batch == self.last_micro_batch:
            return self.segments
        return max(8, self.segments // self.options.accumulate)


def add_forward(step: Step, micro_batch: int, *, after: tuple[int, ...] = ()) -> None:
    """Add forward; its first kernel waits for `after`."""
    at_most = step.resolution(micro_batch)
    for part in forward_segments(step.workload, step.times, at_most=at_most):
        name = f"forward {part.name}"
        issued = step.tasks.issue(name, part.kernels, step.rank_class, micro_batch=micro_batch)
        step.tasks.compute(
            name, "forward", part.duration_s, step.rank_class,
            after=(*issued, *after), micro_batch=micro_batch,
        )  # fmt: skip
        after = ()


def add_local_backward(step: Step, micro_batch: int) -> None:
    """Add backward without communication: under no_sync(), or on one GPU."""
    at_most = step.resolution(micro_batch)
    for part in backward_segments(step.workload, step.times, at_most=at_most):
        add_backward_segment(step, part, micro_batch)


def add_backward_segment(
    step: Step, part: Segment, micro_batch: int, *, copy_kernels: int = 0
) -> int:
    """Add backward of a segment; from the second micro-batch on its gradients are added up.

    Adding in place reads two values and writes one where a copy reads one and writes one, hence
    one and a half copies. `copy_kernels` are issued with it by the same host thread.
    """
    name = f"backward {part.name}"
    duration_s, kernels = part.duration_s, part.kernels + copy_kernels
    if micro_batch > 0:
        added = len(part.tensors)
        duration_s += 1.5 * step.nbytes(part.tensors) / step.times.copy_Bps
        duration_s += added * step.tasks.kernel_s
        kernels += added
    issued = step.tasks.issue(name, kernels, step.rank_class, micro_batch=micro_batch)
    return step.tasks.compute(
        name, "backward", duration_s, step.rank_class, after=issued, micro_batch=micro_batch,
        core_s=step.core.of(part.layers, len(part.tensors), step.nbytes(part.tensors)),
    )  # fmt: skip
