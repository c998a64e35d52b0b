"""Picture of one training step: compute and communication side by side, the exposed part shaded."""

from __future__ import annotations

from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from perfmodel.report.common import quantities
from perfmodel.report.common.figures import axis_layout, bar_times, new_figure, time_unit, title_row
from perfmodel.report.common.palette import INK, WAIT_INK, WORK
from perfmodel.report.run.timeline_layout import Bar, Row, StepPicture, Tail, step_picture
from perfmodel.studies.run.result.model import SizeResult

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
