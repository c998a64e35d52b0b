"""How much slower work runs while a collective is in progress: alike kernels with and without."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.traces.kineto.work import Work, overlap_s
from perfmodel.traces.model import Call

MOSTLY, HARDLY = 0.8, 0.02
"""Part of a kernel that counts as beside a collective, and as without one."""

LEAST_ALIKE = 3
"""Runs alone that a kernel needs for a median."""

LEAST_SHARE = 0.05
"""Part of the time beside collectives that must have such a median: less says nothing."""

LARGEST = 5.0
"""A larger factor is not slower work, but processes that take turns on a core: kernels beside NCCL
were measured to run up to twice as long (NVIDIA/nccl issues 338, 1428, 1433)."""


def estimate_slowdown(
    work: Work, calls: Sequence[Call], windows: Sequence[tuple[float, float]]
) -> float | None:
    """Return the time of work beside collectives over that of the same work alone, at least 1.

    Kernels are the same by name, grid and block, operators by name and shapes.
    `windows`: steps; work outside of them is left out.
    None where there is no overlap, or too few kernels ran both ways.
    """
    if not calls:
        return None
    length = work.end - work.start
    inside = np.zeros(len(length), dtype=bool)
    for low, high in windows:
        inside |= (work.issued_s >= low) & (work.issued_s < high)
    spans = sorted((call.start_s, call.end_s) for call in calls)
    part = overlap_s(work.start, work.end, spans) / np.maximum(length, 1e-12)
    usable = inside & (length > 0)
    overlapped, alone = usable & (part > MOSTLY), usable & (part < HARDLY)
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
    return factor if factor <= LARGEST else None
