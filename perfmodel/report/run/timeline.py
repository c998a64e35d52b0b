"""Picture of one training step: compute and communication side by side, the exposed part shaded.

A timeline prepared for drawing: rows, bars merged until they are visible, exposed parts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from perfmodel.report.common import quantities
from perfmodel.report.common.figures import axis_layout, bar_times, new_figure, time_unit, title_row
from perfmodel.report.common.palette import INK, WAIT_INK, WORK, work_of
from perfmodel.studies.run.result.model import SizeResult
from perfmodel.timeline import Span, assign_lanes, exposed

if TYPE_CHECKING:
    import plotly.graph_objects as go

_ROW_PIXELS, _LEAST_ROW_PIXELS, _ROOMY = 84, 44, 6
"""Of few rows; of many, which are closer from `_ROOMY` rows on."""
_TITLE_PIXELS = 19
"""Of a row's title, which stands above its bars."""
_THIN = 1 / 150
"""Share of the step below which a bar has an edge of its own colour: a pale one would hide it."""
_NUMBER_ROOM = {1: 0.022, 2: 0.055, 3: 0.09}
"""Share of the step's length that a number of so many digits needs, so that neighbours do not
touch on a screen of 360 pixels."""
_FEW_BUCKETS = 2
"""Buckets of a row from which on they have numbers: a number alone tells nothing."""
_SHADED, _LABELLED = 0.001, 0.005
"""Shares of the step from which exposed communication is shaded, and labelled."""
_LABEL_ROOM, _LONG_LABEL_ROOM = 0.42, 0.75
"""Of the picture's width that such a label takes on a phone, and one that says more."""
_MOSTLY = 0.5
"""Share of a stretch from which on it is shaded as exposed, and not only said to have pieces."""


