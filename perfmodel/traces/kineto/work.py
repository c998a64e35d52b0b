"""Work on the timeline that a step follows: kernels of a GPU, or operators of a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray
from perfmodel.traces.kineto.collective_calls import communication_mask
from perfmodel.traces.kineto.event_stream import trace_fault
from perfmodel.traces.kineto.event_table import BACKENDS, Events, EventTable
from perfmodel.traces.model import Call

EVALUATE = "autograd::engine::evaluate_function: "
ACCUMULATE = EVALUATE + "torch::autograd::AccumulateGrad"
COPY_IN = "torch::distributed::reducer::mul_out"
COPY_OUT = "torch.distributed.ddp.reducer::copy_bucket_to_grad"

BESIDE_SHARE, ALONE_SHARE = 0.8, 0.02
"""Least part of a kernel that counts as beside a collective, and most of one that is alone."""

LEAST_ALIKE = 3
"""Runs alone that a kernel needs for a median."""

LEAST_SHARE = 0.05
"""Part of the time beside collectives that must have such a median: less says nothing."""

LARGEST_SLOWDOWN = 5.0
"""A larger factor is not slower work, but processes that take turns on a core: kernels beside NCCL
were measured to run up to twice as long (NVIDIA/nccl issues 338, 1428, 1433)."""


@dataclass(frozen=True, slots=True)
class Work:
    """Pieces of work in order of their begin.

    `taken_s`: from the end of all work before to the end of this one: its gap and its time.
    `issued_s`: when the host launched it.
    `owner`: outermost operator that launched it (index in `Owners`), -1: none.
    `kind`: number that alike work has in common.
    `nbytes`: of copies; 0 otherwise.
    """

    start: FloatArray
    end: FloatArray
    taken_s: FloatArray
    gap_s: FloatArray
    issued_s: FloatArray
    owner: NDArray[np.int64]
    kind: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    on_cpu: bool


def work_of(table: EventTable) -> Work:
    """Return all work but communication."""
    device = table.device.where(~communication_mask(table))
    if len(device):
        return _device_work(table, device)
    busy = np.isin(table.owners.name, table.named("c10d::", *BACKENDS, "record_param_comms"))
    events = table.owners.where(~busy)
    return Work(
        events.start,
        events.end,
        *_taken(events),
        issued_s=events.start,
        owner=np.flatnonzero(~busy),
        kind=events.name * (1 << 31) + events.detail,
        nbytes=np.zeros(len(events), dtype=np.int64),
        on_cpu=True,
    )


def _device_work(table: EventTable, device: Events) -> Work:
    issued, threads = _launched(table, device)
    owner, owners = np.full(len(device), -1, dtype=np.int64), table.owners
    for thread in np.unique(owners.thread):
        rows, mine = np.flatnonzero(owners.thread == thread), np.flatnonzero(threads == thread)
        at = np.searchsorted(owners.start[rows], issued[mine], side="right") - 1
        inside = (at >= 0) & (issued[mine] <= owners.end[rows][np.maximum(at, 0)])
        owner[mine[inside]] = rows[at[inside]]
    return Work(
        device.start,
        device.end,
        *_taken(device),
        issued_s=issued,
        owner=owner,
        kind=device.name * (1 << 31) + np.minimum(device.detail, (1 << 31) - 1),
        nbytes=np.where(np.isin(device.name, table.named("Memcpy")), device.detail, 0),
        on_cpu=False,
    )


def _launched(table: EventTable, device: Events) -> tuple[FloatArray, NDArray[np.int64]]:
    """When, and on which thread, each piece of work was launched; its own begin if not known."""
    launches = table.launches.where(table.launches.key >= 0)
    order = np.argsort(launches.key, kind="stable")
    keys = launches.key[order]
    issued, threads = device.start.copy(), np.full(len(device), -1, dtype=np.int64)
    if len(keys):
        at = np.minimum(np.searchsorted(keys, device.key), len(keys) - 1)
        launched = keys[at] == device.key
        issued[launched] = launches.start[order][at][launched]
        threads[launched] = launches.thread[order][at][launched]
    return issued, threads


def _taken(events: Events) -> tuple[FloatArray, FloatArray]:
    """Time from the end of all earlier work to the end of each piece, and the gap in it."""
    ends = np.maximum.accumulate(events.end) if len(events) else events.end
    before = np.concatenate([events.start[:1], ends[:-1]])
    return np.asarray(np.maximum(0.0, events.end - before)), np.maximum(0.0, events.start - before)


def overlap_s(start: FloatArray, end: FloatArray, spans: list[tuple[float, float]]) -> FloatArray:
    """Part of each interval that lies in any of some spans, which do not overlap; seconds."""
    total = np.zeros(len(start))
    for low, high in spans:
        total += np.maximum(0.0, np.minimum(end, high) - np.maximum(start, low))
    return total


# ---------------------------------------------------------------- beside collectives


def estimate_slowdown(work: Work, calls: Sequence[Call], windows: Sequence[Window]) -> float | None:
    """Return the time of work beside collectives over that of the same work alone, at least 1.

    Kernels are the same by name, grid and block, operators by name and shapes.
    `windows`: steps; work outside of them is left out.
    None where there is no overlap, or too few kernels ran both ways.
    """
    if not calls:
        return None
    length = work.end - work.start
    spans = sorted((call.start_s, call.end_s) for call in calls)
    part = overlap_s(work.start, work.end, spans) / np.maximum(length, 1e-12)
    usable = np.any([window.holds(work.issued_s) for window in windows], axis=0) & (length > 0)
    overlapped, alone = usable & (part > BESIDE_SHARE), usable & (part < ALONE_SHARE)
    compared_s = expected_s = 0.0
    for kind in np.unique(work.kind[overlapped]):
        same = work.kind == kind
        alike_alone, alike_beside = length[alone & same], length[overlapped & same]
        if len(alike_alone) >= LEAST_ALIKE:
            # Medians: a process that loses its core for a while is not slowed down by transfers.
            compared_s += len(alike_beside) * float(np.median(alike_beside))
            expected_s += len(alike_beside) * float(np.median(alike_alone))
    overlapped_s = float((length * np.minimum(part, 1.0))[usable].sum())
    if expected_s <= 0 or compared_s < LEAST_SHARE * overlapped_s:
        return None
    factor = max(1.0, compared_s / expected_s)
    return factor if factor <= LARGEST_SLOWDOWN else None


class Window(NamedTuple):
    """A step on the host's clock; seconds."""

    name: str
    start_s: float
    end_s: float

    def holds(self, times_s: FloatArray) -> NDArray[np.bool_]:
        """Return which times lie in the step."""
        return (times_s >= self.start_s) & (times_s < self.end_s)


