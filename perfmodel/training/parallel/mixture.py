"""What a mixture makes of a plain data-parallel plan: calls of layers, stages, places of ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.parallel.alike_parts import plan_parts
from perfmodel.training.parallel.device_replica import check_replica, spread_replica
from perfmodel.training.parallel.expand_ranks import expand_ranks
from perfmodel.training.parallel.rank_grid import RankGrid
from perfmodel.training.pipeline.block_partition import PartitionOptions
from perfmodel.training.pipeline.pipeline_plan import pipeline_plan
from perfmodel.training.pipeline.schedules.pass_actions import PipelineSchedule
from perfmodel.training.pipeline.schedules.schedule_table import make_schedule
from perfmodel.training.pipeline.stage_passes import PipelineOptions
from perfmodel.training.pipeline.stage_workload import ModelPart, handed_bytes, model_parts
from perfmodel.training.plan.layer_calls import add_layer_calls
from perfmodel.training.plan.step_plan import StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.memory.recompute import Recompute
from perfmodel.workload.shards.shard import WHOLE, Shard

PART_SEGMENTS = 1
"""Tasks per pass of a part of a pipeline, beside where buckets end: passes are many and short."""
WAITING = ("gpipe", "1f1b")
"""Schedules in which a stage sends and receives between two passes (Megatron-LM overlaps messages
in interleaved schedules alone, ``overlap_p2p_communication``)."""


@dataclass(frozen=True, slots=True)
class Mixture:
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
        shared = self.shard.tensor * self.shard.context * self.stages
        return RankGrid(
            tensor=self.shard.tensor,
            context=self.shard.context,
            data=ranks // shared,
            stages=self.stages,
            expert=self.shard.expert,
            order=self.order,
            expert_tensor=self.expert_tensor,
        )


@dataclass(frozen=True, slots=True)
class Reduction:
    """How the data-parallel strategy reduces gradients.

    `overlaps`: those of a part of the model once they are ready; otherwise after all passes.
    `dtype`: None: that of the parameters.
    """

    overlaps: bool = True
    dtype: str | None = None


def mix_step(
    mixture: Mixture,
    request: StepRequest,
    make: Callable[[StepRequest, int], StepPlan],
    micro_batches: int,
    reduction: Reduction,
    precision: str,
    recompute: Recompute,
    held_dtype: str | None,
    replica: DdpOptions | None = None,
) -> StepPlan:
    """Plan a step of a mixture on all its ranks.

    Parameters
    ----------
    mixture : Mixture
    request : StepRequest
        Of the share of one rank of a tensor, context and expert group, among its replicas.
    make : callable
        The plan of a plain data-parallel step of so many micro-batches, of the whole share or of
        a part of it.
    micro_batches : int
    reduction : Reduction
    precision : str
        Of activations.
    recompute : Recompute
        What backward runs forward of once more.
    held_dtype : str, optional
        Of parameters that layers run with, where it is not their own.
    replica : DdpOptions, optional
        Of DDP around a module whose parts one process runs, one after the other.

    Raises
    ------
    InputError
        Counts that the schedule does not allow, or a model that cannot be cut so.
    """
    grid = mixture.grid(request.ranks * mixture.shard.tensor * mixture.stages)

    def plan_part(part: StepRequest, count: int) -> StepPlan:
        return add_layer_calls(make(part, count), part, precision, recompute)

    if mixture.stages == 1:
        return expand_ranks(plan_part(request, micro_batches), grid)
    schedule = mixture.pipeline_schedule(micro_batches)
    model = model_parts(request.workload, request.times, schedule, mixture.partition)
    transfer_bytes = handed_bytes(model, precision, request.batch_per_gpu, held_dtype)
    if replica is not None:
        check_replica(replica, model, request)
        whole = plan_part(request, micro_batches)
        return expand_ranks(spread_replica(whole, request, replica, model, transfer_bytes), grid)
    copies = 2 if schedule.layout == "bidirectional" else 1

    def plan_model_part(part: ModelPart) -> StepPlan:
        own = replace(
            request,
            workload=part.workload,
            times=part.times,
            segments=PART_SEGMENTS,
            ranks=copies * request.ranks,
            ready_order=None,
            expert_copies=request.expert_copies and copies * request.expert_copies,
        )
        return plan_part(own, micro_batches // copies)

    plans = plan_parts(model, plan_model_part)
    overlap_p2p = mixture.overlap_p2p
    options = PipelineOptions(
        transfer_bytes,
        overlap_p2p=mixture.schedule not in WAITING if overlap_p2p is None else overlap_p2p,
        overlap_reduction=reduction.overlaps,
        tied_dtype=reduction.dtype,
    )
    return expand_ranks(pipeline_plan(schedule, plans, options), grid)
