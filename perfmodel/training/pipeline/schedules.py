"""The schedules by name: how each is made, how many chunks it has, and what it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.training.pipeline.one_f_one_b import (
    gpipe,
    interleaved,
    looped_bfs,
    one_forward_one_backward,
    sequential,
)
from perfmodel.training.pipeline.pass_actions import (
    MICRO_BATCHES,
    SECTION,
    Layout,
    PipelineSchedule,
    require,
    sizes_of,
)
from perfmodel.training.pipeline.zero_bubble import (
    dualpipe,
    dualpipe_v,
    interleaved_zero_bubble,
    zb_h1,
    zb_h2,
    zb_v,
)


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule.

    `title`: what it is called in sentences.
    `make`: from stages, micro-batches, chunks.
    `chunks`: of each stage; None: any number from 2.
    """

    title: str
    make: Callable[[int, int, int], PipelineSchedule]
    layout: Layout = "loop"
    chunks: int | None = 1


SCHEDULES: Mapping[str, ScheduleRow] = {
    "gpipe": ScheduleRow("GPipe", gpipe),
    "1f1b": ScheduleRow("1F1B", one_forward_one_backward),
    "interleaved": ScheduleRow("interleaved 1F1B", interleaved, chunks=None),
    "looped_bfs": ScheduleRow("breadth-first", looped_bfs, chunks=None),
    "zb_h1": ScheduleRow("ZB-H1", zb_h1),
    "zb_h2": ScheduleRow("ZB-H2", zb_h2),
    "interleaved_zero_bubble": ScheduleRow(
        "interleaved zero bubble", interleaved_zero_bubble, chunks=None
    ),
    "zb_v": ScheduleRow("ZB-V", zb_v, "v", 2),
    "sequential": ScheduleRow("one GPU after the other", sequential),
    "dualpipe": ScheduleRow("DualPipe", dualpipe, "bidirectional", 2),
    "dualpipe_v": ScheduleRow("DualPipeV", dualpipe_v, "v", 2),
}


MOST_PASSES = 50_000
"""Passes of all stages together that a step may have. A pass of a 405B model in four dimensions is
13 tasks; extrapolated from 106,020 tasks, as many passes take ten minutes and 1.6 GiB for a `run`
(reports/benchmarks/crowded)."""


def make_schedule(
    kind: str,
    stages: int,
    micro_batches: int,
    chunks: int | None = None,
    *,
    micro_batch_group: int | None = None,
) -> PipelineSchedule:
    """Return a schedule by name.

    `chunks`: of each stage; by default as many as the schedule has, 2 where it may have any number.
    `micro_batch_group`: of "interleaved".
    Raises `InputError`: no such schedule, counts that it does not allow, or more than
        `MOST_PASSES` passes.
    """
    if kind not in SCHEDULES:
        allowed = allowed_names(SCHEDULES, kind)
        raise InputError(Fault(f"{SECTION}.schedule", repr(kind), allowed))
    row = SCHEDULES[kind]
    number = (row.chunks or 2) if chunks is None else chunks
    _check_passes(stages, micro_batches, number)
    if kind == "interleaved":
        return interleaved(stages, micro_batches, number, micro_batch_group)
    if micro_batch_group is not None:
        raise InputError(
            Fault(f"{SECTION}.micro_batch_group", str(micro_batch_group), "with interleaved only")
        )
    require(sizes_of(stages, micro_batches, number))
    return row.make(stages, micro_batches, number)


def _check_passes(stages: int, micro_batches: int, chunks: int) -> None:
    """Refuse schedules whose simulation would take many minutes."""
    each = 2 * stages * chunks
    if each * micro_batches > MOST_PASSES:
        request = f"{micro_batches:,} micro-batches, {each * micro_batches:,} passes"
        parts = f"{stages} stages of {chunks} chunk{'s' if chunks > 1 else ''}"
        allowed = (
            f"at most {MOST_PASSES:,} passes, {MOST_PASSES // each:,} micro-batches on {parts}"
        )
        raise InputError(Fault(MICRO_BATCHES, request, allowed))
