"""Forward and backward of one rank class, as tasks: layers joined into segments, one task each.

A model of 600 layers needs no 600 forward tasks: what matters is when the host has issued the work
and when each bucket's last gradient is ready. Layers are merged into a number of segments per pass,
and backward is always cut where a bucket is complete, so that merging changes no bucket's ready
time on a busy GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from perfmodel.errors import check_schedule
from perfmodel.memo import once
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.plan.builder import COMPUTE, TaskList
from perfmodel.training.plan.table_servers import call_servers
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import ITEM_BYTES, LayerTimes, Workload

MANY_MICRO_BATCHES = 64
"""Beyond it a pass of a micro-batch without communication is one segment: the device then waits
for the host to issue a whole pass, once a step, as the host is ahead from then on."""


@dataclass(frozen=True, slots=True)
class Step:
    """A data-parallel step: what was asked for, and the list of tasks that it is written to.

    `known`: segments of passes, which micro-batches have in common.
    """

    request: StepRequest
    options: DdpOptions
    tasks: TaskList
    rank_class: str
    known: dict[Hashable, tuple[Segment, ...]] = field(default_factory=dict)

    @property
    def last_micro_batch(self) -> int:
        """Index of the micro-batch whose backward communicates."""
        return self.options.accumulate - 1

    def nbytes(self, tensors: Sequence[int]) -> int:
        """Bytes of some gradients."""
        return sum(self.request.workload.tensors[tensor].nbytes for tensor in tensors)

    def gradient_bytes(self, tensors: Sequence[int]) -> int:
        """Bytes of some gradients as backward makes them and as they lie in their buckets."""
        mixed, everything = self.options.mixed_precision, self.request.workload.tensors
        if mixed is None:
            return self.nbytes(tensors)
        return ITEM_BYTES[mixed.param_dtype] * sum(everything[each].numel for each in tensors)

    def resolution(self, micro_batch: int) -> int:
        """Segments per pass: fewer for micro-batches that no communication overlaps with."""
        if micro_batch == self.last_micro_batch:
            return self.request.segments
        fewest = 8 if self.options.accumulate <= MANY_MICRO_BATCHES else 1
        return max(
            min(fewest, self.request.segments), self.request.segments // self.options.accumulate
        )


def add_forward(
    step: Step, micro_batch: int, *, after: tuple[int, ...] = (), casts: Sequence[int] = ()
) -> None:
    """Add forward; its first kernel waits for `after`, and each segment for its task of `casts`."""
    for index, part in enumerate(_segments(step, forward_segments, micro_batch)):
        rows = call_servers(step.tasks, step.request, step.rank_class, part.indices, micro_batch)
        step.tasks.launch(
            f"forward {part.name}",
            "forward",
            part.duration_s,
            part.kernels,
            step.rank_class,
            issue_after=rows,
            after=(*after, *rows, *casts[index : index + 1]),
            micro_batch=micro_batch,
            layers=part.indices,
        )
        after = ()


def add_local_backward(step: Step, micro_batch: int) -> None:
    """Add backward without communication: under no_sync(), or on one GPU."""
    for part in _segments(step, backward_segments, micro_batch):
        add_backward_segment(step, part, micro_batch)


def _segments(
    step: Step, find: Callable[..., tuple[Segment, ...]], micro_batch: int
) -> tuple[Segment, ...]:
    """Return the segments of a pass; `find`: `forward_segments` or `backward_segments`."""
    request, at_most = step.request, step.resolution(micro_batch)
    return once(
        step.known,
        (find, at_most),
        lambda: find(
            request.workload, request.times, at_most=at_most, devices=step.options.layer_devices
        ),
    )


def add_backward_segment(
    step: Step, part: Segment, micro_batch: int, *, copy_kernels: int = 0
) -> int:
    """Add backward of a segment; from the second micro-batch on its gradients are added up.

    Adding in place reads two values and writes one where a copy reads one and writes one, hence
    one and a half copies. `copy_kernels` are issued with it by the same host thread.
    """
    duration_s, kernels, nbytes = part.duration_s, part.kernels, step.nbytes(part.tensors)
    if micro_batch > 0:
        duration_s += 1.5 * nbytes / step.request.times.copy_Bps
        duration_s += len(part.tensors) * step.tasks.kernel_s
        kernels += len(part.tensors)
    ended = step.tasks.launch(
        f"backward {part.name}",
        "backward",
        duration_s,
        kernels + copy_kernels,
        step.rank_class,
        micro_batch=micro_batch,
        core_s=step.request.core.of(len(part.indices), len(part.tensors), nbytes),
        layers=part.indices,
    )
    call_servers(step.tasks, step.request, step.rank_class, part.indices, micro_batch, ended)
    return ended


def add_step_end(step: Step, end: int) -> int:
    """Add what the process of a rank does at the end of a step; returns the last task."""
    if step.request.host_s <= 0:
        return end
    return step.tasks.compute(
        "end of the step",
        "copy",
        step.request.host_s,
        step.rank_class,
        after=(end,),
        role="step_end",
        micro_batch=step.last_micro_batch,
    )


def add_optimizer(
    step: Step,
    reduced: tuple[int, ...],
    *,
    host_waits: bool,
    streams: Sequence[str] = (COMPUTE.name,),
) -> None:
    """Add the optimizer once all is reduced; the next step begins after it.

    `host_waits`: whether the host waits for the reductions before it issues the optimizer.
    `streams`: that begin with the next step.
    """
    times, rank_class = step.request.times, step.rank_class
    marks: dict[str, Any] = {"micro_batch": step.last_micro_batch}
    waits = reduced if host_waits else ()
    if times.unscale_s > 0:  # GradScaler.step reads whether any gradient is infinite
        checked = step.tasks.launch(
            "unscale gradients", "optimizer", times.unscale_s, 1, rank_class, after=reduced, **marks
        )
        waits = (step.tasks.wait("check of gradients", rank_class, after=(checked,), **marks),)
    first = times.optimizer_lists or times.optimizer_kernels
    end = step.tasks.launch(
        "optimizer",
        "optimizer",
        times.optimizer_s,
        first,
        rank_class,
        issue_after=waits,
        after=reduced,
        **marks,
    )
    step.tasks.issue("rest of optimizer", times.optimizer_kernels - first, rank_class, **marks)
    step.tasks.begin_after(add_step_end(step, end), streams)


# ---------------------------------------------------------------- segments


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive layers whose forward or backward runs as one task.

    `name`: first and last layer.
    `kernels`: operations alone that take the host as long to issue as its kernels.
    `tensors`: of its layers; backward completes their gradients in this order.
    `indices`: of its layers, in the order in which the pass runs them.
    """

    name: str
    duration_s: float
    kernels: float
    tensors: tuple[int, ...] = ()
    indices: tuple[int, ...] = ()


