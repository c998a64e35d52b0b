"""One rank's trace: its steps cut into parts, its layers, gradients, buckets and slowdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray
from perfmodel.memo import applying
from perfmodel.timeline import union
from perfmodel.traces.kineto.collective_calls import read_calls
from perfmodel.traces.kineto.event_stream import refuse_trace
from perfmodel.traces.kineto.event_table import FIRST_OPERATORS, MOST_SHAPED, EventTable, read_table
from perfmodel.traces.kineto.gradient_buckets import (
    copied_sizes,
    fill_buckets,
    shard_gradients,
    version_of,
    waits_s,
)
from perfmodel.traces.kineto.work import (
    COPY_IN,
    COPY_OUT,
    Pass,
    Window,
    Work,
    estimate_slowdown,
    find_windows,
    forward_layers,
    name_layers,
    next_known,
    overlap_s,
    read_gradients,
    read_pass,
    work_of,
)
from perfmodel.traces.model import Call, Gradient, RankTrace, TracedStep

MANY_STEPS = 4
"""Steps from which on the first is left out: the profiler and allocators settle in it."""


class _Part(NamedTuple):
    """What belongs to one step.

    `of_backward`: places in `work` of what operators of backward launched.
    """

    window: Window
    backward: Pass
    forward: tuple[NDArray[np.int64], NDArray[np.int64]]
    work: NDArray[np.int64]
    of_backward: NDArray[np.int64]


def read_rank(path: Path) -> RankTrace:
    """Read the trace of one rank, and cut it into steps, layers and buckets.

    Raises `InputError`: no trace of PyTorch's profiler, a damaged one, or one without training.
    """
    table = read_table(path)
    windows, source = find_windows(table)
    work, calls = work_of(table), read_calls(table)
    parts, notes = _alike([_part(table, work, window) for window in windows], table.path)
    notes += applying(
        (
            source != "ProfilerStep",
            f"steps are told apart by {source}: the trace has no ProfilerStep",
        )
    )
    fsdp = version_of(table)
    waits = waits_s(table, work, calls, fsdp) if fsdp else None
    steps = [
        _step(table, work, calls, part, following, waits)
        for part, following in zip(parts, [*parts[1:], None], strict=True)
    ]
    last, buckets = parts[-1], steps[-1].buckets
    gradients = tuple(read_gradients(table, last.backward))
    handed_over = last.backward.gradients
    ready_s = list(
        zip(
            table.owners.start[handed_over].tolist(),
            table.owners.end[handed_over].tolist(),
            strict=True,
        )
    )
    size_notes: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    if fsdp:
        gradients, units = shard_gradients(table, last.window, gradients, ready_s, buckets, fsdp)
    else:
        gradients, size_notes = fill_buckets(
            gradients, ready_s, buckets, copied_sizes(work, last.work)
        )
    steps = [replace(step, buckets=_sized(step.buckets, gradients)) for step in steps]
    counted = steps[1:] if len(steps) >= MANY_STEPS else steps
    forwards = table.chosen(table.marks, "DistributedDataParallel.forward")
    return RankTrace(
        path=table.path,
        layers=name_layers(table, last.backward, last.forward),
        gradients=gradients,
        steps=tuple(counted),
        slowdown=estimate_slowdown(
            work,
            [call for step in counted for call in step.buckets],
            [part.window for part in parts[-len(counted) :]],
        ),
        views=not len(table.chosen(table.ops, COPY_OUT)) and not _copies_out(work, last),
        passes=max(1, int(last.window.holds(forwards.start).sum())),
        batch=_batch(table),
        notes=(*notes, *size_notes),
        fsdp=fsdp,
        units=units,
        gathers=sum(call.op == "all_gather" for call in steps[-1].others),
        events=table.events,
        **_header(table),
    )


def _sized(buckets: tuple[Call, ...], gradients: Sequence[Gradient]) -> tuple[Call, ...]:
    """Give buckets whose size the trace does not state the sum of their gradients' sizes."""
    own = [[g.elements for g in gradients if g.bucket == number] for number in range(len(buckets))]
    totals = [sum(each or 0 for each in sizes) if all(sizes) else None for sizes in own]
    return tuple(
        call if call.elements is not None else replace(call, elements=total)
        for call, total in zip(buckets, totals, strict=True)
    )


def _part(table: EventTable, work: Work, window: Window) -> _Part:
    backward = read_pass(table, window)
    own = np.flatnonzero(window.holds(work.issued_s))
    return _Part(
        window,
        backward,
        forward_layers(table, window, backward),
        own,
        np.flatnonzero(np.isin(work.owner[own], backward.operators)),
    )


