"""When each pass of a pipeline schedule runs where communication is free.

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
        """Return the time of a pass."""
        time: Number = getattr(self, kind)
        return time


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
        end = max([spans[-1][1] if spans else 0, *(ready[source] for source in inputs)])
        for each in together:
            mine = times if isinstance(times, PassTimes) else times[stage, each.chunk]
            spans.append((end, end + mine.of(each.kind)))
            end = spans[-1][1]
        for each in together:
            kind: Literal["forward", "gradient"] = (
                "forward" if each.kind == "forward" else "gradient"
            )
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