def forward_segments(
    workload: Workload, times: LayerTimes, *, at_most: int = 128, devices: Sequence[int] = ()
) -> tuple[Segment, ...]:
    """Return the forward pass as segments of about equally many layers.

    `devices`: of each layer; none has layers of two.
    """
    check_times(workload, times)
    return visit_segments(
        workload,
        times,
        range(len(workload.layers)),
        at_most=at_most,
        backward=False,
        cuts=[i for i, (a, b) in enumerate(pairwise(devices)) if a != b],
    )


def backward_segments(
    workload: Workload,
    times: LayerTimes,
    *,
    at_most: int = 128,
    cut_after: Collection[int] = (),
    devices: Sequence[int] = (),
) -> tuple[Segment, ...]:
    """Return the backward pass as segments, cut after each layer with a tensor of `cut_after`.

    `devices`: as of `forward_segments`.
    """
    check_times(workload, times)
    layers = range(len(workload.layers))
    cuts = {at for at in layers if not set(workload.layers[at].tensors).isdisjoint(cut_after)}
    cuts.update(i + 1 for i, (a, b) in enumerate(pairwise(devices)) if a != b)
    return visit_segments(workload, times, layers, at_most=at_most, backward=True, cuts=cuts)


def visit_segments(
    workload: Workload,
    times: LayerTimes,
    layers: Sequence[int],
    *,
    at_most: int,
    backward: bool,
    cuts: Collection[int] = (),
) -> tuple[Segment, ...]:
    """Return some consecutive layers as segments of one pass; backward runs them in reverse.

    `layers`: in the order of forward. `cuts`: of these, after which a segment ends.
    """
    seconds = times.backward_s if backward else times.forward_s
    kernels = times.backward_kernels if backward else times.forward_kernels
    size = -(-len(layers) // max(1, at_most))
    groups: list[list[int]] = [[]]
    for index in reversed(layers) if backward else layers:
        groups[-1].append(index)
        if len(groups[-1]) >= size or index in cuts:
            groups.append([])
    return tuple(
        Segment(
            _name(workload, group),
            float(sum(seconds[index] for index in group)),
            times.layer_launches * int(sum(kernels[index] for index in group)),
            tuple(tensor for index in group for tensor in workload.layers[index].tensors),
            tuple(group),
        )
        for group in groups
        if group
    )


def check_times(workload: Workload, times: LayerTimes) -> None:
    """Raise ScheduleError unless there is one finite time, zero or more, per layer and pass."""
    layers = len(workload.layers)
    check_schedule((layers == 0, f"workload {workload.name!r} has no layers"))
    for name in ("forward_s", "backward_s", "forward_kernels", "backward_kernels"):
        values = np.asarray(getattr(times, name), dtype=float)
        check_schedule(
            (
                values.shape != (layers,),
                f"times.{name} has shape {values.shape}; {workload.name!r} has {layers} layers",
            )
        )
        check_schedule(
            (
                not (np.isfinite(values).all() and (values >= 0).all()),
                f"times.{name} holds a value that is negative or not finite",
            )
        )


def _name(workload: Workload, group: Sequence[int]) -> str:
    first, last = workload.layers[group[0]].name, workload.layers[group[-1]].name
    return first if len(group) == 1 else f"{first} .. {last}"
