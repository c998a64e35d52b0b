"""Timelines as Kineto-shaped Chrome JSON: opens in Perfetto and in trace-analysis tools.

The fields are those that PyTorch's profiler writes (``schemaVersion``, ``distributedInfo``,
kernels with ``stream`` and ``correlation``, the collective's arguments as named in pytorch/kineto
``MetadataFieldCatalog.h``). Times are microseconds on a grid of 1 ns, as in the profiler.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.files import write_atomically
from perfmodel.timeline import Span, Timeline, assign_lanes

Event = dict[str, Any]

_HOST_KINDS = frozenset({"issue", "wait"})
_COLLECTIVES = {
    "all_reduce": ("AllReduce", "allreduce"),
    "reduce_scatter": ("ReduceScatter", "_reduce_scatter_base"),
    "all_gather": ("AllGather", "_allgather_base"),
    "broadcast": ("Broadcast", "broadcast"),
    "all_to_all": ("SendRecv", "all_to_all"),
    "scatter": ("SendRecv", "scatter"),
    "gather": ("SendRecv", "gather"),
    "reduce": ("Reduce", "reduce"),
}
"""Operation: what NCCL's kernel and PyTorch's process group call it; longer names first."""

_STEP_TID = 0
_LAUNCH_TID = 1
_RANKS_LISTED = 32
"""A group's ranks are listed up to this many; ``Group size`` says how many there are."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A span on the trace's grid of nanoseconds."""

    span: Span
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class _Track:
    """One thread of the trace: a stream of a rank class, or one of its concurrent lanes."""

    pid: int
    tid: int
    name: str
    placed: Sequence[_Placed]


def to_kineto(timeline: Timeline, *, world_size: int, backend: str, gpu: str) -> dict[str, Any]:
    """Write a timeline in the shape of a PyTorch profiler trace.

    Each class of identical ranks is one process, each stream one thread; spans that run at the
    same time on one stream get threads of their own, because viewers drop overlapping spans.
    Arrows lead from the compute that made a bucket ready to the start of its collective. Times
    begin at zero or later.

    `world_size`: ranks of the job.
    `backend`: "nccl" or "gloo".
    `gpu`: name of the device.
    Returns a JSON document; ``ts`` and ``dur`` in microseconds.
    """
    timeline = _from_zero(timeline)
    classes = list(dict.fromkeys(span.rank_class for span in timeline.spans))
    tracks = _tracks(timeline, classes)
    events = [*_names(classes, tracks), *_steps(timeline, len(classes))]
    correlation = itertools.count(1)
    for track in tracks:
        for placed in track.placed:
            events += _span_events(placed, track, next(correlation), world_size, backend)
    events += _flows(tracks)
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": pid, "name": gpu} for pid in range(len(classes))],
        "distributedInfo": {"backend": backend, "rank": 0, "world_size": world_size},
        "displayTimeUnit": "ns",
        "traceName": "perfmodel",
        "traceEvents": events,
    }


def write_kineto(
    timeline: Timeline, path: Path, *, world_size: int, backend: str, gpu: str
) -> None:
    """Write `to_kineto` to a file, compressed when its name ends in ``.gz``.

    Raises `InputError`: the file cannot be written.
    """
    document = to_kineto(timeline, world_size=world_size, backend=backend, gpu=gpu)
    data = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    write_atomically(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _from_zero(timeline: Timeline) -> Timeline:
    """A timeline that begins at zero, where it began before.

    Warm-up steps do; Perfetto drops events before zero (``trace_sorter_negative_timestamp_dropped``
    of its trace processor).
    """
    first_s = min((min(span.ready_s, span.start_s) for span in timeline.spans), default=0.0)
    if first_s >= 0:
        return timeline
    return Timeline(tuple(_earlier(span, first_s) for span in timeline.spans))


def _earlier(span: Span, by_s: float) -> Span:
    times = (span.start_s - by_s, span.end_s - by_s, span.ready_s - by_s)
    return span._replace(start_s=times[0], end_s=times[1], ready_s=times[2])


def _ns(time_s: float) -> int:
    return round(time_s * 1e9)


def _us(time_ns: int) -> float:
    return time_ns / 1000


def _tracks(timeline: Timeline, classes: Sequence[str]) -> list[_Track]:
    streams: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in timeline.spans:
        streams[span.rank_class, span.stream].append(span)
    tids: dict[str, Iterator[int]] = {name: itertools.count(_LAUNCH_TID + 1) for name in classes}
    tracks = []
    for (rank_class, stream), spans in streams.items():
        for number, lane in enumerate(assign_lanes(spans)):
            name = stream if number == 0 else f"{stream} ({number + 1})"
            track = _Track(classes.index(rank_class), next(tids[rank_class]), name, _placed(lane))
            tracks.append(track)
    return tracks


def _placed(lane: Sequence[Span]) -> list[_Placed]:
    """Round to nanoseconds so that neighbours which touch do not come to overlap."""
    placed: list[_Placed] = []
    for span in lane:
        start = max(_ns(span.start_s), placed[-1].end_ns if placed else _ns(span.start_s))
        placed.append(_Placed(span, start, max(start, _ns(span.end_s))))
    return placed


def _names(classes: Sequence[str], tracks: Sequence[_Track]) -> Iterator[Event]:
    def meta(pid: int, tid: int, key: str, **args: str | int) -> Event:
        return {"ph": "M", "name": key, "pid": pid, "tid": tid, "ts": 0, "args": args}

    for pid, rank_class in enumerate(classes):
        yield meta(pid, 0, "process_name", name=f"ranks: {rank_class}")
        yield meta(pid, 0, "process_sort_index", sort_index=pid)
        yield meta(pid, _STEP_TID, "thread_name", name="steps")
        yield meta(pid, _LAUNCH_TID, "thread_name", name="ready to run")
    for track in tracks:
        yield meta(track.pid, track.tid, "thread_name", name=track.name)
        yield meta(track.pid, track.tid, "thread_sort_index", sort_index=track.tid)


def _steps(timeline: Timeline, processes: int) -> Iterator[Event]:
    """Mark steps: each lasts from its first work on a device to that of the next step."""
    starts: dict[int, int] = {}
    for span in timeline.spans:
        if span.kind not in _HOST_KINDS:
            begin = _ns(span.start_s)
            starts[span.step] = min(begin, starts.get(span.step, begin))
    end = max((_ns(span.end_s) for span in timeline.spans), default=0)
    borders = [*(starts[step] for step in sorted(starts)), end]
    for pid in range(processes):
        for step, start, stop in zip(sorted(starts), borders, borders[1:], strict=False):
            yield {
                "ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}",
                "pid": pid, "tid": _STEP_TID, "ts": _us(start), "dur": _us(max(0, stop - start)),
                "args": {},
            }  # fmt: skip


def _span_events(
    placed: _Placed, track: _Track, correlation: int, world_size: int, backend: str
) -> list[Event]:
    span = placed.span
    event: Event = {
        "ph": "X", "cat": "kernel", "name": span.name, "pid": track.pid, "tid": track.tid,
        "ts": _us(placed.start_ns), "dur": _us(placed.end_ns - placed.start_ns),
    }  # fmt: skip
    ids = {"External id": correlation, "correlation": correlation}
    details: dict[str, Any] = {"kind": span.kind, "ready_us": _us(_ns(span.ready_s))}
    if span.bucket is not None:
        details["bucket"] = span.bucket
    if span.kind in _HOST_KINDS:
        return [event | {"cat": "cpu_op", "args": ids | details}]
    device = ids | {"device": track.pid, "stream": track.tid} | details
    if span.kind == "communication":
        event |= _communication_names(span, backend)
        device |= _communication_args(span, world_size)
    launch = {
        "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": track.pid,
        "tid": _LAUNCH_TID, "ts": _us(_ns(span.ready_s)), "dur": 0.0, "args": ids,
    }  # fmt: skip
    return [launch, event | {"args": device}]


def _operation(span: Span) -> str:
    text = span.name.lower().replace("-", "_").replace(" ", "_")
    return next((op for op in _COLLECTIVES if op in text), "all_reduce")


def _communication_names(span: Span, backend: str) -> Event:
    operation = _operation(span)
    if backend != "nccl":
        return {"cat": "user_annotation", "name": f"{backend}:{operation}"}
    return {"name": f"ncclDevKernel_{_COLLECTIVES[operation][0]}"}


def _communication_args(span: Span, world_size: int) -> dict[str, Any]:
    listed = ", ".join(str(rank) for rank in range(min(world_size, _RANKS_LISTED)))
    more = ", ..." if world_size > _RANKS_LISTED else ""
    return {
        "Collective name": _COLLECTIVES[_operation(span)][1],
        "In msg nelems": span.nbytes,  # counted in bytes: a bucket may mix dtypes in our spans
        "Out msg nelems": span.nbytes,
        "dtype": "Byte",
        "Group size": world_size,
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": f"[{listed}{more}]",
        "task": span.name,
    }


def _flows(tracks: Sequence[_Track]) -> Iterator[Event]:
    """Arrows from the span whose end made a bucket ready to the start of its collective."""
    ends: dict[tuple[int, int], tuple[_Track, _Placed]] = {}
    for track in tracks:
        for placed in track.placed:
            computes = placed.span.kind not in _HOST_KINDS | {"communication"}
            if computes and placed.end_ns > placed.start_ns:
                ends[track.pid, placed.end_ns] = (track, placed)
    number = itertools.count(1)
    for track in tracks:
        for placed in track.placed:
            span = placed.span
            source = ends.get((track.pid, _ns(span.ready_s)))
            if span.kind != "communication" or span.bucket is None or source is None:
                continue
            base = {"cat": "bucket_ready", "name": "bucket ready", "id": next(number)}
            # A start binds to the slice around it, and a slice does not contain its own end.
            leave = {"pid": source[0].pid, "tid": source[0].tid, "ts": _us(source[1].end_ns - 1)}
            arrive = {"pid": track.pid, "tid": track.tid, "ts": _us(placed.start_ns)}
            yield base | {"ph": "s"} | leave
            yield base | {"ph": "f", "bp": "e"} | arrive
