"""Which bucket each gradient is in, and how large it is where the profiler recorded no shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.traces.kineto.work import Work
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
