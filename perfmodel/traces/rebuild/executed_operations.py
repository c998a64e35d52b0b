"""Operators of an execution trace that may be layers, with the tensors that they read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfmodel.traces.kineto.collective_calls import element_type
from perfmodel.traces.kineto.event_stream import read_events

Storage = tuple[int, int, int]
"""A tensor by its storage, its offset in it and its elements: views of a weight are the weight."""

ACCUMULATE = "torch::autograd::AccumulateGrad"
"""Node that reads the gradient of a parameter."""

WEIGHTS: Mapping[str, tuple[int, ...]] = {
    "aten::linear": (1, 2),
    "aten::conv1d": (1, 2),
    "aten::conv2d": (1, 2),
    "aten::conv3d": (1, 2),
    "aten::convolution": (1, 2),
    "aten::embedding": (0,),
    "aten::layer_norm": (2, 3),
    "aten::rms_norm": (2,),
    "aten::batch_norm": (1, 2),
    "aten::group_norm": (2, 3),
    "aten::scaled_dot_product_attention": (),
    "aten::addmm": (0, 2),
    "aten::mm": (1,),
    "aten::matmul": (1,),
    "aten::bmm": (),
    "aten::baddbmm": (),
    "aten::mul": (0, 1),
    "aten::add": (0, 1),
}
"""Operators that may be layers, and which of their inputs may be parameters."""


@dataclass(frozen=True, slots=True)
class TensorInput:
    """A tensor that an operator reads."""

    storage: Storage
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator of forward, in the order of calls; `unit`: of FSDP, in which it runs."""

    number: int
    name: str
    inputs: tuple[TensorInput | None, ...]
    output: tuple[int, ...]
    values: tuple[Any, ...]
    unit: str = ""

    @property
    def weights(self) -> list[TensorInput]:
        """Inputs that may be parameters."""
        places = (self.inputs[at] for at in WEIGHTS[self.name] if at < len(self.inputs))
        return [each for each in places if each and each.shape]


@dataclass
class ExecutedNodes:
    """What is collected of a trace, node by node; an operator ends before what called it.

    `parents`: name of a node, and the number of what called it.
    `gradients`: number of the node that accumulates it, and its shape.
    """

    parents: dict[int, tuple[str, int]] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    gradients: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def beginning(self, start: str) -> Iterator[int]:
        """Yield the numbers of nodes whose names begin so."""
        return (number for number, (name, _) in self.parents.items() if name.startswith(start))

    def ancestors(self, number: int) -> Iterator[str]:
        """Yield the names of what called a node, from near to far."""
        seen = {number}
        _, parent = self.parents.get(number, ("", 0))
        while parent in self.parents and parent not in seen:
            seen.add(parent)
            name, parent = self.parents[parent]
            yield name


def read_nodes(path: Path) -> ExecutedNodes:
    """Read a trace node by node: who called whom, possible layers, and gradients by shape.

    Raises `InputError`: a damaged trace.
    """
    nodes = ExecutedNodes()
    for row in read_events(path, {}, member="nodes"):
        number, parent, name = row.get("id"), row.get("ctrl_deps"), row.get("name")
        if not isinstance(number, int) or not isinstance(name, str):
            continue
        nodes.parents[number] = name, parent if isinstance(parent, int) else 0
        inputs = _tensors(row, "inputs")
        if name == ACCUMULATE and inputs and inputs[0]:
            nodes.gradients.append((number, inputs[0].shape))
        if name in WEIGHTS:
            values = row["inputs"].get("values") if isinstance(row.get("inputs"), dict) else []
            shape = next((each.shape for each in _tensors(row, "outputs") if each), ())
            nodes.operations.append(Operation(number, name, inputs, shape, tuple(values or ())))
    nodes.operations.sort(key=lambda each: each.number)
    return nodes


def _tensors(row: Mapping[str, Any], side: str) -> tuple[TensorInput | None, ...]:
    """Inputs or outputs by place; None for what is no tensor. Lists of tensors are flattened."""
    part = row.get(side)
    if not isinstance(part, dict):
        return ()
    cells = (part.get(name) for name in ("values", "shapes", "types"))
    columns = [column if isinstance(column, list) else [] for column in cells]
    return tuple(each for row in zip(*columns, strict=False) for each in _flat(*row))


