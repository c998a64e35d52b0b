"""Gradients of a trace in their buckets: sizes, and units of sharded training (FSDP).

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
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray
from perfmodel.traces.kineto.event_table import Events, EventTable
from perfmodel.traces.kineto.work import Window, Work, overlap_s
from perfmodel.traces.model import Call, Gradient
from perfmodel.workload.model import ITEM_BYTES


def fill_buckets(
    gradients: Sequence[Gradient],
    ready_s: Sequence[tuple[float, float]],
    buckets: Sequence[Call],
    copied_bytes: Sequence[int],
) -> tuple[tuple[Gradient, ...], tuple[str, ...]]:
    """Assign gradients to buckets in the order in which both get ready, and find their sizes.

    `ready_s`: begin and end of the operator that hands each gradient over: a bucket that is issued
        before the end of an operator contains its gradient.
    `copied_bytes`: of the copies from buckets to gradients; used where they add up to the buckets.
    Returns the gradients, and what had to be assumed.
    """
    issued = sorted(call.issued_s for call in buckets)
    homes: list[int | None] = []
    for start, _ in ready_s:
        later = [number for number, at in enumerate(issued) if at >= start]
        homes.append(later[0] if later else None)
    placed = [replace(g, bucket=home) for g, home in zip(gradients, homes, strict=True)]
    elements = [bucket.elements for bucket in buckets]
    dtypes = [bucket.dtype for bucket in buckets]
    placed = [
        replace(g, dtype=g.dtype or (dtypes[g.bucket] if g.bucket is not None else None))
        for g in placed
    ]
    if all(g.elements is not None for g in placed):
        return tuple(placed), _contradictions(placed, elements)
    sized = _by_copies(placed, elements, copied_bytes)
    if sized is not None:
        return sized, ()
    return _evenly(placed, elements)


def _contradictions(
    gradients: Sequence[Gradient], elements: Sequence[int | None]
) -> tuple[str, ...]:
    sums = _sums(gradients, len(elements))
    wrong = [
        f"bucket {number} has {total:,} elements, its gradients {sums[number]:,}"
        for number, total in enumerate(elements)
        if total is not None and total != sums[number]
    ]
    return (f"gradients do not add up to buckets: {'; '.join(wrong[:3])}",) if wrong else ()


def _sums(gradients: Sequence[Gradient], count: int) -> list[int]:
    sums = [0] * count
    for gradient in gradients:
        if gradient.bucket is not None:
            sums[gradient.bucket] += gradient.elements or 0
    return sums


def _by_copies(
    gradients: Sequence[Gradient], elements: Sequence[int | None], copied: Sequence[int]
) -> tuple[Gradient, ...] | None:
    """Sizes from copies out of the buckets, bucket by bucket; None if they do not fit."""
    if len(copied) < len(gradients):
        return None
    order = sorted(
        range(len(gradients)), key=lambda at: (gradients[at].bucket is None, gradients[at].bucket)
    )
    sized = list(gradients)
    for at, nbytes in zip(order, copied, strict=False):
        item = ITEM_BYTES.get(gradients[at].dtype or "fp32", 4)
        sized[at] = replace(gradients[at], elements=max(1, nbytes // item))
    sums = _sums(sized, len(elements))
    fits = all(total is None or total == sums[number] for number, total in enumerate(elements))
    return tuple(sized) if fits else None


def _evenly(
    gradients: Sequence[Gradient], elements: Sequence[int | None]
) -> tuple[tuple[Gradient, ...], tuple[str, ...]]:
    """Split each bucket evenly among its gradients: buckets stay exact."""
    sized = list(gradients)
    for number, total in enumerate(elements):
        members = [at for at, gradient in enumerate(gradients) if gradient.bucket == number]
        if total is None or not members:
            continue
        share, more = divmod(total, len(members))
        for position, at in enumerate(members):
            sized[at] = replace(gradients[at], elements=max(1, share + (position < more)))
    if not any(total is not None for total in elements):
        return tuple(sized), ("the trace has neither shapes nor sizes of messages",)
    note = (
        "no shapes in the trace (record_shapes=True): each bucket is split evenly among its "
        "gradients; buckets themselves are exact"
    )
    return tuple(sized), (note,)


def copied_sizes(work: Work, rows: NDArray[np.int64]) -> list[int]:
    """Bytes of the copies that a step ends with, in order; the last run of copies without kernels.

    Copies of buffers come at the begin of a step, those of gradients after backward.
    """
    nbytes = work.nbytes[rows]
    copies = np.flatnonzero(nbytes > 0)
    if not len(copies):
        return []
    last = int(copies[-1])
    first = last
    while first > 0 and nbytes[first - 1] > 0:
        first -= 1
    return [int(each) for each in nbytes[first : last + 1]]


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
