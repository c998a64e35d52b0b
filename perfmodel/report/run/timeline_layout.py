"""A timeline prepared for drawing: rows, bars merged until they are visible, exposed parts."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from perfmodel.report.common.palette import work_of
from perfmodel.studies.run.result.model import SizeResult
from perfmodel.timeline import Span, assign_lanes, exposed

_HOST_KINDS = frozenset({"issue", "wait"})
_GAP = 1 / 400
"""Bars of one kind are drawn as one if less than this share of the step lies between them, and
bars shorter than that beside a longer bar of another kind become part of it."""
_HOST_BOUND = 0.05
"""The host's row is shown when the device idles for more than this share of the step."""
_MOST_ROWS = 16
"""From more rows on, as of the stages of a pipeline, each class has one for all communication."""
_MOST_BARS = 300
"""From more bars in a row on, neighbours are one, whatever they communicate."""
_ORDER = ("host", "compute", "copy", "communication")
_STREAMS = {"comm": "communication", "compute": "compute", "copy": "copies"}
"""Streams of a plan as people say them."""

_COPY = re.compile(r"\bcopy$")
"""Names of streams and roles that hold many copies end so."""


def _spelled(rank_class: str) -> str:
    return rank_class.replace("gpu ", "GPU ").replace("gpus", "GPUs")


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: a span, or a run of neighbours of one kind. Times from the start of the step."""

    work: str
    start_s: float
    end_s: float
    first: str
    last: str
    spans: int
    busy_s: float
    nbytes: int = 0
    bucket: int | None = None
    ready_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the picture."""

    title: str
    role: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Tail:
    """Exposed communication, `start_s` to `end_s`; `exposed_s` leaves out slivers of compute."""

    start_s: float
    end_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True)
class StepPicture:
    """Everything that the timeline figure draws; seconds from the start of the step."""

    rows: tuple[Row, ...]
    tails: tuple[Tail, ...]
    length_s: float


def step_picture(point: SizeResult) -> StepPicture:
    """Arrange the spans of one step into rows of visible bars.

    The step starts where its first work on a device starts: the host may run ahead.
    """
    spans = point.timeline.spans
    device, (origin, end) = _on_devices(point), device_window(point)
    length = max(point.step_time_s, end - origin)
    with_host = point.breakdown_s.get("idle", 0.0) > _HOST_BOUND * point.step_time_s
    drawn = list(spans) if with_host else device
    stages = _stage_names(point)
    drawn = [
        span._replace(rank_class=stages.get(span.rank_class, span.rank_class))
        for span in drawn
        if span.end_s > origin
    ]
    rows = _rows(drawn, origin, _GAP * length)
    if len(rows) > _MOST_ROWS:
        classes = [stages.get(name, name) for name in point.timeline.classes]
        rows = _joined_rows(drawn, classes, origin, _GAP * length)
    return StepPicture(rows, _exposed(device, origin, _GAP * length), length)


def device_window(point: SizeResult) -> tuple[float, float]:
    """Begin of the first work on a device, and end of the last: ranks may begin a step early."""
    device = _on_devices(point)
    starts, ends = [span.start_s for span in device], [span.end_s for span in device]
    return min(starts, default=0.0), max(ends, default=0.0)


def _on_devices(point: SizeResult) -> list[Span]:
    return [span for span in point.timeline.spans if span.kind not in _HOST_KINDS]


def _stage_names(point: SizeResult) -> dict[str, str]:
    """Names of the rank classes of stages whose ranks differ: the stage before who it is."""
    stages = point.mixture.stages if point.mixture else ()
    names = {each.rank_class: f"stage {each.stage}" for each in stages}
    return {own: stage if own == stage else f"{stage}, {own}" for own, stage in names.items()}


def _exposed(device: Sequence[Span], origin: float, gap_s: float) -> tuple[Tail, ...]:
    """Communication during which no compute runs; tails that nearly touch are one."""
    comm = [(s.start_s, s.end_s) for s in device if s.kind == "communication"]
    compute = [(s.start_s, s.end_s) for s in device if s.kind != "communication"]
    tails: list[Tail] = []
    for low, high in exposed(comm, compute):
        start, end, length = low - origin, high - origin, high - low
        if tails and start - tails[-1].end_s <= gap_s:
            last = tails.pop()
            start, length = last.start_s, last.exposed_s + length
        tails.append(Tail(start, end, length))
    return tuple(tails)


def _role(spans: Iterable[Span]) -> str:
    kinds = {span.kind for span in spans}
    if kinds <= _HOST_KINDS:
        return "host"
    if "communication" in kinds:
        return "communication"
    return "copy" if kinds == {"copy"} else "compute"


