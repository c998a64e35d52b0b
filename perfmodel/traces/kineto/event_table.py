"""Columns of the events that an analysis needs; everything else is dropped while it is read."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray
from perfmodel.garbage import no_collections
from perfmodel.traces.kineto.event_stream import read_events, refuse_trace, trace_fault

MICROSECOND_S = 1e-6

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
"""Kinds by ``cat`` in lower case: until 1.10 PyTorch wrote "Operator", "Runtime", "Kernel"."""

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
"""Shapes of first operators that are kept: those of one step are enough."""


KINDS = ("op", "mark", "device", "launch", "module")
"""Operators, ranges, device work, calls of the runtime, and forward passes of modules."""


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
        """Return those that a mask selects."""
        return Events(*(getattr(self, name)[mask] for name in self.__slots__))

    def within(self, start_s: float, end_s: float) -> Events:
        """Return those that begin in a span of time."""
        return self.where((self.start >= start_s) & (self.start < end_s))

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class EventTable:
    """A trace as columns.

    `header`: members of the file besides events.
    `names`: of events, by number.
    `ops`, `marks`, `device`, `launches`, `modules`: the events, by `KINDS`.
    `owners`: operators that lie in no other one of their thread.
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
    owners: Events
    arguments: Mapping[tuple[str, int], Mapping[str, Any]]
    events: int

    def named(self, *prefixes: str) -> NDArray[np.int64]:
        """Return the numbers of the names that begin so."""
        return np.array(
            [n for n, name in enumerate(self.names) if name.startswith(prefixes)], dtype=np.int64
        )

    def chosen(self, events: Events, *prefixes: str) -> Events:
        """Return the events whose names begin so."""
        return events.where(np.isin(events.name, self.named(*prefixes)))

    def owner_name(self, row: int) -> str:
        """Return the name of one of `owners`."""
        return self.names[int(self.owners.name[row])]


