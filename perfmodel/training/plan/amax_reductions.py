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
from itertools import pairwise

from perfmodel.training.frameworks import fixed_in
from perfmodel.training.memory_use import AMAXES_PER_MODULE
from perfmodel.training.plan.builder import TaskList
from perfmodel.training.plan.step_plan import (
    PASSES,
    Communicator,
    StepPlan,
    Stream,
    Task,
    follow_previous,
)
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.kernels.float8_layers import Float8, float8_modules
from perfmodel.workload.kernels.shapes import WIDE_BYTES

AMAXES = "greatest values"
"""Communicator of all ranks, and its stream."""


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
    added = TaskList.of(request)
    numbers: dict[str, int] = {}
    for index, task in enumerate(plan.tasks):
        own = added.add(replace(task, after=tuple(places[each] for each in task.after)))
        places.append(own)
        if index in ends:
            numbers[task.rank_class] = numbers.get(task.rank_class, -1) + 1
            key = f"{AMAXES} {numbers[task.rank_class]}" if reduces else None
            amaxes = counts[task.kind]
            history_s = amaxes * float8.amax_history_len * WIDE_BYTES / request.times.copy_Bps
            _add_agreement(added, own, amaxes, key, history_s + 2 * request.kernel_s)
    follow_previous(added.tasks, places)
    if not reduces:
        return replace(plan, tasks=tuple(added.tasks))
    everyone = Communicator(AMAXES, (range(request.ranks),), "amaxes")
    return replace(
        plan,
        tasks=tuple(added.tasks),
        streams=(*plan.streams, Stream(AMAXES, "comm")),
        communicators=(*plan.communicators, everyone),
    )


def _pass_ends(tasks: Sequence[Task], rank_class: str) -> Iterator[int]:
    """Last task of each forward and each backward of a class."""
    own = ((at, task) for at, task in enumerate(tasks) if task.rank_class == rank_class)
    passes = [(at, task.kind) for at, task in own if task.kind in PASSES]
    pairs = pairwise([*passes, (-1, "")])
    yield from (index for (index, kind), (_, following) in pairs if following != kind)


def _add_agreement(
    added: TaskList, last: int, amaxes: int, key: str | None, update_s: float
) -> None:
    """Add what follows the last task of a pass.

    `key`: of the reduction; None: there is none.
    """
    end = added.tasks[last]
    name, rank_class, micro_batch = f"{AMAXES} of {end.kind}", end.rank_class, end.micro_batch
    issued = added.issue(
        name,
        fixed_in("transformer_engine", "agreement_kernels"),
        rank_class,
        micro_batch=micro_batch,
    )
    waits = (last, *issued)
    if key is not None:
        sent = added.collective(
            name,
            "all_reduce",
            amaxes * WIDE_BYTES,
            rank_class,
            communicator=AMAXES,
            key=key,
            after=waits,
            stream=AMAXES,
            dtype="fp32",
            micro_batch=micro_batch,
        )
        waits = (sent,)
    added.compute(
        f"scales of {end.kind}", "copy", update_s, rank_class, after=waits, micro_batch=micro_batch
    )
