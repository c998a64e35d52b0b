"""Collectives in a trace: of NCCL by their kernels, of Gloo by what its worker threads did."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfmodel.memo import grouped
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
"""Our names of types by PyTorch's words in lower case."""


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
    """Return our name of an element's type; the word itself where there is none."""
    known = isinstance(word, str) and bool(word)
    return ELEMENT_TYPES.get(word.lower().removeprefix("torch."), word.lower()) if known else None


def elements_in(shapes: Any) -> int | None:
    """Return the elements of all tensors in ``Input Dims``; None where it has none.

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
    """Return which of the device's work communicates."""
    numbers = [
        n for n, name in enumerate(table.names) if name.lower().startswith(COMMUNICATION_KERNELS)
    ]
    return np.isin(table.device.name, numbers)


def first_tensor(arguments: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """Return elements of the inputs of an event, and the type of the first, as far as recorded."""
    types = arguments.get("Input type")
    dtype = element_type(types[0]) if isinstance(types, list) and types else None
    return elements_in(arguments.get("Input Dims")), dtype


def read_calls(table: EventTable) -> tuple[Call, ...]:
    """Return all collectives of a trace, in the order in which they began."""
    kernels = table.device.where(communication_mask(table))
    return _of_kernels(table, kernels) if len(kernels) else _of_workers(table)


def _of_kernels(table: EventTable, kernels: Events) -> tuple[Call, ...]:
    launched = dict(zip(table.launches.key.tolist(), table.launches.start.tolist(), strict=True))
    stated = {
        arguments["External id"]: arguments
        for (kind, _), arguments in table.arguments.items()
        if kind == "op" and "Collective name" in arguments and "External id" in arguments
    }
    marks, calls = _marked_elements(table), []
    for at, start in enumerate(kernels.start.tolist()):
        own = table.arguments.get(("device", int(kernels.row[at])), {})
        if "In msg nelems" not in own:
            own = {**own, **stated.get(own.get("External id"), {})}
        calls.append(
            _call(
                table.names[int(kernels.name[at])],
                own,
                (launched.get(int(kernels.key[at]), start), start, float(kernels.end[at])),
                marks,
            )
        )
    return tuple(calls)


_MarkedCall = tuple[float, float, int | None, str | None]
"""Begin, end, elements and type of a range that PyTorch puts around a call of a library."""


def _marked_elements(table: EventTable) -> list[_MarkedCall]:
    chosen = table.chosen(table.marks, *BACKENDS)
    return [
        (start, end, *first_tensor(table.arguments.get(("mark", row), {})))
        for start, end, row in zip(
            chosen.start.tolist(), chosen.end.tolist(), chosen.row.tolist(), strict=True
        )
    ]


def _call(
    name: str,
    arguments: Mapping[str, Any],
    times_s: tuple[float, float, float],
    marks: list[_MarkedCall],
) -> Call:
    """Return a call; `times_s`: when it was issued, began and ended."""
    elements, dtype = arguments.get("In msg nelems"), element_type(arguments.get("dtype"))
    if not isinstance(elements, int):
        elements, kind = next(
            (mark[2:] for mark in marks if mark[0] <= times_s[0] <= mark[1]), (None, None)
        )
        dtype = dtype or kind
    size, word = arguments.get("Group size"), arguments.get("Collective name")
    return Call(
        operation_of(word if isinstance(word, str) else name),
        elements,
        dtype,
        size if isinstance(size, int) and size > 0 else None,
        str(arguments.get("Process Group Name", "0"))[:40],
        *times_s,
    )


def _of_workers(table: EventTable) -> tuple[Call, ...]:
    """Return what Gloo's and MPI's worker threads did, each with the call that asked for it."""
    marks = table.chosen(table.marks, "gloo:", "mpi:", "ucc:")
    issued = table.chosen(table.ops, "c10d::")
    by_operation = grouped(
        (operation_of(table.names[name].removeprefix("c10d::")), start)
        for name, start in zip(issued.name.tolist(), issued.start.tolist(), strict=True)
    )
    tensors = {row[0]: row[2:] for row in reversed(_marked_elements(table))}
    calls: list[Call] = []
    for number, start, end in zip(
        marks.name.tolist(), marks.start.tolist(), marks.end.tolist(), strict=True
    ):
        operation, asked_s = _asked(
            operation_of(table.names[number].partition(":")[2]), start, by_operation
        )
        begun_s = _taken_up(asked_s, start, calls)
        calls.append(
            Call(operation, *tensors.get(start, (None, None)), None, "0", asked_s, begun_s, end)
        )
    return tuple(calls)


def _asked(operation: str, start_s: float, issued: dict[str, list[float]]) -> tuple[str, float]:
    """Find the call of a worker's operation: Gloo reduces and scatters by an all-reduce."""
    candidates = (operation, "reduce_scatter") if operation == "all_reduce" else (operation,)
    pending = [(issued[each][0], each) for each in candidates if issued.get(each)]
    asked_s, operation = min(pending, default=(start_s, operation))
    if not pending or asked_s > start_s:
        return candidates[0], start_s
    issued[operation].pop(0)
    return operation, asked_s


def _taken_up(asked_s: float, start_s: float, earlier: Sequence[Call]) -> float:
    """When a call's turn came: once a worker was idle, though it took it a while to wake up."""
    busy = sorted(call.end_s for call in earlier[-MOST_WORKERS:] if call.end_s > asked_s)
    idle_s = busy[len(busy) - GLOO_WORKERS] if len(busy) >= GLOO_WORKERS else asked_s
    return min(start_s, max(asked_s, idle_s))
