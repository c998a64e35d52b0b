"""Horovod and priority scheduling, which reorder and fuse reductions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perfmodel.files import Bytes, Seconds, SizeOrNothing
from perfmodel.scenario.sections.base import Index, MicroSteps, StrategyModel


class HorovodStrategy(StrategyModel):
    """horovod.torch.DistributedOptimizer, with Horovod's own names and defaults (0.28)."""

    kind: Literal["horovod"]
    # defaults: BackgroundThreadLoop in operations.cc, and global_state.h, of horovod 0.28.1
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


class PriorityStrategy(StrategyModel):
    """Gradients cut to pieces, and sent by what the next forward needs first.

    ByteScheduler's defaults are a million fp32 parameters a piece and four pieces of credit; P3 has
    50,000 parameters (200 kB) and a credit of one piece.
    """

    kind: Literal["priority"]
    # a million fp32 parameters: BYTESCHEDULER_PARTITION (bytescheduler/common/bytecore.py)
    partition_size: Bytes = Field(default=4e6, description="tensors are cut to such pieces")
    credit: Bytes | None = Field(
        default=None, description="pieces in flight, which none can overtake; default: four"
    )
    order: Literal["priority", "fifo"] = Field(
        default="priority", description="fifo: pieces in the order in which they get ready"
    )
    accumulate: MicroSteps = 1

    @property
    def credit_bytes(self) -> float:
        """Bytes of pieces in flight; by default four pieces."""
        return self.credit or 4 * self.partition_size
