"""Gradients of a trace in their buckets: sizes, and units of sharded training (FSDP).

Units are read from what their hooks record: `fully_shard` names them and lists the gradients that
it concatenates; version 1 has one flat gradient a unit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray
from perfmodel.timeline import union
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
    homes = _homes(sorted(call.issued_s for call in buckets), ready_s)
    placed = [
        replace(g, bucket=home, dtype=g.dtype or (None if home is None else buckets[home].dtype))
        for g, home in zip(gradients, homes, strict=True)
    ]
    elements = [bucket.elements for bucket in buckets]
    if all(g.elements is not None for g in placed):
        return tuple(placed), _contradictions(placed, elements)
    sized = _by_copies(placed, elements, copied_bytes)
    return (tuple(sized), ()) if sized is not None else _evenly(placed, elements)


def _homes(issued_s: Sequence[float], ready_s: Sequence[tuple[float, float]]) -> list[int | None]:
    """Return of each gradient the first collective that is issued once it is ready, if any."""
    return [next((n for n, at in enumerate(issued_s) if at >= s), None) for s, _ in ready_s]


def _contradictions(
    gradients: Sequence[Gradient], elements: Sequence[int | None]
) -> tuple[str, ...]:
    """Say which buckets are of another size than their gradients together."""
    sums = [
        sum(gradient.elements or 0 for gradient in gradients if gradient.bucket == number)
        for number in range(len(elements))
    ]
    wrong = [
        f"bucket {number} has {total:,} elements, its gradients {own:,}"
        for number, (total, own) in enumerate(zip(elements, sums, strict=True))
        if total is not None and total != own
    ]
    return (f"gradients do not add up to buckets: {'; '.join(wrong[:3])}",) if wrong else ()


def _by_copies(
    gradients: Sequence[Gradient], elements: Sequence[int | None], copied: Sequence[int]
) -> list[Gradient] | None:
    """Find sizes by copies out of the buckets, bucket by bucket; None if they do not fit."""
    if len(copied) < len(gradients):
        return None
    by_bucket = sorted(
        enumerate(gradients), key=lambda each: (each[1].bucket is None, each[1].bucket)
    )
    nbytes = {at: size for (at, _), size in zip(by_bucket, copied, strict=False)}
    sized = [
        replace(each, elements=max(1, nbytes[at] // ITEM_BYTES.get(each.dtype or "fp32", 4)))
        for at, each in enumerate(gradients)
    ]
    return None if _contradictions(sized, elements) else sized


def _evenly(
    gradients: Sequence[Gradient], elements: Sequence[int | None]
) -> tuple[tuple[Gradient, ...], tuple[str, ...]]:
    """Split each bucket evenly among its gradients: buckets stay exact."""
    sized = list(gradients)
    for number, total in enumerate(elements):
        members = [at for at, gradient in enumerate(gradients) if gradient.bucket == number]
        share, more = divmod(total or 0, max(len(members), 1))
        for position, at in enumerate(members if total is not None else ()):
            sized[at] = replace(gradients[at], elements=max(1, share + (position < more)))
    note = (
        "no shapes in the trace (record_shapes=True): each bucket is split evenly among its "
        "gradients; buckets themselves are exact"
    )
    silent = "the trace has neither shapes nor sizes of messages"
    return tuple(sized), (silent if all(total is None for total in elements) else note,)


def copied_sizes(work: Work, rows: NDArray[np.int64]) -> list[int]:
    """Return the bytes of the copies that a step ends with: its last run of copies, in order.

    Copies of buffers come at the begin of a step, those of gradients after backward.
    """
    nbytes = work.nbytes[rows]
    copies = np.flatnonzero(nbytes > 0)
    if not len(copies):
        return []
    kernels = np.flatnonzero(nbytes[: copies[-1]] <= 0)
    return [int(n) for n in nbytes[kernels[-1] + 1 if len(kernels) else 0 : copies[-1] + 1]]


HOOKS = {2: "FSDP::", 1: "FullyShardedDataParallel._"}
"""Ranges of its own work that each version records (torch/distributed/fsdp)."""

REDUCE = "FSDP::post_backward_reduce"
CONCATENATE = "fsdp::chunk_cat"
_UNIT = re.compile(r"[^(]*\((.*)\)")

Spans = list[tuple[float, float]]


def version_of(table: EventTable) -> int:
    """Return the version of FSDP that a trace shows; 0: none."""
    return next((number for number, word in HOOKS.items() if len(table.named(word))), 0)


def common(first: Spans, second: Spans) -> Spans:
    """Return the parts that lie in both of two lists of spans, each without overlaps.

    Examples
    --------
    >>> common([(0, 5), (6, 7)], [(4, 6.5)])
    [(4, 5), (6, 6.5)]
    """
    both, at = [], 0
    for low, high in first:
        while at < len(second) and second[at][1] <= low:
            at += 1
        both += [
            (max(low, start), min(high, end))
            for start, end in takewhile(lambda span: span[0] < high, second[at:])  # noqa: B023
        ]
    return both


def waits_s(table: EventTable, work: Work, calls: Sequence[Call], version: int) -> FloatArray:
    """Return the gap before each piece of work, or on a CPU its hooks, beside collectives."""
    spans = union([(call.start_s, call.end_s) for call in calls])
    waits = overlap_s(work.start - work.gap_s, work.start, spans)
    if work.on_cpu:
        marks = table.chosen(table.marks, HOOKS[version])
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
    marks = table.chosen(table.marks, REDUCE).within(window.start_s, window.end_s)
    units = [_unit_around(table, marks, call) for call in reductions]
    homes: list[int | None] = [None] * len(gradients)
    # Units without inputs that need gradients end with the outermost one, which has what is left.
    for number in sorted(range(len(units)), key=lambda each: units[each][0] == ""):
        _, start_s, end_s = units[number]
        shapes = _concatenated(table, start_s, end_s)
        for gradient in reversed(range(len(gradients))):
            shape = gradients[gradient].shape
            if homes[gradient] is None and ready_s[gradient][0] < end_s and shapes[shape] > 0:
                homes[gradient] = number
                shapes[shape] -= 1
    names = tuple(name for name, *_ in units)
    return tuple(replace(g, bucket=n) for g, n in zip(gradients, homes, strict=True)), names


def _unit_around(table: EventTable, marks: Events, call: Call) -> tuple[str, float, float]:
    """Return unit, begin and end of the range that a reduction was issued in."""
    around = np.flatnonzero((marks.start <= call.issued_s) & (marks.end >= call.issued_s))
    if not len(around):
        return "", call.issued_s, call.issued_s
    matched = _UNIT.fullmatch(table.names[int(marks.name[around[-1]])])
    return (
        matched.group(1) if matched else "",
        float(marks.start[around[-1]]),
        float(marks.end[around[-1]]),
    )


def _flat_gradients(
    gradients: Sequence[Gradient],
    ready_s: Sequence[tuple[float, float]],
    reductions: Sequence[Call],
) -> tuple[tuple[Gradient, ...], tuple[str, ...]]:
    """Return one flat gradient for each unit, which is reduced as soon as it is there."""
    homes = _homes([call.issued_s for call in reductions], ready_s)
    reduced = [None if home is None else reductions[home].elements for home in homes]
    placed = tuple(
        replace(g, bucket=home, elements=own if g.elements is None else g.elements)
        for g, home, own in zip(gradients, homes, reduced, strict=True)
    )
    # The outermost unit is complete last.
    last = len(reductions) - 1
    return placed, tuple("" if n == last else f"unit{last - n}" for n in range(last + 1))


def _concatenated(table: EventTable, start_s: float, end_s: float) -> Counter[Any]:
    """Count the shapes of the gradients that were copied to the buffer of a reduction."""
    copies = table.chosen(table.ops, CONCATENATE)
    shapes: Counter[Any] = Counter()
    for row in copies.row[(copies.start >= start_s) & (copies.start <= end_s)].tolist():
        listed = table.arguments.get(("op", row), {}).get("Input Dims")
        tensors = listed[0] if isinstance(listed, list) and listed else None
        for sizes in tensors if isinstance(tensors, list) else ():
            if isinstance(sizes, list) and all(isinstance(size, int) for size in sizes):
                shapes[tuple(sizes) or (1,)] += 1
    return shapes
