"""Picture of a pipeline: stages below each other, passes by micro-batch, bubbles empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from perfmodel.report.common.figures import axis_layout, bar_times, new_figure, time_unit
from perfmodel.report.common.palette import WORK
from perfmodel.studies.run.result.dimension_use import StageUse
from perfmodel.studies.run.result.model import SizeResult
from perfmodel.timeline import Span, Timeline

if TYPE_CHECKING:
    import plotly.graph_objects as go


MOST_STAGES = 16
"""Stages drawn at most: the first, the last and some between them."""

_MOST_BLOCKS = 26
"""Passes of a stage beside each other that can be told apart in a picture."""

_GAP = 1 / 5000
"""Blocks of one pass are drawn as one if less than this share of a window lies between them."""

_FORWARD, _BACKWARD, _WEIGHTS = "forward", "backward", "gradients of weights"
COLLECTIVE, MESSAGE = "exposed collective of layers", "messages and gradients"
KINDS = (_FORWARD, _BACKWARD, _WEIGHTS, COLLECTIVE, "optimizer", MESSAGE)
"""Kinds of block, in the order of the legend."""


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
    assert point.mixture is not None
    stages = _chosen(point.mixture.stages)
    rows = {each.rank_class: row for row, each in enumerate(stages)}
    passes = [s for s in point.timeline.spans if s.kind in (_FORWARD, _BACKWARD)]
    origin = min(span.start_s for span in passes)
    end = max(span.end_s for span in point.timeline.spans if span.rank_class in rows) - origin
    blocks = [
        _block_of(span, rows[span.rank_class], kind, origin)
        for span in point.timeline.spans
        if (kind := _kind(span, point.timeline)) in KINDS
        and span.rank_class in rows
        and span.end_s > span.start_s
    ]
    windows = _windows(blocks, end)
    gap_s = _GAP * (windows[0][1] - windows[0][0])
    visible = [
        b for b in blocks if any(b.start_s < high and b.end_s > low for low, high in windows)
    ]
    joined = tuple(_joined(sorted(visible, key=lambda b: (b.row, b.kind, b.start_s)), gap_s))
    return PipelinePicture(tuple(each.stage for each in stages), joined, windows)


def _chosen(stages: Sequence[StageUse]) -> list[StageUse]:
    """The first and the last stage, and evenly many between them."""
    if len(stages) <= MOST_STAGES:
        return list(stages)
    last = len(stages) - 1
    return [stages[round(at * last / (MOST_STAGES - 1))] for at in range(MOST_STAGES)]


def _kind(span: Span, timeline: Timeline) -> str | None:
    """Kind of block of a span; None of a message that a stage sends: its receiver has it."""
    if span.kind == "communication":
        if timeline.stream_kinds[span.stream] == "compute":
            return COLLECTIVE
        return None if _sends(span, timeline) else MESSAGE
    return _WEIGHTS if span.role == "weight_gradient" else span.kind


def _sends(span: Span, timeline: Timeline) -> bool:
    """Whether a span is the sender's end of a message, whose rank is the first of its group."""
    first = timeline.groups[span.rank_class, span.communicator].first[0]
    return span.op == "send" and first == timeline.first_rank[span.rank_class]


def _block_of(span: Span, row: int, kind: str, origin: float) -> Block:
    number = span.micro_batch if kind in (_FORWARD, _BACKWARD, _WEIGHTS) else None
    return Block(row, kind, span.name, number, span.start_s - origin, span.end_s - origin)


def _joined(blocks: Sequence[Block], gap_s: float) -> list[Block]:
    """Join neighbours of one kind and micro-batch that nearly touch."""
    joined: list[Block] = []
    for block in blocks:
        last = joined[-1] if joined else None
        same_pass = last is not None and (last.row, last.kind, last.micro_batch) == (
            block.row,
            block.kind,
            block.micro_batch,
        )
        if last is not None and same_pass and block.start_s - last.end_s <= gap_s:
            joined[-1] = replace(last, end_s=max(last.end_s, block.end_s))
        else:
            joined.append(block)
    return joined


