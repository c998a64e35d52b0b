"""Which blocks of a model each part of a pipeline holds, as Megatron-Core counts them, or by hand.

What stands before the first block (embeddings) belongs to the first part, and what follows the last
one (head and loss) to the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfmodel.errors import Fault, InputError
from perfmodel.training.pipeline.schedules.pass_actions import (
    SECTION,
    PipelineSchedule,
    count_of,
    require,
)
from perfmodel.workload.memory.blocks import repeated_blocks
from perfmodel.workload.model import Workload


@dataclass(frozen=True, slots=True)
class PartitionOptions:
    """How blocks are dealt out.

    `blocks_per_part`: of each part of the model, in the order of forward; all else is unused.
    `first_stage_blocks`, `last_stage_blocks`: of these stages, over all their chunks
        (``num_layers_in_first_pipeline_stage``, ``num_layers_in_last_pipeline_stage``); the others
        share what remains.
    `embedding_as_block`, `loss_as_block`: these count as a block each, so that the first and the
        last part have one block less (``account_for_embedding_in_pipeline_split``,
        ``account_for_loss_in_pipeline_split``).
    """

    blocks_per_part: tuple[int, ...] | None = None
    first_stage_blocks: int | None = None
    last_stage_blocks: int | None = None
    embedding_as_block: bool = False
    loss_as_block: bool = False


def part_layers(
    workload: Workload, schedule: PipelineSchedule, options: PartitionOptions
) -> tuple[range, ...]:
    """Layers of each part of the model, in the order of forward.

    Raises `InputError`: fewer blocks than parts, or a number that cannot be dealt out so.
    """
    blocks = repeated_blocks(workload)
    counted = len(blocks) + options.embedding_as_block + options.loss_as_block
    if counted < schedule.parts:
        allowed = f"at most the {len(blocks)} blocks of {workload.name!r}"
        parts_text = f"{schedule.stages} x {schedule.parts // schedule.stages} chunks"
        field = "stages" if schedule.parts == schedule.stages else "chunks"
        raise InputError(Fault(f"{SECTION}.{field}", parts_text, allowed))
    counts = block_counts(len(blocks), schedule, options)
    begins = [*(block.start for block in blocks), blocks[-1].stop]
    ends = [begins[sum(counts[: part + 1])] for part in range(len(counts) - 1)]
    starts = [0, *ends, len(workload.layers)]
    return tuple(range(first, last) for first, last in pairwise(starts))


def block_counts(
    blocks: int, schedule: PipelineSchedule, options: PartitionOptions
) -> tuple[int, ...]:
    """Blocks of each part of the model.

    Raises `InputError`: a number that cannot be dealt out so.
    """
    if options.blocks_per_part is not None:
        require(_listed(blocks, schedule.parts, options.blocks_per_part))
        return options.blocks_per_part
    if schedule.stages == 1 and schedule.parts == 1:
        return (blocks,)
    named = (options.first_stage_blocks, options.last_stage_blocks)
    if named == (None, None):
        return _counted(blocks, schedule, options)
    require(_alone(options))
    return _named(blocks, schedule, *named)


def _listed(blocks: int, parts: int, listed: Sequence[int]) -> Iterator[Fault]:
    empty = any(n < (0 < part < parts - 1) for part, n in enumerate(listed))
    if len(listed) != parts or sum(listed) != blocks or empty:
        allowed = (
            f"{parts} whole numbers that add up to {blocks}, the blocks of the model; 0 for the "
            "first and the last at most"
        )
        yield Fault(f"{SECTION}.blocks_per_part", str(list(listed)), allowed)


def _alone(options: PartitionOptions) -> Iterator[Fault]:
    for name in ("embedding_as_block", "loss_as_block"):
        if getattr(options, name):
            yield Fault(f"{SECTION}.{name}", "true", "false beside blocks of first and last stage")


def _counted(blocks: int, schedule: PipelineSchedule, options: PartitionOptions) -> tuple[int, ...]:
    """As many blocks in each part, counting embedding and loss where they shall count."""
    counted = blocks + options.embedding_as_block + options.loss_as_block
    if counted % schedule.parts:
        more = [name for name in ("embedding_as_block", "loss_as_block") if getattr(options, name)]
        with_text = f" with {' and '.join(more)}" if more else ""
        allowed = (
            f"parts that divide {counted}{with_text}, or first_stage_blocks, last_stage_blocks, "
            "blocks_per_part"
        )
        parts_text = f"{schedule.parts} parts of the model"
        raise InputError(Fault(f"{SECTION}.stages", parts_text, allowed))
    counts = [counted // schedule.parts] * schedule.parts
    counts[0] -= options.embedding_as_block
    counts[-1] -= options.loss_as_block
    return tuple(counts)


def _named(
    blocks: int, schedule: PipelineSchedule, first: int | None, last: int | None
) -> tuple[int, ...]:
    """As stated for the first and the last stage, the others as many each."""
    chunks = schedule.parts // schedule.stages
    fixed = {stage: n for stage, n in ((0, first), (schedule.stages - 1, last)) if n is not None}
    fields = {stage: f"{SECTION}.{_name_of(stage)}_stage_blocks" for stage in fixed}
    require(*(count_of(fields[stage], n, chunks) for stage, n in fixed.items()))
    rest, others = blocks - sum(fixed.values()), schedule.stages - len(fixed)
    per_stage = dict.fromkeys(range(schedule.stages), rest // others if others else 0) | fixed
    if rest < others * chunks or (others and rest % others) or (not others and rest):
        fixed_text = " and ".join(f"{n} in the {_name_of(stage)}" for stage, n in fixed.items())
        allowed = f"what leaves for each of {others} other stages as many of {blocks} blocks"
        raise InputError(
            Fault(f"{SECTION}.{_name_of(max(fixed))}_stage_blocks", fixed_text, allowed)
        )
    for stage, number in per_stage.items():
        if number % chunks:
            allowed = f"a multiple of the {chunks} chunks of a stage"
            name = _name_of(stage) if stage in fixed else "first"
            raise InputError(
                Fault(f"{SECTION}.{name}_stage_blocks", f"{number} in a stage", allowed)
            )
    return tuple(per_stage[schedule.place(part)[0]] // chunks for part in range(schedule.parts))


def _name_of(stage: int) -> str:
    return "last" if stage else "first"
