"""Picture of a pipeline: stages below each other, passes by micro-batch, bubbles empty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby, pairwise
from typing import Any

from perfmodel.memo import grouped
from perfmodel.report.common.figures import (
    Drawing,
    axis_layout,
    bar_times,
    new_figure,
    time_bars,
    time_unit,
)
from perfmodel.report.common.palette import WORK
from perfmodel.studies.run.result import SizeResult
from perfmodel.studies.run.usage import StageUse
from perfmodel.timeline import Span, Timeline

MOST_STAGES = 16
"""Stages drawn at most: the first, the last and some between them."""

_MOST_BLOCKS = 26
"""Passes of a stage beside each other that can be told apart in a picture."""

_JOINED_GAP_SHARE = 1 / 5000
"""Blocks of one pass are drawn as one if less than this share of a window lies between them."""

_FORWARD, _BACKWARD, _WEIGHTS = "forward", "backward", "gradients of weights"
COLLECTIVE, MESSAGE = "exposed collective of layers", "messages and gradients"


@dataclass(frozen=True, slots=True)
class Block:
    """One pass of a micro-batch, or what stands between passes; seconds from the first pass.

    `row`: of its stage in the picture, from the top.
    `micro_batch`: counted from 0, as stages are; None where it is of none.
    """

    row: int
    kind: str
    name: str
    micro_batch: int | None
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class PipelinePicture:
    """Everything that the figure draws.

    `stages`: of each row. `windows`: begin and end of the parts of the step that are shown.
    """

    stages: tuple[int, ...]
    blocks: tuple[Block, ...]
    windows: tuple[tuple[float, float], ...]


def pipeline_picture(point: SizeResult) -> PipelinePicture:
    """Arrange the passes of a step; its begin and its end where it is too long for one window."""
    assert point.parallel_layout is not None
    stages, timeline = _chosen(point.parallel_layout.stages), point.timeline
    rows = {each.rank_class: row for row, each in enumerate(stages)}
    origin = min(span.start_s for span in timeline.spans if span.kind in (_FORWARD, _BACKWARD))
    end = max(span.end_s for span in timeline.spans if span.rank_class in rows) - origin
    blocks = [
        Block(
            rows[span.rank_class],
            kind,
            span.name,
            span.micro_batch if kind in (_FORWARD, _BACKWARD, _WEIGHTS) else None,
            span.start_s - origin,
            span.end_s - origin,
        )
        for span in timeline.spans
        if (kind := _kind(span, timeline)) in _COLOURS
        and span.rank_class in rows
        and span.end_s > span.start_s
    ]
    windows = _windows(blocks, end)
    visible = [block for block in blocks if any(_in_window(block, window) for window in windows)]
    return PipelinePicture(
        tuple(each.stage for each in stages),
        tuple(_joined(visible, _JOINED_GAP_SHARE * (windows[0][1] - windows[0][0]))),
        windows,
    )


def _in_window(block: Block, window: tuple[float, float]) -> bool:
    return block.start_s < window[1] and block.end_s > window[0]


def _chosen(stages: Sequence[StageUse]) -> list[StageUse]:
    """The first and the last stage, and evenly many between them."""
    last, count = len(stages) - 1, min(len(stages), MOST_STAGES)
    return [stages[round(at * last / (count - 1 or 1))] for at in range(count)]


def _kind(span: Span, timeline: Timeline) -> str | None:
    """Kind of block of a span; None of a message that a stage sends: its receiver has it."""
    if span.kind != "communication":
        return _WEIGHTS if span.role == "weight_gradient" else span.kind
    if timeline.stream_kinds[span.stream] == "compute":
        return COLLECTIVE
    # the sender of a message is the first rank of its group
    sender = timeline.groups[span.rank_class, span.communicator].first[0]
    is_own = span.op == "send" and sender == timeline.first_rank[span.rank_class]
    return None if is_own else MESSAGE


def _joined(blocks: Sequence[Block], gap_s: float) -> list[Block]:
    """Join neighbours of one kind and micro-batch that nearly touch."""
    joined: list[Block] = []
    for block in sorted(blocks, key=lambda b: (b.row, b.kind, b.start_s)):
        last = joined[-1] if joined else block
        same = (last.row, last.kind, last.micro_batch) == (block.row, block.kind, block.micro_batch)
        if joined and same and block.start_s - last.end_s <= gap_s:
            joined[-1] = replace(last, end_s=max(last.end_s, block.end_s))
        else:
            joined.append(block)
    return joined


def _windows(blocks: Sequence[Block], end_s: float) -> tuple[tuple[float, float], ...]:
    """The whole step, or its begin and its end: each as long as the pipeline takes to fill.

    That is until the first stage has run a few backwards, for as many passes as can be drawn.
    """
    first_stage = [block for block in blocks if block.row == 0 and block.micro_batch is not None]
    in_order = sorted(first_stage, key=lambda block: block.start_s)
    passes = [
        next(run) for _, run in groupby(in_order, key=lambda block: (block.kind, block.micro_batch))
    ]
    if len(passes) <= 2 * _MOST_BLOCKS:
        return ((0.0, end_s),)
    backward_s = next(block.start_s for block in passes if block.kind != _FORWARD)
    period_s = sorted(b.start_s - a.start_s for a, b in pairwise(passes))[len(passes) // 2]
    length_s = min(max(1.25 * backward_s, period_s * _MOST_BLOCKS), end_s / 2)
    return ((0.0, length_s), (end_s - length_s, end_s))


PIPELINE_HINT = (
    "Numbers are micro-batches, counted from 0; empty space is the bubble. Thin bars below a "
    "stage are what it receives from its neighbours, and data-parallel collectives. Drag "
    "across the picture to zoom, double-click to go back; timeline.json holds every stage and "
    "every pass."
)

_COLOURS = {
    _FORWARD: WORK["forward"],
    _BACKWARD: WORK["backward"],
    _WEIGHTS: WORK["slowdown"],
    COLLECTIVE: WORK["exposed communication"],
    "optimizer": WORK["optimizer"],
    MESSAGE: WORK["communication"],
}
"""Kinds of block, in the order of the legend."""
_ROW_PIXELS, _PANEL_PIXELS = 24, 62
_HEIGHT, _THIN = 0.66, 0.14
"""Of a block, and of what is received; rows are 1 apart."""
_LEAST_TEXT = 9
"""Pixels: smaller numbers are left out."""


def draw_pipeline(point: SizeResult) -> Drawing:
    """Draw the passes of a step; its begin above its end where it is long."""
    picture = pipeline_picture(point)
    unit, scale = time_unit(picture.windows[0][1])
    panels, labels = len(picture.windows), [f"{stage}" for stage in picture.stages]
    names = ("the step",) if panels == 1 else ("the first passes", "the last passes")
    height = (1 - 0.14 * (panels - 1)) / panels
    axes: dict[str, Any] = {}
    traces: list[dict[str, Any]] = []
    for panel, (low, high) in enumerate(picture.windows):
        suffix, top = f"{panel + 1}" if panel else "", 1 - panel * (height + 0.14)
        named = {trace["name"] for trace in traces}
        traces += [
            trace | {"showlegend": trace["name"] not in named}
            for trace in block_traces(picture.blocks, (low, high), suffix, (unit, scale))
        ]
        axes |= {
            f"xaxis{suffix}": axis_layout(
                f"{names[panel]}: time since the first pass ({unit})",
                range=[low / scale, high / scale],
                fixedrange=False,
                anchor=f"y{suffix}",
            ),
            f"yaxis{suffix}": axis_layout(
                "stage",
                domain=[max(0.0, top - height), top],
                range=[len(labels) - 0.4, -0.6],
                tickvals=list(range(len(labels))),
                ticktext=labels,
                showgrid=False,
                anchor=f"x{suffix}",
            ),
        }
    return new_figure(
        20 + panels * (_PANEL_PIXELS + _ROW_PIXELS * len(labels)),
        traces,
        **axes,
        barmode="overlay",
        uniformtext={"minsize": _LEAST_TEXT, "mode": "hide"},
        dragmode="zoom",
    )


def block_traces(
    blocks: Sequence[Block],
    window: tuple[float, float],
    suffix: str,
    axis: tuple[str, float],
) -> Iterator[dict[str, Any]]:
    """Describe the bars of a window by kind, cut at its edges.

    Numbers of passes of which the window shows less than half are left out: they would be cut, or
    stand on their neighbours'.
    """
    unit, scale = axis
    by_kind = grouped((block.kind, block) for block in blocks if _in_window(block, window))
    for kind in (kind for kind in _COLOURS if kind in by_kind):
        own, colour = by_kind[kind], _COLOURS[kind]
        ends_s = [(max(b.start_s, window[0]), min(b.end_s, window[1])) for b in own]
        edge = {"color": colour, "width": 0.6}  # its own colour keeps what is short visible
        yield time_bars(
            kind,
            colour,
            [
                (
                    block.row + (0.42 if kind == MESSAGE else 0.0),
                    *ends,
                    escape(block.name, quote=False)
                    if block.micro_batch is None
                    else f"micro-batch {block.micro_batch}",
                )
                for block, ends in zip(own, ends_s, strict=True)
            ],
            scale,
            width=_THIN if kind == MESSAGE else _HEIGHT,
            line=edge if own[0].micro_batch is None else {"color": "white", "width": 0.4},
            text=[
                ""
                if b.micro_batch is None or end_s - start_s <= 0.5 * (b.end_s - b.start_s)
                else f"{b.micro_batch}"
                for b, (start_s, end_s) in zip(own, ends_s, strict=True)
            ],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            constraintext="inside",
            hoverinfo=None,
            hovertemplate=f"<b>{kind}</b><br>%{{hovertext}}{bar_times(unit)}<extra></extra>",
            xaxis=f"x{suffix}",
            yaxis=f"y{suffix}",
        )
