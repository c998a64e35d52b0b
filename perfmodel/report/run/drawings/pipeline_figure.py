"""Picture of a pipeline: stages below each other, passes by micro-batch, bubbles empty."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from perfmodel.report.common.figures import axis_layout, bar_times, new_figure, time_unit
from perfmodel.report.common.palette import WORK
from perfmodel.report.run.drawings.pipeline_layout import (
    COLLECTIVE,
    KINDS,
    MESSAGE,
    Block,
    PipelinePicture,
    pipeline_picture,
)
from perfmodel.studies.run.result.model import SizeResult

if TYPE_CHECKING:
    import plotly.graph_objects as go

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
