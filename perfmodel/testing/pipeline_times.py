"""When each pass of a pipeline schedule runs where communication is free, and published bubbles.

The recurrence is exact for exact times (`fractions.Fraction`): a pass begins when its stage has
ended the pass before and its input is there. No engine, no streams: what simulations are held to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from perfmodel.errors import ScheduleError
from perfmodel.training.pipeline.pass_actions import (
    PassAction,
    PassKind,
    PipelineSchedule,
)

Number = Fraction | float | int
Span = tuple[Number, Number]
Output = tuple[Literal["forward", "gradient"], int, int, int]
"""What a pass hands on: kind, stage, chunk, micro-batch."""


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Time of each pass of one chunk, whatever the unit.

    `input_gradient`, `weight_gradient`: the parts of backward.
    """

    forward: Number
    input_gradient: Number
    weight_gradient: Number

    @property
    def backward(self) -> Number:
        """Both parts of backward."""
        return self.input_gradient + self.weight_gradient

    def of(self, kind: PassKind) -> Number:
        """Time of a pass."""
        times: Mapping[PassKind, Number] = {
            "forward": self.forward,
            "backward": self.backward,
            "input_gradient": self.input_gradient,
            "weight_gradient": self.weight_gradient,
        }
        return times[kind]


def pass_spans(
    schedule: PipelineSchedule, times: PassTimes | Mapping[tuple[int, int], PassTimes]
) -> tuple[tuple[Span, ...], ...]:
    """Begin and end of each pass, by stage in the order of `schedule.actions`.

    Parameters
    ----------
    schedule : PipelineSchedule
    times : PassTimes or mapping
        Of each stage and chunk, or of all.

    Raises
    ------
    ScheduleError
        Passes that wait for each other in a circle: the message names the first of each stage.
    """
    ready: dict[Output, Number] = {}
    spans: list[list[Span]] = [[] for _ in range(schedule.stages)]
    while any(len(done) < len(schedule.actions[s]) for s, done in enumerate(spans)):
        ran = [
            _run_stage(schedule, stage, times, ready, spans[stage])
            for stage in range(schedule.stages)
        ]
        if not any(ran):
            waiting = [
                f"stage {stage}: {schedule.actions[stage][len(done)]}"
                for stage, done in enumerate(spans)
                if len(done) < len(schedule.actions[stage])
            ]
            raise ScheduleError("these passes wait for each other: " + "; ".join(waiting))
    return tuple(map(tuple, spans))


def _run_stage(
    schedule: PipelineSchedule,
    stage: int,
    times: PassTimes | Mapping[tuple[int, int], PassTimes],
    ready: dict[Output, Number],
    spans: list[Span],
) -> bool:
    """Run the passes of a stage whose inputs are there; return whether there were any."""
    actions, before = schedule.actions[stage], len(spans)
    while len(spans) < len(actions):
        first = len(spans)
        together = actions[first : first + 1 + actions[first].joined]
        inputs = [source for each in together for source in inputs_of(schedule, stage, each)]
        if any(source not in ready for source in inputs):
            break
        begin = max([spans[-1][1] if spans else 0, *(ready[source] for source in inputs)])
        end = begin
        for each in together:
            mine = times if isinstance(times, PassTimes) else times[stage, each.chunk]
            spans.append((end, end + mine.of(each.kind)))
            end = spans[-1][1]
        for each in together:
            kind: Literal["forward", "gradient"]
            kind = "forward" if each.kind == "forward" else "gradient"
            if each.kind != "weight_gradient":
                ready[kind, stage, each.chunk, each.micro_batch] = end
    return len(spans) > before


def inputs_of(schedule: PipelineSchedule, stage: int, action: PassAction) -> tuple[Output, ...]:
    """What a pass needs: of its neighbour, and of its own stage."""
    chunk, micro_batch = action.chunk, action.micro_batch
    before, behind = schedule.before(stage, chunk), schedule.behind(stage, chunk)
    if action.kind == "forward":
        return () if before is None else (("forward", *before, micro_batch),)
    if action.kind == "weight_gradient":
        return (("gradient", stage, chunk, micro_batch),)
    handed = () if behind is None else (("gradient", *behind, micro_batch),)
    return (("forward", stage, chunk, micro_batch), *handed)


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