def draw_timeline(point: SizeResult) -> go.Figure:
    """Draw one step; the horizontal axis zooms, rows stand below each other."""
    picture = step_picture(point)
    unit, scale = time_unit(picture.length_s)
    rows = max(1, len(picture.rows))
    row_pixels = max(_LEAST_ROW_PIXELS, min(_ROW_PIXELS, _ROW_PIXELS * _ROOMY // rows))
    figure = new_figure(110 + row_pixels * rows, barmode="overlay", bargap=0.3)
    for work in WORK:
        _add_bars(figure, picture, work, (unit, scale))
    _add_waits(figure, picture, scale)
    _shade(figure, picture, scale)
    figure.update_xaxes(
        **axis_layout(
            f"time since the step began ({unit})",
            range=[0, 1.01 * picture.length_s / scale],
            fixedrange=False,
        )
    )
    _write_rows(figure, picture, scale)
    figure.update_yaxes(
        **axis_layout(
            showgrid=False,
            showline=False,
            showticklabels=False,
            range=[-0.55, len(picture.rows) - 1 + max(0.55, 0.3 + _TITLE_PIXELS / row_pixels)],
        )
    )
    figure.update_layout(dragmode="zoom", margin={"t": 30})
    return figure


def _write_rows(figure: go.Figure, picture: StepPicture, scale: float) -> None:
    """Put each row's title above it and the numbers of its buckets below it."""
    for position, row in enumerate(picture.rows):
        height = len(picture.rows) - 1 - position
        title_row(figure, height + 0.3, escape(row.title, quote=False))
        for middle, bucket in _numbers(row, picture.length_s):
            figure.add_annotation(
                x=middle / scale,
                y=height - 0.27,
                xanchor="center",
                yanchor="top",
                showarrow=False,
                text=f"{bucket}",
                font={"size": 12, "color": INK},
            )


def has_bucket_numbers(point: SizeResult) -> bool:
    """Whether the picture numbers the buckets of a row."""
    picture = step_picture(point)
    return any(_numbers(row, picture.length_s) for row in picture.rows)


def _numbers(row: Row, length_s: float) -> list[tuple[float, int]]:
    """Middle and number of the buckets to number: every one, or every 2nd, 5th, 10th ..."""
    placed = sorted(
        ((bar.start_s + bar.end_s) / 2, bar.bucket) for bar in row.bars if bar.bucket is not None
    )
    numbered = placed
    for stride in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        numbered = [(middle, bucket) for middle, bucket in placed if bucket % stride == 0]
        room = [_NUMBER_ROOM[min(3, len(f"{bucket}"))] * length_s for _, bucket in numbered[1:]]
        gaps = [after - before for (before, _), (after, _) in pairwise(numbered)]
        if all(gap >= least for gap, least in zip(gaps, room, strict=True)):
            break
    return numbered if len({bucket for _, bucket in numbered}) >= _FEW_BUCKETS else []


def _add_bars(figure: go.Figure, picture: StepPicture, work: str, axis: tuple[str, float]) -> None:
    unit, scale = axis
    placed = [
        (len(picture.rows) - 1 - position, row, bar)
        for position, row in enumerate(picture.rows)
        for bar in row.bars
        if bar.work == work
    ]
    if not placed:
        return
    edge, thin_s = 0.7 if work == "communication" else 0, _THIN * picture.length_s
    edges = ["white" if b.end_s - b.start_s > thin_s else WORK[work] for *_, b in placed]
    figure.add_bar(
        orientation="h",
        base=[bar.start_s / scale for _, _, bar in placed],
        x=[(bar.end_s - bar.start_s) / scale for _, _, bar in placed],
        y=[height for height, _, _ in placed],
        width=0.52,
        name=work,
        marker={"color": WORK[work], "line": {"color": edges if edge else "white", "width": edge}},
        hovertext=[_hover(bar) for *_, bar in placed],
        hovertemplate=f"<b>{work}</b><br>%{{hovertext}}{bar_times(unit)}<extra></extra>",
    )


def _add_waits(figure: go.Figure, picture: StepPicture, scale: float) -> None:
    """Fill the gaps of compute rows in which only communication runs."""
    top = len(picture.rows) - 1
    heights = [top - at for at, row in enumerate(picture.rows) if row.role == "compute"]
    waits = [(height, tail) for height in heights for tail in _visible(picture)]
    if not waits:
        return
    figure.add_bar(
        orientation="h",
        base=[tail.start_s / scale for _, tail in waits],
        x=[(tail.end_s - tail.start_s) / scale for _, tail in waits],
        y=[height for height, _ in waits],
        width=0.52,
        name="exposed communication",
        marker={"color": WORK["exposed communication"], "line": {"width": 0}},
        hovertext=[
            f"<b>waiting for the network</b><br>{quantities.duration(tail.exposed_s)} exposed"
            for _, tail in waits
        ],
        hoverinfo="text",
    )


def _visible(picture: StepPicture) -> list[Tail]:
    return [tail for tail in picture.tails if tail.exposed_s >= _SHADED * picture.length_s]


def _hover(bar: Bar) -> str:
    names = bar.first if bar.spans == 1 else f"{bar.first} and {bar.spans - 1:,} more"
    lines = [escape(names.removeprefix(f"{bar.work} "), quote=False)]
    if bar.bucket is not None:
        wait = max(0.0, bar.start_s - bar.ready_s)
        lines.append(
            f"bucket {bar.bucket}, {quantities.size(bar.nbytes)}, "
            f"waited {quantities.duration(wait)}"
        )
    if bar.spans > 1:
        lines.append(f"busy {quantities.duration(bar.busy_s)}")
    return "<br>".join(lines)


def _shade(figure: go.Figure, picture: StepPicture, scale: float) -> None:
    """Shade exposed parts over all rows and say how long the longest ones are."""
    colour = WORK["exposed communication"]
    labelled: list[tuple[float, float]] = []
    for tail in sorted(_visible(picture), key=lambda tail: -tail.exposed_s):
        in_pieces = tail.exposed_s < _MOSTLY * (tail.end_s - tail.start_s)
        if not in_pieces:
            figure.add_vrect(
                x0=tail.start_s / scale,
                x1=tail.end_s / scale,
                fillcolor=colour,
                opacity=0.13,
                line_width=0,
                layer="below",
            )
        is_right = tail.start_s + tail.end_s > picture.length_s
        low, high = _label_ends(tail, picture.length_s, is_right, in_pieces)
        short = labelled and tail.exposed_s < _LABELLED * picture.length_s
        if short or any(low < end and high > start for start, end in labelled):
            continue
        labelled.append((low, high))
        figure.add_annotation(
            x=(tail.end_s if is_right else tail.start_s) / scale,
            y=1,
            yref="paper",
            yanchor="bottom",
            xanchor="right" if is_right else "left",
            showarrow=False,
            text=f"<b>{quantities.duration(tail.exposed_s)} exposed"
            f"{', in short pieces' if in_pieces else ''}</b>",
            font={"color": WAIT_INK, "size": 13},
        )


def _label_ends(tail: Tail, length_s: float, is_right: bool, is_long: bool) -> tuple[float, float]:
    """Ends of a label of exposed communication as shares of the picture's width on a phone."""
    room = _LONG_LABEL_ROOM if is_long else _LABEL_ROOM
    if is_right:
        return tail.end_s / length_s - room, tail.end_s / length_s
    return tail.start_s / length_s, tail.start_s / length_s + room


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
