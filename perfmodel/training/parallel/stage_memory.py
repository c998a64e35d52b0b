"""Memory of each stage of a pipeline: its parts of the model, and the micro-batches in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from perfmodel.training.memory.use import MemoryRule, MemoryUse, Setup, kept_meanwhile
from perfmodel.training.parallel.mixture import Mixture
from perfmodel.training.pipeline.pass_actions import PassAction, StageActions
from perfmodel.training.pipeline.stage_workload import part_workloads


@dataclass(frozen=True, slots=True)
class _PartMemory:
    """Memory of one part of the model.

    `use`: of its training with one micro-batch.
    `kept_bytes`: of each micro-batch that waits for its backward.
    """

    use: MemoryUse
    kept_bytes: float

    @property
    def in_hand_bytes(self) -> float:
        """What the pass of a micro-batch holds beside what it keeps."""
        return max(0.0, self.use.activations_bytes - self.kept_bytes)


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
        parts.append(_PartMemory(rule(part), kept_meanwhile(part)))
    return tuple(
        _stage_use(
            [parts[schedule.part(stage, chunk)] for chunk in range(schedule.chunks)],
            schedule.actions[stage],
        )
        for stage in range(schedule.stages)
    )


def _stage_use(chunks: Sequence[_PartMemory], actions: StageActions) -> MemoryUse:
    """Add up the chunks of a stage; activations at the fullest moment of the schedule."""
    names = [each.name for each in fields(MemoryUse)]
    sums: Mapping[str, float] = {
        name: sum(getattr(chunk.use, name) for chunk in chunks) for name in names
    }
    return replace(
        MemoryUse(**sums),
        activations_bytes=_most_bytes(
            actions, [each.kept_bytes for each in chunks], [each.in_hand_bytes for each in chunks]
        ),
        waiting_bytes=_most_bytes(
            actions, [each.use.waiting_bytes for each in chunks], [0.0] * len(chunks)
        ),
        temporary_bytes=max(chunk.use.temporary_bytes for chunk in chunks),
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
        in_flight[action.chunk] -= _frees(action)
    return most


def _frees(action: PassAction) -> bool:
    """Whether nothing needs a micro-batch's activations any more once a pass has ended."""
    return action.kind in ("backward", "weight_gradient")
