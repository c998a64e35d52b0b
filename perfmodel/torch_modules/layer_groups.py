"""Operators of a step as layers: each a matrix kernel with the kernels around it.

A layer runs the normalisation before its matrix kernel and the element-wise kernels after it, as
the layers of the zoo do; batch normalisation follows its convolution. Tables, and what stands
between two repeated blocks, are layers of their own, so that blocks can be recomputed and split.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from perfmodel.memo import grouped
from perfmodel.torch_modules.operators import OPERATOR_NAMES, Operator
from perfmodel.torch_modules.step_recorder import StepTrace
from perfmodel.workload.kernels.shapes import Attention
from perfmodel.workload.memory.blocks import block_of


@dataclass(slots=True)
class LayerGroup:
    """Operators of one layer, by their places in the trace.

    `parameters`: whose gradients its backward completes, in that order.
    """

    name: str
    places: list[int] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    matrix: Operator | None = None
    operators: list[Operator] = field(default_factory=list)


def group_layers(trace: StepTrace) -> list[LayerGroup]:
    """Cut the operators of a step into layers, and give each the parameters that it completes."""
    groups = list(_cut(trace.operators))
    _name_groups(groups)
    _assign_parameters(groups, trace)
    return groups


def _cut(operators: Sequence[Operator]) -> Iterator[LayerGroup]:
    current: LayerGroup | None = None
    before = LayerGroup("")  # of the next matrix kernel
    norms, block = _norm_modules(operators), None
    paths = {operator.path for operator in operators}
    # repeated blocks with parts of their own, unlike the numbered parts of a Sequential
    containers = {block_of(path) for path in paths if block_of(path) != path}
    for place, operator in enumerate(operators):
        inside = block_of(operator.path)
        own_block = inside if inside in containers else None
        if before.operators and own_block != block:
            if current is not None:
                yield current
            yield before
            current, before = None, LayerGroup("")
        target = current or before
        if operator.kind == "matrix":
            if current is not None:
                yield current
            if any(map(_is_table, before.operators)):
                yield before
                before = LayerGroup("")
            target = current = before
            current.matrix, before = operator, LayerGroup("")
        elif (
            before.operators
            or own_block != block
            or (operator.path in norms and operator.kind != "map_norm")
            or _is_table(operator)
        ):
            target = before
        target.places.append(place)
        target.operators.append(operator)
        block = own_block
    yield from (group for group in (current, before) if group is not None and group.operators)


def _is_table(operator: Operator) -> bool:
    return operator.name in OPERATOR_NAMES["tables"] and bool(operator.parameters)


def _norm_modules(operators: Sequence[Operator]) -> frozenset[str]:
    """Modules that normalise rows: by one kernel, or in single operations with a root."""
    with_matrix = {operator.path for operator in operators if operator.kind == "matrix"}
    return frozenset(
        operator.path
        for operator in operators
        if (operator.kind == "norm" or operator.name == "aten.rsqrt")
        and operator.path not in with_matrix
    )


def _name_groups(groups: Sequence[LayerGroup]) -> None:
    """Name each by the module of its weight, or by the module that runs it; repeats by number."""
    counts: dict[str, int] = {}
    for group in groups:
        name = _plain_name(group)
        counts[name] = counts.get(name, 0) + 1
        group.name = name if counts[name] == 1 else f"{name}:{counts[name]}"


def _plain_name(group: LayerGroup) -> str:
    leader = group.matrix or next(
        (operator for operator in group.operators if operator.parameters), group.operators[0]
    )
    path = leader.path
    if isinstance(leader.shape, Attention):
        return f"{path}.attention" if path else "attention"
    owners = [name.rpartition(".")[0] for name in leader.parameters]
    # a tied weight has the name of another module
    if owners and (owners[-1] == path or owners[-1].startswith(f"{path}.") or not path):
        path = owners[-1]
    return path or leader.name.removeprefix("aten.")


def _assign_parameters(groups: Sequence[LayerGroup], trace: StepTrace) -> None:
    """Give each parameter to the layer whose backward completes its gradient.

    That is the first layer that reads it; where hooks saw it later than that, the layer that
    backward is at by then.
    """
    readers = grouped(
        (name, index)
        for index, group in enumerate(groups)
        for operator in group.operators
        for name in operator.parameters
    )
    latest = len(groups) - 1
    for name in trace.ready:
        latest = min((latest, *readers.get(name, ())))
        groups[latest].parameters.append(name)


def layer_of_place(groups: Sequence[LayerGroup]) -> Mapping[int, int]:
    """Index of the layer of each operator."""
    return {place: index for index, group in enumerate(groups) for place in group.places}


def write_document(document: Mapping[str, Any], comments: Sequence[str]) -> str:
    """Write the document as YAML that is read and edited by people: a line per tensor and layer.

    What stands on one line is JSON, which YAML reads.
    """
    text = partial(json.dumps, ensure_ascii=False)
    lines = [f"# {' '.join(comment.split())}" for comment in comments]
    for name, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [f"{name}:", *(f"  - {text(each)}" for each in value)]
        else:
            lines.append(f"{name}: {text(value)}")
    return "\n".join(lines) + "\n"
