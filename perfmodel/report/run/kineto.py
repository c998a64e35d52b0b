"""Timelines as Kineto-shaped Chrome JSON: open in Perfetto and in HolisticTraceAnalysis.

The fields are those that PyTorch's profiler writes (``schemaVersion``, ``distributedInfo``,
kernels with ``stream`` and ``correlation``, the collective's arguments as named in pytorch/kineto
``MetadataFieldCatalog.h``). Times are microseconds on a grid of 1 ns, as in the profiler.

A kernel is launched by the host's work that issues it. HolisticTraceAnalysis says of a stream
that idles whether the host was late: the kernel that ends the pause was launched during it.
"""

from __future__ import annotations

import gzip
import itertools
import json
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfmodel.files import write_atomically
from perfmodel.memo import grouped
from perfmodel.report.run.timeline import HOST_KINDS
from perfmodel.timeline import GroupOfClass, Span, Timeline, assign_lanes

STEP_TID = 0
LAUNCH_TID = 1
LAUNCH_NS = 1000
"""Longest launch that is drawn at the end of the work that issues it. The host's time for an
operation is that of this work, of which a launch is a part of a few us."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A span on the trace's grid of nanoseconds.

    `number`: of the span in the trace, from 1.
    """

    span: Span
    start_ns: int
    end_ns: int
    number: int


@dataclass(frozen=True, slots=True)
class Track:
    """One thread of the trace: a stream of a rank class, or one of its concurrent lanes."""

    pid: int
    tid: int
    name: str
    placed: Sequence[Placed]


@dataclass(frozen=True, slots=True)
class Launch:
    """When and on which thread a kernel is launched.

    `issued_by`: number of the host's span that does so; of the kernel itself where none does.
    """

    pid: int
    tid: int
    start_ns: int
    end_ns: int
    issued_by: int


def nanoseconds(time_s: float) -> int:
    """Return a time on the grid of the trace."""
    return round(time_s * 1e9)


def make_tracks(timeline: Timeline, classes: Sequence[str]) -> list[Track]:
    """Return the threads of a timeline; a process for each of `classes`."""
    streams = grouped(((span.rank_class, span.stream), span) for span in timeline.spans)
    tids, numbers = {name: itertools.count(LAUNCH_TID + 1) for name in classes}, itertools.count(1)
    return [
        Track(
            classes.index(rank_class),
            next(tids[rank_class]),
            stream if lane == 0 else f"{stream} ({lane + 1})",
            _placed(own, numbers),
        )
        for (rank_class, stream), spans in streams.items()
        for lane, own in enumerate(assign_lanes(spans))
    ]


def _placed(lane: Sequence[Span], numbers: Iterator[int]) -> list[Placed]:
    """Round to nanoseconds so that neighbours which touch do not come to overlap."""
    placed: list[Placed] = []
    for span in lane:
        start = max([nanoseconds(span.start_s), *(before.end_ns for before in placed[-1:])])
        placed.append(Placed(span, start, max(start, nanoseconds(span.end_s)), next(numbers)))
    return placed


def launch_kernels(tracks: Sequence[Track]) -> dict[int, Launch]:
    """Find the launch of each span of a device, by its number.

    A task is launched at the end of the host's work that issues it. One without such work, as a
    copy that a hook starts, is launched by the last that ended before it was ready. Without any,
    a launch is when the task is ready.
    """
    launches: dict[int, Launch] = {}
    for pid in dict.fromkeys(track.pid for track in tracks):
        own = [
            (placed, track.tid) for track in tracks if track.pid == pid for placed in track.placed
        ]
        issues = sorted(
            (pair for pair in own if pair[0].span.kind == "issue"),
            key=lambda pair: pair[0].end_ns,
        )
        kernels = sorted(
            (placed for placed, _ in own if placed.span.kind not in HOST_KINDS),
            key=lambda placed: (placed.start_ns, placed.end_ns),
        )
        for at, issued in _by_issue(issues, kernels).items():
            launches |= _launches_of(pid, None if at < 0 else issues[at], issued)
    return launches


def _by_issue(
    issues: Sequence[tuple[Placed, int]], kernels: Sequence[Placed]
) -> dict[int, list[Placed]]:
    """Kernels by the host's work that launches them; -1: none does."""
    waiting: dict[tuple[int, str], deque[int]] = defaultdict(deque)
    for at, (issue, _) in enumerate(issues):
        waiting[issue.span.step, issue.span.issues].append(at)
    ends = [issue.end_ns for issue, _ in issues]
    issued: dict[int, list[Placed]] = defaultdict(list)
    for kernel in kernels:
        own = waiting.get((kernel.span.step, kernel.span.name))
        if own and ends[own[0]] <= kernel.start_ns:
            issued[own.popleft()].append(kernel)
        else:
            issued[bisect_right(ends, nanoseconds(kernel.span.ready_s)) - 1].append(kernel)
    return issued


