"""DualPipe (DeepSeek-V3 report, arXiv:2412.19437, 3.2.1), and its half as a V.

The order is that of DeepSeek's implementation (github.com/deepseek-ai/DualPipe, ``dualpipe.py``),
and for the V of torch 2.13, ``ScheduleDualPipeV``. Forward of a micro-batch is joined with backward
of another, so that each hides what the other communicates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfmodel.errors import Fault
from perfmodel.training.pipeline.schedules.pass_actions import (
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


def dualpipe(stages: int, micro_batches: int, chunks: int = 2) -> PipelineSchedule:
    """Return DualPipe: half of the micro-batches run from the last stage to the first.

    Stage s holds parts s and P - 1 - s of P, each parameter being held twice in all.
    Raises `InputError`: stages or micro-batches that are odd, fewer than two micro-batches a stage,
        or other than two chunks.
    """
    require(sizes_of(stages, micro_batches, chunks), chunks_of("dualpipe", chunks, 2))
    require(
        _even(f"{SECTION}.stages", stages),
        _even(MICRO_BATCHES, micro_batches),
        count_of(MICRO_BATCHES, micro_batches, 2 * stages, ", twice the stages"),
    )

    def write(stage: int) -> Iterator[PassAction]:
        middle = stages // 2
        inner = min(stage, stages - 1 - stage)
        second_half = int(stage >= middle)
        for action in _v_passes(middle, inner, micro_batches // 2):
            direction = action.chunk ^ second_half
            micro_batch = action.micro_batch + direction * (micro_batches // 2)
            yield replace(action, chunk=direction, micro_batch=micro_batch)

    actions = every_stage(stages, write)
    return PipelineSchedule("dualpipe", stages, micro_batches, 2, "bidirectional", actions)


def dualpipe_v(stages: int, micro_batches: int, chunks: int = 2) -> PipelineSchedule:
    """Return DualPipeV: DualPipe cut in half, so that each parameter is held once.

    Raises `InputError`: fewer than two micro-batches a stage, or other than two chunks.
    """
    require(sizes_of(stages, micro_batches, chunks), chunks_of("dualpipe_v", chunks, 2))
    require(count_of(MICRO_BATCHES, micro_batches, 2 * stages, ", twice the stages"))
    actions = every_stage(stages, lambda stage: _v_passes(stages, stage, micro_batches))
    return PipelineSchedule("dualpipe_v", stages, micro_batches, 2, "v", actions)


def _even(field_path: str, value: int) -> Iterator[Fault]:
    if value % 2:
        yield Fault(field_path, str(value), "an even number, half each way")


def _v_passes(stages: int, stage: int, micro_batches: int) -> StageActions:
    """Passes of a stage; micro-batches enter its chunk 0, turn in the last stage, and leave."""
    writer = StageWriter()
    outer = stages - 1 - stage
    for _ in range(2 * outer):
        writer.forward(0)
    for _ in range(stage + 1):
        writer.forward(0)
        writer.forward(1)
    for _ in range(outer):
        writer.backward(1, split=True)
        writer.weights()
        writer.forward(1)
    for number in range(micro_batches - 2 * stages + stage + 1):
        alone = number == 0 and stage == stages - 1  # so that what follows starts earlier
        writer.forward(0, joined=not alone)
        writer.backward(1)
        writer.forward(1, joined=True)
        writer.backward(0)
    for _ in range(outer):
        writer.backward(1)
        writer.forward(1, joined=True)
        writer.backward(0)
    _drain(writer, stage, outer)
    return tuple(writer.actions)


def _drain(writer: StageWriter, stage: int, outer: int) -> None:
    """Add what follows the last forward; half of the backwards put weight gradients off."""
    passes = 2 * (stage + 1)
    whole = 2 * ((stage + 1) // 2) + (stage % 2 == 0)
    for number in range(passes):
        writer.backward(1 - number % 2, split=number >= whole)
    for _ in range(outer):
        writer.weights()
        writer.backward(0, split=True)
    for _ in range(stage + 1):
        writer.weights()
