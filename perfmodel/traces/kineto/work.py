"""Work on the timeline that a step follows, kernels of a GPU or operators of a CPU, and its layers.

A layer is the operators of backward up to the gradients that they complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray
from perfmodel.memo import grouped
from perfmodel.traces.kineto.collective_calls import communication_mask, first_tensor
from perfmodel.traces.kineto.event_stream import refuse_trace
from perfmodel.traces.kineto.event_table import BACKENDS, MODULE, Events, EventTable
from perfmodel.traces.model import Call, Gradient, TracedLayer

VIEW_OPERATORS = frozenset(
    {
        "TBackward0",
        "ViewBackward0",
        "TransposeBackward0",
        "AsStridedBackward0",
        "PermuteBackward0",
        "UnsafeViewBackward0",
        "ReshapeAliasBackward0",
        "ToCopyBackward0",
        "ExpandBackward0",
        "SplitBackward0",
        "SliceBackward0",
        "SelectBackward0",
        "SqueezeBackward0",
        "UnsqueezeBackward0",
        "SumBackward1",
    }
)
"""Between an operator and the gradient of its weight: they belong to its layer."""


class Pass(NamedTuple):
    """Backward of one step: operators (indices of owners), the layer of each, and gradients.

    `gradients`: operators that hand over a gradient, in order. `size`: layers.
    """

    operators: NDArray[np.int64]
    layers: NDArray[np.int64]
    gradients: NDArray[np.int64]
    layer_of_gradient: tuple[int, ...]
    size: int


def read_pass(table: EventTable, window: Window) -> Pass:
    """Group the operators of a step's backward into layers."""
    events = table.owners
    rows = np.flatnonzero(window.holds(events.start) & np.isin(events.name, table.named(EVALUATE)))
    ready = np.isin(events.name[rows], table.named(ACCUMULATE))
    layers = np.zeros(len(rows), dtype=np.int64)
    number, closed, homes = 0, False, []
    for at, row in enumerate(rows.tolist()):
        if ready[at]:
            closed = True
            homes.append(number)
        elif closed and table.owner_name(row).removeprefix(EVALUATE) not in VIEW_OPERATORS:
            number, closed = number + 1, False
        layers[at] = number
    count = number + 1
    if homes and not closed:  # operators after the last gradient
        count = max(homes) + 1
        layers = np.minimum(layers, count - 1)
    return Pass(rows, layers, rows[ready], tuple(homes), count)


