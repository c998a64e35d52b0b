"""Execution traces of PyTorch (``torch.profiler.ExecutionTraceObserver``): operators without times.

Nodes name an operator, its inputs and outputs with shapes and types.
Schema 1.1 (torch/csrc/profiler/standalone/execution_trace_observer.cpp); collectives are
``record_param_comms`` with attributes of their own (NCCL), or ``c10d::`` operators (others).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.traces.kineto.collective_calls import element_type, elements_in, operation_of
from perfmodel.traces.kineto.event_stream import first_bytes, read_events, refuse_trace, trace_fault
from perfmodel.workload.model import ITEM_BYTES

SCHEMA_BEGIN = "1.1"
"""Begin of the versions that are read."""
ALLOWED = "an execution trace of PyTorch's ExecutionTraceObserver, schema 1.1, .json or .json.gz"
_LOOKED_AT = 4096
_BEGIN = re.compile(rb'\{\s*"schema"\s*:')
_COMMUNICATION = "record_param_comms"


@dataclass(frozen=True, slots=True)
class RecordedCollective:
    """A collective as it was called.

    `ranks`: of its group; None where the trace does not say.
    """

    op: str
    elements: int
    dtype: str
    group: str
    ranks: int | None

    @property
    def nbytes(self) -> int:
        """Bytes of what one rank gives."""
        return self.elements * ITEM_BYTES.get(self.dtype, 4)


@dataclass(frozen=True, slots=True)
class ExecutionTrace:
    """What an execution trace says of a step; `dtype`: in which most operations run."""

    path: Path
    collectives: tuple[RecordedCollective, ...]
    dtype: str


def is_execution_trace(path: Path) -> bool:
    """Tell whether a file begins as an execution trace does."""
    return _BEGIN.match(first_bytes(path, _LOOKED_AT)) is not None


def read_execution_trace(path: Path) -> ExecutionTrace:
    """Read the trace of one rank, node by node.

    Raises `InputError`: no such trace, another schema, or a damaged one.
    """
    header: dict[str, Any] = {}
    operations: Counter[str] = Counter()
    collectives: list[RecordedCollective] = []
    nodes = 0
    for nodes, node in enumerate(read_events(path, header, member="nodes"), start=1):
        schema, name = str(header.get("schema"))[:40], node.get("name")
        refuse_trace(
            nodes == 1 and not schema.startswith(SCHEMA_BEGIN), path, f"schema {schema!r}", ALLOWED
        )
        if not isinstance(name, str):
            raise trace_fault(path, f"node {nodes} without a name", ALLOWED)
        if (collective := _collective(name, node)) is not None:
            collectives.append(collective)
        inputs, outputs = (list(_sizes(_side(node, s, "shapes"))) for s in ("inputs", "outputs"))
        if flops := _flops(name, inputs, outputs):
            operations[_dtype(node)] += flops
    refuse_trace(not nodes, path, "no nodes", ALLOWED)
    # With NCCL each call stands as an operator, and inside of it with its group.
    stated = [each for each in collectives if each.ranks is not None]
    return ExecutionTrace(
        path, tuple(stated or collectives), max(operations, key=operations.__getitem__, default="")
    )


def _attributes(node: Mapping[str, Any]) -> dict[str, Any]:
    rows = node.get("attrs")
    rows = rows if isinstance(rows, list) else []
    return {
        row["name"]: row.get("value")
        for row in rows
        if isinstance(row, dict) and isinstance(row.get("name"), str)
    }


def _side(node: Mapping[str, Any], side: str, part: str) -> list[Any]:
    values = node.get(side)
    values = values.get(part) if isinstance(values, dict) else None
    return values if isinstance(values, list) else []


def _sizes(shapes: Sequence[Any]) -> Iterator[tuple[int, ...]]:
    """Return the shapes of the tensors among inputs or outputs."""
    for shape in shapes:
        if not isinstance(shape, list):
            continue
        if shape and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape):
            yield tuple(shape)
        else:
            yield from _sizes(shape)


_TENSOR = re.compile(r"Tensor\(([\w:]+(?: \w+)?)\)")


def _dtype(node: Mapping[str, Any]) -> str:
    """Return the type of the elements of the first tensor."""
    texts = [*_side(node, "inputs", "types"), *_side(node, "outputs", "types")]
    matches = (_TENSOR.search(text) for text in texts if isinstance(text, str))
    first = next((match for match in matches if match), None)
    return (element_type(first[1]) if first else None) or ""


def _flops(
    name: str, inputs: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]]
) -> float:
    """Operations of a product or convolution; 0 of others, and of those that call one of these."""
    product = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}.get(name)
    if product is not None and len(inputs) >= product + 2 and outputs:
        return 2.0 * math.prod(outputs[0]) * inputs[product][-1]
    if name == "aten::convolution" and len(inputs) >= 2 and outputs:
        return 2.0 * math.prod(outputs[0]) * math.prod(inputs[1][1:])
    if name == "aten::convolution_backward" and len(inputs) >= 3:
        computed = sum(len(shape) > 1 for shape in outputs)  # gradients of input and weight
        return 2.0 * math.prod(inputs[0]) * math.prod(inputs[2][1:]) * computed
    return 0.0


def _collective(name: str, node: Mapping[str, Any]) -> RecordedCollective | None:
    attributes = _attributes(node)
    word = attributes.get("collective_name")
    if name == _COMMUNICATION and isinstance(word, str) and word:
        elements, ranks = attributes.get("in_msg_nelems"), attributes.get("pg_size")
        return RecordedCollective(
            operation_of(word),
            elements if isinstance(elements, int) else 0,
            element_type(attributes.get("dtype")) or "",
            str(attributes.get("pg_name", ""))[:40],
            ranks if isinstance(ranks, int) and ranks > 0 else None,
        )
    if not name.startswith("c10d::"):
        return None
    op = operation_of(name.removeprefix("c10d::"))
    sides = [n for each in _side(node, "inputs", "shapes") if (n := elements_in([each]))]
    sent = min if op == "all_gather" else max  # what is received stands beside what is sent
    return RecordedCollective(op, sent(sides, default=0), _dtype(node), "", None)