def _launches_of(
    pid: int, issue: tuple[Placed, int] | None, kernels: Sequence[Placed]
) -> dict[int, Launch]:
    """Launches one after another at the end of the host's work."""
    if issue is None:
        return {
            kernel.number: Launch(pid, LAUNCH_TID, at_ns, at_ns, kernel.number)
            for kernel, at_ns in ((each, nanoseconds(each.span.ready_s)) for each in kernels)
        }
    work, tid = issue
    each_ns = min(LAUNCH_NS, (work.end_ns - work.start_ns) // len(kernels))
    first_ns = work.end_ns - each_ns * len(kernels)
    return {
        kernel.number: Launch(pid, tid, start_ns, start_ns + each_ns, work.number)
        for kernel, start_ns in zip(kernels, itertools.count(first_ns, each_ns), strict=False)
    }


Event = dict[str, Any]

_COLLECTIVES = {
    "all_reduce": ("AllReduce", "allreduce"),
    "reduce_scatter": ("ReduceScatter", "_reduce_scatter_base"),
    "all_gather": ("AllGather", "_allgather_base"),
    "broadcast": ("Broadcast", "broadcast"),
    "all_to_all": ("SendRecv", "all_to_all"),
    "scatter": ("SendRecv", "scatter"),
    "gather": ("SendRecv", "gather"),
    "reduce": ("Reduce", "reduce"),
    "send": ("SendRecv", "send"),
    "send_recv": ("SendRecv", "all_to_all"),
}
"""Operation: what NCCL's kernel and PyTorch's process group call it."""
_ELEMENTS = {
    "fp64": ("Double", 8),
    "fp32": ("Float", 4),
    "fp16": ("Half", 2),
    "bf16": ("BFloat16", 2),
}
"""Type of elements: PyTorch's word and bytes. Others are counted in bytes."""
_RANKS_LISTED = 32
"""Of a job whose groups are not known."""


def to_kineto(
    timeline: Timeline, *, world_size: int, backend: str, gpu: str, rank_class: str | None = None
) -> dict[str, Any]:
    """Write a timeline in the shape of a PyTorch profiler trace.

    Each class of identical ranks is one process, each stream one thread; spans that run at the
    same time on one stream get threads of their own, because viewers drop overlapping spans.
    Arrows lead from the compute that made a bucket ready to the start of its collective. Times
    begin at zero or later.

    `world_size`: ranks of the job.
    `backend`: "nccl" or "gloo".
    `gpu`: name of the device.
    `rank_class`: write this class alone, as the trace of its first rank.
    Returns a JSON document; ``ts`` and ``dur`` in microseconds.
    """
    timeline = _from_zero(timeline)
    classes = list(dict.fromkeys(span.rank_class for span in timeline.spans))
    pids = [n for n, name in enumerate(classes) if rank_class in {None, name}]
    tracks = [track for track in make_tracks(timeline, classes) if track.pid in pids]
    launches = launch_kernels(tracks)
    everyone = GroupOfClass(world_size, tuple(range(min(world_size, _RANKS_LISTED))))

    def group_of(span: Span) -> GroupOfClass:
        return timeline.groups.get((span.rank_class, span.communicator), everyone)

    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": pid, "name": gpu} for pid in pids],
        "distributedInfo": {
            "backend": backend,
            "rank": timeline.first_rank.get(rank_class or "", 0),
            "world_size": world_size,
        },
        "displayTimeUnit": "ns",
        "traceName": "perfmodel",
        "traceEvents": [
            *_names(classes, tracks, launches),
            *_steps(timeline, pids),
            *(
                event
                for track in tracks
                for event in _track_events(track, launches, group_of, backend == "nccl")
            ),
            *_flows(tracks),
        ],
    }