def _rows(spans: Sequence[Span], origin: float, gap_s: float) -> tuple[Row, ...]:
    streams: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in spans:
        streams[span.rank_class, span.stream].append(span)
    classes = list(dict.fromkeys(rank_class for rank_class, _ in streams))
    rows: list[tuple[int, int, Row]] = []
    roles = {key: _role(members) for key, members in streams.items()}
    streams_of = Counter((rank_class, role) for (rank_class, _), role in roles.items())
    for (rank_class, stream), members in streams.items():
        role = roles[rank_class, stream]
        prefix = f"{_spelled(rank_class)}: " if len(classes) > 1 else ""
        name = _STREAMS.get(stream, stream) if streams_of[rank_class, role] > 1 else role
        title = prefix + _COPY.sub("copies", name)
        for number, lane in enumerate(assign_lanes(members)):
            bars = _bars(lane, origin, gap_s)
            if len(bars) > _MOST_BARS:
                bars = _bars(lane, origin, gap_s, join=True)
            row = Row(title + (f" {number + 1}" if number else ""), role, bars)
            rows.append((classes.index(rank_class), _ORDER.index(role), row))
    rows.sort(key=lambda entry: entry[:2])
    return tuple(row for _, _, row in rows)


def _joined_rows(
    spans: Sequence[Span], in_order: Sequence[str], origin: float, gap_s: float
) -> tuple[Row, ...]:
    """One row of communication for each class, and one of everything else.

    `in_order`: classes; others follow in the order in which they begin.
    """
    groups: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in spans:
        if span.kind not in _HOST_KINDS:
            role = "communication" if span.kind == "communication" else "compute"
            groups[span.rank_class, role].append(span)
    classes = dict.fromkeys((*in_order, *(rank_class for rank_class, _ in groups)))
    return tuple(
        Row(
            f"{_spelled(rank_class)}: {role}",
            role,
            _bars(groups[rank_class, role], origin, gap_s, join=True),
        )
        for rank_class in classes
        for role in ("compute", "communication")
        if (rank_class, role) in groups
    )


def _bars(
    lane: Sequence[Span], origin: float, gap_s: float, *, join: bool = False
) -> tuple[Bar, ...]:
    """Merge neighbours per kind of work; communication keeps one bar per bucket unless joined."""
    groups: dict[tuple[str, int | None, str], list[Bar]] = defaultdict(list)
    for span in sorted(lane, key=lambda span: span.start_s) if join else lane:
        if span.end_s <= span.start_s:
            continue
        work = work_of(span.kind)
        communication = work == "communication" and not join
        key = (work, span.bucket if communication else None, span.name if communication else "")
        bar = _bar(span, work, origin)
        run = groups[key]
        if run and not communication and bar.start_s - run[-1].end_s <= gap_s:
            run[-1] = _join(run[-1], bar)
        else:
            run.append(bar)
    drawn: list[Bar] = []
    bars = [bar for run in groups.values() for bar in run]
    for bar in sorted(bars, key=lambda bar: -bar.busy_s):
        host = _find_absorbing_bar(drawn, bar, gap_s)
        if host is None:
            drawn.append(bar)
        else:
            wider = replace(
                drawn[host],
                start_s=min(drawn[host].start_s, bar.start_s),
                end_s=max(drawn[host].end_s, bar.end_s),
            )
            drawn[host] = wider
    return tuple(drawn)


def _find_absorbing_bar(drawn: Sequence[Bar], bar: Bar, gap_s: float) -> int | None:
    """Index of the longer bar that a bar is interleaved with, or is too short beside.

    Spans of one lane never overlap, so a bar overlaps another one only where short spans of both
    kinds alternate: there the kind that is busier is drawn.
    """
    length = bar.end_s - bar.start_s
    for index, other in enumerate(drawn):
        shared = min(bar.end_s, other.end_s) - max(bar.start_s, other.start_s)
        adjacent = length < gap_s and shared > -gap_s and other.work != bar.work
        if shared > 0.5 * length or (adjacent and other.end_s - other.start_s > gap_s):
            return index
    return None


def _bar(span: Span, work: str, origin: float) -> Bar:
    start, end = max(0.0, span.start_s - origin), span.end_s - origin
    bucket = span.bucket if work == "communication" else None
    ready = span.ready_s - origin
    return Bar(work, start, end, span.name, span.name, 1, end - start, span.nbytes, bucket, ready)


def _join(first: Bar, second: Bar) -> Bar:
    return Bar(
        first.work,
        first.start_s,
        max(first.end_s, second.end_s),
        first.first,
        second.last,
        first.spans + second.spans,
        first.busy_s + second.busy_s,
        first.nbytes + second.nbytes,
    )
