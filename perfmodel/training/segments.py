"""Merge layers into segments, each of which is one task.

A model of 600 layers needs no 600 forward tasks: what matters is when the host has issued the work
and when each bucket's last gradient is ready. Layers are merged into a number of segments per pass,
and backward is always cut where a bucket is complete, so that merging changes no bucket's ready
time on a busy GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.errors import ScheduleError
from perfmodel.workload.model import LayerTimes, Workload


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive layers whose forward or backward runs as one task.

    Parameters
    ----------
    name : str
        First and last layer.
    duration_s : float
    kernels : int
        Kernels that the host issues for it.
    tensors : tuple of int
        Gradients that its backward completes, in the order in which they get ready; empty for
        a forward segment.
    layers : int
    """

    name: str
    duration_s: float
    kernels: int
    tensors: tuple[int, ...] = ()
    layers: int = 1


def forward_segments(
    workload: Workload, times: LayerTimes, *, at_most: int = 128
) -> tuple[Segment, ...]:
    """Return the forward pass as segments of about equally many layers."""
    check_times(workload, times)
    groups = _group(range(len(workload.layers)), at_most, cuts=())
    return tuple(
        Segment(_name(workload, group), *_sums(group, times.forward_s, times.forward_kernels))
        for group in groups
    )


def backward_segments(
    workload: Workload,
    times: LayerTimes,
    *,
    at_most: int = 128,
    cut_after: Collection[int] = (),
) -> tuple[Segment, ...]:
    """Return the backward pass as segments, cut after each layer with a tensor of `cut_after`."""
    check_times(workload, times)
    layers = workload.layers
    cuts = {
        index for index, layer in enumerate(layers) if not set(layer.tensors).isdisjoint(cut_after)
    }
    groups = _group(range(len(layers) - 1, -1, -1), at_most, cuts)
    return tuple(
        Segment(
            _name(workload, group),
            *_sums(group, times.backward_s, times.backward_kernels),
            tuple(tensor for index in group for tensor in layers[index].tensors),
            len(group),
        )
        for group in groups
    )


def check_times(workload: Workload, times: LayerTimes) -> None:
    """Raise ScheduleError unless there is one finite time, zero or more, per layer and pass."""
    layers = len(workload.layers)
    if layers == 0:
        raise ScheduleError(f"workload {workload.name!r} has no layers")
    for name in ("forward_s", "backward_s", "forward_kernels", "backward_kernels"):
        values = np.asarray(getattr(times, name), dtype=float)
        if values.shape != (layers,):
            raise ScheduleError(
                f"times.{name} has shape {values.shape}; {workload.name!r} has {layers} layers"
            )
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise ScheduleError(f"times.{name} holds a value that is negative or not finite")


def _group(order: Sequence[int], at_most: int, cuts: Collection[int]) -> list[list[int]]:
    size = -(-len(order) // max(1, at_most))
    groups: list[list[int]] = [[]]
    for index in order:
        groups[-1].append(index)
        if len(groups[-1]) >= size or index in cuts:
            groups.append([])
    return [group for group in groups if group]


def _sums(group: Sequence[int], times_s: FloatArray, kernels: IntArray) -> tuple[float, int]:
    return float(sum(times_s[index] for index in group)), int(sum(kernels[i] for i in group))


def _name(workload: Workload, group: Sequence[int]) -> str:
    first, last = workload.layers[group[0]].name, workload.layers[group[-1]].name
    return first if len(group) == 1 else f"{first} .. {last}"
