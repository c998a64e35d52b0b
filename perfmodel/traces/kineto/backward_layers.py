"""Layers of a trace: operators of backward up to the gradients that they complete."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.traces.kineto.collective_calls import first_tensor
from perfmodel.traces.kineto.event_table import MODULE, EventTable
from perfmodel.traces.kineto.work import ACCUMULATE, EVALUATE, Window
from perfmodel.traces.model import Gradient, TracedLayer

VIEWS = frozenset(
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
        elif closed and table.owner_name(row).removeprefix(EVALUATE) not in VIEWS:
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
    following = np.concatenate([keys[1:], [np.iinfo(np.int64).max]])
    for at in range(len(keys) - 2, -1, -1):
        if following[at] < 0:
            following[at] = following[at + 1]
    layers = np.zeros(len(rows), dtype=np.int64)
    low = np.searchsorted(sorted_numbers, keys, side="left")
    high = np.searchsorted(sorted_numbers, following, side="left")
    current = 0
    for at in range(len(rows) - 1, -1, -1):
        if keys[at] >= 0 and low[at] < high[at]:
            current = sorted_layers[low[at] : high[at]].min()
        layers[at] = current
    return rows, layers


def read_gradients(table: EventTable, backward: Pass) -> tuple[Gradient, ...]:
    """Return the gradients of a step, with shapes where the profiler recorded them."""
    inner = table.chosen(table.ops, "torch::autograd::AccumulateGrad")
    gradients = []
    for row in backward.gradients.tolist():
        at = int(np.searchsorted(inner.start, table.owners.start[row] - 1e-9))
        is_there = at < len(inner) and inner.start[at] <= table.owners.end[row]
        arguments = table.arguments.get(("op", int(inner.row[at])), {}) if is_there else {}
        elements, dtype = first_tensor(arguments)
        shape = _first_shape(arguments.get("Input Dims"))
        gradients.append(Gradient(elements if shape else None, shape, dtype))
    return tuple(gradients)


def _first_shape(shapes: Any) -> tuple[int, ...] | None:
    """Shape of the first tensor; a scalar counts as one element."""
    if not isinstance(shapes, list) or not shapes or not isinstance(shapes[0], list):
        return None
    sizes = shapes[0]
    if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
        return None
    return tuple(sizes) or (1,)


def name_layers(
    table: EventTable, backward: Pass, forward: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> tuple[TracedLayer, ...]:
    """Name each layer after the module, or else the operator, that runs its forward."""
    modules = _module_names(table, forward)
    names = _unique(
        [
            modules.get(layer) or _layer_word(table, backward, forward[0], layer)
            for layer in range(backward.size)
        ]
    )
    members: list[list[int]] = [[] for _ in names]
    for gradient, layer in enumerate(backward.layer_of_gradient):
        members[layer].append(gradient)
    return tuple(TracedLayer(name, tuple(own)) for name, own in zip(names, members, strict=True))


def _layer_word(table: EventTable, backward: Pass, forward: NDArray[np.int64], layer: int) -> str:
    """Return the operator whose backward comes just before the first gradient of the layer."""
    chosen = -1
    for row in backward.operators[backward.layers == layer].tolist():
        name = table.owner_name(row).removeprefix(EVALUATE)
        if name.startswith("torch::autograd::AccumulateGrad"):
            break
        chosen = row if name not in VIEWS or chosen < 0 else chosen
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
        within = (spans.start <= events.start[row]) & (spans.end >= events.end[row])
        around = np.flatnonzero(within)
        if len(around):
            innermost = int(around[np.argmax(spans.start[around])])
            names[layer] = table.names[int(spans.name[innermost])].removeprefix(MODULE)
    return names


def _unique(plain_names: Sequence[str]) -> list[str]:
    """Number alike names in the order of forward, which is backward's reversed."""
    return [
        word if plain_names.count(word) == 1 else f"{word}_{plain_names[at:].count(word)}"
        for at, word in enumerate(plain_names)
    ]
