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
from perfmodel.traces.kineto.backward_layers import (
    Pass,
    forward_layers,
    name_layers,
    read_gradients,
    read_pass,
)
from perfmodel.traces.kineto.collective_calls import read_calls
from perfmodel.traces.kineto.event_stream import trace_fault
from perfmodel.traces.kineto.event_table import FIRST_OPERATORS, MOST_SHAPED, EventTable, read_table
from perfmodel.traces.kineto.gradient_buckets import (
    copied_sizes,
    fill_buckets,
    shard_gradients,
    union,
    version_of,
    waits_s,
)
from perfmodel.traces.kineto.work import (
    COPY_IN,
    COPY_OUT,
    Owners,
    Window,
    Work,
    estimate_slowdown,
    find_windows,
    overlap_s,
    owners_of,
    work_of,
)
from perfmodel.traces.model import Call, Gradient, RankTrace, TracedStep

MANY_STEPS = 4
"""From so many on, the first is left out: the profiler and allocators settle in it."""


class _Part(NamedTuple):
    """What belongs to one step."""

    window: Window
    backward: Pass
    forward: tuple[NDArray[np.int64], NDArray[np.int64]]
    work: NDArray[np.int64]


def read_rank(path: Path) -> RankTrace:
    """Read the trace of one rank.

    Raises `InputError`: no trace of PyTorch's profiler, a damaged one, or one without training.
    """
    return trace_of(read_table(path))


def trace_of(table: EventTable) -> RankTrace:
    """Cut a trace of one rank into steps, layers and buckets.

    Raises `InputError`: no training in it.
    """
    path = table.path
    owners = owners_of(table)
    windows, source = find_windows(table, owners)
    work, calls = work_of(table, owners), read_calls(table)
    parts = [_part(table, owners, work, window) for window in windows]
    parts, notes = _alike(parts, path)
    if source != "ProfilerStep":
        notes.append(f"steps are told apart by {source}: the trace has no ProfilerStep")
    fsdp = version_of(table)
    waits = waits_s(table, work, calls, fsdp) if fsdp else None
    steps = [
        _step(table, work, calls, part, parts[at + 1] if at + 1 < len(parts) else None, waits)
        for at, part in enumerate(parts)
    ]
    last = parts[-1]
    gradients = read_gradients(table, owners, last.backward)
    ready_s, buckets = _ready_s(owners, last.backward), steps[-1].buckets
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
    return RankTrace(
        path=path,
        layers=name_layers(table, owners, last.backward, last.forward),
        gradients=gradients,
        steps=tuple(counted),
        slowdown=estimate_slowdown(
            work,
            [c for step in counted for c in step.buckets],
            [(part.window.start_s, part.window.end_s) for part in parts[-len(counted) :]],
        ),
        views=not len(_named(table, COPY_OUT)) and not _copies_out(work, last),
        passes=_count_passes(table, parts),
        batch=_batch(table),
        notes=(*notes, *size_notes),
        fsdp=fsdp,
        units=units,
        gathers=sum(call.op == "all_gather" for call in steps[-1].others),
        events=table.events,
        **_header(table),
    )


def _sized(buckets: tuple[Call, ...], gradients: Sequence[Gradient]) -> tuple[Call, ...]:
    """Buckets whose size the trace does not state have that of their gradients."""
    sized = []
    for number, call in enumerate(buckets):
        own = [g.elements for g in gradients if g.bucket == number]
        total = sum(each or 0 for each in own) if all(own) else None
        sized.append(call if call.elements is not None else replace(call, elements=total))
    return tuple(sized)


def _part(table: EventTable, owners: Owners, work: Work, window: Window) -> _Part:
    backward = read_pass(table, owners, window)
    forward = forward_layers(owners, window, backward)
    inside = (work.issued_s >= window.start_s) & (work.issued_s < window.end_s)
    return _Part(window, backward, forward, np.flatnonzero(inside))


def _alike(parts: list[_Part], path: Path) -> tuple[list[_Part], list[str]]:
    """Keep steps of the most frequent form; the others are named."""
    shapes = [(part.backward.size, len(part.backward.gradients)) for part in parts]
    usual = Counter(shapes).most_common(1)[0][0]
    usable = [
        shape == usual and len(part.work) > 0 for part, shape in zip(parts, shapes, strict=True)
    ]
    chosen = [part for part, is_usual in zip(parts, usable, strict=True) if is_usual]
    if not chosen:
        raise trace_fault(
            path, "steps without work", "a trace with CPU activity and, of a GPU, CUDA"
        )
    odd = [part.window.name for part, is_usual in zip(parts, usable, strict=True) if not is_usual]
    return chosen, [f"left out, as they have other layers: {', '.join(odd)}"] if odd else []


# ---------------------------------------------------------------- one step


