"""Memory of each stage of a pipeline: its parts of the model, and the micro-batches in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from perfmodel.training.memory.use import MemoryRule, MemoryUse, Setup, kept_meanwhile
from perfmodel.training.parallel.mixture import Mixture
from perfmodel.training.pipeline.pass_actions import StageActions
from perfmodel.training.pipeline.stage_workload import part_workloads


def stage_memory(setup: Setup, rule: MemoryRule, mixture: Mixture) -> tuple[MemoryUse, ...]:
    """Memory on a GPU of each stage; one stage where there is no pipeline.

    What forward keeps of a micro-batch is there until the gradients of its weights are computed:
    how many micro-batches that is follows from the schedule (GPipe all, 1F1B as many as stages
    follow).

    `setup`: of the share of the model that a rank of each stage together has.
    Raises `InputError`: counts that the schedule does not allow.
    """
    if mixture.stages == 1:
        return (rule(setup),)
    schedule = mixture.pipeline_schedule(setup.options.accumulate)
    copies = 2 if schedule.layout == "bidirectional" else 1
    parts = []
    for workload in part_workloads(setup.workload, schedule, mixture.partition):
        part = replace(
            setup,
            workload=workload,
            ranks=copies * setup.ranks,
            expert_copies=setup.expert_copies and copies * setup.expert_copies,
        )
        parts.append((rule(part), kept_meanwhile(part)))
    return tuple(
        _stage_use(
            [parts[schedule.part(stage, chunk)] for chunk in range(schedule.chunks)], actions
        )
        for stage, actions in enumerate(schedule.actions)
    )


def _stage_use(chunks: Sequence[tuple[MemoryUse, float]], actions: StageActions) -> MemoryUse:
    """Add up the chunks of a stage; activations at the fullest moment of the schedule.

    `chunks`: what training each takes with one micro-batch, and what each micro-batch keeps of it
        that waits for its backward.
    """
    uses, kept_bytes = zip(*chunks, strict=True)
    names = [each.name for each in fields(MemoryUse)]
    total = MemoryUse(**{name: sum(getattr(use, name) for use in uses) for name in names})
    in_hand = [max(0.0, use.activations_bytes - kept) for use, kept in chunks]
    waiting = [use.waiting_bytes for use in uses]
    return replace(
        total,
        activations_bytes=_most_bytes(actions, kept_bytes, in_hand),
        waiting_bytes=_most_bytes(actions, waiting, [0.0] * len(uses)),
        temporary_bytes=max(use.temporary_bytes for use in uses),
    )


def _most_bytes(
    actions: StageActions, kept_bytes: Sequence[float], in_hand_bytes: Sequence[float]
) -> float:
    """Most that micro-batches take at once.

    `kept_bytes`: of each, by chunk, from its forward on. `in_hand_bytes`: of the one that runs.
    """
    in_flight = [0] * len(kept_bytes)
    most = 0.0
    for action in actions:
        in_flight[action.chunk] += action.kind == "forward"
        held_bytes = sum(n * each for n, each in zip(in_flight, kept_bytes, strict=True))
        most = max(most, held_bytes + in_hand_bytes[action.chunk])
        in_flight[action.chunk] -= action.kind in ("backward", "weight_gradient")
    return most