def _windows(blocks: Sequence[Block], end_s: float) -> tuple[tuple[float, float], ...]:
    """The whole step, or its begin and its end: each as long as the pipeline takes to fill.

    That is until the first stage has run a few backwards, for as many passes as can be drawn.
    """
    spans = sorted(
        (b for b in blocks if b.row == 0 and b.micro_batch is not None), key=lambda b: b.start_s
    )
    runs = groupby(spans, key=lambda block: (block.kind, block.micro_batch))
    passes = [next(run) for _, run in runs]
    if len(passes) <= 2 * _MOST_BLOCKS:
        return ((0.0, end_s),)
    backward = next(block.start_s for block in passes if block.kind != _FORWARD)
    period = sorted(b.start_s - a.start_s for a, b in pairwise(passes))[len(passes) // 2]
    length = min(max(1.25 * backward, period * _MOST_BLOCKS), end_s / 2)
    return ((0.0, length), (end_s - length, end_s))


PIPELINE_HINT = (
    "Numbers are micro-batches, counted from 0; empty space is the bubble. Thin bars below a "
    "stage are what it receives from its neighbours, and data-parallel collectives. Drag "
    "across the picture to zoom, double-click to go back; timeline.json holds every stage and "
    "every pass."
)

_COLOURS = {
    "forward": WORK["forward"],
    "backward": WORK["backward"],
    "gradients of weights": WORK["slowdown"],
    COLLECTIVE: WORK["exposed communication"],
    "optimizer": WORK["optimizer"],
    MESSAGE: WORK["communication"],
}
_ROW_PIXELS, _PANEL_PIXELS = 24, 62
_HEIGHT, _THIN = 0.66, 0.14
"""Of a block, and of what is received; rows are 1 apart."""
_LEAST_TEXT = 9
"""Pixels: smaller numbers are left out."""


def draw_pipeline(point: SizeResult) -> go.Figure:
    """Draw the passes of a step; its begin above its end where it is long."""
    picture = pipeline_picture(point)
    unit, scale = time_unit(picture.windows[0][1])
    panels = len(picture.windows)
    rows = len(picture.stages)
    figure = new_figure(
        20 + panels * (_PANEL_PIXELS + _ROW_PIXELS * rows),
        barmode="overlay",
        uniformtext={"minsize": _LEAST_TEXT, "mode": "hide"},
    )
    for panel in range(panels):
        _add_panel(figure, picture, panel, unit, scale)
    figure.update_layout(dragmode="zoom")
    return figure


def _add_panel(
    figure: go.Figure, picture: PipelinePicture, panel: int, unit: str, scale: float
) -> None:
    low, high = picture.windows[panel]
    visible = [b for b in picture.blocks if b.start_s < high and b.end_s > low]
    suffix = "" if panel == 0 else f"{panel + 1}"
    for kind in KINDS:
        _add_blocks(
            figure, [b for b in visible if b.kind == kind], (low, high), suffix, (unit, scale)
        )
    panels, labels = len(picture.windows), [f"{stage}" for stage in picture.stages]
    height = (1 - 0.14 * (panels - 1)) / panels
    top = 1 - panel * (height + 0.14)
    names = ("the step",) if panels == 1 else ("the first passes", "the last passes")
    figure.update_layout(
        {
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
    )


def _number(block: Block, window: tuple[float, float]) -> str:
    """The micro-batch of a pass; nothing where the window shows less than half of it.

    Numbers of blocks that reach over the edge would be cut, or stand on their neighbours'.
    """
    start_s, end_s = _clipped(block, window)
    is_whole = end_s - start_s > 0.5 * (block.end_s - block.start_s)
    return f"{block.micro_batch}" if is_whole and block.micro_batch is not None else ""


def _clipped(block: Block, window: tuple[float, float]) -> tuple[float, float]:
    return max(block.start_s, window[0]), min(block.end_s, window[1])


def _add_blocks(
    figure: go.Figure,
    blocks: Sequence[Block],
    window: tuple[float, float],
    suffix: str,
    axis: tuple[str, float],
) -> None:
    if not blocks:
        return
    unit, scale = axis
    ends_s = [_clipped(block, window) for block in blocks]
    kind, thin = blocks[0].kind, blocks[0].kind == MESSAGE
    figure.add_bar(
        orientation="h",
        base=[start_s / scale for start_s, _ in ends_s],
        x=[(end_s - start_s) / scale for start_s, end_s in ends_s],
        y=[block.row + (0.42 if thin else 0.0) for block in blocks],
        width=_THIN if thin else _HEIGHT,
        name=kind,
        showlegend=not suffix or all(trace.name != kind for trace in figure.data),
        marker={
            "color": _COLOURS[kind],
            # an edge of its own colour keeps what is short visible
            "line": {"color": _COLOURS[kind], "width": 0.6}
            if blocks[0].micro_batch is None
            else {"color": "white", "width": 0.4},
        },
        text=[_number(block, window) for block in blocks],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        constraintext="inside",
        hovertext=[_hover(block) for block in blocks],
        hovertemplate=f"<b>{kind}</b><br>%{{hovertext}}{bar_times(unit)}<extra></extra>",
        xaxis=f"x{suffix}",
        yaxis=f"y{suffix}",
    )


def _hover(block: Block) -> str:
    """What is shown when a block is pointed at, between its kind and its times."""
    if block.micro_batch is not None:
        return f"micro-batch {block.micro_batch}"
    return escape(block.name, quote=False)
