"""What follows the passes of a stage: its tied embedding, what all stages agree on, the update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.training.pipeline.pass_regions import PASSES, Work
from perfmodel.training.pipeline.stage_passes import StagePasses, write_works
from perfmodel.training.plan.builder import COMPUTE
from perfmodel.training.plan.step_plan import Collective, Task
from perfmodel.workload.model import ITEM_BYTES

ALL_STAGES, TIED = "all stages", "holders of the embedding"
"""Communicators: of all ranks, and of the first and the last stage."""

AGREED_BYTES = 8
"""Largest number that ranks agree on: one of double precision."""


def write_end(passes: StagePasses) -> None:
    """Append what follows the passes: reduce a tied embedding, agree with all stages, update."""
    chunks = passes.chunks
    ends = {chunk: _cut_at_agreements(passes, chunk) for chunk in chunks}
    tied = {chunk: _add_tied_reduction(passes, chunk) for chunk in chunks}
    for number in range(max(len(pieces) for pieces in ends.values())):
        agreed: list[tuple[int, Work]] = []
        for chunk in chunks:
            pieces = ends[chunk]
            if number >= len(pieces):
                continue
            works, agreement = pieces[number]
            _write_gated(passes, chunk, works, tied)
            if agreement is not None:
                agreed.append((chunk, agreement))
        _agree(passes, agreed, number)
    for index, part, sources in passes.previous:
        mapped = tuple(passes.indices[part][source] for source in sources)
        passes.tasks[index] = replace(passes.tasks[index], after_previous=mapped)


def _write_gated(
    passes: StagePasses, chunk: int, works: Sequence[Work], tied: dict[int, tuple[int, ...]]
) -> None:
    """Write what follows the passes; the first that needs all gradients waits for the tied one."""
    split = next(
        (
            i
            for i, work in enumerate(works)
            if work.task.bucket is None and work.task.stream == COMPUTE.name
        ),
        len(works),
    )
    write_works(passes, chunk, works[:split])
    if split < len(works):
        write_works(passes, chunk, works[split:], tied.pop(chunk, ()))


def _cut_at_agreements(passes: StagePasses, chunk: int) -> list[tuple[list[Work], Work | None]]:
    pieces: list[tuple[list[Work], Work | None]] = []
    works: list[Work] = []
    for work in passes.regions[passes.part(chunk)].end:
        task = work.task
        if (
            isinstance(task.work, Collective)
            and task.work.op == "all_reduce"
            and task.bucket is None
            and task.work.nbytes <= AGREED_BYTES
        ):
            pieces.append((works, work))
            works = []
        else:
            works.append(work)
    return [*pieces, (works, None)]


def _agree(passes: StagePasses, agreed: Sequence[tuple[int, Work]], number: int) -> None:
    """Agree on a number once for all chunks, with all stages."""
    if not agreed:
        return
    task = agreed[0][1].task
    after = [
        passes.indices[passes.part(chunk)][source]
        for chunk, work in agreed
        for source in work.task.after
    ]
    assert isinstance(task.work, Collective)
    work = replace(task.work, communicator=ALL_STAGES, key=f"{task.name} {number} of all stages")
    index = len(passes.tasks)
    passes.tasks.append(
        replace(
            task,
            rank_class=passes.rank_class,
            work=work,
            after=tuple(dict.fromkeys(after)),
            after_previous=(),
        )
    )
    for chunk, each in agreed:
        passes.indices[passes.part(chunk)].update(dict.fromkeys(each.members, index))


def _add_tied_reduction(passes: StagePasses, chunk: int) -> tuple[int, ...]:
    """Add up the gradient of an embedding that the first and the last stage hold."""
    number = passes.part(chunk)
    part = passes.parts[number].part
    if not part.shared:
        return ()
    dtype = passes.options.tied_dtype or part.workload.tensors[part.shared[0]].dtype
    reduced = [
        index
        for index in passes.indices[number].values()
        if isinstance(passes.tasks[index].work, Collective) or passes.tasks[index].kind in PASSES
    ]
    nbytes = part.shared_elements * ITEM_BYTES[dtype]
    work = Collective("all_reduce", nbytes, TIED, "gradient of the tied embedding", dtype=dtype)
    last_pass = max(i for i in reduced if passes.tasks[i].kind in PASSES)
    sent = [i for i in reduced if passes.tasks[i].bucket is not None]
    passes.tasks.append(
        Task(
            "all-reduce tied embedding",
            "communication",
            passes.rank_class,
            "comm",
            work,
            tuple(dict.fromkeys((last_pass, *sent))),
            micro_batch=passes.schedule.micro_batches - 1,
        )
    )
    return (len(passes.tasks) - 1,)