def write_kineto(document: Mapping[str, Any], path: Path) -> None:
    """Write what `to_kineto` makes to a file, compressed when its name ends in ``.gz``.

    Raises `InputError`: the file cannot be written.
    """
    # HolisticTraceAnalysis looks for the rank by a pattern that has a space after the colon
    data = json.dumps(document, allow_nan=False, separators=(",", ": ")).encode()
    write_atomically(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _from_zero(timeline: Timeline) -> Timeline:
    """A timeline that begins at zero, where it began before.

    Warm-up steps do; Perfetto drops events before zero (``trace_sorter_negative_timestamp_dropped``
    of its trace processor).
    """
    first_s = min((min(span.ready_s, span.start_s) for span in timeline.spans), default=0.0)
    if first_s >= 0:
        return timeline
    return replace(
        timeline,
        spans=tuple(
            span._replace(
                start_s=span.start_s - first_s,
                end_s=span.end_s - first_s,
                ready_s=span.ready_s - first_s,
            )
            for span in timeline.spans
        ),
    )


def _complete(
    category: str,
    name: str,
    place: tuple[int, int],
    times_ns: tuple[int, int],
    args: Mapping[str, Any],
) -> Event:
    """Write a slice: `place` is process and thread, times are begin and end."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": place[0],
        "tid": place[1],
        "ts": times_ns[0] / 1000,
        "dur": (times_ns[1] - times_ns[0]) / 1000,
        "args": args,
    }


def _names(
    classes: Sequence[str], tracks: Sequence[Track], launches: Mapping[int, Launch]
) -> Iterator[Event]:
    def meta(pid: int, tid: int, key: str, **args: str | int) -> Event:
        return {"ph": "M", "name": key, "pid": pid, "tid": tid, "ts": 0, "args": args}

    by_themselves = {each.pid for each in launches.values() if each.tid == LAUNCH_TID}
    for pid in dict.fromkeys(track.pid for track in tracks):
        yield from (
            meta(pid, 0, "process_name", name=f"ranks: {classes[pid]}"),
            meta(pid, 0, "process_sort_index", sort_index=pid),
            meta(pid, STEP_TID, "thread_name", name="steps"),
        )
        if pid in by_themselves:
            yield meta(pid, LAUNCH_TID, "thread_name", name="ready to run")
    for track in tracks:
        yield from (
            meta(track.pid, track.tid, "thread_name", name=track.name),
            meta(track.pid, track.tid, "thread_sort_index", sort_index=track.tid),
        )


def _steps(timeline: Timeline, pids: Sequence[int]) -> Iterator[Event]:
    """Mark steps: each lasts from its first work on a device to that of the next step."""
    starts_s = grouped(
        (span.step, span.start_s) for span in timeline.spans if span.kind not in HOST_KINDS
    )
    steps = sorted(starts_s)
    borders = [
        *(nanoseconds(min(starts_s[step])) for step in steps),
        max((nanoseconds(span.end_s) for span in timeline.spans), default=0),
    ]
    lasting = list(zip(steps, itertools.pairwise(borders), strict=True))
    return (
        _complete(
            "user_annotation", f"ProfilerStep#{step}", (pid, STEP_TID), (begin, max(begin, end)), {}
        )
        for pid in pids
        for step, (begin, end) in lasting
    )


def _track_events(
    track: Track,
    launches: Mapping[int, Launch],
    group_of: Callable[[Span], GroupOfClass],
    nccl: bool,
) -> Iterator[Event]:
    for placed in track.placed:
        span, place = placed.span, (track.pid, track.tid)
        category, name, times_ns = "kernel", span.name, (placed.start_ns, placed.end_ns)
        details: Event = {
            "kind": span.kind,
            "ready_us": nanoseconds(span.ready_s) / 1000,
            **({} if span.bucket is None else {"bucket": span.bucket}),
        }
        if span.kind in HOST_KINDS:
            yield _complete(
                "cpu_op", name, place, times_ns, {"External id": placed.number} | details
            )
            continue
        if span.kind == "communication":
            # messages to and from servers have no operation
            op = span.op if span.op in _COLLECTIVES else "send"
            details |= _communication_args(span, op, group_of(span))
            name = f"ncclDevKernel_{_COLLECTIVES[op][0]}" if nccl else f"gloo:{op}"
            category = category if nccl else "user_annotation"
        launch = launches[placed.number]
        ids = {"External id": launch.issued_by, "correlation": placed.number}
        launched_ns, thread = (launch.start_ns, launch.end_ns), (launch.pid, launch.tid)
        yield _complete("cuda_runtime", "cudaLaunchKernel", thread, launched_ns, ids)
        yield _complete(
            category,
            name,
            place,
            times_ns,
            ids | {"device": track.pid, "stream": track.tid} | details,
        )


def _communication_args(span: Span, operation: str, group: GroupOfClass) -> dict[str, Any]:
    more = ["..."] if group.ranks > len(group.first) else []
    name, element_bytes = _ELEMENTS.get(span.dtype or "", ("Byte", 1))
    elements = span.nbytes // element_bytes
    share = elements // max(1, group.ranks)
    return {
        "Collective name": _COLLECTIVES[operation][1],
        "In msg nelems": share if operation == "all_gather" else elements,
        "Out msg nelems": share if operation == "reduce_scatter" else elements,
        "dtype": name,
        "Group size": group.ranks,
        "Process Group Name": span.communicator or "0",
        "Process Group Description": span.communicator or "default_pg",
        "Process Group Ranks": f"[{', '.join([*map(str, group.first), *more])}]",
        "task": span.name,
    }


def _flows(tracks: Sequence[Track]) -> Iterator[Event]:
    """Arrows from the span whose end made a bucket ready to the start of its collective."""
    placed_on = [(track, placed) for track in tracks for placed in track.placed]
    # a start binds to the slice around it, and a slice does not contain its own end
    ends = {
        (track.pid, placed.end_ns): {
            "pid": track.pid,
            "tid": track.tid,
            "ts": (placed.end_ns - 1) / 1000,
        }
        for track, placed in placed_on
        if placed.span.kind not in HOST_KINDS | {"communication"}
        and placed.end_ns > placed.start_ns
    }
    number = itertools.count(1)
    for track, placed in placed_on:
        leave = ends.get((track.pid, nanoseconds(placed.span.ready_s)))
        if placed.span.kind == "communication" and placed.span.bucket is not None and leave:
            base = {"cat": "bucket_ready", "name": "bucket ready", "id": next(number)}
            yield base | {"ph": "s"} | leave
            arrive = {"pid": track.pid, "tid": track.tid, "ts": placed.start_ns / 1000}
            yield base | {"ph": "f", "bp": "e"} | arrive
