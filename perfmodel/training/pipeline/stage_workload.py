"""Parts of a model as workloads of their own: which blocks each has, and what passes between them.

Which blocks of a model each part of a pipeline holds, as Megatron-Core counts them, or by hand.

What stands before the first block (embeddings) belongs to the first part, and what follows the last
one (head and loss) to the last.

A part of a model as a workload of its own, with its times, and what passes between parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from perfmodel.errors import Fault, InputError
from perfmodel.training.pipeline.pass_actions import (
    SECTION,
    PipelineSchedule,
    count_of,
    require,
)
from perfmodel.workload.memory.activations import WIDE_BYTES, cast_weights
from perfmodel.workload.memory.blocks import block_of, repeated_blocks
from perfmodel.workload.model import ITEM_BYTES, Layer, LayerTimes, Workload


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


@dataclass(frozen=True, slots=True)
class ModelPart:
    """A part of a model.

    `workload`: its layers and their tensors; a tensor that it shares with another part stands in
        both.
    `times`: of its layers.
    `layers`: which of the whole model.
    `shared`: tensors (indices in `workload`) that another part holds, too, and whose gradients both
        add up.
    """

    workload: Workload
    times: LayerTimes
    layers: range
    shared: tuple[int, ...] = ()

    @property
    def shared_elements(self) -> int:
        """Elements of gradients that are added up with another part's."""
        return sum(self.workload.tensors[tensor].numel for tensor in self.shared)


def model_parts(
    workload: Workload,
    times: LayerTimes,
    schedule: PipelineSchedule,
    options: PartitionOptions | None = None,
) -> tuple[ModelPart, ...]:
    """Cut a model into the parts of a pipeline.

    `times`: of the whole model.
    Raises `InputError`: blocks that cannot be dealt out so, a model that does not state what flows
        between its blocks, or one that ties tensors of parts that are neither first nor last.
    """
    layers = part_layers(workload, schedule, options or PartitionOptions())
    if len(layers) == 1:
        return (ModelPart(workload, times, layers[0]),)
    handed = _handed_elements(workload, [mine[-1] for mine in layers[:-1]])
    flows = [workload.input_elements, *handed, workload.output_elements]
    ends = [schedule.place(part, direction)[0] for part, direction in _ends(schedule)]
    borrowed = [frozenset[int]() for _ in layers]
    if ends[0] != ends[1]:  # a stage that holds both has the embedding once
        borrowed = _borrowed(workload, layers)
    owners = _owners(workload, layers)
    parts = []
    for number, mine in enumerate(layers):
        held = {tensor for tensor, owner in owners.items() if owner == number}
        part = _cut(workload, times, mine, held | borrowed[number], borrowed, (number, len(layers)))
        between = replace(
            part.workload, input_elements=flows[number], output_elements=flows[number + 1]
        )
        parts.append(replace(part, workload=between))
    return tuple(parts)


def part_workloads(
    workload: Workload, schedule: PipelineSchedule, options: PartitionOptions
) -> tuple[Workload, ...]:
    """Layers and tensors of each part of a model; faults as of `model_parts`."""
    none, nothing = np.zeros(len(workload.layers)), np.zeros(len(workload.layers), dtype=np.int64)
    times = LayerTimes(none, none, nothing, nothing, 0.0, 0.0, 0, 1.0, 0.0, "")
    return tuple(part.workload for part in model_parts(workload, times, schedule, options))


def handed_bytes(
    parts: Sequence[ModelPart], precision: str, batch: int, held_dtype: str | None = None
) -> tuple[int, ...]:
    """Bytes that a micro-batch of `batch` samples hands from each part to the next, and back.

    The residual stream of a transformer is in fp32 under autocast; else it is, as maps of features
    are, at the precision of the compute.
    """
    whole = parts[0].workload
    casts = whole.stream_elements > 0 and cast_weights(whole, precision, held_dtype)
    item_bytes = WIDE_BYTES if casts else ITEM_BYTES[precision]
    return tuple(round(batch * part.workload.output_elements) * item_bytes for part in parts[:-1])


def _handed_elements(workload: Workload, ends: Sequence[int]) -> list[float]:
    """Elements that each part hands to the next, by the last layer of each part but the last.

    Raises `InputError`: a model that does not state them.
    """
    handed = [workload.layers[end].output_elements or workload.stream_elements for end in ends]
    if not all(handed):
        text = f"{workload.name!r}, which does not state what flows between its blocks"
        allowed = "a decoder, an encoder, a ResNet or a VGG of the zoo"
        raise InputError(Fault("model", text, allowed))
    return handed