def find_windows(table: EventTable) -> tuple[tuple[Window, ...], str]:
    """Return the steps with a backward pass, and how they were found.

    Raises `InputError`: no backward pass in the trace.
    """
    gradients = table.chosen(table.owners, ACCUMULATE)
    if not len(gradients):
        raise trace_fault(
            table.path,
            "no backward pass that ends in gradients",
            "a trace of training: forward, backward and what follows, with CPU activity",
        )
    sources = {
        "ProfilerStep": _marked,
        "the optimizer's steps": _after_optimizer,
        "the order of forward and backward": _between_passes,
    }
    found = ((find(table), source) for source, find in sources.items())
    windows, source = next((each for each in found if each[0]), ([], ""))
    chosen = tuple(window for window in windows if np.any(window.holds(gradients.start)))
    if not chosen:
        raise trace_fault(table.path, "no whole step", "a trace with one whole step at least")
    return chosen, source


def _marked(table: EventTable) -> list[Window]:
    marks = table.chosen(table.marks, "ProfilerStep#")
    first = marks.where(marks.thread == marks.thread[:1])
    spans = zip(first.name.tolist(), first.start.tolist(), first.end.tolist(), strict=True)
    return [Window(table.names[name], start, end) for name, start, end in spans]


def _after_optimizer(table: EventTable) -> list[Window]:
    return _split(table.owners, table.chosen(table.marks, "Optimizer.step#").end.tolist())


def _between_passes(table: EventTable) -> list[Window]:
    """Cut before the first operator with a gradient that follows a backward pass."""
    events = table.owners
    backward = np.isin(events.name, table.named(EVALUATE))
    cuts, in_backward = [], False
    for at in np.flatnonzero(backward | (events.key >= 0)).tolist():
        if in_backward and not backward[at]:
            cuts.append(float(events.start[at]) - 1e-9)
        in_backward = bool(backward[at])
    return _split(events, cuts)


def _split(events: Events, cuts: Sequence[float]) -> list[Window]:
    if not cuts or not len(events):
        return []
    ends = [float(events.end.max())] if np.any(events.start > cuts[-1]) else []
    return [
        Window(f"step {number}", low, high)
        for number, (low, high) in enumerate(pairwise([float(events.start[0]), *cuts, *ends]))
        if high > low
    ]
