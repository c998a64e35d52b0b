"""Execution traces of PyTorch (``torch.profiler.ExecutionTraceObserver``): operators without times.

Nodes name an operator, its inputs and outputs with shapes and types, and ``rf_id``, which a trace
of the profiler of the same run calls "Record function id": together they have times as well.
Schema 1.1 (torch/csrc/profiler/standalone/execution_trace_observer.cpp); collectives are
``record_param_comms`` with attributes of their own (NCCL), or ``c10d::`` operators (others).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfmodel.errors import refuse_if
from perfmodel.traces.kineto.collective_calls import element_type, elements_in, operation_of
from perfmodel.traces.kineto.event_stream import first_bytes, read_events, refuse_trace, trace_fault
from perfmodel.workload.model import ITEM_BYTES

SCHEMA_BEGIN = "1.1"
"""Begin of the versions that are read."""
ALLOWED = "an execution trace of PyTorch's ExecutionTraceObserver, schema 1.1, .json or .json.gz"
_LOOKED_AT = 4096
_BEGIN = re.compile(rb'\{\s*"schema"\s*:')
_COMMUNICATION = "record_param_comms"
LEAST_AGREEING = 0.9
"""Part of the linked operators whose names agree: of another run nearly none do."""


@dataclass(frozen=True, slots=True)
class OperatorCalls:
    """Calls of an operator with the same shapes.

    `flops`, `time_s`: of all calls; no time without a trace of the profiler.
    """

    name: str
    shapes: str
    dtype: str
    calls: int = 1
    flops: float = 0.0
    time_s: float | None = None


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
    rf_id: int
    time_s: float | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of what one rank gives."""
        return self.elements * ITEM_BYTES.get(self.dtype, 4)


@dataclass(frozen=True, slots=True)
class ExecutionTrace:
    """What an execution trace says.

    `process`: its number on its host.
    `names`: of operators by ``rf_id``, and which of `operators` each is.
    `linked`: operators that a trace of the profiler has, too.
    """

    path: Path
    schema: str
    nodes: int
    operators: tuple[OperatorCalls, ...]
    collectives: tuple[RecordedCollective, ...]
    process: int | None = None
    names: Mapping[int, tuple[str, int]] = field(default_factory=dict, repr=False)
    linked: int = 0

    @property
    def flops(self) -> float:
        """Operations of matrix products and convolutions."""
        return sum(operator.flops for operator in self.operators)


def is_execution_trace(path: Path) -> bool:
    """Tell whether a file begins as an execution trace does."""
    return _BEGIN.match(first_bytes(path, _LOOKED_AT)) is not None


def read_execution_trace(path: Path) -> ExecutionTrace:
    """Read the trace of one rank, node by node.

    Raises `InputError`: no such trace, another schema, or a damaged one.
    """
    header: dict[str, Any] = {}
    operators: dict[tuple[str, str, str], list[float]] = {}
    names: dict[int, tuple[str, int]] = {}
    collectives: list[RecordedCollective] = []
    nodes = 0
    for nodes, node in enumerate(read_events(path, header, member="nodes"), start=1):
        schema, name = str(header.get("schema"))[:40], node.get("name")
        refuse_trace(
            nodes == 1 and not schema.startswith(SCHEMA_BEGIN), path, f"schema {schema!r}", ALLOWED
        )
        if not isinstance(name, str):
            raise trace_fault(path, f"node {nodes} without a name", ALLOWED)
        name, attributes = name[:200], _attributes(node)
        if (collective := _collective(name, node, attributes)) is not None:
            collectives.append(collective)
        if not name.startswith("aten::"):
            continue
        inputs, outputs = (list(_sizes(_side(node, s, "shapes"))) for s in ("inputs", "outputs"))
        text = ", ".join("x".join(map(str, shape)) for shape in inputs[:4])
        sums = operators.setdefault((name, text, _dtype(node)), [len(operators), 0, 0.0])
        sums[1] += 1
        sums[2] += _flops(name, inputs, outputs)
        if isinstance(attributes.get("rf_id"), int):
            names[attributes["rf_id"]] = name, int(sums[0])
    refuse_trace(not nodes, path, "no nodes", ALLOWED)
    process = header.get("pid")
    # With NCCL each call stands as an operator, and inside of it with its group.
    stated = [each for each in collectives if each.ranks is not None]
    return ExecutionTrace(
        path,
        str(header.get("schema"))[:40],
        nodes,
        tuple(
            OperatorCalls(*key, int(calls), flops) for key, (_, calls, flops) in operators.items()
        ),
        tuple(stated or collectives),
        process if isinstance(process, int) else None,
        names,
    )


