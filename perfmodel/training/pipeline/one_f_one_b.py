"""Schedules with whole backwards: GPipe, looped BFS, sequential, 1F1B and interleaved 1F1B.

All forwards, then all backwards: GPipe, and breadth-first looping over several chunks.

Also no pipeline at all: one micro-batch after the other.

Forward and backward by turns: 1F1B, and interleaved over several chunks of each stage.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.errors import Fault
from perfmodel.training.pipeline.pass_actions import (
    MICRO_BATCHES,
    SECTION,
    PassAction,
    PipelineSchedule,
    StageActions,
    StageWriter,
    chunks_of,
    count_of,
    every_stage,
    require,
    sizes_of,
)

SEQUENTIAL = "sequential"
"""Name of passes without a pipeline: one process runs those of all stages."""


def gpipe(stages: int, micro_batches: int, chunks: int = 1) -> PipelineSchedule:
    """Return GPipe's schedule (Huang et al. 2019), with backward in the order of forward.

    So does torch 2.13, ``ScheduleGPipe``.
    Raises `InputError`: a count below 1, or several chunks.
    """
    require(sizes_of(stages, micro_batches, chunks), chunks_of("gpipe", chunks, 1))

    def write(_: int) -> Iterator[PassAction]:
        for micro_batch in range(micro_batches):
            yield PassAction("forward", 0, micro_batch)
        for micro_batch in range(micro_batches):
            yield PassAction("backward", 0, micro_batch)

    actions = every_stage(stages, write)
    return PipelineSchedule("gpipe", stages, micro_batches, 1, "loop", actions)


def looped_bfs(stages: int, micro_batches: int, chunks: int) -> PipelineSchedule:
    """Return the breadth-first schedule (Lamy-Poirier 2023, arXiv:2211.05953).

    Each chunk runs all micro-batches before the next one. In torch 2.13, ``ScheduleLoopedBFS``,
    backward takes them in reverse.
    Raises `InputError`: a count below 1.
    """
    require(sizes_of(stages, micro_batches, chunks))

    def write(_: int) -> Iterator[PassAction]:
        for chunk in range(chunks):
            for micro_batch in range(micro_batches):
                yield PassAction("forward", chunk, micro_batch)
        for chunk in reversed(range(chunks)):
            for micro_batch in reversed(range(micro_batches)):
                yield PassAction("backward", chunk, micro_batch)

    actions = every_stage(stages, write)
    return PipelineSchedule("looped_bfs", stages, micro_batches, chunks, "loop", actions)


def sequential(stages: int, micro_batches: int, chunks: int = 1) -> PipelineSchedule:
    """Return forward and backward of one micro-batch after the other, one stage at a time.

    A module whose layers sit on several GPUs of one process runs so (PyTorch's tutorial on DDP,
    "Combining DDP with Model Parallelism").
    Raises `InputError`: a count below 1, or several chunks.
    """
    require(sizes_of(stages, micro_batches, chunks), chunks_of(SEQUENTIAL, chunks, 1))
    actions = every_stage(
        stages,
        lambda _: (
            PassAction(kind, 0, micro_batch)
            for micro_batch in range(micro_batches)
            for kind in ("forward", "backward")
        ),
    )
    return PipelineSchedule(SEQUENTIAL, stages, micro_batches, 1, "loop", actions)


def one_forward_one_backward(stages: int, micro_batches: int, chunks: int = 1) -> PipelineSchedule:
    """Return 1F1B (Narayanan et al. 2019; "PipeDream-Flush").

    Raises `InputError`: a count below 1, or several chunks.
    """
    require(sizes_of(stages, micro_batches, chunks), chunks_of("1f1b", chunks, 1))

    def write(stage: int) -> StageActions:
        writer = StageWriter()
        warm_up = min(stages - 1 - stage, micro_batches)
        for _ in range(warm_up):
            writer.forward(0)
        for _ in range(micro_batches - warm_up):
            writer.forward(0)
            writer.backward(0)
        for _ in range(warm_up):
            writer.backward(0)
        return tuple(writer.actions)

    actions = every_stage(stages, write)
    return PipelineSchedule("1f1b", stages, micro_batches, 1, "loop", actions)


def interleaved(
    stages: int, micro_batches: int, chunks: int, group_size: int | None = None
) -> PipelineSchedule:
    """Return interleaved 1F1B (Narayanan et al. 2021), as Megatron-Core 0.16 runs it.

    `group_size`: micro-batches that a chunk runs in a row
        (``microbatch_group_size_per_vp_stage``); by default as many as stages, or where these do
        not divide the micro-batches, as many as torch 2.13 takes (`torch_group_size`).
    Raises `InputError`: a count below 1, one chunk, micro-batches that do not fill groups.
    """
    require(
        sizes_of(stages, micro_batches, chunks),
        count_of(f"{SECTION}.chunks", chunks, 2, ": with one, the schedule is 1f1b"),
    )
    if group_size is None:
        require(check_rounds(stages, micro_batches))
        group_size = torch_group_size(stages, micro_batches)
    else:
        require(_groups(stages, micro_batches, group_size))
    order = chunk_order(micro_batches, chunks, group_size)

    def write(stage: int) -> StageActions:
        writer = StageWriter()
        warm_up = min(2 * (stages - 1 - stage) + (chunks - 1) * group_size, len(order))
        for chunk in order[:warm_up]:
            writer.forward(chunk)
        for forward, backward in zip(order[warm_up:], order, strict=False):
            writer.forward(forward)
            writer.backward(chunks - 1 - backward)
        for backward in order[len(order) - warm_up :]:
            writer.backward(chunks - 1 - backward)
        return tuple(writer.actions)

    actions = every_stage(stages, write)
    return PipelineSchedule("interleaved", stages, micro_batches, chunks, "loop", actions)


def chunk_order(micro_batches: int, chunks: int, group_size: int) -> tuple[int, ...]:
    """Chunks in the order of their forwards: group after group, within one chunk after chunk.

    Backward takes the chunks in reverse. The last group may be smaller.
    """
    return tuple(
        chunk
        for first in range(0, micro_batches, group_size)
        for chunk in range(chunks)
        for _ in range(first, min(first + group_size, micro_batches))
    )


def torch_group_size(stages: int, micro_batches: int) -> int:
    """Micro-batches of a round in torch 2.13, ``ScheduleInterleaved1F1B``: about one a stage."""
    return micro_batches // max(1, micro_batches // stages)


def check_rounds(stages: int, micro_batches: int) -> Iterator[Fault]:
    """Fault of micro-batches that do not fill rounds of equally many."""
    rounds = max(1, micro_batches // stages)
    if micro_batches % rounds:
        allowed = f"a multiple of the {stages} stages, or of the {rounds} rounds that they make"
        yield Fault(MICRO_BATCHES, str(micro_batches), allowed)


def _groups(stages: int, micro_batches: int, group_size: int) -> Iterator[Fault]:
    """Faults as Megatron-Core 0.16 finds them (schedules.py)."""
    if not stages <= group_size <= micro_batches:
        allowed = f"from {stages} (stages) to {micro_batches} (micro-batches)"
        yield Fault(f"{SECTION}.micro_batch_group", str(group_size), allowed)
    elif 0 < micro_batches % group_size < stages:
        remainder = micro_batches % group_size
        allowed = f"what leaves no remainder of {micro_batches} micro-batches, or {stages} or more"
        yield Fault(f"{SECTION}.micro_batch_group", f"{group_size}: leaves {remainder}", allowed)