def _alike(parts: list[_Part], path: Path) -> tuple[list[_Part], list[str]]:
    """Keep steps of the most frequent form; the others are named."""
    shapes = [(part.backward.size, len(part.backward.gradients)) for part in parts]
    usual = Counter(shapes).most_common(1)[0][0]
    usable = [
        part
        for part, shape in zip(parts, shapes, strict=True)
        if shape == usual and len(part.work) > 0
    ]
    refuse_trace(
        not usable, path, "steps without work", "a trace with CPU activity and, of a GPU, CUDA"
    )
    kept = {part.window for part in usable}
    odd = ", ".join(part.window.name for part in parts if part.window not in kept)
    return usable, [f"left out, as they have other layers: {odd}"] if odd else []


# ---------------------------------------------------------------- one step


def _step(
    table: EventTable,
    work: Work,
    calls: tuple[Call, ...],
    part: _Part,
    following: _Part | None,
    waits: FloatArray | None,
) -> TracedStep:
    rows, window = part.work, part.window
    begin = float(work.start[rows[0]])
    own = [call for call in calls if window.start_s <= call.issued_s < window.end_s]
    phase, first_s, last_s = _phases(work, part)
    op, until_s = ("all_reduce", last_s) if waits is None else ("reduce_scatter", np.inf)
    buckets = [c for c in own if c.op == op and first_s <= c.issued_s <= until_s]
    others = tuple(call for call in own if call not in buckets)
    forward, backward = _by_layer(work, part, phase, others, waits)
    in_backward = rows[phase == 1]
    ends = work.end[in_backward]
    end_s = float(ends.max()) if len(ends) else begin
    length = _length(work, part, following, begin)
    averages = [c for c in others if c.op == "all_reduce"] if waits is not None else []
    exposed = max(0.0, max((call.end_s for call in (*buckets, *averages)), default=end_s) - end_s)
    spans = union([(call.start_s, call.end_s) for call in buckets])
    overlapped = overlap_s(ends - work.taken_s[in_backward], ends, spans)
    at_work = overlap_s(work.start[in_backward], ends, spans)
    idle = np.minimum(
        work.gap_s[rows], np.maximum(0, work.issued_s[rows] - (work.start - work.gap_s)[rows])
    )
    in_gaps = _gap_waits(work, rows[phase == 0], others)
    waited_s = float((in_gaps if waits is None else waits[rows[phase < 2]][1:]).sum())
    return TracedStep(
        name=window.name,
        start_s=begin,
        length_s=length,
        forward_s=forward,
        backward_s=backward,
        copied_in_s=_copied_in(table, work, part, phase),
        exposed_s=exposed,
        tail_s=max(0.0, length - float(forward.sum() + backward.sum()) - exposed - waited_s),
        backward_end_s=end_s,
        buckets=tuple(buckets),
        others=others,
        busy_s=float((work.taken_s - work.gap_s)[rows].clip(0).sum()),
        launch_wait_s=0.0 if work.on_cpu else float(idle[1:].clip(0).sum()),
        overlapped_s=float(overlapped.sum()),
        overlapped_work_s=float(np.minimum(at_work, overlapped).sum()),
        waited_s=0.0 if waits is None else waited_s,
    )


def _phases(work: Work, part: _Part) -> tuple[NDArray[np.int64], float, float]:
    """Return of each piece of work 0 forward, 1 backward, 2 after it; when backward was issued."""
    phase, issued = np.zeros(len(part.work), dtype=np.int64), work.issued_s[part.work]
    if not len(part.of_backward):
        return phase, part.window.start_s, part.window.end_s
    first, last = int(part.of_backward[0]), int(part.of_backward[-1])
    phase[first : last + 1] = 1
    phase[last + 1 :] = 2
    # The last bucket is issued by the last gradient's operator, behind its last kernel.
    behind_s = float(issued[last + 1] - issued[last]) if last + 1 < len(issued) else 1.0
    return phase, float(issued[first]), float(issued[last]) + behind_s


def _by_layer(
    work: Work,
    part: _Part,
    phase: NDArray[np.int64],
    others: tuple[Call, ...],
    waits: FloatArray | None,
) -> tuple[FloatArray, FloatArray]:
    """Return the time of each layer forward and backward, gaps before its work included."""
    forward, backward = np.zeros(part.backward.size), np.zeros(part.backward.size)
    for number, (operators, layers, sums) in enumerate(
        ((*part.forward, forward), (part.backward.operators, part.backward.layers, backward))
    ):
        chosen = part.work[phase == number]
        if not len(chosen) or not len(operators):
            continue
        owner = work.owner[chosen]
        at = np.minimum(np.searchsorted(operators, owner), len(operators) - 1)
        home = np.where(operators[at] == owner, layers[at], -1)
        home = next_known(home[::-1], max(home[home >= 0][:1].tolist(), default=0))[::-1]
        lengths_s = work.taken_s[chosen].copy()
        if number == 0:  # the gap before a step's first work is the end of the step before
            lengths_s[0] -= min(lengths_s[0], work.gap_s[chosen[0]])
        if waits is not None:
            lengths_s -= waits[chosen]
        elif number == 0:
            lengths_s -= _gap_waits(work, chosen, others)
        np.add.at(sums, home, np.maximum(lengths_s, 0.0))
    return forward, backward