class _Builder:
    """Columns of a trace while it is read; the first event begins at zero."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: dict[str, int] = {}
        self.threads: dict[Any, int] = {}
        self.times = {kind: array("d") for kind in KINDS}  # begin and duration of each event
        self.numbers = {kind: array("q") for kind in KINDS}  # name, thread, key and detail
        self.arguments: dict[tuple[str, int], Mapping[str, Any]] = {}
        self.base: float | None = None
        self.others: set[str] = set()
        self.shaped = 0

    def add(self, event: dict[str, Any]) -> None:
        """Store an event, if it is of a kind that counts."""
        category, name = event.get("cat"), event.get("name")
        if event.get("ph") != "X" or not isinstance(category, str):
            return
        kind = CATEGORIES.get(category.lower())
        if kind is None or not isinstance(name, str):
            if len(self.others) < 8:
                self.others.add(category[:30])
            return
        if kind in ("op", "module") and name.startswith(MARKS):
            kind = "module" if name.startswith(MODULE) else "mark"
        elif kind == "module":
            return
        name, owner = name[:LONGEST_NAME], (event.get("pid"), event.get("tid"))
        if type(owner[0]) is not int or type(owner[1]) is not int:
            owner = (str(owner[0]), str(owner[1]))
        arguments = event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        start, length = self._time(event, "ts", -LONGEST_US), self._time(event, "dur", 0.0)
        row = self._store(kind, name, start, length, owner, *_numbers(kind, arguments))
        fields = _kept_fields(kind, name)
        if fields and (chosen := {key: arguments[key] for key in fields if key in arguments}):
            self.arguments[kind, row] = chosen
        elif name in FIRST_OPERATORS and self.shaped < MOST_SHAPED and "Input Dims" in arguments:
            self.arguments[kind, row] = {"Input Dims": arguments["Input Dims"]}
            self.shaped += 1

    def _time(self, event: Mapping[str, Any], field_: str, least: float) -> float:
        value = event.get(field_)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least <= value <= LONGEST_US:  # type: ignore[operator]
            raise trace_fault(
                self.path,
                f"{field_} {value!r:.40} of {str(event.get('name'))[:40]!r}",
                "microseconds, as numbers",
            )
        return float(value)  # type: ignore[arg-type]

    def _store(
        self, kind: str, name: str, start: float, length: float, thread: Any, key: int, detail: int
    ) -> int:
        """Append an event, with times in microseconds, and return its index."""
        if self.base is None:
            self.base = start
        self.times[kind].extend(((start - self.base) * MICROSECOND_S, length * MICROSECOND_S))
        name_number = self.names.setdefault(name, len(self.names))
        thread_number = self.threads.setdefault(thread, len(self.threads))
        self.numbers[kind].extend((name_number, thread_number, key, detail))
        return len(self.times[kind]) // 2 - 1

    def table(self, header: Mapping[str, Any], count: int) -> EventTable:
        """Return the table; `count`: events of the file."""
        ops, marks, device, launches, modules = (
            _in_order(self.times[kind], self.numbers[kind]) for kind in KINDS
        )
        return EventTable(
            self.path,
            header,
            tuple(self.names),
            ops,
            marks,
            device,
            launches,
            modules,
            outermost(ops),
            self.arguments,
            count,
        )


def _in_order(times: array[float], numbers: array[int]) -> Events:
    """Return arrays in the order in which events begin; longer ones first."""
    start, length = np.asarray(times).reshape(-1, 2).T
    order = np.lexsort((-length, start))
    name, thread, key, detail = np.asarray(numbers, dtype=np.int64).reshape(-1, 4)[order].T.copy()
    return Events(start[order], start[order] + length[order], name, thread, key, detail, order)


def outermost(events: Events) -> Events:
    """Return those that lie in no other event of their thread."""
    chosen = np.zeros(len(events), dtype=bool)
    for thread in np.unique(events.thread):
        rows = np.flatnonzero(events.thread == thread)
        before = np.concatenate([[-np.inf], np.maximum.accumulate(events.end[rows])[:-1]])
        # Times are whole nanoseconds at best: an operator may begin where its parent ends.
        chosen[rows] = events.start[rows] >= before - 1e-9
    return events.where(chosen)


def read_table(path: Path) -> EventTable:
    """Read a trace of PyTorch's profiler into columns.

    Raises `InputError`: no such trace, or a damaged one.
    """
    header: dict[str, Any] = {}
    builder, count = _Builder(path), 0
    with no_collections():
        for event in read_events(path, header):
            builder.add(event)
            count += 1
    refuse_trace(not count, path, "no events")
    kinds = ", ".join(sorted(builder.others)[:5]) or "no categories"
    is_other = not builder.times["op"] and not builder.times["device"]
    refuse_trace(is_other, path, f"a trace of another program ({kinds})")
    return builder.table(header, count)


def _numbers(kind: str, arguments: Mapping[str, Any]) -> tuple[int, int]:
    """Return the key and the detail of an event, as `Events` has them."""
    if kind == "op":
        return _integer(arguments.get("Sequence number")), _hash(arguments.get("Input Dims"))
    key = _integer(arguments.get("correlation"))
    if kind != "device":
        return key, 0
    copied = _integer(arguments.get("bytes"))
    return key, copied if copied >= 0 else _hash((arguments.get("grid"), arguments.get("block")))


@lru_cache(maxsize=1 << 16)
def _kept_fields(kind: str, name: str) -> tuple[str, ...]:
    """Return the names of these arguments of events of a kind and name."""
    if name == "record_param_comms" or (
        kind == "device" and name.lower().startswith(COMMUNICATION_KERNELS)
    ):
        return (
            "Collective name",
            "In msg nelems",
            "dtype",
            "Group size",
            "Process Group Name",
            "External id",
        )
    if name.startswith((*BACKENDS, "c10d::", "fsdp::chunk_cat")) or name.endswith(
        ("AccumulateGrad", "mul_out", "copy_bucket_to_grad")
    ):
        return "Input Dims", "Input type", "External id"
    return ()


def _integer(value: Any) -> int:
    if isinstance(value, float) and math.isfinite(value):
        value = int(value)
    return value if isinstance(value, int) and abs(value) < 1 << 62 else -1


def _hash(value: Any) -> int:
    return 0 if value is None else hash(str(value)) & 0x7FFFFFFF
