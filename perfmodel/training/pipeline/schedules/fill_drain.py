"""All forwards, then all backwards: GPipe, and breadth-first looping over several chunks.

Also no pipeline at all: one micro-batch after the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.training.pipeline.schedules.pass_actions import (
    PassAction,
    PipelineSchedule,
    chunks_of,
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
