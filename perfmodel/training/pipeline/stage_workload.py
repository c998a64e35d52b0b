"""Parts of a model as workloads of their own: which blocks each has, and what passes between them.

Each part of a pipeline holds blocks as Megatron-Core counts them, or as they are stated. What
stands before the first block (embeddings) belongs to the first part, and what follows the last one
(head and loss) to the last; where stages share the vocabulary, table and head are parts of their
own, one for each stage.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from perfmodel.errors import Fault, raise_faults, refuse_if
from perfmodel.training.pipeline.pass_actions import SECTION, PipelineSchedule, count_faults
from perfmodel.workload.kernels.shapes import WIDE_BYTES
from perfmodel.workload.memory.activations import cast_weights
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
    refuse_if(
        (len(blocks) + options.embedding_as_block + options.loss_as_block) < schedule.parts,
        f"{SECTION}.{'stages' if schedule.parts == schedule.stages else 'chunks'}",
        f"{schedule.stages} x {schedule.parts // schedule.stages} chunks",
        f"at most the {len(blocks)} blocks of {workload.name!r}",
    )
    counts = block_counts(len(blocks), schedule, options)
    begins = [*(block.start for block in blocks), blocks[-1].stop]
    ends = [begins[sum(counts[: part + 1])] for part in range(len(counts) - 1)]
    return tuple(range(first, last) for first, last in pairwise([0, *ends, len(workload.layers)]))


def block_counts(
    blocks: int, schedule: PipelineSchedule, options: PartitionOptions
) -> tuple[int, ...]:
    """Blocks of each part of the model.

    Raises `InputError`: a number that cannot be dealt out so.
    """
    if options.blocks_per_part is not None:
        _check_listed(blocks, schedule.parts, options.blocks_per_part)
        return options.blocks_per_part
    if schedule.stages == 1 and schedule.parts == 1:
        return (blocks,)
    ends = ((0, options.first_stage_blocks), (schedule.stages - 1, options.last_stage_blocks))
    fixed = {stage: number for stage, number in ends if number is not None}
    counted = [each for each in ("embedding_as_block", "loss_as_block") if getattr(options, each)]
    if fixed:
        allowed = "false beside blocks of first and last stage"
        raise_faults(Fault(f"{SECTION}.{each}", "true", allowed) for each in counted)
        return _named(blocks, schedule, fixed)
    total = blocks + len(counted)
    with_text = f" with {' and '.join(counted)}" if counted else ""
    refuse_if(
        total % schedule.parts,
        f"{SECTION}.stages",
        f"{schedule.parts} parts of the model",
        f"parts that divide {total}{with_text}, or first_stage_blocks, last_stage_blocks, "
        "blocks_per_part",
    )
    counts = [total // schedule.parts] * schedule.parts
    counts[0] -= options.embedding_as_block
    counts[-1] -= options.loss_as_block
    return tuple(counts)


def _check_listed(blocks: int, parts: int, listed: Sequence[int]) -> None:
    refuse_if(
        len(listed) != parts
        or sum(listed) != blocks
        or any(n < (0 < part < parts - 1) for part, n in enumerate(listed)),
        f"{SECTION}.blocks_per_part",
        str(list(listed)),
        f"{parts} whole numbers that add up to {blocks}, the blocks of the model; 0 for the first "
        "and the last at most",
    )


def _named(blocks: int, schedule: PipelineSchedule, fixed: dict[int, int]) -> tuple[int, ...]:
    """As stated for the first and the last stage, the others as many each."""
    chunks = schedule.parts // schedule.stages
    names = {stage: "last" if stage else "first" for stage in fixed}
    fields = {stage: f"{SECTION}.{name}_stage_blocks" for stage, name in names.items()}
    raise_faults(
        chain.from_iterable(
            count_faults(fields[stage], number, chunks) for stage, number in fixed.items()
        )
    )
    rest, others = blocks - sum(fixed.values()), schedule.stages - len(fixed)
    refuse_if(
        rest < others * chunks or (rest % others if others else rest),
        fields[max(fixed)],
        " and ".join(f"{number} in the {names[stage]}" for stage, number in fixed.items()),
        f"what leaves for each of {others} other stages as many of {blocks} blocks",
    )
    per_stage = dict.fromkeys(range(schedule.stages), rest // others if others else 0) | fixed
    for stage, number in per_stage.items():
        refuse_if(
            number % chunks,
            fields.get(stage, f"{SECTION}.first_stage_blocks"),
            f"{number} in a stage",
            f"a multiple of the {chunks} chunks of a stage",
        )
    return tuple(per_stage[schedule.place(part)[0]] // chunks for part in range(schedule.parts))


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
    parts = cut_model(workload, schedule, options or PartitionOptions())
    if len(parts) == 1:
        return (ModelPart(workload, times, parts[0][1]),)
    return tuple(
        ModelPart(part, part_times(times, workload, part, mine), mine, shared)
        for part, mine, shared in parts
    )


def cut_model(
    workload: Workload, schedule: PipelineSchedule, options: PartitionOptions
) -> list[tuple[Workload, range, tuple[int, ...]]]:
    """Return parts of a model, each with its layers and the tensors that it shares.

    Raises `InputError`: as `model_parts`.
    """
    layers = part_layers(workload, schedule, options)
    if len(layers) == 1:
        return [(workload, layers[0], ())]
    if schedule.layout == "vocabulary":
        table, end = workload.layers[0], len(workload.layers) - 1
        outside = [at for at, each in enumerate(workload.layers) if not block_of(each.name)]
        refuse_if(
            [at for at in outside if workload.layers[at].wide_bytes] != [end]
            or table.matmul_flops
            or not table.weight_elements,
            f"{SECTION}.schedule",
            f"{schedule.name} for {workload.name!r}",
            "1f1b, or a model that begins with its table of tokens and ends with one output layer "
            "and a loss that is not fused with it",
        )
        layers = (layers[0][1:], *layers[1:-1], layers[-1][:-1], range(0, end + 1, end))
    ends = (workload.layers[mine[-1]] for mine in layers[:-1])
    handed = [layer.output_elements or workload.stream_elements for layer in ends]
    refuse_if(
        not all(handed),
        "model",
        f"{workload.name!r}, which does not state what flows between its blocks",
        "a decoder, an encoder, a ResNet or a VGG of the zoo",
    )
    flows = [workload.input_elements, *handed, workload.output_elements]
    # first and last part, and which way they are run where both can stand on one stage
    first, last = (
        schedule.place(0)[0],
        schedule.place(schedule.parts - 1, int(schedule.layout == "bidirectional"))[0],
    )
    # a stage that holds both has the embedding once
    borrowed = (
        [frozenset[int]()] * len(layers)
        if first == last or schedule.layout == "vocabulary"
        else _borrowed(workload, layers)
    )
    lent = frozenset().union(*borrowed)
    owners, parts = _owners(workload, layers), []
    for number, mine in enumerate(layers):
        held = borrowed[number].union(at for at, owner in owners.items() if owner == number)
        part = replace(
            _cut(workload, mine, sorted(held), borrowed[number]),
            name=f"{workload.name}, part {number + 1} of {len(layers)}",
            input_elements=flows[number],
            output_elements=flows[number + 1],
        )
        shared = tuple(at for at, tensor in enumerate(sorted(held)) if tensor in lent)
        parts.append((part, mine, shared))
    return parts + parts[-1:] * (schedule.stages - 1) * (schedule.layout == "vocabulary")


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


def _owners(workload: Workload, layers: Sequence[range]) -> dict[int, int]:
    """Part of each tensor: of its layer, or for frozen ones that of the block they stand in."""
    placed = [(workload.layers[at], part) for part, mine in enumerate(layers) for at in mine]
    owners = {tensor: part for layer, part in placed for tensor in layer.tensors}
    blocks = {block_of(layer.name): part for layer, part in placed}
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
        refuse_if(
            tied and number != len(layers) - 1,
            "model",
            f"{workload.name!r}, whose part {number + 1} shares the embedding",
            "one that shares it with the last part alone",
        )
        borrowed.append(frozenset(tied))
    return borrowed


def _lacks_weight(workload: Workload, layer: Layer) -> bool:
    own = sum(
        workload.tensors[t].numel for t in layer.tensors if len(workload.tensors[t].shape) > 1
    )
    return layer.matmul_flops > 0 and 0 < layer.weight_elements != own


def _cut(
    workload: Workload, mine: range, held: Sequence[int], borrowed: Collection[int]
) -> Workload:
    """Some layers of a model with the tensors that they hold.

    The gradient of a tensor that is `borrowed` is ready where the product's backward is.
    """
    index = {tensor: position for position, tensor in enumerate(held)}
    layers = []
    for layer in workload.layers[mine.start : mine.stop : mine.step]:
        tied = (
            tensor
            for tensor in borrowed
            if _lacks_weight(workload, layer)
            and workload.tensors[tensor].numel == round(layer.weight_elements)
        )
        layers.append(
            replace(layer, tensors=tuple(index[tensor] for tensor in (*tied, *layer.tensors)))
        )
    return replace(
        workload, tensors=tuple(workload.tensors[tensor] for tensor in held), layers=tuple(layers)
    )


BY_LAYER = (
    "forward_s",
    "backward_s",
    "forward_kernels",
    "backward_kernels",
    "matrix_forward_s",
    "matrix_backward_s",
    "weight_gradient_s",
)
"""Times that are known of each layer."""


def part_times(times: LayerTimes, whole: Workload, part: Workload, mine: range) -> LayerTimes:
    """Return times of some layers; the optimizer's by the elements that it updates."""
    layers = slice(mine.start, mine.stop, mine.step)
    updated, everything = (
        sum(each.tensors[tensor].numel for tensor in each.ready_order) for each in (part, whole)
    )
    share = updated / max(1, everything)
    values = ((name, getattr(times, name)) for name in BY_LAYER)
    return replace(
        times,
        optimizer_s=times.optimizer_s * share,
        optimizer_kernels=max(1, round(times.optimizer_kernels * share)),
        **{name: each[layers] for name, each in values if each is not None},
    )
