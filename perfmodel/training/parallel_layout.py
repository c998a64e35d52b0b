"""What a parallel layout makes of a data-parallel plan: calls of layers, stages, places of ranks.

Of hundreds of micro-batches of a pipeline, those between the first and the last are planned once:
planning each anew takes longer than to simulate them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace

from perfmodel.errors import refuse_if
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.device_replica import check_replica, spread_replica
from perfmodel.training.memory_use import MemoryRule, MemoryUse, Setup, counted
from perfmodel.training.pipeline.pass_actions import PipelineSchedule, StageActions
from perfmodel.training.pipeline.pass_regions import SHOWN, can_show_more, with_micro_batches
from perfmodel.training.pipeline.pipeline_plan import pipeline_plan
from perfmodel.training.pipeline.schedules import make_schedule
from perfmodel.training.pipeline.stage_passes import PartPlan, PipelineOptions
from perfmodel.training.pipeline.stage_workload import (
    ModelPart,
    PartitionOptions,
    cut_model,
    handed_bytes,
    model_parts,
)
from perfmodel.training.plan.layer_calls import add_layer_calls
from perfmodel.training.plan.step_plan import StepPlan
from perfmodel.training.rank_grid import RankGrid, expand_ranks
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.kernels.shapes import WIDE_BYTES
from perfmodel.workload.memory.activations import stored_bytes
from perfmodel.workload.memory.recompute import Recompute
from perfmodel.workload.shard import WHOLE, Shard

PART_SEGMENTS = 1
"""Tasks per pass of a part of a pipeline, beside where buckets end: passes are many and short."""
WAITING = ("gpipe", "1f1b")
"""Schedules in which a stage sends and receives between two passes (Megatron-LM overlaps messages
in interleaved schedules alone, ``overlap_p2p_communication``)."""


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """How a model is split.

    Parameters
    ----------
    shard : Shard
        Over the ranks of tensor, context and expert groups.
    stages : int
        Of the pipeline.
    schedule : str
        As in `SCHEDULES`.
    chunks : int, optional
        Of each stage; None: as many as the schedule needs.
    partition : PartitionOptions
        Which blocks each part of the model has.
    overlap_p2p : bool, optional
        Whether stages send beside layers; None: with several chunks.
    micro_batch_group : int, optional
        Micro-batches that a chunk runs in a row.
    order : tuple of str
        Of dimensions, see `RankGrid`.
    expert_tensor : int
        Ranks that share each expert: 1, or those of a tensor group.
    """

    shard: Shard = WHOLE
    stages: int = 1
    schedule: str = "1f1b"
    chunks: int | None = None
    partition: PartitionOptions = field(default_factory=PartitionOptions)
    overlap_p2p: bool | None = None
    micro_batch_group: int | None = None
    order: tuple[str, ...] = ("tp", "cp", "ep", "dp", "pp")
    expert_tensor: int = 1

    @property
    def is_plain(self) -> bool:
        """Whether each rank is a whole replica."""
        return self.shard.is_whole and self.stages == 1

    def pipeline_schedule(self, micro_batches: int) -> PipelineSchedule:
        """Order of the passes of all stages.

        Raises `InputError`: counts that the schedule does not allow.
        """
        return make_schedule(
            self.schedule,
            self.stages,
            micro_batches,
            self.chunks,
            micro_batch_group=self.micro_batch_group,
        )

    def grid(self, ranks: int) -> RankGrid:
        """Places of so many ranks."""
        return RankGrid(
            tensor=self.shard.tensor,
            context=self.shard.context,
            data=ranks // (self.shard.tensor * self.shard.context * self.stages),
            stages=self.stages,
            expert=self.shard.expert,
            order=self.order,
            expert_tensor=self.expert_tensor,
        )


def mix_step(
    parallel_layout: ParallelLayout,
    request: StepRequest,
    make: Callable[[StepRequest, int], StepPlan],
    micro_batches: int,
    precision: str,
    recompute: Recompute,
    held_dtype: str | None,
    replica: DdpOptions | None = None,
    *,
    overlap_reduction: bool = True,
    tied_dtype: str | None = None,
) -> StepPlan:
    """Plan a step of a parallel layout on all its ranks.

    Parameters
    ----------
    parallel_layout : ParallelLayout
    request : StepRequest
        Of the share of one rank of a tensor, context and expert group, among its replicas.
    make : callable
        The plan of a plain data-parallel step of so many micro-batches, of the whole share or of
        a part of it.
    micro_batches : int
    precision : str
        Of activations.
    recompute : Recompute
        What backward runs forward of once more.
    held_dtype : str, optional
        Of parameters that layers run with, where it is not their own.
    replica : DdpOptions, optional
        Of DDP around a module whose parts one process runs, one after the other.
    overlap_reduction : bool
        Whether gradients of a part of the model are reduced once they are ready; otherwise after
        all passes.
    tied_dtype : str, optional
        Of the gradient of a tied embedding while it is reduced; that of the parameters otherwise.

    Raises
    ------
    InputError
        Counts that the schedule does not allow, or a model that cannot be cut so.
    """
    grid = parallel_layout.grid(
        request.ranks * parallel_layout.shard.tensor * parallel_layout.stages
    )

    def plan_part(part: StepRequest, count: int) -> StepPlan:
        return add_layer_calls(make(part, count), part, precision, recompute)

    if parallel_layout.stages == 1:
        return expand_ranks(plan_part(request, micro_batches), grid)
    schedule = parallel_layout.pipeline_schedule(micro_batches)
    model = model_parts(request.workload, request.times, schedule, parallel_layout.partition)
    transfer_bytes = handed_bytes(model, precision, request.batch_per_gpu, held_dtype)
    if replica is not None:
        check_replica(replica, model, request)
        whole = plan_part(request, micro_batches)
        return expand_ranks(spread_replica(whole, request, replica, model, transfer_bytes), grid)
    idle = "; ".join(part.workload.name for part in model if not part.workload.ready_order)
    allowed = "parts of a model with trained tensors in each"
    refuse_if(idle, "parallel.pipeline", f"nothing to train in {idle}", allowed)
    copies = 2 if schedule.layout == "bidirectional" else 1

    def plan_model_part(part: ModelPart) -> StepPlan:
        own, count = (
            replace(
                request,
                workload=part.workload,
                times=part.times,
                segments=PART_SEGMENTS,
                ranks=copies * request.ranks,
                ready_order=None,
                expert_copies=request.expert_copies and copies * request.expert_copies,
            ),
            micro_batches // copies,
        )
        few = plan_part(own, SHOWN) if count > SHOWN else None
        if few is not None and can_show_more(few):
            return with_micro_batches(few, count)
        return plan_part(own, count)

    plans = [PartPlan(plan_model_part(part), part) for part in model]
    overlap_p2p, wide = parallel_layout.overlap_p2p, WIDE_BYTES * request.batch_per_gpu
    head, block = model[-1].workload.layers[-1], model[schedule.parts - 1].workload
    options = PipelineOptions(
        transfer_bytes,
        overlap_p2p=parallel_layout.schedule not in WAITING if overlap_p2p is None else overlap_p2p,
        overlap_reduction=overlap_reduction,
        tied_dtype=tied_dtype,
        shared_bytes=(
            wide * getattr(head.matrix, "rows", 0),
            round(wide * block.output_elements),
            transfer_bytes[: schedule.parts][-1],
        ),
    )
    return expand_ranks(pipeline_plan(schedule, plans, options), grid)


# ---------------------------------------------------------------- memory


def stage_memory(
    setup: Setup, rule: MemoryRule, parallel_layout: ParallelLayout
) -> tuple[MemoryUse, ...]:
    """Memory on a GPU of each stage; one stage where there is no pipeline.

    What forward keeps of a micro-batch is there until the gradients of its weights are computed:
    how many micro-batches that is follows from the schedule (GPipe all, 1F1B as many as stages
    follow).

    `setup`: of the share of the model that a rank of each stage together has.
    Raises `InputError`: counts that the schedule does not allow.
    """
    if parallel_layout.stages == 1:
        return (rule(setup),)
    schedule = parallel_layout.pipeline_schedule(setup.options.accumulate)
    copies = 2 if schedule.layout == "bidirectional" else 1
    parts = []
    for workload, *_ in cut_model(setup.workload, schedule, parallel_layout.partition):
        part = replace(
            setup,
            workload=workload,
            ranks=copies * setup.ranks,
            expert_copies=setup.expert_copies and copies * setup.expert_copies,
        )
        parts.append((rule(part), counted(part, stored_bytes)))
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
    return replace(
        MemoryUse(**{name: sum(getattr(use, name) for use in uses) for name in names}),
        activations_bytes=_most_bytes(
            actions, kept_bytes, [max(0.0, use.activations_bytes - kept) for use, kept in chunks]
        ),
        waiting_bytes=_most_bytes(actions, [use.waiting_bytes for use in uses], [0.0] * len(uses)),
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