def _step(
    table: EventTable,
    work: Work,
    calls: tuple[Call, ...],
    part: _Part,
    following: _Part | None,
    waits: FloatArray | None,
) -> TracedStep:
    rows = part.work
    begin = float(work.start[rows[0]])
    first_s = float(_backward_start(work, part))
    window = part.window
    own = [call for call in calls if window.start_s <= call.issued_s < window.end_s]
    in_backward, after = _phases(work, part)
    buckets = tuple(
        call for call in own if call.op == "all_reduce" and first_s <= call.issued_s <= after[1]
    )
    if waits is not None:
        buckets = tuple(c for c in own if c.op == "reduce_scatter" and c.issued_s >= first_s)
    others = tuple(call for call in own if call not in buckets)
    forward, backward = _by_layer(work, part, in_backward, others, waits)
    backward_rows = rows[in_backward == 1]
    end_s = float(work.end[backward_rows].max()) if len(backward_rows) else begin
    length = _length(work, part, following, begin)
    averages = [c for c in others if c.op == "all_reduce"] if waits is not None else []
    exposed = max(0.0, max((call.end_s for call in (*buckets, *averages)), default=end_s) - end_s)
    spans = union([(call.start_s, call.end_s) for call in buckets])
    overlapped = overlap_s(
        work.end[backward_rows] - work.taken_s[backward_rows], work.end[backward_rows], spans
    )
    at_work = overlap_s(work.start[backward_rows], work.end[backward_rows], spans)
    idle = np.minimum(work.gap_s[rows], np.maximum(0, work.issued_s[rows] - _before(work, rows)))
    waited_s = _waited(work, rows[in_backward == 0], others)
    if waits is not None:
        waited_s = float(waits[rows[in_backward < 2]][1:].sum())
    return TracedStep(
        name=window.name,
        start_s=begin,
        length_s=length,
        forward_s=forward,
        backward_s=backward,
        copied_in_s=_copied_in(table, work, part, in_backward),
        exposed_s=exposed,
        tail_s=max(0.0, length - float(forward.sum() + backward.sum()) - exposed - waited_s),
        backward_end_s=end_s,
        buckets=buckets,
        others=others,
        busy_s=float((work.taken_s - work.gap_s)[rows].clip(0).sum()),
        launch_wait_s=0.0 if work.on_cpu else float(idle[1:].clip(0).sum()),
        overlapped_s=float(overlapped.sum()),
        overlapped_work_s=float(np.minimum(at_work, overlapped).sum()),
        waited_s=0.0 if waits is None else waited_s,
    )


def _before(work: Work, rows: NDArray[np.int64]) -> FloatArray:
    return np.asarray(work.start[rows] - work.gap_s[rows])


def _backward_start(work: Work, part: _Part) -> float:
    """When backward began on the host; seconds."""
    mine = np.flatnonzero(np.isin(work.owner[part.work], part.backward.operators))
    return float(work.issued_s[part.work[mine[0]]]) if len(mine) else part.window.start_s


def _phases(work: Work, part: _Part) -> tuple[NDArray[np.int64], tuple[float, float]]:
    """Of each piece of work: 0 forward, 1 backward, 2 after it; and when backward was issued."""
    at = np.flatnonzero(np.isin(work.owner[part.work], part.backward.operators))
    phase = np.zeros(len(part.work), dtype=np.int64)
    if not len(at):
        return phase, (part.window.start_s, part.window.end_s)
    phase[at[0] : at[-1] + 1] = 1
    phase[at[-1] + 1 :] = 2
    issued = work.issued_s[part.work]
    # The last bucket is issued by the last gradient's operator, behind its last kernel.
    return phase, (float(issued[at[0]]), float(issued[at[-1]]) + _behind(work, part, int(at[-1])))


def _behind(work: Work, part: _Part, last: int) -> float:
    """Time from the last kernel of backward to the next that the host issues; seconds."""
    issued = work.issued_s[part.work]
    return float(issued[last + 1] - issued[last]) if last + 1 < len(issued) else 1.0


def _by_layer(
    work: Work,
    part: _Part,
    phase: NDArray[np.int64],
    others: tuple[Call, ...],
    waits: FloatArray | None,
) -> tuple[FloatArray, FloatArray]:
    """Time of each layer forward and backward, gaps before its work included."""
    count = part.backward.size
    forward, backward = np.zeros(count), np.zeros(count)
    rows = part.work
    for number, (operators, layers, sums) in enumerate(
        ((*part.forward, forward), (part.backward.operators, part.backward.layers, backward))
    ):
        chosen = rows[phase == number]
        if not len(chosen) or not len(operators):
            continue
        owner = work.owner[chosen]
        at = np.minimum(np.searchsorted(operators, owner), len(operators) - 1)
        home = np.where(operators[at] == owner, layers[at], -1)
        current = home[home >= 0][0] if np.any(home >= 0) else 0
        for position in range(len(home)):
            current = home[position] = home[position] if home[position] >= 0 else current
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
    """Part of the gap before each piece in which a collective outside of backward is running."""
    waits = overlap_s(
        _before(work, rows),
        work.start[rows],
        union([(call.start_s, call.end_s) for call in others]),
    )
    if len(waits):
        waits[0] = 0.0
    return waits


