"""One plan of all stages: the passes of plain plans in the order of a schedule, joined by messages.

Every part of the model has a plan of a data-parallel strategy with as many micro-batches as the
pipeline has. Its passes are put in the schedule's order; transfers stand between them, on streams
of their own, or where the library waits for them, between two passes. With one stage and one part
the plan is returned as it is.

What follows passes: gradients of a tied embedding are added up by the stages that hold it once its
data-parallel reduction has ended, and numbers that ranks agree on (the norm of gradients) are those
of all stages (Megatron-Core 0.16, ``finalize_model_grads.py``, ``clip_grads.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from perfmodel.arrays import RankGroup
from perfmodel.errors import refuse_if
from perfmodel.training.pipeline.pass_actions import (
    MICRO_BATCHES,
    SECTION,
    TRANSFER_STREAMS,
    PipelineSchedule,
    sent_messages,
)
from perfmodel.training.pipeline.pass_regions import EXPERT, Work, check_split, plan_regions
from perfmodel.training.pipeline.stage_passes import (
    PIPELINE,
    SHARING_STREAMS,
    PartPlan,
    PipelineOptions,
    StagePasses,
    write_passes,
    write_works,
)
from perfmodel.training.plan.builder import COMPUTE
from perfmodel.training.plan.step_plan import (
    PASSES,
    Collective,
    Communicator,
    RankClass,
    StepPlan,
    Stream,
    Task,
)
from perfmodel.workload.layer_calls import CALL_GROUPS
from perfmodel.workload.model import ITEM_BYTES

ALL_STAGES, TIED = "all stages", "holders of the embedding"
"""Communicators: of all ranks, and of the first and the last stage."""

AGREED_BYTES = 8
"""Largest number that ranks agree on: one of double precision."""


def write_end(passes: StagePasses) -> None:
    """Append what follows the passes: reduce a tied embedding, agree with all stages, update.

    The first task that needs all gradients waits for that of the tied embedding.
    """
    ends = {chunk: _cut_at_agreements(passes, chunk) for chunk in passes.chunks}
    tied = {chunk: _add_tied_reduction(passes, chunk) for chunk in passes.chunks}
    for number in range(max(map(len, ends.values()))):
        agreed: list[tuple[int, Work]] = []
        pieces = {chunk: end[number] for chunk, end in ends.items() if number < len(end)}
        for chunk, (works, agreement) in pieces.items():
            needs = [
                work.task.bucket is None and work.task.stream == COMPUTE.name for work in works
            ]
            split = needs.index(True) if any(needs) else len(works)
            write_works(passes, chunk, works[:split])
            if split < len(works):
                write_works(passes, chunk, works[split:], tied.pop(chunk, ()))
            if agreement is not None:
                agreed.append((passes.part(chunk), agreement))
        if agreed:
            _agree(passes, agreed, number)
    for index, part, sources in passes.previous:
        passes.tasks[index] = replace(
            passes.tasks[index],
            after_previous=tuple(passes.indices[part][source] for source in sources),
        )


def _cut_at_agreements(passes: StagePasses, chunk: int) -> list[tuple[list[Work], Work | None]]:
    pieces: list[tuple[list[Work], Work | None]] = []
    works: list[Work] = []
    for each in passes.regions[passes.part(chunk)].end:
        if (
            isinstance(each.task.work, Collective)
            and each.task.work.op == "all_reduce"
            and each.task.bucket is None
            and each.task.work.nbytes <= AGREED_BYTES
        ):
            pieces.append((works, each))
            works = []
        else:
            works.append(each)
    return [*pieces, (works, None)]


def _agree(passes: StagePasses, agreed: Sequence[tuple[int, Work]], number: int) -> None:
    """Agree on a number once for all parts that the stage holds, with all stages."""
    first, index = agreed[0][1], len(passes.tasks)
    assert isinstance(first.task.work, Collective)
    after = [passes.indices[part][at] for part, work in agreed for at in work.task.after]
    passes.tasks.append(
        replace(
            first.task,
            rank_class=passes.rank_class,
            work=replace(
                first.task.work,
                communicator=ALL_STAGES,
                key=f"{first.task.name} {number} of all stages",
            ),
            after=tuple(dict.fromkeys(after)),
            after_previous=(),
        )
    )
    for part, each in agreed:
        passes.indices[part].update(dict.fromkeys(each.members, index))


def _add_tied_reduction(passes: StagePasses, chunk: int) -> tuple[int, ...]:
    """Add up the gradient of an embedding that the first and the last stage hold."""
    number, tasks = passes.part(chunk), passes.tasks
    part = passes.parts[number].part
    if not part.shared:
        return ()
    dtype = passes.options.tied_dtype or part.workload.tensors[part.shared[0]].dtype
    written = passes.indices[number].values()
    last_pass = max(index for index in written if tasks[index].kind in PASSES)
    sent = [
        index
        for index in written
        if tasks[index].bucket is not None
        and (isinstance(tasks[index].work, Collective) or tasks[index].kind in PASSES)
    ]
    tasks.append(
        Task(
            "all-reduce tied embedding",
            "communication",
            passes.rank_class,
            "comm",
            Collective(
                "all_reduce",
                sum(part.workload.tensors[i].numel for i in part.shared) * ITEM_BYTES[dtype],
                TIED,
                "gradient of the tied embedding",
                dtype=dtype,
            ),
            tuple(dict.fromkeys((last_pass, *sent))),
            micro_batch=passes.schedule.micro_batches - 1,
        )
    )
    return (len(tasks) - 1,)


ROOTED = ("broadcast", "reduce")
"""Operations that have a root."""

WAITING = ("gpipe", "1f1b", "interleaved")
"""Schedules whose stages may send and receive between two passes."""


def pipeline_plan(
    schedule: PipelineSchedule, parts: Sequence[PartPlan], options: PipelineOptions
) -> StepPlan:
    """Join the plans of all parts.

    `parts`: in the order of forward. The ranks of a part's plan are those that hold it: stage s has
        ranks s d to s d + d - 1. Where the model runs both ways each part is held by two stages,
        and its plan has ranks of the first way first.
    Raises `InputError`: plans of other counts of parts, ranks or micro-batches, passes that wait
        for each other in a way that the schedule does not allow, times that do not tell apart what
        it splits.
    Raises `ScheduleError`: a plan with several rank classes.
    """
    held = schedule.parts + schedule.stages * (schedule.layout == "vocabulary")
    refuse_if(len(parts) != held, f"{SECTION}.stages", f"plans of {len(parts)} parts", f"{held}")
    if schedule.parts == 1:
        return parts[0].plan
    refuse_if(
        not options.overlap_p2p and schedule.name not in WAITING,
        f"{SECTION}.overlap_p2p",
        f"false with {schedule.name}",
        f"true, or {', '.join(WAITING)}",
    )
    ranks = _ranks_per_stage(schedule, parts)
    regions = [plan_regions(p.plan, overlap_reduction=options.overlap_reduction) for p in parts]
    if any(a.kind == "weight_gradient" for stage in schedule.actions for a in stage):
        for part, region in zip(parts, regions, strict=True):
            check_split(part.plan, region, part.part.times)
    tasks: list[Task] = []
    incoming = sent_messages(schedule)
    for stage in range(schedule.stages):
        passes = StagePasses(schedule, stage, parts, regions, options, incoming, tasks)
        write_passes(passes)
        write_end(passes)
    communicators = _communicators(schedule, parts, ranks, tasks)
    agreed = Counter(t.rank_class for t in tasks if _communicator_of(t) == ALL_STAGES)
    refuse_if(
        len(set(agreed.values())) > 1,
        "strategy.sub_group_size",
        f"stages that agree on {' and '.join(map(str, sorted(set(agreed.values()))))} norms",
        "sub-groups as many in each stage, such as by default, beside parallel.pipeline",
    )
    return StepPlan(
        name=f"{schedule.name} of {schedule.stages} stages, {parts[0].plan.name}",
        classes=tuple(
            RankClass(f"stage {stage}", range(stage * ranks, (stage + 1) * ranks))
            for stage in range(schedule.stages)
        ),
        streams=_streams(parts, tasks),
        communicators=communicators,
        tasks=tuple(_rooted(task, communicators) for task in tasks),
        samples=parts[0].plan.samples,
        semaphores=tuple(dict.fromkeys(s for part in parts for s in part.plan.semaphores)),
    )


def _communicator_of(task: Task) -> str | None:
    """Name of the communicator that a task runs a collective of."""
    return task.work.communicator if isinstance(task.work, Collective) else None


def _ranks_per_stage(schedule: PipelineSchedule, parts: Sequence[PartPlan]) -> int:
    """Ranks of each stage; the same of all."""
    copies = 2 if schedule.layout == "bidirectional" else 1
    held = {sum(len(each.ranks) for each in part.plan.classes) for part in parts}
    refuse_if(
        len(held) != 1 or next(iter(held)) % copies,
        f"{SECTION}.stages",
        f"plans of {sorted(held)} ranks",
        f"the same of all, {copies} times the ranks of a stage",
    )
    expected = len(schedule.chunk_micro_batches(0))
    for part in parts:
        forwards = (task.micro_batch for task in part.plan.tasks if task.kind == "forward")
        passes = max(forwards, default=-1) + 1
        refuse_if(
            passes != expected, MICRO_BATCHES, f"a plan of {passes} micro-batches", str(expected)
        )
    return next(iter(held)) // copies


def _streams(parts: Sequence[PartPlan], tasks: Sequence[Task]) -> tuple[Stream, ...]:
    used = {task.stream for task in tasks}
    own = [*TRANSFER_STREAMS, *SHARING_STREAMS, Stream("comm", "comm"), Stream(EXPERT, "comm")]
    declared = {stream.name: stream for part in parts for stream in part.plan.streams}
    declared |= {stream.name: stream for stream in own if stream.name not in declared}
    return tuple(stream for stream in declared.values() if stream.name in used)


def _communicators(
    schedule: PipelineSchedule, parts: Sequence[PartPlan], ranks: int, tasks: Sequence[Task]
) -> tuple[Communicator, ...]:
    directions = (0, 1) if schedule.layout == "bidirectional" else (0,)
    everything: list[Communicator] = []
    for number, part in enumerate(parts):
        stages = [schedule.place(number, direction)[0] for direction in directions]
        for each in part.plan.communicators:
            groups = each.groups
            if each.role not in CALL_GROUPS:  # which get their groups with all ranks
                groups = tuple(_placed(group, stages, ranks) for group in groups)
            everything.append(replace(each, name=f"{each.name} of part {number}", groups=groups))

    def pairs(source: int, target: int) -> tuple[tuple[int, int], ...]:
        return tuple((source * ranks + r, target * ranks + r) for r in range(ranks))

    ends = schedule.place(0)[0], schedule.place(schedule.parts - 1)[0]
    everything += [
        *(
            Communicator(f"stage {source} to stage {target}", pairs(source, target), "stages")
            for source, target in product(range(schedule.stages), repeat=2)
        ),
        Communicator(TIED, pairs(*ends), "embedding_holders"),
        Communicator(
            PIPELINE,
            tuple(range(rank, schedule.stages * ranks, ranks) for rank in range(ranks)),
            "stages",
        ),
        Communicator(ALL_STAGES, (range(schedule.stages * ranks),), "all_stages"),
    ]
    used = set(map(_communicator_of, tasks))
    return tuple(each for each in everything if each.name in used)


def _rooted(task: Task, communicators: Sequence[Communicator]) -> Task:
    """Move the root of a collective to the rank of the stage that has its place in the group.

    Until here it is its place in the group, the first one in parts' plans.
    """
    work = task.work
    if not isinstance(work, Collective) or work.op not in ROOTED:
        return task
    groups = next(each.groups for each in communicators if each.name == work.communicator)
    return replace(task, work=replace(work, root=groups[0][work.root]))


def _placed(group: RankGroup, stages: Sequence[int], ranks: int) -> range | tuple[int, ...]:
    """Ranks of a part's plan as ranks of the pipeline."""
    if isinstance(group, range) and len(stages) == 1:
        offset = stages[0] * ranks
        return range(group.start + offset, group.stop + offset, group.step)
    return tuple(stages[rank // ranks] * ranks + rank % ranks for rank in group)
