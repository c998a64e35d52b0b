"""Picture of one training step: compute and communication side by side, the exposed part shaded.

A timeline prepared for drawing: rows, bars merged until they are visible, exposed parts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from typing import Any

from perfmodel.memo import first_applying, grouped
from perfmodel.report.common import quantities
from perfmodel.report.common.document import join_applying
from perfmodel.report.common.figures import (
    Drawing,
    add_note,
    axis_layout,
    bar_times,
    new_figure,
    time_bars,
    time_unit,
    title_row,
)
from perfmodel.report.common.palette import INK, WAIT_INK, WORK, work_of
from perfmodel.studies.run.result import SizeResult
from perfmodel.timeline import Span, assign_lanes, exposed

_ROW_PIXELS, _LEAST_ROW_PIXELS, _ROOMY = 84, 44, 6
"""Of few rows; of many, which are closer from `_ROOMY` rows on."""
_TITLE_PIXELS = 19
"""Of a row's title, which stands above its bars."""
_THIN_BAR_SHARE = 1 / 150
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
_SHADED_WHOLE = 0.5
"""Share of a stretch from which on it is shaded as exposed, and not only said to have pieces."""


def draw_timeline(point: SizeResult) -> Drawing:
    """Draw one step; the horizontal axis zooms, rows stand below each other."""
    picture = step_picture(point)
    unit, scale = time_unit(picture.length_s)
    rows = max(1, len(picture.rows))
    row_pixels = max(_LEAST_ROW_PIXELS, min(_ROW_PIXELS, _ROW_PIXELS * _ROOMY // rows))
    figure = new_figure(
        110 + row_pixels * rows,
        [*_work_bars(picture, unit, scale), *_wait_bars(picture, scale)],
        x=axis_layout(
            f"time since the step began ({unit})",
            range=[0, 1.01 * picture.length_s / scale],
            fixedrange=False,
        ),
        y=axis_layout(
            showgrid=False,
            showline=False,
            showticklabels=False,
            range=[-0.55, len(picture.rows) - 1 + max(0.55, 0.3 + _TITLE_PIXELS / row_pixels)],
        ),
        margin={"t": 30},
        barmode="overlay",
        bargap=0.3,
        dragmode="zoom",
    )
    _shade(figure, picture, scale)
    for height, row in _by_height(picture):
        title_row(figure, height + 0.3, escape(row.title, quote=False))
        for middle, bucket in _numbers(row, picture.length_s):
            add_note(
                figure,
                f"{bucket}",
                x=middle / scale,
                y=height - 0.27,
                xanchor="center",
                yanchor="top",
                font={"size": 12, "color": INK},
            )
    return figure


def _by_height(picture: StepPicture) -> list[tuple[int, Row]]:
    """Rows with their heights in the figure, from the top."""
    return [(len(picture.rows) - 1 - at, row) for at, row in enumerate(picture.rows)]


def has_bucket_numbers(point: SizeResult) -> bool:
    """Whether the picture numbers the buckets of a row."""
    picture = step_picture(point)
    return any(_numbers(row, picture.length_s) for row in picture.rows)


def _numbers(row: Row, length_s: float) -> list[tuple[float, int]]:
    """Middle and number of the buckets to number: every one, or every 2nd, 5th, 10th ..."""
    placed = sorted(
        ((bar.start_s + bar.end_s) / 2, bar.bucket) for bar in row.bars if bar.bucket is not None
    )
    for stride in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        numbered = [(middle, bucket) for middle, bucket in placed if bucket % stride == 0]
        if all(
            after - before >= _NUMBER_ROOM[min(3, len(f"{bucket}"))] * length_s
            for (before, _), (after, bucket) in pairwise(numbered)
        ):
            break
    return numbered if len({bucket for _, bucket in numbered}) >= _FEW_BUCKETS else []


def _work_bars(picture: StepPicture, unit: str, scale: float) -> Iterator[dict[str, Any]]:
    """Describe the bars of each kind of work."""
    thin_s = _THIN_BAR_SHARE * picture.length_s
    by_work = grouped(
        (bar.work, (height, bar)) for height, row in _by_height(picture) for bar in row.bars
    )
    for work in (work for work in WORK if work in by_work):
        line: dict[str, Any] = {"color": "white", "width": 0}
        if work == "communication":
            thin = [bar.end_s - bar.start_s <= thin_s for _, bar in by_work[work]]
            line = {"color": [WORK[work] if each else "white" for each in thin], "width": 0.7}
        yield time_bars(
            work,
            WORK[work],
            [(height, bar.start_s, bar.end_s, _hover(bar)) for height, bar in by_work[work]],
            scale,
            width=0.52,
            line=line,
            hoverinfo=None,
            hovertemplate=f"<b>{work}</b><br>%{{hovertext}}{bar_times(unit)}<extra></extra>",
        )


def _wait_bars(picture: StepPicture, scale: float) -> Iterator[dict[str, Any]]:
    """Describe what fills the gaps of compute rows in which only communication runs."""
    work = "exposed communication"
    waits = [
        (
            height,
            tail.start_s,
            tail.end_s,
            f"<b>waiting for communication</b><br>{tail.text}",
        )
        for height, row in _by_height(picture)
        for tail in _visible(picture)
        if row.role == "compute"
    ]
    if waits:
        yield time_bars(work, WORK[work], waits, scale, width=0.52, line={"width": 0})


def _visible(picture: StepPicture) -> list[Tail]:
    return [tail for tail in picture.tails if tail.exposed_s >= _SHADED * picture.length_s]


def _hover(bar: Bar) -> str:
    names = bar.first if bar.spans == 1 else f"{bar.first} and {bar.spans - 1:,} more"
    waited = quantities.duration(max(0.0, bar.start_s - bar.ready_s))
    return join_applying(
        (True, escape(names.removeprefix(f"{bar.work} "), quote=False)),
        (
            bar.bucket is not None,
            f"bucket {bar.bucket}, {quantities.size(bar.nbytes)}, waited {waited}",
        ),
        (bar.spans > 1, f"busy {quantities.duration(bar.busy_s)}"),
        by="<br>",
    )


def _shade(figure: Drawing, picture: StepPicture, scale: float) -> None:
    """Shade exposed parts over all rows and say how long the longest ones are."""
    labelled: list[tuple[float, float]] = []
    for tail in sorted(_visible(picture), key=lambda tail: -tail.exposed_s):
        in_pieces = tail.exposed_s < _SHADED_WHOLE * (tail.end_s - tail.start_s)
        if not in_pieces:
            figure.add_vrect(
                x0=tail.start_s / scale,
                x1=tail.end_s / scale,
                fillcolor=WORK["exposed communication"],
                opacity=0.13,
                line_width=0,
                layer="below",
            )
        # ends of the label as shares of the picture's width on a phone
        exposed = f"{quantities.duration(tail.exposed_s)} exposed"
        text = f"{exposed}, in short pieces" if in_pieces else tail.text
        room = _LABEL_ROOM if text == exposed else _LONG_LABEL_ROOM
        is_right = tail.start_s + tail.end_s > picture.length_s
        at_s = tail.end_s if is_right else tail.start_s
        low = at_s / picture.length_s - (room if is_right else 0.0)
        is_short = labelled and tail.exposed_s < _LABELLED * picture.length_s
        if not is_short and all(low >= end or low + room <= start for start, end in labelled):
            labelled.append((low, low + room))
            add_note(
                figure,
                f"<b>{text}</b>",
                x=at_s / scale,
                y=1,
                yref="paper",
                yanchor="bottom",
                xanchor="right" if is_right else "left",
                font={"color": WAIT_INK, "size": 13},
            )


HOST_KINDS = frozenset({"issue", "wait"})
_JOINED_GAP_SHARE = 1 / 400
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


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: a span, or a run of neighbours of one kind. Times from the start of the step."""

    work: str
    start_s: float
    end_s: float
    first: str

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

    @property
    def text(self) -> str:
        """How long it is exposed, and of how long a stretch where that is more."""
        exposed, all_ = map(quantities.duration, (self.exposed_s, self.end_s - self.start_s))
        return f"{exposed} exposed" if exposed == all_ else f"{exposed} of {all_} exposed"


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
    device, (origin, end) = _on_devices(point), device_window(point)
    length = max(point.step_time_s, end - origin)
    gap_s = _JOINED_GAP_SHARE * length
    with_host = point.breakdown_s.get("idle", 0.0) > _HOST_BOUND * point.step_time_s
    spelled = {
        name: name.replace("gpu ", "GPU ").replace("gpus", "GPUs")
        for name in dict.fromkeys(
            [*point.timeline.classes, *(span.rank_class for span in point.timeline.spans)]
        )
    }
    for each in point.parallel_layout.stages if point.parallel_layout else ():
        stage = f"stage {each.stage}"  # stages whose ranks differ are named before who they are
        own = "" if each.rank_class == stage else f", {spelled[each.rank_class]}"
        spelled[each.rank_class] = f"{stage}{own}"
    drawn = [
        span._replace(rank_class=spelled[span.rank_class])
        for span in (point.timeline.spans if with_host else device)
        if span.end_s > origin
    ]
    rows = tuple(_rows(drawn, origin, gap_s))
    if len(rows) > _MOST_ROWS:
        rows = _joined_rows(drawn, list(spelled.values()), origin, gap_s)
    return StepPicture(rows, _exposed(device, origin, gap_s), length)


def device_window(point: SizeResult) -> tuple[float, float]:
    """Begin of the first work on a device, and end of the last: ranks may begin a step early."""
    device = _on_devices(point)
    return (
        min((span.start_s for span in device), default=0.0),
        max((span.end_s for span in device), default=0.0),
    )


def _on_devices(point: SizeResult) -> list[Span]:
    return [span for span in point.timeline.spans if span.kind not in HOST_KINDS]


def _exposed(device: Sequence[Span], origin: float, gap_s: float) -> tuple[Tail, ...]:
    """Communication during which no compute runs; tails that nearly touch are one."""
    spans = grouped((s.kind == "communication", (s.start_s, s.end_s)) for s in device)
    tails: list[Tail] = []
    for low, high in exposed(spans.get(True, []), spans.get(False, [])):
        start, end, length = low - origin, high - origin, high - low
        if tails and start - tails[-1].end_s <= gap_s:
            last = tails.pop()
            start, length = last.start_s, last.exposed_s + length
        tails.append(Tail(start, end, length))
    return tuple(tails)


def _role(spans: Iterable[Span]) -> str:
    kinds = {span.kind for span in spans}
    return first_applying(
        (kinds <= HOST_KINDS, "host"),
        ("communication" in kinds, "communication"),
        (kinds == {"copy"}, "copy"),
        (True, "compute"),
    )


def _rows(spans: Sequence[Span], origin: float, gap_s: float) -> Iterator[Row]:
    streams = grouped(((span.rank_class, span.stream), span) for span in spans)
    classes = list(dict.fromkeys(rank_class for rank_class, _ in streams))
    roles = {key: _role(members) for key, members in streams.items()}
    streams_of = Counter((rank_class, role) for (rank_class, _), role in roles.items())
    for key in sorted(roles, key=lambda key: (classes.index(key[0]), _ORDER.index(roles[key]))):
        (rank_class, stream), role = key, roles[key]
        name = _STREAMS.get(stream, stream) if streams_of[rank_class, role] > 1 else role
        title = f"{f'{rank_class}: ' if len(classes) > 1 else ''}{_COPY.sub('copies', name)}"
        for number, lane in enumerate(assign_lanes(streams[key]), 1):
            drawn = _bars(lane, origin, gap_s)
            if len(drawn) > _MOST_BARS:
                drawn = _bars(lane, origin, gap_s, join=True)
            yield Row(title if number == 1 else f"{title} {number}", role, drawn)


def _joined_rows(
    spans: Sequence[Span], in_order: Sequence[str], origin: float, gap_s: float
) -> tuple[Row, ...]:
    """One row of communication for each class, and one of everything else."""
    groups = grouped(
        (
            (span.rank_class, "communication" if span.kind == "communication" else "compute"),
            span,
        )
        for span in spans
        if span.kind not in HOST_KINDS
    )
    return tuple(
        Row(
            f"{rank_class}: {role}",
            role,
            _bars(groups[rank_class, role], origin, gap_s, join=True),
        )
        for rank_class in in_order
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
        alone = work == "communication" and not join
        run = groups[work, span.bucket if alone else None, span.name if alone else ""]
        bar = _bar(span, work, origin)
        if run and not alone and bar.start_s - run[-1].end_s <= gap_s:
            run[-1] = replace(
                run[-1],
                end_s=max(run[-1].end_s, bar.end_s),
                spans=run[-1].spans + 1,
                busy_s=run[-1].busy_s + bar.busy_s,
                nbytes=run[-1].nbytes + bar.nbytes,
                bucket=None,
            )
        else:
            run.append(bar)
    drawn: list[Bar] = []
    for bar in sorted([bar for run in groups.values() for bar in run], key=lambda bar: -bar.busy_s):
        at = _find_absorbing_bar(drawn, bar, gap_s)
        if at is None:
            drawn.append(bar)
        else:
            drawn[at] = replace(
                drawn[at],
                start_s=min(drawn[at].start_s, bar.start_s),
                end_s=max(drawn[at].end_s, bar.end_s),
            )
    return tuple(drawn)


def _find_absorbing_bar(drawn: Sequence[Bar], bar: Bar, gap_s: float) -> int | None:
    """Index of the longer bar that a bar is interleaved with, or is too short beside.

    Spans of one lane never overlap, so a bar overlaps another one only where short spans of both
    kinds alternate: there the kind that is busier is drawn.
    """
    length = bar.end_s - bar.start_s
    for index, other in enumerate(drawn):
        shared = min(bar.end_s, other.end_s) - max(bar.start_s, other.start_s)
        if shared > 0.5 * length or (
            length < gap_s
            and shared > -gap_s
            and other.work != bar.work
            and other.end_s - other.start_s > gap_s
        ):
            return index
    return None


def _bar(span: Span, work: str, origin: float) -> Bar:
    start, end = max(0.0, span.start_s - origin), span.end_s - origin
    return Bar(
        work,
        start,
        end,
        span.name,
        1,
        end - start,
        span.nbytes,
        span.bucket if work == "communication" else None,
        span.ready_s - origin,
    )
