"""Collectives in a trace: of NCCL by their kernels, of Gloo by what its worker threads did."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfmodel.traces.kineto.event_table import BACKENDS, COMMUNICATION_KERNELS, Events, EventTable
from perfmodel.traces.model import Call

OPERATIONS = {
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "reduce": "reduce",
    "scatter": "scatter",
    "gather": "gather",
    "send": "send",
    "recv": "recv",
    "barrier": "barrier",
}
"""Ours by a library's word without underscores; longer ones first."""

ELEMENT_TYPES = {
    "float": "fp32",
    "double": "fp64",
    "half": "fp16",
    "bfloat16": "bf16",
    "long": "int64",
    "int": "int32",
    "char": "int8",
    "byte": "uint8",
    "bool": "bool",
    "c10::half": "fp16",
    "c10::bfloat16": "bf16",
    "long int": "int64",
    "signed char": "int8",
    "unsigned char": "uint8",
}
"""By PyTorch's word in lower case."""


GLOO_WORKERS = 2
"""Threads of a process group, each with one call at a time (ProcessGroupGloo of PyTorch 2.13)."""

MOST_WORKERS = 16
"""Calls before one that may still be in progress."""


def operation_of(word: str) -> str:
    """Find which collective a word of a library, a kernel or PyTorch means.

    Examples
    --------
    >>> operation_of("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"), operation_of("_allgather_base")
    ('reduce_scatter', 'all_gather')
    """
    folded = word.lower().replace("_", "").replace("-", "")
    return next((op for text, op in OPERATIONS.items() if text in folded), word)


def element_type(word: Any) -> str | None:
    """Our name of an element's type; the word itself where there is none."""
    if not isinstance(word, str) or not word:
        return None
    return ELEMENT_TYPES.get(word.lower().removeprefix("torch."), word.lower())


def elements_in(shapes: Any) -> int | None:
    """Elements of all tensors in ``Input Dims``; None where it has none.

    Examples
    --------
    >>> elements_in([[[1472100]], [], []]), elements_in([[64, 3, 7, 7]]), elements_in(None)
    (1472100, 9408, None)
    """
    if not isinstance(shapes, list) or not shapes:
        return None
    if all(isinstance(size, int) and not isinstance(size, bool) for size in shapes):
        return math.prod(shapes)
    numbers = [number for number in [elements_in(each) for each in shapes] if number is not None]
    return sum(numbers) if numbers else None


def communication_mask(table: EventTable) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of the device's work communicates."""
    numbers = [
        n for n, name in enumerate(table.names) if name.lower().startswith(COMMUNICATION_KERNELS)
    ]
    return np.isin(table.device.name, numbers)


def read_calls(table: EventTable) -> tuple[Call, ...]:
    """All collectives of a trace, in the order in which they began."""
    kernels = table.device.where(communication_mask(table))
    return _of_kernels(table, kernels) if len(kernels) else _of_workers(table)


def _of_kernels(table: EventTable, kernels: Events) -> tuple[Call, ...]:
    launched = dict(zip(table.launches.key.tolist(), table.launches.start.tolist(), strict=True))
    stated = {
        arguments["External id"]: arguments
        for (kind, _), arguments in table.arguments.items()
        if kind == "op" and "Collective name" in arguments and "External id" in arguments
    }
    marks = _marked_elements(table)
    calls = []
    for at in range(len(kernels)):
        own = table.arguments.get(("device", int(kernels.row[at])), {})
        identity = own.get("External id")
        arguments = own if "In msg nelems" in own else {**own, **stated.get(identity, {})}
        start = float(kernels.start[at])
        calls.append(
            _call(
                table.names[int(kernels.name[at])],
                arguments,
                launched.get(int(kernels.key[at]), start),
                start,
                float(kernels.end[at]),
                marks,
            )
        )
    return tuple(calls)


def _marked_elements(table: EventTable) -> list[tuple[float, float, int | None, str | None]]:
    """Begin, end, elements and type of the ranges that PyTorch puts around calls of a library."""
    chosen = table.marks.where(np.isin(table.marks.name, table.named(*BACKENDS)))
    rows = []
    for at in range(len(chosen)):
        arguments = table.arguments.get(("mark", int(chosen.row[at])), {})
        elements = elements_in(arguments.get("Input Dims"))
        types = arguments.get("Input type")
        dtype = element_type(types[0]) if isinstance(types, list) and types else None
        rows.append((float(chosen.start[at]), float(chosen.end[at]), elements, dtype))
    return rows


def _call(
    name: str,
    arguments: Mapping[str, Any],
    issued: float,
    start: float,
    end: float,
    marks: list[tuple[float, float, int | None, str | None]],
) -> Call:
    elements, dtype = arguments.get("In msg nelems"), element_type(arguments.get("dtype"))
    if not isinstance(elements, int):
        elements = None
        for begin, stop, number, kind in marks:
            if begin <= issued <= stop:
                elements, dtype = number, dtype or kind
                break
    size = arguments.get("Group size")
    word = arguments.get("Collective name")
    return Call(
        op=operation_of(word if isinstance(word, str) else name),
        elements=elements,
        dtype=dtype,
        group_size=size if isinstance(size, int) and size > 0 else None,
        group=str(arguments.get("Process Group Name", "0"))[:40],
        issued_s=issued,
        start_s=start,
        end_s=end,
    )


def _of_workers(table: EventTable) -> tuple[Call, ...]:
    """What Gloo's and MPI's worker threads did, each with the call that asked for it."""
    marks = table.marks.where(np.isin(table.marks.name, table.named("gloo:", "mpi:", "ucc:")))
    issued = table.ops.where(np.isin(table.ops.name, table.named("c10d::")))
    by_operation: dict[str, list[float]] = {}
    for at in range(len(issued)):
        operation = operation_of(table.names[int(issued.name[at])].removeprefix("c10d::"))
        by_operation.setdefault(operation, []).append(float(issued.start[at]))
    rows = _marked_elements(table)
    calls: list[Call] = []
    for at in range(len(marks)):
        name = table.names[int(marks.name[at])].partition(":")[2]
        start = float(marks.start[at])
        operation, asked_s = _asked(operation_of(name), start, by_operation)
        row = next((row for row in rows if row[0] == start), (start, start, None, None))
        calls.append(
            Call(
                operation,
                row[2],
                row[3],
                None,
                "0",
                asked_s,
                _taken_up(asked_s, start, calls),
                float(marks.end[at]),
            )
        )
    return tuple(calls)


def _asked(operation: str, start_s: float, issued: dict[str, list[float]]) -> tuple[str, float]:
    """Which call a worker's operation belongs to: Gloo reduces and scatters by an all-reduce."""
    candidates = (operation, "reduce_scatter") if operation == "all_reduce" else (operation,)
    pending = [
        (issued[each][0], each)
        for each in candidates
        if issued.get(each) and issued[each][0] <= start_s
    ]
    if not pending:
        return operation, start_s
    asked_s, operation = min(pending)
    issued[operation].pop(0)
    return operation, asked_s


def _taken_up(asked_s: float, start_s: float, earlier: Sequence[Call]) -> float:
    """When a call's turn came: once a worker was idle, though it took it a while to wake up."""
    busy = sorted(call.end_s for call in earlier[-MOST_WORKERS:] if call.end_s > asked_s)
    idle_s = busy[len(busy) - GLOO_WORKERS] if len(busy) >= GLOO_WORKERS else asked_s
    return min(start_s, max(asked_s, idle_s))