def forward_layers(
    table: EventTable, window: Window, backward: Pass
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the outermost operators of forward (indices of owners), and the layer of each.

    An operator belongs to the layer whose backward has its sequence number; one without goes with
    the next that has one.
    """
    events = table.owners
    first = float(events.start[backward.operators[0]])
    rows = np.flatnonzero((events.start >= window.start_s) & (events.start < first))
    if not len(rows):
        return rows, rows
    numbers = events.key[backward.operators]
    order = np.argsort(numbers, kind="stable")[np.count_nonzero(numbers < 0) :]
    sorted_numbers, sorted_layers = numbers[order], backward.layers[order]
    keys = events.key[rows]
    # An operator has the number that the next node of the graph will get: it covers all up to that
    # of the operator behind it.
    following = next_known(np.append(keys[1:], -1), np.iinfo(np.int64).max)
    low = np.searchsorted(sorted_numbers, keys, side="left")
    high = np.searchsorted(sorted_numbers, following, side="left")
    covers = (keys >= 0) & (low < high)
    layers = np.full(len(rows), -1)
    layers[covers] = [
        sorted_layers[a:b].min() for a, b in zip(low[covers], high[covers], strict=True)
    ]
    return rows, next_known(layers, 0)


def next_known(values: NDArray[np.int64], last: int) -> NDArray[np.int64]:
    """Return values in which the next that is not negative stands for each that is; then `last`.

    Examples
    --------
    >>> next_known(np.array([-1, 3, -1]), 0).tolist()
    [3, 3, 0]
    """
    known = np.where(values >= 0, np.arange(len(values)), len(values))
    return np.append(values, last)[np.minimum.accumulate(known[::-1])[::-1]]


def read_gradients(table: EventTable, backward: Pass) -> Iterator[Gradient]:
    """Yield the gradients of a step, with shapes where the profiler recorded them."""
    inner = table.chosen(table.ops, "torch::autograd::AccumulateGrad")
    for row in backward.gradients.tolist():
        at = int(np.searchsorted(inner.start, table.owners.start[row] - 1e-9))
        is_there = at < len(inner) and inner.start[at] <= table.owners.end[row]
        arguments = table.arguments.get(("op", int(inner.row[at])), {}) if is_there else {}
        elements, dtype = first_tensor(arguments)
        shape = _first_shape(arguments.get("Input Dims"))
        yield Gradient(elements if shape else None, shape, dtype)


def _first_shape(shapes: Any) -> tuple[int, ...] | None:
    """Return the shape of the first tensor; a scalar counts as one element."""
    sizes = shapes[0] if isinstance(shapes, list) and shapes else None
    is_shape = isinstance(sizes, list) and all(
        isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in sizes
    )
    return (tuple(sizes) or (1,)) if sizes is not None and is_shape else None


def name_layers(
    table: EventTable, backward: Pass, forward: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> tuple[TracedLayer, ...]:
    """Name each layer after the module, or else the operator, that runs its forward."""
    modules = _module_names(table, forward)
    members = grouped((layer, at) for at, layer in enumerate(backward.layer_of_gradient))
    words = [
        modules.get(layer) or _layer_word(table, backward, forward[0], layer)
        for layer in range(backward.size)
    ]
    # Alike names are numbered in the order of forward, which is backward's reversed.
    return tuple(
        TracedLayer(
            word if words.count(word) == 1 else f"{word}_{words[at:].count(word)}",
            tuple(members.get(at, ())),
        )
        for at, word in enumerate(words)
    )


def _layer_word(table: EventTable, backward: Pass, forward: NDArray[np.int64], layer: int) -> str:
    """Return the operator whose backward comes just before the first gradient of the layer."""
    chosen = -1
    for row in backward.operators[backward.layers == layer].tolist():
        name = table.owner_name(row).removeprefix(EVALUATE)
        if name.startswith("torch::autograd::AccumulateGrad"):
            break
        chosen = row if name not in VIEW_OPERATORS or chosen < 0 else chosen
    if chosen < 0:
        return "layer"
    numbered = forward[table.owners.key[forward] >= 0]
    at = np.searchsorted(table.owners.key[numbered], table.owners.key[chosen], side="right") - 1
    if at >= 0:
        return _plain_word(table.owner_name(int(numbered[at])))
    name = table.owner_name(chosen).removeprefix(EVALUATE)
    return _plain_word(name.partition("Backward")[0].lower())


def _plain_word(name: str) -> str:
    """An operator's name as a layer's: no namespace, nothing that a file would have to quote."""
    return re.sub(r"[^A-Za-z0-9_.]+", "_", name.removeprefix("aten::")).strip("_")[:60] or "layer"


def _module_names(
    table: EventTable, forward: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> dict[int, str]:
    """Return the innermost module (recorded ``with_stack``) around each layer's operators."""
    names: dict[int, str] = {}
    spans, events = table.modules, table.owners
    if not len(spans):
        return names
    for row, layer in zip(*(each.tolist() for each in forward), strict=True):
        around = np.flatnonzero((spans.start <= events.start[row]) & (spans.end >= events.end[row]))
        if len(around):
            innermost = int(around[np.argmax(spans.start[around])])
            names[layer] = table.names[int(spans.name[innermost])].removeprefix(MODULE)
    return names


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
    refuse_trace(
        not len(gradients),
        table.path,
        "no backward pass that ends in gradients",
        "a trace of training: forward, backward and what follows, with CPU activity",
    )
    optimizer = table.chosen(table.marks, "Optimizer.step#").end.tolist()
    windows, source = _marked(table), "ProfilerStep"
    if not windows:
        windows, source = _split(table.owners, optimizer), "the optimizer's steps"
    if not windows:
        windows, source = _between_passes(table), "the order of forward and backward"
    chosen = tuple(window for window in windows if np.any(window.holds(gradients.start)))
    refuse_trace(not chosen, table.path, "no whole step", "a trace with one whole step at least")
    return chosen, source


def _marked(table: EventTable) -> list[Window]:
    marks = table.chosen(table.marks, "ProfilerStep#")
    first = marks.where(marks.thread == marks.thread[:1])
    spans = zip(first.name.tolist(), first.start.tolist(), first.end.tolist(), strict=True)
    return [Window(table.names[name], start, end) for name, start, end in spans]


def _between_passes(table: EventTable) -> list[Window]:
    """Cut before the first operator with a gradient that follows a backward pass."""
    events = table.owners
    backward = np.isin(events.name, table.named(EVALUATE))
    passes = np.flatnonzero(backward | (events.key >= 0))
    begins = passes[1:][backward[passes[:-1]] & ~backward[passes[1:]]]
    return _split(events, (events.start[begins] - 1e-9).tolist())


def _split(events: Events, cuts: Sequence[float]) -> list[Window]:
    if not cuts or not len(events):
        return []
    ends = [float(events.end.max())] if np.any(events.start > cuts[-1]) else []
    return [
        Window(f"step {number}", low, high)
        for number, (low, high) in enumerate(pairwise([float(events.start[0]), *cuts, *ends]))
        if high > low
    ]