def _gap_waits(work: Work, rows: NDArray[np.int64], others: tuple[Call, ...]) -> FloatArray:
    """Return the part of each gap but the first in which a collective outside of backward runs."""
    waits = overlap_s(
        (work.start - work.gap_s)[rows],
        work.start[rows],
        union([(call.start_s, call.end_s) for call in others]),
    )
    waits[:1] = 0.0
    return waits


def _length(work: Work, part: _Part, following: _Part | None, begin: float) -> float:
    """Return the time from the first work of a step to that of the next; the last ends itself."""
    if following is not None:
        consecutive = abs(following.window.start_s - part.window.end_s)
        if consecutive < 0.5 * (part.window.end_s - part.window.start_s):
            return float(work.start[following.work[0]]) - begin
    return max(part.window.end_s - part.window.start_s, float(work.end[part.work].max()) - begin)


def _copied_in(table: EventTable, work: Work, part: _Part, phase: NDArray[np.int64]) -> FloatArray:
    """Return of each layer the time of the work that copies its gradients into buckets."""
    sums = np.zeros(part.backward.size)
    copies = table.chosen(table.ops, COPY_IN).within(part.window.start_s, part.window.end_s)
    if not len(copies):
        return sums
    if work.on_cpu:
        at = np.minimum(np.searchsorted(work.owner, part.backward.operators), len(work.start) - 1)
        homes = np.searchsorted(work.start[at], copies.start, side="right") - 1
        lengths = copies.end - copies.start
    else:
        rows = part.work[phase == 1]
        at = np.searchsorted(copies.start, work.issued_s[rows], side="right") - 1
        rows = rows[(at >= 0) & (work.issued_s[rows] < copies.end[np.maximum(at, 0)])]
        homes = np.searchsorted(part.backward.operators, work.owner[rows])
        lengths = work.end[rows] - work.start[rows]
    homes = np.clip(homes, 0, len(part.backward.layers) - 1)
    np.add.at(sums, part.backward.layers[homes], lengths)
    return sums


# ---------------------------------------------------------------- what the trace states


def _copies_out(work: Work, part: _Part) -> bool:
    """Tell whether at least as many copies as gradients are issued after backward."""
    if not len(part.of_backward):
        return False
    rows = part.work[part.of_backward[-1] + 1 :]
    return int((work.nbytes[rows] > 0).sum()) >= len(part.backward.gradients)


def _batch(table: EventTable) -> int | None:
    """Return the first dimension of what the first operator of a model works on."""
    numbers = np.array([n for n, name in enumerate(table.names) if name in FIRST_OPERATORS])
    chosen = table.ops.where(np.isin(table.ops.name, numbers))
    for row, name in zip(chosen.row[:MOST_SHAPED].tolist(), chosen.name.tolist(), strict=False):
        shapes = table.arguments.get(("op", row), {}).get("Input Dims")
        position = FIRST_OPERATORS[table.names[name]]
        sizes = shapes[position] if isinstance(shapes, list) and len(shapes) > position else None
        if isinstance(sizes, list) and sizes and isinstance(sizes[0], int) and sizes[0] > 0:
            return sizes[0]
    return None


def _header(table: EventTable) -> dict[str, Any]:
    """Return rank, ranks, backend and device as the trace states them."""
    stated, devices = table.header.get("distributedInfo"), table.header.get("deviceProperties")
    stated = stated if isinstance(stated, dict) else {}
    gpus = [d for d in devices if isinstance(d, dict)] if isinstance(devices, list) else []
    gpu, backend = gpus[0] if gpus else {}, stated.get("backend")
    return {
        "rank": _whole(stated.get("rank"), 0),
        "world_size": max(_whole(stated.get("world_size"), 1), 1),
        "backend": backend if isinstance(backend, str) else None,
        "device": str(gpu.get("name", "GPU"))[:80] if len(table.device) else "CPU",
        "device_GB": -(-_whole(gpu.get("totalGlobalMem"), 0) // (1 << 30)),
    }


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 50 else default
