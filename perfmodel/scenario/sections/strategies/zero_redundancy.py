"""DistributedDataParallel with PyTorch's ZeroRedundancyOptimizer in a scenario."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from perfmodel.files import FileModel
from perfmodel.scenario.sections.base import Switch
from perfmodel.scenario.sections.strategies.ddp import DdpStrategy


class ZeroRedundancyStrategy(FileModel):
    """DDP whose optimizer states are split: each GPU updates some parameters and broadcasts them.

    `overlap_with_ddp` has no field: it hides the update behind the next backward, a step late.
    """

    kind: Literal["zero_redundancy"]
    one_node_only: ClassVar[bool] = False
    overlaps: ClassVar[bool] = True
    parameters_as_bucket_view: Switch = Field(
        default=False, description="one broadcast for each GPU, not for each parameter"
    )
    ddp: DdpStrategy = Field(default=DdpStrategy(), description="fields of strategy.kind: ddp")

    @property
    def accumulate(self) -> int:
        """Micro-steps per step."""
        return self.ddp.accumulate
