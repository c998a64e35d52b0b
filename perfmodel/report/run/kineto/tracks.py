"""Where spans stand in a trace: threads without overlap, and what launched each kernel."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfmodel.timeline import Span, Timeline, assign_lanes

HOST_KINDS = frozenset({"issue", "wait"})
"""Kinds of spans that are work of the CPU."""

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
    streams: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in timeline.spans:
        streams[span.rank_class, span.stream].append(span)
    tids: dict[str, Iterator[int]] = {name: itertools.count(LAUNCH_TID + 1) for name in classes}
    numbers, tracks = itertools.count(1), list[Track]()
    for (rank_class, stream), spans in streams.items():
        for lane, own in enumerate(assign_lanes(spans)):
            name = stream if lane == 0 else f"{stream} ({lane + 1})"
            placed = _placed(own, numbers)
            tracks.append(Track(classes.index(rank_class), next(tids[rank_class]), name, placed))
    return tracks


def _placed(lane: Sequence[Span], numbers: Iterator[int]) -> list[Placed]:
    """Round to nanoseconds so that neighbours which touch do not come to overlap."""
    placed: list[Placed] = []
    for span in lane:
        start = nanoseconds(span.start_s)
        start = max(start, placed[-1].end_ns if placed else start)
        end = max(start, nanoseconds(span.end_s))
        placed.append(Placed(span, start, end, next(numbers)))
    return placed


def launch_kernels(tracks: Sequence[Track]) -> dict[int, Launch]:
    """Find the launch of each span of a device, by its number.

    A task is launched at the end of the host's work that issues it. One without such work, as a
    copy that a hook starts, is launched by the last that ended before it was ready. Without any,
    a launch is when the task is ready.
    """
    launches: dict[int, Launch] = {}
    for pid in dict.fromkeys(track.pid for track in tracks):
        own = [track for track in tracks if track.pid == pid]
        issues = [
            (placed, track.tid)
            for track in own
            for placed in track.placed
            if placed.span.kind == "issue"
        ]
        issues.sort(key=lambda pair: pair[0].end_ns)
        kernels = sorted(
            (
                placed
                for track in own
                for placed in track.placed
                if placed.span.kind not in HOST_KINDS
            ),
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
            kernel.number: Launch(pid, LAUNCH_TID, ready_ns, ready_ns, kernel.number)
            for kernel in kernels
            for ready_ns in [nanoseconds(kernel.span.ready_s)]
        }
    work, tid = issue
    each_ns = min(LAUNCH_NS, (work.end_ns - work.start_ns) // len(kernels))
    first_ns = work.end_ns - each_ns * len(kernels)
    return {
        kernel.number: Launch(
            pid, tid, first_ns + each_ns * at, first_ns + each_ns * (at + 1), work.number
        )
        for at, kernel in enumerate(kernels)
    }
