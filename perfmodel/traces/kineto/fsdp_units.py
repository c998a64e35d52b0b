"""Sharded training in a trace: units of FSDP (both versions), and waiting for their collectives.

Units are read from what their hooks record: `fully_shard` names them and lists the gradients that
it concatenates; version 1 has one flat gradient a unit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.traces.kineto.event_table import Events, EventTable
from perfmodel.traces.kineto.work import Window, Work, overlap_s
from perfmodel.traces.model import Call, Gradient

HOOKS = {2: "FSDP::", 1: "FullyShardedDataParallel._"}
"""Ranges of its own work that each version records (torch/distributed/fsdp)."""

REDUCE = "FSDP::post_backward_reduce"
CONCATENATE = "fsdp::chunk_cat"
_UNIT = re.compile(r"[^(]*\((.*)\)")

Spans = list[tuple[float, float]]


def version_of(table: EventTable) -> int:
    """Version of FSDP that a trace shows; 0: none."""
    return next((number for number, word in HOOKS.items() if len(table.named(word))), 0)


def union(spans: Spans) -> Spans:
    """Join spans that overlap.

    Examples
    --------
    >>> union([(1, 2), (0, 5), (3, 4), (6, 7)])
    [(0, 5), (6, 7)]
    """
    merged: Spans = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def common(first: Spans, second: Spans) -> Spans:
    """Parts that lie in both of two lists of spans, each without overlaps.

    Examples
    --------
    >>> common([(0, 5), (6, 7)], [(4, 6.5)])
    [(4, 5), (6, 6.5)]
    """
    both, at = [], 0
    for low, high in first:
        while at < len(second) and second[at][1] <= low:
            at += 1
        number = at
        while number < len(second) and second[number][0] < high:
            both.append((max(low, second[number][0]), min(high, second[number][1])))
            number += 1
    return both


def waits_s(table: EventTable, work: Work, calls: Sequence[Call], version: int) -> FloatArray:
    """Of each piece of work: time of its gap, or on a CPU inside of hooks, beside collectives."""
    spans = union([(call.start_s, call.end_s) for call in calls])
    waits = overlap_s(work.start - work.gap_s, work.start, spans)
    if work.on_cpu:
        marks = table.marks.where(np.isin(table.marks.name, table.named(HOOKS[version])))
        hooks = union(list(zip(marks.start.tolist(), marks.end.tolist(), strict=True)))
        waits += overlap_s(work.start, work.end, common(spans, hooks))
    return waits


def shard_gradients(
    table: EventTable,
    window: Window,
    gradients: Sequence[Gradient],
    ready_s: Sequence[tuple[float, float]],
    reductions: Sequence[Call],
    version: int,
) -> tuple[tuple[Gradient, ...], tuple[str, ...]]:
    """Assign the gradients of a step to its units, one for each reduction.

    Returns the gradients, and names of units; nothing for the root of version 2.
    """
    if version == 1:
        return _flat_gradients(gradients, ready_s, reductions)
    marks = table.marks.where(
        np.isin(table.marks.name, table.named(REDUCE))
        & (table.marks.start >= window.start_s)
        & (table.marks.start < window.end_s)
    )
    spans = [_around(marks, call) for call in reductions]
    names = tuple(_unit_of(table, name) for name, _ in spans)
    homes: list[int | None] = [None] * len(gradients)
    # Units without inputs that need gradients end with the outermost one, which has what is left.
    for number in sorted(range(len(names)), key=lambda each: names[each] == ""):
        shapes = _concatenated(table, spans[number][1])
        for gradient in reversed(range(len(gradients))):
            is_ready = ready_s[gradient][0] < spans[number][1][1]
            shape = gradients[gradient].shape
            if homes[gradient] is None and is_ready and shapes[shape] > 0:
                homes[gradient] = number
                shapes[shape] -= 1
    return tuple(replace(g, bucket=n) for g, n in zip(gradients, homes, strict=True)), names


def _around(marks: Events, call: Call) -> tuple[int | None, tuple[float, float]]:
    """Name and span of the range that a reduction was issued in."""
    around = np.flatnonzero((marks.start <= call.issued_s) & (marks.end >= call.issued_s))
    if not len(around):
        return None, (call.issued_s, call.issued_s)
    at = int(around[-1])
    return int(marks.name[at]), (float(marks.start[at]), float(marks.end[at]))


def _unit_of(table: EventTable, name: int | None) -> str:
    matched = None if name is None else _UNIT.fullmatch(table.names[name])
    return matched.group(1) if matched else ""


def _flat_gradients(
    gradients: Sequence[Gradient],
    ready_s: Sequence[tuple[float, float]],
    reductions: Sequence[Call],
) -> tuple[tuple[Gradient, ...], tuple[str, ...]]:
    """One flat gradient for each unit, which is reduced as soon as it is there."""
    placed = []
    for gradient, (start_s, _) in zip(gradients, ready_s, strict=True):
        home = next((n for n, call in enumerate(reductions) if call.issued_s >= start_s), None)
        elements = gradient.elements
        if elements is None and home is not None:
            elements = reductions[home].elements
        placed.append(replace(gradient, bucket=home, elements=elements))
    # The outermost unit is complete last.
    last = len(reductions) - 1
    return tuple(placed), tuple("" if n == last else f"unit{last - n}" for n in range(last + 1))


def _concatenated(table: EventTable, span: tuple[float, float]) -> Counter[Any]:
    """Shapes of the gradients that were copied to the buffer of a reduction."""
    copies = table.ops.where(
        np.isin(table.ops.name, table.named(CONCATENATE))
        & (table.ops.start >= span[0])
        & (table.ops.start <= span[1])
    )
    shapes: Counter[Any] = Counter()
    for row in copies.row.tolist():
        listed = table.arguments.get(("op", row), {}).get("Input Dims")
        tensors = listed[0] if isinstance(listed, list) and listed else None
        for sizes in tensors if isinstance(tensors, list) else ():
            if isinstance(sizes, list) and all(isinstance(size, int) for size in sizes):
                shapes[tuple(sizes) or (1,)] += 1
    return shapes
