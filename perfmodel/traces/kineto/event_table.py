"""Columns of the events that an analysis needs; everything else is dropped while it is read."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray
from perfmodel.garbage import no_collections
from perfmodel.traces.kineto.event_stream import read_events, trace_fault

US = 1e-6

CATEGORIES = {
    "cpu_op": "op",
    "operator": "op",
    "user_annotation": "mark",
    "kernel": "device",
    "gpu_memcpy": "device",
    "memcpy": "device",
    "gpu_memset": "device",
    "memset": "device",
    "cuda_runtime": "launch",
    "runtime": "launch",
    "cuda_driver": "launch",
    "hip_runtime": "launch",
    "hip_driver": "launch",
    "privateuse1_runtime": "launch",
    "python_function": "module",
}
"""By ``cat`` in lower case: until 1.10 PyTorch wrote "Operator", "Runtime", "Kernel"."""

MARKS = ("ProfilerStep#", "DistributedDataParallel.", "Optimizer.", "## ", "nn.Module: ")
"""Names of ranges; some versions wrote them as operators."""

COMMUNICATION_KERNELS = ("nccl", "rccl", "msccl")
BACKENDS = ("nccl:", "gloo:", "mpi:", "ucc:", "xccl:")
MODULE = "nn.Module: "
LONGEST_US = 1e18
LONGEST_NAME = 120

FIRST_OPERATORS = {
    "aten::conv2d": 0,
    "aten::conv1d": 0,
    "aten::conv3d": 0,
    "aten::linear": 0,
    "aten::addmm": 1,
    "aten::embedding": 1,
}
"""Operators that models begin with, and which of their inputs has the samples."""

MOST_SHAPED = 1000
"""Of these, shapes that are kept: the first ones of a step are enough."""


@dataclass
class Columns:
    """Begin, duration (seconds since the first event) and numbers of some events."""

    start: array[float] = field(default_factory=lambda: array("d"))
    length: array[float] = field(default_factory=lambda: array("d"))
    name: array[int] = field(default_factory=lambda: array("l"))
    thread: array[int] = field(default_factory=lambda: array("l"))
    key: array[int] = field(default_factory=lambda: array("q"))
    detail: array[int] = field(default_factory=lambda: array("q"))

    def add(
        self, start: float, length: float, name: int, thread: int, key: int, detail: int
    ) -> int:
        """Append an event and return its index."""
        self.start.append(start)
        self.length.append(length)
        self.name.append(name)
        self.thread.append(thread)
        self.key.append(key)
        self.detail.append(detail)
        return len(self.start) - 1

    def frozen(self) -> Events:
        """As arrays, in order of their begin; longer ones first."""
        start, length = np.asarray(self.start), np.asarray(self.length)
        order = np.lexsort((-length, start))
        integers = [
            np.asarray(column, dtype=np.int64)[order]
            for column in (self.name, self.thread, self.key, self.detail)
        ]
        name, thread, key, detail = integers
        begin = start[order]
        return Events(begin, begin + length[order], name, thread, key, detail, order)


@dataclass(frozen=True, slots=True)
class Events:
    """Events of one kind in order of their begin.

    `key`: an operator's sequence number, a kernel's or a launch's correlation; -1: none.
    `detail`: bytes of a copy, or a hash of a kernel's grid and an operator's shapes.
    `row`: where an event stood in the file, among those of its kind.
    """

    start: FloatArray
    end: FloatArray
    name: NDArray[np.int64]
    thread: NDArray[np.int64]
    key: NDArray[np.int64]
    detail: NDArray[np.int64]
    row: NDArray[np.int64]

    def where(self, mask: NDArray[np.bool_]) -> Events:
        """Those that a mask selects."""
        return Events(*(getattr(self, name)[mask] for name in self.__slots__))

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class EventTable:
    """A trace as columns.

    `header`: members of the file besides events.
    `names`: of events, by number.
    `ops`, `marks`, `device`, `launches`, `modules`: operators, ranges, device work, calls of the
        runtime, forward passes of modules.
    `arguments`: of communication, of gradients and of first operators, by kind and row.
    """

    path: Path
    header: Mapping[str, Any]
    names: tuple[str, ...]
    ops: Events
    marks: Events
    device: Events
    launches: Events
    modules: Events
    arguments: Mapping[tuple[str, int], Mapping[str, Any]]
    events: int

    def named(self, *prefixes: str) -> NDArray[np.int64]:
        """Numbers of the names that begin so."""
        chosen = [n for n, name in enumerate(self.names) if name.startswith(prefixes)]
        return np.array(chosen, dtype=np.int64)


def read_table(path: Path) -> EventTable:
    """Read a trace of PyTorch's profiler into columns.

    Raises `InputError`: no such trace, or a damaged one.
    """
    header: dict[str, Any] = {}
    builder = _Builder(path)
    count = 0
    with no_collections():
        for event in read_events(path, header):
            builder.add(event)
            count += 1
    if not count:
        raise trace_fault(path, "no events")
    if not len(builder.columns["op"].start) and not len(builder.columns["device"].start):
        kinds = ", ".join(sorted(builder.others)[:5]) or "no categories"
        raise trace_fault(path, f"a trace of another program ({kinds})")
    kinds_ = {kind: columns.frozen() for kind, columns in builder.columns.items()}
    return EventTable(
        path,
        header,
        tuple(builder.names),
        kinds_["op"],
        kinds_["mark"],
        kinds_["device"],
        kinds_["launch"],
        kinds_["module"],
        builder.arguments,
        count,
    )


class _Builder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: dict[str, int] = {}
        self.threads: dict[tuple[Any, Any], int] = {}
        self.columns = {kind: Columns() for kind in ("op", "mark", "device", "launch", "module")}
        self.arguments: dict[tuple[str, int], Mapping[str, Any]] = {}
        self.fields: dict[tuple[str, str], tuple[str, ...]] = {}
        self.others: set[str] = set()
        self.base: float | None = None
        self.shaped = 0

    def add(self, event: dict[str, Any]) -> None:
        category = event.get("cat")
        if event.get("ph") != "X" or not isinstance(category, str):
            return
        kind = CATEGORIES.get(category.lower())
        name = event.get("name")
        if kind is None or not isinstance(name, str):
            if len(self.others) < 8:
                self.others.add(category[:30])
            return
        if kind in ("op", "module") and name.startswith(MARKS):
            kind = "module" if name.startswith(MODULE) else "mark"
        elif kind == "module":
            return
        start = self._time(event, "ts", -LONGEST_US)
        length = self._time(event, "dur", 0.0)
        if self.base is None:
            self.base = start
        start, length = (start - self.base) * US, length * US
        arguments = event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        self._store(kind, name[:LONGEST_NAME], start, length, event, arguments)

    def _time(self, event: Mapping[str, Any], field_: str, least: float) -> float:
        value = event.get(field_)
        if type(value) is float and least <= value <= LONGEST_US:
            return value
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least <= value <= LONGEST_US:  # type: ignore[operator]
            raise trace_fault(
                self.path,
                f"{field_} {value!r:.40} of {str(event.get('name'))[:40]!r}",
                "microseconds, as numbers",
            )
        return float(value)  # type: ignore[arg-type]

    def _store(
        self,
        kind: str,
        name: str,
        start: float,
        length: float,
        event: Mapping[str, Any],
        arguments: Mapping[str, Any],
    ) -> None:
        number = self.names.setdefault(name, len(self.names))
        owner = (event.get("pid"), event.get("tid"))
        if type(owner[0]) is not int or type(owner[1]) is not int:
            owner = (str(owner[0]), str(owner[1]))
        thread = self.threads.setdefault(owner, len(self.threads))
        key, detail = _integer(arguments.get("correlation")), 0
        if kind == "op":
            key = _integer(arguments.get("Sequence number"))
            detail = _hash(arguments.get("Input Dims"))
        elif kind == "device":
            copied = _integer(arguments.get("bytes"))
            grid = (arguments.get("grid"), arguments.get("block"))
            detail = copied if copied >= 0 else _hash(grid)
        row = self.columns[kind].add(start, length, number, thread, key, detail)
        fields = self.fields.get((kind, name))
        if fields is None:
            fields = self.fields[kind, name] = kept_fields(kind, name)
        if fields and (chosen := {key: arguments[key] for key in fields if key in arguments}):
            self.arguments[kind, row] = chosen
        elif name in FIRST_OPERATORS and self.shaped < MOST_SHAPED and "Input Dims" in arguments:
            self.arguments[kind, row] = {"Input Dims": arguments["Input Dims"]}
            self.shaped += 1


_COMMUNICATION: tuple[str, ...] = (
    "Collective name",
    "In msg nelems",
    "dtype",
    "Group size",
    "Process Group Name",
    "External id",
)
_SHAPES = ("Input Dims", "Input type", "External id")


def kept_arguments(kind: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of communication and of gradients; those of others are dropped."""
    return {key: arguments[key] for key in kept_fields(kind, name) if key in arguments}


def kept_fields(kind: str, name: str) -> tuple[str, ...]:
    """Names of these arguments of events of a kind and name."""
    if name == "record_param_comms" or (
        kind == "device" and name.lower().startswith(COMMUNICATION_KERNELS)
    ):
        return _COMMUNICATION
    if name.startswith((*BACKENDS, "c10d::", "fsdp::chunk_cat")) or name.endswith(
        ("AccumulateGrad", "mul_out", "copy_bucket_to_grad")
    ):
        return _SHAPES
    return ()


def _integer(value: Any) -> int:
    if isinstance(value, float) and math.isfinite(value):
        value = int(value)
    return value if isinstance(value, int) and abs(value) < 1 << 62 else -1


def _hash(value: Any) -> int:
    return 0 if value is None else hash(str(value)) & 0x7FFFFFFF