def _flat(value: Any, shape: Any, type_: Any) -> Iterator[TensorInput | None]:
    text = type_ if isinstance(type_, str) else ""
    if text.startswith("GenericList[") and isinstance(value, list) and isinstance(shape, list):
        types = text.removeprefix("GenericList[").removesuffix("]").split(",")
        for one_value, one_shape, one_type in zip(value, shape, types, strict=False):
            yield from _flat(one_value, one_shape, one_type)
        return
    is_tensor = text.startswith("Tensor(") and isinstance(value, list) and len(value) >= 5
    if not is_tensor or not all(isinstance(n, int) for n in (*value[:5], *shape)):
        yield None
        return
    dtype = element_type(text.removeprefix("Tensor(").removesuffix(")")) or ""
    yield TensorInput((value[1], value[2], value[3]), tuple(shape), dtype)


BEGINS = {2: "FSDP::pre_forward", 1: "FullyShardedDataParallel._pre_forward"}
ENDS = {2: "FSDP::post_forward", 1: "FullyShardedDataParallel._post_forward"}
"""Ranges around the forward of a unit, by FSDP's version (torch/distributed/fsdp)."""
ROOTS = {2: "FSDP::root_pre_forward", 1: "FullyShardedDataParallel.forward"}
"""Ranges of which the outermost one of a forward pass is the root's."""
CASTS = "FSDP::cast_forward_inputs"
"""Where a MixedPrecisionPolicy states `param_dtype`."""
_NAMED = re.compile(r"[^(]*\((.+)\)")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Sharding:
    """What a trace says of FSDP.

    `version`: of FSDP; 0 where there is none. `units`: without the root, in the order of forward.
    `passes`: forward passes until the optimizer. `casts`: whether units are gathered in another
    precision.
    """

    version: int = 0
    units: tuple[str, ...] = ()
    passes: int = 0
    casts: bool = False

    @property
    def wrap(self) -> list[str]:
        """The units as `strategy.wrap` has them, numbers as ``*``."""
        return list(dict.fromkeys(_NUMBER.sub("*", unit) for unit in self.units))


def sharding_of(nodes: ExecutedNodes, end: float) -> Sharding:
    """Find the units of a step; `end`: number of the optimizer's node."""
    names = {number: name for number, (name, _) in nodes.parents.items() if number < end}
    version = next(
        (v for v, word in BEGINS.items() if any(_is_range(name, word) for name in names.values())),
        0,
    )
    if not version:
        return Sharding()
    units = dict.fromkeys(unit for _, unit, begins in _marks(names, version) if begins and unit)
    roots = sum(
        name == ROOTS[version] and ROOTS[version] not in nodes.ancestors(number)
        for number, name in names.items()
    )
    return Sharding(version, tuple(units), roots, CASTS in names.values())


def in_units(
    nodes: ExecutedNodes, operations: Sequence[Operation], version: int
) -> list[Operation]:
    """Return the operators with the unit that each runs in; "" is the root."""
    marks = list(_marks({number: name for number, (name, _) in nodes.parents.items()}, version))
    running, placed = [""], []
    for operation in operations:
        while marks and marks[0][0] < operation.number:
            _, unit, begins = marks.pop(0)
            if begins:
                running.append(unit)
            elif len(running) > 1:
                running.pop()
        placed.append(replace(operation, unit=running[-1]))
    return placed


def _is_range(name: str, word: str) -> bool:
    """Tell whether a range has this name, of a unit or of the root."""
    return name == word or name.startswith(f"{word} (")


def _marks(names: Mapping[int, str], version: int) -> Iterator[tuple[int, str, bool]]:
    """Yield the number of a node, the unit, and whether its forward begins there or ends.

    Version 1 does not name its units: they are numbered, and the first one is the root.
    """
    begun = 0
    for number, name in sorted(names.items()):
        begins = _is_range(name, BEGINS[version])
        named = _NAMED.fullmatch(name)
        unit = named[1] if named else ""
        if version == 1 and begins:
            unit, begun = f"units.{begun - 1}" if begun else "", begun + 1
        if begins or _is_range(name, ENDS[version]):
            yield number, unit, begins