def _waited(work: Work, rows: NDArray[np.int64], others: tuple[Call, ...]) -> float:
    return float(_gap_waits(work, rows, others).sum()) if len(rows) else 0.0


def _length(work: Work, part: _Part, following: _Part | None, begin: float) -> float:
    """From the first work of the step to that of the next; the last one to its end."""
    if following is not None:
        consecutive = abs(following.window.start_s - part.window.end_s)
        if consecutive < 0.5 * (part.window.end_s - part.window.start_s):
            return float(work.start[following.work[0]]) - begin
    return max(part.window.end_s - part.window.start_s, float(work.end[part.work].max()) - begin)


def _copied_in(table: EventTable, work: Work, part: _Part, phase: NDArray[np.int64]) -> FloatArray:
    """Of each layer: time of the work that copies its gradients into buckets."""
    sums = np.zeros(part.backward.size)
    copies = _named(table, COPY_IN)
    inside = (copies.start >= part.window.start_s) & (copies.start < part.window.end_s)
    copies = copies.where(inside)
    if not len(copies):
        return sums
    if work.on_cpu:
        homes = np.searchsorted(_starts(work, part), copies.start, side="right") - 1
        lengths = copies.end - copies.start
    else:
        rows = part.work[phase == 1]
        at = np.searchsorted(copies.start, work.issued_s[rows], side="right") - 1
        mine = (at >= 0) & (work.issued_s[rows] < copies.end[np.maximum(at, 0)])
        rows = rows[mine]
        homes = np.searchsorted(part.backward.operators, work.owner[rows])
        lengths = work.end[rows] - work.start[rows]
    homes = np.clip(homes, 0, len(part.backward.layers) - 1)
    np.add.at(sums, part.backward.layers[homes], lengths)
    return sums


def _starts(work: Work, part: _Part) -> FloatArray:
    """Begin of each operator of backward, on a CPU."""
    at = np.searchsorted(work.owner, part.backward.operators)
    return np.asarray(work.start[np.minimum(at, len(work.start) - 1)])


# ---------------------------------------------------------------- what the trace states


def _named(table: EventTable, prefix: str) -> Any:
    return table.ops.where(np.isin(table.ops.name, table.named(prefix)))


def _ready_s(owners: Owners, backward: Pass) -> list[tuple[float, float]]:
    """Begin and end of the operators that hand over gradients."""
    events = owners.events
    return [(float(events.start[row]), float(events.end[row])) for row in backward.gradients]


def _copies_out(work: Work, part: _Part) -> bool:
    """Whether at least as many copies as gradients are issued after backward."""
    mine = np.flatnonzero(np.isin(work.owner[part.work], part.backward.operators))
    if not len(mine):
        return False
    return int((work.nbytes[part.work[mine[-1] + 1 :]] > 0).sum()) >= len(part.backward.gradients)


def _count_passes(table: EventTable, parts: list[_Part]) -> int:
    marks = _marks(table, "DistributedDataParallel.forward")
    part = parts[-1]
    inside = (marks.start >= part.window.start_s) & (marks.start < part.window.end_s)
    return max(1, int(inside.sum()))


def _marks(table: EventTable, prefix: str) -> Any:
    return table.marks.where(np.isin(table.marks.name, table.named(prefix)))


def _batch(table: EventTable) -> int | None:
    """First dimension of what the first operator of a model works on."""
    numbers = np.array([n for n, name in enumerate(table.names) if name in FIRST_OPERATORS])
    chosen = table.ops.where(np.isin(table.ops.name, numbers))
    for at in range(min(len(chosen), MOST_SHAPED)):
        shapes = table.arguments.get(("op", int(chosen.row[at])), {}).get("Input Dims")
        position = FIRST_OPERATORS[table.names[int(chosen.name[at])]]
        if isinstance(shapes, list) and len(shapes) > position:
            sizes = shapes[position]
            if isinstance(sizes, list) and sizes and isinstance(sizes[0], int) and sizes[0] > 0:
                return sizes[0]
    return None


def _header(table: EventTable) -> dict[str, Any]:
    """Rank, ranks, backend and device."""
    stated = table.header.get("distributedInfo")
    stated = stated if isinstance(stated, dict) else {}
    devices = table.header.get("deviceProperties")
    devices = [d for d in devices if isinstance(d, dict)] if isinstance(devices, list) else []
    backend = stated.get("backend")
    world = _whole(stated.get("world_size"), 1)
    rank = _whole(stated.get("rank"), 0)
    name = str(devices[0].get("name", "GPU")) if devices else "GPU"
    return {
        "rank": rank,
        "world_size": max(world, 1),
        "backend": backend if isinstance(backend, str) else None,
        "device": name[:80] if len(table.device) else "CPU",
        "device_GB": -(-_whole(devices[0].get("totalGlobalMem"), 0) // (1 << 30)) if devices else 0,
    }


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 50 else default
