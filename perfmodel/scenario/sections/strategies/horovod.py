"""Horovod in a scenario."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from perfmodel.files import FileModel, Seconds, SizeOrNothing
from perfmodel.scenario.sections.base import Index
from perfmodel.scenario.sections.strategies.counts import MicroSteps


class HorovodStrategy(FileModel):
    """horovod.torch.DistributedOptimizer, with Horovod's own names and defaults (0.28)."""

    kind: Literal["horovod"]
    one_node_only: ClassVar[bool] = False
    overlaps: ClassVar[bool] = True
    fusion_threshold: SizeOrNothing = Field(
        default=128.0 * 1024 * 1024, description="HOROVOD_FUSION_THRESHOLD; 0 B fuses nothing"
    )
    cycle_time: Seconds = Field(default=1e-3, description="HOROVOD_CYCLE_TIME")
    cache_capacity: Index = Field(
        default=1024, description="HOROVOD_CACHE_CAPACITY: tensors that ranks agree on by a bit"
    )
    controller: Literal["mpi", "gloo"] = Field(
        default="mpi", description="HOROVOD_CONTROLLER: by what ranks agree on what is ready"
    )
    allreduce: Literal["flat", "torus"] = Field(
        default="flat",
        description="torus (HOROVOD_TORUS_ALLREDUCE): reduce-scatter in each host, all-reduce "
        "across hosts, all-gather in each host",
    )
    compression: Literal["none", "fp16"] = Field(
        default="none", description="Compression.fp16: gradients travel in 16 bits"
    )
    accumulate: MicroSteps = Field(default=1, description="backward_passes_per_step")