def _ends(schedule: PipelineSchedule) -> tuple[tuple[int, int], tuple[int, int]]:
    """First and last part, and which way they are run where both can stand on one stage."""
    return (0, 0), (schedule.parts - 1, int(schedule.layout == "bidirectional"))


def _owners(workload: Workload, layers: Sequence[range]) -> dict[int, int]:
    """Part of each tensor: of its layer, or for frozen ones that of the block they stand in."""
    part_of = {layer: part for part, mine in enumerate(layers) for layer in mine}
    owners = {
        tensor: part_of[index]
        for index, layer in enumerate(workload.layers)
        for tensor in layer.tensors
    }
    blocks = {block_of(layer.name): part_of[i] for i, layer in enumerate(workload.layers)}
    for index, tensor in enumerate(workload.tensors):
        block = block_of(tensor.name)
        owners.setdefault(index, 0 if block is None else blocks.get(block, 0))
    return owners


def _borrowed(workload: Workload, layers: Sequence[range]) -> list[frozenset[int]]:
    """Tensors that each part uses and another trains: a head tied to the embedding.

    Such a layer states the elements of a weight that is not among its tensors.
    """
    tables = {
        workload.tensors[tensor].numel: tensor
        for layer in workload.layers[:1]
        for tensor in layer.tensors
        if len(workload.tensors[tensor].shape) == 2
    }
    borrowed = []
    for number, mine in enumerate(layers):
        own = {tensor for index in mine for tensor in workload.layers[index].tensors}
        tied = {
            tables[round(layer.weight_elements)]
            for layer in (workload.layers[index] for index in mine)
            if _lacks_weight(workload, layer) and round(layer.weight_elements) in tables
        } - own
        if tied and number != len(layers) - 1:
            text = f"{workload.name!r}, whose part {number + 1} shares the embedding"
            raise InputError(Fault("model", text, "one that shares it with the last part alone"))
        borrowed.append(frozenset(tied))
    return borrowed


def _lacks_weight(workload: Workload, layer: Layer) -> bool:
    own = sum(
        workload.tensors[t].numel for t in layer.tensors if len(workload.tensors[t].shape) > 1
    )
    return layer.matmul_flops > 0 and 0 < layer.weight_elements != own


def _cut(
    workload: Workload,
    times: LayerTimes,
    mine: range,
    held: set[int],
    borrowed: Sequence[frozenset[int]],
    place: tuple[int, int],
) -> ModelPart:
    number, parts = place
    lent = frozenset().union(*borrowed)
    order = sorted(held)
    index = {tensor: position for position, tensor in enumerate(order)}
    layers = [
        replace(layer, tensors=tuple(index[tensor] for tensor in layer.tensors))
        for layer in (workload.layers[i] for i in mine)
    ]
    for at, i in enumerate(mine):  # its gradient is ready where the product's backward is
        users = borrowed[number] if _lacks_weight(workload, workload.layers[i]) else ()
        tied = tuple(
            index[t]
            for t in users
            if workload.tensors[t].numel == round(workload.layers[i].weight_elements)
        )
        layers[at] = replace(layers[at], tensors=(*tied, *layers[at].tensors))
    part = replace(
        workload,
        name=f"{workload.name}, part {number + 1} of {parts}",
        tensors=tuple(workload.tensors[tensor] for tensor in order),
        layers=tuple(layers),
    )
    shared = tuple(index[tensor] for tensor in order if tensor in lent)
    return ModelPart(part, part_times(times, workload, part, mine), mine, shared)


def part_times(times: LayerTimes, whole: Workload, part: Workload, mine: range) -> LayerTimes:
    """Times of consecutive layers of a model; the optimizer's by the elements that it updates."""
    layers = slice(mine.start, mine.stop)
    share = _trained(part) / max(1, _trained(whole))
    saved = [layer.saved_elements + layer.stream_elements for layer in whole.layers]
    kept_share = sum(saved[layers]) / sum(saved) if sum(saved) else len(mine) / len(saved)

    def of(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else values[layers]

    return replace(
        times,
        forward_s=times.forward_s[layers],
        backward_s=times.backward_s[layers],
        forward_kernels=times.forward_kernels[layers],
        backward_kernels=times.backward_kernels[layers],
        optimizer_s=times.optimizer_s * share,
        optimizer_kernels=max(1, round(times.optimizer_kernels * share)),
        activation_bytes=times.activation_bytes * kept_share,
        matrix_forward_s=of(times.matrix_forward_s),
        matrix_backward_s=of(times.matrix_backward_s),
        weight_gradient_s=of(times.weight_gradient_s),
    )


def _trained(workload: Workload) -> int:
    return sum(workload.tensors[tensor].numel for tensor in workload.ready_order)
