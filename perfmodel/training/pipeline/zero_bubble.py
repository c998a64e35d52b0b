"""Schedules that split backward: zero bubble, DualPipe, and its half as a V.

Zero bubble (Qi et al. 2024, arXiv:2401.10241): weight gradients fill what would be bubbles.

Backward is split: the stage before waits for the gradients of inputs alone.

DualPipe (DeepSeek-V3 report, arXiv:2412.19437, 3.2.1), and its half as a V.

The order is that of DeepSeek's implementation (github.com/deepseek-ai/DualPipe, ``dualpipe.py``),
and for the V of torch 2.13, ``ScheduleDualPipeV``. Forward of a micro-batch is joined with backward
of another, so that each hides what the other communicates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfmodel.errors import Fault
from perfmodel.training.pipeline.one_f_one_b import (
    check_rounds,
    chunk_order,
    torch_group_size,
)
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


def zb_h1(stages: int, micro_batches: int, chunks: int = 1) -> PipelineSchedule:
    """Return ZB-H1: 1F1B's forwards, and weight gradients put off by as many as stages before.

    No more micro-batches are in flight than with 1F1B.
    Raises `InputError`: a count below 1, or several chunks.
    """
    require(sizes_of(stages, micro_batches, chunks), chunks_of("zb_h1", chunks, 1))
    actions = every_stage(
        stages, lambda stage: _put_off(stages, stage, chunk_order(micro_batches, 1, 1), 1, 0)
    )
    return PipelineSchedule("zb_h1", stages, micro_batches, 1, "loop", actions)


def zb_h2(stages: int, micro_batches: int, chunks: int = 1) -> PipelineSchedule:
    """Return ZB-H2: as many forwards as fit before the first backward, and twice as much put off.

    Each stage begins and ends one pass after the one before, without a bubble where all passes
    take as long. Stages hold up to 2 P - 1 micro-batches. What waits for all stages at the end of a
    step, as a norm of gradients does, takes away what this gains over ZB-H1 (there section 4).
    Raises `InputError`: a count below 1, several chunks, or fewer than 2 P - 1 micro-batches.
    """
    require(sizes_of(stages, micro_batches, chunks), chunks_of("zb_h2", chunks, 1))
    least = 2 * stages - 1
    require(count_of(MICRO_BATCHES, micro_batches, least, ", those that its first stage holds"))
    actions = every_stage(stages, lambda stage: _h2_passes(stages, stage, micro_batches))
    return PipelineSchedule("zb_h2", stages, micro_batches, 1, "loop", actions)


def _h2_passes(stages: int, stage: int, micro_batches: int) -> StageActions:
    writer = StageWriter()
    warm_up = 2 * (stages - 1 - stage) + 1
    for _ in range(warm_up):
        writer.forward(0)
    for number in range(micro_batches):
        writer.backward(0, split=True)
        if number >= 2 * stage:
            writer.weights()
        if warm_up + number < micro_batches:
            writer.forward(0)
    while writer.put_off:
        writer.weights()
    return tuple(writer.actions)


def interleaved_zero_bubble(stages: int, micro_batches: int, chunks: int) -> PipelineSchedule:
    """Return ZB-H1 over several chunks, as torch 2.13 has it (``ScheduleInterleavedZeroBubble``).

    Raises `InputError`: a count below 1, one chunk, micro-batches that do not fill rounds.
    """
    require(
        sizes_of(stages, micro_batches, chunks),
        count_of(f"{SECTION}.chunks", chunks, 2, ": with one, the schedule is zb_h1"),
    )
    require(check_rounds(stages, micro_batches))
    group_size = torch_group_size(stages, micro_batches)
    order = chunk_order(micro_batches, chunks, group_size)
    ahead = (chunks - 1) * group_size
    actions = every_stage(stages, lambda stage: _put_off(stages, stage, order, chunks, ahead))
    name = "interleaved_zero_bubble"
    return PipelineSchedule(name, stages, micro_batches, chunks, "loop", actions)


def _put_off(
    stages: int, stage: int, order: tuple[int, ...], chunks: int, ahead: int
) -> StageActions:
    """Passes of a stage whose weight gradients follow `stage` backwards later."""
    writer = StageWriter()
    warm_up = min(ahead + stages - 1 - stage, len(order))
    for chunk in order[:warm_up]:
        writer.forward(chunk)
    for number, backward in enumerate(order):
        if warm_up + number < len(order):
            writer.forward(order[warm_up + number])
        writer.backward(chunks - 1 - backward, split=True)
        if number >= stage:
            writer.weights()
    while writer.put_off:
        writer.weights()
    return tuple(writer.actions)


def zb_v(stages: int, micro_batches: int, chunks: int = 2) -> PipelineSchedule:
    """Return ZB-V: two chunks in the shape of a V, no bubble where all passes take as long.

    The order is that of torch 2.13, ``ScheduleZBVZeroBubble``: with fewer than 2 P - 1
    micro-batches it is that of 2 P - 1 without those that there are not.
    Raises `InputError`: a count below 1, or other than two chunks.
    """
    require(sizes_of(stages, micro_batches, chunks), chunks_of("zb_v", chunks, 2))
    full = max(2 * stages - 1, micro_batches)
    actions = every_stage(
        stages,
        lambda stage: (a for a in _v_passes(stages, stage, full) if a.micro_batch < micro_batches),
    )
    return PipelineSchedule("zb_v", stages, micro_batches, 2, "v", actions)


def _v_passes(stages: int, stage: int, micro_batches: int) -> StageActions:
    writer = StageWriter()
    for _ in range(2 * (stages - stage) - 1):
        writer.forward(0)
    for _ in range(stage):
        writer.forward(1)
        writer.forward(0)
    for _ in range(stages - stage):
        writer.forward(1)
        _whole_backward(writer, 1)
    # forwards of the first chunk so far
    begun = 2 * stages - stage - 1
    for _ in range(stages, micro_batches):
        if begun < micro_batches:
            writer.forward(0)
            begun += 1
        _whole_backward(writer, 0)
        writer.forward(1)
        _whole_backward(writer, 1)
    for _ in range(stage):
        writer.backward(0, split=True)
        writer.backward(1, split=True)
    for _ in range(stages - stage):
        writer.backward(0, split=True)
        writer.weights(0)
    for chunk in (1, 0):
        for _ in range(micro_batches):
            writer.weights(chunk)
    return tuple(writer.actions)


def _whole_backward(writer: StageWriter, chunk: int) -> None:
    writer.backward(chunk, split=True)
    writer.weights(chunk)


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
        for action in _dual_v_passes(middle, inner, micro_batches // 2):
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
    actions = every_stage(stages, lambda stage: _dual_v_passes(stages, stage, micro_batches))
    return PipelineSchedule("dualpipe_v", stages, micro_batches, 2, "v", actions)


def _even(field_path: str, value: int) -> Iterator[Fault]:
    if value % 2:
        yield Fault(field_path, str(value), "an even number, half each way")


def _dual_v_passes(stages: int, stage: int, micro_batches: int) -> StageActions:
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
