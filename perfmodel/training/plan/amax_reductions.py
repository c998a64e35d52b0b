"""All-reduces of the greatest values of fp8 tensors, which delayed scaling makes of each pass.

Transformer Engine joins the values of all modules and all-reduces them, with MAX, when forward
leaves ``fp8_autocast`` and when backward ends (``reduce_and_update_fp8_tensors``). What follows
waits for them, as scales are updated after it. Megatron-Core's group for it is that of tensor and
data parallelism together; assumption: where a model is split, the all-reduce of a few kilobytes
among the data-parallel ranks takes as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfmodel.training.memory.use import AMAX_BYTES, AMAXES_PER_MODULE
from perfmodel.training.plan.builder import COMPUTE, HOST
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Compute,
    StepPlan,
    Stream,
    Task,
    follow_previous,
)
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.kernels.float8_layers import float8_modules
from perfmodel.workload.kernels.float8_recipe import Float8

AMAXES = "greatest values"
"""Communicator of all ranks, and its stream."""
KERNELS = 3
"""Values are joined, all-reduced, and turned into scales."""
PASSES = ("forward", "backward")


def add_amax_reductions(plan: StepPlan, request: StepRequest, float8: Float8) -> StepPlan:
    """Return the plan with an all-reduce behind each pass of each micro-batch.

    Scales are updated with one rank, too, and without a reduction where it is switched off.
    """
    if float8.recipe != "delayed":
        return plan
    modules = float8_modules(request.workload, float8)
    counts = dict(zip(PASSES, (each * modules for each in AMAXES_PER_MODULE), strict=True))
    reduces = float8.agrees and request.ranks > 1
    ends = {end for each in plan.classes for end in _pass_ends(plan.tasks, each.name)}
    places: list[int] = []
    tasks: list[Task] = []
    numbers: dict[str, int] = {}
    for index, task in enumerate(plan.tasks):
        places.append(len(tasks))
        tasks.append(replace(task, after=tuple(places[each] for each in task.after)))
        if index in ends:
            number = numbers[task.rank_class] = numbers.get(task.rank_class, -1) + 1
            amaxes = counts[task.kind]
            history_s = amaxes * float8.amax_history_len * AMAX_BYTES / request.times.copy_Bps
            tasks += _agreement(
                tasks,
                task,
                amaxes,
                number,
                reduces=reduces,
                launch_s=request.times.launch_s,
                update_s=history_s + 2 * request.kernel_s,
            )
    follow_previous(tasks, places)
    if not reduces:
        return replace(plan, tasks=tuple(tasks))
    everyone = Communicator(AMAXES, (range(request.ranks),), "amaxes")
    return replace(
        plan,
        tasks=tuple(tasks),
        streams=(*plan.streams, Stream(AMAXES, "comm")),
        communicators=(*plan.communicators, everyone),
    )


def _pass_ends(tasks: Sequence[Task], rank_class: str) -> Iterator[int]:
    """Last task of each forward and each backward of a class."""
    passes = [
        (index, task)
        for index, task in enumerate(tasks)
        if task.kind in PASSES and task.rank_class == rank_class
    ]
    for place, (index, task) in enumerate(passes):
        following = passes[place + 1][1] if place + 1 < len(passes) else None
        if following is None or following.kind != task.kind:
            yield index


def _agreement(
    tasks: Sequence[Task],
    end: Task,
    amaxes: int,
    number: int,
    *,
    reduces: bool,
    launch_s: float,
    update_s: float,
) -> list[Task]:
    """Tasks behind the last one of a pass, which stands at the end of `tasks`."""
    last, added = len(tasks) - 1, list[Task]()
    waits: tuple[int, ...] = (last,)
    name = f"{AMAXES} of {end.kind}"

    def add(task: Task) -> int:
        added.append(replace(task, micro_batch=end.micro_batch))
        return last + len(added)

    if launch_s > 0:
        issued = Compute(KERNELS * launch_s)
        issue = Task(f"issue {name}", "issue", end.rank_class, HOST.name, issued, issues=name)
        waits = (last, add(issue))
    if reduces:
        work = Collective(
            "all_reduce", amaxes * AMAX_BYTES, AMAXES, f"{AMAXES} {number}", dtype="fp32"
        )
        waits = (add(Task(name, "communication", end.rank_class, AMAXES, work, waits)),)
    update = Compute(update_s)
    add(Task(f"scales of {end.kind}", "copy", end.rank_class, COMPUTE.name, update, waits))
    return added
