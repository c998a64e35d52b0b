"""What a mixture makes of a plain data-parallel plan: calls of layers, stages, places of ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from perfmodel.training.parallel.expand_ranks import expand_ranks
from perfmodel.training.parallel.rank_grid import RankGrid
from perfmodel.training.pipeline.partition import PartitionOptions
from perfmodel.training.plan.layer_calls import add_layer_calls
from perfmodel.training.plan.step_plan import StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.memory.recompute import Recompute
from perfmodel.workload.shards.shard import WHOLE, Shard


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
    """

    shard: Shard = WHOLE
    stages: int = 1
    schedule: str = "1f1b"
    chunks: int | None = None
    partition: PartitionOptions = field(default_factory=PartitionOptions)
    overlap_p2p: bool | None = None
    micro_batch_group: int | None = None
    order: tuple[str, ...] = ("tp", "cp", "ep", "dp", "pp")

    @property
    def is_plain(self) -> bool:
        """Whether each rank is a whole replica."""
        return self.shard.is_whole and self.stages == 1

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
        )


def mix_step(
    mixture: Mixture,
    request: StepRequest,
    make: Callable[[StepRequest], StepPlan],
    precision: str,
    recompute: Recompute,
    held_dtype: str | None,
) -> StepPlan:
    """Plan a step of a mixture on all its ranks.

    Parameters
    ----------
    mixture : Mixture
    request : StepRequest
        Of the share of one rank of a tensor, context and expert group, among its replicas.
    make : callable
        The plan of a plain data-parallel step, of the whole share or of one stage's.
    precision : str
        Of activations.
    recompute : Recompute
        What backward runs forward of once more.
    held_dtype : str, optional
        Of parameters that layers run with, where it is not their own.

    Raises
    ------
    InputError
        Counts that the schedule does not allow, or a model that cannot be cut so.
    """
    shard = mixture.shard
    grid = mixture.grid(request.ranks * shard.tensor * mixture.stages)
    plan = add_layer_calls(make(request), request, precision, recompute)
    return expand_ranks(plan, grid)
