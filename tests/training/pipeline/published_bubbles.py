"""Bubbles of pipeline schedules: measured on spans of passes, and as their papers give them."""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.errors import ScheduleError
from perfmodel.testing.closed_forms import Number, PassTimes, pass_spans
from perfmodel.training.pipeline.pass_actions import PipelineSchedule


def stage_bubbles(
    schedule: PipelineSchedule, times: PassTimes | Mapping[tuple[int, int], PassTimes]
) -> tuple[Number, ...]:
    """Idle time of each stage between its first and its last pass."""
    return tuple(
        spans[-1][1] - spans[0][0] - sum(end - begin for begin, end in spans)
        for spans in pass_spans(schedule, times)
    )


def step_bubble(
    schedule: PipelineSchedule, times: PassTimes | Mapping[tuple[int, int], PassTimes]
) -> Number:
    """Time of the step, from the first pass to the last of all, over the busiest stage's passes."""
    spans = pass_spans(schedule, times)
    busy = max(sum(end - begin for begin, end in stage) for stage in spans)
    begin, end = min(stage[0][0] for stage in spans), max(stage[-1][1] for stage in spans)
    return end - begin - busy


def published_bubble(kind: str, stages: int, times: PassTimes) -> Number:
    """Bubble of a schedule on uniform stages, by its paper.

    Of the step (`step_bubble`); of ZB-V and ZB-H2, whose stages begin and end one after the other,
    of a stage (`stage_bubbles`). GPipe, 1F1B: (P-1)(F+B), Narayanan et al. 2021, 2.2.1; with v
    chunks of 1/v the time the same, there 2.2.2, and breadth-first, Lamy-Poirier 2023. ZB-H1:
    (P-1)(F+I-W) where W is no longer than F and I, the parts of B (Qi et al. 2024, table 1); in
    chunks the same of a chunk; ZB-H2: (P-1)(F+I-2W), there. ZB-V: none where F = I = W (there
    section 6), from 2 P - 1 micro-batches on. DualPipe: (P/2-1)(F&B+B-3W)
    (DeepSeek-V3 report, table 2), with F&B = F+B where nothing is overlapped; its figure has
    forwards as long as gradients of inputs, and the formula is exact there where W is no longer.
    DualPipeV has as many parts on half as many stages.

    Parameters
    ----------
    kind : str
        As in `perfmodel.training.pipeline.schedules.SCHEDULES`.
    stages : int
    times : PassTimes
        Of one chunk.

    Raises
    ------
    ScheduleError
        A schedule, or times, for which none is published.
    """
    forward, inputs, weights = times.forward, times.input_gradient, times.weight_gradient
    short = weights <= min(forward, inputs)
    if kind in ("gpipe", "1f1b", "interleaved", "looped_bfs"):
        return (stages - 1) * (forward + times.backward)
    if kind in ("zb_h1", "interleaved_zero_bubble") and short:
        return (stages - 1) * (forward + inputs - weights)
    if kind == "zb_h2" and short:
        return (stages - 1) * (forward + inputs - 2 * weights)
    if kind == "zb_v" and forward == inputs == weights:
        return 0
    if kind in ("dualpipe", "dualpipe_v") and forward == inputs and short:
        halves = stages // 2 if kind == "dualpipe" else stages
        return (halves - 1) * (forward + 2 * times.backward - 3 * weights)
    raise ScheduleError(f"no bubble of {kind!r} is published for {times}")
