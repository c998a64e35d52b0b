"""Where a step begins: at the profiler's marks, else at the first work behind an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from perfmodel.traces.kineto.event_stream import trace_fault
from perfmodel.traces.kineto.event_table import EventTable
from perfmodel.traces.kineto.work import ACCUMULATE, EVALUATE, Owners


class Window(NamedTuple):
    """A step on the host's clock; seconds."""

    name: str
    start_s: float
    end_s: float


def find_windows(table: EventTable, owners: Owners) -> tuple[tuple[Window, ...], str]:
    """Return the steps with a backward pass, and how they were found.

    Raises `InputError`: no backward pass in the trace.
    """
    gradients = owners.events.where(np.isin(owners.events.name, table.named(ACCUMULATE)))
    if not len(gradients):
        allowed = "a trace of training: forward, backward and what follows, with CPU activity"
        raise trace_fault(table.path, "no backward pass that ends in gradients", allowed)
    windows, source = _marked(table), "ProfilerStep"
    if not windows:
        windows, source = _after_optimizer(table, owners), "the optimizer's steps"
    if not windows:
        windows, source = _between_passes(table, owners), "the order of forward and backward"
    chosen = tuple(
        window
        for window in windows
        if np.any((gradients.start >= window.start_s) & (gradients.start < window.end_s))
    )
    if not chosen:
        raise trace_fault(table.path, "no whole step", "a trace with one whole step at least")
    return chosen, source


def _marked(table: EventTable) -> list[Window]:
    marks = table.marks.where(np.isin(table.marks.name, table.named("ProfilerStep#")))
    if not len(marks):
        return []
    first = marks.where(marks.thread == marks.thread[0])
    return [
        Window(table.names[int(first.name[at])], float(first.start[at]), float(first.end[at]))
        for at in range(len(first))
    ]


def _after_optimizer(table: EventTable, owners: Owners) -> list[Window]:
    marks = table.marks.where(np.isin(table.marks.name, table.named("Optimizer.step#")))
    return _split(owners, marks.end.tolist())


def _between_passes(table: EventTable, owners: Owners) -> list[Window]:
    """Cut before the first operator with a gradient that follows a backward pass."""
    events = owners.events
    backward = np.isin(events.name, table.named(EVALUATE))
    forward = ~backward & (events.key >= 0)
    cuts, in_backward = [], False
    for at in range(len(events)):
        if backward[at]:
            in_backward = True
        elif forward[at] and in_backward:
            cuts.append(float(events.start[at]) - 1e-9)
            in_backward = False
    return _split(owners, cuts)


def _split(owners: Owners, cuts: Sequence[float]) -> list[Window]:
    events = owners.events
    if not cuts or not len(events):
        return []
    last = float(events.end.max())
    borders = [float(events.start[0]), *cuts]
    if np.any(events.start > cuts[-1]):
        borders.append(last)
    return [
        Window(f"step {number}", low, high)
        for number, (low, high) in enumerate(pairwise(borders))
        if high > low
    ]
