"""Layers of a trace: operators of backward up to the gradients that they complete."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.traces.kineto.collective_calls import element_type, elements_in
from perfmodel.traces.kineto.event_table import MODULE, EventTable
from perfmodel.traces.kineto.work import ACCUMULATE, EVALUATE, Owners, Window
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


def read_pass(table: EventTable, owners: Owners, window: Window) -> Pass:
    """Group the operators of a step's backward into layers."""
    events = owners.events
    inside = (events.start >= window.start_s) & (events.start < window.end_s)
    rows = np.flatnonzero(inside & np.isin(events.name, table.named(EVALUATE)))
    ready = np.isin(events.name[rows], table.named(ACCUMULATE))
    layers = np.zeros(len(rows), dtype=np.int64)
    number, closed, homes = 0, False, []
    for at, row in enumerate(rows.tolist()):
        if ready[at]:
            closed = True
            homes.append(number)
        elif closed and owners.name(row).removeprefix(EVALUATE) not in VIEWS:
            number, closed = number + 1, False
        layers[at] = number
    count = number + 1
    if homes and not closed:  # operators after the last gradient
        count = max(homes) + 1
        layers = np.minimum(layers, count - 1)
    return Pass(rows, layers, rows[ready], tuple(homes), count)


def forward_layers(
    owners: Owners, window: Window, backward: Pass
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Outermost operators of forward (indices of owners), and the layer of each.

    An operator belongs to the layer whose backward has its sequence number; one without goes with
    the next that has one.
    """
    events = owners.events
    first = float(events.start[backward.operators[0]])
    rows = np.flatnonzero((events.start >= window.start_s) & (events.start < first))
    if not len(rows):
        return rows, rows
    numbers = events.key[backward.operators]
    numbered = numbers >= 0
    order = np.argsort(numbers[numbered], kind="stable")
    sorted_numbers = numbers[numbered][order]
    sorted_layers = backward.layers[numbered][order]
    keys = events.key[rows]
    # An operator has the number that the next node of the graph will get: it covers all up to that
    # of the operator behind it.
    following = np.concatenate([keys[1:], [np.iinfo(np.int64).max]])
    for at in range(len(keys) - 2, -1, -1):
        if following[at] < 0:
            following[at] = following[at + 1]
    layers = np.full(len(rows), -1, dtype=np.int64)
    low = np.searchsorted(sorted_numbers, keys, side="left")
    high = np.searchsorted(sorted_numbers, following, side="left")
    for at in range(len(rows)):
        if keys[at] >= 0 and low[at] < high[at]:
            layers[at] = sorted_layers[low[at] : high[at]].min()
    current = 0
    for at in range(len(rows) - 1, -1, -1):
        current = layers[at] = layers[at] if layers[at] >= 0 else current
    return rows, layers


def read_gradients(table: EventTable, owners: Owners, backward: Pass) -> tuple[Gradient, ...]:
    """Return the gradients of a step, with shapes where the profiler recorded them."""
    inner = table.ops.where(np.isin(table.ops.name, table.named("torch::autograd::AccumulateGrad")))
    gradients = []
    for row in backward.gradients.tolist():
        start, end = owners.events.start[row], owners.events.end[row]
        at = int(np.searchsorted(inner.start, start - 1e-9))
        arguments: Mapping[str, Any] = {}
        if at < len(inner) and inner.start[at] <= end:
            arguments = table.arguments.get(("op", int(inner.row[at])), {})
        shapes, types = arguments.get("Input Dims"), arguments.get("Input type")
        shape = _first_shape(shapes)
        dtype = element_type(types[0]) if isinstance(types, list) and types else None
        gradients.append(Gradient(elements_in(shapes) if shape else None, shape, dtype))
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
    table: EventTable,
    owners: Owners,
    backward: Pass,
    forward: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> tuple[TracedLayer, ...]:
    """Name each layer after the module, or else the operator, that runs its forward."""
    members: list[list[int]] = [[] for _ in range(backward.size)]
    for gradient, layer in enumerate(backward.layer_of_gradient):
        members[layer].append(gradient)
    plain_names = [
        _layer_word(owners, backward, forward[0], layer) for layer in range(backward.size)
    ]
    modules = _module_names(table, owners, forward, backward.size)
    names = _unique([module or word for module, word in zip(modules, plain_names, strict=True)])
    return tuple(
        TracedLayer(name, tuple(gradients)) for name, gradients in zip(names, members, strict=True)
    )


def _layer_word(owners: Owners, backward: Pass, forward: NDArray[np.int64], layer: int) -> str:
    """The operator whose backward comes just before the first gradient of the layer."""
    chosen = -1
    for row in backward.operators[backward.layers == layer].tolist():
        name = owners.name(row).removeprefix(EVALUATE)
        if name.startswith("torch::autograd::AccumulateGrad"):
            break
        chosen = row if name not in VIEWS or chosen < 0 else chosen
    if chosen < 0:
        return "layer"
    numbers = owners.events.key[forward]
    with_number = forward[numbers >= 0]
    at = np.searchsorted(numbers[numbers >= 0], owners.events.key[chosen], side="right") - 1
    if at >= 0:
        return _plain_word(owners.name(int(with_number[at])))
    return _plain_word(owners.name(chosen).removeprefix(EVALUATE).partition("Backward")[0].lower())


def _plain_word(name: str) -> str:
    """An operator's name as a layer's: no namespace, nothing that a file would have to quote."""
    return re.sub(r"[^A-Za-z0-9_.]+", "_", name.removeprefix("aten::")).strip("_")[:60] or "layer"


def _module_names(
    table: EventTable,
    owners: Owners,
    forward: tuple[NDArray[np.int64], NDArray[np.int64]],
    count: int,
) -> list[str | None]:
    """The innermost module (recorded ``with_stack``) around each layer's operators."""
    names: list[str | None] = [None] * count
    spans = table.modules
    if not len(spans):
        return names
    for row, layer in zip(*(each.tolist() for each in forward), strict=True):
        start = owners.events.start[row]
        around = np.flatnonzero((spans.start <= start) & (spans.end >= owners.events.end[row]))
        if len(around):
            innermost = int(around[np.argmax(spans.start[around])])
            names[layer] = table.names[int(spans.name[innermost])].removeprefix(MODULE)
    return names


def _unique(plain_names: Sequence[str]) -> list[str]:
    """Number alike names in the order of forward, which is backward's reversed."""
    total = {word: plain_names.count(word) for word in set(plain_names)}
    used: dict[str, int] = {}
    names = []
    for word in reversed(plain_names):
        used[word] = used.get(word, 0) + 1
        names.append(word if total[word] == 1 else f"{word}_{used[word]}")
    return names[::-1]