def with_times(trace: ExecutionTrace, profile: Path) -> ExecutionTrace:
    """Return the trace with the times of operators and collectives of a profiler's trace.

    Raises `InputError`: a trace of another run, or none of the profiler.
    """
    seconds: dict[int, float] = {}
    times = [0.0] * len(trace.operators)
    linked = agreeing = 0
    for event in read_events(profile, {}):
        arguments, length = event.get("args"), event.get("dur")
        identity = arguments.get("Record function id") if isinstance(arguments, dict) else None
        if not isinstance(identity, int) or not isinstance(length, int | float):
            continue
        seconds[identity] = 1e-6 * float(length)
        if identity in trace.names:
            name, number = trace.names[identity]
            linked += 1
            is_same = trace.process is None or event.get("pid") in (trace.process, None)
            if is_same and name == event.get("name"):
                agreeing += 1
                times[number] += seconds[identity]
    refuse_trace(
        not linked or agreeing < LEAST_AGREEING * linked,
        profile,
        f"{agreeing} of {linked} operators of the process and name as in {trace.path.name}",
        "a trace of the profiler of the same steps (Record function id is rf_id)",
    )
    return replace(
        trace,
        operators=tuple(
            replace(operator, time_s=time_s)
            for operator, time_s in zip(trace.operators, times, strict=True)
        ),
        collectives=tuple(replace(c, time_s=seconds.get(c.rf_id)) for c in trace.collectives),
        linked=agreeing,
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


def _collective(
    name: str, node: Mapping[str, Any], attributes: Mapping[str, Any]
) -> RecordedCollective | None:
    identity = attributes.get("rf_id")
    identity = identity if isinstance(identity, int) else -1
    word = attributes.get("collective_name")
    if name == _COMMUNICATION and isinstance(word, str) and word:
        elements, ranks = attributes.get("in_msg_nelems"), attributes.get("pg_size")
        return RecordedCollective(
            operation_of(word),
            elements if isinstance(elements, int) else 0,
            element_type(attributes.get("dtype")) or "",
            str(attributes.get("pg_name", ""))[:40],
            ranks if isinstance(ranks, int) and ranks > 0 else None,
            identity,
        )
    if not name.startswith("c10d::"):
        return None
    op = operation_of(name.removeprefix("c10d::"))
    sides = [n for each in _side(node, "inputs", "shapes") if (n := elements_in([each]))]
    sent = min if op == "all_gather" else max  # what is received stands beside what is sent
    return RecordedCollective(op, sent(sides, default=0), _dtype(node), "", None, identity)


def pair_files(paths: Sequence[Path]) -> list[tuple[Path, Path | None]]:
    """Execution traces, each with the profiler's trace of its rank, both in the order given.

    Raises `InputError`: neither as many of the profiler as of the others, nor none.
    """
    traces = [path for path in paths if is_execution_trace(path)]
    profiles = [path for path in paths if path not in traces]
    refuse_if(
        profiles and len(profiles) != len(traces),
        "trace",
        f"{len(traces)} execution traces and {len(profiles)} of the profiler",
        "one of the profiler for each, or none",
    )
    of_ranks: Sequence[Path | None] = profiles or [None] * len(traces)
    return list(zip(traces, of_ranks, strict=True))
